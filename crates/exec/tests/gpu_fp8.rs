//! Steps of 8-bit training on a real GPU: conversions, both passes and scales, beside the same step of the oracle.
//!
//! The tests need a driver of compute capability 9.0 or 10.x, a cuDNN, NVRTC and a vault folder `QKVAULT_TEST_VAULT`
//! (it may be empty: plans are compiled into memory). Without them they are skipped, or fail with
//! `QKVAULT_REQUIRE=gpu`.
#![cfg(feature = "cudarc")]

use std::collections::BTreeMap;
use std::sync::Arc;

mod common;
mod kit;

use common::say;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use kit::Gpu;
use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{
    Args, BindError, Fp8Training, LaunchError, LoadedPlan, SavedForBackward, ScaleRecipe, Scales, Training,
    TrainingPair, Workspace, cudarc,
};
use qkvault_graph::{
    Attention, BackwardOptions, Conversion, ConversionKind, DType, Fp8, Role, Scaled, Tensor, ValidConversion, operands,
};
use qkvault_reference::{Buffer, ExactOutputs, Inputs, backward_of_o, convert, forward};
use qkvault_skip::{Need, skip};
use qkvault_sys::Search;

/// A GPU with 8-bit backwards and a planner that compiles, or a skip.
fn open() -> Option<(Gpu, Planner)> {
    let gpu = Gpu::with_nvrtc()?;
    let sm = gpu.engine.session().target().expect("known").sm();
    if sm != 90 && sm / 10 != 10 {
        skip(Need::Gpu, "the GPU has no 8-bit backwards");
        return None;
    }
    let vault = Vault::open(VaultOptions::new()).expect("a vault in memory");
    Some((gpu, Planner::opening(vault, Search::default())))
}

/// Batch, heads, sequence and head dim.
const DIMS: [i64; 4] = [2, 3, 192, 128];
const RECIPE: ScaleRecipe = ScaleRecipe { history: 4, margin: 0 };

fn training() -> Training {
    let [b, h, s, d] = DIMS;
    let attention = Attention::bshd(b, (h, h), (s, s), d, DType::BF16).causal();
    Training::fp8(&attention, Fp8::Delayed).expect("it can be trained")
}

fn wide() -> Tensor {
    let [b, h, s, d] = DIMS;
    Tensor::bshd(b, h, s, d, DType::BF16)
}

/// The four tensors that a step quantizes, each of its own size.
const QUANTIZED: [(Role, Scaled, DType, f64); 4] = [
    (Role::Q, Scaled::Q, DType::E4M3, 1.0),
    (Role::K, Scaled::K, DType::E4M3, 1.0),
    (Role::V, Scaled::V, DType::E4M3, 40.0),
    (Role::DO, Scaled::DO, DType::E5M2, 1e-3),
];

fn to(dtype: DType) -> ValidConversion {
    Conversion::to(dtype, wide(), ConversionKind::Delayed).validate().expect("sound")
}

fn numbers(step: u64, role: Role, size: f64) -> Buffer {
    let mut rng = qkvault_base::random::Rng::new(step * 1_000 + role.uid().unsigned_abs());
    let count = DIMS.iter().product::<i64>() as usize;
    Buffer::from_values(DType::BF16, (0..count).map(|_| size * rng.normals()[0]).collect::<Vec<_>>())
}

/// The same steps with the oracle.
struct Oracle {
    training: Training,
    scales: Scales,
}

impl Oracle {
    /// The outputs of both passes, and the inputs of the backward.
    fn step(&mut self, step: u64) -> (ExactOutputs, ExactOutputs) {
        let mut inputs = Inputs::new();
        let mut seen = Vec::new();
        for (role, which, dtype, size) in QUANTIZED {
            let mut given = Inputs::new();
            given.insert(Role::Wide, numbers(step, role, size));
            given.set_f32(Role::NarrowScale, self.scales.number(Role::ScaleOf(which)).expect("scaled"));
            let mut out = convert(&to(dtype), &given).expect("computes");
            inputs.insert(role, out.remove(&Role::Narrow).expect("written"));
            inputs.insert(Role::Descale(which), out.remove(&Role::NarrowDescale).expect("written"));
            seen.push((which, out[&Role::NarrowAmax].get(0) as f32));
        }
        let (first, second) = (self.training.forward(), self.training.backward());
        for operand in operands(first).iter().chain(&operands(second)).filter(|o| !o.output) {
            if let (None, Some(number)) = (inputs.get(operand.role), self.scales.number(operand.role)) {
                inputs.set_f32(operand.role, number);
            }
        }
        inputs.set_f32(Role::Scale, first.default_scale());
        let out = forward(first, &inputs).expect("computes");
        for role in [Role::O, Role::Stats] {
            inputs.insert(role, out.buffer(role).expect("an output"));
        }
        let back = backward_of_o(second, &inputs).expect("computes");
        let amaxes = [Scaled::O, Scaled::DP, Scaled::DQ, Scaled::DK, Scaled::DV];
        let amax = |which| out.get(Role::Amax(which)).or_else(|| back.get(Role::Amax(which))).expect("an output");
        seen.extend(amaxes.map(|which| (which, amax(which).values()[0] as f32)));
        seen.into_iter().for_each(|(which, amax)| self.scales.observe(which, amax));
        (out, back)
    }
}

