//! Launches with arguments on a real GPU: right numbers, refusals, no allocation, order among streams and threads.
//!
//! What the tests need, and how the plans are made, is in `gpu.rs`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::say;
use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use kit::{Case, Gpu, attentions, decode, prefill, trainings};
use qkvault_exec::raw::{DeviceBuffer, RawArgs, RawSession};
use qkvault_exec::{Args, BindError, LaunchError, LoadedPlan, Number, SessionOptions, Workspace, cudarc};
use qkvault_graph::{Role, Valid};
use qkvault_reference::{Buffer, Inputs, OutputTolerance, compare, forward};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn arguments_give_what_the_oracle_says_over_poison() {
    let Some(gpu) = Gpu::open() else { return };
    for attention in attentions() {
        let (plan, mut case) = (gpu.load(&attention), Case::new(&gpu, &attention, 21));
        for _ in 0..3 {
            case.poison(&gpu);
            plan.launch(&gpu.stream, case.bindings(&plan)).expect("it is queued");
            case.check(&gpu);
        }
    }
}

#[test]
fn scalars_have_names_and_the_scale_a_default() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = trainings()[2].forward().clone();
    let (plan, mut case) = (gpu.load(&attention), Case::new(&gpu, &attention, 22));
    case.inputs.set_f32(Role::Scale, attention.default_scale());
    case.inputs.set_f32(attention.scalar_role("cap").expect("it has one"), 7.5);
    case.poison(&gpu);
    plan.launch(&gpu.stream, case.tensors(&plan).scalar("cap", 7.5_f32)).expect("it is queued");
    case.check(&gpu);

    let unknown = plan.launch(&gpu.stream, case.tensors(&plan).scalar("cup", 7.5_f32));
    let Err(LaunchError::Arguments(errors)) = unknown else { panic!("{unknown:?}") };
    let told = errors.to_string();
    assert!(told.contains("no scalar 'cup'") && told.contains("did you mean 'cap'?"), "{told}");
    assert!(errors.iter().any(|e| matches!(e, BindError::Missing { role: Role::Scalar(0), .. })), "{told}");
}

#[test]
fn wrong_arguments_are_all_told_and_nothing_is_queued() {
    let Some(gpu) = Gpu::open() else { return };
    let (attention, stream) = (prefill(), &gpu.stream);
    let plan = gpu.load(&attention);
    let elements = |role| plan.facts().bindings.iter().find(|b| b.role == role).expect("bound").bytes as usize / 2;
    let make = |role| stream.alloc_zeros::<bf16>(elements(role)).expect("memory");
    let (q, k, v, mut o) = (make(Role::Q), make(Role::K), make(Role::V), make(Role::O));
    let mut stats = stream.alloc_zeros::<f32>(elements(Role::Stats) / 2).expect("memory");
    let refused = |args: Args<'_>| match plan.launch(stream, args) {
        Err(LaunchError::Arguments(errors)) => errors.into_vec(),
        other => panic!("{other:?}"),
    };
    let found = refused(Args::new().q(&q).k(&k).v(&v).tensor(Role::O, &o).scale(1.0));
    assert!(
        matches!(found[..], [BindError::NotWritable { role: Role::O }, BindError::Missing { role: Role::Stats, .. }]),
        "{found:?}"
    );
    let short = v.slice(..v.len() - 8);
    let found = refused(Args::new().q(&q).k(&k).v(&short).o(&mut o).lse(&mut stats).q(&q));
    assert!(
        matches!(
            found[..],
            [BindError::Duplicate { role: Role::Q, times: 2 }, BindError::TooSmall { role: Role::V, .. }]
        ),
        "{found:?}"
    );
    let found = refused(Args::new().q(&q).k(&k).v(&v).o(&mut o).lse(&mut stats).scalar(Role::Scale, 1));
    assert!(matches!(found[..], [BindError::WrongDType { role: Role::Scale, .. }]), "{found:?}");
    // The borrow checker refuses an output that is an input; addresses are compared for those who go around it.
    let address = cudarc::driver::DevicePtr::device_ptr(&q, stream).0;
    // SAFETY: refused, and so never launched.
    let over = unsafe { Args::new().q(&q).k(&k).v(&v).address(Role::O, address, 2 * q.len() as u64).lse(&mut stats) };
    let found = refused(over);
    assert!(matches!(found[..], [BindError::Overlap { role: Role::O, other: Role::Q, .. }]), "{found:?}");
    let lengths = &attentions()[5];
    let (plan, case) = (gpu.load(lengths), Case::new(&gpu, lengths, 1));
    let raw = case.slice(Role::SeqLenKv);
    let found = plan.launch(stream, Args::new().tensor(Role::SeqLenKv, raw));
    let Err(LaunchError::Arguments(errors)) = found else { panic!("{found:?}") };
    assert!(errors.iter().any(|e| matches!(e, BindError::Unchecked { role: Role::SeqLenKv })), "{errors}");
}

