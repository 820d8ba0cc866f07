//! The attention of a layer kind in a phase, and the layer for serving.

use crate::codes;
use qkvault_graph::expr::{self, AlibiSlopes, Expr, Grad, library};
use qkvault_graph::{Attention, Band, Corner, Refusal, ScoreExpr, Tensor};
use qkvault_serving::{PageLayout, ServeLayer};

use super::{AttentionKind, Latent, LayerKind, Phase};

/// The tensor of the lengths of prefixes.
const PREFIX: &str = "prefix";

/// The tensor of a bias that the model adds to each head and pair of positions.
const POSITION_BIAS: &str = "position_bias";

impl LayerKind {
    /// The attention of a phase for `batch` sequences of `seq` keys.
    ///
    /// Operands are contiguous BSHD. A prefill has as many queries as keys. A decode has one query; all rows of its
    /// cache are in use, and its band ends at the last key. `Train` is a prefill that also outputs Stats; its backward
    /// follows from it. A cross-attention has as many keys as `seq` says, from another sequence.
    ///
    /// # Errors
    ///
    /// A refusal if the model does not have the phase (an encoder does not decode), or if the phase is `Serve`, which
    /// needs [`LayerKind::serving`].
    pub fn attention(&self, phase: Phase, batch: i64, seq: i64) -> Result<Attention, Refusal> {
        let mut a = match phase {
            Phase::Prefill | Phase::Train => self.shape(batch, (seq, seq)),
            Phase::Decode if !self.decodes() => {
                return Err(codes::MODEL_PHASE.reason("decode, of an encoder").into());
            }
            Phase::Serve => {
                return Err(codes::MODEL_SERVE.reason("serve, with one batch and one length").into());
            }
            Phase::Decode => match self.latent {
                Some(latent) => self.latent_shape(latent, batch, seq),
                None => self.shape(batch, (1, seq)),
            },
        };
        let corner = if phase == Phase::Decode { Corner::BottomRight } else { Corner::TopLeft };
        let mut band = self.band(corner);
        // A sequence of one chunk needs no mask for it.
        let chunk = self.chunk.filter(|&chunk| chunk < seq);
        match (phase, chunk) {
            (_, None) => {}
            // The last query sees the last chunk: that is a window, which runs where an expression does not.
            (Phase::Decode, Some(chunk)) => band = Some(Band::window(corner, (seq - 1) % chunk + 1)),
            (_, Some(chunk)) => a = a.with_mask_mod(built(own_chunk(chunk))?),
        }
        // A decoded token is behind its prefix and sees it anyway.
        if self.prefix && phase != Phase::Decode {
            band = None;
            a = a.with_mask_mod(built(library::prefix_lm(PREFIX, batch))?);
        }
        if let Some(band) = band {
            a = a.with_band(band);
        }
        let queries = a.q.dims[2];
        if let Some(score) = self.score(Some((queries, seq)))? {
            a = a.with_score_mod(score);
        }
        a.sink = self.sink;
        a.outputs.stats = phase == Phase::Train;
        Ok(a)
    }

    /// The causal mask and the window, or `None` if every query sees every key.
    #[must_use]
    pub fn band(&self, corner: Corner) -> Option<Band> {
        let right = if self.causal { Some(0) } else { self.window.map(|window| window - 1) };
        right.map(|right| Band { corner, left: self.window, right: Some(right) })
    }

