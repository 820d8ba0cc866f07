//! Outputs and gradients through candle's autograd, computed by the oracle, beside candle's plain attention.

mod plain;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_qkvault::qkvault::graph::expr::{library, scalar, tensor};
use candle_qkvault::{
    Options, Order, attention, attention_with_lse, flash_attn_alibi_windowed_softcap, set_defaults, spec,
};
use plain::{Plain, near, plain, var};

/// Q of 7 rows and 4 heads, K and V of 9 rows and 2.
fn tensors(dtype: DType) -> [Var; 3] {
    [var(&[2, 7, 4, 16], dtype), var(&[2, 9, 2, 16], dtype), var(&[2, 9, 2, 16], dtype)]
}

fn oracle() -> Options {
    Options::new().cpu_oracle(true)
}

/// Compares output and gradients of some options with those of plain attention, of `extra` variables too.
fn same(
    options: impl Fn(&[Tensor]) -> Options,
    of: impl Fn(&[Tensor]) -> Plain,
    extra: &[Var],
    dtype: DType,
) -> Result<()> {
    let [q, k, v] = tensors(dtype);
    let weights = Tensor::randn(0f32, 1.0, (2, 7, 4, 16), &Device::Cpu)?;
    let extras: Vec<Tensor> = extra.iter().map(|own| own.as_tensor().clone()).collect();
    let half = |own: &Var| own.to_dtype(dtype);
    let ours = attention(&half(&q)?, &half(&k)?, &half(&v)?, &options(&extras))?;
    let theirs = plain(&q, &k, &v, &of(&extras))?;
    near("the output", &ours, &theirs);
    let (ours, theirs) = ((ours.to_dtype(DType::F32)? * &weights)?.backward()?, (theirs * &weights)?.backward()?);
    let all = [&q, &k, &v].into_iter().chain(extra);
    for (at, own) in all.enumerate() {
        let gradient = |of: &candle_core::backprop::GradStore| of.get(own).cloned().expect("it has a gradient");
        near(&format!("gradient {at}"), &gradient(&ours), &gradient(&theirs));
    }
    Ok(())
}

#[test]
fn masks_windows_scales_and_softcaps_have_candles_outputs_and_gradients() -> Result<()> {
    for dtype in [DType::BF16, DType::F16] {
        same(|_| oracle(), |_| Plain::default(), &[], dtype)?;
        let causal = Plain { right: Some(0), ..Plain::default() };
        same(|_| oracle().causal(true), |_| causal.clone(), &[], dtype)?;
        let window = Plain { left: Some(3), right: Some(1), scale: Some(0.4), ..Plain::default() };
        let options = || oracle().window_size_left(3).window_size_right(1).softmax_scale(0.4);
        same(|_| options(), |_| window.clone(), &[], dtype)?;
        let capped = Plain { softcap: Some(1.5), right: Some(0), ..Plain::default() };
        same(|_| oracle().softcap(1.5).causal(true), |_| capped.clone(), &[], dtype)?;
    }
    Ok(())
}

#[test]
fn a_bias_a_sink_and_slopes_get_their_gradients_though_an_operation_has_three_inputs() -> Result<()> {
    let bias = || var(&[1, 4, 7, 9], DType::BF16);
    let (sink, slopes) = (|| var(&[4], DType::F32), || var(&[4], DType::F32));
    let with_bias = |e: &[Tensor]| Plain { bias: Some(e[0].clone()), ..Plain::default() };
    same(|e| oracle().bias(&e[0]), with_bias, &[bias()], DType::BF16)?;
    let with_sink = |e: &[Tensor]| Plain { sink: Some(e[0].clone()), right: Some(0), ..Plain::default() };
    same(|e| oracle().causal(true).sink(&e[0]), with_sink, &[sink()], DType::BF16)?;
    let both = |e: &[Tensor]| Plain { sink: Some(e[0].clone()), bias: Some(e[1].clone()), ..Plain::default() };
    same(|e| oracle().bias(&e[1]).sink(&e[0]), both, &[sink(), bias()], DType::BF16)?;
    let all = |e: &[Tensor]| Plain {
        sink: Some(e[0].clone()),
        bias: Some(e[1].clone()),
        slopes: Some(e[2].clone()),
        softcap: Some(2.0),
        right: Some(0),
        ..Plain::default()
    };
    let options = |e: &[Tensor]| oracle().causal(true).softcap(2.0).bias(&e[1]).alibi_slopes(&e[2]).sink(&e[0]);
    same(options, all, &[sink(), bias(), slopes()], DType::BF16)
}

#[test]
fn a_sink_that_is_not_tracked_is_read_by_the_backward_too() -> Result<()> {
    let sink = var(&[4], DType::F32).detach();
    let with_sink = |_: &[Tensor]| Plain { sink: Some(sink.clone()), ..Plain::default() };
    same(|_| oracle().sink(&sink), with_sink, &[], DType::BF16)
}

