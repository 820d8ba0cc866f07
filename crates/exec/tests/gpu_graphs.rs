//! CUDA graphs on a real GPU: a forward and a backward, replayed a thousand times with new data, and graphs whose
//! operands are replaced.
//!
//! What the tests need, and how the plans are made, is in `gpu.rs`. A whole step of a model is in `gpu_graph_step.rs`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::say;
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaSlice, CudaStream, result};
use half::bf16;
use kit::kernels::{Noise, poison, same_bits};
use kit::{Case, Gpu, attentions, decode, deterministic, dropout, prefill, repeats_bits};
use qkvault_compile::OnMiss;
use qkvault_cudnn::CompileOptions;
use qkvault_exec::raw::DeviceBuffer;
use qkvault_exec::{Args, BindError, BindFailure, Captured, LoadedPlan, UpdateError, Updated, Workspace, cudarc};
use qkvault_graph::{Role, Valid};
use qkvault_reference::{Buffer, Inputs, OutputTolerance, backward, compare, forward};

const REPLAYS: usize = 1000;

/// Elements of an operand.
fn elements(plan: &LoadedPlan, role: Role) -> usize {
    let binding = plan.facts().bindings.iter().find(|b| b.role == role).expect("the plan has it");
    binding.bytes as usize / binding.dtype.size()
}

