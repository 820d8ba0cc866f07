//! A whole step of a model as one CUDA graph on a real GPU: attention between other kernels, forward and backward, and
//! weights that each replay changes where they are.
//!
//! What the tests need, and how the plans are made, is in `gpu.rs`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Instant;

use common::say;
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, result};
use half::bf16;
use kit::kernels::{Kernels, Noise, address, poison, same_bits};
use kit::{Gpu, deterministic};
use qkvault_compile::OnMiss;
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{Args, SavedForBackward, TrainingPair, Workspace, cudarc};
use qkvault_graph::Role;
use qkvault_reference::{Buffer, Inputs, OutputTolerance, backward, compare, forward};

const REPLAYS: usize = 1000;

/// What a step multiplies by: powers of two, so that the host can say exactly what bf16 numbers come out.
const QUERIES: f32 = 0.5;
const LOSS: f32 = 0.25;
const RATE: f32 = -0.125;

/// The memory of a layer. Each tensor has the elements of Q.
struct Layer {
    /// What a step is given: hidden states, keys and values.
    x: [CudaSlice<bf16>; 3],
    /// Operands of the attention.
    qkv: [CudaSlice<bf16>; 3],
    o: CudaSlice<bf16>,
    /// O, as another layer would keep it.
    kept: CudaSlice<bf16>,
    d_o: CudaSlice<bf16>,
    gradients: [CudaSlice<bf16>; 3],
    /// Changed by every step.
    weights: CudaSlice<bf16>,
    saved: SavedForBackward,
    workspace: Arc<Workspace>,
}

impl Layer {
    fn new(pair: &TrainingPair, stream: &Arc<CudaStream>, length: usize) -> Layer {
        let zeros = || stream.alloc_zeros::<bf16>(length).expect("memory");
        let three = || [zeros(), zeros(), zeros()];
        let saved = pair.saved(stream).expect("memory");
        let workspace = Workspace::allocate(stream, pair.workspace().max(1)).expect("memory");
        let [o, kept, d_o, weights] = [zeros(), zeros(), zeros(), zeros()];
        Layer { x: three(), qkv: three(), o, kept, d_o, gradients: three(), weights, saved, workspace }
    }

    /// Gives the step its data, and poisons everything that it writes.
    fn feed(&mut self, stream: &Arc<CudaStream>, noise: &[Noise; 3], step: usize) {
        for (x, noise) in self.x.iter_mut().zip(noise) {
            stream.memcpy_htod(noise.at(step), x).expect("copied");
        }
        let Layer { x: _, qkv, o, kept, d_o, gradients, weights: _, saved: _, workspace: _ } = self;
        qkv.iter().chain([&*o, kept, d_o]).chain(&*gradients).for_each(|slice| poison(slice, stream));
    }

    /// Queues or records a step: kernels and copies before, between and behind the attention's two passes.
    fn step(&mut self, pair: &TrainingPair, kernels: &Kernels, stream: &Arc<CudaStream>, captured: bool) {
        let Layer { x, qkv, o, kept, d_o, gradients, weights, saved, workspace } = self;
        let (length, bytes, raw) = (o.len(), o.num_bytes(), stream.cu_stream());
        // SAFETY: every slice has `length` elements and outlives the step and the graph; one stream orders all.
        unsafe {
            kernels.scale(stream, (address(&qkv[0]), address(&x[0])), QUERIES, length);
            for (to, from) in qkv[1..].iter().zip(&x[1..]) {
                result::memcpy_dtod_async(address(to), address(from), bytes, raw).expect("queued");
            }
            for slice in gradients.iter() {
                result::memset_d8_async(address(slice), 0xff, bytes, raw).expect("queued");
            }
        }
        let [q, k, v] = qkv;
        let args = Args::new().q(&*q).k(&*k).v(&*v).o(&mut *o).workspace(workspace);
        let queued = match captured {
            // SAFETY: as above.
            true => unsafe { pair.forward_captured(saved, args, stream) },
            false => pair.forward(saved, args, stream),
        };
        queued.expect("the forward");
        // SAFETY: as above.
        unsafe {
            kernels.scale(stream, (address(d_o), address(o)), LOSS, length);
            result::memcpy_dtod_async(address(kept), address(o), bytes, raw).expect("queued");
        }
        let [d_q, d_k, d_v] = gradients;
        let args = Args::new().q(&*q).k(&*k).v(&*v).saved_o(&*o).d_o(&*d_o).workspace(workspace);
        let args = args.d_q(&mut *d_q).d_k(d_k).d_v(d_v);
        let queued = match captured {
            // SAFETY: as above.
            true => unsafe { pair.backward_captured(saved, args, stream) },
            false => pair.backward(saved, args, stream),
        };
        queued.expect("the backward");
        // SAFETY: as above.
        unsafe { kernels.add(stream, (address(weights), address(d_q)), RATE, length) };
    }

