//! Op graphs of 8-bit attention, interpreted, mean what the definition says, with one scale per tensor and with block
//! scales: scales from 2^-20 to 2^20, numbers that saturate, operands of zeros, rows that see no key.

use crate::common;

use common::lowered::{same, targets_on};
use common::valid;
use proptest::test_runner::TestCaseError;
use qkvault_base::random::Rng;
use qkvault_cudnn::lower;
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, DType, Fp8, Lengths, Order, Outputs, Role, Scaled, Tensor, Valid,
    operands,
};
use qkvault_reference::{Buffer, Inputs, LengthChoice, RandomChoice, Unused, backward_of_o, forward};

/// One of a list.
fn one<T: Copy>(rng: &mut Rng, list: &[T]) -> T {
    list[rng.within(0, list.len() - 1)]
}

fn flag(rng: &mut Rng, share: f64) -> bool {
    rng.unit() < share
}

/// Kinds of scales.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scales {
    PerTensor,
    Blocks,
}

/// The attention of a seed: formats, heads, lengths, masks, storage and outputs.
fn drawn(seed: u64, scales: Scales) -> Valid {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let blocks = scales == Scales::Blocks;
    let eight = [DType::E4M3, DType::E5M2];
    let (io, current) = (one(rng, &eight), flag(rng, 0.4));
    let out = if current || blocks { one(rng, &[DType::F16, DType::BF16]) } else { one(rng, &eight) };
    let (group_k, group_v) = one(rng, &[(1, 1), (2, 2), (2, 1), (1, 2)]);
    let [b, h] = [1 + rng.within(0, 1), 1 + rng.within(0, 1)].map(|n| n as i64);
    let h_q = h * group_k * group_v;
    let [mut s_q, mut s_kv] = [1 + rng.within(0, 8), 1 + rng.within(0, 8)].map(|n| n as i64);
    let [mut d_qk, mut d_v] = [1 + rng.within(0, 1), 1 + rng.within(0, 1)].map(|n| 16 * n as i64);
    if blocks {
        // Several blocks of 32 and tiles of 128, some of them not full, and head dims with a second 128 elements.
        let long = |rng: &mut Rng| one(rng, &[2, 7, 31, 33, 33, 64, 130]);
        (s_q, s_kv) = (long(rng), long(rng));
        (d_qk, d_v) = one(rng, &[(16, 16), (32, 48), (64, 32), (80, 16), (112, 128), (192, 128)]);
    }
    let order = one(rng, &Order::ALL);
    let t = |h: i64, s: i64, d: i64, dtype| Tensor::dense(order, [b, h, s, d], dtype);
    let (q, k) = (t(h_q, s_q, d_qk, io), t(h * group_k, s_kv, d_qk, io));
    let mut a = Attention::forward(q, k, t(h * group_v, s_kv, d_v, io), t(h_q, s_q, d_v, out));
    a.fp8 = Some(match (scales, current) {
        (Scales::Blocks, _) => Fp8::Block,
        (Scales::PerTensor, true) => Fp8::Current,
        (Scales::PerTensor, false) => Fp8::Delayed,
    });
    a.outputs = Outputs::new(flag(rng, 0.5), false, false);
    a.outputs.amax = flag(rng, 0.8);
    if flag(rng, 0.5) {
        a = a.with_lengths();
    }
    if flag(rng, 0.5) {
        let corner = one(rng, &[Corner::TopLeft, Corner::BottomRight]);
        let (left, right) = one(rng, &[(None, Some(0)), (Some(3), Some(0)), (Some(2), None), (Some(4), Some(1))]);
        a.mask.band = Some(Band { corner, left, right });
    }
    let (drops, sink, backward) = (flag(rng, 0.2), flag(rng, 0.2), flag(rng, 0.5));
    if drops && !(blocks && backward) {
        a = a.with_dropout(0.25);
    }
    a.sink = sink;
    if backward {
        a.outputs.stats = true;
        let d_o = one(rng, &eight);
        let like = |t: Tensor, dtype| Some(Tensor { dtype, ..t });
        let options = BackwardOptions {
            d_o: like(a.o, d_o),
            d_q: like(a.q, out),
            d_k: like(a.k, out),
            d_v: like(a.v, out),
            d_sink: a.sink && flag(rng, 0.5),
            ..BackwardOptions::default()
        };
        return valid(a.backward(options));
    }
    if flag(rng, 0.15) && !blocks && a.mask.lengths == Lengths::PerSequence {
        for t in [&mut a.k, &mut a.v] {
            let rows = 4;
            let pages = t.dims[0] * ((t.dims[2] + rows - 1) / rows);
            let [b, h, s, d] = t.dims;
            *t = Tensor::paged_hnd(b, h, s, d, pages, rows, t.dtype);
        }
    }
    valid(a)
}

