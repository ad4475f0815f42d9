//! See `rangeway_gateway::fuzz::frame`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rangeway_gateway::fuzz::frame(data));
