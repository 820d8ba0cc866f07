//! Bad arguments of a launch on a real GPU: each is an error value, and nothing is queued.
//!
//! What needs no GPU is in `src/check/tests.rs` and `src/safe/matching/tests.rs`; what does not compile in
//! `src/compile_fail.rs`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use common::say;
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream, result};
use half::bf16;
use kit::{Case, Gpu, decode, deterministic, prefill, servings};
use qkvault_exec::serving::{Rows, Step};
use qkvault_exec::{
    Args, BatchError, BatchMetadata, BindError, BindFailure, LaunchError, LoadedPlan, Workspace, cudarc,
};
use qkvault_graph::{DType, Role};
use qkvault_reference::POISON;

/// The errors of a refused launch.
fn told(launched: Result<(), LaunchError>) -> Vec<BindError> {
    match launched {
        Err(LaunchError::Arguments(errors)) => {
            assert!(!errors.is_empty() && !errors.to_string().is_empty());
            errors.into_vec()
        }
        other => panic!("{other:?}"),
    }
}

/// The errors of refused bindings.
fn not_bound(plan: &LoadedPlan, args: Args<'_>, stream: &Arc<CudaStream>) -> Vec<BindError> {
    match plan.bind(args, stream) {
        Err(BindFailure::Wrong(errors)) => errors.into_vec(),
        other => panic!("{other:?}"),
    }
}