#[test]
fn a_stream_that_is_captured_or_of_each_thread_is_refused() {
    let Some(gpu) = Gpu::open() else { return };
    let (plan, mut case) = (gpu.load(&prefill()), Case::new(&gpu, &prefill(), 23));
    gpu.stream.synchronize().expect("uploads are done");
    gpu.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
    let refused = plan.launch(&gpu.stream, case.bindings(&plan));
    let _ = gpu.stream.end_capture(cudarc::driver::sys::CUgraphInstantiate_flags(0));
    assert!(matches!(refused, Err(LaunchError::Captured)), "{refused:?}");
    let own = gpu.engine.session().device().context().per_thread_stream();
    let refused = plan.launch(&own, case.bindings(&plan));
    assert!(matches!(refused, Err(LaunchError::PerThreadStream)), "{refused:?}");
    plan.launch(&gpu.stream, case.bindings(&plan)).expect("it is queued");
    case.check(&gpu);
}

#[test]
fn a_launch_allocates_nothing() {
    let Some(gpu) = Gpu::open() else { return };
    for attention in [prefill(), decode(), trainings()[2].forward().clone()] {
        let (plan, mut case) = (gpu.load(&attention), Case::new(&gpu, &attention, 24));
        let bindings = case.raw_bindings(&gpu.stream, plan.facts());
        // The first launch makes the scratch memory of the stream.
        plan.launch(&gpu.stream, case.bindings(&plan)).expect("it is queued");
        let args = case.bindings(&plan);
        let given = allocations(|| plan.launch(&gpu.stream, args).expect("it is queued"));
        let workspace = Workspace::allocate(&gpu.stream, plan.workspace().max(1)).expect("memory");
        let memory = DeviceBuffer { address: workspace.address(), bytes: workspace.bytes() };
        let raw = plan.raw().bind(&bindings, memory).expect("bound");
        // SAFETY: memory outlives the launches, which this stream orders.
        let bound = allocations(|| unsafe { raw.launch(gpu.stream.cu_stream().cast()) }.expect("it is queued"));
        let mut safe = plan.bind(case.bindings(&plan), &gpu.stream).expect("bound");
        safe.launch(&gpu.stream).expect("it is queued");
        let again = allocations(|| safe.launch(&gpu.stream).expect("it is queued"));
        let mut captured = safe.capture(&gpu.stream).expect("it is captured");
        captured.launch().expect("it is queued");
        let replayed = allocations(|| captured.launch().expect("it is queued"));
        assert_eq!((given, bound, again, replayed), (0, 0, 0, 0), "{attention}");
        drop(captured);
        // More buffers than packs are kept: the memory of old packs serves new ones.
        let others: Vec<_> = (0..80).map(|_| gpu.stream.clone_dtod(case.slice(Role::Q))).collect();
        let others: Vec<CudaSlice<u8>> = others.into_iter().map(|slice| slice.expect("memory")).collect();
        let mut fresh = 0;
        for q in others.iter() {
            let args = case.but(&plan, Role::Q).q(q);
            fresh = allocations(|| plan.launch(&gpu.stream, args).expect("it is queued"));
        }
        assert_eq!(fresh, 0, "{attention}");
        gpu.stream.synchronize().expect("all end well");
    }
}

/// Q, K and V as owned slices.
fn owned(stream: &Arc<CudaStream>, attention: &Valid, seed: u64) -> (Inputs, [CudaSlice<bf16>; 3]) {
    let inputs = Inputs::random(attention, seed).expect("random operands");
    let slices = [Role::Q, Role::K, Role::V].map(|role| upload(stream, &inputs, role));
    (inputs, slices)
}

fn upload(stream: &Arc<CudaStream>, inputs: &Inputs, role: Role) -> CudaSlice<bf16> {
    let bytes = inputs.buffer(role).expect("every input is there").bytes();
    let values: Vec<bf16> = bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect();
    stream.clone_htod(&values).expect("memory")
}

