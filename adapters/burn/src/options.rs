//! What an attention computes besides its tensors.

use std::fmt;

use burn_backend::IntDType;
use burn_tensor::backend::Backend;
use burn_tensor::{Bool, Int, Tensor};
use qkvault::RawRuntime;

/// What an attention computes, in the order of burn's own: the product of Q and K is scaled, capped, lowered by ALiBi's
/// slopes, a bias is added, hidden keys are left out.
///
/// ```
/// use burn_flex::Flex;
/// use burn_qkvault::Options;
///
/// let options = Options::<Flex>::new().causal(true).window_left(1023).softcap(30.0);
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct Options<B: Backend> {
    pub(crate) plain: Plain,
    pub(crate) bias: Option<Tensor<B, 4>>,
    pub(crate) slopes: Option<Tensor<B, 1>>,
    pub(crate) sink: Option<Tensor<B, 1>>,
    pub(crate) mask: Option<Tensor<B, 4, Int>>,
}

/// The options that are no tensors.
#[derive(Clone, Default)]
pub(crate) struct Plain {
    pub(crate) scale: Option<f32>,
    pub(crate) left: Option<usize>,
    pub(crate) right: Option<usize>,
    pub(crate) softcap: Option<f32>,
    pub(crate) deterministic: bool,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "the oracle writes every element"))]
    pub(crate) poison: bool,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "the oracle needs no plan"))]
    pub(crate) runtime: Option<RawRuntime>,
}

impl<B: Backend> Default for Options<B> {
    fn default() -> Options<B> {
        Options { plain: Plain::default(), bias: None, slopes: None, sink: None, mask: None }
    }
}

impl<B: Backend> Options<B> {
    /// Attention without a mask.
    #[must_use]
    pub fn new() -> Options<B> {
        Options::default()
    }

    /// The factor of the product of Q and K. Default: one over the square root of the head dim. It is no part of a
    /// plan.
    #[must_use]
    pub fn softmax_scale(mut self, scale: f32) -> Options<B> {
        self.plain.scale = Some(scale);
        self
    }

    /// Hides the keys behind each query, where the last query stands at the last key; burn's own puts the first query
    /// at the first key, which is the same for as many queries as keys. As `window_right(0)`, or no bound for `false`.
    #[must_use]
    pub fn causal(self, causal: bool) -> Options<B> {
        self.window_right(causal.then_some(0))
    }

    /// Keys that a query sees before its own. `None` is no bound.
    #[must_use]
    pub fn window_left(mut self, keys: impl Into<Option<usize>>) -> Options<B> {
        self.plain.left = keys.into();
        self
    }

    /// Keys that a query sees behind its own; 0 is causal. `None` is no bound.
    #[must_use]
    pub fn window_right(mut self, keys: impl Into<Option<usize>>) -> Options<B> {
        self.plain.right = keys.into();
        self
    }

    /// Limits scores to the range from `-cap` to `cap`, by `tanh(score / cap) * cap`. The cap is no part of a plan.
    #[must_use]
    pub fn softcap(mut self, cap: f32) -> Options<B> {
        self.plain.softcap = Some(cap);
        self
    }

    /// ALiBi: lowers scores by a slope for each head times the distance of query and key. Slopes of (heads), which
    /// have a gradient if they are tracked.
    #[must_use]
    pub fn alibi_slopes(mut self, slopes: Tensor<B, 1>) -> Options<B> {
        self.slopes = Some(slopes);
        self
    }

    /// Adds a tensor to the scores, whose dims are those of (batch, head, query, key) or 1. It has a gradient if it is
    /// tracked, which is summed in 16 bits: give a tracked one as `bf16` or `f16`. Numbers are finite: what is hidden
    /// says a [mask](Options::mask).
    #[must_use]
    pub fn bias(mut self, bias: Tensor<B, 4>) -> Options<B> {
        self.bias = Some(bias);
        self
    }

    /// Keys that queries do not see are true, as in burn's own; dims are those of (batch, head, query, key) or 1. It is
    /// read as integers of 32 bits, of which a copy is made here: keep the options for all layers.
    #[must_use]
    pub fn mask(mut self, hidden: Tensor<B, 4, Bool>) -> Options<B> {
        self.mask = Some(hidden.cast(IntDType::I32));
        self
    }

    /// A learned logit for each query head that joins the softmax's sum: f32, of (heads). It has a gradient if it is
    /// tracked.
    #[must_use]
    pub fn sink(mut self, sink: Tensor<B, 1>) -> Options<B> {
        self.sink = Some(sink);
        self
    }

    /// Whether two backwards on the same tensors must give the same bits. Default: no.
    #[must_use]
    pub fn deterministic(mut self, deterministic: bool) -> Options<B> {
        self.plain.deterministic = deterministic;
        self
    }

    /// Whether every output on a GPU is filled with NaN before its launch, so that elements that nothing writes are
    /// seen. Default: no.
    #[must_use]
    pub fn poison_outputs(mut self, poison: bool) -> Options<B> {
        self.plain.poison = poison;
        self
    }

    /// Where plans come from. Default: the user's vault, which builds nothing (`Runtime::options().open_raw()`).
    #[must_use]
    pub fn runtime(mut self, runtime: &RawRuntime) -> Options<B> {
        self.plain.runtime = Some(runtime.clone());
        self
    }
}

impl<B: Backend> fmt::Debug for Options<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plain { scale, left, right, softcap, deterministic, poison: _, runtime: _ } = &self.plain;
        let mut shown = f.debug_struct("Options");
        shown.field("softmax_scale", scale).field("window_left", left).field("window_right", right);
        shown.field("softcap", softcap).field("deterministic", deterministic);
        let given = [self.bias.is_some(), self.slopes.is_some(), self.sink.is_some(), self.mask.is_some()];
        for (name, given) in ["bias", "alibi_slopes", "sink", "mask"].into_iter().zip(given) {
            shown.field(name, &given);
        }
        shown.finish_non_exhaustive()
    }
}
