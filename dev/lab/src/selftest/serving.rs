//! Random attentions of serving steps for the self-test, from a seed: one query per sequence, varlen queries of mixed
//! batches and prompt chunks, over pages of every size and layout; also varlen operands without pages, forward and
//! backward.
//!
//! Several consecutive cases have one attention, and therefore one plan. They differ in the parts that an engine
//! changes between steps (`batch.rs`).

use qkvault_graph::expr::{library, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, DType, Storage, Tensor};

use super::cases::Draw;
use super::layouts;

/// Cases that share a plan.
const STEPS: u64 = 4;

/// Elements of a pool: enough for every edge length, and few enough for the oracle.
const POOL: i64 = 3 << 19;

/// The kind of a step's batch.
#[derive(Clone, Copy)]
enum BatchKind {
    /// One query per sequence, dense, over pages.
    Decode,
    /// Prompts, chunks of prompts and decodes, varlen, over pages.
    Mixed,
    /// A few queries per sequence, dense, over pages.
    Chunk,
    /// Varlen queries over dense keys and values.
    VarlenQueries,
    /// Everything varlen.
    Varlen,
}

/// The attention of one case.
pub(crate) fn attention(seed: u64, case: u64) -> Attention {
    let mut draw = Draw::new(seed ^ 0x5e72_7669_6e67, case / STEPS);
    let dtype = draw.one_of(&[DType::BF16, DType::BF16, DType::F16]);
    let kinds = [
        BatchKind::Decode,
        BatchKind::Decode,
        BatchKind::Decode,
        BatchKind::Mixed,
        BatchKind::Mixed,
        BatchKind::Mixed,
        BatchKind::Mixed,
        BatchKind::Chunk,
    ];
    let more = [BatchKind::VarlenQueries, BatchKind::Varlen, BatchKind::Varlen];
    let kind = if draw.chance(75) { draw.one_of(&kinds) } else { draw.one_of(&more) };
    let heads = draw.one_of(&[(8, 2), (8, 2), (4, 4), (8, 1), (6, 3), (16, 2), (32, 8)]);
    let head_dim = match kind {
        BatchKind::Decode if draw.chance(12) => (576, 512),
        // Small ones and ones that are no multiple of 16: varlen backwards of cuDNN had a wrong dQ there.
        BatchKind::Varlen if draw.chance(30) => {
            draw.one_of(&[(8, 8), (24, 24), (32, 32), (32, 32), (48, 48), (64, 64), (64, 64), (96, 96), (120, 128)])
        }
        _ => draw.one_of(&[(128, 128), (128, 128), (128, 128), (64, 64), (96, 96), (80, 80), (256, 256), (192, 128)]),
    };
    let heads = if head_dim.0 == 576 { (16, 1) } else { heads };
    let batch = match kind {
        BatchKind::Decode => draw.one_of(&[1, 2, 3, 8, 33, 64]),
        _ => draw.one_of(&[1, 2, 3, 5, 8, 17]),
    };
    let mut a = operands(&mut draw, kind, dtype, batch, heads, head_dim);
    mask(&mut draw, kind, &mut a);
    a.outputs.stats = draw.chance(50);
    if matches!(kind, BatchKind::Varlen) && draw.chance(45) {
        a.outputs.stats = true;
        let deterministic = draw.chance(20);
        let mut options = layouts::gradients(&mut draw, &a, BackwardOptions { deterministic, ..Default::default() });
        // cuDNN needs the same token stride for dQ and Q unless the backward is deterministic, so most cases use the
        // layout of Q.
        if draw.chance(75) && options.d_q.is_some_and(|t| t.strides[2] != a.q.strides[2]) {
            options.d_q = Some(a.q);
        }
        a = a.backward(options);
    }
    a
}

