//! Layouts of operands: each has the layout of its own tensor in the op graph, whatever the layouts of the others.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use qkvault_cudnn::op::{OpTensor, TensorKind};
use qkvault_cudnn::{CompileOptions, Form, OpGraph, Profile, Target, lower};
use qkvault_graph::arbitrary::{self, Features, Space};
use qkvault_graph::{Attention, CudnnVersion, LibrarySet, Pass, Role, Storage, Tensor, validate};

/// The tensor in the description for a role; for log-sum-exps, which it does not have, the documented one: row-major
/// over (batch, head, query), or (token, head) for varlen queries.
fn described(a: &Attention, role: Role) -> Option<([i64; 4], [i64; 4])> {
    let [b, h, s, _] = a.q.dims;
    let own = |t: &Tensor| (t.dims, t.strides);
    let of_forward = match role {
        Role::Q => Some(own(&a.q)),
        Role::K => Some(own(&a.k)),
        Role::V => Some(own(&a.v)),
        Role::O => Some(own(&a.o)),
        Role::Stats | Role::Max | Role::SumExp | Role::SoftmaxSum => Some(match a.q.storage {
            Storage::Varlen { .. } => ([b, h, s, 1], [s * h, 1, h, 1]),
            Storage::Dense | Storage::Paged { .. } => ([b, h, s, 1], [h * s, s, 1, 1]),
        }),
        _ => None,
    };
    let Pass::Backward(gradients) = &a.pass else { return of_forward };
    let [_, _, _, d] = gradients.d_q.dims;
    match role {
        Role::DO => Some(own(&gradients.d_o)),
        Role::DQ => Some(own(&gradients.d_q)),
        Role::DK => Some(own(&gradients.d_k)),
        Role::DV => Some(own(&gradients.d_v)),
        // The f32 sums of dQ have its offsets if it is varlen; otherwise their layout is internal.
        Role::DqAccum => Some(match gradients.d_q.storage {
            Storage::Varlen { .. } => own(&gradients.d_q),
            Storage::Dense | Storage::Paged { .. } => ([b, h, s, d], [h * s * d, s * d, d, 1]),
        }),
        _ => of_forward,
    }
}

/// Checks every operand of a graph that has a layout; returns their number.
fn each_lies_as_its_own_tensor(a: &Attention, graph: &OpGraph) -> Result<usize, TestCaseError> {
    let mut seen = 0;
    for OpTensor { dims, strides, dtype: _, kind, offsets } in &graph.tensors {
        let TensorKind::Operand(role) = *kind else { continue };
        let Some((own_dims, own_strides)) = described(a, role) else { continue };
        seen += 1;
        let swap = |[b, h, s, d]: [i64; 4]| [b, h, d, s];
        let paged = a.k.is_paged() && matches!(role, Role::K | Role::V);
        // A pool is declared by its pages; keys and values may be declared transposed, with dims and strides together.
        let lies = match role {
            _ if paged => *strides == own_strides && dims[1..] == [own_dims[1], a.k.extents()[2], own_dims[3]],
            Role::K | Role::V => {
                (*dims, *strides) == (own_dims, own_strides) || (*dims, *strides) == (swap(own_dims), swap(own_strides))
            }
            _ => (*dims, *strides) == (own_dims, own_strides),
        };
        prop_assert!(lies, "{role}: {dims:?} {strides:?} for {own_dims:?} {own_strides:?}\n{a}\n{graph}");
        let found_by = offsets.map(|id| graph.tensor(id).kind);
        let varlen = a.stored(role).is_some_and(|t| matches!(t.storage, Storage::Varlen { .. }));
        let own_offsets = role.offsets().filter(|_| varlen).map(|which| TensorKind::Operand(Role::Offsets(which)));
        prop_assert_eq!(found_by, own_offsets, "{} has its own offsets\n{}", role, graph);
    }
    Ok(seen)
}

/// Every form, on both sides of the versions that introduce it.
fn targets() -> Vec<(Target, CompileOptions)> {
    let target =
        |gpu, minor| Profile::named(gpu).expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
    let all = [("h200", 19), ("h200", 27), ("b200", 27), ("a100", 19)];
    let forms = [Form::Expanded, Form::Fused];
    let each = all.into_iter().map(|(gpu, minor)| target(gpu, minor));
    each.flat_map(|t| {
        forms.map(|form| {
            (t.clone(), CompileOptions { lab: qkvault_cudnn::LabOptions::form(form), ..CompileOptions::default() })
        })
    })
    .collect()
}

/// Tries random attentions; at least `least` percent of the pairs with targets must lower.
fn over(cases: u32, least: usize, strategy: &impl Strategy<Value = Attention>, seen: &dyn Fn(&Attention)) {
    let (targets, graphs) = (targets(), Cell::new(0));
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let each = |a: Attention| -> TestCaseResult {
        let valid = validate(a).expect("sound");
        for (target, options) in &targets {
            let Ok(graph) = lower(&valid, target, options) else { continue };
            // Queries, keys, values and outputs; for a backward also its gradients.
            let operands = each_lies_as_its_own_tensor(valid.get(), &graph)?;
            prop_assert!(operands >= if valid.is_backward() { 9 } else { 4 }, "{operands} operands\n{graph}");
            graphs.set(graphs.get() + 1);
            seen(valid.get());
        }
        Ok(())
    };
    TestRunner::new(config).run(strategy, each).unwrap_or_else(|e| panic!("{e}"));
    let share = graphs.get() * 100 / (cases as usize * targets.len());
    assert!(share >= least, "{share} per cent of {cases} cases were lowered");
}

/// Audit B8: dK and dV with the strides of K and V, or dQ with those of BSHD, passed every test.
#[test]
fn b8_every_operand_of_a_backward_has_the_layout_of_its_own_tensor() {
    let features = Features { mask_mod: true, sink: true, backward: true, ..Features::NONE };
    let backwards = arbitrary::attention(Space::SMALL.with(features)).prop_filter("a backward", Attention::is_backward);
    let apart = Cell::new(0_usize);
    // Of the targets a quarter has no fused form.
    over(256, 72, &backwards, &|a| {
        let Pass::Backward(g) = &a.pass else { return };
        let others = [(g.d_q, a.q), (g.d_k, a.k), (g.d_v, a.v), (g.d_o, a.o)];
        apart.set(apart.get() + usize::from(others.iter().all(|(own, other)| own.strides != other.strides)));
    });
    assert!(apart.get() > 300, "{} graphs in which no gradient lies as what it is of", apart.get());
}

#[test]
fn b8_every_varlen_operand_has_its_own_layout_and_offsets() {
    let features = Features { storage: true, backward: true, ..Features::NONE };
    let varlen = |a: &Attention| matches!(a.q.storage, Storage::Varlen { .. });
    let attentions = arbitrary::attention(Space::SMALL.with(features)).prop_filter("varlen", varlen);
    let backwards = Cell::new(0_usize);
    over(256, 20, &attentions, &|a| backwards.set(backwards.get() + usize::from(a.is_backward())));
    assert!(backwards.get() > 20, "{} varlen backwards", backwards.get());
}

#[test]
fn every_operand_of_a_forward_has_the_layout_of_its_own_tensor() {
    let features = Features { storage: true, outputs: true, ..Features::NONE };
    over(256, 35, &arbitrary::attention(Space::WIDE.with(features)), &|_| ());
}
