//! A layer for serving: its whole attention except for the sizes that change from step to step.

use serde::{Deserialize, Serialize};

use super::buckets::{Bucket, StepKind};
use crate::codes;
use qkvault_graph::{Attention, Band, Corner, DType, Fp8, MAX_DRAFTS, Refusal, ScoreExpr, Tensor, Valid, validate};

/// Order of rows and heads within a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageLayout {
    /// (page, row, head, head dim).
    #[default]
    Nhd,
    /// (page, head, row, head dim).
    Hnd,
}

/// A layer to serve over paged keys and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ServeLayer {
    /// Query heads.
    pub heads: i64,
    /// Key and value heads.
    pub kv_heads: i64,
    /// Head dim of Q and K.
    pub d_qk: i64,
    /// Head dim of V and O.
    pub d_v: i64,
    /// Element type.
    pub dtype: DType,
    /// Pages of the pool. A plan declares the next power of two, so pools of similar size share plans.
    pub pages: i64,
    /// Rows per page.
    pub page_size: i64,
    /// Order of rows and heads in a page.
    pub layout: PageLayout,
    /// Whether V is the first part of each row of K, as in the compressed cache of multi-head latent attention.
    pub values_in_keys: bool,
    /// Keys that a query sees, counting its own; `None` for all keys.
    #[serde(deserialize_with = "Option::deserialize")]
    pub window: Option<i64>,
    /// The score modification, written for whole sequences: `query` is the position of a query in its sequence. A step
    /// converts it with [`ScoreExpr::at_positions`].
    #[serde(deserialize_with = "Option::deserialize")]
    pub score_mod: Option<ScoreExpr>,
    /// Whether a learnable sink joins the softmax.
    pub sink: bool,
    /// Whether the log-sum-exp is an output too.
    pub stats: bool,
    /// How queries, keys and values in 8 bits are scaled ([`ServeLayer::in_8_bits`]); `None` for all in `dtype`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp8: Option<Fp8>,
    /// Whether a sequence's answers have the same bits alone and in any batch ([`Attention::invariant`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub invariant: bool,
    /// Whether new tokens are trees of drafts ([`Attention::draft_tree`]), in steps of at most [`MAX_DRAFTS`] of a
    /// sequence that are no decodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draft_tree: bool,
}

/// Queries of room in a decode with an output in 8 bits: where cuDNN has no 8-bit kernel for one query, it has one for
/// two, and the length of the second is zero.
const DECODE_ROOM: i64 = 2;

impl ServeLayer {
    /// A plain causal layer over a pool of pages. The pairs are (query heads, key/value heads) and (head dim of Q and
    /// K, head dim of V).
    #[must_use]
    pub const fn new(
        (heads, kv_heads): (i64, i64),
        (d_qk, d_v): (i64, i64),
        dtype: DType,
        pages: i64,
        page_size: i64,
    ) -> ServeLayer {
        ServeLayer {
            heads,
            kv_heads,
            d_qk,
            d_v,
            dtype,
            pages,
            page_size,
            layout: PageLayout::Nhd,
            values_in_keys: false,
            window: None,
            score_mod: None,
            sink: false,
            stats: false,
            fp8: None,
            invariant: false,
            draft_tree: false,
        }
    }

    /// The layer over pages in 8 bits (e4m3), with one scale for all keys and one for all values.
    ///
    /// * [`Fp8::Cache`]: Q and O keep the layer's type, and a launch gets `descale.k` and `descale.v`. Own kernels
    ///   compute it on compute capability 9.0, in decodes and mixed steps.
    ///
    /// cuDNN takes queries of the keys' type only, so with the others they are in 8 bits too:
    ///
    /// * [`Fp8::Delayed`]: O is e4m3, which every GPU with 8 bits writes. A decode has room for two queries, because
    ///   compute capabilities 9.0 and 12.x have no 8-bit kernel for one: the query of sequence `i` is row `2 i` of Q,
    ///   and its length is 1. A conversion turns O back.
    /// * [`Fp8::Current`]: O keeps the layer's type, which compute capability 10.x alone writes. A decode has one
    ///   query, and the log-sum-exp as a further output, without which cuDNN's kernel does not compile.
    ///
    /// A launch of these gets `descale.q`, `descale.k`, `descale.v`, `scale.s`, `descale.s` and `scale.o`, each one f32
    /// on the GPU. Probabilities are at most 1, so 256 and 1/256 suit them. Largest magnitudes are no outputs.
    #[must_use]
    pub fn in_8_bits(self, scaling: Fp8) -> ServeLayer {
        ServeLayer { fp8: Some(scaling), ..self }
    }

