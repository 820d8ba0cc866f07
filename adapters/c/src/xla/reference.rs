//! The handler for CPUs: the oracle, for tests and for machines without a GPU. It is slow and exact.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use qkvault::graph::Role;
use qkvault::reference::{Buffer, Inputs};
use qkvault_base::room_for;

use super::abi;
use super::call::XlaCall;
use super::frame::Frame;
use super::handler::handle;
use crate::host::on_host;
use crate::status::{CallFailure, QKV_ERROR_DEVICE, QKV_OK};

/// Whether calls on the CPU are computed.
static ALLOWED: AtomicBool = AtomicBool::new(true);

fn compute(frame: Frame<'_>) -> Result<(), CallFailure> {
    let call = XlaCall::from_frame(frame)?;
    call.check(frame)?;
    if !ALLOWED.load(Relaxed) {
        let text = "the arrays are on the CPU, where the oracle computes for tests, slowly, and this process has a GPU; \
                    move them there with jax.device_put, or allow it with qkvault.jax.configure(cpu=True)";
        return Err(CallFailure::new(QKV_ERROR_DEVICE, text));
    }
    if call.inputs.iter().any(|operand| operand.role == Role::DropoutSeed) {
        let text = "dropout draws its mask on a GPU, in an order that is not documented, and there is none here; give \
                    dropout_rate=0.0 in tests on the CPU";
        return Err(CallFailure::new(QKV_ERROR_DEVICE, text));
    }
    let mut inputs = Inputs::new();
    for (memory, operand) in frame.arguments().zip(&call.inputs) {
        room_for(operand.held)?;
        // SAFETY: XLA's memory, whose shape and type were checked.
        let bytes = unsafe { std::slice::from_raw_parts(memory.at.cast::<u8>(), operand.held as usize) };
        inputs.insert(operand.role, Buffer::new(operand.dtype, bytes.to_vec())?);
    }
    let scalars = call.scalars.iter().zip(call.numbers(frame)?).map(|(&(role, dtype), number)| (role, dtype, number));
    let computed = on_host(&call.attention, inputs, scalars, false)?;
    for (memory, operand) in frame.results().zip(&call.outputs) {
        let lacking = || CallFailure::argument(format!("the oracle does not compute {}", operand.role));
        let buffer = computed.buffer(operand.role).ok_or_else(lacking)?;
        let bytes = &buffer.bytes()[..operand.held as usize];
        // SAFETY: XLA's memory, whose shape and type were checked; the oracle's buffer is another one.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.at.cast::<u8>(), bytes.len()) };
    }
    Ok(())
}

/// XLA's handler on CPUs: computes the call's description in float64.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_xla_reference(frame: *mut abi::CallFrame) -> *mut c_void {
    // SAFETY: XLA's frame.
    unsafe { handle(frame, compute).cast() }
}

/// Says whether calls on the CPU are computed, or are errors.
#[unsafe(no_mangle)]
pub extern "C" fn qkv_xla_cpu(allowed: i32) -> i32 {
    ALLOWED.store(allowed != 0, Relaxed);
    QKV_OK
}
