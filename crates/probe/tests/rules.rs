//! Rules: each fires just inside its bounds and not just outside, all that apply are reported, and answers are owned.

mod bounds;

use std::collections::BTreeSet;

use bounds::{Given, attention, fp8, mxfp8, target};
use qkvault_cudnn::registry::{Applies, Code};
use qkvault_cudnn::registry::{Entry, Facts, entries};
use qkvault_cudnn::{CompileOptions, QUIRKS, QuirkSet, Target, lower};
use qkvault_graph::{Attention, CudnnVersion, DType, Origin, Valid, validate};
use qkvault_probe::{Request, check, lowered};

/// The reasons of the rules, without those of lowering.
fn rules() -> impl Iterator<Item = &'static Entry> {
    entries().filter(|entry| matches!(entry.applies, Applies::Rules(_)))
}

/// Q, K and V in one tensor, and dQ in its own.
const INTERLEAVED: &str = "pass: backward\nq: bf16 [2,4,64,64] varlen tokens 99 t3hd\nk: bf16 [2,4,64,64] varlen tokens 99 t3hd\nv: bf16 [2,4,64,64] varlen tokens 99 t3hd\nlengths: per-sequence\nd_q: bf16 [2,4,64,64] varlen tokens 99 thd";

const PLAIN: &str = "q: bf16 [1,8,512,64]";
const SINK_DECODE: &str = "q: bf16 [2,8,1,64]\nk: [2,8,64,64]\nsink: yes";
const DECODE: &str = "q: bf16 [4,8,1,128]\nk: [4,2,300,128]\nlengths: per-sequence";
/// Rows of dO whose last begins just behind 2^31 elements, and just before.
const FAR_ROWS: &str = "pass: backward\nq: bf16 [4,2,64,64] varlen tokens 140\nk: bf16 [4,2,64,64] varlen tokens 140\nv: bf16 [4,2,64,64] varlen tokens 140\no: bf16 [4,2,64,64] varlen tokens 140\nd_o: bf16 [4,2,64,64] varlen tokens 140 strides [16777216,64,16777216,1]\nlengths: per-sequence";
const NEAR_ROWS: &str = "pass: backward\nq: bf16 [4,2,64,64] varlen tokens 140\nk: bf16 [4,2,64,64] varlen tokens 140\nv: bf16 [4,2,64,64] varlen tokens 140\no: bf16 [4,2,64,64] varlen tokens 140\nd_o: bf16 [4,2,64,64] varlen tokens 140 strides [15339168,64,15339168,1]\nlengths: per-sequence";

const BACKWARD: &str = "pass: backward\nq: bf16 [1,8,512,64]";

