//! `cargo +nightly fuzz run pack` in the folder `crates/cache`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| qkvault_cache::fuzz::pack(bytes));
