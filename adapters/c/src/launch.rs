//! Launches on a stream of the caller, in the order of a plan or by name.

use std::ffi::{c_char, c_void};

use qkvault::exec::Number;
use qkvault::exec::raw::{DeviceBuffer, NamedArgs, RawArgs};
use qkvault::graph::Role;
use smallvec::SmallVec;

use crate::handle::borrow;
use crate::operand::{QKV_F32, QKV_I32, QKV_I64, role};
use crate::plan::qkv_plan;
use crate::sized::{Grows, list, read};
use crate::status::{CallFailure, guarded};
use crate::text::name;

/// Memory on the GPU. It never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_buffer {
    /// The address, a `CUdeviceptr`.
    pub address: u64,
    /// Bytes from the address on.
    pub bytes: u64,
}

/// The value of a scalar. It never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub union qkv_value {
    /// For `QKV_F32`.
    pub f32: f32,
    /// For `QKV_I32`.
    pub i32: i32,
    /// For `QKV_I64`.
    pub i64: i64,
}

/// One number on the host. It never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct qkv_number {
    /// `QKV_F32`, `QKV_I32` or `QKV_I64`.
    pub dtype: i32,
    /// Must be 0.
    pub reserved: i32,
    /// The value.
    pub value: qkv_value,
}

/// Two operands whose ranges of addresses overlap and whose elements do not, by `role_id`: such as the gradients of an
/// interleaved QKV. It never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_pair {
    /// One operand.
    pub a: i32,
    /// The other one.
    pub b: i32,
}

/// Memory by name. It never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_named_buffer {
    /// The name of a role or of a tensor in the description's expressions.
    pub name: *const c_char,
    /// The memory.
    pub buffer: qkv_buffer,
}

/// A number by name. It never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct qkv_named_number {
    /// The name of a role or of a scalar in the description's expressions.
    pub name: *const c_char,
    /// The number.
    pub number: qkv_number,
}

/// What a launch is given, in the order of the plan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_launch_args {
    /// Set this to `sizeof(qkv_launch_args)`.
    pub struct_size: usize,
    /// A buffer for each tensor of the plan, in the order of `qkv_plan_tensor`.
    pub tensors: *const qkv_buffer,
    /// The number of buffers.
    pub tensor_count: usize,
    /// A number for each scalar of the plan, in the order of `qkv_plan_scalar`.
    pub scalars: *const qkv_number,
    /// The number of numbers.
    pub scalar_count: usize,
    /// Scratch memory of at least `qkv_plan_info.workspace` bytes at a multiple of `workspace_alignment`; zeros if the
    /// plan needs none.
    pub workspace: qkv_buffer,
    /// The stream, a `CUstream` or `cudaStream_t`; null is the default stream.
    pub stream: *mut c_void,
    /// Pairs of operands that are interleaved; null if there are none.
    pub interleaved: *const qkv_pair,
    /// The number of pairs.
    pub interleaved_count: usize,
}

// SAFETY: numbers and pointers.
unsafe impl Grows for qkv_launch_args {
    const LEAST: usize = std::mem::offset_of!(qkv_launch_args, interleaved);
    const NAME: &'static str = "qkv_launch_args";
}

/// What a launch is given, by name and in any order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_launch_named_args {
    /// Set this to `sizeof(qkv_launch_named_args)`.
    pub struct_size: usize,
    /// Every tensor of the plan.
    pub tensors: *const qkv_named_buffer,
    /// Their number.
    pub tensor_count: usize,
    /// Every scalar of the plan; `scale` may be left out, and is one over the square root of the head dim then.
    pub scalars: *const qkv_named_number,
    /// Their number.
    pub scalar_count: usize,
    /// As in `qkv_launch_args`.
    pub workspace: qkv_buffer,
    /// As in `qkv_launch_args`.
    pub stream: *mut c_void,
    /// As in `qkv_launch_args`.
    pub interleaved: *const qkv_pair,
    /// The number of pairs.
    pub interleaved_count: usize,
}

// SAFETY: numbers and pointers.
unsafe impl Grows for qkv_launch_named_args {
    const LEAST: usize = std::mem::offset_of!(qkv_launch_named_args, interleaved);
    const NAME: &'static str = "qkv_launch_named_args";
}

pub(crate) const fn buffer(given: &qkv_buffer) -> DeviceBuffer {
    DeviceBuffer { address: given.address, bytes: given.bytes }
}

pub(crate) fn number(given: &qkv_number) -> Result<Number, CallFailure> {
    let qkv_number { dtype, reserved: _, value } = *given;
    // SAFETY: every field is a number that any bytes are.
    unsafe {
        match dtype {
            QKV_F32 => Ok(Number::F32(value.f32)),
            QKV_I32 => Ok(Number::I32(value.i32)),
            QKV_I64 => Ok(Number::I64(value.i64)),
            other => Err(CallFailure::argument(format!(
                "a scalar has the element type {other}; numbers are QKV_F32, QKV_I32 or QKV_I64"
            ))),
        }
    }
}

