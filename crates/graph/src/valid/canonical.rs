//! The canonical form of a valid attention: one description for all ways to write the same computation.
//!
//! * Strides that are never used become those of the surrounding memory order ([`super::strides`]).
//! * A predicate that is a diagonal band becomes a band, and is joined with the mask's band if both count from the same
//!   corner. A predicate that is always true is removed. Bounds of a band that hide nothing are dropped, and both
//!   corners become one if every sequence is square.
//! * The difference between the numbers of keys and queries in an expression becomes a number if every sequence has the
//!   length in the dims.
//! * Origins are removed where nothing counts positions. A band of positions is top-left, the difference of lengths is
//!   zero, and only bounds that hide nothing at any distance are dropped.
//! * A score expression that does not change the score is removed, and so is Philox dropout with probability 0.
//! * An author's backward of the score modification is removed in a forward, and if it equals the derived one. With
//!   another one, a score modification that does not change the score stays.
//! * Padded rows become undefined if no row is padding. A backward keeps only the output of its forward that it reads.
//!
//! The corners of a band stay distinct for sequences of fixed, unequal lengths, although each could be written as the
//! other: cuDNN has different rules for them, so the corner is part of the description.

use crate::expr::{Axis, Node, ScoreExpr, over_operands_of, vjp};
use crate::{
    Attention, Band, Dropout, DropoutSource, Fp8, Gradients, Lengths, Mask, Origins, Outputs, PaddedRows, Pass,
    ScoreModBprop, Tensor, valid::strides,
};

pub(super) fn form(attention: Attention) -> Attention {
    let Attention {
        q,
        k,
        v,
        o,
        mask,
        score_mod,
        score_mod_bprop,
        origins,
        sink,
        dropout,
        block_mask,
        outputs,
        padded_rows,
        invariant,
        draft_tree,
        fp8,
        pass,
    } = attention;
    let seq = (q.dims[2], k.dims[2]);
    let mask = masks(mask, seq, origins.is_some());
    let lengths = mask.lengths;
    let outputs = {
        let Outputs { stats, max, sum_exp, amax } = outputs;
        let forward = matches!(pass, Pass::Forward);
        let measured = fp8.is_some_and(Fp8::has_narrow_products);
        Outputs { stats, max: max && forward, sum_exp: sum_exp && forward, amax: amax || !measured }
    };
    let score_mod = score_mod.map(|e| known(e, seq, lengths, origins.is_some()));
    let own = score_mod_bprop.filter(|_| matches!(pass, Pass::Backward(_)));
    let score_mod_bprop = own.zip(score_mod.as_ref()).and_then(|(ScoreModBprop { derivative, trusted }, of)| {
        let derivative = known(derivative, seq, lengths, origins.is_some());
        // A derivative that equals the derived one gives the same plan.
        let derived = vjp(of).ok().map(|vjp| vjp.d_score);
        (over_operands_of(of, &derivative).ok() != derived).then_some(ScoreModBprop { derivative, trusted })
    });
    let score_mod = score_mod.filter(|e| score_mod_bprop.is_some() || !is_identity(e));
    let expressions = [score_mod.as_ref(), score_mod_bprop.as_ref().map(|own| &own.derivative), mask.mask_mod.as_ref()];
    let origins =
        origins.and_then(|given| self::origins(given, &mask, &expressions, seq, matches!(pass, Pass::Forward)));
    Attention {
        q: tensor(q),
        k: tensor(k),
        v: tensor(v),
        o: tensor(o),
        mask,
        score_mod,
        score_mod_bprop,
        origins,
        sink,
        dropout: dropout.filter(drops),
        block_mask,
        outputs,
        padded_rows: match lengths {
            Lengths::Full => PaddedRows::Undefined,
            Lengths::PerSequence => padded_rows,
        },
        invariant,
        draft_tree,
        fp8,
        pass: match pass {
            Pass::Forward => Pass::Forward,
            Pass::Backward(gradients) => Pass::Backward(self::gradients(gradients)),
        },
    }
}

