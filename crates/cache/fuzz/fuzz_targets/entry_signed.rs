//! `cargo +nightly fuzz run entry_signed` in the folder `crates/cache`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| qkvault_cache::fuzz::entry_signed(bytes));
