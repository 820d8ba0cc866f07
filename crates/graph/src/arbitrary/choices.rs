//! The choices of recipes: bands, storage, and parts that only some cases have.

use proptest::prelude::*;

use crate::{Band, Corner};

/// How the rows of the operands are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    Dense,
    /// Q and O varlen, K and V too or dense.
    Varlen {
        kv: bool,
    },
    /// K and V paged, Q and O dense or varlen.
    Paged {
        varlen_q: bool,
    },
}

pub(super) fn band() -> impl Strategy<Value = Band> {
    let corner = prop::sample::select(vec![Corner::TopLeft, Corner::BottomRight]);
    let bounds = prop_oneof![
        3 => Just((None, Some(0))),
        2 => (1..20_i64).prop_map(|l| (Some(l), Some(0))),
        1 => (1..20_i64).prop_map(|l| (Some(l), None)),
        1 => (0..9_i64).prop_map(|r| (None, Some(r))),
        1 => (1..5_000_i64, 0..5_000_i64).prop_map(|(l, r)| (Some(l), Some(r))),
    ];
    (corner, bounds).prop_map(|(corner, (left, right))| Band { corner, left, right })
}

/// Some cases have it, if the space allows it.
pub(super) fn sometimes<S: Strategy + 'static>(
    on: bool,
    probability: f64,
    inner: impl Fn() -> S,
) -> BoxedStrategy<Option<S::Value>>
where
    S::Value: Clone + 'static,
{
    if on { prop::option::weighted(probability, inner()).boxed() } else { Just(None).boxed() }
}

pub(super) fn flag(on: bool, probability: f64) -> BoxedStrategy<bool> {
    if on { prop::bool::weighted(probability).boxed() } else { Just(false).boxed() }
}

pub(super) fn rows(on: bool) -> BoxedStrategy<Rows> {
    if !on {
        return Just(Rows::Dense).boxed();
    }
    prop_oneof![
        3 => Just(Rows::Dense),
        1 => any::<bool>().prop_map(|kv| Rows::Varlen { kv }),
        1 => any::<bool>().prop_map(|varlen_q| Rows::Paged { varlen_q }),
    ]
    .boxed()
}
