//! What an attention computes besides its tensors, in the words of candle-flash-attn.

use std::fmt;
use std::sync::Arc;

use candle_core::Tensor;
use qkvault::RawRuntime;
use qkvault::exec::Number;
use qkvault::graph::expr::{Expr, TensorSpec, key, library, position, scalar, score, tensor};

use crate::Error;
use crate::known::Known;
use crate::tensor::{dtype, long};

/// The order of the dims of q, k, v and the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// (batch, sequence, head, head dim), as candle-flash-attn has them.
    #[default]
    Bshd,
    /// (batch, head, sequence, head dim), as candle's models have them. Nothing is copied: any strides will do.
    Bhsd,
}

/// What an attention computes.
///
/// A value remembers the descriptions and plans of the shapes that it has met, so keep one for all layers and steps.
/// Clones share that; a clone that is changed has its own.
///
/// Modifications of scores apply to the scaled product in the order of the calls: `softcap` and then `alibi_slopes` is
/// what candle-flash-attn computes.
///
/// ```
/// use candle_qkvault::Options;
/// use qkvault::graph::expr::{position, key};
///
/// let options = Options::new().causal(true).window_size_left(1023).softcap(30.0);
/// // Scores fade by a tenth with every key back.
/// let options = options.score_mod(|score| score - (position() - key()).to_float() * 0.1);
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) scale: Option<f32>,
    pub(crate) left: Option<usize>,
    pub(crate) right: Option<usize>,
    pub(crate) order: Order,
    /// Positions of the first query and the first key, if a launch says them.
    pub(crate) origins: Option<[usize; 2]>,
    pub(crate) score: Option<Expr>,
    pub(crate) mask: Option<Expr>,
    pub(crate) scalars: Vec<(String, Number)>,
    pub(crate) tensors: Vec<(String, Tensor)>,
    pub(crate) sink: Option<Tensor>,
    /// The probability of dropout, its seed and its offset.
    pub(crate) dropout: Option<(f32, [i64; 2])>,
    pub(crate) deterministic: bool,
    pub(crate) inference: bool,
    /// Whether calls are padded to few sizes; functions differ in what they do if nothing is said.
    pub(crate) shares_plans: Option<bool>,
    pub(crate) oracle: bool,
    pub(crate) poison: bool,
    pub(crate) judge: bool,
    pub(crate) runtime: Option<RawRuntime>,
    /// What is wrong in the tensors of modifications, told by the first call.
    pub(crate) wrong: Vec<String>,
    pub(crate) known: Arc<Known>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            scale: None,
            left: None,
            right: None,
            order: Order::Bshd,
            origins: None,
            score: None,
            mask: None,
            scalars: Vec::new(),
            tensors: Vec::new(),
            sink: None,
            dropout: None,
            deterministic: false,
            inference: false,
            shares_plans: None,
            oracle: false,
            poison: false,
            judge: false,
            runtime: None,
            wrong: Vec::new(),
            known: Arc::default(),
        }
    }
}

impl Options {
    /// Attention without a mask, over tensors of (batch, sequence, head, head dim).
    #[must_use]
    pub fn new() -> Options {
        Options::default()
    }

    /// The factor of the product of Q and K. Default: one over the square root of the head dim. It is no part of a
    /// plan.
    #[must_use]
    pub fn softmax_scale(mut self, scale: f32) -> Options {
        self.scale = Some(scale);
        self
    }

    /// Hides the keys behind each query, where the last query stands at the last key: the same as
    /// `window_size_right(0)`, or no bound for `false`.
    #[must_use]
    pub fn causal(self, causal: bool) -> Options {
        self.window_size_right(causal.then_some(0))
    }

    /// Keys that a query sees before its own. `None` is no bound.
    #[must_use]
    pub fn window_size_left(mut self, keys: impl Into<Option<usize>>) -> Options {
        self.left = keys.into();
        self.changed()
    }

    /// Keys that a query sees behind its own; 0 is causal. `None` is no bound.
    #[must_use]
    pub fn window_size_right(mut self, keys: impl Into<Option<usize>>) -> Options {
        self.right = keys.into();
        self.changed()
    }