/// For each rule: a case inside its bounds, and one that is outside by one thing.
const BOUNDS: &[(&str, Given, Given)] = &[
    ("cudnn.major", (PLAIN, "h200", "8.9.7"), (PLAIN, "h200", "9.8.0")),
    ("cudnn.too-old", (PLAIN, "h200", "9.7.1"), (PLAIN, "h200", "9.8.0")),
    ("cudnn.withdrawn", (PLAIN, "h200", "9.10.1"), (PLAIN, "h200", "9.10.2")),
    ("cudnn.withdrawn", (PLAIN, "h200", "9.10.0"), (PLAIN, "h200", "9.9.0")),
    ("gpu.old", (PLAIN, "sm_75", "9.19"), (PLAIN, "sm_80", "9.19")),
    ("gpu.unknown", (PLAIN, "sm_130", "9.27"), (PLAIN, "sm_121", "9.27")),
    ("gpu.unknown", (PLAIN, "sm_99", "9.27"), (PLAIN, "sm_90", "9.27")),
    ("head-dim.multiple-of-8", ("q: bf16 [1,8,512,100]", "h200", "9.19"), ("q: bf16 [1,8,512,104]", "h200", "9.19")),
    (
        "head-dim.multiple-of-8",
        ("q: bf16 [1,8,512,64]\nv: [1,8,512,60]", "h200", "9.19"),
        ("q: bf16 [1,8,512,64]\nv: [1,8,512,56]", "h200", "9.19"),
    ),
    ("head-dim.forward-old", ("q: bf16 [1,8,512,136]", "a100", "9.9.0"), ("q: bf16 [1,8,512,128]", "a100", "9.9.0")),
    ("head-dim.forward-old", ("q: bf16 [1,8,512,136]", "a100", "9.9.0"), ("q: bf16 [1,8,512,136]", "a100", "9.10.2")),
    ("head-dim.forward-old", ("q: bf16 [1,8,512,264]", "h200", "9.9.0"), ("q: bf16 [1,8,512,256]", "h200", "9.9.0")),
    ("head-dim.forward-old", ("q: bf16 [1,8,512,136]", "b200", "9.8.0"), ("q: bf16 [1,8,512,136]", "b200", "9.9.0")),
    (
        "head-dim.rubin-old",
        ("q: bf16 [1,8,512,136]", "sm_107", "9.25.0"),
        ("q: bf16 [1,8,512,136]", "sm_103", "9.25.0"),
    ),
    (
        "head-dim.backward",
        ("pass: backward\nq: bf16 [1,8,512,136]", "a100", "9.27"),
        ("pass: backward\nq: bf16 [1,8,512,128]", "a100", "9.27"),
    ),
    (
        "head-dim.backward",
        ("pass: backward\nq: bf16 [1,8,512,264]", "h200", "9.27"),
        ("pass: backward\nq: bf16 [1,8,512,256]", "h200", "9.27"),
    ),
    (
        "head-dim.backward",
        ("pass: backward\nq: bf16 [1,8,512,192]", "b200", "9.27"),
        ("pass: backward\nq: bf16 [1,8,512,192]\nv: [1,8,512,128]", "b200", "9.27"),
    ),
    (
        "head-dim.backward",
        ("pass: backward\nq: bf16 [1,8,512,192]\nv: [1,8,512,128]", "rtx-pro-6000", "9.27"),
        ("q: bf16 [1,8,512,192]\nv: [1,8,512,128]", "rtx-pro-6000", "9.27"),
    ),
    (
        "head-dim.backward-latent",
        ("pass: backward\nq: bf16 [1,8,512,160]\nv: [1,8,512,96]", "h200", "9.12"),
        ("pass: backward\nq: bf16 [1,8,512,160]\nv: [1,8,512,96]", "h200", "9.13"),
    ),
    (
        "head-dim.backward-latent",
        ("pass: backward\nq: bf16 [1,8,512,160]\nv: [1,8,512,96]", "h200", "9.11"),
        ("pass: backward\nq: bf16 [1,8,512,160]\nv: [1,8,512,128]", "h200", "9.11"),
    ),
    (
        "head-dim.backward-latent-one-query",
        ("pass: backward\nq: bf16 [1,8,1,192]\nk: [1,8,64,192]\nv: [1,8,64,128]", "b200", "9.27"),
        ("pass: backward\nq: bf16 [1,8,2,192]\nk: [1,8,64,192]\nv: [1,8,64,128]", "b200", "9.27"),
    ),
    (
        "backward.tensor-factor",
        (
            "pass: backward\nq: bf16 [1,8,128,64]\nscore_mod: tensor @b: bf16[1, 8, 128, 128] grad; score * 0.5 + @b",
            "h200",
            "9.19",
        ),
        (
            "pass: backward\nq: bf16 [1,8,127,64]\nscore_mod: tensor @b: bf16[1, 8, 127, 127] grad; score + @b",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.tensor-factor",
        (
            "pass: backward\nq: bf16 [1,8,256,64]\nscore_mod: tensor @a: bf16[1, 8, 256, 256] grad; tensor @b: bf16[1, 1, 256, 256] grad; score + @a + @b",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: bf16 [1,8,200,64]\nscore_mod: scalar $c: float; tensor @b: bf16[1, 8, 200, 200] grad; tanh((score + @b) / $c) * $c",
            "b200",
            "9.27",
        ),
    ),
    (
        "backward.tensor-type",
        (
            "pass: backward\nq: bf16 [1,8,128,64]\nscore_mod: tensor @b: f32[1, 8, 128, 128] grad; score + @b",
            "h200",
            "9.19",
        ),
        (
            "pass: backward\nq: bf16 [1,8,128,64]\nscore_mod: tensor @b: f16[1, 8, 128, 128] grad; score + @b",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.query-tensor",
        (
            "pass: backward\nq: bf16 [2,8,256,64]\nk: [2,8,256,64]\nmask_mod: { tensor @q: i32[2, 1, 256, 1]; tensor @k: i32[2, 1, 1, 256]; @q == @k }",
            "a100",
            "9.19",
        ),
        (
            "pass: backward\nq: bf16 [2,8,256,64]\nk: [2,8,256,64]\nmask_mod: { tensor @q: i32[2, 1, 256, 1]; tensor @k: i32[2, 1, 1, 256]; @q == @k }",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.query-tensor",
        (
            "pass: backward\nq: bf16 [2,8,256,64]\nk: [2,8,256,64]\nmask_mod: { tensor @q: i32[2, 1, 256, 1]; tensor @k: i32[2, 1, 1, 256]; @q == @k }",
            "rtx-pro-6000",
            "9.27",
        ),
        (
            "q: bf16 [2,8,256,64]\nk: [2,8,256,64]\nmask_mod: { tensor @q: i32[2, 1, 256, 1]; tensor @k: i32[2, 1, 1, 256]; @q == @k }",
            "rtx-pro-6000",
            "9.27",
        ),
    ),
    (
        "backward.query-tensor",
        ("pass: backward\nq: bf16 [2,8,256,64]\nmask_mod: { tensor @p: i32[2, 1, 1, 1]; key < @p }", "l40s", "9.19"),
        ("pass: backward\nq: bf16 [2,8,256,64]\nscore_mod: tensor @s: f32[1, 8, 1, 1]; score * @s", "l40s", "9.19"),
    ),
    (
        "backward.query-tensor",
        (
            "pass: backward\nq: bf16 [2,8,1,64]\nk: [2,8,1,64]\nscore_mod: tensor @t: f32[2, 1, 1, 1]; score * @t",
            "a100",
            "9.27",
        ),
        // Declared with all keys.
        (
            "pass: backward\nq: bf16 [2,8,1,64]\nk: [2,8,64,64]\nscore_mod: tensor @t: f32[2, 1, 1, 1]; score * @t",
            "a100",
            "9.27",
        ),
    ),
    (
        "backward.query-tensor",
        ("pass: backward\nq: bf16 [1,8,64,64]\nk: [1,8,1,64]\ndropout: mask 0.1", "rtx-pro-6000", "9.19"),
        ("pass: backward\nq: bf16 [1,8,64,64]\nk: [1,8,2,64]\ndropout: mask 0.1", "rtx-pro-6000", "9.19"),
    ),
    (
        "backward.query-tensor",
        ("pass: backward\nq: bf16 [2,8,1,64]\nk: [2,8,1,64]\ndropout: mask 0.1", "l40s", "9.27"),
        ("pass: backward\nq: bf16 [1,8,1,64]\nk: [1,8,1,64]\ndropout: mask 0.1", "l40s", "9.27"),
    ),
    (
        "backward.one-query-philox",
        ("pass: backward\nq: bf16 [1,2,1,64]\nk: [1,2,256,64]\ndropout: philox 0.5", "b200", "9.14"),
        ("pass: backward\nq: bf16 [1,1,1,64]\nk: [1,1,256,64]\ndropout: philox 0.5", "b200", "9.14"),
    ),
    (
        "backward.one-query-philox",
        ("pass: backward\nq: bf16 [1,3,1,64]\nk: [1,1,128,64]\ndropout: philox 0.5", "b200", "9.27"),
        (
            "pass: backward\nq: bf16 [1,1,1,192]\nk: [1,1,128,192]\nv: [1,1,128,128]\ndropout: philox 0.5",
            "b200",
            "9.27",
        ),
    ),
    (
        "head-dim.backward-latent-one-query",
        ("pass: backward\nq: bf16 [1,2,1,192]\nk: [1,1,64,192]\nv: [1,1,64,128]", "b200", "9.27"),
        ("pass: backward\nq: bf16 [1,1,1,192]\nk: [1,1,64,192]\nv: [1,1,64,128]", "b200", "9.27"),
    ),
    (
        "backward.one-query-philox",
        ("pass: backward\nq: bf16 [1,8,1,64]\nk: [1,8,64,64]\ndropout: philox 0.1", "b200", "9.19"),
        ("pass: backward\nq: bf16 [2,8,1,64]\nk: [2,8,64,64]\ndropout: philox 0.1", "b200", "9.19"),
    ),
    (
        "backward.one-query-philox",
        ("pass: backward\nq: bf16 [1,8,1,64]\nk: [1,8,64,64]\ndropout: philox 0.1", "b200", "9.27"),
        ("pass: backward\nq: bf16 [1,8,1,64]\nk: [1,8,64,64]\ndropout: mask 0.1", "b200", "9.27"),
    ),
    (
        "head-dim.backward-latent-one-query",
        ("pass: backward\nq: bf16 [1,8,1,192]\nk: [1,8,64,192]\nv: [1,8,64,128]", "b200", "9.19"),
        ("pass: backward\nq: bf16 [2,8,1,192]\nk: [2,8,64,192]\nv: [2,8,64,128]", "b200", "9.19"),
    ),
    (
        "backward.wide-gradient",
        (
            "pass: backward\nq: bf16 [2,2,64,192]\nv: bf16 [2,2,64,128]\nscore_mod: tensor @b: bf16[1, 2, 64, 64] grad; score + @b",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: bf16 [2,2,64,192]\nv: bf16 [2,2,64,128]\nscore_mod: tensor @b: bf16[1, 2, 64, 64]; score + @b",
            "b200",
            "9.27",
        ),
    ),
    (
        "backward.wide-gradient",
        (
            "pass: backward\nq: bf16 [2,2,64,192]\nv: bf16 [2,2,64,128]\nscore_mod: tensor @b: bf16[1, 2, 64, 64] grad; score + @b",
            "b200",
            "9.19",
        ),
        (
            "pass: backward\nq: bf16 [2,2,64,192]\nv: bf16 [2,2,64,128]\nscore_mod: tensor @b: bf16[1, 2, 64, 64] grad; score + @b",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.varlen-head-dim-old",
        (
            "pass: backward\nq: bf16 [2,8,64,192] varlen tokens 99\nv: bf16 [2,8,64,128] varlen tokens 99\nlengths: per-sequence",
            "h200",
            "9.14",
        ),
        (
            "pass: backward\nq: bf16 [2,8,64,192] varlen tokens 99\nv: bf16 [2,8,64,128] varlen tokens 99\nlengths: per-sequence",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.varlen-head-dim-old",
        ("pass: backward\nq: bf16 [2,8,64,256] varlen tokens 99\nlengths: per-sequence", "h200", "9.18"),
        ("pass: backward\nq: bf16 [2,8,64,128] varlen tokens 99\nlengths: per-sequence", "h200", "9.18"),
    ),
    (
        "backward.varlen-head-dim",
        ("pass: backward\nq: bf16 [2,8,64,72] varlen tokens 99\nlengths: per-sequence", "h200", "9.27"),
        ("pass: backward\nq: bf16 [2,8,64,80] varlen tokens 99\nlengths: per-sequence", "h200", "9.27"),
    ),
    (
        "backward.varlen-no-queries-old",
        ("pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "h200", "9.18.1"),
        ("pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "h200", "9.19"),
    ),
    (
        "backward.varlen-no-queries-old",
        (
            "pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence\ndeterministic: yes",
            "h200",
            "9.14",
        ),
        ("pass: backward\nq: bf16 [2,8,64,64]\nlengths: per-sequence", "h200", "9.14"),
    ),
    (
        "backward.varlen-key-gradients-old",
        (
            "pass: backward\nq: bf16 [3,2,128,64] varlen tokens 300\nlengths: per-sequence\nd_k: bf16 [3,2,128,64] varlen tokens 300 strides [18432,72,144,1]",
            "h200",
            "9.14",
        ),
        (
            "pass: backward\nq: bf16 [3,2,128,64] varlen tokens 300\nlengths: per-sequence\nd_k: bf16 [3,2,128,64] varlen tokens 300 strides [18432,72,144,1]",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.varlen-key-gradients-old",
        (
            "pass: backward\nq: bf16 [3,2,128,64] varlen tokens 300\nlengths: per-sequence\nd_v: bf16 [3,2,128,64] varlen tokens 300 strides [17408,64,136,1]",
            "h200",
            "9.18.1",
        ),
        ("pass: backward\nq: bf16 [3,2,128,64] varlen tokens 300\nlengths: per-sequence", "h200", "9.14"),
    ),
    (
        "storage.varlen-no-keys-old",
        ("q: bf16 [8,4,16,64] varlen tokens 40\nk: [8,4,16,64] varlen tokens 7\nlengths: per-sequence", "h200", "9.24"),
        ("q: bf16 [8,4,16,64] varlen tokens 40\nk: [8,4,16,64] varlen tokens 7\nlengths: per-sequence", "h200", "9.25"),
    ),
    (
        "storage.varlen-no-keys-old",
        ("q: bf16 [8,4,16,64] varlen tokens 40\nk: [8,4,16,64] varlen tokens 7\nlengths: per-sequence", "h200", "9.19"),
        ("q: bf16 [8,4,16,64] varlen tokens 40\nk: [8,4,16,64] varlen tokens 8\nlengths: per-sequence", "h200", "9.19"),
    ),
    (
        "storage.varlen-keys",
        ("q: bf16 [4,2,64,128]\nk: [4,2,64,128] varlen tokens 99\nlengths: per-sequence", "a100", "9.27"),
        ("q: bf16 [4,2,64,128] varlen tokens 99\nk: [4,2,64,128]\nlengths: per-sequence", "a100", "9.27"),
    ),
    (
        "tensor.stride-alignment",
        (
            "q: f16 [2,2,128,64] strides [17408,65,136,1]\nk: f16 [2,2,128,64] bshd\nv: f16 [2,2,128,64] bshd\no: f16 [2,2,128,64] bshd",
            "h200",
            "9.19",
        ),
        (
            "q: f16 [2,2,128,64] strides [18432,72,144,1]\nk: f16 [2,2,128,64] bshd\nv: f16 [2,2,128,64] bshd\no: f16 [2,2,128,64] bshd",
            "h200",
            "9.19",
        ),
    ),
    (
        "tensor.stride-alignment",
        (
            "q: f16 [2,2,128,64] strides [16385,64,128,1]\nk: f16 [2,2,128,64] bshd\nv: f16 [2,2,128,64] bshd\no: f16 [2,2,128,64] bshd",
            "b200",
            "9.27",
        ),
        (
            "q: f16 [1,2,128,64] strides [16385,64,128,1]\nk: f16 [1,2,128,64] bshd\nv: f16 [1,2,128,64] bshd\no: f16 [1,2,128,64] bshd",
            "b200",
            "9.27",
        ),
    ),
    (
        "tensor.stride-alignment",
        (
            "q: f16 [2,2,128,64]\nk: f16 [2,2,128,64] strides [16512,64,129,1]\nv: f16 [2,2,128,64] bshd\no: f16 [2,2,128,64] bshd",
            "a100",
            "9.14",
        ),
        (
            "q: f16 [2,2,128,64]\nk: f16 [2,2,128,64] strides [17408,64,136,1]\nv: f16 [2,2,128,64] bshd\no: f16 [2,2,128,64] bshd",
            "a100",
            "9.14",
        ),
    ),
    (
        "tensor.stride-alignment",
        ("pass: backward\nq: f16 [2,2,128,64]\nd_o: f16 [2,2,128,64] strides [16896,64,132,1]", "h200", "9.19"),
        ("pass: backward\nq: f16 [2,2,128,64]\nd_o: f16 [2,2,128,64] strides [17408,64,136,1]", "h200", "9.19"),
    ),
    (
        "tensor.stride-alignment",
        ("pass: backward\nq: f16 [2,2,128,64]\nd_q: f16 [2,2,128,64] strides [16896,64,132,1]", "h200", "9.19"),
        ("pass: backward\nq: f16 [2,2,128,64]\nd_q: f16 [2,2,128,64] strides [17408,64,136,1]", "h200", "9.19"),
    ),
    (
        "tensor.stride-alignment",
        ("pass: backward\nq: f16 [2,2,128,64]\nd_k: f16 [2,2,128,64] strides [16896,64,132,1]", "h200", "9.19"),
        ("pass: backward\nq: f16 [2,2,128,64]\nd_k: f16 [2,2,128,64] strides [17408,64,136,1]", "h200", "9.19"),
    ),
    (
        "tensor.stride-alignment",
        ("pass: backward\nq: f16 [2,2,128,64]\nd_v: f16 [2,2,128,64] strides [16896,64,132,1]", "h200", "9.19"),
        ("pass: backward\nq: f16 [2,2,128,64]\nd_v: f16 [2,2,128,64] strides [17408,64,136,1]", "h200", "9.19"),
    ),
    (
        "tensor.stride-alignment",
        ("q: bf16 [2,2,63,64]\no: bf16 [2,2,63,64] strides [8188,64,130,1]\noutputs: stats", "h200", "9.19"),
        ("q: bf16 [2,2,63,64]\nscore_mod: tensor @b: bf16[1, 2, 63, 63]; score + @b\noutputs: stats", "h200", "9.19"),
    ),
    (
        "tensor.stride-alignment",
        (
            "q: f16 [3,2,128,64] varlen tokens 300\nk: f16 [3,2,128,64] varlen tokens 300 strides [16512,64,129,1]\nv: f16 [3,2,128,64] varlen tokens 300\nlengths: per-sequence",
            "h200",
            "9.19",
        ),
        (
            "q: f16 [3,2,128,64] varlen tokens 300\nk: f16 [3,2,128,64] varlen tokens 300 strides [16385,64,128,1]\nv: f16 [3,2,128,64] varlen tokens 300\nlengths: per-sequence",
            "h200",
            "9.19",
        ),
    ),
    (
        "tensor.stride-alignment",
        (
            "q: f16 [2,4,1,64]\nk: f16 [2,2,256,64] paged 20 x 32 strides [4097,64,128,1]\nv: f16 [2,2,256,64] paged 20 x 32 nhd\nlengths: per-sequence",
            "h200",
            "9.19",
        ),
        (
            "q: f16 [2,4,1,64]\nk: f16 [2,2,256,64] paged 20 x 32 strides [4104,64,128,1]\nv: f16 [2,2,256,64] paged 20 x 32 nhd\nlengths: per-sequence",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.varlen-rows",
        (INTERLEAVED, "h200", "9.27"),
        (
            "pass: backward\nq: bf16 [2,4,64,64] varlen tokens 99 t3hd\nk: bf16 [2,4,64,64] varlen tokens 99 t3hd\nv: bf16 [2,4,64,64] varlen tokens 99 t3hd\nlengths: per-sequence\nd_q: bf16 [2,4,64,64] varlen tokens 99 t3hd",
            "h200",
            "9.27",
        ),
    ),
    (
        "backward.varlen-rows",
        (INTERLEAVED, "h200", "9.19"),
        (
            "pass: backward\nq: bf16 [2,4,64,64] varlen tokens 99 t3hd\nk: bf16 [2,4,64,64] varlen tokens 99 t3hd\nv: bf16 [2,4,64,64] varlen tokens 99 t3hd\nlengths: per-sequence\nd_q: bf16 [2,4,64,64] varlen tokens 99 thd\ndeterministic: yes",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.varlen-consumer-old",
        ("pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "rtx-pro-6000", "9.18"),
        ("pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "rtx-pro-6000", "9.18.1"),
    ),
    (
        "head-dim.philox",
        ("q: bf16 [1,2,65,256]\nk: bf16 [1,2,300,256]\nv: bf16 [1,2,300,128]\ndropout: philox 0.5", "b200", "9.14"),
        ("q: bf16 [1,2,65,256]\nk: bf16 [1,2,300,256]\nv: bf16 [1,2,300,120]\ndropout: philox 0.5", "b200", "9.14"),
    ),
    (
        "head-dim.philox",
        ("q: bf16 [1,2,65,136]\nk: bf16 [1,2,300,136]\nv: bf16 [1,2,300,128]\ndropout: philox 0.5", "b200", "9.27"),
        ("q: bf16 [1,2,65,192]\nk: bf16 [1,2,300,192]\nv: bf16 [1,2,300,128]\ndropout: philox 0.5", "b200", "9.27"),
    ),
    (
        "head-dim.philox",
        ("q: bf16 [1,2,65,256]\nk: bf16 [1,2,300,256]\nv: bf16 [1,2,300,128]\ndropout: philox 0.5", "b200", "9.19"),
        ("q: bf16 [1,2,65,256]\nk: bf16 [1,2,300,256]\nv: bf16 [1,2,300,128]\ndropout: philox 0.5", "h200", "9.19"),
    ),
    (
        "head-dim.philox-one-query",
        ("q: bf16 [2,2,1,192]\nk: bf16 [2,2,300,192]\nv: bf16 [2,2,300,128]\ndropout: philox 0.5", "b200", "9.27"),
        ("q: bf16 [2,2,2,192]\nk: bf16 [2,2,300,192]\nv: bf16 [2,2,300,128]\ndropout: philox 0.5", "b200", "9.27"),
    ),
    (
        "head-dim.philox-one-query",
        ("q: bf16 [2,2,1,256]\nk: bf16 [2,2,300,256]\nv: bf16 [2,2,300,256]\ndropout: philox 0.5", "b200", "9.22"),
        ("q: bf16 [2,2,1,256]\nk: bf16 [2,2,300,256]\nv: bf16 [2,2,300,256]\ndropout: philox 0.5", "b200", "9.23"),
    ),
    (
        "head-dim.philox-one-query",
        ("q: bf16 [2,2,1,64]\nk: bf16 [2,2,300,64]\nv: bf16 [2,2,300,256]\ndropout: philox 0.5", "b200", "9.19"),
        ("q: bf16 [2,2,1,64]\nk: bf16 [2,2,300,64]\nv: bf16 [2,2,300,256]\ndropout: mask 0.5", "b200", "9.19"),
    ),
    (
        "dropout.mask-odd",
        ("q: bf16 [1,1,1,64]\nk: bf16 [1,1,301,64]\ndropout: mask 0.5", "h200", "9.27"),
        ("q: bf16 [1,1,1,64]\nk: bf16 [1,1,302,64]\ndropout: mask 0.5", "h200", "9.27"),
    ),
    (
        "head-dim.philox",
        ("q: bf16 [2,2,8,192]\nk: bf16 [2,2,100,192]\nv: bf16 [2,2,100,128]\ndropout: philox 0.5", "b200", "9.27"),
        ("q: bf16 [2,2,9,192]\nk: bf16 [2,2,100,192]\nv: bf16 [2,2,100,128]\ndropout: philox 0.5", "b200", "9.27"),
    ),
    (
        "backward.query-tensors",
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nk: bf16 [2,2,64,64]\nscore_mod: { tensor @a: f32[2, 1, 64, 1]; tensor @b: f32[1, 2, 64, 1]; score * @a + @b }",
            "h200",
            "9.27",
        ),
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nk: bf16 [2,2,64,64]\nscore_mod: { tensor @a: f32[2, 1, 64, 1]; tensor @b: f32[1, 2, 64, 1]; score + @a + @b }",
            "h200",
            "9.27",
        ),
    ),
    (
        "backward.query-tensors",
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nk: bf16 [2,2,64,64]\nscore_mod: { tensor @a: f32[2, 1, 64, 1]; tensor @b: f32[1, 2, 64, 1]; score * @a + @b }",
            "b200",
            "9.21",
        ),
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nk: bf16 [2,2,64,64]\nscore_mod: { tensor @a: f32[2, 1, 64, 1]; tensor @b: f32[1, 2, 64, 1]; score * @a + @b }",
            "b200",
            "9.22",
        ),
    ),
    (
        "backward.query-tensors",
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nk: bf16 [2,2,1,64]\ndropout: mask 0.1\nscore_mod: tensor @a: f32[2, 1, 64, 1]; score + @a",
            "h200",
            "9.19",
        ),
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nk: bf16 [2,2,2,64]\ndropout: mask 0.1\nscore_mod: tensor @a: f32[2, 1, 64, 1]; score + @a",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.query-tensor-subtracted",
        ("pass: backward\nq: bf16 [2,2,64,64]\nscore_mod: tensor @t: f32[1, 2, 64, 1]; score - @t", "b200", "9.27"),
        ("pass: backward\nq: bf16 [2,2,64,64]\nscore_mod: tensor @t: f32[1, 2, 64, 1]; score + @t", "b200", "9.27"),
    ),
    (
        "backward.query-tensor-subtracted",
        ("pass: backward\nq: bf16 [2,2,64,64]\nscore_mod: tensor @t: f32[1, 2, 64, 1]; score - @t", "b200", "9.19"),
        ("pass: backward\nq: bf16 [2,2,64,64]\nscore_mod: tensor @t: f32[1, 2, 64, 1]; score - @t", "h200", "9.19"),
    ),
    (
        "backward.query-tensor-gradient",
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nscore_mod: tensor @b: bf16[1, 2, 64, 64] grad; tensor @t: f32[1, 2, 64, 1]; score + @b + @t",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nscore_mod: tensor @b: bf16[1, 2, 64, 64]; tensor @t: f32[1, 2, 64, 1]; score + @b + @t",
            "b200",
            "9.27",
        ),
    ),
    (
        "backward.query-tensor-gradient",
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nmask_mod: tensor @t: f32[2, 1, 1, 1]; @t > 0.0\nscore_mod: tensor @b: bf16[1, 2, 64, 64] grad; score + @b",
            "b200",
            "9.19",
        ),
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nmask_mod: tensor @t: f32[2, 1, 1, 1]; @t > 0.0\nscore_mod: tensor @b: bf16[1, 2, 64, 64] grad; score + @b",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.query-tensor-gradient",
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nmask_mod: tensor @t: f32[2, 1, 64, 1]; @t > 0.0\nscore_mod: tensor @b: bf16[1, 2, 64, 64] grad; score + @b",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: bf16 [2,2,64,64]\nmask_mod: tensor @t: f32[2, 1, 1, 64]; @t > 0.0\nscore_mod: tensor @b: bf16[1, 2, 64, 64] grad; score + @b",
            "b200",
            "9.27",
        ),
    ),
    (
        "queries.one-old",
        ("q: bf16 [1,8,1,64]\nk: [1,8,64,64]\nmask: causal", "h200", "9.9.0"),
        ("q: bf16 [1,8,2,64]\nk: [1,8,64,64]\nmask: causal", "h200", "9.9.0"),
    ),
    (
        "queries.one-old",
        ("q: bf16 [1,8,1,136]\nk: [1,8,64,136]", "b200", "9.9.0"),
        ("q: bf16 [1,8,1,128]\nk: [1,8,64,128]", "b200", "9.9.0"),
    ),
    (
        "band.window-wrong",
        ("q: bf16 [1,8,2048,64]\nmask: band left 64", "h200", "9.14.0"),
        ("q: bf16 [1,8,1024,64]\nmask: band left 64", "h200", "9.14.0"),
    ),
    (
        "band.window-wrong",
        ("q: bf16 [1,8,2048,64]\nmask: band left 64", "h200", "9.14.0"),
        ("q: bf16 [1,8,2048,64]\nmask: causal window 64", "h200", "9.14.0"),
    ),
    (
        "band.window-old",
        ("q: bf16 [1,8,512,64]\nmask: band left 64", "h200", "9.9.0"),
        ("q: bf16 [1,8,512,64]\nmask: causal window 64", "h200", "9.9.0"),
    ),
    (
        "band.window-corner-old",
        ("q: bf16 [1,8,512,64]\nlengths: per-sequence\nmask: causal window 64 bottom-right", "h200", "9.9.0"),
        (
            "q: bf16 [1,8,511,64]\nk: [1,8,512,64]\nlengths: per-sequence\nmask: causal window 64 bottom-right",
            "h200",
            "9.9.0",
        ),
    ),
    (
        "band.rows-without-keys",
        ("q: bf16 [1,8,512,64]\nk: [1,8,511,64]\nmask: causal bottom-right", "h200", "9.19"),
        ("q: bf16 [1,8,512,64]\nk: [1,8,513,64]\nmask: causal bottom-right", "h200", "9.19"),
    ),
    (
        "band.rows-without-keys",
        ("q: bf16 [1,8,512,64]\nk: [1,8,511,64]\nmask: causal bottom-right", "h200", "9.19"),
        ("q: bf16 [1,8,512,64]\nk: [1,8,511,64]\nmask: causal bottom-right\nlengths: per-sequence", "h200", "9.19"),
    ),
    (
        "dropout.philox-old",
        ("q: bf16 [1,8,512,64]\ndropout: philox 0.1", "h200", "9.13"),
        ("q: bf16 [1,8,512,64]\ndropout: philox 0.1", "h200", "9.14"),
    ),
    (
        "dropout.philox-old",
        ("q: bf16 [1,8,512,64]\ndropout: philox 0.1", "b200", "9.11"),
        ("q: bf16 [1,8,512,64]\ndropout: mask 0.1", "b200", "9.11"),
    ),
    (
        "size.grid",
        ("pass: backward\nq: bf16 [65536,1,16,64]", "h200", "9.19"),
        ("pass: backward\nq: bf16 [65535,1,16,64]", "h200", "9.19"),
    ),
    (
        "size.grid",
        ("q: bf16 [65536,1,1,64]\nk: [65536,1,64,64]", "h200", "9.19"),
        ("q: bf16 [65536,1,2,64]\nk: [65536,1,64,64]", "h200", "9.19"),
    ),
    (
        "size.grid",
        ("pass: backward\nq: bf16 [1,65536,16,64]", "h200", "9.27"),
        ("q: bf16 [1,65536,16,64]", "h200", "9.27"),
    ),
    ("queries.one-wrong", (DECODE, "b200", "9.19"), (DECODE, "b200", "9.25.1")),
    ("queries.one-wrong", (DECODE, "b200", "9.25.0"), (DECODE, "h200", "9.25.0")),
    ("queries.one-sink", (SINK_DECODE, "h200", "9.19"), (DECODE, "h200", "9.19")),
    (
        "queries.one-sink",
        (SINK_DECODE, "b200", "9.28.1"),
        ("q: bf16 [2,8,2,64]\nk: [2,8,64,64]\nsink: yes", "b200", "9.28.1"),
    ),
    ("backward.far-rows", (FAR_ROWS, "h200", "9.19"), (NEAR_ROWS, "h200", "9.19")),
    (
        "backward.far-rows",
        ("pass: backward\nq: bf16 [2,2,128,64]\nd_o: bf16 [2,2,128,64] strides [2147467272,64,128,1]", "h200", "9.27"),
        ("pass: backward\nq: bf16 [2,2,128,64]\nd_o: bf16 [2,2,128,64] strides [2147467264,64,128,1]", "h200", "9.27"),
    ),
    (
        "backward.lowest-row",
        ("pass: backward\nq: bf16 [1,8,512,64]\nscore_mod: select(query >= 16, score, -3.0e38)", "h200", "9.19"),
        ("q: bf16 [1,8,512,64]\nscore_mod: select(query >= 16, score, -3.0e38)", "h200", "9.19"),
    ),
    (
        "backward.lowest-row",
        ("pass: backward\nq: bf16 [1,8,512,64]\nscore_mod: select(key < query, score, -1.0e9)", "b200", "9.27"),
        ("pass: backward\nq: bf16 [1,8,512,64]\nscore_mod: select(key <= query, score, -1.0e9)", "b200", "9.27"),
    ),
    (
        "sink.old",
        ("q: bf16 [1,8,512,64]\nsink: yes", "h200", "9.12"),
        ("q: bf16 [1,8,512,64]\nsink: yes", "h200", "9.13"),
    ),
    (
        "backward.keys-tail-old",
        ("pass: backward\nq: bf16 [1,8,500,64]", "h200", "9.15.0"),
        ("pass: backward\nq: bf16 [1,8,500,64]", "h200", "9.15.1"),
    ),
    ("backward.keys-tail-old", ("pass: backward\nq: bf16 [1,8,500,64]", "h200", "9.14"), (BACKWARD, "h200", "9.14")),
    (
        "head-dim.backward",
        ("pass: backward\nq: bf16 [1,8,512,256]\ndeterministic: yes", "b200", "9.22"),
        ("pass: backward\nq: bf16 [1,8,512,256]\ndeterministic: yes", "b200", "9.23"),
    ),
    (
        "head-dim.backward",
        ("pass: backward\nq: bf16 [1,8,512,256]", "b200", "9.27"),
        ("pass: backward\nq: bf16 [1,8,512,256]\ndeterministic: yes", "b200", "9.27"),
    ),
    (
        "head-dim.backward",
        ("pass: backward\nq: bf16 [1,8,512,248]\ndeterministic: yes", "b200", "9.27"),
        ("pass: backward\nq: bf16 [1,8,512,192]\nv: [1,8,512,128]\ndeterministic: yes", "b200", "9.27"),
    ),
    (
        "backward.deterministic-one-query",
        ("pass: backward\nq: bf16 [1,4,1,64]\nk: [1,4,64,64]\ndeterministic: yes", "b200", "9.19"),
        ("pass: backward\nq: bf16 [1,4,2,64]\nk: [1,4,64,64]\ndeterministic: yes", "b200", "9.19"),
    ),
    (
        "backward.deterministic-one-query",
        ("pass: backward\nq: bf16 [1,4,1,64]\nk: [1,4,64,64]\ndeterministic: yes", "b200", "9.27"),
        ("pass: backward\nq: bf16 [2,4,1,64]\nk: [2,4,64,64]\ndeterministic: yes", "b200", "9.27"),
    ),
    (
        "backward.deterministic-one-query",
        ("pass: backward\nq: bf16 [1,4,1,64]\nk: [1,4,64,64]\ndeterministic: yes", "b200", "9.27"),
        ("pass: backward\nq: bf16 [1,4,1,64]\nk: [1,4,64,64]", "b200", "9.27"),
    ),
    (
        "backward.deterministic-one-query",
        ("pass: backward\nq: bf16 [1,4,1,64]\nk: [1,4,64,64]\ndeterministic: yes", "b200", "9.27"),
        ("pass: backward\nq: bf16 [1,4,1,64]\nk: [1,4,64,64]\ndeterministic: yes", "h200", "9.27"),
    ),
    (
        "backward.deterministic-expression",
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: scalar $c: float; tanh(score / $c) * $c\ndeterministic: yes",
            "b200",
            "9.22",
        ),
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: scalar $c: float; tanh(score / $c) * $c\ndeterministic: yes",
            "b200",
            "9.23",
        ),
    ),
    (
        "backward.deterministic-expression",
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: tensor @s: f32[1, 4, 1, 1]; score + @s * float(key - query)\ndeterministic: yes",
            "b200",
            "9.19",
        ),
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nmask: causal window 64\nlengths: per-sequence\nsink: yes\ndeterministic: yes",
            "b200",
            "9.19",
        ),
    ),
    (
        "backward.deterministic-expression",
        ("pass: backward\nq: bf16 [2,4,256,64]\nmask_mod: (key + query) % 2 == 0\ndeterministic: yes", "b200", "9.19"),
        ("pass: backward\nq: bf16 [2,4,256,64]\nmask_mod: key <= query + 3\ndeterministic: yes", "b200", "9.19"),
    ),
    (
        "backward.deterministic-expression",
        ("pass: backward\nq: bf16 [2,4,256,64]\ndropout: mask 0.1\ndeterministic: yes", "b200", "9.19"),
        ("pass: backward\nq: bf16 [2,4,256,64]\ndropout: mask 0.1", "b200", "9.19"),
    ),
    (
        "backward.deterministic-philox",
        ("pass: backward\nq: bf16 [2,4,256,64]\ndropout: philox 0.1\ndeterministic: yes", "b200", "9.19"),
        ("pass: backward\nq: bf16 [2,4,256,64]\ndropout: philox 0.1\ndeterministic: yes", "h200", "9.19"),
    ),
    (
        "backward.deterministic-philox",
        ("pass: backward\nq: bf16 [2,4,256,64]\ndropout: philox 0.1\ndeterministic: yes", "b200", "9.27"),
        ("pass: backward\nq: bf16 [2,4,256,64]\ndropout: mask 0.1\ndeterministic: yes", "b200", "9.27"),
    ),
    (
        "backward.deterministic-tensor-gradient",
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: tensor @b: bf16[1, 4, 256, 256] grad; score + @b\ndeterministic: yes",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: tensor @b: bf16[1, 4, 256, 256]; score + @b\ndeterministic: yes",
            "b200",
            "9.27",
        ),
    ),
    (
        "backward.deterministic-tensor-gradient",
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: tensor @b: bf16[2, 4, 256, 256] grad; score + @b\ndeterministic: yes",
            "b200",
            "9.19",
        ),
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: tensor @b: bf16[2, 4, 256, 256] grad; score + @b",
            "b200",
            "9.19",
        ),
    ),
    (
        "backward.deterministic-query-tensor",
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: tensor @t: f32[1, 4, 256, 1]; score + @t\ndeterministic: yes",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: tensor @t: f32[1, 4, 1, 1]; score + @t\ndeterministic: yes",
            "b200",
            "9.27",
        ),
    ),
    (
        "backward.deterministic-query-tensor",
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nmask_mod: tensor @p: i32[2, 1, 1, 1]; key < @p\ndeterministic: yes",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nmask_mod: tensor @p: i32[1, 4, 1, 1]; key < @p\ndeterministic: yes",
            "b200",
            "9.27",
        ),
    ),
    (
        "backward.deterministic-query-tensor",
        (
            "pass: backward\nq: bf16 [2,4,1,64]\nk: [2,4,1,64]\nscore_mod: tensor @t: f32[2, 1, 1, 1]; score * @t\ndeterministic: yes",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: bf16 [2,4,1,64]\nk: [2,4,64,64]\nscore_mod: tensor @t: f32[2, 1, 1, 1]; score * @t\ndeterministic: yes",
            "b200",
            "9.27",
        ),
    ),
    (
        "backward.deterministic-query-tensor",
        ("pass: backward\nq: bf16 [2,4,64,64]\nk: [2,4,1,64]\ndropout: mask 0.1\ndeterministic: yes", "b200", "9.27"),
        ("pass: backward\nq: bf16 [2,4,64,64]\nk: [2,4,2,64]\ndropout: mask 0.1\ndeterministic: yes", "b200", "9.27"),
    ),
    (
        "backward.deterministic-query-tensor",
        (
            "pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: tensor @t: f32[1, 4, 256, 1]; score + @t\ndeterministic: yes",
            "b200",
            "9.19",
        ),
        ("pass: backward\nq: bf16 [2,4,256,64]\nscore_mod: tensor @t: f32[1, 4, 256, 1]; score + @t", "b200", "9.19"),
    ),
    (
        "backward.deterministic-one-query",
        ("pass: backward\nq: bf16 [1,2,1,256]\nk: [1,1,64,256]\ndeterministic: yes", "b200", "9.27"),
        ("pass: backward\nq: bf16 [1,1,1,256]\nk: [1,1,64,256]\ndeterministic: yes", "b200", "9.27"),
    ),
    (
        "backward.deterministic-one-query",
        ("pass: backward\nq: bf16 [1,1,1,192]\nk: [1,1,64,192]\nv: [1,1,64,128]\ndeterministic: yes", "b200", "9.23"),
        ("pass: backward\nq: bf16 [1,1,1,256]\nk: [1,1,64,256]\ndeterministic: yes", "b200", "9.23"),
    ),
    (
        "backward.deterministic-query-tensor",
        (
            "pass: backward\nq: bf16 [2,4,64,192]\nv: [2,4,64,128]\nmask_mod: tensor @p: i32[2, 1, 1, 1]; key < @p\ndeterministic: yes",
            "b200",
            "9.27",
        ),
        (
            "pass: backward\nq: bf16 [2,4,64,256]\nmask_mod: tensor @p: i32[2, 1, 1, 1]; key < @p\ndeterministic: yes",
            "b200",
            "9.27",
        ),
    ),
    (
        "backward.deterministic-varlen",
        (
            "pass: backward\nq: bf16 [2,4,256,256] varlen tokens 500\nlengths: per-sequence\ndeterministic: yes",
            "b200",
            "9.24",
        ),
        (
            "pass: backward\nq: bf16 [2,4,256,256] varlen tokens 500\nlengths: per-sequence\ndeterministic: yes",
            "b200",
            "9.25",
        ),
    ),
    (
        "backward.deterministic-varlen",
        (
            "pass: backward\nq: bf16 [2,4,256,256] varlen tokens 500\nlengths: per-sequence\ndeterministic: yes",
            "b200",
            "9.23",
        ),
        (
            "pass: backward\nq: bf16 [2,4,256,128] varlen tokens 500\nlengths: per-sequence\ndeterministic: yes",
            "b200",
            "9.23",
        ),
    ),
    (
        "backward.deterministic-sink",
        ("pass: backward\nq: bf16 [2,4,256,64]\nsink: yes\nd_sink: yes\ndeterministic: yes", "b200", "9.27"),
        ("pass: backward\nq: bf16 [2,4,256,64]\nsink: yes\ndeterministic: yes", "b200", "9.27"),
    ),
    (
        "backward.deterministic-sink",
        ("pass: backward\nq: bf16 [2,4,256,64]\nsink: yes\nd_sink: yes\ndeterministic: yes", "h200", "9.19"),
        ("pass: backward\nq: bf16 [2,4,256,64]\nsink: yes\nd_sink: yes", "h200", "9.19"),
    ),
];

