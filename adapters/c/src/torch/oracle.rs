//! The kernels on the CPU: the oracle, in float64, for tests without a GPU.

use qkvault::graph::Role;
use qkvault::reference::{Buffer, Inputs};
use qkvault_base::room_for;

use super::call::From;
use super::kernel::Came;
use super::value::{MadeTensor, address};
use crate::host::on_host;
use crate::status::{CallFailure, QKV_ERROR_INTERNAL};

/// Computes a call on the host.
///
/// # Safety
///
/// The tensors must be on the host and have the shapes of the call.
pub(super) unsafe fn compute(given: &Came<'_>, outputs: &[MadeTensor<'_>]) -> Result<(), CallFailure> {
    let Came { shim, call, tensors, numbers, shapes } = *given;
    let mut inputs = Inputs::new();
    let mut of_o = false;
    for &(role, from, size) in &call.tensors {
        if let From::Given(at) = from {
            let memory = shapes[at].buffer(address(shim, tensors[at])?, size);
            let length = usize::try_from(memory.bytes).unwrap_or(0);
            room_for(memory.bytes)?;
            let bytes = match length {
                0 => Vec::new(),
                // SAFETY: the tensor's own memory, from its first element to its last.
                _ => unsafe { std::slice::from_raw_parts(memory.address as *const u8, length) }.to_vec(),
            };
            // O is not that of a V that is zero: the gradient of the log-sum-exp is such a backward.
            let zero = || is_zero(&bytes, size as usize, shapes[at].dims(), shapes[at].steps());
            of_o |= role == Role::V && call.attention.is_backward() && zero();
            let dtype = super::value::dtype(shim, shapes[at].dtype);
            let dtype = dtype.ok_or_else(|| CallFailure::new(QKV_ERROR_INTERNAL, "an element type without a name"))?;
            inputs.insert(role, Buffer::new(dtype, bytes)?);
        }
    }
    let number = |&(role, at, dtype): &(_, _, _)| (role, dtype, call.scalar(numbers, (at, dtype)));
    let results = on_host(&call.attention, inputs, call.scalars.iter().map(number), of_o)?;
    for (out, made) in call.outputs.iter().zip(outputs) {
        let lacking = || CallFailure::new(QKV_ERROR_INTERNAL, format!("the oracle computed no {}", out.role));
        let bytes = results.buffer(out.role).ok_or_else(lacking)?.into_bytes();
        let place = made.address()? as *mut u8;
        // SAFETY: the output was made with this size.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }
    Ok(())
}

/// Whether all elements are zero, whatever lies between them.
fn is_zero(bytes: &[u8], size: usize, dims: &[i64], steps: &[i64]) -> bool {
    match (dims.split_first(), steps.split_first()) {
        (Some((&n, dims)), Some((&step, steps))) => {
            (0..n).all(|at| bytes.get((at * step) as usize * size..).is_some_and(|b| is_zero(b, size, dims, steps)))
        }
        _ => bytes.iter().take(size).all(|byte| *byte == 0),
    }
}
