//! The target that `QKVAULT_FUZZ_TARGET` names, with coverage.
#![no_main]

use std::sync::LazyLock;

use qkvault_fuzz::targets::{Target, named};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("QKVAULT_FUZZ_TARGET").expect("QKVAULT_FUZZ_TARGET names a target");
    named(&name).expect("`cargo xtask fuzz --list` lists the targets")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = (TARGET.check)(bytes);
});