    /// The order of dims.
    #[must_use]
    pub fn order(mut self, order: Order) -> Options {
        self.order = order;
        self
    }

    /// Limits scores to the range from `-cap` to `cap`, by `tanh(score / cap) * cap`. The cap is no part of a plan.
    #[must_use]
    pub fn softcap(self, cap: f32) -> Options {
        self.score_mod(|score| library::softcap(score, scalar("softcap"))).scalar("softcap", cap)
    }

    /// ALiBi: lowers scores by a slope for each head times the distance of query and key. The slopes are f32, of
    /// (heads) or (batch, heads), and have a gradient if they are tracked.
    #[must_use]
    pub fn alibi_slopes(mut self, slopes: &Tensor) -> Options {
        let dims = match *slopes.dims() {
            [heads] => [1, long(heads), 1, 1],
            [batch, heads] => [long(batch), long(heads), 1, 1],
            ref other => {
                self.wrong.push(format!("alibi_slopes has dims {other:?}; give (heads) or (batch, heads)"));
                return self;
            }
        };
        match spec_of(slopes, dims) {
            Ok(spec) => {
                let slope = tensor("alibi_slopes", spec);
                self.score_mod(|score| score - slope * (position() - key()).abs()).tensor("alibi_slopes", slopes)
            }
            Err(text) => {
                self.wrong.push(format!("alibi_slopes {text}"));
                self
            }
        }
    }

    /// Adds a tensor to the scores, whose dims broadcast over (batch, head, query, key), counted from the last. A bias
    /// that is tracked gets its gradient.
    #[must_use]
    pub fn bias(mut self, bias: &Tensor) -> Options {
        match spec(bias) {
            Ok(spec) => self.score_mod(|score| library::bias(score, "bias", spec)).tensor("bias", bias),
            Err(text) => {
                self.wrong.push(format!("bias: {text}"));
                self
            }
        }
    }

    /// A learned logit for each query head that joins the softmax's sum: f32, of (heads). It gets its gradient if it is
    /// tracked.
    #[must_use]
    pub fn sink(mut self, sink: &Tensor) -> Options {
        self.sink = Some(sink.clone());
        self.changed()
    }

    /// Modifies scores by an expression of qkvault's language: what the closure returns for the score so far. Numbers
    /// and tensors that the expression names are given with [`Options::scalar`] and [`Options::tensor`].
    #[must_use]
    pub fn score_mod(mut self, modify: impl FnOnce(Expr) -> Expr) -> Options {
        let so_far = self.score.take().unwrap_or_else(score);
        self.score = Some(modify(so_far));
        self.changed()
    }

    /// Keys that queries see: an expression that is true for them. Several masks must all be true.
    #[must_use]
    pub fn mask_mod(mut self, mask: Expr) -> Options {
        self.mask = Some(match self.mask.take() {
            Some(other) => other.and(mask),
            None => mask,
        });
        self.changed()
    }

    /// The value of a scalar that an expression names. It is no part of a plan.
    #[must_use]
    pub fn scalar(mut self, name: &str, value: impl Into<Number>) -> Options {
        match self.scalars.iter_mut().find(|(own, _)| own == name) {
            Some((_, own)) => *own = value.into(),
            None => self.scalars.push((name.to_owned(), value.into())),
        }
        self
    }

    /// The tensor that an expression names; [`spec`] is what the expression has of it. One of the same kind may take
    /// the place of another (`"bias"`, say, with a bias that each step computes), and plans stay known.
    #[must_use]
    pub fn tensor(mut self, name: &str, tensor: &Tensor) -> Options {
        let alike =
            |a: &Tensor| a.dims() == tensor.dims() && a.dtype() == tensor.dtype() && a.track_op() == tensor.track_op();
        match self.tensors.iter_mut().find(|(own, _)| own == name) {
            Some((_, own)) if alike(own) => {
                *own = tensor.clone();
                return self;
            }
            Some((_, own)) => *own = tensor.clone(),
            None => self.tensors.push((name.to_owned(), tensor.clone())),
        }
        self.changed()
    }

