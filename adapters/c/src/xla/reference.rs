//! The handler for CPUs: the oracle, for tests and for machines without a GPU. It is slow and exact.

use std::ffi::c_void;

use qkvault::exec::Number;
use qkvault::exec::raw::constant_values;
use qkvault::graph::DType;
use qkvault::reference::{Buffer, Inputs, Outputs, backward, forward};

use super::abi;
use super::call::Call;
use super::frame::Frame;
use super::handler::handle;
use crate::status::Failure;

fn compute(frame: Frame<'_>) -> Result<(), Failure> {
    let call = Call::of(frame)?;
    call.check(frame)?;
    let mut inputs = Inputs::new();
    for (memory, operand) in frame.arguments().zip(&call.inputs) {
        // SAFETY: XLA's memory, whose shape and type were checked.
        let bytes = unsafe { std::slice::from_raw_parts(memory.at.cast::<u8>(), operand.bytes as usize) };
        inputs.insert(operand.role, Buffer::new(operand.dtype, bytes.to_vec())?);
    }
    for ((role, dtype), number) in call.scalars.iter().zip(call.numbers(frame)?) {
        let value = match number {
            Number::F32(x) => f64::from(x),
            Number::I32(x) => f64::from(x),
            Number::I64(x) => x as f64,
        };
        inputs.insert(*role, Buffer::of(*dtype, [value]));
    }
    for (role, values) in constant_values(&call.attention) {
        inputs.insert(role, Buffer::of(DType::F32, values.iter().map(|&x| f64::from(x))));
    }
    let attention = &call.attention;
    let computed: Outputs =
        if attention.is_backward() { backward(attention, &inputs) } else { forward(attention, &inputs) }?;
    for (memory, operand) in frame.results().zip(&call.outputs) {
        let lacking = || Failure::argument(format!("the oracle does not compute {}", operand.role));
        let buffer = computed.buffer(operand.role).ok_or_else(lacking)?;
        let bytes = &buffer.bytes()[..operand.bytes as usize];
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
