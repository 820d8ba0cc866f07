//! The description of one attention: a forward or a backward. Probing, the vault and launches all use this value.

use serde::{Deserialize, Serialize};

use crate::attention_form::AttentionForm;
use crate::expr::ScoreExpr;
use crate::{Mask, Origins, Tensor};

/// The most queries of a tree of drafts: each has a bit in a row of 64.
pub const MAX_DRAFTS: i64 = 64;

/// The description of one attention computation.
///
/// `P = softmax(mask(score(scale · Q·Kᵀ)))`, with dropout, and `O = P·V`, per batch and query head. Query head `i` of
/// `h_q` uses key head `i / (h_q / h_k)`, and likewise for the value head. The softmax scale is a scalar that a launch
/// gets.
///
/// Build one with [`Attention::forward`] or [`Attention::bshd`] and the methods that add to it, then
/// [`validate`](Attention::validate) it.
///
/// The struct may get more fields: other crates build it with its methods and change its fields.
///
/// Its JSON begins with its format, `"qkvault": 1`, and has every field: see [`crate::ATTENTION_FORMAT`].
///
/// ```
/// use qkvault_graph::{Attention, Band, Corner, DType, Tensor, validate};
///
/// // One new token for each of 8 sequences over a cache of 4096 keys, grouped heads, a window of 1024.
/// let decode = Attention::bshd(8, (32, 8), (1, 4096), 128, DType::BF16)
///     .with_band(Band::window(Corner::BottomRight, 1024))
///     .with_lengths();
/// assert_eq!(decode.to_string(), "fwd bf16 b8 h32/8 q1 kv4096 d128 causal window1024-br lengths");
///
/// // Operands of any layout: keys and values in the order batch, head, sequence, head dim.
/// let mut other = decode.clone();
/// other.k = Tensor::bhsd(8, 8, 4096, 128, DType::BF16);
/// other.v = other.k;
/// assert_ne!(validate(decode)?.key(), validate(other)?.key());
/// # Ok::<(), qkvault_graph::Refusal>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "AttentionForm", into = "AttentionForm")]
#[non_exhaustive]
pub struct Attention {
    /// Queries, (b, h_q, s_q, d_qk).
    pub q: Tensor,
    /// Keys, (b, h_k, s_kv, d_qk).
    pub k: Tensor,
    /// Values, (b, h_v, s_kv, d_v).
    pub v: Tensor,
    /// Output, (b, h_q, s_q, d_v).
    pub o: Tensor,
    /// Which keys each query may see.
    pub mask: Mask,
    /// The score modification, applied to the scaled score before masking: softcap, ALiBi, a bias or any other
    /// expression.
    pub score_mod: Option<ScoreExpr>,
    /// The backward of the score modification, if its author writes it; otherwise it is derived. A forward ignores it.
    pub score_mod_bprop: Option<ScoreModBprop>,
    /// Where positions of queries and keys begin; `None` is at zero.
    pub origins: Option<Origins>,
    /// Whether a learnable logit per query head joins the softmax denominator (f32, `h_q` entries).
    pub sink: bool,
    /// Random zeroing of probabilities.
    pub dropout: Option<Dropout>,
    /// Whether a block mask selects the 128×128 tiles that are computed.
    pub block_mask: bool,
    /// Outputs besides O.
    pub outputs: Outputs,
    /// The content of output rows beyond a sequence's length after a launch.
    pub padded_rows: PaddedRows,
    /// Whether a row of O has the same bits whatever else is computed with it: alone or in any batch, in any chunk of
    /// its prompt, over any pages, as a prompt or as a decode. Own kernels alone do that; it is part of the key.
    pub invariant: bool,
    /// Whether the queries are a tree of drafts: the last keys of a sequence are those of its queries, and a row of
    /// bits ([`Role::DraftTree`](crate::Role::DraftTree)) says for each query which of these it sees, besides what the
    /// rest of the mask says. All keys before them are as the mask says.
    pub draft_tree: bool,
    /// FP8 scaling; `None` for 16-bit formats.
    pub fp8: Option<Fp8>,
    /// Forward or backward.
    pub pass: Pass,
}

