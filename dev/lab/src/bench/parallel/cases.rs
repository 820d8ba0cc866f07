//! What `bench parallel` measures: attentions of one sequence over several ranks, by tokens of a rank.

use qkvault_graph::{Attention, DType, Refusal, Tensor, Valid};
use qkvault_parallel::{Scheme, Sharding};

/// A row: an attention of all ranks, and how they share it.
pub(super) struct ParallelCase {
    pub(super) name: String,
    pub(super) attention: Valid,
    pub(super) sharding: Sharding,
    /// Whether its backward is measured too.
    pub(super) trains: bool,
}

const HEADS: (i64, i64) = (32, 8);
const HEAD_DIM: i64 = 128;

/// The rows, for so many ranks.
pub(super) fn list(ranks: u32) -> Result<Vec<ParallelCase>, Refusal> {
    let mut list = Vec::new();
    let n = i64::from(ranks);
    for tokens in [4096_i64, 8192, 16_384, 32_768, 65_536, 131_072] {
        let all = tokens * n;
        let causal = Attention::bshd(1, HEADS, (all, all), HEAD_DIM, DType::BF16).causal().with_stats().validate()?;
        let schemes = [
            Scheme::Gather { groups: 4 },
            Scheme::Ring,
            Scheme::Gather { groups: 1 },
            Scheme::Gather { groups: 2 },
            Scheme::Heads,
        ];
        // Where a step takes seconds, the schemes that are asked about.
        for scheme in schemes.into_iter().take(if tokens > 32_768 { 2 } else { 5 }) {
            let sharding = Sharding::new(ranks, scheme);
            let name = format!("causal, {tokens} tokens a rank, {sharding}");
            list.push(ParallelCase { name, attention: causal.clone(), sharding, trains: true });
        }
        if tokens == 65_536 {
            let window = Attention::bshd(1, HEADS, (all, all), HEAD_DIM, DType::BF16).window(4096).with_stats();
            let sharding = Sharding::new(ranks, Scheme::Gather { groups: 1 });
            let name = format!("window of 4096, {tokens} tokens a rank, {sharding}");
            list.push(ParallelCase { name, attention: window.validate()?, sharding, trains: true });
        }
    }
    for (batch, keys) in [(64, 8192), (8, 32_768), (1, 32_768)] {
        let q = Tensor::bshd(batch, HEADS.0, 1, HEAD_DIM, DType::BF16);
        let kv = Tensor::bhsd(batch, HEADS.1, keys, HEAD_DIM, DType::BF16);
        let sharding = Sharding::new(ranks, Scheme::Decode { run: 64 });
        let name = format!("decode of {batch} x {keys}, {sharding}");
        let attention = Attention::forward(q, kv, kv, q).with_stats().validate()?;
        list.push(ParallelCase { name, attention, sharding, trains: false });
    }
    Ok(list)
}
