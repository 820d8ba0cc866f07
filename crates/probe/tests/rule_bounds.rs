//! Rules at their last size, version and GPU, and at the next one: each row differs from a row above it in one thing,
//! and tells on which side of the bound it is.

mod bounds;

use bounds::{Bounds, wrong};

const PLAIN: &str = "q: bf16 [1,8,512,64]";
const GROUPED_VARLEN: &str =
    "q: bf16 [2,8,64,64] varlen tokens 99\nk: [2,2,64,64] varlen tokens 99\nlengths: per-sequence";
const LATENT: &str = "pass: backward\nq: bf16 [1,8,1,192]\nk: [1,8,64,192]\nv: [1,8,64,128]";
const PHILOX: &str = "q: bf16 [1,2,65,256]\nk: [1,2,300,256]\nv: [1,2,300,128]\ndropout: philox 0.5";
const ONE_PHILOX: &str = "q: bf16 [1,2,1,192]\nk: [1,2,300,192]\nv: [1,2,300,128]\ndropout: philox 0.5";
const DECODE: &str = "q: bf16 [4,8,1,128]\nk: [4,2,300,128]\nlengths: per-sequence";
const PAGED_DECODE: &str = "q: bf16 [2,8,1,128]\nk: [2,2,256,128] paged 40 x 16\nlengths: per-sequence";
const CAUSAL_ONE: &str = "q: bf16 [1,8,1,64]\nk: [1,8,64,64]\nmask: causal";
const LEFT_ALONE: &str = "q: bf16 [1,8,1025,64]\nmask: band left 64";
const WINDOW: &str = "q: bf16 [1,8,512,64]\nmask: causal window 64";
const BOTTOM: &str = "q: bf16 [1,8,512,64]\nmask: causal window 64 bottom-right\nlengths: per-sequence";
const BARE: &str = "q: bf16 [1,8,65,64]\nk: [1,8,64,64]\nmask: causal bottom-right";
const TAIL: &str = "pass: backward\nq: bf16 [1,8,128,64]\nk: [1,8,127,64]";
const WIDE_BIAS: &str = "pass: backward\nq: bf16 [1,2,128,136]\nv: [1,2,128,128]\nscore_mod: tensor @b: bf16[1, 2, 128, 128] grad; score + @b";
const PACKED: &str = "pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence";
const OF_QUERIES: &str =
    "pass: backward\nq: bf16 [2,2,64,64]\nscore_mod: tensor @t: f32[1, 1, 64, 1]; tanh(score + @t)";