type Pairs = SmallVec<[(Role, Role); 3]>;

/// # Safety
///
/// As for `list`.
unsafe fn pairs(at: *const qkv_pair, count: usize) -> Result<Pairs, CallFailure> {
    // SAFETY: the caller's promise.
    let given = unsafe { list(at, count, "interleaved pairs") }?;
    given.iter().map(|pair| Ok((role(pair.a)?, role(pair.b)?))).collect()
}

/// Queues a launch of a plan on a stream, or records it if the stream is captured. It allocates, compiles and looks up
/// nothing, and returns before the launch runs. If it fails, nothing was queued.
///
/// Counts, types, sizes, alignment and overlap of the arguments are checked; what lies at an address is not. Until the
/// launch is finished on the stream (a captured one: until the last replay of its graph), every address must be memory
/// of the plan's GPU of at least these bytes, and no other launch may use the workspace: one workspace for each stream,
/// or threads that take turns. Lengths, offsets and page tables must lead nowhere outside the operands
/// (`qkv_batch_fill` checks them).
///
/// Any thread may call it, several at a time; the context that is current on the thread stays current.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_launch(plan: *const qkv_plan, args: *const qkv_launch_args) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a plan, and arguments with their size whose lists are as long as they say.
        unsafe {
            let ready = borrow(plan)?.loaded()?;
            let args = read(args)?;
            let tensors = list(args.tensors, args.tensor_count, "tensors")?;
            let scalars = list(args.scalars, args.scalar_count, "scalars")?;
            let tensors: SmallVec<[DeviceBuffer; 16]> = tensors.iter().map(buffer).collect();
            let scalars: SmallVec<[Number; 6]> = scalars.iter().map(number).collect::<Result<_, _>>()?;
            let interleaved = pairs(args.interleaved, args.interleaved_count)?;
            let workspace = buffer(&args.workspace);
            let (tensors, scalars, interleaved) = (&tensors[..], &scalars[..], &interleaved[..]);
            Ok(ready.launch_with(&RawArgs { tensors, scalars, workspace, interleaved }, args.stream)?)
        }
    })
}

/// Queues a launch as `qkv_launch` does, with arguments by name. It takes some hundred nanoseconds more: programs that
/// launch often ask for places once (`qkv_plan_place`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_launch_named(plan: *const qkv_plan, args: *const qkv_launch_named_args) -> i32 {
    guarded(|| {
        // SAFETY: as for `qkv_launch`; names are valid strings.
        unsafe {
            let plan = borrow(plan)?;
            let args = read(args)?;
            let named = NamedLists::read(&args)?;
            let NamedLists { tensors, scalars, interleaved } = &named;
            let workspace = buffer(&args.workspace);
            let args_named = NamedArgs { tensors, scalars, workspace, interleaved };
            Ok(plan.loaded()?.launch_named(&args_named, args.stream)?)
        }
    })
}

/// Says what is wrong in arguments by name, without a launch and without a GPU: also for a plan that is compiled ahead.
/// Addresses are not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_check_named(plan: *const qkv_plan, args: *const qkv_launch_named_args) -> i32 {
    guarded(|| {
        // SAFETY: as for `qkv_launch_named`.
        let (plan, named) = unsafe { (borrow(plan)?, NamedLists::read(&read(args)?)?) };
        let NamedLists { tensors, scalars, interleaved } = &named;
        let args = NamedArgs { tensors, scalars, workspace: DeviceBuffer::default(), interleaved };
        Ok(plan.order.check(&plan.facts, &args).map_err(qkvault::exec::LaunchError::from)?)
    })
}

/// The lists of arguments by name.
struct NamedLists<'a> {
    tensors: SmallVec<[(&'a str, DeviceBuffer); 16]>,
    scalars: SmallVec<[(&'a str, Number); 6]>,
    interleaved: Pairs,
}

impl<'a> NamedLists<'a> {
    /// # Safety
    ///
    /// The lists must be as long as they say, and their names null or valid strings.
    unsafe fn read(args: &qkv_launch_named_args) -> Result<NamedLists<'a>, CallFailure> {
        // SAFETY: the caller's promise.
        unsafe {
            let tensors = list(args.tensors, args.tensor_count, "tensors")?;
            let scalars = list(args.scalars, args.scalar_count, "scalars")?;
            let tensor = |given: &qkv_named_buffer| Ok((name(given.name, "a tensor's name")?, buffer(&given.buffer)));
            let scalar = |given: &qkv_named_number| Ok((name(given.name, "a scalar's name")?, number(&given.number)?));
            Ok(NamedLists {
                tensors: tensors.iter().map(tensor).collect::<Result<_, CallFailure>>()?,
                scalars: scalars.iter().map(scalar).collect::<Result<_, CallFailure>>()?,
                interleaved: pairs(args.interleaved, args.interleaved_count)?,
            })
        }
    }
}
