//! A layer for serving: its whole attention except for the sizes that change from step to step.

use serde::{Deserialize, Serialize};

use super::buckets::{Bucket, StepKind};
use qkvault_graph::registry::codes;
use qkvault_graph::{Attention, Band, Corner, DType, Refusal, ScoreExpr, Tensor, Valid, validate};

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
}

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
        }
    }

    /// The attention of a plan. Queries are dense for a decode, else varlen; keys and values are paged; the causal band
    /// is aligned so that the last query sees the last key.
    ///
    /// # Errors
    ///
    /// Every problem of the layer at these sizes.
    pub fn attention(&self, bucket: &Bucket) -> Result<Valid, Refusal> {
        let ServeLayer { heads, kv_heads, d_qk, d_v, dtype, pages, page_size, layout, .. } = *self;
        let ServeLayer { values_in_keys, window, score_mod, sink, stats, .. } = self;
        let Bucket { kind, batch, queries, keys, tokens } = *bucket;
        let rows = |d| match kind {
            StepKind::Decode => Tensor::bshd(batch, heads, 1, d, dtype),
            StepKind::Mixed => Tensor::thd(batch, heads, queries, d, tokens, dtype),
        };
        let pool = |d| match layout {
            PageLayout::Nhd => Tensor::paged_nhd(batch, kv_heads, keys, d, pages, page_size, dtype),
            PageLayout::Hnd => Tensor::paged_hnd(batch, kv_heads, keys, d, pages, page_size, dtype),
        };
        let k = pool(d_qk);
        let v = if *values_in_keys { Tensor { dims: [batch, kv_heads, keys, d_v], ..k } } else { pool(d_v) };
        let band = Band { corner: Corner::BottomRight, left: *window, right: Some(0) };
        let mut a = Attention::forward(rows(d_qk), k, v, rows(d_v)).with_lengths().with_band(band);
        a.score_mod = score_mod.as_ref().map(at_positions).transpose()?;
        a.sink = *sink;
        a.outputs.stats = *stats;
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
