//! The kernels on the CPU: the oracle, in float64, for tests without a GPU.

use qkvault::reference::{Buffer, Inputs};
use qkvault_base::room_for;

use super::call::From;
use super::kernel::Came;
use super::value::{Made, address};
use crate::host::on_host;
use crate::status::{Failure, QKV_ERROR_INTERNAL};

/// Computes a call on the host.
///
/// # Safety
///
/// The tensors must be on the host and have the shapes of the call.
pub(super) unsafe fn compute(given: &Came<'_>, outputs: &[Made<'_>]) -> Result<(), Failure> {
    let Came { shim, call, tensors, numbers, shapes } = *given;
    let mut inputs = Inputs::new();
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
            let dtype = super::value::dtype(shim, shapes[at].dtype);
            let dtype = dtype.ok_or_else(|| Failure::new(QKV_ERROR_INTERNAL, "an element type without a name"))?;
            inputs.insert(role, Buffer::new(dtype, bytes)?);
        }
    }
    let number = |&(role, at, dtype): &(_, _, _)| (role, dtype, call.scalar(numbers, (at, dtype)));
    let results = on_host(&call.attention, inputs, call.scalars.iter().map(number))?;
    for (out, made) in call.outputs.iter().zip(outputs) {
        let lacking = || Failure::new(QKV_ERROR_INTERNAL, format!("the oracle computed no {}", out.role));
        let bytes = results.buffer(out.role).ok_or_else(lacking)?.into_bytes();
        let place = made.address()? as *mut u8;
        // SAFETY: the output was made with this size.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }
    Ok(())
}
