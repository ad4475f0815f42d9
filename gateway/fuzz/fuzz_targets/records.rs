//! See `rangeway_gateway::fuzz::records_of_a_batch`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rangeway_gateway::fuzz::records_of_a_batch(data));