    fn capture(&mut self, pair: &TrainingPair, kernels: &Kernels, stream: &Arc<CudaStream>) -> CudaGraph {
        stream.synchronize().expect("all is done");
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
        self.step(pair, kernels, stream, true);
        stream.end_capture(CUgraphInstantiate_flags(0)).expect("it ends").expect("a graph")
    }

    /// What a step wrote, with a name for each.
    fn written(&self, stream: &Arc<CudaStream>) -> Vec<(&'static str, Vec<bf16>)> {
        let Layer { x: _, qkv, o, kept, d_o, gradients, weights, saved: _, workspace: _ } = self;
        let names = ["Q", "K", "V", "dQ", "dK", "dV", "O", "kept O", "dO", "weights"];
        let slices = qkv.iter().chain(gradients).chain([o, kept, d_o, weights]);
        names.into_iter().zip(slices).map(|(name, slice)| (name, stream.clone_dtoh(slice).expect("read"))).collect()
    }
}

struct Model {
    gpu: Gpu,
    pair: TrainingPair,
    kernels: Kernels,
    noise: [Noise; 3],
    length: usize,
}

impl Model {
    fn open() -> Option<Model> {
        let gpu = Gpu::open()?;
        let pair = gpu.engine.prepare_training(&deterministic(), &CompileOptions::cudnn(), OnMiss::Load);
        let pair = pair.expect("it is in the vault");
        let kernels = Kernels::load(gpu.stream.context());
        let length =
            pair.forward_plan().facts().bindings.iter().find(|b| b.role == Role::Q).expect("Q").bytes as usize / 2;
        let noise = [1, 2, 3].map(|seed| Noise::new(length, seed));
        Some(Model { gpu, pair, kernels, noise, length })
    }

    fn layer(&self) -> Layer {
        Layer::new(&self.pair, &self.gpu.stream, self.length)
    }

