//! The handlers for GPUs: a plan is found and loaded before the first execution, and launched on XLA's stream.

use std::ffi::c_void;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use qkvault::exec::raw::{DeviceBuffer, RawArgs};
use qkvault::graph::Role;
use qkvault::{RawReady, RawRuntime, Runtime};
use smallvec::SmallVec;

use super::abi;
use super::call::{CallOperand, XlaCall};
use super::frame::{Frame, FrameMemory};
use super::handler::handle;
use super::plans::CallPlans;
use crate::context::qkv_context;
use crate::handle::borrow;
use crate::status::{CallFailure, QKV_ERROR_INTERNAL, guarded};

/// The runtime of the handlers.
static RUNTIME: RwLock<Option<RawRuntime>> = RwLock::new(None);

/// The number of that runtime: how many were given before it.
static RUNTIMES: AtomicU64 = AtomicU64::new(0);

/// A plan on one GPU, and where its operands are in a call.
#[derive(Debug)]
pub(super) struct LoadedCall {
    ready: RawReady,
    tensors: Vec<OperandPlace>,
    /// For each scalar of the plan, its place in the description's.
    scalars: Vec<usize>,
    workspace: u64,
}

#[derive(Clone, Copy, Debug)]
enum OperandPlace {
    Argument(usize),
    Result(usize),
}

/// The runtime that a context gave, else one with the environment's vault, which builds nothing.
pub(super) fn runtime() -> Result<RawRuntime, CallFailure> {
    if let Some(runtime) = &*RUNTIME.read().unwrap_or_else(PoisonError::into_inner) {
        return Ok(runtime.clone());
    }
    let opened = Runtime::options().open_raw()?;
    Ok(RUNTIME.write().unwrap_or_else(PoisonError::into_inner).get_or_insert(opened).clone())
}

impl LoadedCall {
    fn new(ready: RawReady, call: &XlaCall) -> Result<LoadedCall, CallFailure> {
        let unknown = |role: Role| CallFailure::new(QKV_ERROR_INTERNAL, format!("the call has no {role}"));
        let of = |list: &[CallOperand], role| list.iter().position(|operand| operand.role == role);
        let tensors = ready.order().tensors().iter().map(|tensor| {
            let result = || of(&call.outputs, tensor.role).map(OperandPlace::Result);
            of(&call.inputs, tensor.role)
                .map(OperandPlace::Argument)
                .or_else(result)
                .ok_or_else(|| unknown(tensor.role))
        });
        let tensors = tensors.collect::<Result<_, _>>()?;
        let scalars = ready.order().scalars().iter().map(|scalar| {
            call.scalars.iter().position(|(role, _)| *role == scalar.role).ok_or_else(|| unknown(scalar.role))
        });
        let scalars = scalars.collect::<Result<_, _>>()?;
        let workspace = ready.plan().workspace();
        Ok(LoadedCall { ready, tensors, scalars, workspace })
    }
}

/// Loads the plan of a call on a GPU.
fn load(frame: Frame<'_>, call: &XlaCall, gpu: i32) -> Result<LoadedCall, CallFailure> {
    // SAFETY: XLA's stream of this GPU.
    let ready = unsafe { runtime()?.prepare(&call.attention, gpu, frame.stream()?) }?;
    LoadedCall::new(ready, call)
}

