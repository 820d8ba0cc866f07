//! The kernels of the operators: tensors in, a launch on PyTorch's current stream, tensors out.

use std::ffi::c_char;

use qkvault::exec::Number;
use qkvault::exec::raw::{DeviceBuffer, RawArgs};
use smallvec::SmallVec;

use super::call::{CallPass, From, TorchCall};
use super::context::{CpuTensors, chosen};
use super::oracle;
use super::shim::{Shim, StackValue, TorchHandle, current_stream, shim};
use super::table::find;
use super::value::{MadeTensor, StackArguments, TensorShape, address, give_list};
use crate::status::{CallFailure, QKV_ERROR_CAPTURED, QKV_OK, guarded, last_message};

/// The kernel of `qkvault::forward`.
pub(super) unsafe extern "C-unwind" fn forward(stack: *mut StackValue, _: u64, _: u64) {
    // SAFETY: PyTorch gives the stack of this operator.
    unsafe { run(stack, CallPass::Forward, false) }
}

/// The kernel of `qkvault::attend`.
pub(super) unsafe extern "C-unwind" fn attend(stack: *mut StackValue, _: u64, _: u64) {
    // SAFETY: as above.
    unsafe { run(stack, CallPass::Alone, false) }
}

/// The kernel of `qkvault::backward`.
pub(super) unsafe extern "C-unwind" fn backward(stack: *mut StackValue, _: u64, _: u64) {
    // SAFETY: as above.
    unsafe { run(stack, CallPass::Backward, true) }
}

/// The kernel of `qkvault::backward_plain`, which gives no gradients of further tensors.
pub(super) unsafe extern "C-unwind" fn backward_plain(stack: *mut StackValue, _: u64, _: u64) {
    // SAFETY: as above.
    unsafe { run(stack, CallPass::Backward, false) }
}

/// Runs a kernel, and throws its error as PyTorch's. Nothing on this frame is dropped, because the error unwinds it.
///
/// # Safety
///
/// The stack must be that of the operator of the pass.
unsafe fn run(stack: *mut StackValue, pass: CallPass, list: bool) {
    // SAFETY: the caller's promise.
    thrown(guarded(|| unsafe { compute(stack, pass, list) }));
}

/// Throws the thread's last error as PyTorch's if the status is one. Callers have nothing to drop on their frames.
pub(super) fn thrown(status: i32) {
    if status != QKV_OK {
        // The shim is there: the kernel was registered with it.
        if let Ok(shim) = shim() {
            let message: *const c_char = last_message();
            // SAFETY: texts that end with a null character. The message stays until the thread's next error.
            unsafe { (shim.check)(false, c"qkvault".as_ptr(), c"qkvault".as_ptr(), 0, message) };
        }
    }
}

unsafe fn compute(stack: *mut StackValue, pass: CallPass, list: bool) -> Result<(), CallFailure> {
    let shim = shim()?;
    // SAFETY: the caller's promise: the operator's schema begins with the tensors of the pass.
    let arguments = unsafe { StackArguments::take(shim, stack, pass.roles().len()) }?;
    let given = (&arguments.tensors[..], arguments.spec()?, &arguments.numbers[..]);
    let outputs = match serve(shim, pass, given.0, given.1, given.2) {
        // A capture without gradients after calls with them: the plan with Stats is loaded, the other may not be now.
        Err(error) if error.status() == QKV_ERROR_CAPTURED && pass == CallPass::Alone => {
            let with_stats = serve(shim, CallPass::Forward, given.0, given.1, given.2);
            with_stats.map_err(|_| error)?
        }
        served => served?,
    };
    let mut results = outputs.into_iter().map(MadeTensor::give);
    let fixed = pass.outputs().len();
    for at in 0..fixed {
        // SAFETY: the stack has room for the results of the operator.
        unsafe { *stack.add(at) = results.next().unwrap_or_default() };
    }
    if list {
        let list = give_list(shim, results)?;
        // SAFETY: as above.
        unsafe { *stack.add(fixed) = list };
    }
    Ok(())
}

