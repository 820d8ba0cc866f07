//! Bad input: each is an error of candle's with qkvault's reason inside, and nothing is computed.

mod plain;

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_qkvault::qkvault::codes;
use candle_qkvault::qkvault::graph::expr::{scalar, score, tensor};
use candle_qkvault::{
    Error, Options, Order, Sequences, attention, attention_paged, attention_varlen, descriptions, flash_attn_alibi,
    set_defaults, spec,
};

fn oracle() -> Options {
    Options::new().cpu_oracle(true)
}

fn zeros(dims: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(dims, dtype, &Device::Cpu).expect("zeros")
}

fn half(dims: &[usize]) -> Tensor {
    zeros(dims, DType::BF16)
}

/// Fails unless it is an error of this crate whose text has all of these words.
fn refused<T>(result: Result<T>, words: &[&str]) {
    let Err(error) = result else { panic!("it was computed; expected {words:?}") };
    let own = Error::of(&error).unwrap_or_else(|| panic!("no error of this crate: {error}")).to_string();
    for word in words {
        assert!(own.contains(word) && error.to_string().contains(word), "{word:?} is not in: {own}");
    }
}

#[test]
fn tensors_on_the_cpu_are_an_error_unless_the_oracle_is_asked_for() {
    let q = half(&[1, 4, 2, 16]);
    refused(attention(&q, &q, &q, &Options::new()), &["on the CPU", "Options::cpu_oracle(true)"]);
    assert!(attention(&q, &q, &q, &oracle()).is_ok());
}

#[test]
fn element_types_that_cudnn_does_not_compute_are_named() {
    let (wide, q) = (zeros(&[1, 4, 2, 16], DType::F32), half(&[1, 4, 2, 16]));
    refused(attention(&wide, &wide, &wide, &oracle()), &["q is F32", "f16 and bf16", "to_dtype"]);
    let other = zeros(&[1, 4, 2, 16], DType::F16);
    refused(attention(&q, &other, &q, &oracle()), &["k is F16", "q is BF16"]);
    refused(attention(&q, &q, &zeros(&[1, 4, 2, 16], DType::U8), &oracle()), &["v is U8"]);
}

#[test]
fn other_ranks_and_empty_dims_are_named_with_the_axes() {
    let (q, flat) = (half(&[1, 4, 2, 16]), half(&[4, 32]));
    refused(attention(&flat, &q, &q, &oracle()), &["q has dims [4, 32]", "(batch, sequence, head, head dim)"]);
    refused(attention(&q, &q, &flat, &oracle()), &["v has dims"]);
    let bhsd = oracle().order(Order::Bhsd);
    refused(attention(&q, &flat, &q, &bhsd), &["k has dims", "(batch, head, sequence, head dim)"]);
    refused(attention(&half(&[1, 0, 2, 16]), &q, &q, &oracle()), &["dim 1 is empty"]);
}

#[test]
fn heads_that_do_not_divide_and_shapes_that_differ_have_reasons_with_codes() {
    let (q, k) = (half(&[1, 4, 3, 16]), half(&[1, 4, 2, 16]));
    let error = attention(&q, &k, &k, &oracle()).expect_err("3 heads over 2");
    let refusal = Error::of(&error).and_then(Error::refusal).expect("it has reasons");
    assert!(refusal.has(&codes::HEADS_GROUP), "{refusal}");
    refused(attention(&q, &half(&[1, 4, 3, 24]), &half(&[1, 4, 3, 24]), &oracle()), &["head"]);
    refused(attention(&q, &half(&[2, 4, 3, 16]), &half(&[2, 4, 3, 16]), &oracle()), &["batch"]);
    refused(attention(&q, &half(&[1, 4, 3, 16]), &half(&[1, 5, 3, 16]), &oracle()), &["v"]);
}