const ALL: &[Bounds] = &[
    Bounds {
        code: "gpu.unknown",
        fires: &[("q: bf16 [1,8,512,64]", "sm_91", "9.27")],
        not: &[("q: bf16 [1,8,512,64]", "sm_75", "9.27")],
    },
    Bounds {
        code: "head-dim.multiple-of-8",
        fires: &[
            ("q: bf16 [1,8,512,100]\nv: [1,8,512,104]", "h200", "9.19"),
            ("q: bf16 [1,8,512,104]\nv: [1,8,512,100]", "h200", "9.19"),
        ],
        not: &[("q: bf16 [1,8,512,104]\nv: [1,8,512,104]", "h200", "9.19")],
    },
    Bounds {
        code: "head-dim.forward-old",
        fires: &[("q: bf16 [1,8,512,129]", "a100", "9.9.0"), ("q: bf16 [1,8,512,257]", "h200", "9.9.0")],
        not: &[
            ("q: bf16 [1,8,512,129]", "a100", "9.9.1"),
            ("q: bf16 [1,8,512,257]", "h200", "9.9.1"),
            ("q: bf16 [1,8,512,256]", "h200", "9.9.0"),
            ("pass: backward\nq: bf16 [1,8,512,129]", "a100", "9.9.0"),
        ],
    },
    Bounds {
        code: "head-dim.rubin-old",
        fires: &[
            ("q: bf16 [1,8,512,129]", "sm_107", "9.25.0"),
            ("q: bf16 [1,8,512,64]\nv: [1,8,512,129]", "sm_107", "9.25.0"),
        ],
        not: &[
            ("q: bf16 [1,8,512,129]", "sm_107", "9.25.1"),
            ("q: bf16 [1,8,512,129]", "sm_106", "9.25.0"),
            ("q: bf16 [1,8,512,128]", "sm_107", "9.25.0"),
            ("q: bf16 [1,8,512,192]\nv: [1,8,512,128]", "sm_107", "9.25.0"),
        ],
    },
    Bounds {
        code: "head-dim.backward",
        fires: &[
            ("pass: backward\nq: bf16 [1,8,512,257]", "h200", "9.27"),
            ("pass: backward\nq: bf16 [1,8,512,129]", "a100", "9.27"),
            ("pass: backward\nq: bf16 [1,8,512,192]\nv: [1,8,512,128]", "b200", "9.10.2"),
        ],
        not: &[
            ("pass: backward\nq: bf16 [1,8,512,256]", "h200", "9.27"),
            ("pass: backward\nq: bf16 [1,8,512,192]\nv: [1,8,512,128]", "b200", "9.11.0"),
        ],
    },
    Bounds {
        code: "head-dim.backward-latent",
        fires: &[
            ("pass: backward\nq: bf16 [1,8,512,129]\nv: [1,8,512,65]", "h200", "9.11.0"),
            ("pass: backward\nq: bf16 [1,8,512,191]\nv: [1,8,512,127]", "h200", "9.12.9"),
        ],
        not: &[
            ("pass: backward\nq: bf16 [1,8,512,129]\nv: [1,8,512,65]", "h200", "9.13.0"),
            ("pass: backward\nq: bf16 [1,8,512,129]\nv: [1,8,512,65]", "h200", "9.10.2"),
            ("pass: backward\nq: bf16 [1,8,512,128]\nv: [1,8,512,65]", "h200", "9.11.0"),
            ("pass: backward\nq: bf16 [1,8,512,129]\nv: [1,8,512,64]", "h200", "9.11.0"),
            ("pass: backward\nq: bf16 [1,8,512,193]\nv: [1,8,512,127]", "h200", "9.11.0"),
            ("pass: backward\nq: bf16 [1,8,512,191]\nv: [1,8,512,129]", "h200", "9.11.0"),
            ("pass: backward\nq: bf16 [1,8,512,192]\nv: [1,8,512,127]", "h200", "9.11.0"),
            ("pass: backward\nq: bf16 [1,8,512,191]\nv: [1,8,512,128]", "h200", "9.11.0"),
            ("pass: backward\nq: bf16 [1,8,512,129]\nv: [1,8,512,65]", "b200", "9.11.0"),
            ("q: bf16 [1,8,512,129]\nv: [1,8,512,65]", "h200", "9.11.0"),
        ],
    },
    Bounds {
        code: "head-dim.backward-latent-one-query",
        fires: &[(LATENT, "b200", "9.11.0")],
        not: &[
            (LATENT, "b200", "9.10.2"),
            (LATENT, "h200", "9.27"),
            ("q: bf16 [1,8,1,192]\nk: [1,8,64,192]\nv: [1,8,64,128]", "b200", "9.27"),
            ("pass: backward\nq: bf16 [1,8,1,128]\nk: [1,8,64,128]", "b200", "9.27"),
        ],
    },
    Bounds {
        code: "head-dim.philox",
        fires: &[
            (PHILOX, "b200", "9.27"),
            ("q: bf16 [1,2,65,129]\nk: [1,2,300,129]\nv: [1,2,300,128]\ndropout: philox 0.5", "b200", "9.27"),
        ],
        not: &[
            ("q: bf16 [1,2,65,128]\nk: [1,2,300,128]\nv: [1,2,300,128]\ndropout: philox 0.5", "b200", "9.27"),
            ("q: bf16 [1,2,65,256]\nk: [1,2,300,256]\nv: [1,2,300,128]\ndropout: mask 0.5", "b200", "9.27"),
            ("q: bf16 [1,2,65,256]\nk: [1,2,300,256]\nv: [1,2,300,128]", "b200", "9.27"),
            (
                "pass: backward\nq: bf16 [1,2,65,256]\nk: [1,2,300,256]\nv: [1,2,300,128]\ndropout: philox 0.5",
                "b200",
                "9.27",
            ),
        ],
    },
    Bounds {
        code: "head-dim.philox-one-query",
        fires: &[
            (ONE_PHILOX, "b200", "9.27"),
            ("q: bf16 [1,2,1,129]\nk: [1,2,300,129]\nv: [1,2,300,64]\ndropout: philox 0.5", "b200", "9.27"),
        ],
        not: &[
            (ONE_PHILOX, "h200", "9.27"),
            ("q: bf16 [1,2,1,128]\nk: [1,2,300,128]\ndropout: philox 0.5", "b200", "9.27"),
            (
                "pass: backward\nq: bf16 [1,2,1,192]\nk: [1,2,300,192]\nv: [1,2,300,128]\ndropout: philox 0.5",
                "b200",
                "9.27",
            ),
        ],
    },
    Bounds {
        code: "queries.one-old",
        fires: &[
            (CAUSAL_ONE, "h200", "9.9.0"),
            ("q: bf16 [1,8,1,129]\nk: [1,8,64,129]\nv: [1,8,64,64]", "b200", "9.9.0"),
            ("q: bf16 [1,8,1,64]\nk: [1,8,64,64]\nv: [1,8,64,129]", "b200", "9.9.0"),
        ],
        not: &[
            (CAUSAL_ONE, "h200", "9.9.1"),
            ("pass: backward\nq: bf16 [1,8,1,64]\nk: [1,8,64,64]\nmask: causal", "h200", "9.9.0"),
            ("q: bf16 [1,8,1,136]\nk: [1,8,64,136]", "h200", "9.9.0"),
        ],
    },
    Bounds {
        code: "queries.one-wrong",
        fires: &[
            (DECODE, "b200", "9.19.0"),
            (DECODE, "b200", "9.24.0"),
            (DECODE, "b200", "9.24.2"),
            (DECODE, "b200", "9.25.0"),
            (DECODE, "sm_103", "9.25.0"),
            (DECODE, "sm_110", "9.25.0"),
            ("pass: backward\nq: bf16 [2,8,1,64]\nk: [2,8,64,64]", "b200", "9.19.0"),
            (PAGED_DECODE, "b200", "9.23.0"),
        ],
        not: &[
            (DECODE, "b200", "9.18.9"),
            (DECODE, "b200", "9.24.1"),
            (DECODE, "b200", "9.25.1"),
            (DECODE, "h200", "9.25.0"),
            (DECODE, "rtx-pro-6000", "9.25.0"),
            ("q: bf16 [4,8,2,128]\nk: [4,2,300,128]\nlengths: per-sequence", "b200", "9.19.0"),
            ("q: e4m3 [4,8,1,128]\nk: [4,2,320,128]\nfp8: delayed", "b200", "9.19.0"),
        ],
    },
    Bounds {
        code: "band.window-wrong",
        fires: &[(LEFT_ALONE, "h200", "9.14.0")],
        not: &[
            (LEFT_ALONE, "h200", "9.14.1"),
            (LEFT_ALONE, "h200", "9.13.9"),
            ("q: bf16 [1,8,1024,64]\nmask: band left 64", "h200", "9.14.0"),
            ("q: bf16 [1,8,1025,64]", "h200", "9.14.0"),
        ],
    },
    Bounds {
        code: "band.window-old",
        fires: &[
            ("q: bf16 [1,8,512,64]\nmask: band left 64", "h200", "9.10.1"),
            ("q: bf16 [1,8,512,64]\nmask: causal window 64\nscore_mod: tanh(score)", "h200", "9.9.0"),
            ("q: bf16 [1,8,512,64]\nmask: causal window 64\ndropout: philox 0.5", "h200", "9.9.0"),
        ],
        not: &[("q: bf16 [1,8,512,64]\nmask: band left 64", "h200", "9.10.2"), (WINDOW, "h200", "9.9.0")],
    },
    Bounds {
        code: "band.window-corner-old",
        fires: &[(BOTTOM, "h200", "9.9.0")],
        not: &[
            (BOTTOM, "h200", "9.9.1"),
            (BOTTOM, "a100", "9.9.0"),
            ("q: bf16 [1,8,512,64]\nmask: causal window 64\nlengths: per-sequence", "h200", "9.9.0"),
            (
                "q: bf16 [1,8,512,64]\nk: [1,8,520,64]\nmask: causal window 64 bottom-right\nlengths: per-sequence",
                "h200",
                "9.9.0",
            ),
        ],
    },
    Bounds {
        code: "band.rows-without-keys",
        fires: &[(BARE, "h200", "9.27")],
        not: &[
            ("q: bf16 [1,8,64,64]\nk: [1,8,64,64]\nmask: causal bottom-right", "h200", "9.27"),
            ("q: bf16 [1,8,65,64]\nk: [1,8,64,64]\nmask: causal", "h200", "9.27"),
            ("q: bf16 [1,8,65,64]\nk: [1,8,64,64]\nmask: band left 9 bottom-right", "h200", "9.27"),
            ("q: bf16 [1,8,65,64]\nk: [1,8,64,64]", "h200", "9.27"),
            ("q: bf16 [1,8,65,64]\nk: [1,8,64,64]\nmask: causal bottom-right\nlengths: per-sequence", "h200", "9.27"),
        ],
    },
    Bounds {
        code: "backward.keys-tail-old",
        fires: &[(TAIL, "h200", "9.15.0")],
        not: &[
            (TAIL, "h200", "9.15.1"),
            ("pass: backward\nq: bf16 [1,8,128,64]\nk: [1,8,127,64]\nlengths: per-sequence", "h200", "9.15.0"),
            ("q: bf16 [1,8,128,64]\nk: [1,8,127,64]", "h200", "9.15.0"),
            ("pass: backward\nq: bf16 [1,8,127,64]\nk: [1,8,128,64]", "h200", "9.15.0"),
        ],
    },
    Bounds {
        code: "backward.wide-gradient",
        fires: &[
            (WIDE_BIAS, "b200", "9.27"),
            (
                "pass: backward\nq: bf16 [1,2,128,129]\nv: [1,2,128,128]\nscore_mod: tensor @b: bf16[1, 2, 128, 128] grad; score + @b",
                "b200",
                "9.27",
            ),
        ],
        not: &[
            (WIDE_BIAS, "h200", "9.27"),
            (
                "pass: backward\nq: bf16 [1,2,128,128]\nscore_mod: tensor @b: bf16[1, 2, 128, 128] grad; score + @b",
                "b200",
                "9.27",
            ),
            (
                "pass: backward\nq: bf16 [1,2,128,136]\nv: [1,2,128,128]\nscore_mod: tensor @b: bf16[1, 2, 128, 128]; score + @b",
                "b200",
                "9.27",
            ),
            ("pass: backward\nq: bf16 [1,2,128,136]\nv: [1,2,128,128]", "b200", "9.27"),
            (
                "q: bf16 [1,2,128,136]\nv: [1,2,128,128]\nscore_mod: tensor @b: bf16[1, 2, 128, 128] grad; score + @b",
                "b200",
                "9.27",
            ),
        ],
    },
    Bounds {
        code: "backward.query-tensor-gradient",
        fires: &[],
        not: &[(
            "q: bf16 [2,2,64,64]\nmask_mod: tensor @t: f32[2, 1, 1, 1]; @t > 0.0\nscore_mod: tensor @b: bf16[1, 2, 64, 64] grad; score + @b",
            "b200",
            "9.27",
        )],
    },
    Bounds {
        code: "backward.one-query-philox",
        fires: &[("pass: backward\nq: bf16 [1,2,1,64]\nk: [1,2,64,64]\ndropout: philox 0.5", "b200", "9.27")],
        not: &[
            ("pass: backward\nq: bf16 [1,2,1,64]\nk: [1,2,64,64]\ndropout: philox 0.5", "h200", "9.27"),
            ("pass: backward\nq: bf16 [1,2,1,64]\nk: [1,2,64,64]\ndropout: mask 0.5", "b200", "9.27"),
            ("pass: backward\nq: bf16 [1,2,1,64]\nk: [1,2,64,64]", "b200", "9.27"),
            ("q: bf16 [1,2,1,64]\nk: [1,2,64,64]\ndropout: philox 0.5", "b200", "9.27"),
        ],
    },
    Bounds {
        code: "backward.varlen-head-dim-old",
        fires: &[
            (
                "pass: backward\nq: bf16 [2,8,64,129] varlen tokens 99\nv: [2,8,64,64] varlen tokens 99\nlengths: per-sequence",
                "h200",
                "9.18.9",
            ),
            (
                "pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nv: [2,8,64,129] varlen tokens 99\nlengths: per-sequence",
                "h200",
                "9.18.9",
            ),
        ],
        not: &[
            (
                "pass: backward\nq: bf16 [2,8,64,129] varlen tokens 99\nv: [2,8,64,64] varlen tokens 99\nlengths: per-sequence",
                "h200",
                "9.19.0",
            ),
            ("pass: backward\nq: bf16 [2,8,64,128] varlen tokens 99\nlengths: per-sequence", "h200", "9.18.9"),
            ("pass: backward\nq: bf16 [2,8,64,136]\nlengths: per-sequence", "h200", "9.18.9"),
            ("q: bf16 [2,8,64,136] varlen tokens 99\nlengths: per-sequence", "h200", "9.18.9"),
        ],
    },
    Bounds {
        code: "backward.varlen-head-dim",
        fires: &[
            ("pass: backward\nq: bf16 [2,8,64,8] varlen tokens 99\nlengths: per-sequence", "h200", "9.19"),
            ("pass: backward\nq: bf16 [2,8,64,120] varlen tokens 99\nlengths: per-sequence", "b200", "9.28"),
        ],
        not: &[
            (
                "pass: backward\nq: bf16 [2,8,64,24] varlen tokens 99\nlengths: per-sequence\ndeterministic: yes",
                "h200",
                "9.19",
            ),
            (
                "pass: backward\nq: bf16 [2,8,64,16] varlen tokens 99\nv: [2,8,64,8] varlen tokens 99\nlengths: per-sequence",
                "h200",
                "9.19",
            ),
            ("pass: backward\nq: bf16 [2,8,64,8]\nlengths: per-sequence", "h200", "9.19"),
            ("q: bf16 [2,8,64,8] varlen tokens 99\nlengths: per-sequence", "h200", "9.19"),
        ],
    },
    Bounds {
        code: "backward.varlen-no-queries-old",
        fires: &[
            (PACKED, "h200", "9.18.9"),
            (
                "pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence\ndeterministic: yes",
                "h200",
                "9.18.9",
            ),
        ],
        not: &[
            (PACKED, "h200", "9.19.0"),
            ("pass: backward\nq: bf16 [2,8,64,64]\nlengths: per-sequence", "h200", "9.18.9"),
            ("q: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "h200", "9.18.9"),
        ],
    },
    Bounds {
        code: "backward.varlen-consumer-old",
        fires: &[(PACKED, "sm_120", "9.18.0"), (PACKED, "sm_121", "9.18.0")],
        not: &[
            (PACKED, "sm_120", "9.18.1"),
            (PACKED, "h200", "9.18.0"),
            ("pass: backward\nq: bf16 [2,8,64,64]\nlengths: per-sequence", "sm_120", "9.18.0"),
            ("q: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "sm_120", "9.18.0"),
        ],
    },
    Bounds {
        code: "backward.query-tensor",
        fires: &[
            (OF_QUERIES, "a100", "9.27"),
            (
                "pass: backward\nq: bf16 [2,2,2,64]\nk: [2,2,64,64]\nscore_mod: tensor @t: f32[2, 1, 1, 1]; score + @t",
                "a100",
                "9.27",
            ),
            (
                "pass: backward\nq: bf16 [2,2,2,64]\nk: [2,2,64,64]\nscore_mod: tensor @t: f32[1, 1, 2, 1]; score + @t",
                "a100",
                "9.27",
            ),
            ("pass: backward\nq: bf16 [2,2,64,64]\nk: [2,2,1,64]\ndropout: mask 0.5", "a100", "9.27"),
        ],
        not: &[
            (OF_QUERIES, "h200", "9.27"),
            ("pass: backward\nq: bf16 [2,2,64,64]\nk: [2,2,1,64]\ndropout: philox 0.5", "a100", "9.27"),
            ("pass: backward\nq: bf16 [2,2,64,64]\nk: [2,2,1,64]", "a100", "9.27"),
            (
                "pass: backward\nq: bf16 [2,2,1,64]\nk: [2,2,64,64]\nscore_mod: tensor @t: f32[2, 1, 1, 1]; score + @t",
                "a100",
                "9.27",
            ),
        ],
    },
    Bounds {
        code: "head-dim.forward-old",
        fires: &[("q: bf16 [1,8,512,129]", "b200", "9.8.9"), ("q: bf16 [1,8,512,129]", "sm_110", "9.9.0")],
        not: &[("q: bf16 [1,8,512,129]", "b200", "9.9.0"), ("q: bf16 [1,8,512,129]", "sm_110", "9.9.1")],
    },
    Bounds {
        code: "head-dim.backward",
        fires: &[("pass: backward\nq: bf16 [1,8,512,256]\ndeterministic: yes", "a100", "9.27")],
        not: &[("pass: backward\nq: bf16 [1,8,512,256]\ndeterministic: yes", "b200", "9.27")],
    },
    Bounds {
        code: "gpu.unknown",
        fires: &[
            (PLAIN, "sm_99", "9.27"),
            (PLAIN, "sm_110", "9.27"),
            (PLAIN, "sm_119", "9.27"),
            (PLAIN, "sm_130", "9.27"),
        ],
        not: &[
            (PLAIN, "sm_100", "9.27"),
            (PLAIN, "sm_109", "9.27"),
            (PLAIN, "sm_120", "9.27"),
            (PLAIN, "sm_129", "9.27"),
        ],
    },
    Bounds {
        code: "cudnn.too-old",
        fires: &[(PLAIN, "h200", "9.0.0"), (PLAIN, "h200", "9.7.9")],
        not: &[(PLAIN, "h200", "9.8.0"), (PLAIN, "h200", "8.9.7")],
    },
    Bounds {
        code: "cudnn.major",
        fires: &[(PLAIN, "h200", "8.9.7"), (PLAIN, "h200", "10.0.0")],
        not: &[(PLAIN, "h200", "9.0.0"), (PLAIN, "h200", "9.99.9")],
    },
    Bounds {
        code: "backward.single-row",
        fires: &[("pass: backward\nq: bf16 [1,1,1,64]\nk: [1,1,64,64]", "h200", "9.27")],
        not: &[("q: bf16 [1,1,1,64]\nk: [1,1,64,64]", "h200", "9.27")],
    },
    Bounds { code: "storage.varlen-heads", fires: &[], not: &[(GROUPED_VARLEN, "h200", "9.5.9")] },
    Bounds { code: "storage.varlen-stats", fires: &[], not: &[(GROUPED_VARLEN, "a100", "9.27")] },
    Bounds { code: "storage.varlen-deterministic", fires: &[], not: &[(GROUPED_VARLEN, "a100", "9.27")] },
    Bounds {
        code: "not-built.outputs",
        fires: &[
            ("q: bf16 [1,8,512,64]\nsink: yes\noutputs: max", "h200", "9.27"),
            ("q: bf16 [1,8,512,64]\nsink: yes\noutputs: sum_exp", "h200", "9.27"),
        ],
        not: &[("q: bf16 [1,8,512,64]\nsink: yes\noutputs: stats", "h200", "9.27")],
    },
];

/// Of two ranges of versions and GPUs, the reason has the first version of the one that the GPU is in.
#[test]
fn a_gpu_behind_the_first_range_has_no_first_version() {
    let given = bounds::attention("pass: backward\nq: bf16 [1,8,512,64]\ndeterministic: yes");
    let since = |gpu: &str| {
        let reasons = qkvault_probe::check(&qkvault_probe::Request::new(&given, &bounds::target(gpu, "9.14"))).reasons;
        let reason = reasons.into_iter().find(|r| r.code.as_str() == "backward.deterministic-engine");
        reason.expect("refused").since.map(|version| version.to_string())
    };
    assert_eq!((since("sm_103").as_deref(), since("sm_104")), (Some("9.18.0"), None));
}

#[test]
fn rules_begin_and_end_exactly_at_their_bounds() {
    assert_eq!(wrong(ALL), [""; 0]);
}
