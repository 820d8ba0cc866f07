//! Both sides of every bound of 8-bit attention with one scale per tensor.

use super::Given;

/// The bounds of lowering.
pub(crate) const LIMITS: &[(&str, Given, Given)] = &[
    (
        "fp8.tensor-gradient",
        (
            "pass: backward\nq: e4m3 [1,2,128,128]\nfp8: delayed\nscore_mod: tensor @b: bf16[1, 2, 128, 128] grad; score + @b",
            "h200",
            "9.27",
        ),
        (
            "pass: backward\nq: e4m3 [1,2,128,128]\nfp8: delayed\nscore_mod: tensor @b: bf16[1, 2, 128, 128]; score + @b",
            "h200",
            "9.27",
        ),
    ),
    (
        "fp8.backward-engine",
        ("pass: backward\nq: e4m3 [1,2,128,128]\nfp8: delayed", "b200", "9.18.9"),
        ("pass: backward\nq: e4m3 [1,2,128,128]\nfp8: delayed", "b200", "9.19.0"),
    ),
    (
        "fp8.backward-engine",
        ("pass: backward\nq: e4m3 [1,2,128,144]\nfp8: delayed", "b200", "9.27"),
        ("pass: backward\nq: e4m3 [1,2,128,192]\nv: e4m3 [1,2,128,128]\nfp8: delayed", "b200", "9.27"),
    ),
    (
        "fp8.backward-engine",
        ("pass: backward\nq: e4m3 [1,2,128,128]\nfp8: delayed", "b200", "9.14"),
        ("pass: backward\nq: e4m3 [1,2,128,128]\nfp8: delayed", "h200", "9.14"),
    ),
];

/// The bounds of the rules.
pub(crate) const BOUNDS: &[(&str, Given, Given)] = &[];
