//! Plans on a real GPU, compared with the oracle.
//!
//! The tests need a driver, a cuDNN that the usual search finds, and plans for the GPU in the vault folder
//! `QKVAULT_TEST_VAULT`. Without them they are skipped, or fail with `QKVAULT_REQUIRE=gpu`. The test `fill` of this
//! file makes the plans on any machine:
//!
//! ```text
//! QKVAULT_TEST_VAULT=/some/folder QKVAULT_TEST_FILL=h200 cargo test -p qkvault-exec --test gpu fill
//! ```
//!
//! On a GPU host `QKVAULT_TEST_FILL=here` makes them for its GPU 0.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::time::{Duration, Instant};

use common::say;
use cudarc::driver::result;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use half::{bf16, f16};
use kit::{Case, Gpu, attentions, decode, prefill};
use qkvault_compile::{OnMiss, Plan, PlanError};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::raw;
use qkvault_exec::{
    Args, BindError, BindFailure, Device, DeviceError, LaunchError, LoadError, Machine, MemoryKind, PrepareError,
    ScalarError, Session, SessionOptions, Workspace, cudarc, prepare, testing::memory_kind,
};
use qkvault_graph::{Attention, DType, Role, validate};

fn buffer(workspace: &Workspace) -> raw::DeviceBuffer {
    raw::DeviceBuffer { address: workspace.address(), bytes: workspace.bytes() }
}

#[test]
fn fill() {
    kit::fill();
}

#[test]
fn every_plan_writes_what_the_oracle_says_over_poison() {
    let Some(gpu) = Gpu::open() else { return };
    for attention in attentions() {
        let mut case = Case::new(&gpu, &attention, 1);
        let plan = gpu.load(&attention);
        let mut bound = plan.bind(case.bindings(&plan), &gpu.stream).expect("all roles are bound");
        bound.launch(&gpu.stream).expect("it is queued");
        drop(bound);
        case.check(&gpu);
    }
    assert_eq!(gpu.engine.planner().vault().stats().builds, 0);
}

#[test]
fn another_scale_needs_no_other_plan_and_no_other_binding() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = prefill();
    let plan = gpu.load(&attention);
    let (loads, mut case) = (gpu.engine.session().stats().loads, Case::new(&gpu, &attention, 2));
    for scale in [0.125_f32, 0.03, 0.5] {
        case.inputs.set_f32(Role::Scale, 1.0);
        let mut bound = plan.bind(case.bindings(&plan), &gpu.stream).expect("all roles are bound");
        bound.set_scalar(Role::Scale, scale).expect("the plan has it");
        bound.launch(&gpu.stream).expect("it is queued");
        drop(bound);
        case.inputs.set_f32(Role::Scale, scale);
        case.check(&gpu);
        case.poison(&gpu);
    }
    assert_eq!(gpu.engine.session().stats().loads, loads);

    let mut bound = plan.bind(case.bindings(&plan), &gpu.stream).expect("all roles are bound");
    assert!(matches!(bound.set_scalar(Role::Scale, 1), Err(ScalarError::WrongDType { .. })));
    assert!(matches!(bound.set_scalar(Role::Scalar(3), 1.0_f32), Err(ScalarError::NoScalar { .. })));
}

