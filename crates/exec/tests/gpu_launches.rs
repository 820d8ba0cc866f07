//! Steps on a real GPU: several launches over the slots of one arena, run one by one and replayed as a graph, with new
//! data, on several streams, and beside another step over the same memory.
//!
//! What the tests need, and how the plans are made, is in `gpu.rs`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use common::say;
use half::bf16;
use kit::kernels::{Noise, same_bits};
use kit::{Gpu, prefill};
use qkvault_exec::cudarc::driver::CudaStream;
use qkvault_exec::{
    Arena, ArenaError, Args, BindError, BindFailure, LaunchError, Launches, LaunchesError, LoadedPlan, Slot,
};
use qkvault_graph::{Role, Valid};
use qkvault_reference::{Buffer, Inputs, OutputTolerance, compare, forward};

const LAYERS: usize = 3;
const REPLAYS: usize = 200;

/// A stack of layers: each attends with what the one before it computed.
struct Stack {
    attention: Valid,
    arena: Arena,
    /// Queries of each layer; the last is the output of the last layer.
    x: Vec<Slot<bf16>>,
    k: Slot<bf16>,
    v: Slot<bf16>,
    lse: Slot<f32>,
    kept: Slot<bf16>,
}

impl Stack {
    fn new(stream: &Arc<CudaStream>, plan: &LoadedPlan, attention: Valid) -> Stack {
        let arena = Arena::new(stream);
        let elements = |role| {
            let binding = plan.facts().bindings.iter().find(|b| b.role == role).expect("the plan has it");
            binding.bytes as usize / binding.dtype.size()
        };
        let slot = |role| arena.zeros::<bf16>(elements(role)).expect("memory");
        let x = (0..=LAYERS).map(|_| slot(Role::Q)).collect();
        let lse = arena.zeros(elements(Role::Stats)).expect("memory");
        Stack { attention, x, k: slot(Role::K), v: slot(Role::V), kept: slot(Role::O), lse, arena }
    }

    fn step(&self, stream: &Arc<CudaStream>, plan: &LoadedPlan) -> Launches<'static> {
        let mut step = Launches::new(stream, &self.arena);
        for pair in self.x.windows(2) {
            let args = Args::new().q(&pair[0]).k(&self.k).v(&self.v).o(&pair[1]).lse(&self.lse);
            step.launch(plan, args).expect("bound");
        }
        step.copy(&self.x[LAYERS], &self.kept).expect("of one size");
        step
    }

    /// Gives the step its data, and poisons everything that it writes.
    fn feed(&self, stream: &Arc<CudaStream>, noise: &[Noise; 3], step: usize) {
        for (slot, noise) in [&self.x[0], &self.k, &self.v].into_iter().zip(noise) {
            slot.write(stream, noise.at(step)).expect("written");
        }
        for slot in self.x[1..].iter().chain([&self.kept]) {
            slot.write(stream, &vec![bf16::NAN; slot.len()]).expect("written");
        }
    }

    fn noise(&self) -> [Noise; 3] {
        [(&self.x[0], 1), (&self.k, 2), (&self.v, 3)].map(|(slot, seed)| Noise::new(slot.len(), seed))
    }

    /// What a step wrote.
    fn written(&self, stream: &Arc<CudaStream>) -> Vec<Vec<bf16>> {
        self.x[1..].iter().chain([&self.kept]).map(|slot| slot.read(stream).expect("read")).collect()
    }

    /// Compares each layer with the oracle, with the queries that it read.
    fn right(&self, stream: &Arc<CudaStream>, noise: &[Noise; 3], step: usize, scales: [f32; LAYERS]) {
        let bytes = |values: &[bf16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let buffer = |values: &[bf16]| Buffer::new(self.attention.q.dtype, bytes(values)).expect("whole");
        for (layer, pair) in self.x.windows(2).enumerate() {
            let mut inputs = Inputs::random(&self.attention, 1).expect("random operands");
            inputs.set_f32(Role::Scale, scales[layer]);
            inputs.insert(Role::Q, buffer(&pair[0].read(stream).expect("read")));
            inputs.insert(Role::K, buffer(noise[1].at(step)));
            inputs.insert(Role::V, buffer(noise[2].at(step)));
            let expected = forward(&self.attention, &inputs).expect("the oracle can do it");
            let found = buffer(&pair[1].read(stream).expect("read"));
            let tolerance = OutputTolerance::for_role(Role::O, self.attention.o.dtype);
            let found = compare(expected.get(Role::O).expect("it has O"), &found, tolerance);
            assert!(found.good, "replay {step}, layer {layer}: {found}");
        }
        let [last, kept] = [&self.x[LAYERS], &self.kept].map(|slot| slot.read(stream).expect("read"));
        assert!(same_bits(&last, &kept), "the copy differs");
    }
}

