//! Random 8-bit attentions for a GPU, from a seed. Most are what the only FP8 kernels of compute capability 9.0 take:
//! delayed scaling, head dims of 128 in a backward, two queries or more.

use qkvault_cudnn::QuirkSet;
use qkvault_cudnn::registry::codes;
use qkvault_graph::expr::{TensorSpec, library, scalar, score};
use qkvault_graph::registry::Code;
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, DType, Dropout, DropoutSource, Fp8, Interleave, Lengths, Order, Outputs,
    Tensor,
};

use crate::selftest::{Draw, layouts};

/// Codes that `--about` takes. A case about a code has what the code refuses, if its GPU is among those of the code.
pub(in crate::selftest) const ABOUT: [&Code; 14] = [
    &codes::FP8_HOPPER_VARLEN,
    &codes::FP8_HOPPER_GROUPED_BACKWARD,
    &codes::FP8_HOPPER_EMPTY_TILE,
    &codes::FP8_HOPPER_BOTTOM_RIGHT,
    &codes::FP8_EXPRESSION,
    &codes::FP8_HOPPER_EXPRESSION,
    &codes::FP8_DROPOUT_FORM,
    &codes::FP8_HEAD_DIM_WIDE,
    &codes::FP8_BACKWARD_BAND,
    &codes::FP8_HOPPER_DROPOUT,
    &codes::FP8_HOPPER_D_SINK,
    &codes::FP8_HOPPER_QUERIES,
    &codes::FP8_HOPPER_FEW_KEYS,
    &codes::FP8_HOPPER_PADDED_AMAX,
];

const EIGHT: [DType; 2] = [DType::E4M3, DType::E5M2];
/// Head dims of Q and V in a forward; a backward has 128 for both in most cases.
const HEAD_DIMS: [(i64, i64); 10] =
    [(128, 128), (128, 128), (128, 128), (64, 64), (64, 64), (96, 96), (80, 80), (32, 16), (192, 128), (256, 256)];
const WIDE: [(i64, i64); 4] = [(256, 256), (192, 192), (160, 160), (512, 512)];
const LENGTHS: [i64; 15] = [2, 17, 63, 64, 65, 96, 127, 128, 129, 192, 200, 255, 256, 300, 513];
/// Lengths of one head, which the oracle computes in seconds.
const LONG: [i64; 3] = [1024, 1536, 2048];
const TOKENS_OF_A_PAGE: [i64; 3] = [16, 64, 128];

/// Codes of backwards alone.
const OF_BACKWARDS: [&Code; 7] = [
    &codes::FP8_HOPPER_VARLEN,
    &codes::FP8_HOPPER_GROUPED_BACKWARD,
    &codes::FP8_DROPOUT_FORM,
    &codes::FP8_BACKWARD_BAND,
    &codes::FP8_HOPPER_D_SINK,
    &codes::FP8_HOPPER_QUERIES,
    &codes::FP8_HOPPER_FEW_KEYS,
];
/// Codes of forwards alone.
const OF_FORWARDS: [&Code; 4] = [
    &codes::FP8_HOPPER_EMPTY_TILE,
    &codes::FP8_HEAD_DIM_WIDE,
    &codes::FP8_HOPPER_DROPOUT,
    &codes::FP8_HOPPER_PADDED_AMAX,
];

/// What the cases are about, and what is drawn beside the rest, so that cases of a seed stay those that they were.
#[derive(Clone, Copy)]
struct CaseQuirks {
    about: QuirkSet,
    /// A long sequence.
    long: Option<i64>,
    /// A window over sequences that have lengths.
    window: bool,
    /// Amaxes of a forward over sequences that have lengths, which are refused.
    amax: bool,
}

impl CaseQuirks {
    fn new(seed: u64, case: u64, about: QuirkSet) -> CaseQuirks {
        let mut beside = Draw::new(seed ^ 0x0062_6573_6964_6500, case);
        let plain = about == QuirkSet::NONE;
        let long = beside.chance(4).then(|| beside.one_of(&LONG)).filter(|_| plain);
        let window = plain && beside.chance(20);
        CaseQuirks { about, long, window, amax: !plain || beside.chance(15) }
    }

    fn has(self, code: &Code) -> bool {
        self.about.contains(code)
    }
}

/// The attention of one case, with what these codes refuse.
pub(in crate::selftest) fn attention(seed: u64, case: u64, about: QuirkSet) -> Attention {
    let mut draw = Draw::new(seed ^ 0x6670_3874_6573_7400, case);
    drawn(&mut draw, CaseQuirks::new(seed, case, about))
}