    /// Whether two backwards on the same tensors must give the same bits. Default: no.
    #[must_use]
    pub fn deterministic(mut self, deterministic: bool) -> Options {
        self.deterministic = deterministic;
        self.changed()
    }

    /// Whether outputs are made without the statistics that a backward reads, also where tensors are tracked. A
    /// backward through such an output is an error. Default: no.
    #[must_use]
    pub fn inference(mut self, inference: bool) -> Options {
        self.inference = inference;
        self.changed()
    }

    /// Whether calls over (batch, sequence, head, head dim) whose numbers of queries and keys differ share plans: what
    /// is no power of two is copied into room for the next one, and the lengths are numbers of the launch. A generation
    /// then has a plan for each power of two, not for each token. Calls that need a gradient or the log-sum-exp, have
    /// origins or read tensors besides slopes are as they would be without it. Default: yes for the functions of
    /// candle-flash-attn, no for the others.
    #[must_use]
    pub fn share_plans(mut self, share: bool) -> Options {
        self.shares_plans = Some(share);
        self.changed()
    }

    /// Whether tensors on the CPU are computed by the oracle, in float64 and slowly, for tests. Default: no; they are
    /// an error.
    #[must_use]
    pub fn cpu_oracle(mut self, oracle: bool) -> Options {
        self.oracle = oracle;
        self
    }

    /// Whether every output is filled with NaN before its launch, so that elements that nothing writes are seen.
    /// Default: no.
    #[must_use]
    pub fn poison_outputs(mut self, poison: bool) -> Options {
        self.poison = poison;
        self
    }

    /// Whether the oracle judges every launch on a GPU, row by row: an error if it is wrong. For tests: each waits for
    /// the GPU. Default: no.
    #[must_use]
    pub fn judge_launches(mut self, judge: bool) -> Options {
        self.judge = judge;
        self
    }

    /// Where plans come from. Default: the user's vault, which builds nothing (`Runtime::options().open_raw()`).
    #[must_use]
    pub fn runtime(mut self, runtime: &RawRuntime) -> Options {
        self.runtime = Some(runtime.clone());
        self.changed()
    }

    /// The same options, with descriptions and plans of their own.
    pub(crate) fn changed(mut self) -> Options {
        self.known = Arc::default();
        self
    }

    /// Whether a tensor of a modification, or the sink, is tracked.
    pub(crate) fn is_tracked(&self) -> bool {
        self.tensors.iter().map(|(_, tensor)| tensor).chain(&self.sink).any(Tensor::track_op)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.wrong.is_empty() {
            true => Ok(()),
            false => Err(Error::Tensor(self.wrong.join("; "))),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Options");
        shown.field("softmax_scale", &self.scale).field("window_size_left", &self.left);
        shown.field("window_size_right", &self.right).field("order", &self.order).field("scalars", &self.scalars);
        shown
            .field("origins", &self.origins)
            .field("deterministic", &self.deterministic)
            .field("inference", &self.inference)
            .finish_non_exhaustive()
    }
}

/// A tensor as an expression reads it: its element type, its dims before which ones of 1 are put, and a gradient if the
/// tensor is tracked.
///
/// # Errors
///
/// A text that says why: more than four dims, or an element type that expressions do not read.
pub fn spec(tensor: &Tensor) -> Result<TensorSpec, String> {
    let given = tensor.dims();
    if given.len() > 4 {
        return Err(format!("dims {given:?} are more than the four of (batch, head, query, key)"));
    }
    let mut dims = [1; 4];
    for (dim, n) in dims.iter_mut().rev().zip(given.iter().rev()) {
        *dim = long(*n);
    }
    spec_of(tensor, dims)
}

fn spec_of(tensor: &Tensor, dims: [i64; 4]) -> Result<TensorSpec, String> {
    let unknown = || format!("is {:?}; expressions read f32, f16, bf16, i32 and u32", tensor.dtype());
    let spec = TensorSpec::new(dtype(tensor).ok_or_else(unknown)?, dims);
    spec.ty().ok_or_else(unknown)?;
    Ok(if tensor.track_op() { spec.with_grad() } else { spec })
}