/// The steps on the GPU.
struct Step {
    pair: TrainingPair,
    conversions: [LoadedPlan; 2],
    scales: Fp8Training,
    narrow: [CudaSlice<u8>; 4],
    o: CudaSlice<u8>,
    gradients: [CudaSlice<u8>; 3],
}

impl Step {
    fn new(gpu: &Gpu, planner: &Planner) -> Step {
        let session = gpu.engine.session();
        let load = |dtype| session.prepare_conversion(planner, &to(dtype), OnMiss::Compile).expect("a conversion");
        let training = training();
        let options = CompileOptions::default();
        let update = Scales::new(&training, RECIPE).update().expect("8 bits");
        let update = session.prepare_scale_update(planner, &update, OnMiss::Compile).expect("an update");
        let zeros = || gpu.stream.alloc_zeros::<u8>(DIMS.iter().product::<i64>() as usize).expect("memory");
        Step {
            pair: session.prepare_training(planner, &training, &options, OnMiss::Compile).expect("a pair"),
            conversions: [load(DType::E4M3), load(DType::E5M2)],
            scales: Fp8Training::new(&training, RECIPE, Some(&update), &gpu.stream).expect("memory"),
            narrow: [zeros(), zeros(), zeros(), zeros()],
            o: zeros(),
            gradients: [zeros(), zeros(), zeros()],
        }
    }

    fn quantize(&mut self, gpu: &Gpu, at: usize, step: u64) {
        let (role, which, dtype, size) = QUANTIZED[at];
        let wide = gpu.stream.clone_htod(numbers(step, role, size).bytes()).expect("memory");
        let args = Args::new().tensor(Role::Wide, &wide).tensor_mut(Role::Narrow, &mut self.narrow[at]);
        let plan = &self.conversions[usize::from(dtype == DType::E5M2)];
        plan.launch(&gpu.stream, self.scales.quantize(which, args)).expect("a launch");
    }

    /// The quantization of `wide`, both passes and the update, queued or recorded.
    fn recorded(
        &mut self,
        stream: &Arc<CudaStream>,
        (wide, saved, rooms): (&[CudaSlice<u8>; 4], &mut SavedForBackward, &[Arc<Workspace>; 3]),
        captured: bool,
    ) {
        for (at, wide) in wide.iter().enumerate() {
            let (_, which, dtype, _) = QUANTIZED[at];
            let args = Args::new().tensor(Role::Wide, wide).tensor_mut(Role::Narrow, &mut self.narrow[at]);
            let args = self.scales.quantize(which, args.workspace(&rooms[0]));
            let plan = &self.conversions[usize::from(dtype == DType::E5M2)];
            let queued = match captured {
                // SAFETY: the caller keeps everything until the graph has been launched for the last time.
                true => unsafe { plan.launch_captured(stream, args) },
                false => plan.launch(stream, args),
            };
            queued.expect("a conversion");
        }
        let Step { pair, scales, narrow: [q, k, v, d_o], o, gradients: [d_q, d_k, d_v], .. } = self;
        let args = scales.forward(Args::new().q(&*q).k(&*k).v(&*v).o(&mut *o).workspace(&rooms[1]));
        let queued = match captured {
            // SAFETY: as above.
            true => unsafe { pair.forward_captured(saved, args, stream) },
            false => pair.forward(saved, args, stream),
        };
        queued.expect("a forward");
        let args = Args::new().q(&*q).k(&*k).v(&*v).saved_o(&*o).d_o(&*d_o).d_q(d_q).d_k(d_k).d_v(d_v);
        let args = scales.backward(args.workspace(&rooms[2]));
        let queued = match captured {
            // SAFETY: as above.
            true => unsafe { pair.backward_captured(saved, args, stream) },
            false => pair.backward(saved, args, stream),
        };
        queued.expect("a backward");
        let queued = match captured {
            // SAFETY: as above.
            true => unsafe { scales.update_captured(stream) },
            false => scales.update(stream),
        };
        queued.expect("an update");
    }