/// The same for lowering: forms and storage that a version or a GPU does not support, quirks, and features that are not
/// built.
const LIMITS: &[(&str, Given, Given)] = &[
    (
        "backward.deterministic-engine",
        ("pass: backward\nq: bf16 [1,8,512,64]\ndeterministic: yes", "b200", "9.17.1"),
        ("pass: backward\nq: bf16 [1,8,512,64]\ndeterministic: yes", "b200", "9.18"),
    ),
    (
        "backward.deterministic-engine",
        ("pass: backward\nq: bf16 [1,8,512,64]\ndeterministic: yes", "b200", "9.14"),
        ("pass: backward\nq: bf16 [1,8,512,64]\ndeterministic: yes", "h200", "9.14"),
    ),
    (
        "backward.deterministic-engine",
        ("pass: backward\nq: bf16 [1,8,512,64]\ndeterministic: yes", "sm_104", "9.27"),
        ("pass: backward\nq: bf16 [1,8,512,64]\ndeterministic: yes", "sm_103", "9.27"),
    ),
    (
        "backward.deterministic-engine",
        ("pass: backward\nq: bf16 [1,8,512,64]\ndeterministic: yes", "b200", "9.14"),
        ("pass: backward\nq: bf16 [1,8,512,64]", "b200", "9.14"),
    ),
    (
        "backward.deterministic-engine",
        ("pass: backward\nq: bf16 [1,8,512,64]\ndeterministic: yes", "sm_104", "9.27"),
        ("pass: backward\nq: bf16 [1,8,512,64]\ndeterministic: yes", "rtx-pro-6000", "9.27"),
    ),
    (
        "score-mod.far-dividend",
        ("q: bf16 [1,8,64,64]\nk: [1,8,4194305,64]\nmask_mod: key // 100 < 7", "h200", "9.19"),
        ("q: bf16 [1,8,64,64]\nk: [1,8,4194304,64]\nmask_mod: key // 100 < 7", "h200", "9.19"),
    ),
    (
        "score-mod.far-dividend",
        ("q: bf16 [1,8,64,64]\nscore_mod: scalar $n: int; score + float($n // 4)", "h200", "9.27"),
        (
            "q: bf16 [1,8,64,64]\nscore_mod: scalar $n: int; score + float(min(max($n, -9), 16777216) // 4)",
            "h200",
            "9.27",
        ),
    ),
    (
        "outputs.combination",
        ("q: bf16 [1,8,512,64]\noutputs: stats max", "h200", "9.20"),
        ("q: bf16 [1,8,512,64]\noutputs: stats max", "h200", "9.21"),
    ),
    (
        "outputs.combination",
        ("q: bf16 [1,8,512,64]\noutputs: max", "h200", "9.19"),
        ("q: bf16 [1,8,512,64]\noutputs: max sum_exp", "h200", "9.19"),
    ),
    (
        "storage.paged-old",
        ("q: bf16 [2,8,1,64]\nk: [2,8,128,64] paged 9 x 64\nlengths: per-sequence", "h200", "9.4"),
        ("q: bf16 [2,8,1,64]\nk: [2,8,128,64] paged 9 x 64\nlengths: per-sequence", "h200", "9.5"),
    ),
    (
        "storage.paged-head-dim",
        ("q: bf16 [2,8,1,136]\nk: [2,8,128,136] paged 9 x 64\nlengths: per-sequence", "h200", "9.9.0"),
        ("q: bf16 [2,8,1,128]\nk: [2,8,128,128] paged 9 x 64\nlengths: per-sequence", "h200", "9.9.0"),
    ),
    (
        "storage.paged-head-dim",
        ("q: bf16 [2,8,1,136]\nk: [2,8,128,136] paged 9 x 64\nlengths: per-sequence", "h200", "9.9.0"),
        ("q: bf16 [2,8,1,136]\nk: [2,8,128,136] paged 9 x 64\nlengths: per-sequence", "h200", "9.9.1"),
    ),
    (
        "storage.paged-varlen",
        ("q: bf16 [2,8,8,64] varlen tokens 9\nk: [2,8,128,64] paged 9 x 64\nlengths: per-sequence", "h200", "9.6"),
        ("q: bf16 [2,8,8,64] varlen tokens 9\nk: [2,8,128,64] paged 9 x 64\nlengths: per-sequence", "h200", "9.7"),
    ),
    (
        "storage.varlen-sm",
        ("q: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "l40s", "9.18.0"),
        ("q: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "l40s", "9.18.1"),
    ),
    (
        "storage.varlen-sm",
        ("q: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "a100", "9.14"),
        ("q: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "h200", "9.14"),
    ),
    (
        "storage.varlen-heads",
        (
            "pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nk: [2,2,64,64] varlen tokens 99\nlengths: per-sequence",
            "h200",
            "9.5",
        ),
        (
            "pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nk: [2,2,64,64] varlen tokens 99\nlengths: per-sequence",
            "h200",
            "9.6",
        ),
    ),
    (
        "storage.varlen-sink",
        ("pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence\nsink: yes", "h200", "9.25"),
        ("pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence\nsink: yes", "h200", "9.26"),
    ),
    (
        "storage.varlen-stats",
        ("pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "a100", "9.19"),
        ("pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "h200", "9.19"),
    ),
    (
        "storage.varlen-deterministic",
        (
            "pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence\ndeterministic: yes",
            "a100",
            "9.19",
        ),
        ("pass: backward\nq: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", "a100", "9.19"),
    ),
    (
        "storage.varlen-one-query-stats",
        (
            "q: bf16 [2,4,1,64] varlen tokens 2\nk: [2,2,64,64] varlen tokens 99\nlengths: per-sequence\noutputs: stats",
            "h200",
            "9.19",
        ),
        (
            "q: bf16 [2,4,1,64] varlen tokens 2\nk: [2,4,64,64] varlen tokens 99\nlengths: per-sequence\noutputs: stats",
            "h200",
            "9.19",
        ),
    ),
    (
        "storage.varlen-one-query-stats",
        (
            "q: bf16 [2,4,1,64] varlen tokens 2\nk: [2,2,64,64] varlen tokens 99\nlengths: per-sequence\noutputs: stats",
            "h200",
            "9.27",
        ),
        (
            "q: bf16 [2,4,2,64] varlen tokens 4\nk: [2,2,64,64] varlen tokens 99\nlengths: per-sequence\noutputs: stats",
            "h200",
            "9.27",
        ),
    ),
    (
        "storage.paged-one-query-heads",
        (
            "q: f16 [2,4,1,64]\nk: [2,1,128,64] paged 9 x 64\nlengths: per-sequence\n\
             score_mod: tensor @t: f32[1, 4, 1, 1]; score * @t",
            "h200",
            "9.19",
        ),
        (
            "q: f16 [2,4,1,64]\nk: [2,4,128,64] paged 9 x 64\nlengths: per-sequence\n\
             score_mod: tensor @t: f32[1, 4, 1, 1]; score * @t",
            "h200",
            "9.19",
        ),
    ),
    (
        "storage.paged-one-query-sink",
        ("q: bf16 [2,8,1,64]\nk: [2,8,128,64] paged 9 x 64\nlengths: per-sequence\nsink: yes", "h200", "9.19"),
        ("q: bf16 [2,8,2,64]\nk: [2,8,128,64] paged 9 x 64\nlengths: per-sequence\nsink: yes", "h200", "9.19"),
    ),
    (
        "storage.paged-tile",
        ("q: bf16 [2,8,2,64]\nk: [2,8,192,64] paged 9 x 64\nlengths: per-sequence", "h200", "9.19"),
        ("q: bf16 [2,8,2,64]\nk: [2,8,256,64] paged 9 x 64\nlengths: per-sequence", "h200", "9.19"),
    ),
    (
        "storage.paged-tile",
        ("q: bf16 [2,8,2,64]\nk: [2,8,192,64] paged 9 x 64\nlengths: per-sequence", "h200", "9.19"),
        ("q: bf16 [2,8,1,64]\nk: [2,8,192,64] paged 9 x 64\nlengths: per-sequence", "h200", "9.19"),
    ),
    (
        "backward.tensor-gradient",
        (
            "pass: backward\nq: bf16 [1,8,128,64]\nscore_mod: tensor @t: bf16[1, 8, 1, 128] grad; score + @t",
            "h200",
            "9.19",
        ),
        (
            "pass: backward\nq: bf16 [1,8,128,64]\nscore_mod: tensor @t: bf16[1, 1, 128, 128] grad; score + @t",
            "h200",
            "9.19",
        ),
    ),
    (
        "backward.sink-philox",
        ("pass: backward\nq: bf16 [1,8,128,64]\nsink: yes\nd_sink: yes\ndropout: philox 0.1", "h200", "9.19"),
        ("pass: backward\nq: bf16 [1,8,128,64]\nsink: yes\nd_sink: yes\ndropout: mask 0.1", "h200", "9.19"),
    ),
    (
        "score-mod.one-query-narrow",
        ("q: f16 [3,2,1,64]\nk: [3,2,64,64]\nscore_mod: tensor @t: bf16[3, 1, 1, 1]; score + @t", "h200", "9.19"),
        ("q: f16 [3,2,1,64]\nk: [3,2,64,64]\nscore_mod: tensor @t: f32[3, 1, 1, 1]; score + @t", "h200", "9.19"),
    ),
    (
        "backward.single-row",
        ("pass: backward\nq: f16 [1,1,1,64]\nk: [1,1,127,64]", "a100", "9.26"),
        ("pass: backward\nq: f16 [1,1,1,64]\nk: [1,1,127,64]", "a100", "9.25.1"),
    ),
    (
        "backward.single-row",
        ("pass: backward\nq: f16 [1,1,1,128]\nk: [1,1,127,128]", "h200", "9.27"),
        ("pass: backward\nq: f16 [1,1,1,136]\nk: [1,1,127,136]", "h200", "9.27"),
    ),
    (
        "backward.length-tail",
        ("pass: backward\nq: f16 [1,2,200,64]\nlengths: per-sequence\nscore_mod: score * score", "h200", "9.19"),
        ("pass: backward\nq: f16 [1,2,256,64]\nlengths: per-sequence\nscore_mod: score * score", "h200", "9.19"),
    ),
    (
        "backward.length-tail",
        ("pass: backward\nq: f16 [1,2,200,64]\nlengths: per-sequence\nscore_mod: score * score", "h200", "9.27"),
        // A forward has no derivative beyond the lengths.
        ("q: f16 [1,2,200,64]\nlengths: per-sequence\nscore_mod: score * score", "h200", "9.27"),
    ),
    ("not-built.block-mask", ("q: bf16 [1,8,512,64]\nblock_mask: yes", "h200", "9.27"), (PLAIN, "h200", "9.27")),
    (
        "not-built.dropout-places",
        ("q: bf16 [1,8,512,64]\ndropout: places 0.1", "h200", "9.27"),
        ("q: bf16 [1,8,512,64]\ndropout: philox 0.1", "h200", "9.27"),
    ),
    (
        "not-built.invariant",
        ("q: bf16 [1,8,512,64]\ninvariant: yes", "h200", "9.27"),
        ("q: bf16 [1,8,512,64]", "h200", "9.27"),
    ),
    (
        "not-built.cache",
        ("q: bf16 [2,8,16,64]\nk: e4m3 [2,8,512,64]\nfp8: cache\no: bf16 [2,8,16,64]", "h200", "9.27"),
        ("q: bf16 [2,8,16,64]\nk: [2,8,512,64]", "h200", "9.27"),
    ),
    (
        "not-built.draft-tree",
        ("q: bf16 [2,8,16,64]\nk: [2,8,512,64]\ndraft_tree: yes", "h200", "9.27"),
        ("q: bf16 [2,8,16,64]\nk: [2,8,512,64]", "h200", "9.27"),
    ),
    (
        "not-built.outputs",
        ("q: bf16 [1,8,512,64]\nsink: yes\noutputs: max sum_exp", "h200", "9.27"),
        ("q: bf16 [1,8,512,64]\nsink: yes\noutputs: stats", "h200", "9.27"),
    ),
    (
        "not-built.padded-rows",
        ("q: bf16 [1,8,512,64]\nlengths: per-sequence\npadded_rows: zero", "h200", "9.27"),
        ("q: bf16 [1,8,512,64]\nlengths: per-sequence", "h200", "9.27"),
    ),
];

/// The bounds of every rule.
fn all_bounds() -> impl Iterator<Item = &'static (&'static str, Given, Given)> {
    BOUNDS.iter().chain(fp8::BOUNDS).chain(mxfp8::BOUNDS)
}

/// The bounds of every condition of lowering.
fn limits() -> impl Iterator<Item = &'static (&'static str, Given, Given)> {
    LIMITS.iter().chain(fp8::LIMITS).chain(mxfp8::LIMITS)
}

/// Codes that need a compiled plan, a budget or options: each has a separate test.
const ELSEWHERE: [&str; 7] = [
    "engine.amax",
    "form.fused",
    "workspace.limit",
    "workspace.quadratic",
    "memory.budget",
    "engine.wrong",
    "engine.nondeterministic",
];

#[test]
fn every_condition_of_lowering_begins_and_ends_at_its_bounds() {
    for (code, inside, outside) in limits() {
        for ((given, gpu, version), fires) in [(inside, true), (outside, false)] {
            let reasons = check(&Request::new(&attention(given), &target(gpu, version))).reasons;
            let found = reasons.iter().any(|r| r.code.as_str() == *code);
            assert_eq!(found, fires, "{code} for {given} on {gpu} under {version}: {reasons:?}");
        }
    }
    let tested: BTreeSet<&str> = limits().map(|(code, ..)| *code).chain(ELSEWHERE).collect();
    let by_lowering = |entry: &&Entry| {
        let beside_the_library = matches!(entry.origin, Origin::Rule | Origin::Quirk | Origin::NotBuilt);
        beside_the_library && !matches!(entry.applies, Applies::Rules(_))
    };
    let known: BTreeSet<&str> = entries().filter(by_lowering).map(|entry| entry.code).collect();
    assert_eq!(known, tested, "a code of lowering without bounds, or bounds without a code");
}

#[test]
fn every_quirk_can_be_allowed_and_nothing_else_can() {
    let wrong: BTreeSet<&str> = entries().filter(|e| e.origin == Origin::Quirk).map(|e| e.code).collect();
    let quirks = QUIRKS.map(|quirk| quirk.code);
    assert_eq!(quirks.into_iter().collect::<BTreeSet<_>>(), wrong);
    for (code, (given, gpu, version), _) in limits().chain(all_bounds()).filter(|(code, ..)| quirks.contains(code)) {
        let (a, target) = (attention(given), target(gpu, version));
        let options = CompileOptions { allowed: QuirkSet::known([&Code::from(*code)]), ..CompileOptions::default() };
        let by_options = check(&Request::new(&a, &target).with_policy(options));
        let codes = [*code];
        let by_request = check(&Request::new(&a, &target).allowing(&codes));
        assert_eq!(by_options, by_request);
        assert!(
            by_options.allowed.iter().all(|r| r.code.as_str() == *code) && !by_options.allowed.is_empty(),
            "{code}"
        );
        assert!(by_options.reasons.iter().all(|r| r.code.as_str() != *code), "{code}");
        // The graph then names the allowed quirk; without the code there is no graph.
        assert!(lowered(&a, &target, &CompileOptions::default()).expect_err(code).has(&Code::from(*code)));
        if by_options.supported() {
            let graph = lowered(&a, &target, &options).expect(code);
            assert_eq!(graph.accepted_quirks, options.allowed, "{code}");
        }
    }
}

#[test]
fn every_rule_fires_inside_its_bounds_and_not_outside() {
    for (code, inside, outside) in all_bounds() {
        let rule = rules().find(|r| r.code == *code).unwrap_or_else(|| panic!("no rule {code}"));
        for ((given, gpu, version), fires) in [(inside, true), (outside, false)] {
            let (a, target) = (attention(given), target(gpu, version));
            let verdict = check(&Request::new(&a, &target));
            let found = verdict.reasons.iter().find(|r| r.code.as_str() == *code);
            assert_eq!(found.is_some(), fires, "{code} for {given} on {gpu} under {version}: {:?}", verdict.reasons);
            if let Some(reason) = found {
                let facts = Facts::new(&a, &target, &CompileOptions::default());
                let affected = rule.affects(facts.version(), facts.sm()).expect(code);
                assert_eq!((reason.origin, reason.since), (rule.origin, affected.versions.before));
                for fact in [&reason.field[..], &reason.given, &reason.needed, &reason.fix] {
                    assert!(!fact.is_empty(), "{reason:?}");
                }
            }
        }
    }
    let tested: BTreeSet<&str> = all_bounds().map(|(code, ..)| *code).collect();
    let all: Vec<&str> = rules().map(|r| r.code).collect();
    assert_eq!(all.iter().copied().collect::<BTreeSet<_>>(), tested, "a rule without bounds, or bounds without a rule");
    assert_eq!(all.len(), tested.len(), "codes are unique");
    assert!(rules().all(|r| !r.source.is_empty()));
}

#[test]
fn all_rules_that_apply_are_reported_and_reasons_are_owned() {
    let told = |given: &str| check(&Request::new(&attention(given), &target("a100", "9.12"))).reasons;
    let first = told("pass: backward\nq: bf16 [1,8,500,324]\nsink: yes");
    let second = told("q: bf16 [1,8,500,60]");
    for code in ["head-dim.multiple-of-8", "head-dim.backward", "sink.old", "backward.keys-tail-old"] {
        assert!(first.iter().any(|r| r.code.as_str() == code), "{code} is not in {first:?}");
    }
    // The first answer is unchanged after the second one.
    assert!(first.iter().any(|r| r.given.contains("324")) && second.iter().all(|r| !r.given.contains("324")));
}

#[test]
fn a_quirk_is_allowed_by_its_code_and_nothing_else_is() {
    let a = attention("q: bf16 [1,8,2048,100]\nmask: band left 64");
    let target = target("h200", "9.14.0");
    let codes = ["band.window-wrong", "head-dim.multiple-of-8"];
    let verdict = check(&Request::new(&a, &target).allowing(&codes));
    assert_eq!(verdict.allowed.iter().map(|r| r.code.as_str()).collect::<Vec<_>>(), ["band.window-wrong"]);
    assert_eq!(verdict.reasons.iter().map(|r| r.code.as_str()).collect::<Vec<_>>(), ["head-dim.multiple-of-8"]);
    assert!(rules().any(|r| r.origin == Origin::Quirk));
}

#[test]
fn reasons_of_lowering_are_in_the_answer() {
    let a = attention("q: bf16 [1,8,512,64]\nblock_mask: yes");
    let target = target("h200", "9.27");
    let refused = lower(&a, &target, &CompileOptions::default()).expect_err("not built");
    let verdict = check(&Request::new(&a, &target));
    assert!(refused.reasons().iter().all(|r| verdict.reasons.contains(r)));
    assert_eq!(verdict.refusal().map(|r| r.reasons()[0].origin), Some(Origin::NotBuilt));
}

#[test]
fn a_missing_field_of_a_profile_is_reported_with_the_version_that_needs_it() {
    let a = attention(PLAIN);
    let mut lacking = target("h200", "9.27");
    lacking.device.memory_bus_width = None;
    let reasons = check(&Request::new(&a, &lacking)).reasons;
    assert_eq!(
        reasons.iter().map(|r| (r.code.as_str(), r.field.as_ref())).collect::<Vec<_>>(),
        [("profile.field", "memoryBusWidth")]
    );
    assert!(reasons[0].needed.contains("since 9.27.0"), "{}", reasons[0]);
    lacking.cudnn = CudnnVersion::v9(19, 0);
    assert!(check(&Request::new(&a, &lacking)).supported());
}

#[test]
fn s3_4_requests_are_made_by_their_methods() {
    let a = validate(Attention::bshd(1, (8, 8), (512, 512), 64, DType::BF16)).expect("sound");
    let target = target("h200", "9.19");
    let verdict = check(&Request::new(&a, &target).with_policy(CompileOptions::default()).allowing(&[]));
    assert!(verdict.supported() && verdict.refusal().is_none());
}

/// Nodes of the expressions of a description.
fn nodes(a: &Attention) -> usize {
    [&a.score_mod, &a.mask.mask_mod].into_iter().flatten().map(|e| e.nodes().len()).sum()
}

/// The descriptions of the measurement: both sides of every rule, and the attentions in the tables of cuDNN's answers
/// (630 random ones), for two GPUs with the closest checks.
fn descriptions() -> Vec<(Valid, Target)> {
    let mut list: Vec<_> = all_bounds()
        .flat_map(|(_, inside, outside)| [inside, outside])
        .map(|(given, gpu, version)| (attention(given), target(gpu, version)))
        .collect();
    let files = [
        include_str!("../../../tests/goldens/generated.txt"),
        include_str!("../../../tests/goldens/generated-serving.txt"),
    ];
    for given in files.iter().flat_map(|file| file.split("\n---")) {
        for (gpu, version) in [("h200", "9.19"), ("b200", "9.19")] {
            list.push((attention(given), target(gpu, version)));
        }
    }
    list
}

/// The least mean over several batches of calls, in microseconds; a busy machine affects the others.
fn least(request: &Request<'_>, batches: u32) -> f64 {
    const CALLS: u32 = 8;
    let batch = |_| {
        let start = std::time::Instant::now();
        (0..CALLS).for_each(|_| drop(std::hint::black_box(check(std::hint::black_box(request)))));
        start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS)
    };
    (0..batches).map(batch).fold(f64::INFINITY, f64::min)
}

/// A support check that builds a plan or asks cuDNN takes hundreds of milliseconds. The bound of 50 microseconds is for
/// expressions of up to 25 nodes, more than libraries and models write (a softcap over ALiBi has 10). The time of a
/// derivative grows with the nodes, so larger expressions get 2 microseconds for each node. Builds without optimization
/// get three times the time: one binary takes 114 to 133 microseconds on one idle host, from run to run.
#[test]
fn a_support_check_takes_at_most_50_microseconds() {
    let list = descriptions();
    assert!(list.len() > 1_300, "{}", list.len());
    let slow: Vec<String> = list
        .iter()
        .filter_map(|(a, target)| {
            let build = if cfg!(debug_assertions) { 3.0 } else { 1.0 };
            let bound = build * 2.0 * nodes(a).max(25) as f64;
            let request = Request::new(a, target);
            let took = least(&request, 4);
            // Before a failure, it is measured again for longer.
            let took = if took > bound { least(&request, 400) } else { took };
            (took > bound).then(|| format!("{took:.1} us, {bound} are allowed: {a} on {}", target.label()))
        })
        .collect();
    assert!(slow.is_empty(), "{} of {} checks take too long:\n{}", slow.len(), list.len(), slow.join("\n"));
}
