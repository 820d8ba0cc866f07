//! The oracle: attention on the CPU in float64, to compare launches with.

use std::ffi::{c_char, c_void};

use qkvault::graph::{DType, Role, Valid, operand};
use qkvault::reference::{
    Buffer, Comparison, ExactOutput, ExactOutputs, Inputs, LaunchJudge, OutputVerdict, backward, backward_of_o, forward,
};

use qkvault_base::room_for;

use crate::context::put_handle;
use crate::describe::qkv_attention;
use crate::handle::{Opaque, borrow, borrow_mut, free};
use crate::operand::{QKV_F64, dtype};
use crate::sized::{Grows, list, put, write};
use crate::status::{CallFailure, guarded, guarded_with_memory};
use crate::text::name;

/// An attention on the CPU with its inputs and, after `qkv_oracle_run`, its outputs.
///
/// One thread at a time may use it. Free it with `qkv_oracle_free`.
pub struct qkv_oracle {
    _opaque: [u8; 0],
}

/// What an oracle's handle holds.
#[derive(Debug)]
pub struct Oracle {
    attention: Valid,
    inputs: Inputs,
    outputs: Option<ExactOutputs>,
}

impl Opaque for qkv_oracle {
    type Inside = Oracle;
    const TAG: u64 = 0x0004_656c_6361_726f;
    const NAME: &'static str = "qkv_oracle";
}

/// How a result differs from the exact numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_comparison {
    /// Set this to `sizeof(qkv_comparison)`.
    pub struct_size: usize,
    /// 1 if the result is as close as kernels of its element type come, wholly written, and finite where it must be;
    /// else 0.
    pub good: i32,
    /// Must be ignored.
    pub reserved: i32,
    /// Elements compared.
    pub elements: u64,
    /// Norm of the difference, divided by the norm of the exact numbers.
    pub relative: f64,
    /// Largest difference of one element.
    pub largest: f64,
    /// Elements that are not finite although the exact number is, or the reverse.
    pub non_finite: u64,
    /// Elements that still have all bits set, as they should before a launch: they were not written.
    pub unwritten: u64,
    /// Elements outside the tensor (gaps between strides) that no longer have all bits set.
    pub touched: u64,
}

// SAFETY: numbers.
unsafe impl Grows for qkv_comparison {
    const LEAST: usize = size_of::<qkv_comparison>();
    const NAME: &'static str = "qkv_comparison";
}

impl Oracle {
    /// The one operand that a name stands for, or all of those that share it.
    fn roles(&self, name: &str) -> Result<Vec<Role>, CallFailure> {
        Ok(self.attention.named_roles(name)?)
    }

    fn input(&self, name: &str) -> Result<&Buffer, CallFailure> {
        let role = self.roles(name)?[0];
        let lacking =
            || CallFailure::argument(format!("the oracle has no input {name}; set it, or call qkv_oracle_random"));
        self.inputs.get(role).ok_or_else(lacking)
    }

    fn output(&self, name: &str) -> Result<&ExactOutput, CallFailure> {
        let role = self.roles(name)?[0];
        let outputs = self.outputs.as_ref();
        let outputs =
            outputs.ok_or_else(|| CallFailure::argument("the oracle has not run; call qkv_oracle_run first"))?;
        outputs.get(role).ok_or_else(|| CallFailure::argument(format!("{name} is no output of this attention")))
    }
}

/// An oracle for an attention, without inputs. The description may be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_oracle_new(attention: *const qkv_attention, oracle: *mut *mut qkv_oracle) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a description.
        let attention = unsafe { borrow(attention) }?.valid.clone();
        let inside = Oracle { attention, inputs: Inputs::new(), outputs: None };
        // SAFETY: the caller's place.
        unsafe { put_handle(oracle, inside) }
    })
}

/// Sets every input that the attention needs to random numbers, lengths, offsets and page tables that fit each other;
/// the same for the same seed. For a backward, `o` and `stats` are computed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_oracle_random(oracle: *mut qkv_oracle, seed: u64) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises an oracle that nothing else uses.
        let oracle = unsafe { borrow_mut(oracle) }?;
        let inputs = Inputs::random(&oracle.attention, seed)?;
        (oracle.inputs, oracle.outputs) = (inputs, None);
        Ok(())
    })
}

