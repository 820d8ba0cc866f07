//! Graphs that cuDNN writes itself on a real GPU, beside captures: which plans it does that for, whether the driver
//! takes what it writes into a graph that was captured, and whether replays with other operands and numbers are right.
//!
//! What the tests need, and how the plans are made, is in `gpu.rs`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use common::say;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{DriverError, result};
use half::bf16;
use kit::{Case, Gpu, attentions, deterministic, repeats_bits, trainings};
use qkvault_exec::raw::{DeviceBuffer, RawBound};
use qkvault_exec::{Workspace, cudarc};
use qkvault_graph::{Role, Valid};

const ROUNDS: usize = 120;

/// Outputs as they were read.
type Outputs = BTreeMap<Role, Vec<u8>>;

/// Whether two launches can give these outputs: the same bits, or nearly the same numbers of 16 bits.
fn alike(bits: bool, a: &Outputs, b: &Outputs) -> bool {
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect()
    };
    let near = |a: &[u8], b: &[u8]| {
        let all = numbers(a).into_iter().zip(numbers(b));
        all.into_iter().all(|(a, b)| (a - b).abs() <= 0.02 * (0.5 + a.abs()))
    };
    if bits { a == b } else { a.iter().zip(b).all(|((_, a), (_, b))| near(a, b)) }
}

/// Puts what a graph has into an executable one.
fn update(executable: CUgraphExec, graph: CUgraph) -> Result<(), DriverError> {
    let mut info = MaybeUninit::<sys::CUgraphExecUpdateResultInfo>::uninit();
    // SAFETY: both graphs are alive, and this thread alone has them.
    unsafe { sys::cuGraphExecUpdate_v2(executable, graph, info.as_mut_ptr()) }.result()
}

/// A launch of a bound plan as a graph, by a capture.
fn capture(gpu: &Gpu, bound: &RawBound) -> CUgraph {
    let stream = &gpu.stream;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
    // SAFETY: operands and workspace outlive the graph, and one stream orders all.
    unsafe { bound.launch(stream.cu_stream().cast()) }.expect("it is recorded");
    // SAFETY: this thread began the capture.
    unsafe { result::stream::end_capture(stream.cu_stream()) }.expect("ends")
}

fn every_plan() -> Vec<(Valid, bool)> {
    let forwards = attentions().into_iter().map(|attention| (repeats_bits(&attention), attention));
    let [summed, ordered] = [(&trainings()[0], false), (&deterministic(), true)]
        .map(|(training, bits)| (bits, training.backward().clone()));
    forwards.chain([summed, ordered]).map(|(bits, attention)| (attention, bits)).collect()
}

#[test]
fn what_cudnn_writes_into_graphs_replays_other_operands_and_numbers_for_every_plan() {
    let Some(gpu) = Gpu::open() else { return };
    for (attention, bits) in every_plan() {
        replays(&gpu, &attention, bits);
    }
}

fn replays(gpu: &Gpu, attention: &Valid, bits: bool) {
    let (plan, stream) = (gpu.load(attention), &gpu.stream);
    let raw = stream.cu_stream().cast::<c_void>();
    let mut cases = [Case::new(gpu, attention, 1), Case::new(gpu, attention, 2)];
    let workspace = Workspace::allocate(stream, plan.workspace().max(1)).expect("memory");
    let memory = DeviceBuffer { address: workspace.address(), bytes: workspace.bytes() };
    let mut bound = cases.each_mut().map(|case| {
        let bindings = case.raw_bindings(stream, plan.facts());
        plan.raw().bind(&bindings, memory).expect("all roles are bound")
    });
    // Puts a handle on the stream.
    // SAFETY: here and below operands and workspace outlive launches and graphs, and one stream orders all.
    unsafe { bound[0].launch(raw) }.expect("it is queued");
    let captured = capture(gpu, &bound[0]);
    // SAFETY: the graph is alive.
    let mut executable =
        unsafe { result::graph::instantiate(captured, CUgraphInstantiate_flags(0)) }.expect("instantiated");
    let mut graph = std::ptr::null_mut();
    // SAFETY: `graph` is writable.
    unsafe { sys::cuGraphCreate(&raw mut graph, 0) }.result().expect("an empty graph");
    // SAFETY: as above.
    if let Err(error) = unsafe { bound[1].native_graph(raw, graph.cast(), true) } {
        say(&format!("{attention}: cuDNN writes no graph of this plan: {error}"));
        return;
    }
    let taken = update(executable, graph);
    if taken.is_err() {
        // SAFETY: the graph is alive.
        executable = unsafe { result::graph::instantiate(graph, CUgraphInstantiate_flags(0)) }.expect("instantiated");
    }
    let (mut writes, mut updates, mut captures, mut others) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let which = (round + 1) % 2;
        let scale = attention.default_scale() * if round % 3 == 0 { 0.5 } else { 1.0 };
        bound[which].set_scalar(Role::Scale, scale).expect("it has a scale");
        cases[which].poison(gpu);
        // SAFETY: as above.
        unsafe { bound[which].launch(raw) }.expect("it is queued");
        let direct = cases[which].download(stream);
        cases[which].poison(gpu);
        let started = Instant::now();
        // SAFETY: as above.
        unsafe { bound[which].native_graph(raw, graph.cast(), false) }.expect("it is written");
        writes.push(started.elapsed());
        let started = Instant::now();
        update(executable, graph).expect("the driver takes it");
        updates.push(started.elapsed());
        // SAFETY: as above.
        unsafe { result::graph::launch(executable, stream.cu_stream()) }.expect("it is queued");
        let replayed = cases[which].download(stream);
        assert!(alike(bits, &direct, &replayed), "{attention}: round {round} of what cuDNN wrote differs");
        // The same by a second capture, which the driver is asked to take too.
        let started = Instant::now();
        let again = capture(gpu, &bound[1 - which]);
        captures.push(started.elapsed());
        let started = Instant::now();
        let both = update(executable, again).is_ok();
        others.push(started.elapsed());
        assert_eq!(both, taken.is_ok(), "{attention}: round {round}: a capture after what cuDNN wrote");
        // SAFETY: destroyed once.
        unsafe { result::graph::destroy(again) }.expect("destroyed");
    }
    let [writes, updates, captures, others] = [writes, updates, captures, others].map(median);
    say(&format!(
        "{attention}: taken into a captured graph: {taken:?}; written in {writes:?}, taken in {updates:?}; captured in \
         {captures:?}, taken in {others:?}"
    ));
    // SAFETY: each is destroyed once, after its last replay.
    unsafe {
        result::graph::exec_destroy(executable).expect("destroyed");
        result::graph::destroy(graph).expect("destroyed");
        result::graph::destroy(captured).expect("destroyed");
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