    fn run(&mut self, gpu: &Gpu, step: u64) {
        (0..4).for_each(|at| self.quantize(gpu, at, step));
        let Step { pair, scales, narrow: [q, k, v, d_o], o, gradients: [d_q, d_k, d_v], .. } = self;
        let mut saved = pair.saved(&gpu.stream).expect("memory");
        let args = Args::new().q(&*q).k(&*k).v(&*v).o(&mut *o);
        pair.forward(&mut saved, scales.forward(args), &gpu.stream).expect("a forward");
        let args = Args::new().q(&*q).k(&*k).v(&*v).saved_o(&*o).d_o(&*d_o).d_q(d_q).d_k(d_k).d_v(d_v);
        pair.backward(&mut saved, scales.backward(args), &gpu.stream).expect("a backward");
        scales.update(&gpu.stream).expect("read");
    }
}

/// The largest difference of two scales in training: the largest gradient may be a single product whose factor was
/// rounded to two bits of e5m2.
const NEAR: f32 = 0.125;

#[test]
fn steps_in_8_bits_have_the_gradients_and_the_scales_of_the_oracle() {
    let Some((gpu, planner)) = open() else { return };
    let mut on_gpu = Step::new(&gpu, &planner);
    on_gpu.pair = on_gpu.pair.clone().checked(true);
    let mut oracle = Oracle { training: training(), scales: Scales::new(&training(), RECIPE) };
    for step in 0..5 {
        // Outputs are stored with the scales before the step.
        let (ours, theirs) = (on_gpu.scales.scales(&gpu.stream).expect("read"), oracle.scales.clone());
        on_gpu.run(&gpu, step);
        let (out, back) = oracle.step(step);
        let o = (Role::O, Scaled::O, &on_gpu.o);
        let gradients = [(Role::DQ, Scaled::DQ), (Role::DK, Scaled::DK), (Role::DV, Scaled::DV)];
        let gradients = gradients.into_iter().zip(&on_gpu.gradients).map(|((role, which), slice)| (role, which, slice));
        for (role, which, slice) in std::iter::once(o).chain(gradients) {
            let expected = out.get(role).or_else(|| back.get(role)).expect("an output");
            let our = f64::from(1.0 / ours[&which]);
            let their = f64::from(theirs.number(Role::Descale(which)).expect("scaled"));
            // In the first steps gradients are below the range of e4m3: scales begin at 1.
            if step < 2 {
                continue;
            }
            let bytes = gpu.stream.clone_dtoh(slice).expect("read");
            let found = Buffer::new(DType::E4M3, bytes).expect("whole");
            let sums = expected.values().iter().enumerate().fold((0.0, 0.0), |(off, all), (at, x)| {
                let (found, x) = (found.get(at) * our, x * their);
                (off + (found - x).powi(2), all + x * x)
            });
            let error = (sums.0 / sums.1).sqrt();
            say(&format!("step {step}: {role}: {error:.4}"));
            // The roundings of P, dS and the output to three bits, each 0.026 in the mean, and another scale.
            assert!(error < 0.12, "step {step}: {role}: {error}");
        }
        let now = on_gpu.scales.scales(&gpu.stream).expect("read");
        for which in oracle.scales.tensors() {
            let (found, expected) = (now[&which], oracle.scales.number(Role::ScaleOf(which)).expect("scaled"));
            assert!((found / expected - 1.0).abs() < NEAR, "step {step}: {which:?}: {found}, {expected} expected");
        }
    }
}

