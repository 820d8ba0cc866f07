//! The toy model: one attention layer. Queries, keys and values are fixed random functions of a token and its position,
//! and the output determines the next token.

use half::bf16;
use qkvault::graph::DType;
use qkvault::serving::{PageLayout, ServeLayer};

pub(crate) const QUERY_HEADS: usize = 8;
pub(crate) const KEY_HEADS: usize = 2;
pub(crate) const HEAD_DIM: usize = 64;
/// Size of the vocabulary.
pub(crate) const WORDS: u64 = 50;
/// Tokens per page.
pub(crate) const PAGE: usize = 16;
/// Pages of the pool.
pub(crate) const PAGES: usize = 72;

/// The operand that a token's row belongs to.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Query,
    Key,
    Value,
}

pub(crate) struct Model {
    seed: u64,
}

/// splitmix64 as a hash function.
pub(crate) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Model {
    pub(crate) fn new(seed: u64) -> Model {
        Model { seed }
    }

    /// The layer for which plans are made: causal, with pages of 16 as (token, head, head dim).
    pub(crate) fn layer(&self) -> ServeLayer {
        let (heads, head_dim) = ((QUERY_HEADS as i64, KEY_HEADS as i64), (HEAD_DIM as i64, HEAD_DIM as i64));
        let mut layer = ServeLayer::new(heads, head_dim, DType::BF16, PAGES as i64, PAGE as i64);
        layer.layout = PageLayout::Nhd;
        layer
    }

    /// The row of a token: its heads, one after the other.
    pub(crate) fn row(&self, part: Part, token: u64, position: usize) -> Vec<bf16> {
        let (heads, which) = match part {
            Part::Query => (QUERY_HEADS, 1_u64),
            Part::Key => (KEY_HEADS, 2),
            Part::Value => (KEY_HEADS, 3),
        };
        let of = mix(mix(self.seed ^ which << 40) ^ token << 20 ^ position as u64);
        let number = |i: usize| (mix(of ^ (i as u64) << 8) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (0..heads * HEAD_DIM).map(|i| bf16::from_f32(2.0 * number(i))).collect()
    }

    /// The next token after a row of outputs: the index of the largest value, modulo the vocabulary.
    pub(crate) fn next(&self, outputs: &[f32]) -> u64 {
        let largest = outputs.iter().enumerate().max_by(|x, y| x.1.total_cmp(y.1));
        largest.map_or(0, |(at, _)| at as u64 % WORDS)
    }
}
