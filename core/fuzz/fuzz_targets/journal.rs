//! See `rangeway_core::fuzz::journal`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rangeway_core::fuzz::journal(data));