fn stack() -> Option<(Gpu, LoadedPlan, Stack)> {
    let gpu = Gpu::open()?;
    let attention = prefill();
    let plan = gpu.load(&attention);
    let stack = Stack::new(&gpu.stream, &plan, attention);
    Some((gpu, plan, stack))
}

#[test]
fn a_step_replays_new_data_with_the_bits_of_its_launches() {
    let Some((gpu, plan, stack)) = stack() else { return };
    let (stream, noise) = (&gpu.stream, stack.noise());
    let (mut one_by_one, step) = (stack.step(stream, &plan), stack.step(stream, &plan));
    let mut graph = step.capture().expect("captured");
    let scales = [stack.attention.default_scale(); LAYERS];
    for step in 0..REPLAYS {
        stack.feed(stream, &noise, step);
        graph.launch().expect("it is queued");
        let replayed = stack.written(stream);
        if step % 50 == 0 {
            stack.right(stream, &noise, step, scales);
        }
        stack.feed(stream, &noise, step);
        one_by_one.run().expect("it is queued");
        for (a, b) in replayed.iter().zip(&stack.written(stream)) {
            assert!(same_bits(a, b), "replay {step} has other bits");
        }
        // Launches at once take slots too.
        stack.feed(stream, &noise, step);
        for pair in stack.x.windows(2) {
            let args = Args::new().q(&pair[0]).k(&stack.k).v(&stack.v).o(&pair[1]).lse(&stack.lse);
            plan.launch(stream, args).expect("it is queued");
        }
        let at_once = stack.x[LAYERS].read(stream).expect("read");
        assert!(same_bits(&replayed[LAYERS - 1], &at_once), "launch {step} has other bits");
    }
    let started = Instant::now();
    (0..REPLAYS).for_each(|_| graph.launch().expect("it is queued"));
    let host = started.elapsed() / REPLAYS as u32;
    stream.synchronize().expect("all is done");
    say(&format!("a replay of {LAYERS} launches and a copy takes {host:?} of host time"));
}

/// Each stream writes new data, replays a graph of its own over the same slots, and reads: without an order among them
/// a replay would read what the other stream writes.
#[test]
fn steps_on_two_streams_over_one_arena_run_one_after_the_other() {
    let Some((gpu, plan, stack)) = stack() else { return };
    let other = gpu.stream.context().new_stream().expect("a stream");
    let (streams, noise) = ([Arc::clone(&gpu.stream), other], stack.noise());
    let mut graphs = streams.each_ref().map(|stream| stack.step(stream, &plan).capture().expect("captured"));
    let mut expected = Vec::new();
    for step in 0..4 {
        stack.feed(&streams[0], &noise, step);
        graphs[0].launch().expect("it is queued");
        expected.push(stack.kept.read(&streams[0]).expect("read"));
    }
    let copies: Vec<Slot<bf16>> = (0..4).map(|_| stack.arena.zeros(stack.kept.len()).expect("memory")).collect();
    for round in 0..REPLAYS {
        // Nothing waits on the host between these.
        for (step, copy) in copies.iter().enumerate() {
            let [writer, runner, reader] = [step, step + round, round].map(|at| &streams[at % 2]);
            for (slot, noise) in [&stack.x[0], &stack.k, &stack.v].into_iter().zip(&noise) {
                slot.write(writer, noise.at(step)).expect("written");
            }
            let at = usize::from(!Arc::ptr_eq(runner, &streams[0]));
            graphs[at].launch().expect("it is queued");
            let mut keep = Launches::new(reader, &stack.arena);
            keep.copy(&stack.kept, copy).expect("of one size").run().expect("it is queued");
        }
        for (step, copy) in copies.iter().enumerate() {
            let found = copy.read(&streams[round % 2]).expect("read");
            assert!(same_bits(&found, &expected[step]), "round {round}, step {step} has other bits");
        }
    }
}

#[test]
fn page_locked_memory_begins_with_zeros_and_is_copied_without_waiting() {
    let Some((gpu, _, stack)) = stack() else { return };
    let (stream, numbers) = (&gpu.stream, 1000);
    let mut host = stack.arena.pinned::<i32>(numbers).expect("memory");
    assert!(host.as_slice().expect("reached").iter().all(|number| *number == 0));
    let words = stack.arena.zeros::<i32>(numbers).expect("memory");
    for round in 0..REPLAYS as i32 {
        host.as_mut_slice().expect("the copy before is done").fill(round);
        let copied = words.with(stream, |mut view| Ok::<_, Box<dyn Error>>(stream.memcpy_htod(&host, &mut view)?));
        copied.expect("queued");
        assert_eq!(words.read(stream).expect("read"), vec![round; numbers]);
    }
}