/// Sequence lengths up to which predicates are recognised: [`ScoreExpr::as_band`] guarantees nothing beyond.
pub(super) const RECOGNISED: i64 = 1 << 28;

fn masks(mask: Mask, (s_q, s_kv): (i64, i64), origins: bool) -> Mask {
    let Mask { band, lengths, mask_mod } = mask;
    let canonical = |band: Band| match origins {
        true => band.canonical_with_origins(),
        false => band.canonical(s_q, s_kv, lengths),
    };
    let band = band.and_then(canonical);
    let Some(mask_mod) = mask_mod.filter(|e| !matches!(e.nodes(), [Node::Bool(true)])) else {
        return Mask { band, lengths, mask_mod: None };
    };
    // A band that counts from the bottom right keeps its corner: it is read before the difference of lengths becomes a
    // number.
    let band_of = |e: &ScoreExpr| e.as_band().filter(|_| s_q < RECOGNISED && s_kv < RECOGNISED);
    let (recognised, mask_mod) = match band_of(&mask_mod) {
        Some(band) => (Some(band), mask_mod),
        None => {
            let mask_mod = known(mask_mod, (s_q, s_kv), lengths, origins);
            (band_of(&mask_mod), mask_mod)
        }
    };
    match recognised.map(|found| both(band, canonical(found))) {
        Some(Some(band)) => Mask { band: band.and_then(canonical), lengths, mask_mod: None },
        Some(None) | None => Mask { band, lengths, mask_mod: Some(mask_mod) },
    }
}

/// The origins, if anything counts positions. The promise matters to a backward whose rows only a band can empty, and
/// none is made that no launch can keep.
fn origins(
    given: Origins,
    mask: &Mask,
    expressions: &[Option<&ScoreExpr>],
    (s_q, s_kv): (i64, i64),
    forward: bool,
) -> Option<Origins> {
    let Mask { band, lengths, mask_mod } = mask;
    let counts = |e: &&ScoreExpr| [Axis::Query, Axis::Key].into_iter().any(|axis| e.contains(Node::Index(axis)));
    if band.is_none() && !expressions.iter().flatten().any(counts) {
        return None;
    }
    let wide =
        |Band { corner: _, left, right }: &Band| left.zip(*right).is_none_or(|(l, r)| l + r > (s_q - s_kv).max(0));
    let kept = !forward && band.as_ref().is_some_and(wide) && *lengths == Lengths::Full && mask_mod.is_none();
    Some(if kept { given } else { Origins::Any })
}

/// The intersection of two bands, if one band can express it: both count from the same corner, or one hides nothing.
fn both(a: Option<Band>, b: Option<Band>) -> Option<Option<Band>> {
    let (Some(a), Some(b)) = (a, b) else { return Some(a.or(b)) };
    let nearer = |x: Option<i64>, y: Option<i64>| match (x, y) {
        (Some(x), Some(y)) => Some(x.min(y)),
        (x, y) => x.or(y),
    };
    let joined = Band { corner: a.corner, left: nearer(a.left, b.left), right: nearer(a.right, b.right) };
    (a.corner == b.corner).then_some(Some(joined))
}

/// The expression with the difference of the lengths of a sequence as a number, if the dims give it. With origins,
/// queries and keys count from one beginning, so that it is zero.
fn known(e: ScoreExpr, (s_q, s_kv): (i64, i64), lengths: Lengths, origins: bool) -> ScoreExpr {
    match (lengths, i32::try_from(s_kv - s_q)) {
        _ if origins => e.with_keys_ahead(0),
        (Lengths::Full, Ok(ahead)) => e.with_keys_ahead(ahead),
        (Lengths::Full | Lengths::PerSequence, _) => e,
    }
}