fn drawn(draw: &mut Draw, about: CaseQuirks) -> Attention {
    let any = |codes: &[&Code]| codes.iter().any(|code| about.has(code));
    let backward = if any(&OF_BACKWARDS) { true } else { !any(&OF_FORWARDS) && draw.chance(45) };
    let mut a = operands(draw, about, backward);
    mask(draw, about, &mut a);
    a.outputs = Outputs::new(draw.chance(70), false, false);
    let measured = about.has(&codes::FP8_HOPPER_FEW_KEYS) || about.has(&codes::FP8_HOPPER_PADDED_AMAX);
    a.outputs.amax = draw.chance(85) || measured;
    if !backward && a.mask.lengths == Lengths::PerSequence {
        a.outputs.amax &= about.amax;
    }
    if about.has(&codes::FP8_EXPRESSION) || about.has(&codes::FP8_HOPPER_EXPRESSION) {
        expression(draw, &mut a);
    }
    let dropped = about.has(&codes::FP8_DROPOUT_FORM) || about.has(&codes::FP8_HOPPER_DROPOUT);
    if dropped || (!backward && draw.chance(2)) {
        a.dropout = Some(Dropout::new(DropoutSource::Philox, draw.one_of(&[0.1, 0.5])));
    }
    let of_sink = about.has(&codes::FP8_HOPPER_D_SINK);
    a.sink = of_sink || draw.chance(if backward { 15 } else { 2 });
    if !backward {
        return a;
    }
    let d_o = draw.one_of(&EIGHT);
    let d_sink = of_sink || (a.sink && draw.chance(10));
    let options = layouts::gradients(draw, &a, BackwardOptions { d_sink, ..BackwardOptions::default() });
    let outputs = a.o.dtype;
    let typed = |t: Option<Tensor>, like: Tensor, dtype| Some(Tensor { dtype, ..t.unwrap_or(like) });
    let options = BackwardOptions {
        d_o: typed(options.d_o, a.o, d_o),
        d_q: typed(options.d_q, a.q, outputs),
        d_k: typed(options.d_k, a.k, outputs),
        d_v: typed(options.d_v, a.v, outputs),
        ..options
    };
    a.with_stats().backward(options)
}

/// Whether the cases need a diagonal that ends bottom right.
fn ends_bottom_right(about: CaseQuirks) -> bool {
    about.has(&codes::FP8_HOPPER_BOTTOM_RIGHT) || about.has(&codes::FP8_BACKWARD_BAND)
}

fn operands(draw: &mut Draw, about: CaseQuirks, backward: bool) -> Attention {
    let io = if draw.chance(70) { DType::E4M3 } else { DType::E5M2 };
    let scaling = if draw.chance(92) { Fp8::Delayed } else { Fp8::Current };
    let out = match scaling {
        Fp8::Delayed => draw.one_of(&EIGHT),
        Fp8::Current | Fp8::Block | Fp8::Cache => draw.one_of(&[DType::F16, DType::BF16]),
    };
    let (d_qk, d_v) = match (about.has(&codes::FP8_HEAD_DIM_WIDE), backward) {
        (true, _) => draw.one_of(&WIDE),
        (false, true) if draw.chance(92) => (128, 128),
        (false, _) => draw.one_of(&HEAD_DIMS),
    };
    let (b, h_kv) = (draw.one_of(&[1, 2, 3]), draw.one_of(&[1, 2, 3]));
    let group = match (about.has(&codes::FP8_HOPPER_GROUPED_BACKWARD), backward) {
        (true, _) => draw.one_of(&[2, 4, 8]),
        // Varlen backwards of single heads do not compile on compute capability 9.0.
        (false, true) => {
            if about.has(&codes::FP8_HOPPER_VARLEN) {
                2
            } else {
                1
            }
        }
        (false, false) => draw.one_of(&[1, 1, 2, 4]),
    };
    let (b, h_kv, group) = if about.long.is_some() { (1, 1, group.min(2)) } else { (b, h_kv, group) };
    let s_kv = draw.one_of(&LENGTHS);
    let s_kv = about.long.unwrap_or(s_kv);
    let s_q = match draw.within(0, 9) {
        0..=4 => s_kv,
        _ => draw.one_of(&LENGTHS),
    };
    let (s_q, s_kv) = sizes(draw, about, backward, [s_q, s_kv]);
    // A diagonal that ends bottom right over fewer keys than queries has rows without keys.
    let s_q = if ends_bottom_right(about) { s_q.min(s_kv) } else { s_q };
    let varlen = about.has(&codes::FP8_HOPPER_VARLEN)
        || about.has(&codes::FP8_HOPPER_BOTTOM_RIGHT)
        || (!backward && draw.chance(8));
    let paged = !backward && draw.chance(18);
    let (order, apart) = (draw.one_of(&Order::ALL), draw.chance(40));
    let of = |draw: &mut Draw, h: i64, s: i64, d: i64, dtype| match (varlen, apart) {
        (true, _) => Tensor::thd(b, h, s, d, b * s, dtype),
        (false, false) => Tensor::dense(order, [b, h, s, d], dtype),
        (false, true) => layouts::dense(draw, [b, h, s, d], dtype),
    };
    let h = h_kv * group;
    let o = of(draw, h, s_q, d_v, out);
    let mut a = if group == 1 && s_q == s_kv && d_qk == d_v && !varlen && draw.chance(20) {
        let [q, k, v] = Tensor::parts::<3>(order, Interleave::Parts, [b, h, s_q, d_qk], io);
        Attention::forward(q.tensor, k.tensor, v.tensor, o)
    } else {
        let (q, k) = (of(draw, h, s_q, d_qk, io), of(draw, h_kv, s_kv, d_qk, io));
        Attention::forward(q, k, of(draw, h_kv, s_kv, d_v, io), o)
    };
    a.fp8 = Some(scaling);
    if paged && !varlen {
        let rows = draw.one_of(&TOKENS_OF_A_PAGE);
        let pages = b * ((s_kv + rows - 1) / rows) + 2;
        for t in [&mut a.k, &mut a.v] {
            let [b, h, s, d] = t.dims;
            *t = Tensor::paged_hnd(b, h, s, d, pages, rows, t.dtype);
        }
    }
    let with_lengths = about.has(&codes::FP8_HOPPER_EMPTY_TILE) || about.has(&codes::FP8_HOPPER_PADDED_AMAX);
    let without = about.has(&codes::FP8_HOPPER_FEW_KEYS);
    if paged || varlen || with_lengths || (!without && draw.chance(25)) {
        a = a.with_lengths();
    }
    a
}