/// A context of GPU 0 that is not its primary one. cudarc has a function for that under some versions of CUDA alone.
fn another_of_the_gpu() -> Arc<CudaContext> {
    type Create = unsafe extern "C" fn(*mut sys::CUcontext, c_uint, sys::CUdevice) -> sys::CUresult;
    let (mut create, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
    let gpu = result::device::get(0).expect("a GPU");
    // SAFETY: out-pointers are of this function; version 3020 of `cuCtxCreate` has this type; cudarc owns the context.
    unsafe {
        sys::cuGetProcAddress_v2(c"cuCtxCreate".as_ptr(), &mut create, 3020, 0, std::ptr::null_mut())
            .result()
            .expect("the driver has it");
        assert!(!create.is_null());
        let create: Create = std::mem::transmute::<*mut c_void, Create>(create);
        create(&mut context, 0, gpu).result().expect("another context of the GPU");
        CudaContext::from_raw_context(0, gpu, context).expect("current")
    }
}

/// Contexts that are not the plan's: another one of its GPU, and that of another GPU if there is one.
fn other_contexts() -> Vec<Arc<CudaContext>> {
    let mut all = vec![another_of_the_gpu()];
    all.extend(CudaContext::new(1));
    say(&format!("{} other contexts", all.len()));
    all
}

/// A slice of another context of the plan's GPU was refused with an empty list of errors by a launch, and not at all by
/// a binding; a workspace of another context by neither.
#[test]
fn memory_of_another_context_is_refused_by_name() {
    let Some(gpu) = Gpu::open() else { return };
    let (attention, stream) = (prefill(), &gpu.stream);
    let (plan, mut case) = (gpu.load(&attention), Case::new(&gpu, &attention, 81));
    let served = &servings()[0];
    let served_plan = gpu.load(served);
    case.poison(&gpu);
    for context in other_contexts() {
        let (found, needed) = (context.ordinal(), 0);
        let theirs = context.default_stream();
        let k = theirs.alloc_zeros::<u8>(case.slice(Role::K).len()).expect("memory");
        let workspace = Workspace::allocate(&theirs, plan.workspace().max(1)).expect("memory");
        let expected = [BindError::OtherContext { role: Role::K, found, needed }];
        assert_eq!(told(plan.launch(stream, case.but(&plan, Role::K).k(&k))), expected);
        assert_eq!(not_bound(&plan, case.but(&plan, Role::K).k(&k), stream), expected);
        let expected = [BindError::WorkspaceElsewhere { found, needed }];
        assert_eq!(told(plan.launch(stream, case.bindings(&plan).workspace(&workspace))), expected);
        assert_eq!(not_bound(&plan, case.bindings(&plan).workspace(&workspace), stream), expected);
        let refused = plan.launch(&theirs, case.bindings(&plan));
        assert!(
            matches!(refused, Err(LaunchError::OtherContext { stream, plan: 0 }) if stream == found),
            "{refused:?}"
        );
        let refused = BatchMetadata::new(&served_plan, served, &theirs);
        assert!(matches!(refused, Err(BatchError::OtherContext { stream }) if stream == found), "{refused:?}");
        // Freed in its own context.
        drop((k, workspace));
    }
    assert!(case.download(stream).values().flatten().all(|byte| *byte == POISON), "a refused launch wrote");
    plan.launch(stream, case.bindings(&plan)).expect("it is queued");
    case.check(&gpu);
}

#[test]
fn outputs_given_twice_and_operands_of_another_type_are_refused() {
    let Some(gpu) = Gpu::open() else { return };
    let (attention, stream) = (prefill(), &gpu.stream);
    let (plan, mut case) = (gpu.load(&attention), Case::new(&gpu, &attention, 82));
    case.poison(&gpu);
    let bytes = case.slice(Role::Q).len();
    let mut again = stream.alloc_zeros::<bf16>(bytes / 2).expect("memory");
    let found = told(plan.launch(stream, case.bindings(&plan).o(&mut again)));
    assert_eq!(found, [BindError::Duplicate { role: Role::O, times: 2 }]);
    let wrong = stream.alloc_zeros::<f32>(bytes / 4).expect("memory");
    let found = told(plan.launch(stream, case.but(&plan, Role::Q).q(&wrong)));
    assert_eq!(found, [BindError::WrongDType { role: Role::Q, needed: DType::BF16, given: DType::F32 }]);
    // One buffer for both outputs, which the borrow checker lets through by addresses alone.
    let both = cudarc::driver::DevicePtr::device_ptr(&again, stream).0;
    // SAFETY: refused, and so never launched.
    let args = unsafe { case.but(&plan, Role::O).address(Role::O, both, bytes as u64) };
    // SAFETY: as above.
    let found = told(plan.launch(stream, unsafe { args.address(Role::Stats, both, 4 * 2 * 8 * 256) }));
    assert!(matches!(found[..], [BindError::Duplicate { role: Role::Stats, .. }, ..]), "{found:?}");
    let few = Args::new().q(&again).k(&again).v(&again);
    // SAFETY: as above.
    let few = unsafe { few.address(Role::O, both, bytes as u64).address(Role::Stats, both, 4 * 2 * 8 * 256) };
    let found = told(plan.launch(stream, few));
    let overlap =
        |a, b| found.iter().any(|e| matches!(e, BindError::Overlap { role, other, .. } if (*role, *other) == (a, b)));
    assert!(overlap(Role::O, Role::Stats) && overlap(Role::O, Role::Q), "{found:?}");
    let (slices, short) = (case.slice(Role::V).len(), case.slice(Role::V).len() - 1);
    let short_v = stream.alloc_zeros::<u8>(short).expect("memory");
    let found = told(plan.launch(stream, case.but(&plan, Role::V).v(&short_v)));
    let (needed, given) = (slices as u64, short as u64);
    assert_eq!(found, [BindError::TooSmall { role: Role::V, needed, given }]);
    assert!(case.download(stream).values().flatten().all(|byte| *byte == POISON), "a refused launch wrote");
}

#[test]
fn what_a_capture_forbids_is_told() {
    let Some(gpu) = Gpu::open() else { return };
    let stream = &gpu.stream;
    let (attention, backward) = (decode(), deterministic().backward().clone());
    let (plan, mut case) = (gpu.load(&attention), Case::new(&gpu, &attention, 83));
    let (large, mut operands) = (gpu.load(&backward), Case::new(&gpu, &backward, 84));
    assert!(large.workspace() > 0);
    let mut other = Case::new(&gpu, &attention, 85);
    let mut bound = plan.bind(case.bindings(&plan), stream).expect("bound");
    let second = plan.bind(other.bindings(&plan), stream).expect("bound");
    let served = &servings()[0];
    let mut batch = BatchMetadata::new(&gpu.load(served), served, stream).expect("memory");
    stream.synchronize().expect("uploads are done");

    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
    let launched = bound.launch(stream);
    // SAFETY: refused, and so nothing is recorded.
    let without = unsafe { large.launch_captured(stream, operands.bindings(&large)) };
    let updated = batch.update(&Step::paged(Rows::One(1), Rows::Lengths(&[5]), &[vec![3]]), stream);
    let captured = second.capture(stream).map(drop);
    let ended = stream.end_capture(CUgraphInstantiate_flags(0));
    assert!(matches!(launched, Err(LaunchError::Captured)), "{launched:?}");
    assert!(matches!(without, Err(LaunchError::NoWorkspace { bytes }) if bytes == large.workspace()), "{without:?}");
    assert!(without.expect_err("refused").to_string().contains("Args::workspace"));
    assert!(matches!(updated, Err(BatchError::Captured)), "{updated:?}");
    assert!(matches!(captured, Err(LaunchError::Captured)), "{captured:?}");
    assert!(ended.is_ok(), "what is refused leaves the capture valid");

    // The default stream cannot be captured.
    let default = stream.context().default_stream();
    let refused = plan.bind(other.bindings(&plan), stream).expect("bound").capture(&default);
    let told = refused.expect_err("refused").to_string();
    assert!(told.contains("default stream cannot be captured"), "{told}");
    bound.launch(stream).expect("it is queued");
    drop(bound);
    case.check(&gpu);
}
