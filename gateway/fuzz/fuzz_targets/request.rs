//! See `rangeway_gateway::fuzz::request`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rangeway_gateway::fuzz::request(data));
