//! Both sides of every bound of 8-bit attention with block scales.

use super::Given;

/// The bounds of lowering.
pub(crate) const LIMITS: &[(&str, Given, Given)] = &[
    (
        "mxfp8.gpu",
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "h200", "9.27"),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "b200", "9.27"),
    ),
    (
        "mxfp8.gpu",
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "sm_99", "9.27"),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "sm_100", "9.27"),
    ),
    (
        "mxfp8.gpu",
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "sm_104", "9.27"),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "sm_103", "9.27"),
    ),
    (
        "mxfp8.gpu",
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "rtx-pro-6000", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed", "rtx-pro-6000", "9.27"),
    ),
    (
        "mxfp8.one-query",
        ("q: e4m3 [2,8,1,128]\nk: [2,8,512,128]\no: bf16 [2,8,1,128]\nfp8: block", "b200", "9.27"),
        ("q: e4m3 [2,8,2,128]\nk: [2,8,512,128]\no: bf16 [2,8,2,128]\nfp8: block", "b200", "9.27"),
    ),
    (
        "mxfp8.paged",
        (
            "q: e4m3 [2,8,64,128]\nk: [2,8,512,128] paged 16 x 64\no: bf16 [2,8,64,128]\nlengths: per-sequence\nfp8: block",
            "b200",
            "9.27",
        ),
        (
            "q: e4m3 [2,8,64,128]\nk: [2,8,512,128]\no: bf16 [2,8,64,128]\nlengths: per-sequence\nfp8: block",
            "b200",
            "9.27",
        ),
    ),
    (
        "mxfp8.backward-extras",
        (
            "pass: backward\nq: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nd_q: bf16 [2,8,512,128]\n\
             d_k: bf16 [2,8,512,128]\nd_v: bf16 [2,8,512,128]\nfp8: block\ndropout: philox 0.1",
            "b200",
            "9.27",
        ),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block\ndropout: philox 0.1", "b200", "9.27"),
    ),
    (
        "mxfp8.backward-extras",
        (
            "pass: backward\nq: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nd_q: bf16 [2,8,512,128]\n\
             d_k: bf16 [2,8,512,128]\nd_v: bf16 [2,8,512,128]\nfp8: block\nscore_mod: tanh(score)",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nd_q: bf16 [2,8,512,128]\n\
             d_k: bf16 [2,8,512,128]\nd_v: bf16 [2,8,512,128]\nfp8: block\nmask: causal",
            "b200",
            "9.27",
        ),
    ),
    (
        "mxfp8.backward-extras",
        (
            "pass: backward\nq: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nd_q: bf16 [2,8,512,128]\n\
             d_k: bf16 [2,8,512,128]\nd_v: bf16 [2,8,512,128]\nfp8: block\nmask_mod: key % 2 == 0",
            "b200",
            "9.27",
        ),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block\nmask_mod: key % 2 == 0", "b200", "9.27"),
    ),
    (
        "fp8.dropout-mask",
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block\ndropout: mask 0.1", "b200", "9.27"),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block\ndropout: philox 0.1", "b200", "9.27"),
    ),
    (
        "fp8.backward-engine",
        (
            "pass: backward\nq: e4m3 [2,8,512,144]\no: bf16 [2,8,512,144]\nd_q: bf16 [2,8,512,144]\n\
             d_k: bf16 [2,8,512,144]\nd_v: bf16 [2,8,512,144]\nfp8: block",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: e4m3 [2,8,512,192]\nv: [2,8,512,128]\no: bf16 [2,8,512,128]\nd_q: bf16 [2,8,512,192]\n\
             d_k: bf16 [2,8,512,192]\nd_v: bf16 [2,8,512,128]\nfp8: block",
            "b200",
            "9.27",
        ),
    ),
];

