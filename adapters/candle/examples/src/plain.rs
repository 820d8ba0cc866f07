//! candle's plain attention: matrix products and a softmax in float32.

use candle_core::{DType, Result, Tensor};
use candle_nn::ops::softmax_last_dim;

/// What a plain attention computes besides its products.
#[derive(Clone, Debug, Default)]
pub struct Plain {
    /// The softmax scale; one over the square root of the head dim if there is none.
    pub scale: Option<f64>,
    /// Keys before a query's own, which stands bottom right.
    pub left: Option<usize>,
    /// Keys behind a query's own.
    pub right: Option<usize>,
    /// The bound of scores.
    pub softcap: Option<f64>,
    /// Added to scores.
    pub bias: Option<Tensor>,
    /// ALiBi's slope of each head.
    pub slopes: Option<Tensor>,
    /// A logit for each head.
    pub sink: Option<Tensor>,
}

/// Attention over tensors of (batch, sequence, head, head dim), in float32.
///
/// # Errors
///
/// As candle's operations.
pub fn plain(q: &Tensor, k: &Tensor, v: &Tensor, of: &Plain) -> Result<Tensor> {
    let ((_, rows, heads, d), (_, keys, kv_heads, _)) = (q.dims4()?, k.dims4()?);
    let turned = |t: &Tensor| t.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous();
    let spread = |t: Tensor| -> Result<Tensor> {
        let (b, h, s, d) = t.dims4()?;
        match heads / kv_heads {
            1 => Ok(t),
            n => t.unsqueeze(2)?.broadcast_as((b, h, n, s, d))?.reshape((b, heads, s, d)),
        }
    };
    let (q, k, v) = (turned(q)?, spread(turned(k)?)?, spread(turned(v)?)?);
    let mut scores = (q.matmul(&k.t()?.contiguous()?)? * of.scale.unwrap_or(1.0 / (d as f64).sqrt()))?;
    if let Some(cap) = of.softcap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(bias) = &of.bias {
        scores = scores.broadcast_add(&bias.to_dtype(DType::F32)?)?;
    }
    // The key at which a query stands.
    let place = |row: usize| (row + keys) as f32 - rows as f32;
    if let Some(slopes) = &of.slopes {
        let far = (0..rows).flat_map(|row| (0..keys).map(move |key| -(place(row) - key as f32).abs()));
        let far = Tensor::from_iter(far, q.device())?.reshape((1, 1, rows, keys))?;
        scores = scores.broadcast_add(&slopes.reshape((1, heads, 1, 1))?.broadcast_mul(&far)?)?;
    }
    if of.left.is_some() || of.right.is_some() {
        let behind = |row: usize, key: usize| key as f32 - place(row);
        let seen = |row: usize, key: usize| {
            of.right.is_none_or(|right| behind(row, key) <= right as f32)
                && of.left.is_none_or(|left| -behind(row, key) <= left as f32)
        };
        let hidden = |row, key| if seen(row, key) { 0f32 } else { f32::NEG_INFINITY };
        let mask = (0..rows).flat_map(|row| (0..keys).map(move |key| hidden(row, key)));
        scores = scores.broadcast_add(&Tensor::from_iter(mask, q.device())?.reshape((1, 1, rows, keys))?)?;
    }
    if let Some(sink) = &of.sink {
        let (b, ..) = scores.dims4()?;
        let sink = sink.reshape((1, heads, 1, 1))?.broadcast_as((b, heads, rows, 1))?;
        scores = Tensor::cat(&[&scores, &sink.contiguous()?], 3)?;
    }
    // The quick softmax has no backward.
    let p = match scores.track_op() {
        true => candle_nn::ops::softmax(&scores, 3)?,
        false => softmax_last_dim(&scores.contiguous()?)?,
    };
    p.narrow(3, 0, keys)?.contiguous()?.matmul(&v)?.transpose(1, 2)
}