#[test]
fn a_16_bit_bias_that_broadcasts_gets_a_gradient_of_its_own_type_and_shape() -> Result<()> {
    let bias = var(&[7, 9], DType::BF16);
    let half = |e: &[Tensor]| e[0].to_dtype(DType::BF16).expect("rounds");
    let with_bias = |e: &[Tensor]| Plain { bias: Some(e[0].reshape((1, 1, 7, 9)).expect("dims")), ..Plain::default() };
    same(|e| oracle().bias(&half(e)), with_bias, &[bias], DType::BF16)
}

#[test]
fn views_of_other_orders_give_the_same_without_a_copy() -> Result<()> {
    let [q, k, v] = tensors(DType::BF16);
    let half = |own: &Var| own.to_dtype(DType::BF16);
    let (q, k, v) = (half(&q)?.detach(), half(&k)?.detach(), half(&v)?.detach());
    let usual = attention(&q, &k, &v, &oracle().causal(true))?;
    let turned = |t: &Tensor| t.transpose(1, 2)?.contiguous();
    // BHSD in memory, seen as BSHD and as BHSD; and BSHD in memory seen as BHSD.
    let (tq, tk, tv) = (turned(&q)?, turned(&k)?, turned(&v)?);
    let seen = |t: &Tensor| t.transpose(1, 2);
    let views = attention(&seen(&tq)?, &seen(&tk)?, &seen(&tv)?, &oracle().causal(true))?;
    let bhsd = oracle().causal(true).order(Order::Bhsd);
    let whole = attention(&tq, &tk, &tv, &bhsd)?;
    let mixed = attention(&seen(&q)?, &tk, &seen(&v)?, &bhsd)?;
    assert_eq!(whole.dims(), [2, 4, 7, 16]);
    for other in [&views, &whole.transpose(1, 2)?, &mixed.transpose(1, 2)?] {
        assert_eq!(plain::apart(other, &usual), 0.0);
    }
    // Parts of one tensor of queries, keys and values.
    let all = Tensor::randn(0f32, 1.0, (1, 5, 3, 2, 16), &Device::Cpu)?.to_dtype(DType::BF16)?;
    let part = |at: usize| all.narrow(2, at, 1)?.squeeze(2);
    let parts = attention(&part(0)?, &part(1)?, &part(2)?, &oracle())?;
    let copied = |at: usize| part(at)?.contiguous();
    assert_eq!(plain::apart(&parts, &attention(&copied(0)?, &copied(1)?, &copied(2)?, &oracle())?), 0.0);
    Ok(())
}

#[test]
fn expressions_of_ones_own_with_scalars_and_tensors_have_derived_gradients() -> Result<()> {
    let bias = var(&[1, 4, 1, 9], DType::F32);
    let options = |e: &[Tensor]| {
        let read = tensor("per_key", spec(&e[0]).expect("it is read"));
        let modified = oracle().score_mod(|score| library::softcap(score, scalar("cap")) + read);
        modified.scalar("cap", 1.5f32).tensor("per_key", &e[0])
    };
    let of = |e: &[Tensor]| Plain { softcap: Some(1.5), bias: Some(e[0].clone()), ..Plain::default() };
    same(options, of, &[bias], DType::F16)
}

#[test]
fn the_log_sum_exp_and_a_second_backward_are_right() -> Result<()> {
    let [q, k, v] = tensors(DType::BF16);
    let half = |own: &Var| own.to_dtype(DType::BF16);
    let (o, lse) = attention_with_lse(&half(&q)?, &half(&k)?, &half(&v)?, &oracle())?;
    let turned = |t: &Tensor| t.transpose(1, 2)?.contiguous();
    let keys = turned(&k)?.unsqueeze(2)?.broadcast_as((2, 2, 2, 9, 16))?.reshape((2, 4, 9, 16))?;
    let scores = (turned(&q)?.matmul(&keys.t()?.contiguous()?)? * 0.25)?;
    near("the log-sum-exp", &lse, &scores.log_sum_exp(3)?);
    let loss = o.to_dtype(DType::F32)?.sqr()?.sum_all()?;
    let (first, second) = (loss.backward()?, loss.backward()?);
    for own in [&q, &k, &v] {
        assert_eq!(plain::apart(first.get(own).expect("there"), second.get(own).expect("there")), 0.0);
    }
    Ok(())
}

#[test]
fn the_functions_of_candle_flash_attn_cap_first_and_lower_by_the_distance() -> Result<()> {
    set_defaults(oracle());
    let [q, k, v] = tensors(DType::BF16);
    let slopes = var(&[4], DType::F32).abs()?;
    let half = |own: &Var| own.to_dtype(DType::BF16);
    let (q16, k16, v16) = (half(&q)?, half(&k)?, half(&v)?);
    for cap in [1.5, 3.0] {
        let ours = flash_attn_alibi_windowed_softcap(&q16, &k16, &v16, Some(&slopes), 0.5, Some(4), Some(2), cap)?;
        let of = Plain {
            scale: Some(0.5),
            left: Some(4),
            right: Some(2),
            softcap: Some(f64::from(cap)),
            slopes: Some(slopes.clone()),
            ..Plain::default()
        };
        near("the output", &ours, &plain(&q, &k, &v, &of)?);
    }
    Ok(())
}
