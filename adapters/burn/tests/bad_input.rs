//! Bad input: each is an error that says what came and what is needed, and nothing is computed.
#![cfg(feature = "cpu")]

use std::sync::Arc;

use burn_autodiff::Autodiff;
use burn_flex::Flex;
use burn_qkvault::qkvault::codes;
use burn_qkvault::{Error, Options, Sequences, attention, attention_varlen};
use burn_tensor::{DType, Tensor};

fn zeros(dims: [usize; 4], dtype: DType) -> Tensor<Flex, 4> {
    Tensor::zeros(dims, (&Default::default(), dtype))
}

fn half(dims: [usize; 4]) -> Tensor<Flex, 4> {
    zeros(dims, DType::BF16)
}

fn line(n: usize, dtype: DType) -> Tensor<Flex, 1> {
    Tensor::zeros([n], (&Default::default(), dtype))
}

/// Fails unless it is an error whose text has all of these words.
fn refused<T>(result: Result<T, Error>, words: &[&str]) {
    let Err(error) = result else { panic!("it was computed; expected {words:?}") };
    let text = error.to_string();
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in: {text}"));
}

fn of(q: &Tensor<Flex, 4>, k: Tensor<Flex, 4>, options: Options<Flex>) -> Result<Tensor<Flex, 4>, Error> {
    attention(q.clone(), k.clone(), k, &options)
}

#[test]
fn element_types_that_kernels_do_not_compute_are_named_with_the_cast() {
    let (wide, q) = (zeros([1, 2, 4, 16], DType::F32), half([1, 2, 4, 16]));
    refused(of(&wide, wide.clone(), Options::new()), &["q is F32", "F16 and BF16", "cast(DType::BF16)"]);
    refused(of(&q, zeros([1, 2, 4, 16], DType::F16), Options::new()), &["k is F16", "q is BF16"]);
}

#[test]
fn shapes_that_contradict_each_other_have_reasons_with_codes() {
    let q = half([1, 3, 4, 16]);
    let error = of(&q, half([1, 2, 4, 16]), Options::new()).expect_err("3 heads over 2");
    let refusal = error.refusal().expect("it has reasons");
    assert!(refusal.has(&codes::HEADS_GROUP), "{refusal}");
    refused(of(&q, half([1, 3, 4, 24]), Options::new()), &["head"]);
    refused(of(&q, half([2, 3, 4, 16]), Options::new()), &["batch"]);
    refused(of(&q, half([1, 3, 0, 16]), Options::new()), &["k has dims", "dim 2 is empty"]);
}

#[test]
fn tensors_of_options_that_do_not_fit_are_named() {
    let q = half([1, 2, 4, 16]);
    let with = |options| of(&q, q.clone(), options);
    refused(with(Options::new().bias(half([1, 3, 4, 4]))), &["bias"]);
    refused(with(Options::new().bias(zeros([1, 2, 4, 4], DType::F64))), &["bias is F64", "F32, F16 or BF16"]);
    refused(with(Options::new().mask(half([1, 1, 4, 5]).equal_elem(1.0))), &["mask"]);
    refused(with(Options::new().alibi_slopes(line(3, DType::F32))), &["alibi_slopes has dims [3]", "2 heads"]);
    refused(with(Options::new().sink(line(3, DType::F32))), &["sink has dims [3]", "2 heads"]);
    refused(with(Options::new().sink(line(2, DType::BF16))), &["sink is bf16", "F32"]);
    refused(with(Options::new().softcap(0.0)), &["softcap is 0", "positive"]);
    refused(with(Options::new().softcap(f32::NAN)), &["softcap is NaN"]);
}

#[test]
fn sequences_that_are_not_those_of_the_tensors_are_refused_before_a_kernel_follows_them() {
    let q = Tensor::<Flex, 3>::zeros([6, 2, 16], (&Default::default(), DType::BF16));
    let varlen = |queries: &[usize], keys: &[usize]| {
        let lengths = Arc::new(Sequences::new(queries, keys)?);
        attention_varlen(q.clone(), q.clone(), q.clone(), &lengths, &Options::new())
    };
    refused(varlen(&[3, 4], &[3, 3]), &["7 tokens", "q has 6"]);
    refused(varlen(&[3, 3], &[3, 6]), &["9 tokens", "k has 6"]);
    refused(varlen(&[6], &[3, 3]), &["1 sequences of queries and 2 of keys"]);
    refused(varlen(&[usize::MAX], &[6]), &["2147483647"]);
    assert!(varlen(&[2, 4], &[3, 3]).is_ok());
}

#[test]
fn what_refuses_a_backward_is_told_by_the_forward() {
    // burn's backward could only panic.
    type B = Autodiff<Flex>;
    let q = Tensor::<B, 3>::zeros([6, 2, 16], (&Default::default(), DType::BF16)).require_grad();
    let bias = Tensor::<B, 4>::zeros([3, 2, 6, 6], (&Default::default(), DType::BF16)).require_grad();
    let lengths = Arc::new(Sequences::new(&[3, 3], &[3, 3]).expect("they fit"));
    let options = Options::new().bias(bias);
    refused(attention_varlen(q.clone(), q.clone(), q, &lengths, &options), &["bias"]);
}
