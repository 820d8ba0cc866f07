//! Compares gradients and outputs by memory, with a different layout for each operand: an op graph must write every
//! element where the description places it, and a graph with the layout of another operand must fail.

use crate::common;

use std::cell::Cell;

use common::lowered::{check, computed, same, targets};
use common::valid;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use qkvault_cudnn::op::TensorKind;
use qkvault_cudnn::{Form, OpGraph, lower};
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::{Attention, BackwardOptions, DType, Interleave, Order, Pass, Role, Storage, Tensor, Valid};
use qkvault_reference::{Buffer, Inputs, LengthChoice, RandomChoice, Unused};

fn over<S: Strategy>(cases: u32, strategy: &S, check: impl Fn(S::Value) -> TestCaseResult) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config).run(strategy, check).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn b8_gradients_of_any_layout_are_written_where_it_says() {
    let features = Features { sink: true, backward: true, ..Features::NONE };
    let backwards = attention(Space::SMALL.with(features)).prop_filter("a backward", Attention::is_backward);
    let (graphs, apart) = (Cell::new(0_usize), Cell::new(0_usize));
    over(192, &(backwards, any::<u64>()), |(a, seed)| {
        let Pass::Backward(g) = &a.pass else { return Ok(()) };
        let own = [(g.d_q, a.q), (g.d_k, a.k), (g.d_v, a.v), (g.d_o, a.o)];
        apart.set(apart.get() + usize::from(own.iter().all(|(own, other)| own.strides != other.strides)));
        graphs.set(graphs.get() + check(&valid(a), seed, &RandomChoice::default())?);
        Ok(())
    });
    assert!(apart.get() > 60 && graphs.get() > 400, "{} attentions apart, {} graphs", apart.get(), graphs.get());
}

#[test]
fn b8_gradients_of_varlen_operands_are_written_where_their_own_layouts_and_offsets_say() {
    let features = Features { storage: true, backward: true, ..Features::NONE };
    let varlen = |a: &Attention| a.is_backward() && matches!(a.q.storage, Storage::Varlen { .. });
    let backwards = attention(Space::SMALL.with(features)).prop_filter("a varlen backward", varlen);
    let graphs = Cell::new(0_usize);
    over(192, &(backwards, any::<u64>(), any::<bool>()), |(a, seed, spread)| {
        let choice =
            RandomChoice { lengths: LengthChoice::Any, unused: Unused::Finite, spread, ..RandomChoice::default() };
        graphs.set(graphs.get() + check(&valid(a), seed, &choice)?);
        Ok(())
    });
    assert!(graphs.get() > 100, "{} graphs", graphs.get());
}

/// A BSHD tensor with room behind each head, row and sequence, in steps of 16 bytes.
fn roomy(dims: [i64; 4], [head, row, batch]: [i64; 3]) -> Tensor {
    let [_, h, s, d] = dims;
    let head = d + 8 * head;
    let row = h * head + 8 * row;
    Tensor { dims, strides: [s * row + 8 * batch, head, row, 1], dtype: DType::F16, storage: Storage::Dense }
}

/// A backward in which each operand has a different layout.
fn all_apart() -> Valid {
    let (q, kv) = ([2, 4, 5, 16], [2, 2, 7, 16]);
    let dense = |order, dims| Tensor::dense(order, dims, DType::F16);
    let part = |order, interleave, dims| Tensor::parts::<3>(order, interleave, dims, DType::F16)[0].tensor;
    let forward = Attention::forward(
        dense(Order::Sbhd, q),
        part(Order::Bshd, Interleave::Parts, kv),
        part(Order::Bhsd, Interleave::Heads, kv),
        dense(Order::Bhsd, q),
    );
    valid(forward.with_stats().backward(BackwardOptions {
        d_o: Some(part(Order::Sbhd, Interleave::Heads, q)),
        d_q: Some(roomy(q, [1, 0, 3])),
        d_k: Some(roomy(kv, [0, 2, 1])),
        d_v: Some(roomy(kv, [2, 1, 0])),
        ..BackwardOptions::default()
    }))
}

/// For each op graph of a backward, after a change: whether it still means the same as the attention.
fn agreeing(a: &Valid, change: &dyn Fn(&mut OpGraph)) -> Vec<bool> {
    let choice = RandomChoice { unused: Unused::Poison, ..RandomChoice::default() };
    let (inputs, exact) = computed(a, 3, &choice).expect("computes");
    let graphs = targets().into_iter().filter_map(|(target, policy)| {
        let graph = lower(a, &target, &policy).ok()?;
        Some((graph, policy.lab.form))
    });
    let agrees = |(mut graph, form): (OpGraph, Form)| {
        change(&mut graph);
        // A wrong layout may read past its buffer. The buffers are longer here, so that it gives a wrong result and not
        // an error.
        let mut longer = inputs.clone();
        for (role, buffer) in inputs.iter().filter(|(_, buffer)| buffer.dtype().is_float()) {
            let more = (0..buffer.len() + 4096).map(|at| if at < buffer.len() { buffer.get(at) } else { 0.25 });
            longer.insert(role, Buffer::from_values(buffer.dtype(), more));
        }
        same(a, &graph, &longer, &exact, form).is_ok()
    };
    graphs.map(agrees).collect()
}

