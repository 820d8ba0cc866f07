//! The same numbers have the same result in any layout, and memory outside a tensor is neither read nor written.

use crate::common;

use common::{cases, valid};
use proptest::prelude::*;
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::{Attention, BackwardOptions, Band, DType, Interleave, Order, PaddedRows, Role, Tensor, Valid};
use qkvault_reference::{
    Buffer, Defined, Inputs, LengthChoice, OutputTolerance, RandomChoice, Unused, View, backward, compare, forward,
    forward_f32, forward_rows, operand, operands,
};

/// Copies the rows of an operand from one layout to another.
fn moved(from: (&Valid, &Inputs), to: (&Valid, &mut Inputs), role: Role, rows: impl Fn(usize) -> usize) {
    let t = operand(to.0, role).expect("there").tensor;
    let (read, write) = (View::new(from.0, role, from.1).expect("sound"), View::new(to.0, role, to.1).expect("sound"));
    let source = from.1.get(role).expect("bound");
    let mut buffer = Buffer::poisoned(t.dtype, t.span().expect("small") as usize);
    for b in 0..t.dims[0] as usize {
        for (h, s) in (0..t.dims[1] as usize).flat_map(|h| (0..rows(b)).map(move |s| (h, s))) {
            for d in 0..t.dims[3] as usize {
                buffer.set(write.at(b, h, s, d), source.get(read.at(b, h, s, d)));
            }
        }
    }
    to.1.insert(role, buffer);
}

/// Checks that every output of `b` equals that of `a`, row by row.
fn same_results(a: (&Valid, &Inputs), b: (&Valid, &Inputs)) {
    let run =
        |(v, i): (&Valid, &Inputs)| if v.is_backward() { backward(v, i) } else { forward(v, i) }.expect("computes");
    let (x, y) = (run(a), run(b));
    for out in x.iter() {
        let other = y.get(out.role()).expect("the same outputs");
        let [batch, heads, seq, head_dim] = out.operand().tensor.dims.map(|n| n as usize);
        for i in 0..batch {
            let [q_len, kv_len] = common::lens(a.0, a.1, i);
            let len = if matches!(out.role(), Role::DK | Role::DV) { kv_len } else { q_len.min(seq) };
            for (h, s) in (0..heads).flat_map(|h| (0..len).map(move |s| (h, s))) {
                for d in 0..head_dim {
                    assert_eq!(out.at(i, h, s, d), other.at(i, h, s, d), "{} {:?}", out.role(), [i, h, s, d]);
                }
            }
        }
    }
}

fn both_passes(of: &Attention) -> [Valid; 2] {
    let forward = valid(of.clone().with_stats());
    let backward = valid(forward.backward(BackwardOptions::default()));
    [forward, backward]
}

#[test]
fn every_layout_of_the_same_numbers_gives_the_same_result() {
    let dims = |h: i64, s: i64, d: i64| [2, h, s, d];
    let with = |t: &dyn Fn([i64; 4]) -> Tensor| {
        let a = Attention::forward(t(dims(4, 5, 16)), t(dims(2, 7, 16)), t(dims(2, 7, 8)), t(dims(4, 5, 8)));
        a.with_band(Band::CAUSAL_BOTTOM_RIGHT)
    };
    let plain = both_passes(&with(&|dims| Tensor::dense(Order::Bshd, dims, DType::BF16)));
    let inputs = plain.each_ref().map(|a| Inputs::random(a, 4).expect("random"));
    for order in Order::ALL {
        for kind in 0..4 {
            let other = both_passes(&with(&|dims| cases::tensor(dims, DType::BF16, (order as usize, kind, 3))));
            for ((a, inputs), b) in plain.iter().zip(&inputs).zip(&other) {
                let mut there = inputs.clone();
                for operand in operands(b).iter().filter(|o| !o.output && o.tensor.dtype == DType::BF16) {
                    let dims = operand.tensor.dims;
                    moved((a, inputs), (b, &mut there), operand.role, |_| dims[2] as usize);
                }
                same_results((a, inputs), (b, &there));
            }
        }
    }
}