/// Makes the outputs of a call on tensors, and queues what computes them.
pub(super) fn serve<'a>(
    shim: &'a Shim,
    pass: CallPass,
    tensors: &[TorchHandle],
    spec: &str,
    numbers: &[f64],
) -> Result<SmallVec<[MadeTensor<'a>; 8]>, CallFailure> {
    let mut shapes: SmallVec<[TensorShape; 16]> = SmallVec::new();
    for tensor in tensors {
        shapes.push(TensorShape::read(shim, *tensor)?);
    }
    let call = find(shim, chosen, pass, spec, &shapes)?;
    let needed = call.scalars.iter().filter_map(|(_, at, _)| *at).max().map_or(0, |most| most + 1);
    if numbers.len() < needed {
        let text = format!("{} numbers came, and the specification has {needed}", numbers.len());
        return Err(CallFailure::argument(text));
    }
    let device = shapes[0].device;
    let mut outputs: SmallVec<[MadeTensor<'_>; 8]> = SmallVec::new();
    for out in &call.outputs {
        outputs.push(MadeTensor::new(shim, (&out.dims, &out.strides), out.dtype, device)?);
    }
    let given = Came { shim, call: &call, tensors, numbers, shapes: &shapes };
    match &call.ready {
        // SAFETY: the tensors are the call's, whose shapes were compared.
        Some(_) => unsafe { launch(&given, &outputs) }?,
        None if call.cpu == CpuTensors::Nothing => {}
        // SAFETY: as above; the memory is on the host.
        None => unsafe { oracle::compute(&given, &outputs) }?,
    }
    Ok(outputs)
}

/// What came to a call.
pub(super) struct Came<'a> {
    pub(super) shim: &'a Shim,
    pub(super) call: &'a TorchCall,
    pub(super) tensors: &'a [TorchHandle],
    pub(super) numbers: &'a [f64],
    pub(super) shapes: &'a [TensorShape],
}

/// Queues a launch.
///
/// # Safety
///
/// The tensors must have the shapes of the call.
unsafe fn launch(given: &Came<'_>, outputs: &[MadeTensor<'_>]) -> Result<(), CallFailure> {
    let Came { shim, call, tensors: handles, numbers, shapes } = *given;
    let Some(ready) = &call.ready else { return Ok(()) };
    let device = shapes[0].device;
    let bytes = ready.plan().workspace();
    let mut workspace = DeviceBuffer::default();
    // Its memory is used again by later work on this stream alone.
    let scratch = match bytes {
        0 => None,
        // SAFETY: a function without arguments that returns a constant.
        _ => Some(MadeTensor::new(shim, (&[bytes.cast_signed()], &[1]), unsafe { (shim.byte)() }, device)?),
    };
    if let Some(scratch) = &scratch {
        workspace = DeviceBuffer { address: scratch.address()?, bytes };
    }
    let mut tensors: SmallVec<[DeviceBuffer; 16]> = SmallVec::new();
    for &(_, from, size) in &call.tensors {
        tensors.push(match from {
            From::Given(at) => shapes[at].words(address(shim, handles[at])?, size),
            From::Output(at) => DeviceBuffer { address: outputs[at].address()?, bytes: call.outputs[at].bytes },
        });
    }
    let number = |&(_, at, dtype): &(_, _, _)| call.scalar(numbers, (at, dtype));
    let scalars: SmallVec<[Number; 6]> = call.scalars.iter().map(number).collect();
    let args = RawArgs { tensors: &tensors, scalars: &scalars, workspace, interleaved: &[] };
    // SAFETY: the addresses are those of tensors with these shapes, which PyTorch keeps until the stream is done.
    Ok(unsafe { ready.launch_with(&args, current_stream(device.1)?) }?)
}
