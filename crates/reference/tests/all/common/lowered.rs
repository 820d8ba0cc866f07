//! Compares op graphs with the oracle: lowers an attention for several versions and in every form, interprets the
//! graphs, and compares the results address by address.

use proptest::prelude::*;
use qkvault_cudnn::{CompileOptions, Form, OpGraph, Profile, Target, VARIANTS, VariantSet, lower};
use qkvault_graph::{CudnnVersion, DType, Fp8, Lengths, LibrarySet, Role, Valid};
use qkvault_reference::{
    Buffer, Defined, ExactOutput, ExactOutputs, Inputs, Precision, RandomChoice, ReferenceError, View, backward,
    backward_of_o, forward, forward_rows, interpret,
};

use super::slack::Slack;
use super::{lens, memory, near, valid, with_dropout_mask};

pub(crate) fn targets() -> Vec<(Target, CompileOptions)> {
    targets_of(&[19, 27])
}

/// Every form for these minor versions of cuDNN 9, and the plain form in which no lowering variant is applied; all must
/// mean the same.
pub(crate) fn targets_of(minors: &[u16]) -> Vec<(Target, CompileOptions)> {
    targets_on("h200", minors)
}

/// The same on a GPU.
pub(crate) fn targets_on(gpu: &str, minors: &[u16]) -> Vec<(Target, CompileOptions)> {
    let target = |minor| Profile::named(gpu).expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
    let plain = VARIANTS.iter().fold(VariantSet::NONE, |set, row| set.with(row.variant));
    let mut all: Vec<(Target, CompileOptions)> = minors
        .iter()
        .flat_map(|&minor| {
            [Form::Expanded, Form::Fused].map(|form| {
                let lab = qkvault_cudnn::LabOptions::form(form);
                (target(minor), CompileOptions { lab, ..CompileOptions::default() })
            })
        })
        .collect();
    all.push((
        target(minors[0]),
        CompileOptions {
            lab: qkvault_cudnn::LabOptions { form: Form::Expanded, without: plain, ..Default::default() },
            ..CompileOptions::default()
        },
    ));
    all
}

/// Compares results by memory. Each result is written where the op graph declares its elements, and every address must
/// then hold what the oracle has there; nothing else may be written. If the softmax consists of separate operations,
/// rows that see no key are skipped: all their scores are minus infinity, and subtracting their maximum gives NaN.
pub(crate) fn same(
    a: &Valid,
    graph: &OpGraph,
    inputs: &Inputs,
    exact: &ExactOutputs,
    form: Form,
) -> Result<(), TestCaseError> {
    let failed = |e: &dyn std::fmt::Display| TestCaseError::fail(format!("{e}\n{graph}"));
    let results = interpret(graph, inputs, Precision::Exact).map_err(|e| failed(&e))?;
    for out in exact.iter() {
        let role = out.role();
        let slack = Slack::for_output(a, inputs, exact, out);
        let mut flips = 0;
        // The sum for a sink includes padded rows, whose contribution is undefined.
        if role == Role::DSink && a.mask.lengths == Lengths::PerSequence {
            continue;
        }
        let grid = results.get(&role).ok_or_else(|| failed(&format!("{role} is not written")))?;
        let written = memory::written(a, graph, inputs, out, grid).map_err(|e| failed(&e))?;
        let blind =
            if form == Form::Expanded { blind_rows(a, inputs, out).map_err(|e| failed(&e))? } else { Vec::new() };
        let mut in_blind_row = vec![false; written.len()];
        blind.into_iter().flatten().for_each(|at| in_blind_row[at] = true);
        for (at, (&x, (&defined, &y))) in out.values().iter().zip(out.defined().iter().zip(&written)).enumerate() {
            let index = || out.index_of(at);
            match (defined, y) {
                (Defined::Undefined, _) | (Defined::Outside, None) => {}
                // The maximum of numbers and NaN is undefined.
                (Defined::Value, Some(_)) if in_blind_row[at] || role == Role::Max && x.is_nan() => {}
                (Defined::Value, Some(y)) if near(x, y) || (x - y).abs() <= slack.of_number(x) => {}
                (Defined::Value, Some(y)) => {
                    flips += 1;
                    prop_assert!(
                        (x - y).abs() <= slack.flip && flips <= slack.flips,
                        "{role} {:?} at {at}: {y} for {x}, flip {flips} of {slack:?}\n{graph}",
                        index()
                    );
                }
                (Defined::Value, None) => {
                    prop_assert!(false, "{role} {:?} at {at} is never written\n{graph}", index());
                }
                (Defined::Outside, Some(y)) => {
                    prop_assert!(false, "{role} at {at}, which is no element of it, is written: {y}\n{graph}");
                }
            }
        }
    }
    Ok(())
}

