//! Predicates: which keys a query sees.

use super::super::handle::{Expr, key, key_len, query, query_len, tensor};
use super::super::operand::TensorSpec;
use super::super::position::position;
use crate::DType;

/// A query sees the keys up to its own position: the last query sees every key, the one before it all but the last, and so on
/// ([`Corner::BottomRight`](crate::Corner::BottomRight)). With as many queries as keys it is the same as [`top_left_causal`].
#[must_use]
pub fn causal() -> Expr {
    key().le(position())
}

/// Causal, and a query sees only the last `length` keys, its own included.
#[must_use]
pub fn sliding_window(length: i32) -> Expr {
    causal() & (position() - key()).lt(length)
}

/// As [`causal`], by rows in place of positions: the first query is aligned with the first key
/// ([`Corner::TopLeft`](crate::Corner::TopLeft)), however many keys there are.
#[must_use]
pub fn top_left_causal() -> Expr {
    key().le(query())
}

/// As [`sliding_window`], by rows in place of positions.
#[must_use]
pub fn top_left_window(length: i32) -> Expr {
    top_left_causal() & (query() - key()).lt(length)
}

/// Queries and keys within the actual lengths of their sequences: rows of the launch, not positions.
#[must_use]
pub fn padding() -> Expr {
    query().lt(query_len()) & key().lt(key_len())
}

/// Every query sees the first keys of its sequence, the prefix, and beyond it what causality lets it see.
///
/// The lengths of the prefixes are the device tensor `name` of i32 with dims (batch, 1, 1, 1). A prompt that is computed in pieces needs
/// its whole prefix in the first: later keys are not there yet.
#[must_use]
pub fn prefix_lm(name: &str, batch: i64) -> Expr {
    let prefix = tensor(name, TensorSpec::new(DType::I32, [batch, 1, 1, 1]));
    causal() | key().lt(prefix)
}

/// A query sees the keys of its own document.
///
/// The documents are given by two device tensors of i32: `query_ids` with dims (batch, 1, queries, 1), for the rows of this launch, and
/// `key_ids` with dims (batch, 1, 1, keys).
#[must_use]
pub fn document_mask(query_ids: &str, key_ids: &str, batch: i64, queries: i64, keys: i64) -> Expr {
    let of_query = tensor(query_ids, TensorSpec::new(DType::I32, [batch, 1, queries, 1]));
    let of_key = tensor(key_ids, TensorSpec::new(DType::I32, [batch, 1, 1, keys]));
    of_query.eq(of_key)
}

/// Causal, and a query sees `length` keys, every `dilation`-th one, counted back from its own.
///
/// A dilation below 1 is refused by `build` or means nothing; 1 is a plain sliding window.
#[must_use]
pub fn dilated_window(length: i32, dilation: i32) -> Expr {
    let back = position() - key();
    causal() & back.lt(length.saturating_mul(dilation)) & (back % dilation).eq(0)
}
