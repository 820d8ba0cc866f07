//! Lengths that expressions read, and dropout masks of odd size, on both sides of their rules' bounds.

mod bounds;

use bounds::{Bounds, wrong};

const MASK_ODD: &str = "q: f16 [1,1,1,64]\nk: [1,1,17,64]\ndropout: mask 0.1";
/// Lengths that an expression reads are tensors with one number per sequence: one read, three reads, and with a
/// gradient.
const LENGTH: &str =
    "pass: backward\nq: bf16 [2,2,64,64]\nlengths: per-sequence\nmask_mod: key_len - key > 5 | key == 0";
/// An expression that reads no lengths, and lengths that are equal for all sequences.
const NO_LENGTH: &str =
    "pass: backward\nq: bf16 [2,2,64,64]\nlengths: per-sequence\nscore_mod: tanh(score / 30.0) * 30.0";
const ONE_LENGTH: &str = "pass: backward\nq: bf16 [2,2,64,64]\nmask_mod: key_len - key > 5 | key == 0";
const LENGTH_ALONE: &str =
    "pass: backward\nq: bf16 [1,2,64,64]\nlengths: per-sequence\nmask_mod: key_len - key > 5 | key == 0";
const LENGTHS: &str = "pass: backward\nq: bf16 [2,2,64,64]\nlengths: per-sequence\nscore_mod: tensor @t: f32[1,1,64,1]; score + float(key - position) + @t";
const POSITION: &str =
    "pass: backward\nq: bf16 [2,2,64,64]\nlengths: per-sequence\nscore_mod: score + float(key - position)";
const LENGTH_GRADIENT: &str = "pass: backward\nq: bf16 [2,2,64,64]\nlengths: per-sequence\nscore_mod: tensor @t: bf16[1,2,64,64] grad; score + @t\n\
    mask_mod: key_len - key > 5 | key == 0";
const LENGTH_FIXED: &str = "pass: backward\nq: bf16 [2,2,64,64]\nlengths: per-sequence\ndeterministic: yes\nmask_mod: key_len - key > 5 | key == 0";

const ALL: &[Bounds] = &[
    Bounds {
        code: "dropout.mask-odd",
        fires: &[(MASK_ODD, "h200", "9.27"), ("q: f16 [1,1,1,64]\nk: [1,1,3,64]\ndropout: mask 0.1", "a100", "9.14")],
        not: &[
            ("q: f16 [1,1,1,64]\nk: [1,1,18,64]\ndropout: mask 0.1", "h200", "9.27"),
            ("q: f16 [1,1,1,64]\nk: [1,1,1,64]\ndropout: mask 0.1", "h200", "9.27"),
            ("q: f16 [1,1,3,64]\nk: [1,1,17,64]\ndropout: mask 0.1", "h200", "9.27"),
            ("q: f16 [3,1,1,64]\nk: [3,1,17,64]\ndropout: mask 0.1", "h200", "9.27"),
            ("q: f16 [1,1,1,64]\nk: [1,1,17,64]\ndropout: philox 0.1", "h200", "9.27"),
            ("q: f16 [1,1,1,64]\nk: [1,1,17,64]", "h200", "9.27"),
            ("pass: backward\nq: f16 [1,1,1,64]\nk: [1,1,17,64]\ndropout: mask 0.1", "h200", "9.27"),
        ],
    },
    Bounds {
        code: "backward.query-tensor",
        fires: &[(LENGTH, "a100", "9.14"), (POSITION, "rtx-pro-6000", "9.27")],
        not: &[
            (LENGTH, "h200", "9.14"),
            (LENGTH_ALONE, "a100", "9.14"),
            (NO_LENGTH, "a100", "9.14"),
            (ONE_LENGTH, "a100", "9.14"),
        ],
    },
    Bounds {
        code: "backward.query-tensors",
        fires: &[(LENGTHS, "h200", "9.27"), (LENGTHS, "b200", "9.21")],
        not: &[(LENGTHS, "b200", "9.22"), (POSITION, "h200", "9.27")],
    },
    Bounds {
        code: "backward.query-tensor-gradient",
        fires: &[(LENGTH_GRADIENT, "b200", "9.27")],
        not: &[(LENGTH_GRADIENT, "h200", "9.27"), (LENGTH, "b200", "9.27")],
    },
    Bounds {
        code: "backward.deterministic-query-tensor",
        fires: &[(LENGTH_FIXED, "b200", "9.27")],
        not: &[(LENGTH_FIXED, "h200", "9.27"), (LENGTH, "b200", "9.27")],
    },
];

#[test]
fn lengths_in_expressions_and_odd_dropout_masks_are_refused_exactly_as_observed() {
    assert_eq!(wrong(ALL), Vec::<String>::new());
}
