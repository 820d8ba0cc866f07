//! Both sides of every bound of 8-bit attention with one scale per tensor.

use super::Given;

/// The bounds of lowering.
pub(crate) const LIMITS: &[(&str, Given, Given)] = &[
    (
        "fp8.tensor-gradient",
        (
            "pass: backward\nq: e4m3 [1,2,128,128]\nfp8: delayed\n\
             score_mod: tensor @b: bf16[1, 2, 128, 128] grad; score + @b",
            "h200",
            "9.27",
        ),
        (
            "pass: backward\nq: e4m3 [1,2,128,128]\nfp8: delayed\n\
             score_mod: tensor @b: bf16[1, 2, 128, 128]; score + @b",
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
    (
        "fp8.dropout-mask",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\ndropout: mask 0.1", "h200", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\ndropout: philox 0.1", "h200", "9.27"),
    ),
    (
        "fp8.backward-deterministic",
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed\ndeterministic: yes", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed\ndeterministic: yes", "b200", "9.27"),
    ),
];

/// The bounds of the rules.
pub(crate) const BOUNDS: &[(&str, Given, Given)] = &[
    (
        "fp8.gpu",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed", "l40s", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.output",
        ("q: e4m3 [2,8,512,128]\nk: [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: current", "h200", "9.27"),
        ("q: e4m3 [2,8,512,128]\nk: [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: current", "b200", "9.27"),
    ),
    (
        "fp8.output",
        ("q: e4m3 [2,8,512,128]\nk: [2,8,512,128]\no: bf16 [2,8,512,128]\nfp8: current", "rtx-pro-6000", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed", "rtx-pro-6000", "9.27"),
    ),
    (
        "fp8.head-dim-multiple",
        ("q: e4m3 [2,8,512,72]\nfp8: delayed", "h200", "9.27"),
        ("q: e4m3 [2,8,512,80]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.head-dim-multiple",
        ("q: e4m3 [2,8,512,64]\nv: [2,8,512,72]\nfp8: delayed", "b200", "9.27"),
        ("q: e4m3 [2,8,512,64]\nv: [2,8,512,80]\nfp8: delayed", "b200", "9.27"),
    ),
    (
        "fp8.head-dim",
        ("q: e4m3 [2,8,512,272]\nfp8: delayed", "h200", "9.27"),
        ("q: e4m3 [2,8,512,256]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.head-dim",
        ("q: e4m3 [2,8,512,144]\nfp8: delayed", "rtx-pro-6000", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed", "rtx-pro-6000", "9.27"),
    ),
    (
        "fp8.head-dim",
        ("q: e4m3 [2,8,512,528]\nfp8: delayed", "b200", "9.27"),
        ("q: e4m3 [2,8,512,512]\nfp8: delayed", "b200", "9.27"),
    ),
    (
        "fp8.one-query",
        ("q: e4m3 [2,8,1,128]\nk: [2,8,512,128]\nfp8: delayed", "h200", "9.27"),
        ("q: e4m3 [2,8,2,128]\nk: [2,8,512,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.one-query-stats",
        ("q: e4m3 [2,8,1,128]\nk: [2,8,512,128]\nfp8: delayed", "b200", "9.17"),
        ("q: e4m3 [2,8,1,128]\nk: [2,8,512,128]\noutputs: stats\nfp8: delayed", "b200", "9.17"),
    ),
    (
        "fp8.one-query-stats",
        ("q: e4m3 [2,8,1,64]\nk: [2,8,512,64]\nfp8: delayed", "b200", "9.27"),
        ("q: e4m3 [2,8,1,64]\nk: [2,4,512,64]\nfp8: delayed", "b200", "9.27"),
    ),
    (
        "fp8.one-query-stats",
        ("q: e4m3 [2,8,1,64]\nk: [2,4,512,64]\nfp8: delayed", "b200", "9.19"),
        ("q: e4m3 [2,8,1,64]\nk: [2,4,512,64]\nfp8: delayed\ndropout: philox 0.1", "b200", "9.19"),
    ),
    (
        "fp8.one-query-stats",
        ("q: e4m3 [2,8,1,80]\nk: [2,4,512,80]\nfp8: delayed", "b200", "9.27"),
        ("q: e4m3 [2,8,1,80]\nk: [2,4,512,80]\nfp8: delayed\nsink: yes", "b200", "9.27"),
    ),
    (
        "fp8.one-query-dropout",
        (
            "q: e4m3 [2,8,1,128]\nk: [2,4,512,128] paged 16 x 64\nlengths: per-sequence\nfp8: delayed\noutputs: stats\n\
             dropout: philox 0.1",
            "b200",
            "9.27",
        ),
        (
            "q: e4m3 [2,8,1,128]\nk: [2,4,512,128]\nlengths: per-sequence\nfp8: delayed\noutputs: stats\n\
             dropout: philox 0.1",
            "b200",
            "9.27",
        ),
    ),
    (
        "fp8.one-query-varlen",
        (
            "q: e4m3 [2,8,1,64] varlen tokens 2\nk: [2,8,1,64] varlen tokens 2\noutputs: stats\n\
             lengths: per-sequence\nfp8: delayed",
            "b200",
            "9.19",
        ),
        (
            "q: e4m3 [2,8,2,64] varlen tokens 4\nk: [2,8,2,64] varlen tokens 4\noutputs: stats\n\
             lengths: per-sequence\nfp8: delayed",
            "b200",
            "9.19",
        ),
    ),
    (
        "fp8.expression-sink",
        ("q: e4m3 [2,8,512,128]\nscore_mod: tanh(score)\nfp8: delayed\nsink: yes", "b200", "9.27"),
        ("q: e4m3 [2,8,512,128]\nscore_mod: tanh(score)\nfp8: delayed\nsink: yes", "b200", "9.19"),
    ),
    (
        "fp8.sink",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\nsink: yes", "h200", "9.15"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\nsink: yes", "h200", "9.14.9"),
    ),
    (
        "fp8.sink",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\nsink: yes", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed\nsink: yes", "h200", "9.27"),
    ),
    (
        "fp8.paged",
        ("q: e4m3 [2,8,64,128]\nk: [2,8,512,128] paged 16 x 64\nlengths: per-sequence\nfp8: delayed", "h200", "9.15.9"),
        ("q: e4m3 [2,8,64,128]\nk: [2,8,512,128] paged 16 x 64\nlengths: per-sequence\nfp8: delayed", "h200", "9.16"),
    ),
    (
        "fp8.dropout",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\ndropout: philox 0.1", "rtx-pro-6000", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\ndropout: philox 0.1", "h200", "9.27"),
    ),
    (
        "fp8.backward-gpu",
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed", "rtx-pro-6000", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed", "rtx-pro-6000", "9.27"),
    ),
    (
        "fp8.backward-head-dim",
        ("pass: backward\nq: e4m3 [2,8,512,64]\nfp8: delayed", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.backward-varlen",
        (
            "pass: backward\nq: e4m3 [2,8,512,128] varlen tokens 900\nlengths: per-sequence\nfp8: delayed",
            "h200",
            "9.27",
        ),
        ("pass: backward\nq: e4m3 [2,8,512,128]\nlengths: per-sequence\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.backward-extras",
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed\ndropout: philox 0.1", "b200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed\nmask: causal", "b200", "9.27"),
    ),
    (
        "fp8.hopper-varlen",
        (
            "pass: backward\nq: e4m3 [2,8,512,128] varlen tokens 900\nk: [2,2,512,128] varlen tokens 900\n\
             lengths: per-sequence\nfp8: delayed",
            "h200",
            "9.27",
        ),
        ("q: e4m3 [2,8,512,128] varlen tokens 900\nlengths: per-sequence\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-dropout",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\ndropout: philox 0.1", "h200", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\ndropout: philox 0.1", "b200", "9.27"),
    ),
    (
        "fp8.hopper-d-sink",
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed\nsink: yes\nd_sink: yes", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed\nsink: yes", "h200", "9.27"),
    ),
    (
        "fp8.hopper-queries",
        ("pass: backward\nq: e4m3 [2,8,504,128]\nk: [2,8,512,128]\nfp8: delayed", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,496,128]\nk: [2,8,512,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-queries",
        ("pass: backward\nq: e4m3 [2,8,513,128]\nfp8: delayed", "h200", "9.27"),
        ("q: e4m3 [2,8,513,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-few-keys",
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,8,15,128]\nfp8: delayed", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,8,16,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-few-keys",
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,8,2,128]\nfp8: delayed", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,8,2,128]\nlengths: per-sequence\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-keys-tail",
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,8,192,128]\nfp8: delayed", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,8,256,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-keys-tail",
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,8,192,128]\nfp8: delayed", "h200", "9.19"),
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,8,192,128]\nfp8: delayed\nlengths: per-sequence", "h200", "9.19"),
    ),
    (
        "fp8.hopper-keys-tail",
        ("pass: backward\nq: e4m3 [2,8,192,128]\nfp8: delayed", "h200", "9.19"),
        ("pass: backward\nq: e4m3 [2,8,192,128]\nfp8: delayed\nmask: causal", "h200", "9.19"),
    ),
    (
        "fp8.hopper-padded-amax",
        ("q: e4m3 [1,1,2,32]\nv: e4m3 [1,1,2,16]\nmask: band left 64 right 40\nfp8: delayed", "h200", "9.19"),
        ("q: e4m3 [1,1,128,32]\nv: e4m3 [1,1,128,16]\nmask: band left 64 right 40\nfp8: delayed", "h200", "9.19"),
    ),
    (
        "fp8.hopper-padded-amax",
        ("q: e4m3 [2,8,512,128]\nlengths: per-sequence\nfp8: delayed", "h200", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-padded-amax",
        ("q: e4m3 [2,8,63,128]\nk: [2,8,300,128]\nmask: causal bottom-right\nfp8: delayed", "h200", "9.27"),
        ("q: e4m3 [2,8,128,128]\nk: [2,8,300,128]\nmask: causal bottom-right\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-padded-amax",
        ("q: e4m3 [2,8,100,128]\nmask: causal window 64\nfp8: delayed", "h200", "9.27"),
        ("q: e4m3 [2,8,128,128]\nmask: causal window 64\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-padded-amax",
        ("q: e4m3 [2,8,576,128]\nlengths: per-sequence\nfp8: delayed", "h200", "9.27"),
        ("q: e4m3 [2,8,576,128]\nlengths: per-sequence\nfp8: delayed\noutputs: no_amax", "h200", "9.27"),
    ),
    (
        "fp8.hopper-grouped-backward",
        ("pass: backward\nq: e4m3 [2,8,512,128]\nk: [2,2,512,128]\nfp8: delayed", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-empty-tile",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\nlengths: per-sequence\nmask: causal window 64", "h200", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\nlengths: per-sequence\nmask: causal", "h200", "9.27"),
    ),
    (
        "fp8.hopper-empty-tile",
        ("q: e4m3 [2,8,576,128]\nk: [2,8,512,128]\nmask: band left 1\nfp8: delayed", "h200", "9.27"),
        ("q: e4m3 [2,8,574,128]\nk: [2,8,512,128]\nmask: band left 1\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-bottom-right",
        (
            "q: e4m3 [2,8,128,128] varlen tokens 200\nk: [2,8,512,128]\nmask: causal bottom-right\n\
             lengths: per-sequence\nfp8: delayed",
            "h200",
            "9.27",
        ),
        ("q: e4m3 [2,8,128,128]\nk: [2,8,512,128]\nmask: causal bottom-right\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.hopper-expression",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\nscore_mod: tanh(score)", "h200", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.expression",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\nscore_mod: tanh(score)", "b200", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\nscore_mod: tanh(score)", "h200", "9.27"),
    ),
    (
        "fp8.expression",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\nmask_mod: key % 2 == 0", "b200", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\nmask: causal", "b200", "9.27"),
    ),
    (
        "fp8.dropout-form",
        ("pass: backward\nq: e4m3 [2,8,512,128]\nfp8: delayed\ndropout: philox 0.1", "h200", "9.27"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed\ndropout: philox 0.1", "h200", "9.27"),
    ),
    (
        "fp8.head-dim-wide",
        ("q: e4m3 [2,8,512,256]\nfp8: delayed", "b200", "9.27"),
        ("q: e4m3 [2,8,512,256]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.head-dim-wide",
        ("q: e4m3 [2,8,512,144]\nfp8: delayed", "b200", "9.27"),
        ("q: e4m3 [2,8,512,192]\nv: [2,8,512,128]\nfp8: delayed", "b200", "9.27"),
    ),
    (
        "fp8.backward-band",
        (
            "pass: backward\nq: e4m3 [2,8,96,128]\nk: [2,8,512,128]\nmask: causal bottom-right\nfp8: delayed",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: e4m3 [2,8,128,128]\nk: [2,8,512,128]\nmask: causal bottom-right\nfp8: delayed",
            "b200",
            "9.27",
        ),
    ),
    (
        "fp8.backward-band",
        (
            "pass: backward\nq: e4m3 [2,8,512,128]\nk: [2,8,256,128]\nmask: causal window 64\nfp8: delayed",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: e4m3 [2,8,512,128]\nk: [2,8,256,128]\nmask: causal window 64\nlengths: per-sequence\n\
             fp8: delayed",
            "b200",
            "9.27",
        ),
    ),
    (
        "fp8.split-zeros",
        ("q: e4m3 [1,8,256,128]\nk: [1,8,4096,128]\no: bf16 [1,8,256,128]\nfp8: current", "b200", "9.24"),
        ("q: e4m3 [1,8,256,128]\nk: [1,8,4095,128]\no: bf16 [1,8,256,128]\nfp8: current", "b200", "9.24"),
    ),
    (
        "fp8.split-zeros",
        ("q: e4m3 [1,8,256,128]\nk: [1,8,4096,128]\no: bf16 [1,8,256,128]\nfp8: current", "b200", "9.24.9"),
        ("q: e4m3 [1,8,256,128]\nk: [1,8,4096,128]\no: bf16 [1,8,256,128]\nfp8: current", "b200", "9.25"),
    ),
    (
        "tensor.stride-alignment",
        (
            "q: e4m3 [1,2,64,64] strides [8320,64,130,1]\nk: [1,2,64,64]\nv: [1,2,64,64]\no: [1,2,64,64]\nfp8: delayed",
            "h200",
            "9.27",
        ),
        (
            "q: e4m3 [1,2,64,64] strides [9216,64,144,1]\nk: [1,2,64,64]\nv: [1,2,64,64]\no: [1,2,64,64]\nfp8: delayed",
            "h200",
            "9.27",
        ),
    ),
    (
        "fp8.gpu",
        ("q: e4m3 [2,8,512,128]\nfp8: delayed", "rtx-pro-6000", "9.18.9"),
        ("q: e4m3 [2,8,512,128]\nfp8: delayed", "rtx-pro-6000", "9.19"),
    ),
    (
        "fp8.backward-one-query",
        ("pass: backward\nq: e4m3 [1,8,1,128]\nk: [1,8,64,128]\nfp8: delayed", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,1,128]\nk: [2,8,64,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.backward-one-query",
        ("pass: backward\nq: e4m3 [1,8,1,128]\nk: [1,8,64,128]\nfp8: delayed", "b200", "9.27"),
        ("pass: backward\nq: e4m3 [1,8,2,128]\nk: [1,8,64,128]\nfp8: delayed", "b200", "9.27"),
    ),
    (
        "fp8.backward-heads",
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,2,64,128]\nv: [2,8,64,128]\nfp8: delayed", "b200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,4,64,128]\nv: [2,2,64,128]\nfp8: delayed", "b200", "9.27"),
    ),
    (
        "fp8.backward-heads",
        ("pass: backward\nq: e4m3 [2,8,64,128]\nk: [2,8,64,128]\nv: [2,2,64,128]\nfp8: delayed", "h200", "9.27"),
        ("pass: backward\nq: e4m3 [2,8,64,128]\nfp8: delayed", "h200", "9.27"),
    ),
    (
        "fp8.few-queries",
        (
            "q: e4m3 [2,8,8,192]\nk: [2,8,512,192]\nv: [2,8,512,128]\no: [2,8,8,128]\noutputs: stats\nfp8: delayed",
            "b200",
            "9.27",
        ),
        (
            "q: e4m3 [2,8,9,192]\nk: [2,8,512,192]\nv: [2,8,512,128]\no: [2,8,9,128]\noutputs: stats\nfp8: delayed",
            "b200",
            "9.27",
        ),
    ),
    (
        "fp8.few-queries",
        (
            "q: e4m3 [2,8,8,192]\nk: [2,8,512,192]\nv: [2,8,512,128]\no: [2,8,8,128]\noutputs: stats\nfp8: delayed",
            "b200",
            "9.15",
        ),
        (
            "q: e4m3 [2,8,8,192]\nk: [2,8,512,192]\nv: [2,8,512,128]\no: [2,8,8,128]\noutputs: stats\nfp8: delayed",
            "b200",
            "9.14.9",
        ),
    ),
    (
        "fp8.few-queries",
        (
            "q: e4m3 [2,8,1,192]\nk: [2,8,512,192]\nv: [2,8,512,128]\no: [2,8,1,128]\noutputs: stats\nfp8: delayed",
            "b200",
            "9.14",
        ),
        (
            "q: e4m3 [2,8,2,192]\nk: [2,8,512,192]\nv: [2,8,512,128]\no: [2,8,2,128]\noutputs: stats\nfp8: delayed",
            "b200",
            "9.14",
        ),
    ),
    (
        "fp8.one-query",
        ("q: e4m3 [1,8,1,112]\nk: [1,8,64,112]\nfp8: delayed", "h200", "9.14"),
        ("q: e4m3 [1,8,1,112]\nk: [1,8,64,112]\nfp8: delayed\ndropout: philox 0.1", "h200", "9.14"),
    ),
];
