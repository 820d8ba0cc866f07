//! A small model that learns through the door: the second token of each sequence tells which one comes last.
#![cfg(feature = "cpu")]

use burn_autodiff::Autodiff;
use burn_flex::Flex;
use burn_qkvault::{Options, attention};
use burn_qkvault_examples::dice::Dice;
use burn_qkvault_examples::plain::{Plain, plain};
use burn_tensor::{DType, Tensor, TensorData};

type B = Autodiff<Flex>;

/// Sequences, heads, rows, head dim.
const DIMS: [usize; 4] = [4, 2, 8, 8];

/// The losses of some steps of gradient descent, with an attention over float32 tensors of (batch, head, row, dim).
fn losses(attend: impl Fn([Tensor<B, 4>; 3]) -> Tensor<B, 4>) -> Vec<f32> {
    let device = Default::default();
    let [batch, heads, rows, d] = DIMS;
    let width = heads * d;
    let mut dice = Dice::new(5);
    let mut random = |dims: [usize; 2], by: f32| {
        let numbers: Vec<f32> = dice.numbers(dims[0] * dims[1]).iter().map(|x| x * by).collect();
        Tensor::<B, 2>::from_data(TensorData::new(numbers, dims), &device)
    };
    let x = random([batch * rows, width], 1.0).reshape([batch, rows, width]);
    let mut weights: Vec<Tensor<B, 3>> = (0..3).map(|_| random([width, width], 0.2).unsqueeze()).collect();
    // Each row is asked for the one before it.
    let asked = x.clone().narrow(1, 0, rows - 1);
    let mut all = Vec::new();
    for _ in 0..30 {
        weights = weights.into_iter().map(|own| own.detach().require_grad()).collect();
        let part = |own: &Tensor<B, 3>| {
            let projected = x.clone().matmul(own.clone().expand([batch, width, width]));
            projected.reshape([batch, rows, heads, d]).swap_dims(1, 2)
        };
        let o = attend([part(&weights[0]), part(&weights[1]), part(&weights[2])]);
        let o = o.swap_dims(1, 2).reshape([batch, rows, width]).narrow(1, 1, rows - 1);
        let loss = (o - asked.clone()).powi_scalar(2).mean();
        all.push(loss.clone().into_scalar());
        let gradients = loss.backward();
        let step = |own: Tensor<B, 3>| {
            let by = Tensor::from_inner(own.grad(&gradients).expect("it is tracked"));
            own.detach() - by.mul_scalar(2.0)
        };
        weights = weights.into_iter().map(step).collect();
    }
    all
}

#[test]
fn a_small_model_learns_as_with_burns_plain_attention() {
    let ours = losses(|tensors| {
        let [q, k, v] = tensors.map(|own| own.cast(DType::BF16));
        let o = attention(q, k, v, &Options::new().causal(true)).expect("the oracle computes it");
        o.cast(DType::F32)
    });
    let theirs = losses(|[q, k, v]| plain(q, k, v, &Plain { right: Some(0), ..Plain::default() }));
    let (first, last) = (ours[0], ours[ours.len() - 1]);
    assert!(last < 0.8 * first, "the loss went from {first} to {last}");
    for (step, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        assert!((a - b).abs() < 0.03 * b, "step {step}: {a} beside {b}");
    }
}
