//! Training without Python: kernels of PyTorch's `_scaled_dot_product_fused_attention_overrideable`, an operator that
//! has no kernel of its own on CPUs and NVIDIA's GPUs, and whose derivative PyTorch has in C++.
//!
//! A node that Python makes costs a call some 50 microseconds on a GPU, because the backward's thread has to take the
//! interpreter from the caller's. Calls with no further tensors go this way. The specification and the numbers have a
//! place in a list of the process, which travels as the operator's `dropout_p`, below zero as no other use has it.

use std::ffi::c_char;
use std::sync::{Arc, PoisonError, RwLock};

use smallvec::SmallVec;

use super::call::CallPass;
use super::kernel::{serve, thrown};
use super::shim::{BUILT_FOR, Shim, StackValue, TorchHandle, done, shim};
use super::value::{MadeTensor, TensorShape, give_list, items};
use crate::sized::{list, put};
use crate::status::{CallFailure, guarded, guarded_with_memory};
use crate::text;

/// Most entries of the list.
const MOST: usize = 1024;

/// Most bytes of a specification, which has an expression at most.
const LONGEST: usize = 1 << 20;

/// Most numbers of a specification: the scalars of two expressions, and those of an attention.
const NUMBERS: usize = 256;

/// A specification and its numbers.
type NativeEntry = Arc<(Box<str>, Box<[f64]>)>;

static ENTRIES: RwLock<Vec<NativeEntry>> = RwLock::new(Vec::new());

/// Keeps a specification with its numbers, and gives the number that stands for both in calls of PyTorch's operator.
/// Fails if there are too many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_torch_keep(spec: *const c_char, numbers: *const f64, count: usize, kept: *mut f64) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a text, a list and a place.
        let (spec, numbers) = unsafe { (text::name(spec, "the specification")?, list(numbers, count, "the numbers")?) };
        if spec.len() > LONGEST || numbers.len() > NUMBERS {
            let (long, count) = (spec.len(), numbers.len());
            let text = format!(
                "a specification has {long} bytes and {count} numbers, and at most {LONGEST} and {NUMBERS} are kept"
            );
            return Err(CallFailure::argument(text));
        }
        let mut entries = ENTRIES.write().unwrap_or_else(PoisonError::into_inner);
        let same = |entry: &NativeEntry| &*entry.0 == spec && entry.1[..] == *numbers;
        let at = match entries.iter().position(same) {
            Some(at) => at,
            None if entries.len() >= MOST => {
                return Err(CallFailure::argument(format!("{MOST} specifications are kept, the most that may be")));
            }
            None => {
                entries.push(Arc::new((spec.into(), numbers.into())));
                entries.len() - 1
            }
        };
        // SAFETY: as above.
        unsafe { put(kept, -1.0 - at as f64, "the place of the number") }
    })
}

fn entry(kept: f64) -> Result<NativeEntry, CallFailure> {
    let entries = ENTRIES.read().unwrap_or_else(PoisonError::into_inner);
    let found = if kept < 0.0 { entries.get((-1.0 - kept) as usize) } else { None };
    let foreign = || {
        let text = "qkvault's kernel of _scaled_dot_product_fused_attention_overrideable is for qkvault alone; call \
                    torch.nn.functional.scaled_dot_product_attention or qkvault.torch.attention";
        CallFailure::argument(text)
    };
    found.cloned().ok_or_else(foreign)
}

/// Q, K, V, an optional bias, the number, two flags and an optional scale.
pub(super) unsafe extern "C-unwind" fn forward(stack: *mut StackValue, _: u64, _: u64) {
    // SAFETY: PyTorch gives the stack of this operator.
    thrown(guarded(|| unsafe { compute_forward(stack) }));
}

