//! The mask: diagonal bands, sequence lengths, and a free predicate.

use serde::{Deserialize, Serialize};

use crate::expr::ScoreExpr;

/// Everything that hides keys from queries. A query sees a key if every part of the mask allows it.
///
/// Masked scores are minus infinity, so their probability is exactly zero. A query that sees no key has an output row
/// of zeros, a maximum and a log-sum-exp of minus infinity and a sum of zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Mask {
    /// Causal and sliding-window masks.
    #[serde(deserialize_with = "crate::codec::present")]
    pub band: Option<Band>,
    /// Sequence lengths given at launch (the padding mask).
    pub lengths: Lengths,
    /// A predicate over indices, lengths, scalars and tensors: true if the key is seen.
    #[serde(deserialize_with = "crate::codec::present")]
    pub mask_mod: Option<ScoreExpr>,
}

/// A diagonal band, in the coordinates of one sequence: `row` is the query's index, `col` the key's.
///
/// With `Δ = 0` for [`Corner::TopLeft`] and `Δ = kv_len - q_len` (lengths of that sequence) for
/// [`Corner::BottomRight`], a key is seen if `col <= row + Δ + right` and `col > row + Δ - left`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// Which corner of the score matrix the diagonal passes through.
    pub corner: Corner,
    /// Number of keys that the window reaches back, including the diagonal: 1 keeps only the diagonal. `None` is
    /// unbounded.
    #[serde(deserialize_with = "crate::codec::present")]
    pub left: Option<i64>,
    /// Keys seen beyond the diagonal: 0 is causal. `None` is unbounded.
    #[serde(deserialize_with = "crate::codec::present")]
    pub right: Option<i64>,
}

/// Corner of the score matrix that a band's diagonal passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Corner {
    /// Query 0 is aligned with key 0.
    TopLeft,
    /// The last query is aligned with the last key of its sequence.
    BottomRight,
}

/// Where the lengths of sequences come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lengths {
    /// Every sequence has the length in the dims.
    #[default]
    Full,
    /// Two i32 tensors with one entry per sequence, which a launch gets. Rows beyond a query length are padding, and
    /// keys beyond a KV length are hidden.
    ///
    /// By definition queries of a sequence without keys have zeros. cuDNN's decode leaves them unwritten (seen on an
    /// H200 with 9.19), so steps of serving refuse such a sequence, and parts of several GPUs do not count there.
    PerSequence,
}

impl Band {
    /// Top-left causal: a query sees keys up to its own index.
    pub const CAUSAL: Band = Band { corner: Corner::TopLeft, left: None, right: Some(0) };

    /// Bottom-right causal: the last query sees every key.
    pub const CAUSAL_BOTTOM_RIGHT: Band = Band { corner: Corner::BottomRight, left: None, right: Some(0) };

    /// Causal with a window of `length` keys, including the query's own (Hugging Face's `sliding_window`).
    #[must_use]
    pub const fn window(corner: Corner, length: i64) -> Band {
        Band { corner, left: Some(length), right: Some(0) }
    }

    /// Whether query `row` sees key `col`, in a sequence with these lengths.
    #[must_use]
    pub const fn keeps(&self, row: i64, col: i64, q_len: i64, kv_len: i64) -> bool {
        let delta = match self.corner {
            Corner::TopLeft => 0,
            Corner::BottomRight => kv_len - q_len,
        };
        let right = match self.right {
            Some(r) => col <= (row + delta).saturating_add(r),
            None => true,
        };
        let left = match self.left {
            Some(l) => col > (row + delta).saturating_sub(l),
            None => true,
        };
        right && left
    }

    /// The canonical band for sequences of at most `s_q` queries and `s_kv` keys; `None` if it hides nothing.
    ///
    /// Bounds that cannot hide anything are dropped, and both corners become one if every sequence is square.
    #[must_use]
    pub fn canonical(self, s_q: i64, s_kv: i64, lengths: Lengths) -> Option<Band> {
        let Band { corner, left, right } = self;
        let (far_right, far_left) = match corner {
            Corner::TopLeft => (s_kv - 1, s_q),
            Corner::BottomRight => (s_q - 1, s_kv),
        };
        let right = right.filter(|&r| r < far_right);
        let left = left.filter(|&l| l < far_left);
        let square = lengths == Lengths::Full && s_q == s_kv;
        let corner = if square { Corner::TopLeft } else { corner };
        (right.is_some() || left.is_some()).then_some(Band { corner, left, right })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attention, DType, validate};
    use proptest::prelude::*;