fn tensor(t: Tensor) -> Tensor {
    let strides = strides::canonical(&t);
    let Tensor { dims, strides: _, dtype, storage } = t;
    Tensor { dims, strides, dtype, storage }
}

fn gradients(gradients: Gradients) -> Gradients {
    let Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink, deterministic } = gradients;
    Gradients {
        d_o: tensor(d_o),
        d_o_half: d_o_half.map(tensor),
        d_q: tensor(d_q),
        d_k: tensor(d_k),
        d_v: tensor(d_v),
        d_sink,
        deterministic,
    }
}

fn is_identity(score: &ScoreExpr) -> bool {
    matches!(score.nodes(), [Node::Score])
}

/// Whether dropout has an effect: a given mask always applies, and a drawn one of probability 0 keeps everything.
fn drops(dropout: &Dropout) -> bool {
    let Dropout { source, probability } = *dropout;
    match source {
        DropoutSource::Philox | DropoutSource::Places => probability > 0.0,
        DropoutSource::Mask => true,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::expr::{Expr, key, key_len, query, query_len};
    use crate::{Attention, Corner, DType, validate};

    /// A band written as a predicate, and the band itself.
    fn bands() -> impl Strategy<Value = (Expr, Option<Band>)> {
        let bound = |low: i64| prop::option::of(low..9_i64);
        (any::<bool>(), bound(1), bound(0)).prop_map(|(bottom, left, right)| {
            let ahead = if bottom { (key() - key_len()) - (query() - query_len()) } else { key() - query() };
            let mut mask_mod = Expr::from(true);
            if let Some(right) = right {
                mask_mod = mask_mod & ahead.le(right as i32);
            }
            if let Some(left) = left {
                mask_mod = mask_mod & ahead.gt(-left as i32);
            }
            let corner = if bottom { Corner::BottomRight } else { Corner::TopLeft };
            let band = (left.is_some() || right.is_some()).then_some(Band { corner, left, right });
            (mask_mod, band)
        })
    }

    /// The canonical mask; `None` for a contradiction.
    fn masked(band: Option<Band>, mask_mod: Option<&Expr>, seq: (i64, i64), lengths: Lengths) -> Option<Mask> {
        let mut a = Attention::bshd(1, (1, 1), seq, 8, DType::F16);
        let mask_mod = mask_mod.map(|e| e.build_mask_mod().expect("a predicate"));
        a.mask = Mask { band, lengths, mask_mod };
        validate(a).ok().map(|valid| valid.into_inner().mask)
    }

    proptest! {
        #[test]
        fn bands_and_predicates_that_are_bands_have_one_encoding(
            (mask_mod, as_band) in bands(), (_, beside) in bands(), s_q in 1..9_i64, s_kv in 1..9_i64, per in any::<bool>(),
        ) {
            let lengths = if per { Lengths::PerSequence } else { Lengths::Full };
            let written = masked(None, Some(&mask_mod), (s_q, s_kv), lengths);
            prop_assert_eq!(&written, &masked(as_band, None, (s_q, s_kv), lengths));
            prop_assert!(written.is_some_and(|mask| mask.mask_mod.is_none()));
            // Together with another band, the same keys are seen, and the result is canonical.
            let mask = masked(beside, Some(&mask_mod), (s_q, s_kv), lengths);
            if mask.as_ref().is_some_and(|mask| mask.mask_mod.is_some()) {
                prop_assert!(as_band.zip(beside).is_some_and(|(a, b)| a.corner != b.corner));
                return Ok(());
            }
            for (row, col) in (0..s_q).flat_map(|row| (0..s_kv).map(move |col| (row, col))) {
                let keeps = |band: Option<Band>| band.is_none_or(|b| b.keeps(row, col, s_q, s_kv));
                let kept = mask.as_ref().is_some_and(|mask| keeps(mask.band));
                prop_assert_eq!(kept, keeps(as_band) && keeps(beside));
            }
        }
    }
}