unsafe fn compute_forward(stack: *mut StackValue) -> Result<(), CallFailure> {
    let shim = shim()?;
    // SAFETY: the schema has eight arguments, of which the first three are tensors.
    let given: [StackValue; 8] = unsafe { stack.cast::<[StackValue; 8]>().read() };
    let tensors = OwnedTensors { shim, tensors: given[..3].iter().map(|value| *value as TorchHandle).collect() };
    let entry = entry(f64::from_bits(given[4]))?;
    let mut results = serve(shim, CallPass::Forward, &tensors.tensors, &entry.0, &entry.1)?.into_iter();
    let (Some(o), Some(stats)) = (results.next(), results.next()) else {
        return Err(CallFailure::argument("a forward without O and Stats"));
    };
    let none: SmallVec<[MadeTensor<'_>; 5]> = (0..5).map(|_| MadeTensor::nothing(shim)).collect::<Result<_, _>>()?;
    let mut none = none.into_iter().map(MadeTensor::give);
    let mut next = || none.next().unwrap_or_default();
    // O, Stats, ends of queries and keys, the most of each, seed, offset, a mask.
    let outputs = [o.give(), stats.give(), next(), next(), 0, 0, next(), next(), next()];
    // SAFETY: the stack has room for nine results.
    unsafe { stack.cast::<[StackValue; 9]>().write(outputs) };
    Ok(())
}

/// The gradient of O, Q, K, V, bias, which gradients, O, Stats, two ends, two sizes, the number, a flag, seed, offset
/// and an optional scale.
pub(super) unsafe extern "C-unwind" fn backward(stack: *mut StackValue, _: u64, _: u64) {
    // SAFETY: PyTorch gives the stack of this operator.
    thrown(guarded(|| unsafe { compute_backward(stack) }));
}

unsafe fn compute_backward(stack: *mut StackValue) -> Result<(), CallFailure> {
    let shim = shim()?;
    // SAFETY: the schema has 17 arguments: tensors where handles are taken, and a list at 5.
    let given: [StackValue; 17] = unsafe { stack.cast::<[StackValue; 17]>().read() };
    let own = |places: &[usize]| places.iter().map(|at| given[*at] as TorchHandle).collect();
    let _others = OwnedTensors { shim, tensors: own(&[4, 8, 9, 14, 15]) };
    let mut tensors = OwnedTensors { shim, tensors: own(&[0, 1, 2, 3, 6, 7]) };
    // SAFETY: a list that the kernel owns.
    unsafe { items(shim, given[5] as TorchHandle) }?;
    let entry = entry(f64::from_bits(given[12]))?;
    plain(shim, &mut tensors.tensors[0])?;
    // SAFETY: a function without arguments.
    if unsafe { (shim.recording)() } {
        // SAFETY: the stack has room for four results.
        return unsafe { recorded(shim, tensors, &entry, stack) };
    }
    let results = serve(shim, CallPass::Backward, &tensors.tensors, &entry.0, &entry.1)?;
    let none = MadeTensor::nothing(shim)?;
    for (at, made) in results.into_iter().chain([none]).enumerate().take(4) {
        // SAFETY: the stack has room for four results.
        unsafe { *stack.add(at) = made.give() };
    }
    Ok(())
}

/// The same by an operator of qkvault's, whose derivative is an error that says so: somebody asks for a second one.
/// It has no list among its results: PyTorch 2.11 mixes up results of different types that it hands to C.
unsafe fn recorded(
    shim: &Shim,
    tensors: OwnedTensors<'_>,
    entry: &NativeEntry,
    stack: *mut StackValue,
) -> Result<(), CallFailure> {
    let numbers = entry.1.iter().map(|number| number.to_bits());
    let (extra, numbers) = (give_list(shim, std::iter::empty())?, give_list(shim, numbers)?);
    let mut spec: TorchHandle = std::ptr::null_mut();
    // SAFETY: bytes with their number, and a place.
    let made = unsafe { (shim.text)(entry.0.as_ptr().cast(), entry.0.len(), &raw mut spec) };
    done(made, c"torch_new_string_handle")?;
    let mut values: SmallVec<[StackValue; 9]> = tensors.tensors.iter().map(|tensor| *tensor as StackValue).collect();
    values.extend([extra, spec as StackValue, numbers]);
    // The operator takes what is on the stack.
    std::mem::forget(tensors);
    // SAFETY: the nine arguments of the operator's schema, and room for its three results.
    let called =
        unsafe { (shim.call)(c"qkvault::backward_plain".as_ptr(), c"".as_ptr(), values.as_mut_ptr(), BUILT_FOR) };
    done(called, c"torch_call_dispatcher")?;
    values[3] = MadeTensor::nothing(shim)?.give();
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), stack, 4) };
    Ok(())
}

/// Copies a gradient whose strides cuDNN does not take, such as that of a sum, which has one element.
fn plain(shim: &Shim, gradient: &mut TorchHandle) -> Result<(), CallFailure> {
    let shape = TensorShape::read(shim, *gradient)?;
    let aligned = |(n, stride): (&i64, &i64)| *n == 1 || (*stride > 0 && stride % 8 == 0);
    let Some((last, outer)) = shape.steps().split_last() else { return Ok(()) };
    if *last == 1 && shape.dims().iter().zip(outer).all(aligned) {
        return Ok(());
    }
    let strides = super::spec::dense(shape.dims());
    let new = MadeTensor::new(shim, (shape.dims(), &strides), shape.dtype, shape.device)?.give() as TorchHandle;
    let old = std::mem::replace(gradient, new);
    // SAFETY: two tensors that this kernel owns; the old one is given up.
    let copied = unsafe { (shim.copy)(new, old, 1) };
    // SAFETY: as above.
    unsafe { (shim.delete_tensor)(old) };
    done(copied, c"aoti_torch_copy_")
}

/// Tensors that a kernel owns.
struct OwnedTensors<'a> {
    shim: &'a Shim,
    tensors: SmallVec<[TorchHandle; 6]>,
}

impl Drop for OwnedTensors<'_> {
    fn drop(&mut self) {
        for tensor in &self.tensors {
            // SAFETY: the kernel owns its arguments.
            unsafe { (self.shim.delete_tensor)(*tensor) };
        }
    }
}