#[test]
fn tensors_that_do_not_lie_as_kernels_read_them_have_reasons() {
    let q = half(&[1, 4, 2, 16]);
    // The head dim is not innermost; rows that are all one row.
    let across = half(&[1, 4, 16, 2]).transpose(2, 3).expect("a view");
    refused(attention(&q, &across, &q, &oracle()), &["k"]);
    let one = half(&[1, 1, 2, 16]).broadcast_as((1, 4, 2, 16)).expect("a view");
    refused(attention(&q, &one, &q, &oracle()), &["k"]);
}

#[test]
fn a_gradient_through_an_output_without_statistics_is_an_error_with_the_reason() {
    let q = Var::from_tensor(&half(&[1, 4, 2, 16])).expect("a variable");
    let o = attention(&q, &q, &q, &oracle().inference(true)).expect("it is computed");
    refused(o.backward(), &["without the statistics", "Options::inference"]);
    let (pages, step) = (half(&[2, 4, 2, 16]), Sequences::paged(1, &[3], &[vec![1]]).expect("fits"));
    let q = Var::from_tensor(&half(&[1, 1, 2, 16])).expect("a variable");
    let o = attention_paged(&q, &pages, &pages, &Arc::new(step), &oracle()).expect("it is computed");
    refused(o.backward(), &["no backward over pages"]);
}

#[test]
fn a_tracked_tensor_whose_expression_has_no_gradient_is_not_forgotten() {
    let q = half(&[1, 4, 2, 16]);
    let bias = Var::from_tensor(&zeros(&[1, 2, 4, 4], DType::F32)).expect("a variable");
    // Described before it was a variable.
    let read = tensor("own", spec(&bias.detach()).expect("read"));
    let options = oracle().score_mod(|score| score + read).tensor("own", &bias);
    refused(attention(&q, &q, &q, &options), &["own is tracked", "spec()", "detach()"]);
}

#[test]
fn operands_of_expressions_that_are_missing_or_of_another_kind_are_named() {
    let q = half(&[1, 4, 2, 16]);
    let bias = zeros(&[1, 2, 4, 4], DType::F32);
    let reads = |options: Options| {
        let read = tensor("own", spec(&bias).expect("read"));
        options.score_mod(|score| score + read)
    };
    refused(attention(&q, &q, &q, &reads(oracle())), &["the tensor own", "Options::tensor"]);
    let other = zeros(&[1, 2, 4, 5], DType::F32);
    refused(
        attention(&q, &q, &q, &reads(oracle()).tensor("own", &other)),
        &["own is F32 [1, 2, 4, 5]", "[1, 2, 4, 4]"],
    );
    let strided = zeros(&[1, 2, 4, 4], DType::F32).transpose(2, 3).expect("a view");
    refused(attention(&q, &q, &q, &reads(oracle()).tensor("own", &strided)), &["contiguous()"]);
    let scaled = oracle().score_mod(|score| score * scalar("by"));
    refused(attention(&q, &q, &q, &scaled), &["the scalar by", "Options::scalar"]);
    refused(attention(&q, &q, &q, &scaled.scalar("by", 3i32)), &["by", "i32", "f32"]);
    refused(attention(&q, &q, &q, &oracle().mask_mod(score())), &["mask_mod"]);
    refused(
        attention(&q, &q, &q, &oracle().bias(&zeros(&[2, 1, 2, 4, 4], DType::F32))),
        &["bias", "more than the four"],
    );
    refused(attention(&q, &q, &q, &oracle().bias(&zeros(&[4, 4], DType::F64))), &["bias", "F64"]);
    refused(
        attention(&q, &q, &q, &oracle().alibi_slopes(&zeros(&[1, 2, 1], DType::F32))),
        &["alibi_slopes", "(heads)"],
    );
    refused(attention(&q, &q, &q, &oracle().sink(&zeros(&[3], DType::F32))), &["sink", "f32 [2]"]);
    refused(attention(&q, &q, &q, &oracle().bias(&zeros(&[1, 3, 4, 4], DType::F32))), &["bias"]);
}