/// The operands of a backward in 16 bits are those before the conversion, and O comes back by one.
#[test]
fn a_forward_in_8_bits_has_the_gradients_of_a_backward_in_16() {
    let Some((gpu, planner)) = open() else { return };
    let (stream, session) = (&gpu.stream, gpu.engine.session());
    let [b, h, s, d] = DIMS;
    let attention = Attention::bshd(b, (h, h), (s, s), d, DType::BF16).causal();
    let training = Training::fp8_forward(&attention, Fp8::Delayed, BackwardOptions::default()).expect("sound");
    let options = CompileOptions::default();
    let pair = session.prepare_training(&planner, &training, &options, OnMiss::Compile).expect("a pair").checked(true);
    let narrow = Tensor { dtype: DType::E4M3, ..wide() };
    let back = Conversion::from(narrow, DType::BF16, ConversionKind::Dequantize).validate().expect("sound");
    let back = session.prepare_conversion(&planner, &back, OnMiss::Compile).expect("a conversion");
    let to = session.prepare_conversion(&planner, &to(DType::E4M3), OnMiss::Compile).expect("a conversion");
    let update = Scales::new(&training, RECIPE).update().expect("8 bits");
    let update = session.prepare_scale_update(&planner, &update, OnMiss::Compile).expect("an update");
    let mut scales = Fp8Training::new(&training, RECIPE, Some(&update), stream).expect("memory");
    let zeros = |bytes: usize| stream.alloc_zeros::<u8>(DIMS.iter().product::<i64>() as usize * bytes).expect("memory");
    let mut saved = pair.saved(stream).expect("memory");
    // The second step has the scales of the first one.
    for step in 0..2 {
        let given = QUANTIZED.map(|(role, .., size)| (role, numbers(9, role, size)));
        let [q, k, v, d_o] = [0, 1, 2, 3].map(|at| stream.clone_htod(given[at].1.bytes()).expect("memory"));
        let mut stored = [zeros(1), zeros(1), zeros(1)];
        for ((wide, stored), which) in [&q, &k, &v].into_iter().zip(&mut stored).zip([Scaled::Q, Scaled::K, Scaled::V])
        {
            let args = Args::new().tensor(Role::Wide, wide).tensor_mut(Role::Narrow, stored);
            to.launch(stream, scales.quantize(which, args)).expect("a conversion");
        }
        let (mut narrow, mut o) = (zeros(1), zeros(2));
        let args = Args::new().q(&stored[0]).k(&stored[1]).v(&stored[2]).o(&mut narrow);
        pair.forward(&mut saved, scales.forward(args), stream).expect("a forward");
        let wide = |which, narrow: &CudaSlice<u8>, wide: &mut CudaSlice<u8>| {
            let args = Args::new().tensor(Role::Narrow, narrow).tensor_mut(Role::Wide, wide);
            back.launch(stream, scales.dequantize(which, args)).expect("a conversion");
        };
        wide(Scaled::O, &narrow, &mut o);
        let [mut q, mut k, mut v] = [q, k, v];
        for ((which, narrow), to) in
            [Scaled::Q, Scaled::K, Scaled::V].into_iter().zip(&stored).zip([&mut q, &mut k, &mut v])
        {
            wide(which, narrow, to);
        }
        let [mut d_q, mut d_k, mut d_v] = [zeros(2), zeros(2), zeros(2)];
        let args = Args::new().q(&q).k(&k).v(&v).saved_o(&o).d_o(&d_o).d_q(&mut d_q).d_k(&mut d_k).d_v(&mut d_v);
        pair.backward(&mut saved, args, stream).expect("a backward");
        scales.update(stream).expect("an update");
        if step == 0 {
            continue;
        }
        let read =
            |slice: &CudaSlice<u8>| Buffer::new(DType::BF16, stream.clone_dtoh(slice).expect("read")).expect("whole");
        let mut inputs = Inputs::new();
        for (role, slice) in [(Role::Q, &q), (Role::K, &k), (Role::V, &v), (Role::DO, &d_o), (Role::O, &o)] {
            inputs.insert(role, read(slice));
        }
        inputs.set_f32(Role::Scale, training.backward().default_scale());
        // The Stats are those of the numbers that came back from 8 bits, and O is the GPU's.
        let sixteen = Training::for_attention(&attention, BackwardOptions::default()).expect("sound");
        let out = forward(sixteen.forward(), &inputs).expect("computes");
        inputs.insert(Role::Stats, out.buffer(Role::Stats).expect("an output"));
        let expected = backward_of_o(training.backward(), &inputs).expect("computes");
        for (role, slice) in [(Role::DQ, &d_q), (Role::DK, &d_k), (Role::DV, &d_v)] {
            let found = read(slice);
            let values = expected.get(role).expect("an output").values().to_vec();
            let sums = values
                .iter()
                .enumerate()
                .fold((0.0, 0.0), |(off, all), (at, x)| (off + (found.get(at) - x).powi(2), all + x * x));
            let error = f64::sqrt(sums.0 / sums.1);
            say(&format!("{role}: {error:.4}"));
            // Those of a backward in 16 bits: three times what O has.
            assert!(error < 0.015, "{role}: {error}");
        }
    }
}

