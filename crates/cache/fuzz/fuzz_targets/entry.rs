//! `cargo +nightly fuzz run entry` in the folder `crates/cache`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| qkvault_cache::fuzz::entry(bytes));
