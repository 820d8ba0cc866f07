//! Random attentions and shardings, from a seed.

use qkvault_base::random::Rng;
use qkvault_graph::expr::parse_expr;
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, DType, Dropout, DropoutSource, Lengths, Order as Axes, Outputs,
    PaddedRows, Storage, Tensor, Valid, validate,
};
use qkvault_reference::{Family, Inputs, LengthChoice, RandomChoice, ReferenceError};

use crate::{Scheme, Sharding, TokenOrder};

/// The sizes of random cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaseSpace {
    /// Most ranks.
    pub ranks: u32,
    /// Exactly so many ranks, where it is not 0.
    pub exactly: u32,
    /// Most tokens of a sequence.
    pub tokens: i64,
    /// What the tokens of a chunk are a multiple of.
    pub step: i64,
    /// Head dims are one or two times this.
    pub head_dim: i64,
    /// Rows of a page.
    pub pages: [i64; 3],
}

impl CaseSpace {
    /// Small ones, for the oracle alone.
    pub const ORACLE: CaseSpace =
        CaseSpace { ranks: 8, exactly: 0, tokens: 48, step: 1, head_dim: 8, pages: [1, 2, 4] };

    /// Those of a GPU with so many ranks.
    #[must_use]
    pub const fn gpu(ranks: u32) -> CaseSpace {
        CaseSpace { ranks, exactly: ranks, tokens: 768, step: 16, head_dim: 64, pages: [16, 32, 64] }
    }
}

/// A case: the attention, how it is shared, and the seed of its operands.
#[derive(Debug)]
pub struct ShardedCase {
    /// The attention of all ranks together.
    pub attention: Valid,
    /// How it is shared.
    pub sharding: Sharding,
    /// The seed of its operands.
    pub seed: u64,
}

impl ShardedCase {
    /// Random operands of the whole attention, with random lengths: packed documents are as long as their keys, but for
    /// a ring without a band.
    ///
    /// # Errors
    ///
    /// What the oracle says against it.
    pub fn inputs(&self, family: Family) -> Result<Inputs, ReferenceError> {
        let ShardedCase { attention, sharding, seed } = self;
        let varlen = attention.q.storage != Storage::Dense;
        let mut choice = RandomChoice { family, ..RandomChoice::default() };
        if attention.mask.lengths == Lengths::PerSequence && varlen {
            let (most, room) = (attention.q.dims[2] as usize, attention.q.extents()[2] as usize);
            let mut draw = Rng::new(*seed);
            let mut lens = || -> Vec<usize> {
                let mut left = room;
                let lens = (0..attention.batch()).map(|_| {
                    let len = draw.within(0, most.min(left));
                    left -= len;
                    len
                });
                lens.collect()
            };
            let q = lens();
            let other = sharding.scheme == Scheme::Ring && attention.mask.band.is_none();
            choice.lengths = LengthChoice::Exact { kv: if other { lens() } else { q.clone() }, q };
        } else if seed % 2 == 0 {
            choice.lengths = LengthChoice::Any;
        }
        Inputs::random_with(attention, *seed, &choice)
    }
}

fn pick<T: Copy>(rng: &mut Rng, list: &[T]) -> T {
    list[rng.within(0, list.len() - 1)]
}

fn chance(rng: &mut Rng, one_in: usize) -> bool {
    rng.within(1, one_in) == 1
}

/// The case of a seed, of the whole space that schedules take.
///
/// # Panics
///
/// Never: every description that is drawn is valid.
#[must_use]
pub fn case(space: &CaseSpace, seed: u64) -> ShardedCase {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x51);
    let rng = &mut rng;
    let drawn = rng.within(1, space.ranks as usize) as u32;
    let ranks = if space.exactly == 0 { drawn } else { space.exactly };
    match rng.within(0, 9) {
        0..=3 => shared(space, rng, ranks, 0, seed),
        4..=5 => shared(space, rng, ranks, 1, seed),
        6..=7 => shared(space, rng, ranks, 2, seed),
        _ => cached(space, rng, ranks, seed),
    }
}

