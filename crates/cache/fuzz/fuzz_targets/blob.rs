//! `cargo +nightly fuzz run blob` in the folder `crates/cache`.
#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code, reason = "each target runs one of the checks")]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::blob(bytes));