fn bytes(values: &[bf16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn insert(inputs: &mut Inputs, attention: &Valid, role: Role, values: &[bf16]) {
    inputs.insert(role, Buffer::new(attention.q.dtype, bytes(values)).expect("whole"));
}

/// Compares O with the oracle.
fn right(attention: &Valid, inputs: &Inputs, found: &[bf16]) {
    let expected = forward(attention, inputs).expect("the oracle can do it");
    let buffer = Buffer::new(attention.o.dtype, bytes(found)).expect("whole");
    let output = expected.get(Role::O).expect("it has O");
    let found = compare(output, &buffer, OutputTolerance::for_role(Role::O, attention.o.dtype));
    assert!(found.good, "{attention}: {found}");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn a_forward_replays_new_data_a_thousand_times() {
    let Some(gpu) = Gpu::open() else { return };
    let (attention, stream) = (prefill(), &gpu.stream);
    let plan = gpu.load(&attention);
    let count = |role| elements(&plan, role);
    let zeros = |role| stream.alloc_zeros::<bf16>(count(role)).expect("memory");
    let statistics = || stream.alloc_zeros::<f32>(count(Role::Stats)).expect("memory");
    let args = Args::new().q(zeros(Role::Q)).k(zeros(Role::K)).v(zeros(Role::V)).o(zeros(Role::O)).lse(statistics());
    let mut graph = plan.bind(args, stream).expect("bound").capture(stream).expect("captured");
    let [mut q, mut k, mut v, mut o] = [Role::Q, Role::K, Role::V, Role::O].map(zeros);
    let mut lse = statistics();
    let noise = [(Role::Q, 1), (Role::K, 2), (Role::V, 3)].map(|(role, seed)| Noise::new(count(role), seed));
    for step in 0..REPLAYS {
        for ((role, direct), noise) in [(Role::Q, &mut q), (Role::K, &mut k), (Role::V, &mut v)].into_iter().zip(&noise)
        {
            stream.memcpy_htod(noise.at(step), direct).expect("copied");
            stream.memcpy_htod(noise.at(step), graph.slice_mut::<bf16>(role).expect("it owns it")).expect("copied");
        }
        poison(&o, stream);
        poison(graph.slice::<bf16>(Role::O).expect("it owns O"), stream);
        poison(graph.slice::<f32>(Role::Stats).expect("it owns Stats"), stream);
        graph.launch().expect("it is queued");
        plan.launch(stream, Args::new().q(&q).k(&k).v(&v).o(&mut o).lse(&mut lse)).expect("it is queued");
        let replayed = stream.clone_dtoh(graph.slice::<bf16>(Role::O).expect("it owns O")).expect("read");
        assert!(same_bits(&replayed, &stream.clone_dtoh(&o).expect("read")), "replay {step} has other bits");
        let statistics = stream.clone_dtoh(graph.slice::<f32>(Role::Stats).expect("it owns Stats")).expect("read");
        assert!(statistics == stream.clone_dtoh(&lse).expect("read"), "replay {step} has other statistics");
        if step % 100 == 0 {
            let mut inputs = Inputs::random(&attention, 1).expect("random operands");
            inputs.set_f32(Role::Scale, attention.default_scale());
            for (role, noise) in [Role::Q, Role::K, Role::V].into_iter().zip(&noise) {
                insert(&mut inputs, &attention, role, noise.at(step));
            }
            right(&attention, &inputs, &replayed);
        }
    }
}

#[test]
fn a_backward_replays_new_gradients_a_thousand_times() {
    let Some(gpu) = Gpu::open() else { return };
    let (training, stream) = (deterministic(), &gpu.stream);
    let pass = training.backward();
    let pair = gpu.engine.prepare_training(&training, &CompileOptions::cudnn(), OnMiss::Load).expect("in the vault");
    let plan = pair.backward_plan();
    let mut inputs = Inputs::random(pass, 3).expect("random operands");
    inputs.set_f32(Role::Scale, pass.default_scale());
    inputs.add_forward(pass).expect("the oracle can do it");
    let upload = |role| stream.clone_htod(inputs.buffer(role).expect("there").bytes()).expect("memory");
    let [q, k, v, o, stats] = [Role::Q, Role::K, Role::V, Role::O, Role::Stats].map(|role| Arc::new(upload(role)));
    let fixed = || Args::new().q(&q).k(&k).v(&v).saved_o(&o).saved_lse(&stats);
    let gradients = [Role::DQ, Role::DK, Role::DV];
    let zeros = |role| stream.alloc_zeros::<bf16>(elements(plan, role)).expect("memory");
    let args = gradients.into_iter().fold(fixed().d_o(zeros(Role::DO)), |all, role| all.tensor_mut(role, zeros(role)));
    let mut graph = plan.bind(args, stream).expect("bound").capture(stream).expect("captured");
    let (mut d_o, mut direct) = (zeros(Role::DO), gradients.map(zeros));
    let noise = Noise::new(d_o.len(), 4);
    for step in 0..REPLAYS {
        stream.memcpy_htod(noise.at(step), &mut d_o).expect("copied");
        stream.memcpy_htod(noise.at(step), graph.slice_mut::<bf16>(Role::DO).expect("it owns dO")).expect("copied");
        for (role, slice) in gradients.into_iter().zip(&direct) {
            poison(slice, stream);
            poison(graph.slice::<bf16>(role).expect("it owns it"), stream);
        }
        graph.launch().expect("it is queued");
        let [d_q, d_k, d_v] = &mut direct;
        plan.launch(stream, fixed().d_o(&d_o).d_q(d_q).d_k(d_k).d_v(d_v)).expect("it is queued");
        let sample = step % 200 == 0;
        if sample {
            insert(&mut inputs, pass, Role::DO, noise.at(step));
        }
        let expected = sample.then(|| backward(pass, &inputs).expect("the oracle can do it"));
        for (role, slice) in gradients.into_iter().zip(&direct) {
            let replayed = stream.clone_dtoh(graph.slice::<bf16>(role).expect("it owns it")).expect("read");
            assert!(same_bits(&replayed, &stream.clone_dtoh(slice).expect("read")), "replay {step}: {role} differs");
            if let Some(expected) = &expected {
                let usual = OutputTolerance::for_role(role, pass.q.dtype);
                // Kernels round probabilities and their gradients to 16 bits before they multiply them.
                let tolerance = OutputTolerance { relative: 4.0 * usual.relative, ..usual };
                let buffer = Buffer::new(pass.q.dtype, bytes(&replayed)).expect("whole");
                let found = compare(expected.get(role).expect("it has them"), &buffer, tolerance);
                assert!(found.good, "replay {step}: {role}: {found}");
            }
        }
    }
}

/// Operands of the decode that a graph can own.
fn owned(stream: &Arc<CudaStream>, attention: &Valid, seed: u64) -> (Inputs, [CudaSlice<bf16>; 4]) {
    let mut inputs = Inputs::random(attention, seed).expect("random operands");
    inputs.set_f32(Role::Scale, attention.default_scale());
    let upload = |role| {
        let bytes = inputs.buffer(role).expect("every input is there").bytes();
        let values: Vec<bf16> = bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect();
        stream.clone_htod(&values).expect("memory")
    };
    let [q, k, v] = [Role::Q, Role::K, Role::V].map(upload);
    let o = stream.alloc_zeros::<bf16>(q.len()).expect("memory");
    poison(&o, stream);
    (inputs, [q, k, v, o])
}

fn output(stream: &Arc<CudaStream>, graph: &mut Captured<'_>) -> Vec<bf16> {
    stream.clone_dtoh(graph.slice::<bf16>(Role::O).expect("it owns O")).expect("read")
}

/// Whether two launches on the same numbers can give these outputs: the same bits, except where keys are split.
fn alike(attention: &Valid, a: &[bf16], b: &[bf16]) -> bool {
    // No poison passes: it is no number.
    let near = |(a, b): (&bf16, &bf16)| (a.to_f32() - b.to_f32()).abs() <= 0.01 * (0.1 + a.to_f32().abs());
    if repeats_bits(attention) { same_bits(a, b) } else { a.iter().zip(b).all(near) }
}

/// How two outputs differ, for the message of a failure.
fn differences(a: &[bf16], b: &[bf16]) -> String {
    let poison = |values: &[bf16]| values.iter().filter(|value| value.is_nan()).count();
    let differ = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let apart = a.iter().zip(b).map(|(a, b)| (a.to_f32() - b.to_f32()).abs()).fold(0.0, f32::max);
    let (of_a, of_b, all) = (poison(a), poison(b), a.len());
    format!("{differ} of {all} elements differ, by up to {apart}; {of_a} and {of_b} are poison")
}

#[test]
fn two_hundred_updates_with_other_buffers_give_right_numbers() {
    const UPDATES: u64 = 200;
    let Some(gpu) = Gpu::open() else { return };
    let stream = &gpu.stream;
    let mut in_place = 0;
    for attention in [decode(), prefill()] {
        let plan = gpu.load(&attention);
        let stats = attention.outputs.stats.then(|| elements(&plan, Role::Stats));
        let lse = || stats.map(|length| stream.alloc_zeros::<f32>(length).expect("memory"));
        let args = |[q, k, v, o]: [CudaSlice<bf16>; 4]| {
            let args = Args::new().q(q).k(k).v(v).o(o);
            lse().into_iter().fold(args, Args::lse)
        };
        let (_, first) = owned(stream, &attention, 0);
        let mut graph = plan.bind(args(first), stream).expect("bound").capture(stream).expect("captured");
        graph.launch().expect("it is queued");
        let mut times = Vec::new();
        for update in 1..=UPDATES {
            let (mut inputs, operands) = owned(stream, &attention, update);
            // Another scale with every third: scalars are replaced too.
            let scale = attention.default_scale() * if update % 3 == 0 { 0.5 } else { 1.0 };
            inputs.set_f32(Role::Scale, scale);
            let args = args(operands).scale(scale);
            let started = Instant::now();
            let how = graph.update(args).expect("it is updated");
            times.push(started.elapsed());
            in_place += u64::from(how == Updated::InPlace);
            graph.launch().expect("it is queued");
            let found = output(stream, &mut graph);
            graph.launch().expect("it is queued");
            let again = output(stream, &mut graph);
            assert!(alike(&attention, &found, &again), "update {update}: two replays: {}", differences(&found, &again));
            if update % 10 == 0 {
                right(&attention, &inputs, &found);
            }
            // The same by a launch that is not captured.
            let [q, k, v, mut o] = owned(stream, &attention, update).1;
            let mut lse = lse();
            let direct = Args::new().q(&q).k(&k).v(&v).o(&mut o).scale(scale);
            plan.launch(stream, lse.iter_mut().fold(direct, Args::lse)).expect("it is queued");
            let direct = stream.clone_dtoh(&o).expect("read");
            assert!(alike(&attention, &found, &direct), "update {update}: {}", differences(&found, &direct));
        }
        say(&format!("{attention}: an update takes {:?} of host time", median(times)));
    }
    say(&format!("{in_place} of {} updates were made in place", 2 * UPDATES));
    assert_eq!(in_place, 2 * UPDATES, "the driver refused some");
}

#[test]
fn an_update_that_is_refused_leaves_the_graph_as_it_was() {
    let Some(gpu) = Gpu::open() else { return };
    let (attention, stream) = (decode(), &gpu.stream);
    let plan = gpu.load(&attention);
    let (inputs, [q, k, v, o]) = owned(stream, &attention, 5);
    let mut graph =
        plan.bind(Args::new().q(q).k(k).v(v).o(o), stream).expect("bound").capture(stream).expect("captured");
    let [q, k, v, _] = owned(stream, &attention, 6).1;
    let refused = graph.update(Args::new().q(q).k(k).v(v));
    let Err(UpdateError::Bind(BindFailure::Wrong(errors))) = refused else { panic!("{refused:?}") };
    assert!(matches!(errors[..], [BindError::Missing { role: Role::O, .. }]), "{errors}");
    graph.launch().expect("it is queued");
    right(&attention, &inputs, &output(stream, &mut graph));
    // Taken back, the plan is launched with what it was captured with.
    let mut bound = graph.into_bound();
    poison(bound.slice::<bf16>(Role::O).expect("it owns O"), stream);
    bound.launch(stream).expect("it is queued");
    right(&attention, &inputs, &stream.clone_dtoh(bound.slice::<bf16>(Role::O).expect("it owns O")).expect("read"));
}

/// cudarc waits for the events of slices, and a capture that waits for work outside it is invalid.
#[test]
fn launches_with_arguments_are_recorded_while_cudarc_tracks_events() {
    let Some(gpu) = Gpu::open() else { return };
    let stream = &gpu.stream;
    assert!(stream.context().is_managing_stream_synchronization());
    for attention in attentions() {
        let (plan, mut case) = (gpu.load(&attention), Case::new(&gpu, &attention, 9));
        let workspace = Workspace::allocate(stream, plan.workspace().max(1)).expect("memory");
        // Puts a handle on the stream, and events on the slices.
        plan.launch(stream, case.bindings(&plan)).expect("it is queued");
        case.poison(&gpu);
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
        // SAFETY: the graph is destroyed before operands, workspace and plan; one stream orders all.
        let recorded = unsafe { plan.launch_captured(stream, case.bindings(&plan).workspace(&workspace)) };
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        recorded.expect("it is recorded");
        let graph = graph.expect("it ends").expect("a graph");
        graph.launch().expect("it is queued");
        stream.synchronize().expect("it ends well");
        drop(graph);
        case.check(&gpu);
    }
    // The seed of dropout is written in the graph.
    let training = dropout();
    let pair = gpu.engine.prepare_training(&training, &CompileOptions::cudnn(), OnMiss::Load).expect("in the vault");
    let (_, [q, k, v, mut o]) = owned(stream, training.forward(), 7);
    let mut saved = pair.saved(stream).expect("memory");
    let workspace = Workspace::allocate(stream, pair.workspace().max(1)).expect("memory");
    let mut run = |o: &mut CudaSlice<bf16>, captured: bool| {
        let args = Args::new().q(&q).k(&k).v(&v).o(o).dropout(11, 3).workspace(&workspace);
        if captured {
            // SAFETY: the graph is destroyed before operands, workspace and plan; one stream orders all.
            unsafe { pair.forward_captured(&mut saved, args, stream) }
        } else {
            pair.forward(&mut saved, args, stream)
        }
    };
    run(&mut o, false).expect("it is queued");
    let direct = stream.clone_dtoh(&o).expect("read");
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
    let recorded = run(&mut o, true);
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    recorded.expect("it is recorded");
    poison(&o, stream);
    let graph = graph.expect("it ends").expect("a graph");
    graph.launch().expect("it is queued");
    assert!(same_bits(&stream.clone_dtoh(&o).expect("read"), &direct), "another mask");
    drop(graph);
}

/// Prints the host time of a replay beside cudarc's own, and of what changes a graph's operands.
#[test]
fn costs_of_replays_and_updates() {
    const ROUNDS: usize = 100;
    let Some(gpu) = Gpu::open() else { return };
    let (attention, stream) = (decode(), &gpu.stream);
    let plan = gpu.load(&attention);
    let sets: [[CudaSlice<bf16>; 4]; 3] = [1, 2, 3].map(|seed| owned(stream, &attention, seed).1);
    let [[q, k, v, mut o], [q2, k2, v2, o2], [q3, k3, v3, o3]] = sets;
    let all_owned = plan.bind(Args::new().q(q3).k(k3).v(v3).o(o3), stream).expect("bound");
    let mut all_owned = all_owned.capture(stream).expect("captured");
    let mut others: Vec<_> = (0..ROUNDS).map(|_| stream.alloc_zeros::<bf16>(q.len()).expect("memory")).collect();
    let mut once_more: Vec<_> = (0..ROUNDS).map(|_| stream.alloc_zeros::<bf16>(q.len()).expect("memory")).collect();
    let mut graph =
        plan.bind(Args::new().q(&q2).k(&k2).v(&v2).o(o2), stream).expect("bound").capture(stream).expect("captured");
    let timed = |work: &mut dyn FnMut(), times: u32| {
        let started = Instant::now();
        work();
        let time = started.elapsed() / times;
        stream.synchronize().expect("all end well");
        time
    };
    let (mut ours, mut borrowed, mut cudarcs, mut launches) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(timed(&mut || (0..50).for_each(|_| all_owned.launch().expect("queued")), 50));
        // A replay records an event for each borrowed slice.
        borrowed.push(timed(&mut || (0..50).for_each(|_| graph.launch().expect("queued")), 50));
        // SAFETY: one stream orders all use of the operands.
        let mut replay = || (0..50).for_each(|_| unsafe { graph.graph() }.launch().expect("queued"));
        cudarcs.push(timed(&mut replay, 50));
        let mut launch = || {
            for _ in 0..50 {
                plan.launch(stream, Args::new().q(&q).k(&k).v(&v).o(&mut o)).expect("queued");
            }
        };
        launches.push(timed(&mut launch, 50));
    }
    let (ours, borrowed, cudarcs) = (median(ours), median(borrowed), median(cudarcs));
    let ratio = ours.as_secs_f64() / cudarcs.as_secs_f64();
    say(&format!(
        "replay {ours:?}, cudarc's own {cudarcs:?}: {ratio:.3} of it; with three borrowed slices {borrowed:?}"
    ));
    let (mut updates, mut anew) = (Vec::new(), Vec::new());
    for o in &mut others {
        let args = Args::new().q(&q2).k(&k2).v(&v2).o(o);
        let started = Instant::now();
        graph.update(args).expect("updated");
        updates.push(started.elapsed());
        graph.launch().expect("queued");
        stream.synchronize().expect("it ends well");
    }
    for o in &mut once_more {
        let (mut bound, args) = (graph.into_bound(), Args::new().q(&q2).k(&k2).v(&v2).o(o));
        let started = Instant::now();
        bound.rebind(args, stream).expect("bound");
        graph = bound.capture(stream).expect("captured");
        anew.push(started.elapsed());
        graph.launch().expect("queued");
        stream.synchronize().expect("it ends well");
    }
    let (updates, anew, launches) = (median(updates), median(anew), median(launches));
    say(&format!("other operands: update {updates:?}, capture anew {anew:?}, launch with arguments {launches:?}"));
    // Without optimisations it says nothing.
    assert!(cfg!(debug_assertions) || ratio < 1.3, "a replay takes {ratio:.3} of cudarc's own");
}

/// Prints what cuDNN's own way to change a graph costs, which `Captured::update` does not take: see
/// `gpu_native_graphs.rs`.
#[test]
fn costs_of_graphs_that_cudnn_writes_itself() {
    let Some(gpu) = Gpu::open() else { return };
    let (attention, stream) = (decode(), &gpu.stream);
    let plan = gpu.load(&attention);
    let mut cases = [Case::new(&gpu, &attention, 1), Case::new(&gpu, &attention, 2)];
    let workspace = Workspace::allocate(stream, plan.workspace().max(1)).expect("memory");
    let memory = DeviceBuffer { address: workspace.address(), bytes: workspace.bytes() };
    let bound = cases.each_mut().map(|case| {
        let bindings = case.raw_bindings(stream, plan.facts());
        plan.raw().bind(&bindings, memory).expect("all roles are bound")
    });
    let raw = stream.cu_stream().cast::<c_void>();
    let mut graph = std::ptr::null_mut();
    // SAFETY: `graph` is writable.
    unsafe { sys::cuGraphCreate(&raw mut graph, 0) }.result().expect("an empty graph");
    // SAFETY: operands and workspace outlive the graph, and one stream orders all.
    if let Err(error) = unsafe { bound[0].native_graph(raw, graph.cast(), true) } {
        say(&format!("cuDNN writes no graph of this plan: {error}"));
        assert!(error.to_string().contains("NOT_SUPPORTED"), "{error}");
        return;
    }
    // SAFETY: the graph is alive.
    let executable = unsafe { result::graph::instantiate(graph, CUgraphInstantiate_flags(0)) }.expect("instantiated");
    let (mut writes, mut updates) = (Vec::new(), Vec::new());
    for round in 0..200 {
        let which = round % 2;
        cases[which].poison(&gpu);
        let started = Instant::now();
        // SAFETY: as above.
        unsafe { bound[which].native_graph(raw, graph.cast(), false) }.expect("it is written");
        writes.push(started.elapsed());
        let started = Instant::now();
        let mut info = MaybeUninit::<sys::CUgraphExecUpdateResultInfo>::uninit();
        // SAFETY: both graphs are alive, and this thread alone has them.
        unsafe { sys::cuGraphExecUpdate_v2(executable, graph, info.as_mut_ptr()) }.result().expect("updated");
        updates.push(started.elapsed());
        // SAFETY: graph and operands are alive, and of this context.
        unsafe { result::graph::launch(executable, stream.cu_stream()) }.expect("it is queued");
        stream.synchronize().expect("it ends well");
        if round % 50 < 2 {
            cases[which].check(&gpu);
        }
    }
    let (writes, updates) = (median(writes), median(updates));
    say(&format!(
        "cuDNN writes other addresses into its graph in {writes:?}, and the driver takes them in {updates:?}"
    ));
    // SAFETY: each is destroyed once, after its last replay.
    unsafe {
        result::graph::exec_destroy(executable).expect("destroyed");
        result::graph::destroy(graph).expect("destroyed");
    }
}