fn band(rng: &mut Rng, s: i64) -> Option<Band> {
    let corner = if chance(rng, 2) { Corner::BottomRight } else { Corner::TopLeft };
    let reach = s.max(2) as usize;
    let (left, right) = match rng.within(0, 5) {
        0 => return None,
        1 | 2 => (None, Some(0)),
        3 => (Some(rng.within(1, reach) as i64), Some(0)),
        4 => (Some(rng.within(1, reach) as i64), Some(rng.within(0, reach / 2) as i64)),
        _ => (None, Some(rng.within(0, reach / 2) as i64)),
    };
    Some(Band { corner, left, right })
}

/// A score expression that reads about everything, for these extents.
fn score(rng: &mut Rng, [b, h, q, k]: [i64; 4], tensors: bool) -> Option<&'static str> {
    let text = match rng.within(0, if tensors { 10 } else { 6 }) {
        0 | 1 => return None,
        2 => "scalar $cap: float; tanh(score / $cap) * $cap".to_owned(),
        3 => format!("tensor @slopes: f32[1, {h}, 1, 1] alibi {h}; score + @slopes * float(key - query)"),
        4 => "scalar $m: float; score - $m * 0.01 * float(key_len - key) + 0.05 * float(query % 3)".to_owned(),
        5 => "score + 0.1 * float(head) * float(query - key) + 0.2 * float(batch)".to_owned(),
        6 => "scalar $n: int; select(key > query - $n, score, score * 0.5)".to_owned(),
        7 => format!("tensor @bias: bf16[{b}, {h}, {q}, {k}]; score + @bias"),
        8 => format!("tensor @rows: f32[1, {h}, {q}, 1]; tensor @keys: f32[{b}, 1, 1, {k}]; score * @rows + @keys"),
        9 => format!("tensor @bias: bf16[1, 1, {q}, {k}]; score + @bias * float(key - query)"),
        _ => format!("tensor @m: i32[{b}, 1, {q}, 1]; score * 0.5 + float(@m)"),
    };
    Some(Box::leak(text.into_boxed_str()))
}

fn predicate(rng: &mut Rng, [b, _, q, k]: [i64; 4], tensors: bool) -> Option<String> {
    match rng.within(0, if tensors { 7 } else { 6 }) {
        0 => Some("(query + key) % 3 < 2".to_owned()),
        1 => Some("scalar $prefix: int; key < $prefix | key <= query".to_owned()),
        2 => Some("key % 4 != 1 | head == 0".to_owned()),
        7 => Some(format!("tensor @a: i32[{b}, 1, {q}, 1]; tensor @b: i32[{b}, 1, 1, {k}]; @a == @b")),
        _ => None,
    }
}