#[test]
fn a_scalar_of_one_launch_changes_in_the_graph() {
    let Some((gpu, plan, stack)) = stack() else { return };
    let (stream, noise) = (&gpu.stream, stack.noise());
    let mut graph = stack.step(stream, &plan).capture().expect("captured");
    let mut scales = [stack.attention.default_scale(); LAYERS];
    for step in 0..20 {
        let layer = step % LAYERS;
        scales[layer] *= if step % 2 == 0 { 0.5 } else { 1.5 };
        graph.set_scalar(layer, Role::Scale, scales[layer]).expect("it is set");
        stack.feed(stream, &noise, step);
        graph.launch().expect("it is queued");
        stack.right(stream, &noise, step, scales);
    }
    let wrong = graph.set_scalar(LAYERS, Role::Scale, 1.0_f32);
    assert!(matches!(wrong, Err(LaunchesError::NoSuchLaunch { launch: LAYERS, launches: LAYERS })), "{wrong:?}");
    assert!(matches!(graph.set_scalar(0, "cap", 1.0_f32), Err(LaunchesError::Scalar(_))));
    // The graph still replays, and gives the step back.
    stack.feed(stream, &noise, 0);
    graph.launch().expect("it is queued");
    stack.right(stream, &noise, 0, scales);
    let mut step = graph.into_step();
    stack.feed(stream, &noise, 1);
    step.run().expect("it is queued");
    stack.right(stream, &noise, 1, scales);
}

#[test]
fn what_a_step_cannot_do_is_refused_before_anything_is_queued() {
    let Some((gpu, plan, stack)) = stack() else { return };
    let stream = &gpu.stream;
    let mut step = Launches::new(stream, &stack.arena);
    let args = || Args::new().k(&stack.k).v(&stack.v).lse(&stack.lse);
    let refused = |given: Result<&mut Launches<'_>, LaunchesError>| match given {
        Err(LaunchesError::Bind(BindFailure::Wrong(errors))) => errors.into_vec(),
        other => panic!("{other:?}"),
    };
    // An output over an input, and half of one over the other.
    let half = stack.x[0].len() / 2;
    let [lower, upper] = [0..half, half..2 * half].map(|range| stack.x[0].part(range).expect("inside"));
    for (q, o) in [(&stack.x[0], &stack.x[0]), (&stack.x[0], &lower), (&upper, &stack.x[0])] {
        let errors = refused(step.launch(&plan, args().q(q).o(o)));
        assert!(!errors.is_empty(), "{errors:?}");
    }
    let errors = refused(step.launch(&plan, args().q(&stack.x[0])));
    assert!(matches!(errors[..], [BindError::Missing { role: Role::O, .. }]), "{errors:?}");
    // Memory of the wrong type.
    let words = stack.arena.zeros::<f32>(stack.x[0].len()).expect("memory");
    assert!(!refused(step.launch(&plan, args().q(&words).o(&stack.x[1]))).is_empty());
    let too_far = stack.x[0].part(half..2 * half + 1);
    assert!(matches!(too_far, Err(ArenaError::Length { .. })), "{too_far:?}");
    let short = stack.x[0].write(stream, &[bf16::ONE]);
    assert!(matches!(short, Err(ArenaError::Length { given: 1, .. })), "{short:?}");
    let strange = Arena::new(stream).zeros::<bf16>(stack.kept.len()).expect("memory");
    assert!(matches!(step.address(&strange), Err(LaunchesError::Arena(ArenaError::OtherArena))));
    assert_eq!(step.address(&stack.kept).expect("of this arena"), stack.kept.address());
    let strange = step.copy(&stack.kept, &strange).map(|_| ());
    assert!(matches!(strange, Err(LaunchesError::Arena(ArenaError::OtherArena))), "{strange:?}");
    // Nothing was added, so there is nothing to capture.
    assert_eq!(step.launches(), 0);
    let empty = step.capture().map(|_| ());
    assert!(matches!(empty, Err(LaunchesError::Launch(LaunchError::Driver { .. }))), "{empty:?}");
    // A kernel follows lengths, so a slot of numbers that nothing checked is refused as a slice is.
    let lengths = stack.arena.zeros::<i32>(2).expect("memory");
    let unchecked = plan.bind(args().tensor(Role::SeqLenKv, &lengths), stream).map(|_| ());
    let Err(BindFailure::Wrong(errors)) = unchecked else { panic!("{unchecked:?}") };
    assert!(errors.iter().any(|e| matches!(e, BindError::Unchecked { role: Role::SeqLenKv })), "{errors}");
}