fn right(attention: &Valid, inputs: &Inputs, found: &[bf16]) {
    let expected = forward(attention, inputs).expect("the oracle can do it");
    let output = expected.get(Role::O).expect("it has O");
    let bytes: Vec<u8> = found.iter().flat_map(|value| value.to_le_bytes()).collect();
    let buffer = Buffer::new(attention.o.dtype, bytes).expect("whole");
    let found = compare(output, &buffer, OutputTolerance::for_role(Role::O, attention.o.dtype));
    assert!(found.good, "{attention}: {found}");
}

/// A struct that keeps a graph beside its memory, and gives it new data at every step.
#[test]
fn a_graph_owns_its_operands_and_replays_new_data() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = decode();
    let plan = gpu.load(&attention);
    let (mut inputs, [q, k, v]) = owned(&gpu.stream, &attention, 31);
    inputs.set_f32(Role::Scale, attention.default_scale());
    let o = gpu.stream.alloc_zeros::<bf16>(q.len()).expect("memory");
    let (k, v) = (Arc::new(k), Arc::new(v));
    let bound = plan.bind(Args::new().q(q).k(Arc::clone(&k)).v(v).o(o), &gpu.stream).expect("bound");
    let mut graph = bound.capture(&gpu.stream).expect("captured");
    let other = gpu.stream.context().new_stream().expect("a stream");
    for step in 0..100_u64 {
        let fresh = Inputs::random(&attention, 100 + step).expect("random operands");
        let q = upload(&other, &fresh, Role::Q);
        // Written on another stream: the replay waits for it, and the copy of the output waits for the replay.
        other.memcpy_dtod(&q, graph.slice_mut::<bf16>(Role::Q).expect("it owns Q")).expect("copied");
        inputs.insert(Role::Q, fresh.buffer(Role::Q).expect("there").clone());
        graph.launch().expect("it is queued");
        let found = other.clone_dtoh(graph.slice::<bf16>(Role::O).expect("it owns O")).expect("read");
        if step % 20 == 0 {
            right(&attention, &inputs, &found);
        }
    }
    assert!(graph.slice::<f32>(Role::O).is_none() && graph.slice::<bf16>(Role::K).is_none());
}

/// Operands are made, used, overwritten and freed on other streams than the launches', with nothing but cudarc's order.
#[test]
fn launches_are_ordered_with_work_on_other_streams() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = prefill();
    let plan = gpu.load(&attention);
    let streams: Vec<_> = (0..3).map(|_| gpu.stream.context().new_stream().expect("a stream")).collect();
    let workspace = Workspace::allocate(&streams[0], plan.workspace().max(1)).expect("memory");
    let mut stats = streams[1].alloc_zeros::<f32>(2 * 8 * 256).expect("memory");
    for round in 0..60_usize {
        let [make, run, take] = [0, 1, 2].map(|i| &streams[(round + i) % 3]);
        let (mut inputs, [q, k, v]) = owned(make, &attention, 40 + round as u64);
        inputs.set_f32(Role::Scale, attention.default_scale());
        let mut o = make.alloc_zeros::<bf16>(q.len()).expect("memory");
        let args = Args::new().q(&q).k(&k).v(&v).o(&mut o).lse(&mut stats);
        let args = if round % 2 == 0 { args.workspace(&workspace) } else { args };
        plan.launch(run, args).expect("it is queued");
        // Freed while the launch may still run.
        drop((q, k, v));
        let _reused = make.clone_htod(&vec![bf16::NAN; 1 << 20]).expect("memory");
        let found = take.clone_dtoh(&o).expect("read");
        if round % 10 == 0 {
            right(&attention, &inputs, &found);
        }
    }
}

/// Plans are dropped while their kernels are queued behind others.
#[test]
fn a_plan_that_is_dropped_in_flight_still_gives_right_numbers() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = prefill();
    let (mut inputs, [q, k, v]) = owned(&gpu.stream, &attention, 51);
    inputs.set_f32(Role::Scale, attention.default_scale());
    let busy = gpu.stream.alloc_zeros::<u8>(1 << 28).expect("memory");
    let mut copy = gpu.stream.alloc_zeros::<u8>(1 << 28).expect("memory");
    let mut stats = gpu.stream.alloc_zeros::<f32>(2 * 8 * 256).expect("memory");
    for _ in 0..40 {
        let plan = gpu.load(&attention);
        let mut o = gpu.stream.alloc_zeros::<bf16>(q.len()).expect("memory");
        (0..8).for_each(|_| gpu.stream.memcpy_dtod(&busy, &mut copy).expect("queued"));
        plan.launch(&gpu.stream, Args::new().q(&q).k(&k).v(&v).o(&mut o).lse(&mut stats)).expect("it is queued");
        drop(plan);
        right(&attention, &inputs, &gpu.stream.clone_dtoh(&o).expect("read"));
    }
}