#[test]
fn wrong_bindings_are_refused_before_a_launch() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = prefill();
    let plan = gpu.load(&attention);
    let elements = |role| plan.facts().bindings.iter().find(|b| b.role == role).expect("bound").bytes as usize / 2;
    let make = |role| gpu.stream.alloc_zeros::<bf16>(elements(role)).expect("memory");
    let (q, k, v, mut o) = (make(Role::Q), make(Role::K), make(Role::V), make(Role::O));
    let mut stats = gpu.stream.alloc_zeros::<f32>(elements(Role::Stats) / 2).expect("memory");
    let errors = |bindings: Args<'_>| match plan.bind(bindings, &gpu.stream) {
        Err(BindFailure::Wrong(errors)) => errors.into_vec(),
        other => panic!("{other:?}"),
    };

    let all = Args::new().tensor(Role::Q, &q).tensor(Role::K, &k).tensor(Role::V, &v);
    let found = errors(all.tensor(Role::O, &o).scalar(Role::Scale, 1.0_f32));
    assert!(
        matches!(found[..], [BindError::NotWritable { role: Role::O }, BindError::Missing { role: Role::Stats, .. }]),
        "{found:?}"
    );

    let other = gpu.stream.alloc_zeros::<f16>(elements(Role::K)).expect("memory");
    let half_of_v = v.slice(1..);
    let wrong = Args::new().tensor(Role::Q, &q).tensor(Role::K, &other).tensor(Role::V, &half_of_v);
    let wrong = wrong.tensor_mut(Role::O, &mut o).tensor_mut(Role::Stats, &mut stats).scalar(Role::Scale, 1);
    let found = errors(wrong);
    assert!(
        matches!(
            found[..],
            [
                BindError::WrongDType { role: Role::K, needed: DType::BF16, given: DType::F16 },
                BindError::TooSmall { role: Role::V, .. },
                BindError::Misaligned { role: Role::V, .. },
                BindError::WrongDType { role: Role::Scale, needed: DType::F32, given: DType::I32 },
            ]
        ),
        "{found:?}"
    );

    // Host memory that CUDA knows, and host memory that it does not know.
    let context = gpu.engine.session().device().context();
    // SAFETY: its contents are never read.
    let pinned = unsafe { context.alloc_pinned::<bf16>(elements(Role::Q)) }.expect("pinned memory");
    let plain = vec![0_u128; elements(Role::K) / 8];
    let pinned = pinned.as_ptr().expect("no error before") as u64;
    assert_eq!(memory_kind(pinned), MemoryKind::PinnedHost);
    let bytes = |role| elements(role) as u64 * 2;
    // SAFETY: refused, and so never launched.
    let host = unsafe {
        Args::new().address(Role::Q, pinned, bytes(Role::Q)).address(Role::K, plain.as_ptr() as u64, bytes(Role::K))
    };
    let host = host.tensor(Role::V, &v).tensor_mut(Role::O, &mut o).tensor_mut(Role::Stats, &mut stats);
    let found = errors(host.scalar(Role::Scale, 1.0_f32));
    assert!(
        matches!(
            found[..],
            [
                BindError::NotDevice { role: Role::Q, found: MemoryKind::PinnedHost, .. },
                BindError::NotDevice { role: Role::K, found: MemoryKind::Unregistered, .. },
            ]
        ),
        "{found:?}"
    );
}

#[test]
fn two_threads_with_a_stream_each_share_a_plan() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = prefill();
    let plan = gpu.load(&attention);
    let context = gpu.engine.session().device().context();
    let threads: Vec<_> = (0..2)
        .map(|seed| {
            let (plan, stream) = (plan.clone(), context.new_stream().expect("a stream"));
            let mut case = Case::on(&stream, &attention, seed);
            std::thread::spawn(move || {
                let mut bound = plan.bind(case.bindings(&plan), &stream).expect("all roles are bound");
                for _ in 0..500 {
                    bound.launch(&stream).expect("it is queued");
                }
                drop(bound);
                case.check_on(&stream);
                let first = case.download(&stream);
                case.poison_on(&stream);
                let mut bound = plan.bind(case.bindings(&plan), &stream).expect("all roles are bound");
                bound.launch(&stream).expect("it is queued");
                drop(bound);
                assert!(case.download(&stream) == first, "launches of one plan differ");
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("the thread's checks hold"));
    let handles = gpu.engine.session().stats().handles;
    assert!(handles <= 2, "{handles} handles for two threads");
}

#[test]
fn threads_that_come_and_go_leave_no_handles() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = decode();
    let plan = gpu.load(&attention);
    for seed in 0..100 {
        let (plan, stream) = (plan.clone(), gpu.stream.clone());
        let mut case = Case::on(&stream, &attention, seed);
        let thread = std::thread::spawn(move || {
            let mut bound = plan.bind(case.bindings(&plan), &stream).expect("all roles are bound");
            bound.launch(&stream).expect("it is queued");
        });
        thread.join().expect("no panic");
    }
    gpu.stream.synchronize().expect("all launches end well");
    assert_eq!(gpu.engine.session().stats().handles, 1);
}

#[test]
fn layers_take_turns_with_one_workspace() {
    let Some(gpu) = Gpu::open() else { return };
    let plans: Vec<_> = [prefill(), decode()].into_iter().map(|a| (gpu.load(&a), a)).collect();
    let bytes = plans.iter().map(|(plan, _)| plan.workspace()).max().unwrap_or(0).max(256);
    let workspace = Workspace::allocate(&gpu.stream, bytes).expect("memory");
    // SAFETY: the memory is this test's, and nothing runs on it yet.
    unsafe { result::memset_d8_sync(workspace.address(), 0xff, bytes as usize) }.expect("it can be written");
    let mut cases: Vec<_> = plans.iter().map(|(plan, a)| (plan, Case::new(&gpu, a, 5))).collect();
    {
        let mut bound: Vec<_> = cases
            .iter_mut()
            .map(|(plan, case)| plan.bind(case.bindings(plan).workspace(&workspace), &gpu.stream).expect("bound"))
            .collect();
        for _ in 0..10 {
            bound.iter_mut().for_each(|bound| bound.launch(&gpu.stream).expect("it is queued"));
        }
    }
    cases.iter_mut().for_each(|(_, case)| case.check(&gpu));

    // Other operands with the same workspace.
    let ((plan, case), mut other) = (&mut cases[0], Case::new(&gpu, &prefill(), 6));
    let mut bound = plan.bind(case.bindings(plan).workspace(&workspace), &gpu.stream).expect("bound");
    bound.rebind(other.bindings(plan), &gpu.stream).expect("bound again");
    bound.launch(&gpu.stream).expect("it is queued");
    drop(bound);
    other.check(&gpu);

    let small = Workspace::allocate(&gpu.stream, 16).expect("memory");
    for (plan, case) in cases.iter_mut().filter(|(plan, _)| plan.workspace() > 16) {
        let refused = plan.bind(case.bindings(plan).workspace(&small), &gpu.stream);
        let Err(BindFailure::Wrong(errors)) = refused else { panic!("{refused:?}") };
        assert!(matches!(errors[..], [BindError::Workspace { given: 16, .. }]), "{errors}");
    }
}

#[test]
fn a_captured_launch_replays_with_event_tracking_on() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = prefill();
    let plan = gpu.load(&attention);
    let mut case = Case::new(&gpu, &attention, 7);
    let bound = plan.bind(case.bindings(&plan), &gpu.stream).expect("all roles are bound");
    let mut captured = bound.capture(&gpu.stream).expect("it is captured");
    for _ in 0..20 {
        captured.launch().expect("it is queued");
    }
    // The capture has read the scalars; another value needs another capture.
    let mut bound = captured.into_bound();
    bound.set_scalar(Role::Scale, 0.25_f32).expect("the plan has it");
    let mut captured = bound.capture(&gpu.stream).expect("it is captured again");
    captured.launch().expect("it is queued");
    drop(captured);
    case.inputs.set_f32(Role::Scale, 0.25);
    case.check(&gpu);
}

