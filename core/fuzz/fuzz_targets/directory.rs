//! See `rangeway_core::fuzz::directory`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rangeway_core::fuzz::directory(data));