/// The whole step is one graph, scales and their history with it, and has the bits of launches one by one.
#[test]
fn a_captured_step_updates_its_scales_as_launches_do() {
    let Some((gpu, planner)) = open() else { return };
    let stream = &gpu.stream;
    let rooms = |step: &Step| {
        let room = |bytes| Workspace::allocate(stream, bytes).expect("memory");
        let of = [&step.conversions[0], step.pair.forward_plan(), step.pair.backward_plan()];
        of.map(|plan| room(plan.workspace().max(1)))
    };
    let mut all = [false, true].map(|captured| {
        let step = Step::new(&gpu, &planner);
        let wide = QUANTIZED.map(|(role, ..)| stream.clone_htod(numbers(0, role, 1.0).bytes()).expect("memory"));
        let saved = step.pair.saved(stream).expect("memory");
        (rooms(&step), step, wide, saved, captured)
    });
    let mut seen = Vec::new();
    for (rooms, step, wide, saved, captured) in &mut all {
        // cuDNN loads its kernels at a launch, which no capture allows.
        step.recorded(stream, (wide, saved, rooms), false);
        stream.synchronize().expect("all is done");
        let graph = captured.then(|| {
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
            step.recorded(stream, (wide, saved, rooms), true);
            stream.end_capture(CUgraphInstantiate_flags(0)).expect("it ends").expect("a graph")
        });
        for number in 1..8 {
            for ((role, _, _, size), wide) in QUANTIZED.iter().zip(&mut *wide) {
                stream.memcpy_htod(numbers(number, *role, *size).bytes(), wide).expect("copied");
            }
            match &graph {
                Some(graph) => graph.launch().expect("replays"),
                None => step.recorded(stream, (wide, saved, rooms), false),
            }
            let bits = |scales: BTreeMap<Scaled, f32>| scales.into_values().map(f32::to_bits).collect::<Vec<_>>();
            seen.push((bits(step.scales.scales(stream).expect("read")), stream.clone_dtoh(&step.o).expect("read")));
        }
        assert_eq!(step.scales.without_magnitude(stream).expect("read"), BTreeMap::new());
    }
    let (launched, replayed) = seen.split_at(7);
    assert!(launched == replayed, "other bits");
    assert!(launched.windows(2).all(|two| two[0].0 != two[1].0), "scales stand still");
}

#[test]
fn scales_that_are_zero_negative_or_no_numbers_are_told_on_request() {
    let Some((gpu, planner)) = open() else { return };
    let mut step = Step::new(&gpu, &planner);
    (0..4).for_each(|at| step.quantize(&gpu, at, 7));
    for (bad, shown) in [(0.0_f32, "0"), (-2.0, "-2"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let wrong = gpu.stream.clone_htod(&[bad]).expect("memory");
        let one = gpu.stream.clone_htod(&[1.0_f32]).expect("memory");
        let zeros = || gpu.stream.alloc_zeros::<f32>(1).expect("memory");
        let (mut amax_s, mut amax_o) = (zeros(), zeros());
        let mut stats = gpu.stream.alloc_zeros::<f32>((DIMS[0] * DIMS[1] * DIMS[2]) as usize).expect("memory");
        let [q, k, v, _] = &step.narrow;
        let mut args = Args::new().q(q).k(k).v(v).o(&mut step.o).lse(&mut stats);
        args = args.tensor_mut(Role::Amax(Scaled::S), &mut amax_s).tensor_mut(Role::Amax(Scaled::O), &mut amax_o);
        for role in [Role::Descale(Scaled::Q), Role::Descale(Scaled::K), Role::Descale(Scaled::S)] {
            args = args.tensor(role, &one);
        }
        args = args.tensor(Role::Descale(Scaled::V), &wrong).tensor(Role::ScaleOf(Scaled::S), &one);
        let plan = step.pair.forward_plan();
        let found = plan.verify_scales(args.tensor(Role::ScaleOf(Scaled::O), &wrong), &gpu.stream);
        let Err(LaunchError::Arguments(errors)) = found else { panic!("{found:?}") };
        let expected = |role| BindError::Scale { role, given: shown.to_owned() };
        let mut errors = errors.into_vec();
        errors.sort_by_key(ToString::to_string);
        assert_eq!(errors, [expected(Role::Descale(Scaled::V)), expected(Role::ScaleOf(Scaled::O))]);
    }
    let half = bf16::from_f32(1.0);
    let wrong = gpu.stream.clone_htod(&[half; 8]).expect("memory");
    let plan = &step.conversions[0];
    let args = Args::new().tensor(Role::Wide, &wrong);
    let found = plan.verify_scales(args, &gpu.stream);
    assert!(found.expect_err("no scale is there").to_string().contains("missing"));
}
