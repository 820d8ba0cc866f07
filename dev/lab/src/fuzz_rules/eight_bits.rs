//! Random descriptions of 8-bit attention, with one scale per tensor and with block scales.

use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, QUIRKS, QuirkSet};
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, DType, DropoutSource, Fp8, Order, Outputs, Tensor, Valid, text, validate,
};

use crate::selftest::Draw;

/// Head dims: the usual ones, those at limits of engines, and odd ones.
const HEAD_DIM: [i64; 16] = [16, 32, 64, 64, 72, 80, 96, 112, 128, 128, 128, 144, 192, 256, 272, 512];
/// Those of block scales, whose kernels have few.
const BLOCK_HEAD_DIM: [i64; 9] = [16, 64, 64, 80, 96, 128, 128, 128, 144];
const LENGTHS: [i64; 13] = [1, 2, 17, 63, 64, 65, 100, 128, 256, 333, 512, 1000, 4096];

/// Options that allow what compiles and only a GPU can judge: the library is asked for it too.
pub(super) fn options() -> CompileOptions {
    // Head dims above 128 on 10.x compile or not for reasons that no rule tells, and varlen operands with block scales
    // are wrong whatever compiles.
    let told = [codes::FP8_HEAD_DIM_WIDE.as_str(), codes::MXFP8_VARLEN.as_str()];
    let unproven = QUIRKS.into_iter().map(|quirk| quirk.code);
    let unproven = unproven.filter(|code| code.contains("fp8.") && !told.contains(code));
    CompileOptions { allowed: QuirkSet::from_codes(unproven).expect("codes of quirks"), ..CompileOptions::cudnn() }
}

/// The description of a case. With `deterministic` it is a deterministic backward.
pub(super) fn attention(seed: u64, number: u64, deterministic: bool) -> Valid {
    for attempt in 0.. {
        let mut draw = Draw::new(seed ^ 0x6670_3865, number.wrapping_mul(1_000).wrapping_add(attempt));
        if let Some(valid) = drawn(&mut draw, deterministic).and_then(|a| validate(a).ok()) {
            return valid;
        }
    }
    unreachable!("most random descriptions are valid")
}

fn drawn(draw: &mut Draw, deterministic: bool) -> Option<Attention> {
    let eight = [DType::E4M3, DType::E5M2];
    let io = draw.one_of(&eight);
    let scaling = match draw.within(0, 9) {
        0..3 => Fp8::Block,
        3..6 => Fp8::Current,
        _ => Fp8::Delayed,
    };
    let block = scaling == Fp8::Block;
    let out = match scaling {
        Fp8::Delayed => draw.one_of(&eight),
        _ => draw.one_of(&[DType::F16, DType::BF16]),
    };
    let head_dims: &[i64] = if block { &BLOCK_HEAD_DIM } else { &HEAD_DIM };
    let d_qk = draw.one_of(head_dims);
    let d_v = if draw.chance(75) { d_qk } else { draw.one_of(head_dims) };
    let (d_qk, d_v) = if block && draw.chance(15) { (192, 128) } else { (d_qk, d_v) };
    let (s_kv, group) = (draw.one_of(&LENGTHS), draw.one_of(&[1, 1, 2, 8]));
    let s_q = if draw.chance(50) { s_kv } else { draw.one_of(&LENGTHS) };
    let (b, h_kv) = (draw.one_of(&[1, 2, 4]), draw.one_of(&[1, 2, 8]));
    let h_v = if draw.chance(5) { h_kv * group } else { h_kv };
    let order = draw.one_of(&Order::ALL);
    let backward = deterministic || draw.chance(40);
    let storage = draw.within(0, 9);
    let t = |h: i64, s: i64, d: i64, dtype| match storage {
        0 | 1 => Tensor::thd(b, h, s, d, b * s, dtype),
        _ => Tensor::dense(order, [b, h, s, d], dtype),
    };
    let mut a = Attention::forward(
        t(h_kv * group, s_q, d_qk, io),
        t(h_kv, s_kv, d_qk, io),
        t(h_v, s_kv, d_v, io),
        t(h_kv * group, s_q, d_v, out),
    );
    a.fp8 = Some(scaling);
    a.outputs = Outputs::new(draw.chance(60), false, false);
    a.outputs.amax = draw.chance(80);
    if storage < 4 {
        a = a.with_lengths();
    }
    if storage == 2 && !backward {
        let rows = draw.one_of(&[16, 64, 128]);
        let pages = b * ((s_kv + rows - 1) / rows);
        for t in [&mut a.k, &mut a.v] {
            let [b, h, s, d] = t.dims;
            *t = Tensor::paged_hnd(b, h, s, d, pages, rows, t.dtype);
        }
    }
    a.mask.band = match draw.within(0, 5) {
        0 | 1 => None,
        kind => {
            let corner = draw.one_of(&[Corner::TopLeft, Corner::BottomRight]);
            let left = draw.one_of(&[1, 64, 300]);
            let (left, right) = match kind {
                2 | 3 => (None, Some(0)),
                4 => (Some(left), Some(0)),
                _ => (Some(left), draw.one_of(&[None, Some(5)])),
            };
            Some(Band { corner, left, right })
        }
    };
    a.sink = draw.chance(8);
    if draw.chance(10) {
        let source = draw.one_of(&[DropoutSource::Philox, DropoutSource::Philox, DropoutSource::Mask]);
        a.dropout = Some(qkvault_graph::Dropout::new(source, 0.1));
    }
    if draw.chance(12) {
        let expression = draw.one_of(&["tanh(score)", "scalar $c: float; score * $c", "score + float(key - query)"]);
        a.score_mod = text::parse(&format!("q: f16 [1,1,2,8]\nscore_mod: {expression}")).ok()?.score_mod;
    }
    if !backward {
        return Some(a);
    }
    let like = |t: Tensor, dtype| Some(Tensor { dtype, ..t });
    let options = BackwardOptions {
        d_o: like(a.o, draw.one_of(&eight)),
        d_q: like(a.q, out),
        d_k: like(a.k, out),
        d_v: like(a.v, out),
        d_sink: a.sink && draw.chance(50),
        deterministic: deterministic || draw.chance(10),
        ..BackwardOptions::default()
    };
    Some(a.with_stats().backward(options))
}
