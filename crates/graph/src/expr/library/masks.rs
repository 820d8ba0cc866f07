//! Mask predicates.

use super::super::handle::{Expr, key, key_len, query, query_len, tensor};
use super::super::operand::TensorSpec;
use super::super::position::position;
use crate::DType;

/// A query sees the keys up to its own position: the last query sees every key, the one before it all but the last, and
/// so on ([`Corner::BottomRight`](crate::Corner::BottomRight)). With as many queries as keys, it equals
/// [`top_left_causal`].
#[must_use]
pub fn causal() -> Expr {
    key().le(position())
}

/// Causal, and a query sees only the last `length` keys, including its own.
#[must_use]
pub fn sliding_window(length: i32) -> Expr {
    causal() & (position() - key()).lt(length)
}

/// Like [`causal`], with rows instead of positions: the first query is aligned with the first key
/// ([`Corner::TopLeft`](crate::Corner::TopLeft)), whatever the number of keys.
#[must_use]
pub fn top_left_causal() -> Expr {
    key().le(query())
}

/// Like [`sliding_window`], with rows instead of positions.
#[must_use]
pub fn top_left_window(length: i32) -> Expr {
    top_left_causal() & (query() - key()).lt(length)
}

/// Queries and keys within the actual lengths of their sequences, by rows of the launch, not by positions.
#[must_use]
pub fn padding() -> Expr {
    query().lt(query_len()) & key().lt(key_len())
}

/// Every query sees the first keys of its sequence, the prefix, and after it the keys up to its own position.
///
/// The i32 device tensor `name`, with dims (batch, 1, 1, 1), holds the lengths of the prefixes. If a prompt is computed
/// in pieces, the first piece must contain the whole prefix, because later keys do not exist yet.
#[must_use]
pub fn prefix_lm(name: &str, batch: i64) -> Expr {
    let prefix = tensor(name, TensorSpec::new(DType::I32, [batch, 1, 1, 1]));
    causal() | key().lt(prefix)
}

/// A query sees the keys of its own document.
///
/// Two i32 device tensors hold the documents: `query_ids` with dims (batch, 1, queries, 1), for the rows of this
/// launch, and `key_ids` with dims (batch, 1, 1, keys).
#[must_use]
pub fn document_mask(query_ids: &str, key_ids: &str, batch: i64, queries: i64, keys: i64) -> Expr {
    let of_query = tensor(query_ids, TensorSpec::new(DType::I32, [batch, 1, queries, 1]));
    let of_key = tensor(key_ids, TensorSpec::new(DType::I32, [batch, 1, 1, keys]));
    of_query.eq(of_key)
}

/// Causal, and a query sees `length` keys: every `dilation`-th one, counted back from its own.
///
/// A dilation of 1 is a plain sliding window. `build` refuses 0, and a negative one has no meaning.
#[must_use]
pub fn dilated_window(length: i32, dilation: i32) -> Expr {
    let back = position() - key();
    causal() & back.lt(length.saturating_mul(dilation)) & (back % dilation).eq(0)
}
