//! Predicates: which keys a query sees.

use super::super::handle::{Expr, key, key_len, query, query_len, tensor};
use super::super::operand::TensorSpec;
use crate::DType;

/// A query sees the keys up to its own position.
#[must_use]
pub fn causal() -> Expr {
    key().le(query())
}

/// The last query sees every key, the one before it all but the last, and so on: causal, aligned at the ends of the sequences.
#[must_use]
pub fn bottom_right_causal() -> Expr {
    key().le(query() + (key_len() - query_len()))
}

/// Causal, and a query sees only the last `length` keys, its own included.
#[must_use]
pub fn sliding_window(length: i32) -> Expr {
    causal() & (query() - key()).lt(length)
}

/// As [`sliding_window`], aligned at the ends of the sequences.
#[must_use]
pub fn bottom_right_window(length: i32) -> Expr {
    let own = query() + (key_len() - query_len());
    key().le(&own) & (own - key()).lt(length)
}

/// Queries and keys within the actual lengths of their sequences.
#[must_use]
pub fn padding() -> Expr {
    query().lt(query_len()) & key().lt(key_len())
}

/// Every query sees the first keys of its sequence, the prefix, and beyond it what causality lets it see.
///
/// The lengths of the prefixes are the device tensor `name` of i32 with dims (batch, 1, 1, 1).
#[must_use]
pub fn prefix_lm(name: &str, batch: u64) -> Expr {
    let prefix = tensor(name, TensorSpec::new(DType::I32, [batch, 1, 1, 1]));
    causal() | key().lt(prefix)
}

/// A query sees the keys of its own document.
///
/// The document of each position is given by two device tensors of i32: `query_ids` with dims (batch, 1, queries, 1) and `key_ids` with
/// dims (batch, 1, 1, keys).
#[must_use]
pub fn document_mask(query_ids: &str, key_ids: &str, batch: u64, queries: u64, keys: u64) -> Expr {
    let of_query = tensor(query_ids, TensorSpec::new(DType::I32, [batch, 1, queries, 1]));
    let of_key = tensor(key_ids, TensorSpec::new(DType::I32, [batch, 1, 1, keys]));
    of_query.eq(of_key)
}

/// Causal, and a query sees `length` keys, every `dilation`-th one, counted back from its own.
///
/// A dilation below 1 is refused by `build` or means nothing; 1 is a plain sliding window.
#[must_use]
pub fn dilated_window(length: i32, dilation: i32) -> Expr {
    let back = query() - key();
    causal() & back.lt(length.saturating_mul(dilation)) & (back % dilation).eq(0)
}
