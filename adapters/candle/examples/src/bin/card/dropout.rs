//! Dropout on a GPU. The oracle cannot draw cuDNN's numbers, so what holds for any mask is checked.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_qkvault::{Options, attention};

use crate::cases::relative;

const PROBABILITY: f32 = 0.25;

/// What is wrong, in words.
pub(crate) fn run(base: &Options, device: &Device) -> Result<Vec<String>> {
    let base = base.clone().judge_launches(false).causal(true);
    let random = || Tensor::randn(0f32, 1.0, (2, 256, 4, 64), device)?.to_dtype(DType::BF16);
    let (q, k, v, weights) = (random()?, random()?, Var::from_tensor(&random()?)?, random()?.to_dtype(DType::F32)?);
    let call = |seed, offset| attention(&q, &k, &v, &base.clone().dropout(PROBABILITY, seed, offset));
    let mut wrong = Vec::new();
    let mut check = |what: &str, good: bool| wrong.extend((!good).then(|| format!("dropout: {what}")));
    let o = call(7, 0)?;
    check("the same seed draws other numbers", relative(&call(7, 0)?, &o, 0.0)? == 0.0);
    check("another seed draws the same numbers", relative(&call(8, 0)?, &o, 0.0)? > 0.1);
    check("another offset draws the same numbers", relative(&call(7, 64)?, &o, 0.0)? > 0.1);
    // O is linear in V: with the forward's mask, the gradient of V times V is the weighted sum of O.
    let number = |t: Tensor| t.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>();
    let sum = (o.to_dtype(DType::F32)? * &weights)?;
    let size = number(sum.sqr()?)?.sqrt();
    let sum = sum.sum_all()?;
    let gradients = sum.backward()?;
    let lacking = || candle_core::Error::Msg("V has no gradient".to_owned());
    let d_v = gradients.get(&v).ok_or_else(lacking)?.to_dtype(DType::F32)?;
    let off = (number((d_v * v.to_dtype(DType::F32)?)?)? - sum.to_scalar::<f32>()?).abs() / size;
    check(&format!("the backward dropped others than its forward: off by {off}"), off < 0.1);
    // With V of ones every row is the sum of what was kept over what is kept on average.
    let ones = Tensor::ones((2, 256, 4, 64), DType::BF16, device)?;
    let kept = attention(&q, &k, &ones, &base.dropout(PROBABILITY, 9, 0))?;
    let mean = number(kept.clone())? / kept.elem_count() as f32;
    check(&format!("rows sum up to {mean} on average"), (mean - 1.0).abs() < 0.03);
    Ok(wrong)
}