#[test]
fn a_launch_inside_a_capture_of_the_callers_own_is_recorded_by_an_unsafe_call() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = prefill();
    let plan = gpu.load(&attention);
    let mut case = Case::new(&gpu, &attention, 8);
    gpu.stream.synchronize().expect("uploads are done");
    let mut bound = plan.bind(case.bindings(&plan), &gpu.stream).expect("all roles are bound");
    let begin = || gpu.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
    let end = || gpu.stream.end_capture(CUgraphInstantiate_flags(0));

    begin();
    assert!(matches!(bound.launch(&gpu.stream), Err(LaunchError::Captured)));
    let _ = end();

    begin();
    // SAFETY: the graph is destroyed before the bound plan, and one stream orders all use of the operands.
    unsafe {
        bound.launch_captured(&gpu.stream).expect("it is recorded");
        bound.launch_captured(&gpu.stream).expect("twice");
    }
    let graph = end().expect("it is ended").expect("there is a graph");
    graph.launch().expect("it is queued");
    gpu.stream.synchronize().expect("it ends well");
    drop((graph, bound));
    case.check(&gpu);
}

#[test]
fn the_raw_layer_launches_on_a_foreign_stream() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = prefill();
    let mut case = Case::new(&gpu, &attention, 9);
    gpu.stream.synchronize().expect("uploads are done");
    let device = gpu.engine.session().device();
    device.context().bind_to_thread().expect("it is made current");
    // SAFETY: the context is the primary one, current on this thread, and outlives the session.
    let session = unsafe {
        raw::RawSession::on_current(gpu.engine.session().library().expect("cuDNN"), SessionOptions::default())
    };
    let session = session.expect("a session");
    assert_eq!(session.machine().ok(), gpu.engine.session().machine().ok());
    let (planner, here) = (gpu.engine.planner(), session.target().expect("known"));
    let load = |plan: &Plan| session.load(plan);
    let prepared = prepare(planner, here, &attention, &CompileOptions::cudnn(), OnMiss::Load, load);
    let plan = prepared.expect("it is in the vault").plan;
    let workspace = Workspace::allocate(&gpu.stream, plan.workspace().max(1)).expect("memory");
    let bindings = case.raw_bindings(&gpu.stream, plan.facts());
    let mut bound = plan.bind(&bindings, buffer(&workspace)).expect("all roles are bound");
    let stream = gpu.stream.cu_stream().cast();
    // SAFETY: memory and workspace outlive the launches, which this stream orders.
    unsafe { bound.launch(stream) }.expect("it is queued");
    bound.rebind(&bindings).expect("the same again");
    // SAFETY: as above.
    unsafe { bound.launch(stream) }.expect("it is queued");
    gpu.stream.synchronize().expect("it ends well");
    case.check(&gpu);
}

