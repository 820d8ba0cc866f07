//! Plain attention of burn's tensors: matrix products and a softmax in float32.

use burn_tensor::backend::Backend;
use burn_tensor::{Bool, Tensor, TensorData};

/// What a plain attention computes besides its products.
#[derive(Clone, Debug)]
pub struct Plain<B: Backend> {
    /// The softmax scale; one over the square root of the head dim if there is none.
    pub scale: Option<f32>,
    /// Keys before a query's own, which stands bottom right.
    pub left: Option<usize>,
    /// Keys behind a query's own.
    pub right: Option<usize>,
    /// The bound of scores.
    pub softcap: Option<f32>,
    /// ALiBi's slope of each head.
    pub slopes: Option<Tensor<B, 1>>,
    /// Added to scores.
    pub bias: Option<Tensor<B, 4>>,
    /// True where keys are hidden.
    pub mask: Option<Tensor<B, 4, Bool>>,
    /// A logit for each head.
    pub sink: Option<Tensor<B, 1>>,
}

impl<B: Backend> Default for Plain<B> {
    fn default() -> Plain<B> {
        Plain { scale: None, left: None, right: None, softcap: None, slopes: None, bias: None, mask: None, sink: None }
    }
}

/// Attention over float32 tensors of (batch, head, sequence, head dim). Rows that see no key are zero.
pub fn plain<B: Backend>(q: Tensor<B, 4>, k: Tensor<B, 4>, v: Tensor<B, 4>, of: &Plain<B>) -> Tensor<B, 4> {
    let ([_, heads, rows, d], [batch, kv, keys, _]) = (q.dims(), k.dims());
    let device = q.device();
    let spread = |t: Tensor<B, 4>| {
        let [b, _, s, d] = t.dims();
        t.unsqueeze_dim::<5>(2).repeat_dim(2, heads / kv).reshape([b, heads, s, d])
    };
    let (k, v) = (spread(k), spread(v));
    let mut scores = q.matmul(k.swap_dims(2, 3)).mul_scalar(of.scale.unwrap_or(1.0 / (d as f32).sqrt()));
    if let Some(cap) = of.softcap {
        scores = scores.div_scalar(cap).tanh().mul_scalar(cap);
    }
    // How far a key is behind the key at which a query stands.
    let behind = |at: usize| (at % keys + rows) as f32 - (at / keys + keys) as f32;
    if let Some(slopes) = &of.slopes {
        let far: Vec<f32> = (0..rows * keys).map(|at| -behind(at).abs()).collect();
        let far = Tensor::<B, 4>::from_data(TensorData::new(far, [1, 1, rows, keys]), &device);
        scores = scores + slopes.clone().reshape([1, heads, 1, 1]) * far;
    }
    if let Some(bias) = &of.bias {
        scores = scores + bias.clone();
    }
    let right = |at: usize| of.right.is_some_and(|right| behind(at) > right as f32);
    let left = |at: usize| of.left.is_some_and(|left| -behind(at) > left as f32);
    let hidden: Vec<bool> = (0..rows * keys).map(|at| right(at) || left(at)).collect();
    let hidden = Tensor::<B, 4, Bool>::from_data(TensorData::new(hidden, [1, 1, rows, keys]), &device);
    scores = scores.mask_fill(hidden.expand([batch, heads, rows, keys]), f32::NEG_INFINITY);
    if let Some(mask) = &of.mask {
        scores = scores.mask_fill(mask.clone().expand([batch, heads, rows, keys]), f32::NEG_INFINITY);
    }
    let largest = scores.clone().detach().max_dim(3).clamp_min(-1e30);
    let parts = (scores - largest.clone()).exp();
    let mut sum = parts.clone().sum_dim(3);
    if let Some(sink) = &of.sink {
        sum = sum + (sink.clone().reshape([1, heads, 1, 1]) - largest).exp();
    }
    (parts / sum.clamp_min(1e-30)).matmul(v)
}