    /// The layer with the same bits for a sequence alone and in any batch ([`Attention::invariant`]).
    #[must_use]
    pub fn invariant(self) -> ServeLayer {
        ServeLayer { invariant: true, ..self }
    }

    /// The layer whose steps of few new tokens verify trees of drafts ([`Attention::draft_tree`]).
    #[must_use]
    pub fn with_draft_tree(self) -> ServeLayer {
        ServeLayer { draft_tree: true, ..self }
    }

    /// The attention of a plan. Queries are dense for a decode, else varlen; keys and values are paged; the causal band
    /// is aligned so that the last query sees the last key.
    ///
    /// # Errors
    ///
    /// Every problem of the layer at these sizes.
    pub fn attention(&self, bucket: &Bucket) -> Result<Valid, Refusal> {
        let ServeLayer { heads, kv_heads, d_qk, d_v, dtype, pages, page_size, layout, .. } = *self;
        let ServeLayer { values_in_keys, window, score_mod, sink, stats, fp8, .. } = self;
        let Bucket { kind, batch, queries, keys, tokens } = *bucket;
        let decode = kind == StepKind::Decode;
        let room = if *fp8 == Some(Fp8::Delayed) { DECODE_ROOM } else { 1 };
        let rows = |d, dtype| match kind {
            StepKind::Decode => Tensor::bshd(batch, heads, room, d, dtype),
            StepKind::Mixed => Tensor::thd(batch, heads, queries, d, tokens, dtype),
        };
        let (asked, read, written) = match fp8 {
            None => (dtype, dtype, dtype),
            Some(Fp8::Cache) => (dtype, DType::E4M3, dtype),
            Some(Fp8::Delayed) => (DType::E4M3, DType::E4M3, DType::E4M3),
            Some(_) => (DType::E4M3, DType::E4M3, dtype),
        };
        let pool = |d| match layout {
            PageLayout::Nhd => Tensor::paged_nhd(batch, kv_heads, keys, d, pages, page_size, read),
            PageLayout::Hnd => Tensor::paged_hnd(batch, kv_heads, keys, d, pages, page_size, read),
        };
        let k = pool(d_qk);
        let v = if *values_in_keys { Tensor { dims: [batch, kv_heads, keys, d_v], ..k } } else { pool(d_v) };
        let band = Band { corner: Corner::BottomRight, left: *window, right: Some(0) };
        let mut a = Attention::forward(rows(d_qk, asked), k, v, rows(d_v, written)).with_lengths();
        // The one query of a decode sees all keys, and 8-bit kernels are judged with fewer masks.
        let narrow = fp8.is_some_and(Fp8::has_narrow_products);
        if !(decode && narrow && window.is_none()) {
            a = a.with_band(band);
        }
        a.score_mod = score_mod.as_ref().map(at_positions).transpose()?;
        a.sink = *sink;
        a.outputs.stats = *stats || (decode && *fp8 == Some(Fp8::Current));
        a.outputs.amax = !narrow;
        a.fp8 = *fp8;
        a.invariant = self.invariant;
        a.draft_tree = self.draft_tree && !decode && queries <= MAX_DRAFTS;
        validate(a)
    }
}

fn at_positions(score: &ScoreExpr) -> Result<ScoreExpr, Refusal> {
    score.at_positions().map_err(|e| codes::SERVE_SCORE_MOD.reason(e.to_string()).into())
}

#[cfg(test)]
mod tests {
    use super::super::{Buckets, ServePolicy};
    use super::*;
    use qkvault_graph::Storage;

    #[test]
    fn json_of_a_layer_with_a_field_misspelt_or_missing_does_not_read() {
        let layer = serde_json::to_string(&ServeLayer::new((8, 2), (64, 64), DType::BF16, 10, 16)).expect("writes");
        assert!(serde_json::from_str::<ServeLayer>(&layer).is_ok());
        assert!(serde_json::from_str::<ServeLayer>(&layer.replacen("\"window\":", "\"windwo\":", 1)).is_err());
        assert!(serde_json::from_str::<ServeLayer>(&layer.replacen("\"window\":null,", "", 1)).is_err());
    }