    /// Compares a step with the oracle.
    fn check(&self, step: usize, written: &[(&'static str, Vec<bf16>)]) {
        let training = deterministic();
        let bytes = |values: &[bf16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let found = |name: &str| &written.iter().find(|(other, _)| *other == name).expect("written").1;
        let scaled: Vec<bf16> = self.noise[0].at(step).iter().map(|x| bf16::from_f32(x.to_f32() * QUERIES)).collect();
        assert!(same_bits(found("Q"), &scaled) && same_bits(found("K"), self.noise[1].at(step)), "step {step}");
        assert!(same_bits(found("kept O"), found("O")), "step {step}");
        let loss: Vec<bf16> = found("O").iter().map(|x| bf16::from_f32(x.to_f32() * LOSS)).collect();
        assert!(same_bits(found("dO"), &loss), "step {step}");
        let pass = training.backward();
        let mut inputs = Inputs::random(pass, 1).expect("random operands");
        inputs.set_f32(Role::Scale, pass.default_scale());
        for (role, name) in [(Role::Q, "Q"), (Role::K, "K"), (Role::V, "V"), (Role::DO, "dO")] {
            inputs.insert(role, Buffer::new(pass.q.dtype, bytes(found(name))).expect("whole"));
        }
        inputs.add_forward(pass).expect("the oracle can do it");
        let (outputs, gradients) = (forward(training.forward(), &inputs), backward(pass, &inputs));
        let (outputs, gradients) = (outputs.expect("the oracle"), gradients.expect("the oracle"));
        for (role, name) in [(Role::O, "O"), (Role::DQ, "dQ"), (Role::DK, "dK"), (Role::DV, "dV")] {
            let expected = outputs.get(role).or_else(|| gradients.get(role)).expect("the oracle has it");
            let usual = OutputTolerance::for_role(role, pass.q.dtype);
            // Kernels round probabilities and their gradients to 16 bits before they multiply them.
            let relative = usual.relative * if role == Role::O { 1.0 } else { 4.0 };
            let buffer = Buffer::new(pass.q.dtype, bytes(found(name))).expect("whole");
            let found = compare(expected, &buffer, OutputTolerance { relative, ..usual });
            assert!(found.good, "step {step}: {name}: {found}");
        }
    }
}

#[test]
fn a_whole_step_of_a_model_replays_new_data_a_thousand_times() {
    let Some(model) = Model::open() else { return };
    let Model { gpu, pair, kernels, noise, .. } = &model;
    let stream = &gpu.stream;
    let (mut direct, mut replayed) = (model.layer(), model.layer());
    // Puts a handle on the stream.
    direct.step(pair, kernels, stream, false);
    stream.memset_zeros(&mut direct.weights).expect("queued");
    let graph = replayed.capture(pair, kernels, stream);
    for step in 0..REPLAYS {
        direct.feed(stream, noise, step);
        replayed.feed(stream, noise, step);
        graph.launch().expect("it is queued");
        direct.step(pair, kernels, stream, false);
        let (ours, theirs) = (replayed.written(stream), direct.written(stream));
        for ((name, ours), (_, theirs)) in ours.iter().zip(&theirs) {
            assert!(same_bits(ours, theirs), "replay {step}: {name} differs from that of a step without a graph");
        }
        if step % 250 == 0 {
            model.check(step, &ours);
        }
    }
    let changed = replayed.written(stream).pop().expect("the weights").1;
    assert!(changed.iter().any(|weight| weight.to_f32() != 0.0), "the weights stayed as they were");
}

/// The caller's own graph, with attention in it, takes the buffers of another layer.
#[test]
fn a_step_that_is_captured_again_updates_a_graph_in_place() {
    let Some(model) = Model::open() else { return };
    let Model { gpu, pair, kernels, noise, .. } = &model;
    let stream = &gpu.stream;
    let mut layers: Vec<Layer> = (0..4).map(|_| model.layer()).collect();
    layers[0].step(pair, kernels, stream, false);
    let graph = layers[0].capture(pair, kernels, stream);
    let (mut updates, mut made) = (Vec::new(), Vec::new());
    for round in 0..40 {
        let layer = &mut layers[round % 4];
        layer.feed(stream, noise, round);
        let started = Instant::now();
        let again = layer.capture(pair, kernels, stream);
        made.push(started.elapsed());
        let mut info = MaybeUninit::<sys::CUgraphExecUpdateResultInfo>::uninit();
        let started = Instant::now();
        // SAFETY: both graphs are alive, and this thread alone has them.
        let updated = unsafe { sys::cuGraphExecUpdate_v2(graph.cu_graph_exec(), again.cu_graph(), info.as_mut_ptr()) };
        updates.push(started.elapsed());
        updated.result().unwrap_or_else(|error| panic!("round {round}: {error}"));
        drop(again);
        graph.launch().expect("it is queued");
        let written = layer.written(stream);
        if round % 20 < 4 {
            model.check(round, &written);
        }
        // The same without a graph.
        layer.feed(stream, noise, round);
        layer.step(pair, kernels, stream, false);
        for ((name, ours), (_, theirs)) in
            written.iter().zip(&layer.written(stream)).filter(|((name, _), _)| *name != "weights")
        {
            assert!(same_bits(ours, theirs), "round {round}: {name} differs");
        }
    }
    updates.sort_unstable();
    made.sort_unstable();
    say(&format!("a step: captured and instantiated in {:?}, an update of the graph in {:?}", made[20], updates[20]));
}
