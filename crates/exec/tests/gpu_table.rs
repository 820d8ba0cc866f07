//! The table of plans on a real GPU: one number for each plan, launches by it from any thread and on any stream,
//! captured or not, and loads beside captures.
//!
//! What the tests need, and how the plans are made, is in `gpu.rs`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::ffi::c_void;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

use common::say;
use cudarc::driver::sys::{CUgraph, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaStream, DriverError, result};
use kit::{Case, Gpu, attentions, decode, prefill};
use qkvault_compile::{OnMiss, Plan};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::raw::{DeviceBuffer, PlanId, PlanTable, RawArgs, RawBindings, RawPlan, RawSession, TableError};
use qkvault_exec::{LaunchError, Number, PrepareError, SessionOptions, Workspace, cudarc, prepare};
use qkvault_graph::{Role, Valid};

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// A table with a session, and the number of handles that the session begins with.
fn table(gpu: &Gpu, handles: usize) -> PlanTable {
    let table = PlanTable::with_room(16);
    let options = SessionOptions { handles, ..SessionOptions::default() };
    table.session(0, gpu.engine.session().library().expect("cuDNN"), options).expect("a session");
    table
}

fn load(gpu: &Gpu, session: &RawSession, attention: &Valid) -> Result<RawPlan, PrepareError> {
    let (planner, load) = (gpu.engine.planner(), |plan: &Plan| session.load(plan));
    let found = prepare(planner, session.target()?, attention, &CompileOptions::cudnn(), OnMiss::Load, load);
    found.map(|found| found.plan)
}

fn id(
    gpu: &Gpu,
    table: &PlanTable,
    attention: &Valid,
    stream: &CudaStream,
) -> Result<PlanId, TableError<PrepareError>> {
    let name = attention.fingerprint();
    // SAFETY: the stream is alive.
    unsafe { table.load(0, name.bytes(), stream.cu_stream().cast(), |session| load(gpu, session, attention)) }
}

/// A case with what a launch by number takes.
struct Given {
    case: Case,
    attention: Valid,
    tensors: Vec<DeviceBuffer>,
    scalars: Vec<Number>,
    workspace: Arc<Workspace>,
}

impl Given {
    fn new(gpu: &Gpu, plan: &RawPlan, attention: &Valid, stream: &Arc<CudaStream>, seed: u64) -> Given {
        let mut case = Case::on(stream, attention, seed);
        let bindings: RawBindings = case.raw_bindings(stream, plan.facts());
        let place = |role| bindings.place(role).expect("bound");
        let buffer = |role| DeviceBuffer { address: place(role).0, bytes: place(role).1 };
        let tensors = plan.tensors().iter().map(|tensor| buffer(tensor.role)).collect();
        assert!(plan.scalars().iter().all(|scalar| scalar.role == Role::Scale), "the scale alone");
        let scalars = plan.scalars().iter().map(|_| Number::F32(attention.default_scale())).collect();
        case.inputs.set_f32(Role::Scale, attention.default_scale());
        let workspace = Workspace::allocate(stream, plan.workspace().max(1)).expect("memory");
        gpu.stream.synchronize().expect("uploads are done");
        stream.synchronize().expect("uploads are done");
        Given { case, attention: attention.clone(), tensors, scalars, workspace }
    }

    fn launch(&self, table: &PlanTable, id: PlanId, stream: *mut c_void) -> Result<(), LaunchError> {
        let workspace = DeviceBuffer { address: self.workspace.address(), bytes: self.workspace.bytes() };
        let args = RawArgs { tensors: &self.tensors, scalars: &self.scalars, workspace, interleaved: &[] };
        // SAFETY: memory and workspace live until the launch, or the last replay, is waited for.
        unsafe { table.launch(id, &args, stream) }
    }

    fn check(mut self, stream: &Arc<CudaStream>) {
        stream.synchronize().expect("it ends well");
        say(&self.attention.to_string());
        self.case.check_on(stream);
    }
}

#[test]
fn every_plan_has_one_number_by_which_any_thread_launches_it() {
    let Some(gpu) = Gpu::open() else { return };
    let (table, stream) = (table(&gpu, 2), &gpu.stream);
    let wanted: Vec<Valid> = attentions();
    let ids: Vec<PlanId> = wanted.iter().map(|a| id(&gpu, &table, a, stream).expect("it is in the vault")).collect();
    for (attention, id_) in wanted.iter().zip(&ids) {
        assert_eq!(id(&gpu, &table, attention, stream).expect("it is loaded"), *id_);
        let given = Given::new(&gpu, table.plan(*id_).expect("loaded"), attention, stream, 31);
        let raw = stream.cu_stream() as usize;
        // A thread without a current context.
        std::thread::scope(|scope| {
            scope.spawn(|| given.launch(&table, *id_, raw as *mut c_void).expect("it is queued"));
        });
        given.check(stream);
    }
    assert_eq!(table.plans(), wanted.len());
    let (name, started) = (wanted[0].fingerprint(), Instant::now());
    for _ in 0..100_000 {
        assert_eq!(std::hint::black_box(table.find(0, name.bytes())), Some(ids[0]));
    }
    let found = started.elapsed() / 100_000;
    say(&format!("found by name in {found:?}"));
    assert!(found.as_nanos() < 2_000, "{found:?}");
    assert_eq!(table.find(1, name.bytes()), None, "another GPU");
}