/// Powers of two around these scales, and a few that are none. Scores stay as they are, because their exponentials
/// would all be zero or one.
fn rescale(a: &Valid, inputs: &mut Inputs, rng: &mut Rng) {
    if a.fp8 == Some(Fp8::Block) {
        return rescale_blocks(a, inputs, rng);
    }
    let factor = |rng: &mut Rng| {
        let power = 2f64.powi(rng.within(0, 40) as i32 - 20);
        if flag(rng, 0.3) { power * (1.0 + 0.5 * rng.unit()) } else { power }
    };
    let both = factor(rng);
    let q = inputs.get(Role::Descale(Scaled::Q)).map_or(1.0, |b| b.get(0)) * both;
    let k = inputs.get(Role::Descale(Scaled::K)).map_or(1.0, |b| b.get(0)) / both;
    for operand in operands(a.get()) {
        let value = match operand.role {
            Role::Descale(Scaled::Q) => q,
            Role::Descale(Scaled::K) => k,
            // An O in f16 becomes infinite, and then D does.
            Role::Descale(_) if a.o.dtype == DType::F16 && a.is_backward() => continue,
            Role::Descale(_) | Role::ScaleOf(_) => factor(rng),
            _ => continue,
        };
        inputs.set_f32(operand.role, value as f32);
    }
}

/// Powers of two of blocks, each by itself. Those of Q and K go up and down together, so that scores stay as they are.
fn rescale_blocks(a: &Valid, inputs: &mut Inputs, rng: &mut Rng) {
    let both = rng.within(0, 40) as i32 - 20;
    for operand in operands(a.get()) {
        let power = |rng: &mut Rng| match operand.role {
            Role::Descale(Scaled::Q) => Some(both - rng.within(4, 6) as i32),
            Role::Descale(Scaled::K) => Some(-both - rng.within(4, 6) as i32),
            // An O in f16 becomes infinite, and then D does.
            Role::Descale(_) if a.o.dtype == DType::F16 && a.is_backward() => None,
            Role::Descale(_) => Some(rng.within(0, 40) as i32 - 20),
            _ => None,
        };
        let Some(len) = inputs.get(operand.role).map(Buffer::len).filter(|_| power(rng).is_some()) else { continue };
        let powers: Vec<f64> = (0..len).filter_map(|_| power(rng)).map(|n| 2f64.powi(n)).collect();
        inputs.insert(operand.role, Buffer::from_values(DType::E8M0, powers));
    }
}

/// Numbers at the edges of a format: zeros, the largest, the smallest, and those that leave it.
fn edges(a: &Valid, inputs: &mut Inputs, rng: &mut Rng) {
    for role in [Role::Q, Role::K, Role::V, Role::DO] {
        if !flag(rng, 0.5) {
            continue;
        }
        let Some(buffer) = inputs.get(role) else { continue };
        let (dtype, len) = (buffer.dtype(), buffer.len());
        let (largest, smallest) =
            if dtype == DType::E4M3 { (448.0, 2f64.powi(-9)) } else { (57_344.0, 2f64.powi(-16)) };
        let zeros = flag(rng, 0.3);
        // Scores of the largest numbers are beyond the exponential's range, so only some of Q and K are changed; in a
        // backward none become the largest, because the log-sum-exp is in f32.
        let scored = matches!(role, Role::Q | Role::K);
        let share = if scored { 0.05 } else { 0.7 };
        let largest = if scored && a.is_backward() { 1.0 } else { largest };
        let numbers: Vec<f64> = (0..len)
            .map(|at| match rng.within(0, 5) {
                _ if zeros => 0.0,
                _ if !flag(rng, share) => buffer.get(at),
                0 => largest,
                1 => -largest,
                2 => smallest,
                3 => -0.0,
                _ => 1.0,
            })
            .collect();
        inputs.insert(role, Buffer::from_values(dtype, numbers));
    }
}

/// Compares the op graphs of an attention with the definition; returns how many there are.
fn judge(a: &Valid, seed: u64, change: fn(&Valid, &mut Inputs, &mut Rng)) -> usize {
    let (gpu, minors) = if a.fp8 == Some(Fp8::Block) { ("b200", [21, 27]) } else { ("h200", [14, 27]) };
    let targets = targets_on(gpu, &minors).into_iter();
    let graphs: Vec<_> =
        targets.filter_map(|(target, options)| Some((lower(a, &target, &options).ok()?, options.lab.form))).collect();
    let mut rng = Rng::new(seed ^ 0x5eed);
    let unused = if flag(&mut rng, 0.5) { Unused::Poison } else { Unused::Finite };
    let choice = RandomChoice { lengths: LengthChoice::Varied, unused, spread: false, ..RandomChoice::default() };
    let mut inputs = Inputs::random_with(a, seed, &choice).expect("random");
    change(a, &mut inputs, &mut rng);
    common::with_dropout_mask(a, &mut inputs, seed);
    if a.is_backward() {
        inputs.add_forward(a).expect("computes");
    }
    let exact = if a.is_backward() { backward_of_o(a, &inputs) } else { forward(a, &inputs) }.expect("computes");
    for (graph, form) in &graphs {
        // A launch asks for whole tiles of scales, whatever strides cuDNN is given.
        for binding in graph.bindings(Some(a)).iter().filter(|binding| binding.dtype == DType::E8M0) {
            let bound = inputs.get(binding.role).map(Buffer::len);
            assert_eq!(Some(binding.bytes as usize), bound, "seed {seed}: {}\n{a}", binding.role);
        }
        same(a, graph, &inputs, &exact, *form).unwrap_or_else(|e: TestCaseError| panic!("seed {seed}: {e}\n{a}"));
    }
    graphs.len()
}