/// Eight threads with a stream each launch one plan, while others load it and drop it.
#[test]
fn threads_share_a_plan_and_each_result_is_right() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = prefill();
    let plan = gpu.load(&attention);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (plan, gpu, attention) = (plan.clone(), &gpu, &attention);
            scope.spawn(move || worker(gpu, &plan, attention, thread, 200));
        }
        for _ in 0..2 {
            scope.spawn(|| (0..50).for_each(|_| drop(gpu.load(&attention))));
        }
    });
    say(&format!("{:?}", gpu.engine.session().stats()));
}

fn worker(gpu: &Gpu, plan: &LoadedPlan, attention: &Valid, seed: u64, rounds: usize) {
    let stream = gpu.stream.context().new_stream().expect("a stream");
    let (mut inputs, [q, k, v]) = owned(&stream, attention, seed);
    inputs.set_f32(Role::Scale, attention.default_scale());
    let mut stats = stream.alloc_zeros::<f32>(2 * 8 * 256).expect("memory");
    let mut first: Option<Vec<bf16>> = None;
    for _ in 0..rounds {
        let mut o = stream.clone_htod(&vec![bf16::NAN; q.len()]).expect("memory");
        plan.launch(&stream, Args::new().q(&q).k(&k).v(&v).o(&mut o).lse(&mut stats)).expect("it is queued");
        let found = stream.clone_dtoh(&o).expect("read");
        match &first {
            None => {
                right(attention, &inputs, &found);
                first = Some(found);
            }
            Some(first) => assert!(first.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits()), "another result"),
        }
    }
}

/// A session on the primary context launches from any thread, also one with no context or that of no one.
#[test]
fn a_session_on_the_primary_context_enters_it_by_itself() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = decode();
    let (library, planner) = (gpu.engine.session().library().expect("cuDNN").clone(), gpu.engine.planner().clone());
    let mut case = Case::new(&gpu, &attention, 61);
    let plan = gpu.load(&attention);
    let workspace = Workspace::allocate(&gpu.stream, plan.workspace().max(1)).expect("memory");
    let bindings = case.raw_bindings(&gpu.stream, plan.facts());
    gpu.stream.synchronize().expect("uploads are done");
    let stream = gpu.stream.cu_stream() as usize;
    std::thread::spawn(move || {
        let session = RawSession::on_primary(0, &library, SessionOptions::default()).expect("a session");
        let here = session.target().expect("known").clone();
        let load = |plan: &qkvault_compile::Plan| session.load(plan);
        let found = qkvault_exec::prepare(
            &planner,
            &here,
            &decode(),
            &qkvault_cudnn::CompileOptions::cudnn(),
            qkvault_compile::OnMiss::Load,
            load,
        );
        let plan = found.expect("it is in the vault").plan;
        let of = |role| bindings_address(&bindings, role);
        let tensors: Vec<DeviceBuffer> = plan.tensors().iter().map(|tensor| of(tensor.role)).collect();
        let scalars: Vec<Number> = plan.scalars().iter().map(|_| Number::F32(decode().default_scale())).collect();
        let memory = DeviceBuffer { address: workspace.address(), bytes: workspace.bytes() };
        let args = RawArgs { tensors: &tensors, scalars: &scalars, workspace: memory, interleaved: &[] };
        // SAFETY: all memory outlives the launch, which is waited for; the stream lives in the thread that waits here.
        unsafe { plan.launch_with(&args, stream as *mut _) }.expect("it is queued");
        let few = RawArgs { tensors: &tensors[1..], ..args };
        // SAFETY: refused.
        let refused = unsafe { plan.launch_with(&few, stream as *mut _) };
        assert!(matches!(refused, Err(LaunchError::Count { .. })), "{refused:?}");
    })
    .join()
    .expect("no panic");
    case.inputs.set_f32(Role::Scale, attention.default_scale());
    case.check(&gpu);
}

fn bindings_address(bindings: &qkvault_exec::raw::RawBindings, role: Role) -> DeviceBuffer {
    let (address, bytes) = bindings.place(role).expect("bound");
    DeviceBuffer { address, bytes }
}