/// A case of gather, heads or ring.
fn shared(space: &CaseSpace, rng: &mut Rng, ranks: u32, scheme: usize, seed: u64) -> ShardedCase {
    let (kv_heads, group) = (pick(rng, &[1_i64, 2, 4]), pick(rng, &[1_i64, 2, 3]));
    let (mut h, mut h_k) = (kv_heads * group, kv_heads);
    let mut ranks = ranks;
    let scheme = match scheme {
        0 => Scheme::Gather { groups: pick(rng, &[1, 1, kv_heads as u32]) },
        1 => {
            if chance(rng, 2) {
                (h, h_k) = (i64::from(ranks) * group * 2, i64::from(ranks) * pick(rng, &[1, 2]));
            } else {
                ranks = if space.exactly == 0 { pick(rng, &[1, 2, 4, 8]) } else { ranks };
                (h, h_k) = (8, pick(rng, &[1, 2, 4, 8]));
            }
            Scheme::Heads
        }
        _ => Scheme::Ring,
    };
    let mut sharding = Sharding::new(ranks, scheme);
    if chance(rng, 4) {
        let other = if sharding.order == TokenOrder::ZigZag { TokenOrder::Contiguous } else { TokenOrder::ZigZag };
        sharding = sharding.with_order(other);
    }
    let chunks = sharding.chunks();
    let (most, step) = ((space.tokens / space.step / chunks).max(1) as usize, space.step * chunks);
    let s_q = step * rng.within(1, most) as i64;
    let s_kv = if chance(rng, 3) { step * rng.within(1, most) as i64 } else { s_q };
    let (d, d_v) = (space.head_dim * rng.within(1, 2) as i64, space.head_dim * rng.within(1, 2) as i64);
    let batch = rng.within(1, 2) as i64;
    let packed = chance(rng, 4);
    let axes = pick(rng, &Axes::ALL);
    let dtype = DType::BF16;
    let mut a = if packed {
        let documents = rng.within(1, 5.min(s_q as usize)) as i64;
        let longest = (s_q / 2).max(1);
        let of = |h, d, tokens| Tensor::thd(documents, h, longest, d, tokens, dtype);
        Attention::forward(of(h, d, s_q), of(h_k, d, s_q), of(h_k, d_v, s_q), of(h, d_v, s_q)).with_lengths()
    } else {
        let of = |h, s, d| Tensor::dense(axes, [batch, h, s, d], dtype);
        Attention::forward(of(h, s_q, d), of(h_k, s_kv, d), of(h_k, s_kv, d_v), of(h, s_q, d_v))
    };
    if !packed && chance(rng, 4) {
        a = a.with_lengths();
        a.padded_rows = if chance(rng, 2) { PaddedRows::Zero } else { PaddedRows::Undefined };
    }
    let scores = [a.batch(), h, a.seq().0, a.seq().1];
    a.mask.band = band(rng, s_q);
    let lengths = a.mask.lengths == Lengths::PerSequence;
    if lengths && scheme != Scheme::Heads {
        a.mask.band = a.mask.band.filter(|b| match scheme {
            Scheme::Ring => packed || b.right == Some(0) && b.corner == Corner::TopLeft,
            _ => b.right == Some(0),
        });
    }
    let tensors = !packed || scheme == Scheme::Heads;
    a.score_mod = score(rng, scores, tensors).map(|text| parse_expr(text).expect("parses"));
    a.mask.mask_mod = predicate(rng, scores, tensors).map(|text| parse_expr(&text).expect("parses"));
    // A sink in a row that no launch computes is refused, which has a test of its own.
    let diagonal = s_q == s_kv || a.mask.band.is_none();
    a.sink = diagonal && chance(rng, 3);
    if tensors && chance(rng, 5) {
        let source = if chance(rng, 2) { DropoutSource::Mask } else { DropoutSource::Places };
        a.dropout = Some(Dropout::new(source, 0.25));
    }
    let backward = chance(rng, 2);
    a.outputs = Outputs::new(backward || chance(rng, 2), false, false);
    if !backward && scheme != Scheme::Ring && chance(rng, 4) {
        a.outputs = Outputs::new(true, true, true);
    }
    let forward = validate(a).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let attention = if backward {
        let options = BackwardOptions { d_sink: forward.sink, deterministic: chance(rng, 2), ..Default::default() };
        validate(forward.backward(options)).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
    } else {
        forward
    };
    ShardedCase { attention, sharding, seed }
}

/// A case of decode over a cache.
fn cached(space: &CaseSpace, rng: &mut Rng, ranks: u32, seed: u64) -> ShardedCase {
    let (h_k, group, batch) = (pick(rng, &[1_i64, 2]), pick(rng, &[1_i64, 2, 4]), rng.within(1, 3) as i64);
    let (s_q, s_kv) = (pick(rng, &[1_i64, 1, 3]), rng.within(1, space.tokens as usize) as i64);
    let (d, page_size) = (space.head_dim, pick(rng, &space.pages));
    let run = page_size as u32 * rng.within(1, 2) as u32;
    let q = Tensor::bshd(batch, h_k * group, s_q, d, DType::BF16);
    let pages = batch * ((s_kv + page_size - 1) / page_size) + 1;
    let kv = if chance(rng, 2) {
        Tensor::paged_nhd(batch, h_k, s_kv, d, pages, page_size, DType::BF16)
    } else {
        Tensor::bhsd(batch, h_k, s_kv, d, DType::BF16)
    };
    let mut a = Attention::forward(q, kv, kv, q).with_lengths();
    if kv.storage == Storage::Dense && chance(rng, 3) {
        a = Attention::forward(q, kv, kv, q);
    }
    a.mask.band = band(rng, s_kv);
    let scores = [batch, h_k * group, s_q, s_kv];
    a.score_mod = score(rng, scores, true).map(|text| parse_expr(text).expect("parses"));
    a.mask.mask_mod = predicate(rng, scores, true).map(|text| parse_expr(&text).expect("parses"));
    a.sink = chance(rng, 3);
    a.outputs = Outputs::new(chance(rng, 2), false, false);
    let attention = validate(a).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    ShardedCase { attention, sharding: Sharding::new(ranks, Scheme::Decode { run }), seed }
}