/// Outputs besides O and gradients. Stats, Max and Sum_exp are of a forward, f32, (b, h_q, s_q, 1), and varlen if Q is
/// varlen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Outputs {
    /// Natural log-sum-exp of each row of masked scores; the backward reads it. Of rows whose scores are all below
    /// -2.2e38 it is a number below that, not always the log-sum-exp ([`crate::expr::Lowest`]).
    pub stats: bool,
    /// Largest masked score of each row.
    pub max: bool,
    /// Sum of exponentials of each row relative to its maximum.
    pub sum_exp: bool,
    /// Largest magnitudes of an 8-bit attention, one f32 each ([`crate::Role::Amax`]): on by default. Delayed scaling
    /// computes the next scales from them; serving needs none. Other attentions have none.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub amax: bool,
}

const fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_yes(flag: &bool) -> bool {
    *flag
}

/// Random zeroing of probabilities; the others are divided by the keep probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Dropout {
    /// Where the mask comes from.
    pub source: DropoutSource,
    /// Probability of zeroing, at least 0 and below 1. It is a scalar of the description and no part of the
    /// [`crate::GraphKey`]. cuDNN compiles it into the plan, so it is part of the op graph and of the plan's key.
    pub probability: f32,
}

/// Where a dropout mask comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DropoutSource {
    /// Philox as in PyTorch, from a seed and an offset that a launch gets.
    Philox,
    /// A keep mask (b, h_q, s_q, s_kv) of zeros and ones in Q's element type, which the caller gives.
    Mask,
    /// Philox 4x32-10 by the place of each score: batch, head, query and key, with the seed and the offset that a
    /// launch gets. Parts of an attention draw what the whole draws, so several GPUs can share it: a schedule of
    /// `qkvault-parallel` runs it, also on one. It is another mask than that of [`DropoutSource::Philox`], which
    /// depends on the shape of a launch in ways that cuDNN does not document; the two have different keys.
    Places,
}

/// The content of rows beyond a sequence's length after a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddedRows {
    /// Anything.
    #[default]
    Undefined,
    /// Zeros (minus infinity in Stats and Max).
    Zero,
}

/// FP8 scaling of an attention whose Q, K and V, or K and V alone, are 8-bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fp8 {
    /// One scale per tensor, from the history of its largest magnitudes; outputs are 8-bit too, and the plan reports
    /// their largest magnitudes.
    Delayed,
    /// One scale per tensor, from the tensor itself; outputs are 16-bit.
    Current,
    /// A cache of keys and values in 8 bits, with one scale for each of the two; Q and O are 16-bit. Kernels turn keys
    /// and values back as they read them, so products and the softmax are those of 16 bits. Of a forward; own kernels
    /// alone compute it.
    Cache,
    /// One power-of-two scale per 32 elements (MXFP8); outputs are 16-bit.
    ///
    /// Elements share a scale along the dim that a product sums over: the head dim in Q and K, the sequence in the V of
    /// a forward. A backward sums over both, so it reads Q, K and dO in two 8-bit forms with separate scales
    /// ([`crate::Role::QT`], [`crate::Role::KT`] and [`crate::Role::DOT`] have the layout of Q, K and dO), V with
    /// scales along the head dim, and dO in 16 bits.
    Block,
}

impl Fp8 {
    /// Whether products are of 8-bit numbers; those of a [cache](Fp8::Cache) in 8 bits are of 16.
    #[must_use]
    pub const fn has_narrow_products(self) -> bool {
        match self {
            Fp8::Delayed | Fp8::Current | Fp8::Block => true,
            Fp8::Cache => false,
        }
    }
}

/// Direction of the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[allow(clippy::large_enum_variant, reason = "a plan has one attention, so its size does not matter")]
pub enum Pass {
    /// O from Q, K and V.
    Forward,
    /// dQ, dK and dV from dO and the outputs of the forward.
    Backward(Gradients),
}