#[test]
fn a_tensor_exchanged_for_one_of_another_kind_is_not_read_as_the_first() {
    let q = half(&[1, 4, 2, 16]);
    let options = oracle().bias(&zeros(&[1, 2, 4, 4], DType::F32));
    assert!(attention(&q, &q, &q, &options).is_ok());
    // The same dims and type, and other strides: the description is known already.
    let strided = zeros(&[1, 2, 4, 4], DType::F32).transpose(2, 3).expect("a view");
    refused(attention(&q, &q, &q, &options.tensor("bias", &strided)), &["bias", "contiguous()"]);
    // Slopes of another type, which share what is known with those before them.
    let of = |dtype| flash_attn_alibi(&q, &q, &q, &zeros(&[2], dtype), 0.25, true);
    set_defaults(oracle());
    assert!(of(DType::F32).is_ok() && of(DType::BF16).is_ok() && of(DType::F32).is_ok());
}

#[test]
fn sequences_that_are_not_those_of_the_tensors_are_refused_before_a_kernel_follows_them() {
    let q = half(&[6, 2, 16]);
    let varlen = |rows: &[u32], keys: &[u32]| {
        let lengths = Arc::new(Sequences::varlen(rows, keys)?);
        attention_varlen(&q, &q, &q, &lengths, &oracle())
    };
    refused(varlen(&[0, 3, 7], &[0, 3, 6]), &["7 tokens", "q has 6"]);
    refused(varlen(&[0, 3, 6], &[0, 3, 9]), &["9 tokens", "k has 6"]);
    refused(varlen(&[0, 4, 3], &[0, 3, 6]), &["decrease"]);
    refused(varlen(&[1, 3, 6], &[0, 3, 6]), &["0"]);
    refused(varlen(&[0, 6], &[0, 3, 6]), &["1 sequences of queries and 2 of keys"]);
    let (pages, q) = (half(&[4, 4, 2, 16]), half(&[2, 1, 2, 16]));
    let paged = |rows: usize, lengths: &[u32], tables: &[Vec<u32>]| {
        let step = Arc::new(Sequences::paged(rows, lengths, tables)?);
        attention_paged(&q, &pages, &pages, &step, &oracle())
    };
    refused(paged(1, &[5, 3], &[vec![0, 4], vec![1]]), &["4"]);
    refused(paged(1, &[5, 3], &[vec![0], vec![1]]), &["page"]);
    refused(paged(1, &[5, 3], &[vec![0, 2]]), &["2 lengths and 1 lists"]);
    refused(paged(2, &[5, 3], &[vec![0, 2], vec![1]]), &["2 sequences of 2 new tokens"]);
    let step = Arc::new(Sequences::paged(1, &[5, 3], &[vec![0, 2], vec![1]]).expect("fits"));
    refused(attention_varlen(&q, &q, &q, &step, &oracle()), &["attention_paged"]);
    let lengths = Arc::new(Sequences::varlen(&[0, 1, 2], &[0, 1, 2]).expect("fits"));
    refused(attention_paged(&q, &pages, &pages, &lengths, &oracle()), &["Sequences::paged"]);
}

/// Which numbers cuDNN draws is not documented, so the oracle would need the mask.
#[test]
fn dropout_is_described_and_refused_by_the_oracle() -> Result<()> {
    let q = half(&[1, 64, 2, 64]);
    let options = oracle().dropout(0.25, 7, 0);
    refused(attention(&q, &q, &q, &options), &["dropout", "mask"]);
    let describe = |options: &Options| descriptions(&q, &q, &q, None, options, true);
    let (all, other) = (describe(&options)?, describe(&options.clone().dropout(0.25, 8, 3))?);
    assert!(all.iter().all(|one| one.to_string().contains("dropout")), "{all:?}");
    // Seed and offset are numbers of a launch.
    assert_eq!(all, other);
    Ok(())
}