/// Queries and keys that the codes are about. A backward has whole groups of 16 queries otherwise, and 16 keys.
fn sizes(draw: &mut Draw, about: CaseQuirks, backward: bool, [s_q, s_kv]: [i64; 2]) -> (i64, i64) {
    if about.has(&codes::FP8_HOPPER_QUERIES) {
        return (draw.one_of(&[2, 8, 17, 24, 63, 65, 200, 300]), s_kv.max(16));
    }
    if about.has(&codes::FP8_HOPPER_FEW_KEYS) {
        return (draw.one_of(&[16, 64, 96]), draw.within(1, 15));
    }
    if about.has(&codes::FP8_HOPPER_PADDED_AMAX) {
        return (draw.one_of(&[513, 576, 640, 1000]), s_kv);
    }
    if backward && draw.chance(90) { ((s_q + 15) / 16 * 16, s_kv.max(16)) } else { (s_q, s_kv) }
}

fn mask(draw: &mut Draw, about: CaseQuirks, a: &mut Attention) {
    let (s_q, s_kv) = a.seq();
    let lengths = a.mask.lengths == Lengths::PerSequence;
    let window = Some(draw.one_of(&[1, 16, 64, 100]));
    let wanted = ends_bottom_right(about);
    let corner = if s_q <= s_kv && (wanted || draw.chance(6)) { Corner::BottomRight } else { Corner::TopLeft };
    // A window over fewer keys than queries leaves rows without keys, and with lengths whole tiles of them.
    let narrow = about.has(&codes::FP8_HOPPER_EMPTY_TILE) || (s_q <= s_kv && (!lengths || about.window));
    if about.has(&codes::FP8_HOPPER_PADDED_AMAX) {
        return;
    }
    let kinds: &[i64] = match (wanted || about.has(&codes::FP8_HOPPER_EMPTY_TILE), narrow) {
        (true, true) => &[2, 2, 3],
        (true, false) => &[1],
        (false, true) => &[0, 0, 1, 1, 1, 2, 3],
        (false, false) => &[0, 0, 1, 1],
    };
    a.mask.band = match draw.one_of(kinds) {
        0 => None,
        1 => Some(Band { corner, left: None, right: Some(0) }),
        2 => Some(Band { corner, left: window, right: Some(0) }),
        _ => Some(Band { corner, left: window, right: Some(draw.one_of(&[0, 7, 40])) }),
    };
}

/// A bias, a softcap, ALiBi or a predicate, which NVIDIA does not test in 8 bits.
fn expression(draw: &mut Draw, a: &mut Attention) {
    let (b, h, (q, k)) = (a.batch(), a.q.heads(), a.seq());
    let expression = match draw.within(0, 3) {
        0 => library::softcap(score(), scalar("cap")),
        1 => library::alibi(score(), h),
        _ => {
            let dims = draw.one_of(&[[1, h, q, k], [1, 1, q, k], [b, h, q, k]]);
            library::bias(score(), "bias", TensorSpec::new(draw.one_of(&[DType::BF16, DType::F16]), dims))
        }
    };
    a.score_mod = expression.build_score_mod().ok();
}

#[cfg(test)]
mod tests {
    use qkvault_graph::Lengths;

    use super::*;

    #[test]
    fn some_cases_are_long_and_some_have_windows_and_lengths() {
        let all: Vec<Attention> = (0..1500).map(|case| attention(7, case, QuirkSet::NONE)).collect();
        let long = all.iter().filter(|a| a.seq().1 > 1000);
        assert!((20..150).contains(&long.clone().count()) && long.clone().any(Attention::is_backward));
        assert!(long.clone().all(|a| a.batch() * a.q.heads() <= 2), "too much for the oracle");
        let window = |a: &&Attention| {
            a.mask.lengths == Lengths::PerSequence && a.mask.band.is_some_and(|band| band.left.is_some())
        };
        assert!(all.iter().filter(window).count() > 10);
        // A case about a code is what it was.
        let about = QuirkSet::known([&codes::FP8_HOPPER_QUERIES]);
        let beside = |case| CaseQuirks::new(7, case, about);
        assert!((0..200).map(beside).all(|case| case.long.is_none() && !case.window));
    }
}