fn operands(
    draw: &mut Draw,
    kind: BatchKind,
    dtype: DType,
    b: i64,
    (h, h_kv): (i64, i64),
    (d_qk, d_v): (i64, i64),
) -> Attention {
    let longest = [130, 200, 256, 520, 1024, 1500];
    let s_kv = draw.one_of(&longest).min(POOL / (b * h_kv * d_qk)).max(130);
    let s_q = match kind {
        BatchKind::Decode => 1,
        BatchKind::Chunk => draw.one_of(&[2, 4, 8, 64, 128]),
        BatchKind::Mixed | BatchKind::VarlenQueries | BatchKind::Varlen => {
            draw.one_of(&[2, 16, 65, 130, 300, 512]).min(s_kv).min((POOL / (b * h * d_qk)).max(16))
        }
    };
    // Tokens for every sequence at its longest or half of that, and possibly some more.
    let room = |draw: &mut Draw, s: i64| (b * s / draw.one_of(&[1, 1, 2]) + draw.one_of(&[0, 0, 3, 64])).max(b);
    // Several queries over pages need whole tiles of keys. Most cases have them; the others are refused.
    let s_kv = if s_q > 1 && draw.chance(95) { (s_kv + 127) / 128 * 128 } else { s_kv };
    let tokens = room(draw, s_q);
    let dense = |h, s, d| Tensor::bshd(b, h, s, d, dtype);
    let rows = |d| match kind {
        BatchKind::Decode | BatchKind::Chunk => dense(h, s_q, d),
        BatchKind::Mixed | BatchKind::VarlenQueries | BatchKind::Varlen => Tensor::thd(b, h, s_q, d, tokens, dtype),
    };
    let (q, mut o) = (rows(d_qk), rows(d_v));
    if draw.chance(50) {
        o = if o.storage == Storage::Dense { layouts::dense(draw, o.dims, dtype) } else { layouts::varlen(draw, o) };
    }
    match kind {
        BatchKind::VarlenQueries => Attention::forward(q, dense(h_kv, s_kv, d_qk), dense(h_kv, s_kv, d_v), o),
        BatchKind::Varlen => {
            let (s, tokens) = if draw.chance(60) { (s_q, tokens) } else { (s_kv, room(draw, s_kv)) };
            let varlen = |d| Tensor::thd(b, h_kv, s, d, tokens, dtype);
            if h == h_kv && d_qk == d_v && s == s_q && draw.chance(50) {
                // Strides of parts of one buffer (tokens, 3, heads, head dim), but each part has its own buffer.
                let part = |t: Tensor| Tensor { strides: [s * 3 * h * d_qk, d_qk, 3 * h * d_qk, 1], ..t };
                return Attention::forward(part(q), part(varlen(d_qk)), part(varlen(d_v)), o).with_lengths();
            }
            let (q, k, v) = (q, varlen(d_qk), varlen(d_v));
            if draw.chance(50) {
                let [q, k, v] = [q, k, v].map(|t| layouts::varlen(draw, t));
                return Attention::forward(q, k, v, o).with_lengths();
            }
            Attention::forward(q, k, v, o)
        }
        BatchKind::Decode | BatchKind::Mixed | BatchKind::Chunk => {
            let page = draw.one_of(&[16, 16, 32, 64, 64, 128, 256, 512]);
            let paged = if draw.chance(50) { Tensor::paged_hnd } else { Tensor::paged_nhd };
            let pages = b * (s_kv + page - 1).div_euclid(page) + draw.one_of(&[1, 2, 7]);
            let roomy = draw.chance(25);
            let mut pool = |d| {
                let plain = paged(b, h_kv, s_kv, d, pages, page, dtype);
                if roomy { layouts::pool(draw, plain) } else { plain }
            };
            let k = pool(d_qk);
            let v = if d_qk == 576 { Tensor { dims: [b, 1, s_kv, d_v], ..k } } else { pool(d_v) };
            Attention::forward(q, k, v, o)
        }
    }
    .with_lengths()
}

fn mask(draw: &mut Draw, kind: BatchKind, a: &mut Attention) {
    a.mask.lengths = qkvault_graph::Lengths::PerSequence;
    let window = Band::window(Corner::BottomRight, draw.one_of(&[1, 16, 64, 100, 128, 500]));
    let bottom_right = Some(Band::CAUSAL_BOTTOM_RIGHT);
    a.mask.band = match kind {
        BatchKind::Decode => draw.one_of(&[None, None, bottom_right, Some(window)]),
        BatchKind::Varlen => draw.one_of(&[bottom_right, Some(Band::CAUSAL), Some(Band::CAUSAL), None, Some(window)]),
        BatchKind::Mixed | BatchKind::Chunk | BatchKind::VarlenQueries => {
            draw.one_of(&[bottom_right, bottom_right, bottom_right, None, Some(window)])
        }
    };
    a.sink = draw.chance(15);
    let expression = match draw.within(0, 9) {
        0 | 1 => Some(library::softcap(score(), scalar("cap"))),
        2 => Some(library::alibi(score(), a.q.heads())),
        3 => Some(library::softcap(library::alibi(score(), a.q.heads()), scalar("cap"))),
        _ => None,
    };
    a.score_mod = expression.and_then(|e| e.build_score_mod().ok());
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::validate;

    #[test]
    fn cases_are_valid_and_of_every_kind_and_steps_share_an_attention() {
        let all: Vec<Attention> = (0..800).map(|case| attention(1, case)).collect();
        for (case, a) in all.iter().enumerate() {
            validate(a.clone()).unwrap_or_else(|e| panic!("{case}: {e}"));
            assert_eq!(a, &all[case / 4 * 4]);
        }
        let paged = |a: &&Attention| a.k.is_paged();
        let varlen = |a: &&Attention| matches!(a.q.storage, Storage::Varlen { .. });
        assert!(all.iter().filter(paged).filter(varlen).count() > 60);
        assert!(all.iter().filter(paged).filter(|a| a.seq().0 == 1).count() > 60);
        assert!(all.iter().filter(|a| a.is_backward()).count() > 8);
        assert!(all.iter().any(|a| a.batch() == 1) && all.iter().any(|a| a.head_dims().0 == 576));
    }
}