    #[test]
    fn steps_of_few_new_tokens_verify_trees_and_decodes_and_prompts_do_not() {
        let layer = ServeLayer::new((32, 8), (128, 128), DType::BF16, 1000, 64).with_draft_tree();
        let tree = |kind, queries| {
            let bucket = Bucket { kind, batch: 8, queries, keys: 4096, tokens: 8 * queries };
            layer.attention(&bucket).expect("sound").draft_tree
        };
        assert!(tree(StepKind::Mixed, 2) && tree(StepKind::Mixed, 64));
        assert!(!tree(StepKind::Mixed, 65) && !tree(StepKind::Decode, 1));
        let text = serde_json::to_string(&layer).expect("writes");
        assert_eq!(serde_json::from_str::<ServeLayer>(&text).expect("reads"), layer);
    }

    /// Queries are of the keys' type; where O is too, a decode has room for a second query.
    #[test]
    fn a_layer_in_8_bits_reads_pages_of_8_bits_and_writes_what_its_scaling_says() {
        let plain = ServeLayer::new((32, 8), (128, 128), DType::BF16, 1000, 64);
        let buckets = Buckets::new(&ServePolicy::default()).expect("sound");
        for (scaling, room, o) in [(Fp8::Delayed, 2, DType::E4M3), (Fp8::Current, 1, DType::BF16)] {
            let layer = plain.clone().in_8_bits(scaling);
            for bucket in buckets.iter() {
                let a = layer.attention(&bucket).unwrap_or_else(|e| panic!("{bucket:?}: {e}"));
                let decode = bucket.kind == StepKind::Decode;
                assert_eq!(a.seq(), (if decode { room } else { bucket.queries }, bucket.keys));
                assert_eq!((a.q.dtype, a.k.dtype, a.v.dtype, a.o.dtype), (DType::E4M3, DType::E4M3, DType::E4M3, o));
                assert_eq!((a.outputs.stats, a.outputs.amax), (decode && scaling == Fp8::Current, false));
                assert_eq!(a.mask.band.is_none(), decode, "{a}");
            }
            let window = ServeLayer { window: Some(512), ..layer };
            assert!(window.attention(&buckets.get(0)).expect("sound").mask.band.is_some());
        }
        let cache = plain.clone().in_8_bits(Fp8::Cache);
        for bucket in buckets.iter() {
            let (a, wide) = (cache.attention(&bucket).expect("sound"), plain.attention(&bucket).expect("sound"));
            assert_eq!(
                (a.q.dtype, a.k.dtype, a.v.dtype, a.o.dtype),
                (DType::BF16, DType::E4M3, DType::E4M3, DType::BF16)
            );
            assert_eq!((a.seq(), &a.mask, a.outputs), (wide.seq(), &wide.mask, wide.outputs), "{a}");
        }
        // A layer of an older program reads, and writes the same.
        let text = serde_json::to_string(&plain).expect("writes");
        assert!(!text.contains("fp8"));
        let eight = serde_json::to_string(&plain.in_8_bits(Fp8::Current)).expect("writes");
        assert_eq!(serde_json::from_str::<ServeLayer>(&eight).expect("reads").fp8, Some(Fp8::Current));
    }

    #[test]
    fn every_plan_of_a_set_is_a_sound_attention_of_its_own_sizes() {
        let mut layer = ServeLayer::new((32, 8), (128, 128), DType::BF16, 1000, 64);
        layer.layout = PageLayout::Hnd;
        layer.window = Some(4096);
        let buckets = Buckets::new(&ServePolicy::default()).expect("sound");
        for bucket in buckets.iter() {
            let a = layer.attention(&bucket).unwrap_or_else(|e| panic!("{bucket:?}: {e}"));
            assert_eq!((a.batch(), a.seq()), (bucket.batch, (bucket.queries, bucket.keys)));
            assert_eq!(matches!(a.q.storage, Storage::Varlen { .. }), bucket.kind == StepKind::Mixed);
            assert_eq!(a.k.storage, Storage::Paged { pages: 1000, page_size: 64 });
        }
        let latent = ServeLayer { values_in_keys: true, ..ServeLayer::new((16, 1), (576, 512), DType::BF16, 9, 64) };
        let a = latent.attention(&buckets.get(0)).expect("sound");
        assert_eq!((a.k.strides[2], a.v.strides[2], a.head_dims()), (576, 576, (576, 512)));
    }
}
