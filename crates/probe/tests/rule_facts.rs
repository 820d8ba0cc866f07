//! Properties of a description that several rules read, from both sides: which operands are varlen, which tensors are
//! read by query, which gradients are computed, and where an engine is named.

mod bounds;

use bounds::{Bounds, attention, target, wrong};
use qkvault_probe::{Request, check};

const PLAIN: &str = "q: bf16 [1,8,512,64]";
/// Three reads of a number for each of two queries, and one of a number for each of two sequences of one key.
const TWO_QUERIES: &str = "pass: backward\nq: bf16 [1,2,2,64]\nk: [1,2,64,64]\nscore_mod: tensor @a: f32[1, 1, 2, 1]; tensor @b: f32[1, 2, 2, 1]; score * @a + @b";
const ONE_KEY: &str = "pass: backward\nq: bf16 [2,2,1,64]\nk: [2,2,1,64]\nscore_mod: tensor @a: f32[2, 1, 1, 1]; tensor @b: f32[2, 2, 1, 1]; score * @a + @b";
const ONE_NUMBER: &str = "pass: backward\nq: bf16 [1,2,64,64]\nscore_mod: tensor @a: f32[1, 1, 1, 1]; tensor @b: f32[1, 2, 64, 1]; score * @a + @b";
const TWO_BIASES: &str = "q: bf16 [1,2,128,128]\nscore_mod: tensor @a: bf16[1, 2, 128, 128] grad; tensor @b: bf16[1, 1, 128, 128]; score + @a + @b";

const ALL: &[Bounds] = &[
    Bounds {
        code: "backward.varlen-no-queries-old",
        fires: &[
            (
                "pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nk: [2,8,64,64]\nlengths: per-sequence",
                "h200",
                "9.18.9",
            ),
            (
                "pass: backward\nq: bf16 [2,8,64,64]\nk: [2,8,64,64] varlen tokens 99\nlengths: per-sequence",
                "h200",
                "9.18.9",
            ),
        ],
        not: &[],
    },
    Bounds {
        code: "backward.query-tensors",
        fires: &[(TWO_QUERIES, "h200", "9.19"), (ONE_KEY, "h200", "9.19"), (TWO_QUERIES, "b200", "9.21.9")],
        not: &[
            (ONE_NUMBER, "h200", "9.19"),
            (TWO_QUERIES, "a100", "9.19"),
            (TWO_QUERIES, "b200", "9.22.0"),
            (PLAIN, "h200", "9.19"),
        ],
    },
    Bounds {
        code: "backward.query-tensor-subtracted",
        fires: &[],
        not: &[
            (PLAIN, "b200", "9.27"),
            ("pass: backward\nq: bf16 [1,8,512,64]", "b200", "9.27"),
            (
                "pass: backward\nq: bf16 [1,2,64,64]\nscore_mod: tensor @a: f32[1, 1, 1, 1]; tensor @b: f32[1, 2, 64, 1]; score + @b - @a",
                "b200",
                "9.27",
            ),
        ],
    },
    Bounds {
        code: "backward.deterministic-one-query",
        fires: &[],
        not: &[("q: bf16 [1,8,1,64]\nk: [1,8,64,64]", "b200", "9.27")],
    },
    Bounds {
        code: "backward.deterministic-tensor-gradient",
        fires: &[(
            "pass: backward\ndeterministic: yes\nq: bf16 [1,2,128,128]\nscore_mod: tensor @a: bf16[1, 2, 128, 128] grad; tensor @b: bf16[1, 1, 128, 128]; score + @a + @b",
            "b200",
            "9.27",
        )],
        not: &[
            ("pass: backward\ndeterministic: yes\nq: bf16 [1,2,128,128]", "b200", "9.27"),
            (TWO_BIASES, "b200", "9.27"),
        ],
    },
    Bounds {
        code: "backward.deterministic-varlen",
        fires: &[(
            "pass: backward\ndeterministic: yes\nq: bf16 [2,2,64,256] varlen tokens 99\nlengths: per-sequence",
            "b200",
            "9.24.9",
        )],
        not: &[("pass: backward\ndeterministic: yes\nq: bf16 [2,2,64,256]\nlengths: per-sequence", "b200", "9.24.9")],
    },
    Bounds {
        code: "backward.varlen-rows",
        fires: &[],
        not: &[("pass: backward\nq: bf16 [2,4,64,64]\nd_q: bf16 [2,4,64,64] bhsd", "h200", "9.27")],
    },
    Bounds {
        code: "tensor.stride-alignment",
        fires: &[(
            "q: bf16 [1,2,64,64] strides [8256,64,129,1]\nk: [1,2,64,64]\nv: [1,2,64,64]\no: [1,2,64,64]",
            "h200",
            "9.19",
        )],
        not: &[(
            "fp8: current\nq: e4m3 [1,2,64,64] strides [9216,64,144,1]\nk: [1,2,64,64]\nv: [1,2,64,64]\no: bf16 [1,2,64,64]",
            "h200",
            "9.19",
        )],
    },
];

#[test]
fn facts_appear_in_the_rules_that_read_them() {
    assert_eq!(wrong(ALL), [""; 0]);
}

/// Strides of a batch of one follow from those of its rows, which are wrong.
#[test]
fn the_reported_axis_of_a_wrong_stride_has_several_elements() {
    let a = attention("q: bf16 [1,2,63,64] strides [8127,64,129,1]\nk: [1,2,63,64]\nv: [1,2,63,64]\no: [1,2,63,64]");
    let reasons = check(&Request::new(&a, &target("h200", "9.19"))).reasons;
    let given: Vec<&str> = reasons.iter().map(|r| r.given.as_ref()).collect();
    assert_eq!(given, ["the sequence stride of q is 129 elements of 2 bytes"]);
}