fn is_found_out(a: &Valid, what: &str, change: &dyn Fn(&mut OpGraph)) {
    let good = agreeing(a, change);
    assert!(good.len() > 2 && !good.contains(&true), "{what}: {good:?}");
}

#[test]
fn b8_an_op_graph_that_lays_one_operand_out_like_another_is_found_out() {
    use Role::{DK, DO, DQ, DV, K, O, Q, V};
    let a = all_apart();
    let unchanged = agreeing(&a, &|_| ());
    assert!(unchanged.len() > 2 && !unchanged.contains(&false), "{unchanged:?}");
    let strides = |role| a.stored(role).expect("it has it").strides;
    let pairs = [
        (DQ, Q),
        (DQ, O),
        (DQ, DO),
        (DK, K),
        (DK, DV),
        (DV, V),
        (DV, DK),
        (DO, O),
        (DO, Q),
        (O, Q),
        (O, DO),
        (Q, O),
        (K, V),
        (V, K),
    ];
    for (role, other) in pairs {
        let turned = |graph: &mut OpGraph| {
            for t in graph.tensors.iter_mut().filter(|t| t.kind == TensorKind::Operand(role)) {
                let [b, h, s, d] = strides(other);
                t.strides = if matches!(role, K | V) { [b, h, d, s] } else { [b, h, s, d] };
            }
        };
        is_found_out(&a, &format!("{role} with the strides of {other}"), &turned);
    }
    for (order, role) in Order::ALL.into_iter().flat_map(|order| [DQ, DK, DV, DO, O, Q].map(|role| (order, role))) {
        let own = a.stored(role).expect("it has it");
        if own.strides == order.strides(own.dims) {
            continue;
        }
        let contiguous = |graph: &mut OpGraph| {
            let own = graph.tensors.iter_mut().filter(|t| t.kind == TensorKind::Operand(role));
            own.for_each(|t| t.strides = order.strides(t.dims));
        };
        is_found_out(&a, &format!("{role} as {order}"), &contiguous);
    }
}

#[test]
fn b8_an_op_graph_that_swaps_two_axes_of_one_operand_is_found_out() {
    let a = all_apart();
    for role in [Role::DQ, Role::DK, Role::DV, Role::DO, Role::O, Role::Q, Role::K, Role::V, Role::Stats] {
        for (one, other) in [(0, 1), (1, 2), (0, 2)] {
            // K and V are declared transposed, so their rows are the last axis.
            let row = |axis| if axis == 2 && matches!(role, Role::K | Role::V) { 3 } else { axis };
            let swapped = |graph: &mut OpGraph| {
                let own = graph.tensors.iter_mut().filter(|t| t.kind == TensorKind::Operand(role));
                own.for_each(|t| t.strides.swap(row(one), row(other)));
            };
            is_found_out(&a, &format!("{role} with axes {one} and {other} swapped"), &swapped);
        }
    }
}

#[test]
fn what_lies_between_the_elements_of_an_operand_is_not_a_number_and_every_element_is_as_it_was() {
    let features = Features { storage: true, backward: true, ..Features::NONE };
    let between = Cell::new(0_usize);
    over(96, &(attention(Space::SMALL.with(features)), any::<u64>()), |(a, seed)| {
        let a = valid(a);
        let plain = Inputs::random(&a, seed).expect("random");
        let mut poisoned = plain.clone();
        poisoned.poison_between(&a).expect("all is bound");
        for role in [Role::Q, Role::K, Role::V, Role::DO] {
            let (Some(before), Some(after)) = (plain.get(role), poisoned.get(role)) else { continue };
            let t = a.stored(role).expect("it has it");
            let mut own = vec![false; before.len()];
            let [b, h, s, d] = t.extents();
            for (i, j, k) in (0..b).flat_map(|i| (0..h).flat_map(move |j| (0..s).map(move |k| (i, j, k)))) {
                let start = (i * t.strides[0] + j * t.strides[1] + k * t.strides[2]) as usize;
                own[start..start + d as usize].fill(true);
            }
            for (at, own) in own.into_iter().enumerate() {
                prop_assert!(if own { after.get(at) == before.get(at) } else { after.is_poison(at) }, "{role} at {at}");
                between.set(between.get() + usize::from(!own));
            }
        }
        Ok(())
    });
    assert!(between.get() > 1_000, "{} between elements", between.get());
}