/// The bounds of the rules.
pub(crate) const BOUNDS: &[(&str, Given, Given)] = &[
    (
        "mxfp8.version",
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "b200", "9.20.9"),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "b200", "9.21"),
    ),
    (
        "mxfp8.head-dim",
        ("q: e4m3 [2,8,512,144]\no: bf16 [2,8,512,144]\nfp8: block", "b200", "9.27"),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "b200", "9.27"),
    ),
    (
        "mxfp8.head-dim",
        ("q: e4m3 [2,8,512,192]\no: bf16 [2,8,512,192]\nfp8: block", "b200", "9.27"),
        ("q: e4m3 [2,8,512,192]\nv: [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "b200", "9.27"),
    ),
    (
        "fp8.head-dim-multiple",
        ("q: e4m3 [2,8,512,72]\no: bf16 [2,8,512,72]\nfp8: block", "b200", "9.27"),
        ("q: e4m3 [2,8,512,80]\no: bf16 [2,8,512,80]\nfp8: block", "b200", "9.27"),
    ),
    (
        "mxfp8.backward-type",
        (
            "pass: backward\nq: e5m2 [2,8,512,128]\no: bf16 [2,8,512,128]\nd_q: bf16 [2,8,512,128]\n\
             d_k: bf16 [2,8,512,128]\nd_v: bf16 [2,8,512,128]\nfp8: block",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nd_o: e5m2 [2,8,512,128]\n\
             d_q: bf16 [2,8,512,128]\nd_k: bf16 [2,8,512,128]\nd_v: bf16 [2,8,512,128]\nfp8: block",
            "b200",
            "9.27",
        ),
    ),
    (
        "mxfp8.varlen",
        (
            "q: e4m3 [2,8,512,128] varlen tokens 900\no: bf16 [2,8,512,128] varlen tokens 900\nlengths: per-sequence\n\
             fp8: block",
            "b200",
            "9.27",
        ),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nlengths: per-sequence\nfp8: block", "b200", "9.27"),
    ),
    (
        "mxfp8.value-head-dim",
        ("q: e4m3 [2,8,512,64]\nv: [2,8,512,144]\no: bf16 [2,8,512,144]\nfp8: block", "b200", "9.27"),
        ("q: e4m3 [2,8,512,64]\nv: [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "b200", "9.27"),
    ),
    (
        "mxfp8.nan",
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "b200", "9.23.0"),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "b200", "9.22.9"),
    ),
    (
        "mxfp8.nan",
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "b200", "9.23.1"),
        ("q: e4m3 [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: block", "b200", "9.23.2"),
    ),
    (
        "fp8.backward-one-query",
        (
            "pass: backward\nq: e4m3 [1,8,1,128]\nk: [1,8,64,128]\nv: [1,8,64,128]\no: bf16 [1,8,1,128]\n\
             d_q: bf16 [1,8,1,128]\nd_k: bf16 [1,8,64,128]\nd_v: bf16 [1,8,64,128]\nfp8: block",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: e4m3 [2,8,1,128]\nk: [2,8,64,128]\nv: [2,8,64,128]\no: bf16 [2,8,1,128]\n\
             d_q: bf16 [2,8,1,128]\nd_k: bf16 [2,8,64,128]\nd_v: bf16 [2,8,64,128]\nfp8: block",
            "b200",
            "9.27",
        ),
    ),
    (
        "fp8.backward-heads",
        (
            "pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,2,64,128]\nv: [2,8,64,128]\no: bf16 [2,8,64,128]\n\
             d_q: bf16 [2,8,64,128]\nd_k: bf16 [2,2,64,128]\nd_v: bf16 [2,8,64,128]\nfp8: block",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,4,64,128]\nv: [2,2,64,128]\no: bf16 [2,8,64,128]\n\
             d_q: bf16 [2,8,64,128]\nd_k: bf16 [2,4,64,128]\nd_v: bf16 [2,2,64,128]\nfp8: block",
            "b200",
            "9.27",
        ),
    ),
    (
        "fp8.backward-band",
        (
            "pass: backward\nq: e4m3 [2,8,96,128]\nk: [2,8,512,128]\nv: [2,8,512,128]\no: bf16 [2,8,96,128]\n\
             d_q: bf16 [2,8,96,128]\nd_k: bf16 [2,8,512,128]\nd_v: bf16 [2,8,512,128]\nfp8: block\nmask: causal bottom-right",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: e4m3 [2,8,128,128]\nk: [2,8,512,128]\nv: [2,8,512,128]\no: bf16 [2,8,128,128]\n\
             d_q: bf16 [2,8,128,128]\nd_k: bf16 [2,8,512,128]\nd_v: bf16 [2,8,512,128]\nfp8: block\nmask: causal bottom-right",
            "b200",
            "9.27",
        ),
    ),
    (
        "fp8.expression",
        (
            "q: e4m3 [1,8,512,128]\nk: [1,8,512,128]\no: bf16 [1,8,512,128]\nfp8: block\nscore_mod: tanh(score)",
            "b200",
            "9.27",
        ),
        ("q: e4m3 [1,8,512,128]\nk: [1,8,512,128]\no: bf16 [1,8,512,128]\nfp8: block", "b200", "9.27"),
    ),
    (
        "fp8.split-zeros",
        ("q: e4m3 [1,8,256,128]\nk: [1,8,4096,128]\no: bf16 [1,8,256,128]\nfp8: block", "b200", "9.24"),
        ("q: e4m3 [1,8,256,128]\nk: [1,8,4095,128]\no: bf16 [1,8,256,128]\nfp8: block", "b200", "9.24"),
    ),
];
