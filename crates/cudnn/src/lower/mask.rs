//! Masks as operations: padding by lengths, and diagonal bands, as one operation or expanded.

use super::builder::Builder;
use super::score::{self, Context};
use super::variants::Variant;
use super::{Form, Lens};
use crate::expr::ScoreExpr;
use crate::op::{Constant, Op, Pointwise, TensorId};
use crate::{Attention, Band, Corner, DType, Lengths, OpGraph, Origins};

/// The value of a masked score. Libraries before 9.10 used the lowest finite float instead.
fn hidden(g: &mut Builder) -> TensorId {
    g.constant(Constant::f32(f32::NEG_INFINITY))
}

/// Masks the scores for which `keep` is false.
pub(super) fn hide(g: &mut Builder, keep: TensorId, score: TensorId) -> TensorId {
    let fill = hidden(g);
    g.select(keep, score, fill)
}

/// Masks of an attention, over scores.
pub(super) struct Masks<'a> {
    pub(super) attention: &'a Attention,
    pub(super) form: Form,
    /// The context of the predicate: its scalars and tensors come after the score expression's.
    pub(super) context: Context,
    /// Conditions that were written before the score expression, if the options ask for that order.
    early: Option<Vec<TensorId>>,
}

impl<'a> Masks<'a> {
    /// Writes masks when they are applied, or, without the variant for it, now, before the score expression.
    pub(super) fn new(g: &mut Builder, attention: &'a Attention, form: Form, context: Context) -> Masks<'a> {
        let mut masks = Masks { attention, form, context, early: None };
        if !g.follows(Variant::MasksLast) && form == Form::Expanded {
            masks.early = Some(masks.masks().map(|mask| masks.condition(g, context.score, mask)).collect());
        }
        masks
    }

    /// Applies every mask: predicate, padding, right bound, left bound, each to the result of the one before.
    pub(super) fn apply(&self, g: &mut Builder, mut score: TensorId) -> TensorId {
        if let Some(early) = &self.early {
            return early.iter().fold(score, |score, &keep| hide(g, keep, score));
        }
        for mask in self.masks() {
            score = match (self.form, mask) {
                (Form::Fused, Mask::Right(corner, right)) => {
                    fused_right(g, score, corner, right, self.context.seq, self.context.lengths)
                }
                (Form::Fused, Mask::Left(corner, left)) => {
                    fused_left(g, score, corner, left, self.context.seq, self.context.lengths)
                }
                (_, mask) => {
                    let keep = self.condition(g, score, mask);
                    hide(g, keep, score)
                }
            };
        }
        score
    }

    /// Every mask, in the order in which they are applied.
    fn masks(&self) -> impl Iterator<Item = Mask<'a>> + use<'a> {
        let Masks { attention: a, form: _, context, early: _ } = self;
        let band = a.mask.band;
        let right = band.and_then(|b| b.right.map(|right| Mask::Right(b.corner, Bound::right(a, right))));
        let left = band.and_then(|b| b.left.map(|left| Mask::Left(b.corner, Bound::left(a, left))));
        let keep = a.mask.mask_mod.as_ref().map(Mask::Keep);
        let padding = context.lengths.map(Mask::Padding);
        [keep, padding, right, left].into_iter().flatten()
    }

    /// The condition of one mask: true for scores that it keeps.
    fn condition(&self, g: &mut Builder, score: TensorId, mask: Mask<'_>) -> TensorId {
        let context = self.context;
        match mask {
            Mask::Keep(predicate) => score::expression(g, predicate, &Context { score, ..context }),
            Mask::Padding(lengths) => within(g, score, lengths),
            Mask::Right(corner, right) => right_bound(g, score, corner, right, context.seq, context.lengths),
            Mask::Left(corner, left) => left_bound(g, score, corner, left, context.seq, context.lengths),
        }
    }
}

/// One mask.
#[derive(Clone, Copy)]
enum Mask<'a> {
    Keep(&'a ScoreExpr),
    Padding(Lens),
    Right(Corner, Bound),
    Left(Corner, Bound),
}

/// A bound of a band: a number of the graph, or with origins one of each launch.
#[derive(Clone, Copy)]
struct Bound {
    value: i64,
    /// The sign with which the distance from the keys' origin to the queries' is added; 0 without origins.
    sign: i8,
    /// The least value with which every query sees a key, if the attention promises that.
    least: Option<i64>,
}

impl Bound {
    /// The first query sees a key if the bound is not negative; the later ones do then.
    fn right(a: &Attention, value: i64) -> Bound {
        Bound { value, sign: i8::from(a.origins.is_some()), least: Bound::promised(a, 0) }
    }