/// Prints the host time of every way to launch, beside cuDNN's own call and cudarc's own replay.
#[test]
fn costs_of_every_way_to_launch() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = prefill();
    let (plan, mut case) = (gpu.load(&attention), Case::new(&gpu, &attention, 71));
    let bindings = case.raw_bindings(&gpu.stream, plan.facts());
    let workspace = Workspace::allocate(&gpu.stream, plan.workspace().max(1)).expect("memory");
    let memory = DeviceBuffer { address: workspace.address(), bytes: workspace.bytes() };
    let raw = plan.raw().bind(&bindings, memory).expect("bound");
    let stream = gpu.stream.cu_stream().cast();
    let tensors: Vec<DeviceBuffer> = plan.raw().tensors().iter().map(|t| bindings_address(&bindings, t.role)).collect();
    let scale = [Number::F32(attention.default_scale())];
    let args = RawArgs { tensors: &tensors, scalars: &scale, workspace: memory, interleaved: &[] };
    let (_, [q, k, v]) = owned(&gpu.stream, &attention, 72);
    let zeros = |_| gpu.stream.alloc_zeros::<bf16>(q.len()).expect("memory");
    let (mut outputs, mut many): (Vec<_>, Vec<_>) = ((0..8).map(zeros).collect(), (0..200).map(zeros).collect());
    let mut stats = gpu.stream.alloc_zeros::<f32>(2 * 8 * 256).expect("memory");
    let mut stats_b = gpu.stream.alloc_zeros::<f32>(2 * 8 * 256).expect("memory");
    let (_, [q2, k2, v2]) = owned(&gpu.stream, &attention, 73);
    let o2 = gpu.stream.alloc_zeros::<bf16>(q.len()).expect("memory");
    let stats2 = gpu.stream.alloc_zeros::<f32>(2 * 8 * 256).expect("memory");
    let mut other = Case::new(&gpu, &attention, 74);
    let mut bound = plan.bind(other.bindings(&plan), &gpu.stream).expect("bound");
    let all_owned = plan.bind(Args::new().q(q2).k(k2).v(v2).o(o2).lse(stats2), &gpu.stream).expect("bound");
    let mut graph = all_owned.capture(&gpu.stream).expect("captured");
    type Way<'a> = (&'a str, Box<dyn FnMut(usize) + 'a>);
    let floor = |n| {
        // SAFETY: memory outlives the launches, which one stream orders.
        unsafe { raw.floor(stream, n) }.expect("queued");
    };
    let raw_bound = |n| {
        // SAFETY: as above.
        (0..n).for_each(|_| unsafe { raw.launch(stream) }.expect("queued"));
    };
    let raw_args = |n| {
        // SAFETY: as above.
        (0..n).for_each(|_| unsafe { plan.raw().launch_with(&args, stream) }.expect("queued"));
    };
    let with_args = |n| {
        for i in 0..n {
            let args = Args::new().q(&q).k(&k).v(&v).o(&mut outputs[i % 8]).lse(&mut stats);
            plan.launch(&gpu.stream, args).expect("queued");
        }
    };
    let never_seen = |n| {
        for o in &mut many[..n] {
            let args = Args::new().q(&q).k(&k).v(&v).o(o).lse(&mut stats_b);
            plan.launch(&gpu.stream, args).expect("queued");
        }
        many.rotate_left(n);
    };
    let mut ways: Vec<Way<'_>> = vec![
        ("cudnnBackendExecute", Box::new(floor)),
        ("raw, bound", Box::new(raw_bound)),
        ("raw, with arguments", Box::new(raw_args)),
        ("bound", Box::new(|n| (0..n).for_each(|_| bound.launch(&gpu.stream).expect("queued")))),
        ("with arguments", Box::new(with_args)),
        ("with arguments never seen", Box::new(never_seen)),
        ("replay", Box::new(|n| (0..n).for_each(|_| graph.launch().expect("queued")))),
    ];
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..60 {
        for (way, times) in ways.iter_mut().zip(&mut times) {
            let started = Instant::now();
            way.1(50);
            times.push(started.elapsed() / 50);
            gpu.stream.synchronize().expect("all end well");
        }
    }
    for ((name, _), times) in ways.iter().zip(&mut times) {
        times.sort_unstable();
        say(&format!("{name}: {:?} (fastest {:?})", times[times.len() / 2], times[0]));
    }
    drop(ways);
    let mut floor = Vec::new();
    for _ in 0..60 {
        let started = Instant::now();
        for _ in 0..50 {
            // SAFETY: one stream orders all use of the operands.
            unsafe { graph.graph() }.launch().expect("queued");
        }
        floor.push(started.elapsed() / 50);
        gpu.stream.synchronize().expect("all end well");
    }
    floor.sort_unstable();
    say(&format!("cudarc's own replay: {:?} (fastest {:?})", floor[30], floor[0]));
    assert!(times[3][30] < Duration::from_micros(200));
}