#[test]
fn what_is_missing_or_too_large_is_an_error_and_not_a_stall() {
    let Some(gpu) = Gpu::open() else { return };
    let never = validate(Attention::bshd(3, (6, 3), (129, 130), 64, DType::BF16)).expect("valid");
    for build in [OnMiss::Memory, OnMiss::Load] {
        let missing = gpu.engine.prepare(&never, &CompileOptions::cudnn(), build);
        assert!(matches!(missing, Err(PrepareError::Plan(PlanError::Missing { .. }))), "{missing:?}");
    }
    let options = SessionOptions { workspace_limit: Some(0), handles: 1 };
    let device = gpu.engine.session().device();
    let session =
        Session::with_options(device, gpu.engine.session().library().expect("cuDNN"), options).expect("a session");
    let refused = session.prepare(gpu.engine.planner(), &prefill(), &CompileOptions::cudnn(), OnMiss::Load);
    match refused {
        Err(PrepareError::Load(LoadError::WorkspaceTooLarge { need, limit: 0, .. })) => assert!(need > 0),
        // A plan without a workspace fits any limit.
        Ok(prepared) => assert_eq!(prepared.plan.workspace(), 0),
        other => panic!("{other:?}"),
    }
    assert!(matches!(Device::open(99), Err(DeviceError::BadOrdinal { given: 99, .. })));
}

#[test]
fn what_is_free_on_the_gpu_shrinks_by_what_is_allocated() {
    const BYTES: usize = 1 << 30;
    let Some(gpu) = Gpu::open() else { return };
    let device = gpu.engine.session().device();
    let before = device.memory().expect("the driver says");
    let held = gpu.stream.alloc_zeros::<u8>(BYTES).expect("a gigabyte is free");
    gpu.stream.synchronize().expect("it is done");
    let with = device.memory().expect("the driver says");
    assert_eq!(before.total, with.total);
    assert!(
        with.free < with.total && before.free.saturating_sub(with.free) >= BYTES as u64 / 2,
        "{before:?}, {with:?}"
    );
    drop(held);
}

#[test]
fn target_and_machine_of_a_gpu_agree() {
    let Some(gpu) = Gpu::open() else { return };
    let session = gpu.engine.session();
    let (by_handle, by_ordinal) = (session.target(), session.device().target(session.library().expect("cuDNN")));
    let (by_handle, by_ordinal) = (by_handle.expect("known"), by_ordinal.expect("known"));
    assert_eq!(by_handle, &by_ordinal);
    assert_eq!(session.machine().expect("known"), &Machine::from_target(by_handle));
    say(&format!("{:?}: {by_handle}", session.device()));
}

/// Prints the times of loading, binding and launching. The bounds are far above measurements (0.5 ms, 0.3 us, 4.3 us).
#[test]
fn costs_of_load_bind_and_launch() {
    let Some(gpu) = Gpu::open() else { return };
    let attention = decode();
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let timed = |mut work: Box<dyn FnMut() + '_>, n: usize| {
        let one = |_| {
            let started = Instant::now();
            work();
            started.elapsed()
        };
        median((0..n).map(one).collect())
    };
    let plan = gpu.load(&attention);
    let loading = timed(Box::new(|| drop(gpu.load(&attention))), 21);
    let mut case = Case::new(&gpu, &attention, 11);
    let bindings = case.raw_bindings(&gpu.stream, plan.facts());
    let workspace = Workspace::allocate(&gpu.stream, plan.workspace().max(1)).expect("memory");
    let memory = buffer(&workspace);
    let raw = plan.raw().bind(&bindings, memory).expect("all roles are bound");
    let binding = timed(Box::new(|| drop(plan.raw().bind(&bindings, memory).expect("bound"))), 201);
    // SAFETY: memory outlives the launches, which this stream orders.
    let launching =
        timed(Box::new(|| unsafe { raw.launch(gpu.stream.cu_stream().cast()) }.expect("it is queued")), 201);
    gpu.stream.synchronize().expect("all end well");
    let mut bound = plan.bind(case.bindings(&plan).workspace(&workspace), &gpu.stream).expect("bound");
    let tracked = timed(Box::new(|| bound.launch(&gpu.stream).expect("it is queued")), 201);
    gpu.stream.synchronize().expect("all end well");
    let mut captured = bound.capture(&gpu.stream).expect("it is captured");
    let replayed = timed(Box::new(|| captured.launch().expect("it is queued")), 201);
    gpu.stream.synchronize().expect("all end well");
    say(&format!(
        "prepare {loading:?}, bind {binding:?}, launch {launching:?}, with cudarc's events {tracked:?}, replay with them {replayed:?}"
    ));
    assert!(loading < Duration::from_millis(10) && launching < Duration::from_micros(200));
}