    /// The last query sees a key if the window reaches back to the last one.
    fn left(a: &Attention, value: i64) -> Bound {
        let (s_q, s_kv) = a.seq();
        Bound { value, sign: -i8::from(a.origins.is_some()), least: Bound::promised(a, s_q - s_kv + 1) }
    }

    fn promised(a: &Attention, least: i64) -> Option<i64> {
        (a.origins == Some(Origins::EveryQuerySeesAKey)).then_some(least)
    }

    /// The bound as a number, after something was added to it.
    fn number(self, g: &mut Builder, dtype: DType, plus: i64) -> TensorId {
        let Bound { value, sign, least } = self;
        match (sign, value + plus) {
            (0, value) if dtype == DType::F32 => g.constant(Constant::f32(value as f32)),
            (0, value) => g.constant(Constant::I32(value as i32)),
            (sign, value) => g.origins_apart(dtype, value, sign, least),
        }
    }

    /// The same, unless it is zero in every launch.
    fn unless_zero(self, g: &mut Builder, dtype: DType) -> Option<TensorId> {
        (self.sign != 0 || self.value != 0).then(|| self.number(g, dtype, 0))
    }
}

/// Whether every row certainly sees a key: with only a band, its first and its last row decide. With origins the
/// description says so.
pub(super) fn every_row_sees_a_key(a: &Attention) -> bool {
    let crate::Mask { band, lengths, mask_mod, .. } = &a.mask;
    if *lengths != Lengths::Full || mask_mod.is_some() {
        return false;
    }
    let Some(Band { corner, left, right }) = *band else { return true };
    if let Some(origins) = a.origins {
        return origins == Origins::EveryQuerySeesAKey;
    }
    let (s_q, s_kv) = a.seq();
    let shift = if corner == Corner::BottomRight { s_kv - s_q } else { 0 };
    [0, s_q - 1].into_iter().all(|row| {
        let first = left.map_or(0, |left| (row + shift - left + 1).max(0));
        let last = right.map_or(s_kv - 1, |right| (row + shift + right).min(s_kv - 1));
        first <= last
    })
}

/// Whether every row within the lengths certainly sees a key, if no sequence is without keys.
pub(super) fn every_row_within_lengths_sees_a_key(a: &Attention) -> bool {
    let crate::Mask { band, lengths, mask_mod, .. } = &a.mask;
    match lengths {
        Lengths::Full => every_row_sees_a_key(a),
        Lengths::PerSequence => {
            let falls = |band: &Band| a.origins.is_none() && band.corner == Corner::TopLeft && band.left.is_none();
            mask_mod.is_none() && band.as_ref().is_none_or(falls)
        }
    }
}

/// Whether the band has only a left bound: the only mask if [`every_row_sees_a_key`].
pub(super) fn is_window(a: &Attention) -> bool {
    matches!(a.mask.band, Some(Band { corner: _, left: Some(_), right: None }))
}

/// Whether operations other than one mask read the scores. The mask reads them for each kind of index and for its
/// selection.
pub(super) fn is_read_beside(graph: &OpGraph, scores: TensorId) -> bool {
    graph.ops.iter().filter(|op| op.inputs().contains(&scores)).count() > 3
}

/// Rows within the query length and keys within the KV length.
pub(super) fn within(g: &mut Builder, score: TensorId, (len_q, len_kv): Lens) -> TensorId {
    let row = g.index(score, 2, DType::I32);
    let col = g.index(score, 3, DType::I32);
    let row_ok = g.binary_as(Pointwise::CmpLt, row, len_q, DType::Bool, DType::Bool);
    let col_ok = g.binary_as(Pointwise::CmpLt, col, len_kv, DType::Bool, DType::Bool);
    g.binary_as(Pointwise::And, row_ok, col_ok, DType::Bool, DType::Bool)
}

/// Lengths for a bottom-right diagonal: the operands if there are any, otherwise the dims as numbers.
fn corner_lengths(g: &mut Builder, seq: [i64; 2], lengths: Option<Lens>) -> Lens {
    lengths.unwrap_or_else(|| {
        let q = g.constant(Constant::I32(seq[0] as i32));
        let kv = g.constant(Constant::I32(seq[1] as i32));
        (q, kv)
    })
}

fn fused_right(
    g: &mut Builder,
    x: TensorId,
    corner: Corner,
    right: Bound,
    seq: [i64; 2],
    lengths: Option<Lens>,
) -> TensorId {
    let fill = hidden(g);
    let (seq_q, seq_kv) = match corner {
        Corner::TopLeft => (None, None),
        Corner::BottomRight => {
            let (q, kv) = corner_lengths(g, seq, lengths);
            (Some(q), Some(kv))
        }
    };
    let shift_right = right.unless_zero(g, DType::I32);
    let y = g.virtual_(g.dims(x), DType::F32);
    let compare = Pointwise::CmpGe;
    g.push_op(Op::BandMask { x, fill, seq_q, seq_kv, left: None, shift_right, y, compare });
    y
}

/// The matcher needs the window's scalar as f32 if lengths are fixed, and as i32 if they are operands.
fn fused_left(
    g: &mut Builder,
    x: TensorId,
    corner: Corner,
    left: Bound,
    [s_q, s_kv]: [i64; 2],
    lengths: Option<Lens>,
) -> TensorId {
    let fill = hidden(g);
    let (dtype, plus, seq_q, seq_kv) = match (corner, lengths) {
        (Corner::TopLeft, _) => (DType::F32, 0, None, None),
        (Corner::BottomRight, None) => (DType::F32, s_q - s_kv, None, None),
        (Corner::BottomRight, Some((q, kv))) => (DType::I32, 0, Some(q), Some(kv)),
    };
    let left = Some(left.number(g, dtype, plus));
    let y = g.virtual_(g.dims(x), DType::F32);
    let compare = Pointwise::CmpGt;
    g.push_op(Op::BandMask { x, fill, seq_q, seq_kv, left, shift_right: None, y, compare });
    y
}

/// Keeps `row + Δ + right >= col`, with Δ = 0 for top left.
fn right_bound(
    g: &mut Builder,
    score: TensorId,
    corner: Corner,
    right: Bound,
    seq: [i64; 2],
    lengths: Option<Lens>,
) -> TensorId {
    let mut row = g.index(score, 2, DType::F32);
    let col = g.index(score, 3, DType::F32);
    if corner == Corner::BottomRight {
        let (len_q, len_kv) = corner_lengths(g, seq, lengths);
        row = g.binary_as(Pointwise::Add, row, len_kv, DType::I32, DType::I32);
        row = g.binary_as(Pointwise::Sub, row, len_q, DType::I32, DType::I32);
    }
    if let Some(shift) = right.unless_zero(g, DType::I32) {
        row = g.binary_as(Pointwise::Add, row, shift, DType::I32, DType::I32);
    }
    g.binary_as(Pointwise::CmpGe, row, col, DType::Bool, DType::Bool)
}

/// Keeps `col + left - Δ > row`, with Δ = 0 for top left.
fn left_bound(
    g: &mut Builder,
    score: TensorId,
    corner: Corner,
    left: Bound,
    [s_q, s_kv]: [i64; 2],
    lengths: Option<Lens>,
) -> TensorId {
    let row = g.index(score, 2, DType::F32);
    let mut col = g.index(score, 3, DType::F32);
    match (corner, lengths) {
        (Corner::BottomRight, Some((len_q, len_kv))) => {
            let shift = left.number(g, DType::I32, 0);
            col = g.binary_as(Pointwise::Add, col, shift, DType::I32, DType::I32);
            col = g.binary_as(Pointwise::Sub, col, len_kv, DType::I32, DType::I32);
            col = g.binary_as(Pointwise::Add, col, len_q, DType::I32, DType::I32);
        }
        (Corner::TopLeft, _) | (Corner::BottomRight, None) => {
            let delta = if corner == Corner::TopLeft { 0 } else { s_kv - s_q };
            let shift = left.number(g, DType::F32, -delta);
            col = g.binary_as(Pointwise::Add, col, shift, DType::F32, DType::F32);
        }
    }
    g.binary_as(Pointwise::CmpGt, col, row, DType::Bool, DType::Bool)
}