/// Sets an input, by the name of its role or its name in the description. `data` has `bytes` bytes in the memory order
/// of the operand, as a GPU would hold them (`dtype` is the operand's), or of `QKV_F32` or `QKV_F64`, which are rounded
/// once to the operand's type. Scalars are arrays of one element. The data is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_oracle_set(
    oracle: *mut qkv_oracle,
    operand_name: *const c_char,
    dtype: i32,
    data: *const c_void,
    bytes: usize,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises an oracle that nothing else uses, a string, and `bytes` readable bytes.
        let (oracle, wanted, data) = unsafe {
            (
                borrow_mut(oracle)?,
                name(operand_name, "the operand's name")?,
                list(data.cast::<u8>(), bytes, "the bytes")?,
            )
        };
        for role in oracle.roles(wanted)? {
            let needed = operand(&oracle.attention, role).map(|operand| operand.tensor.dtype);
            let needed =
                needed.ok_or_else(|| CallFailure::argument(format!("{wanted} is no input of this attention")))?;
            oracle.inputs.insert(role, converted(dtype, needed, data)?);
        }
        oracle.outputs = None;
        Ok(())
    })
}

/// The bytes of an array of the caller as a buffer of an operand.
fn converted(given: i32, needed: DType, data: &[u8]) -> Result<Buffer, CallFailure> {
    // Its copy, each number as float64, and what is rounded.
    room_for((data.len() as u64).saturating_mul(6))?;
    if given == QKV_F64 {
        let (words, rest) = data.as_chunks::<8>();
        let whole = rest.is_empty();
        let values = words.iter().map(|word| f64::from_ne_bytes(*word));
        return whole.then(|| Buffer::from_values(needed, values)).ok_or_else(|| torn("QKV_F64", data.len()));
    }
    let buffer = Buffer::new(dtype(given)?, data.to_vec())?;
    if buffer.dtype() == DType::F32 && needed != DType::F32 {
        return Ok(Buffer::from_values(needed, (0..buffer.len()).map(|at| buffer.get(at))));
    }
    Ok(buffer)
}

fn torn(what: &str, bytes: usize) -> CallFailure {
    CallFailure::argument(format!("{bytes} bytes are not a whole number of {what} elements"))
}

/// Computes the `o` and `stats` that a backward reads, from its other inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_oracle_add_forward(oracle: *mut qkv_oracle) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises an oracle that nothing else uses.
        let Oracle { attention, inputs, outputs } = unsafe { borrow_mut(oracle) }?;
        inputs.add_forward(attention)?;
        *outputs = None;
        Ok(())
    })
}

/// The outputs of an attention, forward or backward.
pub(crate) fn computed(attention: &Valid, inputs: &Inputs) -> Result<ExactOutputs, CallFailure> {
    Ok(if attention.is_backward() { backward(attention, inputs) } else { forward(attention, inputs) }?)
}

/// Computes the outputs. It takes time that grows with queries times keys; several cores work on it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_oracle_run(oracle: *mut qkv_oracle) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises an oracle that nothing else uses.
        let Oracle { attention, inputs, outputs } = unsafe { borrow_mut(oracle) }?;
        *outputs = Some(computed(attention, inputs)?);
        Ok(())
    })
}

/// Computes the gradients of a backward from the `o` that was set, with its rounding, instead of the exact one. If one
/// key has nearly all of a row's probability, gradients depend on that rounding, and a launch is close to these alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_oracle_run_of_o(oracle: *mut qkv_oracle) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises an oracle that nothing else uses.
        let Oracle { attention, inputs, outputs } = unsafe { borrow_mut(oracle) }?;
        *outputs = Some(backward_of_o(attention, inputs)?);
        Ok(())
    })
}