/// Inputs that are changed before they are compared.
type Change = fn(&Valid, &mut Inputs, &mut Rng);

fn over(scales: Scales, seeds: std::ops::Range<u64>, change: Change) {
    let (mut graphs, mut cases) = (0, 0);
    for seed in seeds {
        cases += 1;
        graphs += judge(&drawn(seed, scales), seed, change);
    }
    assert!(graphs >= 2 * cases, "{graphs} op graphs of {cases} attentions");
}

#[test]
fn op_graphs_of_8_bit_attention_mean_the_definition() {
    over(Scales::PerTensor, 0..400, |_, _, _| {});
}

#[test]
fn scales_from_2_to_the_minus_20_to_2_to_the_20_are_applied_where_they_belong() {
    over(Scales::PerTensor, 1_000..1_400, rescale);
}

#[test]
fn numbers_at_the_edges_of_the_formats_saturate_and_vanish_as_defined() {
    over(Scales::PerTensor, 2_000..2_400, edges);
}

#[test]
fn op_graphs_with_block_scales_mean_the_definition() {
    over(Scales::Blocks, 3_000..3_040, |_, _, _| {});
}

#[test]
fn block_scales_from_2_to_the_minus_20_to_2_to_the_20_are_applied_where_they_belong() {
    over(Scales::Blocks, 4_000..4_040, rescale);
}

#[test]
fn numbers_at_the_edges_of_the_formats_mean_the_definition_with_block_scales() {
    over(Scales::Blocks, 5_000..5_040, edges);
}

/// Widened inputs have no roundings between products: then 8-bit attention is that of the real numbers.
#[test]
fn widened_inputs_give_the_attention_of_the_real_numbers() {
    let shape = |dtype| Attention::bshd(2, (2, 1), (9, 17), 16, dtype).causal().with_stats();
    let mut eight = shape(DType::E4M3);
    eight.fp8 = Some(Fp8::Delayed);
    for backward in [false, true] {
        let pass = |a: Attention| if backward { a.backward(BackwardOptions::default()) } else { a };
        let (narrow, wide) = (valid(pass(eight.clone())), valid(pass(shape(DType::BF16))));
        let inputs = Inputs::random(&narrow, 7).expect("random");
        let mut real = Inputs::random(&wide, 7).expect("random").widened();
        for (role, scaled) in [
            (Role::Q, Scaled::Q),
            (Role::K, Scaled::K),
            (Role::V, Scaled::V),
            (Role::DO, Scaled::DO),
            (Role::O, Scaled::O),
        ] {
            let (Some(stored), Some(descale)) = (inputs.get(role), inputs.get(Role::Descale(scaled))) else { continue };
            let numbers = (0..stored.len()).map(|at| stored.get(at) * descale.get(0));
            real.insert(role, Buffer::from_values(DType::F32, numbers));
        }
        real.insert(Role::Scale, inputs.buffer(Role::Scale).expect("bound").clone());
        let compute = |a: &Valid, inputs: &Inputs| {
            if backward { backward_of_o(a, inputs) } else { forward(a, inputs) }.expect("computes")
        };
        let (exact, expected, rounded) =
            (compute(&narrow, &inputs.widened()), compute(&wide, &real), compute(&narrow, &inputs));
        let outputs: &[(Role, Scaled)] =
            if backward { &[(Role::DQ, Scaled::DQ), (Role::DV, Scaled::DV)] } else { &[(Role::O, Scaled::O)] };
        for &(role, scaled) in outputs {
            let scale = inputs.buffer(Role::ScaleOf(scaled)).expect("bound").get(0);
            let of =
                |outputs: &qkvault_reference::ExactOutputs| outputs.get(role).expect("an output").values().to_vec();
            let (exact, expected, rounded) = (of(&exact), of(&expected), of(&rounded));
            let off = |x: &[f64]| x.iter().zip(&expected).map(|(x, y)| (x - y * scale).abs()).fold(0.0, f64::max);
            // Descales are f32, and so are the real numbers here.
            assert!(off(&exact) < 1e-4 * scale, "{role}: {}", off(&exact));
            assert!(off(&rounded) > 1e-3 * scale, "{role}: {}", off(&rounded));
        }
    }
}