#[test]
fn parts_of_one_buffer_are_three_operands() {
    for (order, interleave) in Order::ALL.into_iter().flat_map(|o| [(o, Interleave::Parts), (o, Interleave::Heads)]) {
        let dims = [2, 3, 5, 8];
        let [q, k, v] = Tensor::parts::<3>(order, interleave, dims, DType::F16);
        let a = valid(Attention::forward(q.tensor, k.tensor, v.tensor, Tensor::dense(order, dims, DType::F16)));
        let len = (q.tensor.span().expect("small") + v.offset) as usize;
        // One shared buffer with a different number at each address.
        let shared = Buffer::from_values(DType::F16, (0..len).map(|at| (at as f64 * 0.7).sin()));
        let part =
            |offset: i64| Buffer::new(DType::F16, shared.bytes()[2 * offset as usize..].to_vec()).expect("whole");
        let mut inputs = Inputs::new();
        inputs.set_f32(Role::Scale, 0.5);
        for (role, part_of) in [(Role::Q, q), (Role::K, k), (Role::V, v)] {
            inputs.insert(role, part(part_of.offset));
        }
        let plain = valid(Attention::bshd(2, (3, 3), (5, 5), 8, DType::F16));
        let mut copied = inputs.clone();
        for role in [Role::Q, Role::K, Role::V] {
            moved((&a, &inputs), (&plain, &mut copied), role, |_| 5);
        }
        same_results((&plain, &copied), (&a, &inputs));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn padding_is_zero_or_untouched_and_nothing_else_is_written(
        a in attention(Space::SMALL.with(Features { fp8: false, ..Features::ALL })), seed in any::<u64>(), spread in any::<bool>(),
    ) {
        let a = valid(a);
        // Memory outside the rows within lengths is NaN, so that reading it changes the result.
        let choice = RandomChoice { lengths: LengthChoice::Any, unused: Unused::Poison, spread, ..RandomChoice::default() };
        let mut inputs = Inputs::random_with(&a, seed, &choice).expect("random");
        common::with_dropout_mask(&a, &mut inputs, seed);
        let plain = a.score_mod.is_none();
        let outputs = if a.is_backward() { backward(&a, &inputs) } else { forward(&a, &inputs) }.expect("computes");
        for out in outputs.iter() {
            let buffer = out.buffer();
            let mut defined = 0;
            for (at, state) in out.defined().iter().enumerate() {
                match state {
                    Defined::Value => {
                        defined += 1;
                        prop_assert!(!plain || !out.values()[at].is_nan(), "{} at {at} is NaN", out.role());
                    }
                    Defined::Undefined => prop_assert!(a.padded_rows == PaddedRows::Undefined && buffer.is_poison(at)),
                    Defined::Outside => prop_assert!(buffer.is_poison(at)),
                }
            }
            let found = compare(out, &buffer, OutputTolerance::for_role(out.role(), buffer.dtype()));
            prop_assert_eq!((found.elements, found.unwritten, found.touched, found.non_finite), (defined, 0, 0, 0));
            let mut wrong = buffer.clone();
            if let Some(at) = out.defined().iter().position(|d| *d == Defined::Outside) {
                wrong.set(at, 1.0);
                prop_assert_eq!(compare(out, &wrong, OutputTolerance::for_role(out.role(), buffer.dtype())).touched, 1);
            }
        }
    }

    #[test]
    fn chosen_rows_and_float32_agree_with_the_whole(
        a in attention(Space::SMALL.with(Features { fp8: false, score_mod: false, backward: false, ..Features::ALL })), seed in any::<u64>(),
    ) {
        let a = valid(a);
        let mut inputs = Inputs::random(&a, seed).expect("random");
        common::with_dropout_mask(&a, &mut inputs, seed);
        let outputs = forward(&a, &inputs).expect("computes");
        let (o, narrow) = (outputs.get(Role::O).expect("always"), forward_f32(&a, &inputs).expect("computes"));
        let narrow = narrow.get(Role::O).expect("always");
        let mut rows: Vec<(usize, usize, usize)> = Vec::new();
        for b in 0..a.batch() as usize {
            rows.extend((0..common::lens(&a, &inputs, b)[0]).map(|s| (b, s % a.q.dims[1] as usize, s)));
        }
        rows.reverse();
        for row in forward_rows(&a, &inputs, &rows).expect("computes") {
            let (b, h, s) = row.at;
            for (d, &x) in row.o.iter().enumerate() {
                prop_assert_eq!(x, o.at(b, h, s, d));
                prop_assert!((x - narrow.at(b, h, s, d)).abs() < 1e-4);
            }
            if let Some(stats) = outputs.get(Role::Stats) {
                prop_assert_eq!(row.stats, stats.at(b, h, s, 0));
            }
        }
        let beyond = (0, a.q.dims[1] as usize, 0);
        prop_assert!(forward_rows(&a, &inputs, &[beyond]).is_err());
    }
}
