//! Random valid attentions for the self-test, from a seed: sizes around kernel tiles, and every dense feature and
//! layout.

use qkvault_base::random::Rng;
use qkvault_graph::expr::{Expr, ScoreExpr, library, parse_expr, scalar, score};
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, DType, Dropout, DropoutSource, Interleave, Order, Origins, Tensor,
};

use super::{expressions, layouts};

/// The source of a case's random choices.
#[derive(Clone)]
pub(crate) struct Draw(Rng);

impl Draw {
    pub(crate) fn new(seed: u64, case: u64) -> Draw {
        Draw(Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    pub(crate) fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[(self.0.bits() >> 16) as usize % list.len()]
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn within(&mut self, low: i64, high: i64) -> i64 {
        low + ((self.0.bits() >> 16) % (high - low + 1).max(1).unsigned_abs()).cast_signed()
    }

    /// True with a probability of `percent` percent.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        (self.0.bits() >> 16) % 100 < percent
    }
}

/// Lengths that are small enough for the oracle.
const LENGTHS: [i64; 16] = [1, 2, 17, 63, 64, 65, 96, 127, 128, 129, 160, 192, 200, 255, 256, 300];

/// The attention of one case.
pub(crate) fn attention(seed: u64, case: u64) -> Attention {
    let a = drawn(&mut Draw::new(seed, case));
    // Choices of their own, so that those of the other cases stay.
    let mut draw = Draw::new(seed ^ 0x6f72_6967, case);
    if !draw.chance(15) {
        return a;
    }
    a.with_origins(draw.one_of(&[Origins::Any, Origins::Any, Origins::EveryQuerySeesAKey]))
}

fn drawn(draw: &mut Draw) -> Attention {
    let dtype = draw.one_of(&[DType::BF16, DType::F16]);
    let (b, kv_heads) = (draw.one_of(&[1, 2, 3]), draw.one_of(&[1, 2, 3]));
    let heads = kv_heads * draw.one_of(&[1, 1, 2, 4]);
    let s_kv = draw.one_of(&LENGTHS);
    let s_q = match draw.one_of(&[0, 0, 1, 2]) {
        0 => s_kv,
        1 => draw.one_of(&LENGTHS),
        _ => 1,
    };
    let (d_qk, d_v) = draw.one_of(&[
        (64, 64),
        (128, 128),
        (128, 128),
        (32, 32),
        (80, 80),
        (96, 96),
        (128, 64),
        (192, 128),
        (256, 256),
    ]);
    let mut a = operands(draw, dtype, [b, heads, kv_heads], [s_q, s_kv], [d_qk, d_v]);
    mask(draw, &mut a, [s_q, s_kv]);
    if let Some(expression) = expression(draw, &a, dtype) {
        a.score_mod = Some(expression);
    }
    a.sink = draw.chance(15);
    if draw.chance(15) {
        let source = draw.one_of(&[DropoutSource::Mask, DropoutSource::Philox]);
        a.dropout = Some(Dropout::new(source, draw.one_of(&[0.1, 0.5])));
    }
    a.outputs.stats = draw.chance(70);
    if !a.sink && draw.chance(10) {
        (a.outputs.max, a.outputs.sum_exp) = (true, true);
    }
    if draw.chance(50) {
        a.outputs = qkvault_graph::Outputs::STATS;
        let d_sink = a.sink && draw.chance(60);
        let deterministic = draw.chance(25);
        let options = BackwardOptions { d_sink, deterministic, ..BackwardOptions::default() };
        let options = layouts::gradients(draw, &a, options);
        a = a.backward(options);
    }
    a
}

fn operands(
    draw: &mut Draw,
    dtype: DType,
    [b, h, h_kv]: [i64; 3],
    [s_q, s_kv]: [i64; 2],
    [d_qk, d_v]: [i64; 2],
) -> Attention {
    let order = draw.one_of(&[Order::Bshd, Order::Bshd, Order::Sbhd, Order::Bhsd]);
    let o = layouts::dense(draw, [b, h, s_q, d_v], dtype);
    if h == h_kv && s_q == s_kv && d_qk == d_v && draw.chance(30) {
        let interleave = draw.one_of(&[Interleave::Parts, Interleave::Heads]);
        // Each part has its own buffer, with the strides of a shared one.
        let [q, k, v] = Tensor::parts::<3>(order, interleave, [b, h, s_q, d_qk], dtype);
        return Attention::forward(q.tensor, k.tensor, v.tensor, o);
    }
    // All operands have one layout, as in frameworks, or each has its own.
    let alike = draw.chance(40);
    let mut tensor = |dims| if alike { Tensor::dense(order, dims, dtype) } else { layouts::dense(draw, dims, dtype) };
    let (q, k, v) = (tensor([b, h, s_q, d_qk]), tensor([b, h_kv, s_kv, d_qk]), tensor([b, h_kv, s_kv, d_v]));
    Attention::forward(q, k, v, o)
}

fn mask(draw: &mut Draw, a: &mut Attention, [s_q, s_kv]: [i64; 2]) {
    let window = draw.one_of(&[1, 16, 64, 100]);
    // A bottom-right mask with more queries than keys has empty rows, which cuDNN refuses or leaves undefined.
    let corner = if s_q <= s_kv && draw.chance(50) { Corner::BottomRight } else { Corner::TopLeft };
    a.mask.band = match draw.one_of(&[0, 0, 1, 1, 1, 2, 3]) {
        0 => None,
        1 => Some(Band { corner, left: None, right: Some(0) }),
        2 => Some(Band { corner, left: Some(window), right: Some(0) }),
        _ => Some(Band { corner, left: Some(window), right: Some(draw.one_of(&[0, 7, 40])) }),
    };
    if draw.chance(25) {
        a.mask.lengths = qkvault_graph::Lengths::PerSequence;
    }
    if draw.chance(25) {
        let full = [a.batch(), a.q.heads(), s_q, s_kv];
        a.mask.mask_mod = Some(read(&expressions::keep(draw, full)));
    }
}

/// Parses an expression.
fn read(text: &str) -> ScoreExpr {
    parse_expr(text).unwrap_or_else(|error| panic!("the self-test's own expression is wrong: {error}\n{text}"))
}

/// The name of a library function, and a function that makes its expression for a number of heads.
type NamedExpr = (&'static str, fn(i64) -> Expr);

/// Score modifications of the library. A new one goes to the end, and its place into [`KINDS`], which changes the cases
/// of every seed.
const LIBRARY: [NamedExpr; 4] = [
    ("softcap", |_| library::softcap(score(), scalar("cap"))),
    ("alibi", |heads| library::alibi(score(), heads)),
    ("softcap of alibi", |heads| library::softcap(library::alibi(score(), heads), scalar("cap"))),
    ("soft_window", |_| library::soft_window(score(), 32, scalar("slope"))),
];

/// What [`expression`] draws from: places in [`LIBRARY`], no expression, or one in text form.
const KINDS: [usize; 13] = [NONE, NONE, NONE, NONE, 0, 1, 2, 3, TEXT, TEXT, TEXT, TEXT, TEXT];
const NONE: usize = usize::MAX;
const TEXT: usize = usize::MAX - 1;

fn expression(draw: &mut Draw, a: &Attention, dtype: DType) -> Option<ScoreExpr> {
    let full = [a.batch(), a.q.heads(), a.seq().0, a.seq().1];
    let heads = full[1];
    match draw.one_of(&KINDS) {
        NONE => None,
        TEXT => Some(read(&expressions::score(draw, full, dtype))),
        at => {
            let (_, make) = LIBRARY[at];
            make(heads).build_score_mod().ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use qkvault_graph::expr::library::{MASK_MODS, SCORE_MODS};
    use qkvault_graph::{Origins, Refusal, validate};

    /// Functions of the library that the self-test draws in another way.
    const OTHERWISE: [(&str, &str); 12] = [
        ("alibi_of", "the op graph of `alibi`"),
        ("alibi_with", "the op graph of `alibi`"),
        ("bias", "a sum with a tensor, in `expressions::score`"),
        ("relative_bias", "a sum with a tensor, in `expressions::score`"),
        ("causal", "a band"),
        ("sliding_window", "a band"),
        ("top_left_causal", "a band"),
        ("top_left_window", "a band"),
        ("padding", "the lengths"),
        ("dilated_window", "a text, in `expressions::keep`"),
        ("document_mask", "a text, in `expressions::keep`"),
        ("prefix_lm", "a text, in `expressions::keep`"),
    ];

    /// The self-test alone compares expressions on a GPU, so what it does not draw has never run on one.
    #[test]
    fn every_function_of_the_library_is_drawn() {
        assert!(
            (0..super::LIBRARY.len()).all(|at| super::KINDS.contains(&at)),
            "a function that is listed and not drawn"
        );
        let drawn = super::LIBRARY.iter().flat_map(|(words, _)| words.split(' '));
        let known: Vec<&str> = drawn.chain(OTHERWISE.map(|(name, _)| name)).collect();
        let all = SCORE_MODS.iter().chain(MASK_MODS);
        assert_eq!(all.filter(|name| !known.contains(name)).collect::<Vec<_>>(), [&""; 0]);
    }

    /// Parsing an expression panics on an error, so this also checks that all expressions can be parsed.
    #[test]
    fn expressions_can_be_parsed_and_most_cases_are_valid() {
        let sound = |n: &u64| validate(super::attention(1, *n)).map_err(|_: Refusal| ()).is_ok();
        let good = (0..2_000).filter(sound).count();
        assert!(good > 1_700, "{good} of 2000");
        let valid = |n: u64| validate(super::attention(1, n)).ok();
        let of = |origins| (0..2_000).filter(|n| valid(*n).is_some_and(|a| a.origins == Some(origins))).count();
        let (any, promised) = (of(Origins::Any), of(Origins::EveryQuerySeesAKey));
        assert!(any > 100 && promised > 10, "{any} with any origins, {promised} with a promise");
    }
}