/// Addresses of the rows of a forward's output that see no key.
fn blind_rows(a: &Valid, inputs: &Inputs, out: &ExactOutput) -> Result<Vec<std::ops::Range<usize>>, ReferenceError> {
    let mut blind = Vec::new();
    if a.is_backward() || a.sink || matches!(out.role(), Role::Amax(_)) {
        return Ok(blind);
    }
    let view = View::new(a, out.role(), inputs)?;
    let [batch, heads, _, head_dim] = out.operand().tensor.dims.map(|n| n as usize);
    for b in 0..batch {
        for (h, s) in (0..heads).flat_map(|h| (0..lens(a, inputs, b)[0]).map(move |s| (h, s))) {
            if forward_rows(a, inputs, &[(b, h, s)])?.remove(0).sum_exp == 0.0 {
                let start = view.at(b, h, s, 0);
                blind.push(start..start + head_dim);
            }
        }
    }
    Ok(blind)
}

/// Lowers for every target and compares each graph with the attention. Returns the number of targets that lower it.
pub(crate) fn check(a: &Valid, seed: u64, choice: &RandomChoice) -> Result<usize, TestCaseError> {
    check_on(targets(), a, seed, choice)
}

/// Does the same as [`check`] for these targets.
pub(crate) fn check_on(
    targets: Vec<(Target, CompileOptions)>,
    a: &Valid,
    seed: u64,
    choice: &RandomChoice,
) -> Result<usize, TestCaseError> {
    let failed = |e: &dyn std::fmt::Display| TestCaseError::fail(e.to_string());
    let graphs: Vec<_> = targets
        .into_iter()
        .filter_map(|(target, policy)| Some((lower(a, &target, &policy).ok()?, policy.lab.form)))
        .collect();
    if graphs.is_empty() {
        return Ok(0);
    }
    let (inputs, exact) = computed(a, seed, choice).map_err(|e| failed(&e))?;
    for (graph, form) in &graphs {
        same(a, graph, &inputs, &exact, *form)?;
    }
    Ok(graphs.len())
}

/// Random operands, and the oracle's outputs for them.
pub(crate) fn computed(a: &Valid, seed: u64, choice: &RandomChoice) -> Result<(Inputs, ExactOutputs), ReferenceError> {
    let mut inputs = Inputs::random_with(a, seed, choice)?;
    inputs.poison_between(a)?;
    with_dropout_mask(a, &mut inputs, seed);
    let exact = match (a.is_backward(), a.fp8) {
        (false, _) => forward(a, &inputs)?,
        (true, None) => {
            let exact = backward(a, &inputs)?;
            inputs = with_exact_forward(a, &inputs);
            exact
        }
        (true, Some(Fp8::Block)) => backward(a, &inputs)?,
        // The rounding of O is part of an 8-bit backward.
        (true, Some(_)) => backward_of_o(a, &inputs)?,
    };
    Ok((inputs, exact))
}

/// A lowered backward reads the forward's O, which in 16 bits is wrong in the third digit. This gives it in f32.
///
/// Padded rows hold what a kernel might leave there: any value in Stats, any finite number in O. O must not be NaN,
/// because gradients of score tensors are sums over padded rows too, where O is multiplied by a probability of zero.
fn with_exact_forward(a: &Valid, inputs: &Inputs) -> Inputs {
    let plain = valid(a.as_forward());
    let outputs = forward(&plain, inputs).expect("computes");
    let mut wide = inputs.widened();
    for role in [Role::O, Role::Stats] {
        let out = outputs.get(role).expect("a backward has both");
        let left = if role == Role::O { 7.0 } else { f64::NAN };
        let number = |at| if out.defined()[at] == Defined::Value { out.values()[at] } else { left };
        wide.insert(role, Buffer::from_values(DType::F32, (0..out.values().len()).map(number)));
    }
    wide
}