/// The plan of a frame's call in a table: found, or loaded by the first who asks on a GPU. `made` sees a new one.
pub(super) fn planned<T>(
    frame: Frame<'_>,
    call: &XlaCall,
    plans: &CallPlans<T>,
    load: impl FnOnce(Frame<'_>, &XlaCall, i32) -> Result<T, CallFailure>,
    made: impl FnOnce(&T),
) -> Result<Arc<T>, CallFailure> {
    let gpu = frame.ordinal()?;
    plans.on_gpu((gpu, RUNTIMES.load(Ordering::Acquire)), || load(frame, call, gpu), made)
}

/// Scratch memory of a plan: the result behind the outputs, from its first address that is aligned on.
pub(super) fn scratch(
    needed: u64,
    what: impl Display,
    call: &XlaCall,
    results: &[FrameMemory<'_>],
) -> Result<DeviceBuffer, CallFailure> {
    if needed == 0 {
        return Ok(DeviceBuffer::default());
    }
    let alignment = qkvault::exec::SCRATCH_ALIGNMENT;
    let given = results.get(call.outputs.len()).map_or((0, 0), |memory| {
        let bytes = memory.dims.iter().product::<i64>();
        (memory.at as u64, u64::try_from(bytes).unwrap_or(0))
    });
    let address = given.0.next_multiple_of(alignment);
    let bytes = given.1.saturating_sub(address - given.0);
    if bytes >= needed {
        return Ok(DeviceBuffer { address, bytes: needed });
    }
    Err(CallFailure::argument(format!(
        "the plan of '{what}' needs {needed} bytes of scratch memory, and the program was traced with {} for another \
         plan, for another GPU or cuDNN or without a GPU; trace it anew, or for this GPU with \
         qkvault.jax.configure(target=...)",
        given.1
    )))
}

fn execute(frame: Frame<'_>) -> Result<(), CallFailure> {
    let call = XlaCall::from_frame(frame)?;
    call.check(frame)?;
    let stream = frame.stream()?;
    let loaded = planned(frame, &call, &call.plans, load, |_| ())?;
    let arguments: SmallVec<[FrameMemory<'_>; 16]> = frame.arguments().collect();
    let results: SmallVec<[FrameMemory<'_>; 8]> = frame.results().collect();
    let memory = |place: &OperandPlace| {
        let (memory, operand) = match *place {
            OperandPlace::Argument(at) => (arguments[at], &call.inputs[at]),
            OperandPlace::Result(at) => (results[at], &call.outputs[at]),
        };
        DeviceBuffer { address: memory.at as u64, bytes: operand.bytes }
    };
    let tensors: SmallVec<[DeviceBuffer; 16]> = loaded.tensors.iter().map(memory).collect();
    let numbers: SmallVec<[_; 6]> = call.numbers(frame)?.collect();
    let scalars: SmallVec<[_; 6]> = loaded.scalars.iter().map(|&at| numbers[at]).collect();
    let workspace = scratch(loaded.workspace, &loaded.ready.facts().what, &call, &results)?;
    let args = RawArgs { tensors: &tensors, scalars: &scalars, workspace, interleaved: &[] };
    // SAFETY: XLA's memory of the sizes that were checked, alive until the launch has finished on its stream.
    unsafe { loaded.ready.launch_with(&args, stream) }?;
    Ok(())
}

/// XLA calls it before every execution, so all calls but the first return at once.
fn initialize(frame: Frame<'_>) -> Result<(), CallFailure> {
    let call = XlaCall::from_frame(frame)?;
    // A plan whose kernels are not loaded is launched all the same, the first time in a millisecond more.
    planned(frame, &call, &call.plans, load, |loaded| drop(loaded.ready.plan().load_kernels()))?;
    Ok(())
}

/// XLA's handler of the stage before the first execution: finds and loads the plan, so that an execution, which may be
/// captured, only launches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_xla_initialize(frame: *mut abi::CallFrame) -> *mut c_void {
    // SAFETY: XLA's frame.
    unsafe { handle(frame, initialize).cast() }
}

/// XLA's handler on GPUs: launches the plan of the call's description on XLA's stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_xla_execute(frame: *mut abi::CallFrame) -> *mut c_void {
    // SAFETY: XLA's frame.
    unsafe { handle(frame, execute).cast() }
}

/// Makes a context that of the handlers: its vault, its cuDNN, and whether it builds plans. It may be closed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_xla_use(context: *const qkv_context) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a context.
        let runtime = unsafe { borrow(context) }?.runtime.clone();
        *RUNTIME.write().unwrap_or_else(PoisonError::into_inner) = Some(runtime);
        RUNTIMES.fetch_add(1, Ordering::AcqRel);
        Ok(())
    })
}
