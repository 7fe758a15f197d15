#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamed_experts_fuzz::slab(data));
