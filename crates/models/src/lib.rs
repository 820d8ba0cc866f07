//! Model planning: a Hugging Face `config.json` becomes the attentions that its layers need.
//!
//! A model is a list of layer kinds, each with the number of layers of that kind. A layer kind describes its attention
//! completely (window, softcap, sinks, ALiBi). Whether that attention can run is decided later, by validation, lowering
//! and cuDNN.

mod config;
mod families;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use qkvault_graph::expr::{AlibiSlopes, library};
use qkvault_graph::registry::codes;
use qkvault_graph::{Attention, Band, Corner, DType, Refusal, Tensor};
use qkvault_serving::{PageLayout, ServeLayer};

/// A model's attention layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// The config's `model_type`.
    pub family: String,
    /// The kinds of layers, in order of first appearance.
    pub layers: Vec<LayerKind>,
    /// Longest sequence that the model supports, if the config gives it.
    pub max_positions: Option<i64>,
    /// Assumptions made where the config gives no value.
    pub notes: Vec<String>,
}

/// One kind of attention layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerKind {
    /// Short label, such as `full` or `sliding 4096`.
    pub label: String,
    /// Number of layers of this kind.
    pub count: usize,
    /// Query heads.
    pub heads: i64,
    /// Key/value heads.
    pub kv_heads: i64,
    /// Head dim of Q and K.
    pub d_qk: i64,
    /// Head dim of V and O.
    pub d_v: i64,
    /// Element type.
    pub dtype: DType,
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
    /// Length of the sliding window, counting the query's own key.
    pub window: Option<i64>,
    /// Softmax scale to bind at launch.
    pub scale: f32,
    /// Softcap of the scores; bind it at launch to the scalar `softcap`.
    pub softcap: Option<f32>,
    /// Whether a learnable sink joins the softmax.
    pub sink: bool,
    /// Largest exponent of the ALiBi slopes, if the layer uses ALiBi.
    pub alibi_bias_max: Option<f32>,
    /// The shape for decoding, if it differs: multi-head latent attention reads its cache as one shared head.
    pub latent: Option<Latent>,
}

/// Shape of multi-head latent attention over its compressed cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latent {
    /// Head dim of Q and K: the compressed rank plus the rotary part.
    pub d_qk: i64,
    /// Head dim of V. V is the first part of each row of K.
    pub d_v: i64,
}

/// The part of inference or training that a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// A whole prompt at once, with as many queries as keys.
    Prefill,
    /// One new query over a cache of keys and values.
    Decode,
    /// The forward of a training step: whole sequences, with Stats as an output for the backward.
    Train,
    /// Any step of a serving engine over paged keys and values. It needs a set of plans: see `qkvault-serving`.
    Serve,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Phase; 4] = [Phase::Prefill, Phase::Decode, Phase::Train, Phase::Serve];
    /// The phases of inference that need one plan for each size.
    pub const INFERENCE: [Phase; 2] = [Phase::Prefill, Phase::Decode];
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Train => "train",
            Phase::Serve => "serve",
        })
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(s: &str) -> Result<Phase, String> {
        Phase::ALL
            .into_iter()
            .find(|p| p.to_string() == s)
            .ok_or_else(|| format!("'{s}' is not a phase; use prefill, decode, train or serve"))
    }
}

impl Model {
    /// Reads a `config.json`.
    ///
    /// # Errors
    ///
    /// Every problem found: text that is not a JSON object, an unknown family, missing or contradictory fields.
    pub fn from_config(text: &str) -> Result<Model, Refusal> {
        families::read(&config::Config::parse(text)?)
    }
}

impl LayerKind {
    /// The attention of a phase for `batch` sequences of `seq` keys.
    ///
    /// Operands are contiguous BSHD. A prefill has as many queries as keys. A decode has one query; all rows of its
    /// cache are in use, and its band ends at the last key. `Train` is a prefill that also outputs Stats; its backward
    /// follows from it.
    ///
    /// # Errors
    ///
    /// A refusal if the model does not have the phase (an encoder does not decode), or if the phase is `Serve`, which
    /// needs [`LayerKind::serving`].
    pub fn attention(&self, phase: Phase, batch: i64, seq: i64) -> Result<Attention, Refusal> {
        let mut a = match phase {
            Phase::Prefill | Phase::Train => self.shape(batch, (seq, seq)),
            Phase::Decode if !self.causal => {
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
        if self.causal || self.window.is_some() {
            let right = self.causal.then_some(0);
            a = a.with_band(Band { corner, left: self.window, right });
        }
        if let Some(score) = self.score()? {
            a = a.with_score_mod(score);
        }
        a.sink = self.sink;
        a.outputs.stats = phase == Phase::Train;
        Ok(a)
    }

    /// The layer for serving over a pool of pages. Multi-head latent attention is served over its compressed cache.
    ///
    /// # Errors
    ///
    /// A refusal for an encoder, which has no cache.
    pub fn serving(&self, pages: i64, page_size: i64, layout: PageLayout) -> Result<ServeLayer, Refusal> {
        if !self.causal {
            return Err(codes::MODEL_PHASE.reason("serve, of an encoder").into());
        }
        let (kv_heads, head_dim, values_in_keys) = match self.latent {
            Some(latent) => (1, (latent.d_qk, latent.d_v), true),
            None => (self.kv_heads, (self.d_qk, self.d_v), false),
        };
        let mut layer = ServeLayer::new((self.heads, kv_heads), head_dim, self.dtype, pages, page_size);
        let score = self.score()?;
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

    fn score(&self) -> Result<Option<qkvault_graph::ScoreExpr>, Refusal> {
        let mut score = qkvault_graph::expr::score();
        if self.softcap.is_some() {
            score = library::softcap(score, qkvault_graph::expr::scalar("softcap"));
        }
        if let Some(bias_max) = self.alibi_bias_max {
            let heads = self.heads;
            let slopes = AlibiSlopes::of(u32::try_from(heads).unwrap_or(u32::MAX)).with_bias_max(bias_max);
            let slopes = slopes.map_err(|bad| {
                let needed = "a finite number above 0";
                codes::MODEL_SCORE_MOD.reason(bad.given.to_string()).at("alibi_bias_max").with_needed(needed)
            })?;
            score = library::alibi_of(score, heads, slopes);
        }
        if self.softcap.is_none() && self.alibi_bias_max.is_none() {
            return Ok(None);
        }
        score.build().map(Some).map_err(|errors| {
            let reasons = errors.list().iter().map(|e| codes::MODEL_SCORE_MOD.reason(e.to_string()));
            Refusal::of(reasons.collect()).expect("a failed build has at least one error")
        })
    }
}

#[cfg(test)]
mod tests;
