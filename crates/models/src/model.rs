//! What a model needs: its kinds of attention layers, and the layers that are left out.

use serde::Serialize;

use qkvault_graph::DType;

/// A model's attention layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// The config's `model_type`.
    pub family: String,
    /// The kinds of layers, in order of first appearance.
    pub layers: Vec<LayerKind>,
    /// Layers without attention, and layers whose attention cannot be described.
    pub skipped: Vec<Skipped>,
    /// Longest sequence that the model supports, if the config gives it.
    pub max_positions: Option<i64>,
    /// Assumptions made where the config gives no value, and facts that the description does not include.
    pub notes: Vec<String>,
}

/// Layers that are not planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// What the layers are, such as `linear_attention`.
    pub what: String,
    /// Why they are not planned.
    pub why: String,
    /// Number of layers.
    pub count: usize,
    /// Their places in the stack of layers.
    pub indices: Vec<usize>,
}

/// The place of an attention in its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionKind {
    /// The tokens of a decoder, or of a diffusion transformer, see each other.
    #[default]
    #[serde(rename = "self")]
    SelfAttention,
    /// The tokens of a decoder see the states of an encoder.
    Cross,
    /// The tokens of an encoder of text or sound see each other.
    Encoder,
    /// The patches of an image see each other.
    Vision,
}

/// One kind of attention layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerKind {
    /// Short label, such as `full` or `sliding 4096`.
    pub label: String,
    /// The place of the attention in the model.
    pub kind: AttentionKind,
    /// Number of layers of this kind.
    pub count: usize,
    /// The places of these layers in their stack, from 0. A layer with two such attentions is in it twice.
    pub indices: Vec<usize>,
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
    /// Length of the sliding window, counting the query's own key. Without `causal` it reaches as far to the other
    /// side.
    pub window: Option<i64>,
    /// Whether the first tokens of a prompt, its prefix, see each other in both directions. Bind the length of each
    /// sequence's prefix at launch to the i32 tensor `prefix`.
    pub prefix: bool,
    /// Length of the chunks that the sequence is cut into: a query sees the keys of its own chunk.
    pub chunk: Option<i64>,
    /// Softmax scale to bind at launch.
    pub scale: f64,
    /// Softcap of the scores; bind it at launch to the scalar `softcap`.
    pub softcap: Option<f64>,
    /// Whether a learnable sink joins the softmax.
    pub sink: bool,
    /// The slopes of ALiBi, if the layer uses it.
    pub alibi: Option<Alibi>,
    /// Whether the model adds a bias of its own for each head and pair of positions, as T5 does. Bind it at launch to
    /// the tensor `position_bias`.
    pub position_bias: bool,
    /// The shape for decoding, if it differs: multi-head latent attention reads its cache as one shared head.
    pub latent: Option<Latent>,
}

/// The slopes of ALiBi.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Alibi {
    /// Query heads of the whole model.
    pub model_heads: i64,
    /// The model's index of the layer's first head: more than 0 in a shard of a model.
    pub first_head: i64,
    /// Largest exponent of the slopes.
    pub bias_max: f32,
}

/// Shape of multi-head latent attention over its compressed cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latent {
    /// Head dim of Q and K: the compressed rank plus the rotary part.
    pub d_qk: i64,
    /// Head dim of V. V is the first part of each row of K.
    pub d_v: i64,
}

impl LayerKind {
    /// Whether a generation step with one new token has this attention.
    #[must_use]
    pub fn decodes(&self) -> bool {
        self.causal || self.kind == AttentionKind::Cross
    }

    /// The label that follows from the other fields.
    pub(crate) fn name(&self) -> String {
        let mut parts = Vec::new();
        match self.kind {
            AttentionKind::SelfAttention => {}
            AttentionKind::Cross => parts.push("cross".to_owned()),
            AttentionKind::Encoder => parts.push("encoder".to_owned()),
            AttentionKind::Vision => parts.push("vision".to_owned()),
        }
        match (self.latent, self.chunk, self.window) {
            (Some(_), _, None) => parts.push("latent".to_owned()),
            (Some(_), _, Some(window)) => parts.push(format!("latent, sliding {window}")),
            (None, Some(chunk), _) => parts.push(format!("chunk {chunk}")),
            (None, None, Some(window)) => parts.push(format!("sliding {window}")),
            (None, None, None) if parts.is_empty() => parts.push("full".to_owned()),
            (None, None, None) => {}
        }
        if self.prefix {
            parts.push("prefix".to_owned());
        }
        if self.alibi.is_some() {
            parts.push("alibi".to_owned());
        }
        if self.position_bias {
            parts.push("position bias".to_owned());
        }
        parts.join(", ")
    }
}
