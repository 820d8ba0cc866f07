//! Reads text as an attention.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &str| qkvault_graph::arbitrary::read_text(data));