    /// The layer for serving over a pool of pages. Multi-head latent attention is served over its compressed cache.
    ///
    /// # Errors
    ///
    /// A refusal for an encoder and for cross-attention, which have no cache that grows, and for what a serving layer
    /// does not describe: chunks and biases.
    pub fn serving(&self, pages: i64, page_size: i64, layout: PageLayout) -> Result<ServeLayer, Refusal> {
        if !self.causal {
            let what = if self.kind == AttentionKind::Cross { "cross-attention" } else { "an encoder" };
            return Err(codes::MODEL_PHASE.reason(format!("serve, of {what}")).into());
        }
        if let Some(chunk) = self.chunk {
            return Err(codes::MODEL_SERVE_LAYER.reason(format!("chunks of {chunk} keys")).into());
        }
        if self.prefix {
            return Err(codes::MODEL_SERVE_LAYER.reason("prefixes whose tokens see each other").into());
        }
        if self.position_bias {
            return Err(codes::MODEL_SERVE_LAYER.reason("a bias for each pair of positions").into());
        }
        let (kv_heads, head_dim, values_in_keys) = match self.latent {
            Some(latent) => (1, (latent.d_qk, latent.d_v), true),
            None => (self.kv_heads, (self.d_qk, self.d_v), false),
        };
        let mut layer = ServeLayer::new((self.heads, kv_heads), head_dim, self.dtype, pages, page_size);
        let score = self.score(None)?;
        (layer.layout, layer.values_in_keys) = (layout, values_in_keys);
        (layer.window, layer.score_mod, layer.sink) = (self.window, score, self.sink);
        Ok(layer)
    }

    fn shape(&self, batch: i64, (s_q, s_kv): (i64, i64)) -> Attention {
        let q = Tensor::bshd(batch, self.heads, s_q, self.d_qk, self.dtype);
        let k = Tensor::bshd(batch, self.kv_heads, s_kv, self.d_qk, self.dtype);
        let v = Tensor::bshd(batch, self.kv_heads, s_kv, self.d_v, self.dtype);
        let o = Tensor::bshd(batch, self.heads, s_q, self.d_v, self.dtype);
        Attention::forward(q, k, v, o)
    }

    /// One shared head in one buffer: each row of V is the first part of the row of K.
    fn latent_shape(&self, latent: Latent, batch: i64, s_kv: i64) -> Attention {
        let q = Tensor::bshd(batch, self.heads, 1, latent.d_qk, self.dtype);
        let k = Tensor::bshd(batch, 1, s_kv, latent.d_qk, self.dtype);
        let v = Tensor { dims: [batch, 1, s_kv, latent.d_v], ..k };
        let o = Tensor::bshd(batch, self.heads, 1, latent.d_v, self.dtype);
        Attention::forward(q, k, v, o)
    }

    /// The score expression: bias, softcap, ALiBi. `pairs` is how many queries and keys a bias is for.
    fn score(&self, pairs: Option<(i64, i64)>) -> Result<Option<ScoreExpr>, Refusal> {
        let LayerKind { softcap, alibi, position_bias, heads, dtype, .. } = self;
        let mut score = expr::score();
        if softcap.is_some() {
            score = library::softcap(score, expr::scalar("softcap"));
        }
        if let (true, Some((queries, keys))) = (*position_bias, pairs) {
            score = library::relative_bias(score, POSITION_BIAS, *dtype, [*heads, queries, keys], Grad::None);
        }
        if let Some(alibi) = alibi {
            let number = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
            let slopes = AlibiSlopes::for_heads(number(alibi.model_heads)).with_bias_max(alibi.bias_max);
            let slopes = slopes.map_err(|bad| {
                let needed = "a finite number above 0";
                codes::MODEL_SCORE_MOD.reason(bad.given.to_string()).at("alibi_bias_max").with_needed(needed)
            })?;
            score = library::alibi_of(score, *heads, slopes.from_head(number(alibi.first_head)));
        }
        let changed = softcap.is_some() || alibi.is_some() || *position_bias;
        if changed { built(score).map(Some) } else { Ok(None) }
    }
}

/// A query sees the keys from the beginning of its own chunk on; the causal mask hides those behind it.
fn own_chunk(length: i64) -> Expr {
    let length = i32::try_from(length).unwrap_or(i32::MAX);
    expr::key().ge(expr::position() - expr::position() % length)
}

fn built(expr: Expr) -> Result<ScoreExpr, Refusal> {
    expr.build().map_err(|errors| {
        let reasons = errors.list().iter().map(|e| codes::MODEL_SCORE_MOD.reason(e.to_string()));
        Refusal::from_reasons(reasons.collect())
            .unwrap_or_else(|| codes::MODEL_SCORE_MOD.reason("no expression").into())
    })
}
