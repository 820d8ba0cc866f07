//! An op graph against the oracle: lowered for several versions and in every form, interpreted, compared row by row.

use proptest::prelude::*;
use qkvault_graph::{
    Attention, CudnnVersion, DType, Form, Lengths, LibrarySet, OpGraph, Pass, Policy, Profile, QuirkSet, RULES, Role,
    RuleSet, Target, Valid, lower,
};
use qkvault_reference::{
    Buffer, Choice, Defined, Inputs, Outputs, Precision, backward, forward, forward_rows, interpret,
};

use super::{lens, near, valid, with_dropout_mask};

pub(crate) fn targets() -> Vec<(Target, Policy)> {
    targets_of(&[19, 27])
}

/// Every form for these minor versions of cuDNN 9, and the form that no rule of lowering made better: what a rule replaces means
/// the same.
pub(crate) fn targets_of(minors: &[u16]) -> Vec<(Target, Policy)> {
    let target = |minor| Profile::named("h200").expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
    let plain = RULES.iter().fold(RuleSet::NONE, |set, row| set.with(row.rule));
    let mut all: Vec<(Target, Policy)> = minors
        .iter()
        .flat_map(|&minor| {
            // What is written means what it should; that cuDNN computes something else is another matter.
            let allowed = QuirkSet::of(["form.unified-wrong"]).expect("a quirk");
            [Form::Expanded, Form::Fused, Form::Unified]
                .map(|form| (target(minor), Policy { form, allowed, ..Policy::default() }))
        })
        .collect();
    all.push((target(minors[0]), Policy { form: Form::Expanded, without: plain, ..Policy::default() }));
    all
}

/// Compares every defined row. Rows that see nothing are passed over where the softmax is written out: their scores are all
/// minus infinity, whose difference from their maximum is NaN by the meaning of the operations.
fn same(a: &Valid, graph: &OpGraph, inputs: &Inputs, exact: &Outputs, form: Form) -> Result<(), TestCaseError> {
    let failed = |e: &dyn std::fmt::Display| TestCaseError::fail(format!("{e}\n{graph}"));
    // In f32 are: the factor of what dropout keeps, the forward's results that a backward reads, constants of derivatives.
    let slack = if a.dropout.is_some() || a.is_backward() { 1e-5 } else { 0.0 };
    let results = interpret(graph, inputs, Precision::Exact).map_err(|e| failed(&e))?;
    for out in exact.iter() {
        let role = out.role();
        // The sum for a sink is written over every row: what padded rows add to it, nobody says.
        if role == Role::DSink && a.mask.lengths == Lengths::PerSequence {
            continue;
        }
        let grid = results.get(&role).ok_or_else(|| failed(&format!("{role} is not written")))?;
        let [batch, heads, seq, hidden] = out.operand().tensor.dims.map(|n| n as usize);
        for b in 0..batch {
            let rows = match role {
                Role::O | Role::Stats | Role::Max | Role::SumExp | Role::DQ => lens(a, inputs, b)[0],
                Role::DK | Role::DV => lens(a, inputs, b)[1],
                _ => seq,
            };
            for (h, s) in (0..heads).flat_map(|h| (0..rows).map(move |s| (h, s))) {
                let row =
                    || Ok::<_, TestCaseError>(forward_rows(a, inputs, &[(b, h, s)]).map_err(|e| failed(&e))?.remove(0));
                let written_out = form == Form::Expanded && !a.is_backward() && !a.sink;
                if written_out && row()?.sum_exp == 0.0 {
                    continue;
                }
                for d in 0..hidden {
                    let (x, y) = (out.at(b, h, s, d), grid.at([b, h, s, d]));
                    // What the largest of numbers and NaN is, nobody says.
                    let unsaid = role == Role::Max && x.is_nan();
                    prop_assert!(
                        unsaid || near(x, y) || (x - y).abs() <= slack * x.abs().max(1.0),
                        "{role} {:?}: {y} for {x}\n{graph}",
                        [b, h, s, d]
                    );
                }
            }
        }
    }
    Ok(())
}

/// How many of the targets lower it; what is lowered must mean what the attention means.
pub(crate) fn check(a: &Valid, seed: u64, choice: &Choice) -> Result<usize, TestCaseError> {
    check_on(targets(), a, seed, choice)
}

/// As [`check`], for these targets.
pub(crate) fn check_on(
    targets: Vec<(Target, Policy)>,
    a: &Valid,
    seed: u64,
    choice: &Choice,
) -> Result<usize, TestCaseError> {
    let failed = |e: &dyn std::fmt::Display| TestCaseError::fail(e.to_string());
    let graphs: Vec<_> = targets
        .into_iter()
        .filter_map(|(target, policy)| Some((lower(a, &target, &policy).ok()?, policy.form)))
        .collect();
    if graphs.is_empty() {
        return Ok(0);
    }
    let mut inputs = Inputs::random_with(a, seed, choice).map_err(|e| failed(&e))?;
    with_dropout_mask(a, &mut inputs, seed);
    let exact = if a.is_backward() { backward(a, &inputs) } else { forward(a, &inputs) }.map_err(|e| failed(&e))?;
    if a.is_backward() && a.fp8.is_none() {
        inputs = with_exact_forward(a, &inputs);
    }
    for (graph, form) in &graphs {
        same(a, graph, &inputs, &exact, *form)?;
    }
    Ok(graphs.len())
}

/// A lowered backward reads the forward's O, which in 16 bits is wrong in the third digit already: here it is given in f32.
///
/// Padded rows hold what a kernel might leave there: anything in Stats, any number in O. Not NaN: gradients of score tensors
/// are sums over padded rows too, where it would be multiplied by a probability of zero.
fn with_exact_forward(a: &Valid, inputs: &Inputs) -> Inputs {
    let plain = valid(Attention { pass: Pass::Forward, ..a.get().clone() });
    let outputs = forward(&plain, inputs).expect("computes");
    let mut wide = inputs.widened();
    for role in [Role::O, Role::Stats] {
        let out = outputs.get(role).expect("a backward has both");
        let left = if role == Role::O { 7.0 } else { f64::NAN };
        let number = |at| if out.defined()[at] == Defined::Value { out.values()[at] } else { left };
        wide.insert(role, Buffer::of(DType::F32, (0..out.values().len()).map(number)));
    }
    wide
}