/// Gives an array to the caller: all of it, or its size alone if there is no place for it.
///
/// # Safety
///
/// `bytes` must be null or a place with the bytes at `data`, which must be null or have as many writable bytes.
unsafe fn fill(from: &[u8], data: *mut u8, bytes: *mut usize) -> Result<(), CallFailure> {
    // SAFETY: the caller's promise.
    let room = unsafe { crate::sized::one(bytes, "the number of bytes") }?;
    // SAFETY: as above.
    unsafe { put(bytes, from.len(), "the number of bytes") }?;
    if data.is_null() {
        return Ok(());
    }
    if room < from.len() {
        return Err(CallFailure::argument(format!("{} bytes are given, and there is room for {room}", from.len())));
    }
    // SAFETY: the caller promises `room` writable bytes, which is enough.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), data, from.len()) };
    Ok(())
}

/// Copies an input into `data`, with the operand's own element type. `bytes` has the room of `data` and gets the size
/// of the input; with a null `data` it gets the size alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_oracle_input(
    oracle: *const qkv_oracle,
    operand_name: *const c_char,
    data: *mut c_void,
    bytes: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises an oracle, a string, and places.
        unsafe {
            let input = borrow(oracle)?.input(name(operand_name, "the operand's name")?)?;
            fill(input.bytes(), data.cast(), bytes)
        }
    })
}

/// Copies an output into `data`, in the memory order of the operand. `dtype` is `QKV_F64` for the exact numbers, with
/// NaN where the description leaves the output undefined and in gaps; `QKV_F32`; or 0 for the operand's own element
/// type as a GPU would hold it, rounded once, with all bits set where it is undefined. `bytes` is as for
/// `qkv_oracle_input`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_oracle_output(
    oracle: *const qkv_oracle,
    operand_name: *const c_char,
    dtype: i32,
    data: *mut c_void,
    bytes: *mut usize,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises an oracle and a string.
        let output = unsafe { borrow(oracle)?.output(name(operand_name, "the operand's name")?) }?;
        room_for(output.values().len() as u64 * 20)?;
        let exact = || {
            let both = output.values().iter().zip(output.defined());
            both.map(|(x, state)| if *state == qkvault::reference::Defined::Value { *x } else { f64::NAN })
        };
        let own: Vec<u8> = match dtype {
            QKV_F64 => exact().flat_map(f64::to_ne_bytes).collect(),
            crate::operand::QKV_F32 => exact().flat_map(|x| (x as f32).to_ne_bytes()).collect(),
            0 => output.buffer().into_bytes(),
            other => {
                let text =
                    format!("{other} is no type of an output; give QKV_F64, QKV_F32, or 0 for the operand's own");
                return Err(CallFailure::argument(text));
            }
        };
        // SAFETY: the caller's places.
        unsafe { fill(&own, data.cast(), bytes) }
    })
}

/// Compares an array with an output: the bytes that a launch wrote, in the operand's own element type. Set all bits of
/// it before the launch, so that elements that were not written are found.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_oracle_compare(
    oracle: *const qkv_oracle,
    operand_name: *const c_char,
    data: *const c_void,
    bytes: usize,
    comparison: *mut qkv_comparison,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises an oracle, a string, and `bytes` readable bytes.
        let (oracle, wanted, data) = unsafe {
            (borrow(oracle)?, name(operand_name, "the operand's name")?, list(data.cast::<u8>(), bytes, "the bytes")?)
        };
        let output = oracle.output(wanted)?;
        let dtype = output.operand().tensor.dtype;
        room_for(data.len() as u64)?;
        let judge = LaunchJudge::new(&oracle.attention, &oracle.inputs);
        let OutputVerdict { found, of_roundings: _, fault } = judge.judge(output, &Buffer::new(dtype, data.to_vec())?);
        let Comparison { elements, relative, max_abs, worst: _, non_finite, unwritten, touched, good: _ } = found;
        let own = qkv_comparison {
            struct_size: 0,
            good: i32::from(fault.is_none()),
            reserved: 0,
            elements: elements as u64,
            relative,
            largest: max_abs,
            non_finite: non_finite as u64,
            unwritten: unwritten as u64,
            touched: touched as u64,
        };
        // SAFETY: the caller's pointer is null or to a `qkv_comparison` with its size.
        unsafe { write(comparison, own) }
    })
}

/// Frees an oracle. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_oracle_free(oracle: *mut qkv_oracle) -> i32 {
    // SAFETY: the caller promises an oracle that no call uses any more, or null.
    guarded(|| unsafe { free(oracle) })
}