#[test]
fn a_load_while_the_stream_is_captured_is_refused_and_the_capture_stays_valid() {
    let Some(gpu) = Gpu::open() else { return };
    let (table, stream) = (table(&gpu, 1), &gpu.stream);
    let known = id(&gpu, &table, &decode(), stream).expect("it is in the vault");
    let given = Given::new(&gpu, table.plan(known).expect("loaded"), &decode(), stream, 32);
    // Puts the handle on the stream.
    given.launch(&table, known, stream.cu_stream().cast()).expect("it is queued");
    for mode in [GLOBAL, THREAD_LOCAL] {
        stream.begin_capture(mode).expect("begins");
        let refused = id(&gpu, &table, &prefill(), stream);
        let again = id(&gpu, &table, &decode(), stream);
        let recorded = given.launch(&table, known, stream.cu_stream().cast());
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        assert!(matches!(refused, Err(TableError::Captured)), "{refused:?}");
        assert_eq!(again.expect("a plan that is loaded is given"), known);
        recorded.expect("it is recorded");
        let graph = graph.expect("the capture is valid").expect("a graph");
        graph.launch().expect("it is queued");
        stream.synchronize().expect("it ends well");
    }
    given.check(stream);
    // Outside the capture it is loaded.
    id(&gpu, &table, &prefill(), stream).expect("it is in the vault");
}

/// The usual mode of a capture forbids every thread what a load does, unless the thread says that it is its own affair.
#[test]
fn loads_and_drops_on_other_threads_leave_a_capture_valid() {
    let Some(gpu) = Gpu::open() else { return };
    let (table, stream) = (table(&gpu, 1), &gpu.stream);
    let known = id(&gpu, &table, &decode(), stream).expect("it is in the vault");
    let given = Given::new(&gpu, table.plan(known).expect("loaded"), &decode(), stream, 33);
    let other = gpu.stream.context().new_stream().expect("a stream");
    // The bytes of the plans are read before: the vault's files have nothing to do with captures.
    attentions().iter().for_each(|attention| drop(gpu.load(attention)));
    // Puts the handle on the stream.
    given.launch(&table, known, stream.cu_stream().cast()).expect("it is queued");
    stream.begin_capture(GLOBAL).expect("begins");
    std::thread::scope(|scope| {
        let load_all = || {
            for attention in attentions() {
                id(&gpu, &table, &attention, &other).expect("it is loaded beside the capture");
                // Loaded and unloaded.
                let session =
                    table.session(0, gpu.engine.session().library().expect("cuDNN"), SessionOptions::default());
                let plan = load(&gpu, &session.expect("open"), &attention).expect("loaded");
                plan.load_kernels().expect("its kernels are loaded beside the capture");
                drop(plan);
            }
        };
        scope.spawn(load_all).join().expect("no panic");
    });
    let recorded = given.launch(&table, known, stream.cu_stream().cast());
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    recorded.expect("it is recorded");
    let graph = graph.expect("the capture is valid").expect("a graph");
    graph.launch().expect("it is queued");
    given.check(stream);
}

/// Instantiates a recorded graph, launches it once, waits, and destroys it.
fn replay(graph: CUgraph, stream: &CudaStream) -> Result<(), DriverError> {
    // SAFETY: the graph was recorded with memory that is alive; nothing else uses it, and it is destroyed once, after
    // its replay.
    unsafe {
        let executable = result::graph::instantiate(graph, CUgraphInstantiate_flags(0))?;
        let replayed = result::graph::launch(executable, stream.cu_stream()).and_then(|()| stream.synchronize());
        result::graph::exec_destroy(executable)?;
        result::graph::destroy(graph)?;
        replayed
    }
}

/// Frameworks capture on streams of their own, on which nothing was launched before, and several at a time.
#[test]
fn captures_on_streams_that_are_new_record_launches_also_without_a_free_handle() {
    const THREADS: usize = 8;
    let Some(gpu) = Gpu::open() else { return };
    let table = table(&gpu, 1);
    let known = id(&gpu, &table, &decode(), &gpu.stream).expect("it is in the vault");
    for mode in [THREAD_LOCAL, GLOBAL] {
        let (gate, failed) = (Barrier::new(THREADS), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (gpu, table, gate, failed) = (&gpu, &table, &gate, &failed);
                scope.spawn(move || {
                    let stream = gpu.stream.context().new_stream().expect("a stream");
                    let plan = table.plan(known).expect("loaded");
                    let given = Given::new(gpu, plan, &decode(), &stream, 40 + thread as u64);
                    gate.wait();
                    stream.begin_capture(mode).expect("begins");
                    gate.wait();
                    let recorded = given.launch(table, known, stream.cu_stream().cast());
                    gate.wait();
                    // SAFETY: the stream is alive, and this thread began its capture.
                    let ended = unsafe { result::stream::end_capture(stream.cu_stream()) };
                    // To instantiate a graph is one of the calls that the global mode forbids all threads, so no
                    // thread does before all captures have ended.
                    gate.wait();
                    let replayed = match (recorded, ended) {
                        (Ok(()), Ok(graph)) => replay(graph, &stream).map_err(|error| format!("replay: {error:?}")),
                        other => Err(format!("launch and capture: {other:?}")),
                    };
                    match replayed {
                        Ok(()) => given.check(&stream),
                        Err(error) => failed.lock().expect("no panic").push(error),
                    }
                });
            }
        });
        assert_eq!(failed.into_inner().expect("no panic"), [""; 0], "{mode:?}");
    }
    let session =
        table.session(0, gpu.engine.session().library().expect("cuDNN"), SessionOptions::default()).expect("open");
    say(&format!("{:?}", session.stats()));
}
