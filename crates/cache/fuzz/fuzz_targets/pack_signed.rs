//! `cargo +nightly fuzz run pack_signed` in the folder `crates/cache`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| qkvault_cache::fuzz::pack_signed(bytes));