/// The backward of a score modification, as its author writes it: cudnn-frontend's `score_mod_bprop`.
///
/// With `g` the gradient of the loss with respect to the modified score, the gradient with respect to the score is `g *
/// derivative`. Gradients of tensors that the modification reads are still derived.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ScoreModBprop {
    /// The derivative of the modification with respect to the score: a float expression over the score, indices,
    /// lengths, and the scalars and tensors of the modification, by the same names.
    pub derivative: ScoreExpr,
    /// Whether validation skips the comparison with differences of the modification, as a straight-through estimator
    /// needs.
    pub trusted: bool,
}

impl ScoreModBprop {
    /// A derivative that validation compares with central differences of the modification
    /// ([`crate::expr::check_override`]).
    #[must_use]
    pub const fn checked(derivative: ScoreExpr) -> ScoreModBprop {
        ScoreModBprop { derivative, trusted: false }
    }

    /// A derivative that is not compared with the modification.
    #[must_use]
    pub const fn trusted(derivative: ScoreExpr) -> ScoreModBprop {
        ScoreModBprop { derivative, trusted: true }
    }
}

/// The tensors and choices that a backward adds to its forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gradients {
    /// Gradient of O, with O's dims.
    pub d_o: Tensor,
    /// Gradient of O in 16 bits, with O's dims. Only a microscaled backward ([`Fp8::Block`]) reads it, besides the
    /// 8-bit one.
    #[serde(deserialize_with = "crate::codec::present")]
    pub d_o_half: Option<Tensor>,
    /// Gradient of Q, with Q's dims.
    pub d_q: Tensor,
    /// Gradient of K, with K's dims.
    pub d_k: Tensor,
    /// Gradient of V, with V's dims.
    pub d_v: Tensor,
    /// Whether the backward computes the gradient of the sink logits.
    pub d_sink: bool,
    /// Whether two runs on the same input must agree bit for bit.
    pub deterministic: bool,
}

/// The choices for a backward that is derived from its forward; `None` means the format of the forward's own tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardOptions {
    /// Format of dO; like O by default, in Q's type if that is 8-bit.
    pub d_o: Option<Tensor>,
    /// Format of the 16-bit dO of a microscaled backward; like O by default. No other backward has one.
    pub d_o_half: Option<Tensor>,
    /// Format of dQ; like Q by default, in O's type if outputs are 16-bit.
    pub d_q: Option<Tensor>,
    /// Format of dK; like K by default, in O's type if outputs are 16-bit.
    pub d_k: Option<Tensor>,
    /// Format of dV; like V by default, in O's type if outputs are 16-bit.
    pub d_v: Option<Tensor>,
    /// Whether the backward computes the gradient of the sink logits.
    pub d_sink: bool,
    /// Whether two runs on the same input must agree bit for bit.
    pub deterministic: bool,
}

impl Default for Outputs {
    fn default() -> Outputs {
        Outputs::NONE
    }
}

impl Outputs {
    /// Neither Stats nor Max nor Sum_exp.
    pub const NONE: Outputs = Outputs::new(false, false, false);
    /// Only the log-sum-exp, which a backward reads.
    pub const STATS: Outputs = Outputs::new(true, false, false);

    /// Selects Stats, Max and Sum_exp.
    #[must_use]
    pub const fn new(stats: bool, max: bool, sum_exp: bool) -> Outputs {
        Outputs { stats, max, sum_exp, amax: true }
    }
}

impl Dropout {
    /// Dropout with this probability and this source of its mask.
    #[must_use]
    pub const fn new(source: DropoutSource, probability: f32) -> Dropout {
        Dropout { source, probability }
    }

    /// Of [`DropoutSource::Places`]: a score whose 32 random bits are a number below this one is dropped.
    #[must_use]
    pub fn threshold(&self) -> u32 {
        // A float32 below 1 has 24 bits, so this is below 2^32.
        (f64::from(self.probability) * 4_294_967_296.0).round() as u32
    }
}