    fn band() -> impl Strategy<Value = Band> {
        let bound = |low: i64| prop_oneof![Just(None), (low..12_i64).prop_map(Some)];
        (prop::bool::ANY, bound(1), bound(0)).prop_map(|(br, left, right)| Band {
            corner: if br { Corner::BottomRight } else { Corner::TopLeft },
            left,
            right,
        })
    }

    proptest! {
        #[test]
        fn the_canonical_band_keeps_the_same_keys(
            band in band(), s_q in 1_i64..9, s_kv in 1_i64..9, q_len in 0_i64..9, kv_len in 0_i64..9, per in prop::bool::ANY,
        ) {
            let lengths = if per { Lengths::PerSequence } else { Lengths::Full };
            let (q_len, kv_len) = if per { (q_len.min(s_q), kv_len.min(s_kv)) } else { (s_q, s_kv) };
            let canonical = band.canonical(s_q, s_kv, lengths);
            for row in 0..q_len {
                for col in 0..kv_len {
                    let kept = canonical.is_none_or(|c| c.keeps(row, col, q_len, kv_len));
                    prop_assert_eq!(kept, band.keeps(row, col, q_len, kv_len));
                }
            }
            if let Some(c) = canonical {
                prop_assert_eq!(c.canonical(s_q, s_kv, lengths), Some(c));
            }
        }
    }

    #[test]
    fn causal_and_window_keep_the_keys_that_they_name() {
        let plain = || Attention::bshd(1, (2, 2), (6, 6), 16, DType::BF16);
        let seen = |attention: Attention, row| {
            let band = attention.mask.band.expect("it has one");
            (0..6).filter(|&col| band.keeps(row, col, 6, 6)).collect::<Vec<_>>()
        };
        assert_eq!((seen(plain().causal(), 0), seen(plain().causal(), 3)), (vec![0], vec![0, 1, 2, 3]));
        assert_eq!((seen(plain().window(3), 1), seen(plain().causal().window(3), 4)), (vec![0, 1], vec![2, 3, 4]));
        let band = Band { corner: Corner::TopLeft, left: Some(3), right: Some(0) };
        assert_eq!(plain().window(3).validate(), validate(plain().with_band(band)));
        let refusal = plain().window(0).validate().expect_err("no key is seen");
        assert!(refusal.to_string().contains("window"), "{refusal}");
    }

    #[test]
    fn corners_differ_unless_every_sequence_is_square() {
        let (tl, br) = (Band::CAUSAL, Band::CAUSAL_BOTTOM_RIGHT);
        assert_eq!(tl.canonical(8, 8, Lengths::Full), br.canonical(8, 8, Lengths::Full));
        assert_ne!(tl.canonical(4, 8, Lengths::Full), br.canonical(4, 8, Lengths::Full));
        assert_ne!(tl.canonical(8, 8, Lengths::PerSequence), br.canonical(8, 8, Lengths::PerSequence));
    }

    #[test]
    fn very_large_bounds_are_dropped() {
        for corner in [Corner::TopLeft, Corner::BottomRight] {
            let band = Band { corner, left: Some(i64::MAX), right: Some(i64::MAX) };
            assert!(band.keeps(3, 7, 4, 8) && band.keeps(3, 0, 4, 8));
            assert_eq!(band.canonical(4, 8, Lengths::PerSequence), None);
        }
    }

    #[test]
    fn a_decode_step_needs_no_causal_mask() {
        assert_eq!(Band::CAUSAL_BOTTOM_RIGHT.canonical(1, 4096, Lengths::Full), None);
        assert_eq!(Band::window(Corner::BottomRight, 4096).canonical(1, 4096, Lengths::Full), None);
        assert_eq!(
            Band::window(Corner::BottomRight, 4096).canonical(1, 8192, Lengths::PerSequence),
            Some(Band { corner: Corner::BottomRight, left: Some(4096), right: None })
        );
    }
}
