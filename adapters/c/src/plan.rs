//! Plans: compiled ahead for a target, or loaded on a GPU, with their facts.

use std::ffi::{CString, c_char, c_void};

use qkvault::Target;
use qkvault::cache::Source;
use qkvault::compile::{EngineChoice, PlanFacts, Resolution};
use qkvault::exec::raw::LaunchOrder;
use qkvault::graph::{Pass, Valid};
use qkvault::{RawReady, RawRuntime};

use crate::context::{put_handle, qkv_context};
use crate::describe::{nth, qkv_attention};
use crate::handle::{Opaque, borrow, free};
use crate::operand::{NamedOperand, qkv_operand};
use crate::plan_info::*;
use crate::sized::{put, write};
use qkvault_base::{on_lines, on_one_line};

use crate::status::{CallFailure, QKV_ERROR_DEVICE, c_string, guarded, guarded_with_memory};
use crate::text::name;

/// A plan of one attention: loaded on a GPU (`qkv_prepare`), or compiled ahead (`qkv_warm`), with facts and without a
/// GPU. It never changes.
///
/// Threads may share it and launch it at the same time. Freeing it frees the handle: a loaded plan stays on its GPU
/// until the process ends, because nobody tells when the last graph that was captured with it is gone.
pub struct qkv_plan {
    _opaque: [u8; 0],
}

/// What a plan's handle holds.
#[derive(Debug)]
pub struct Planned {
    pub(crate) facts: PlanFacts,
    pub(crate) attention: Valid,
    pub(crate) order: LaunchOrder,
    ready: Option<(RawReady, i32)>,
    source: i32,
    tensors: Vec<NamedOperand>,
    scalars: Vec<NamedOperand>,
    what: CString,
    engine: CString,
    /// Whose plan it is, and why.
    why: Option<CString>,
    cudnn: CString,
}

impl Opaque for qkv_plan {
    type Inside = Planned;
    const TAG: u64 = 0x0003_6e61_6c70_766b;
    const NAME: &'static str = "qkv_plan";
}

const fn source(source: Option<Source>) -> i32 {
    match source {
        None => QKV_SOURCE_LOADED,
        Some(Source::Memory) => QKV_SOURCE_MEMORY,
        Some(Source::Disk) => QKV_SOURCE_DISK,
        Some(Source::Layer(_)) => QKV_SOURCE_LAYER,
        Some(Source::Remote) => QKV_SOURCE_REMOTE,
        Some(Source::Built) => QKV_SOURCE_BUILT,
        Some(Source::Waited) => QKV_SOURCE_WAITED,
    }
}

impl Planned {
    /// A plan that is loaded.
    pub(crate) fn ready(ready: RawReady, device: i32) -> Result<Planned, CallFailure> {
        let (facts, attention) = (ready.facts().clone(), ready.attention().clone());
        let (order, from, why) = (ready.order().clone(), source(ready.source()), ready.engine().cloned());
        Planned::new(facts, attention, order, Some((ready, device)), from, why.as_ref())
    }

    fn new(
        facts: PlanFacts,
        attention: Valid,
        order: LaunchOrder,
        ready: Option<(RawReady, i32)>,
        source: i32,
        why: Option<&EngineChoice>,
    ) -> Result<Planned, CallFailure> {
        let operand = |binding| NamedOperand::of_plan(&attention, binding);
        let tensors = order.tensors().iter().map(operand).collect::<Result<_, _>>()?;
        let scalars = order.scalars().iter().map(operand).collect::<Result<_, _>>()?;
        let (what, engine) = (c_string(on_one_line(&facts.what)), c_string(on_one_line(&facts.engine)));
        // Empty for a plan that needs no cuDNN.
        let cudnn = c_string(facts.cudnn().map(|own| own.cudnn.to_string()).unwrap_or_default());
        let why = why.map(|choice| c_string(on_lines(&choice.to_string())));
        Ok(Planned { facts, attention, order, ready, source, tensors, scalars, what, engine, cudnn, why })
    }

    /// The loaded plan.
    pub(crate) fn loaded(&self) -> Result<&RawReady, CallFailure> {
        let ahead = || {
            let what = on_one_line(&self.facts.what);
            let text = format!("the plan of '{what}' is compiled ahead and on no GPU; qkv_prepare loads one to launch");
            CallFailure::new(QKV_ERROR_DEVICE, text)
        };
        self.ready.as_ref().map(|(ready, _)| ready).ok_or_else(ahead)
    }

    fn info(&self) -> qkv_plan_info {
        let Planned { facts, attention, order: _, ready, source, tensors, scalars, what, engine, cudnn, why } = self;
        let times = ready.as_ref().map(|(ready, _)| ready.times()).unwrap_or_default();
        let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
        let deterministic = match &attention.pass {
            Pass::Forward => true,
            Pass::Backward(gradients) => gradients.deterministic,
        };
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let number = facts.cudnn().and_then(|own| i32::try_from(own.cudnn.number()).ok()).unwrap_or(0);
        qkv_plan_info {
            struct_size: 0,
            key: *facts.key.bytes(),
            attention_key: *facts.graph_key.bytes(),
            workspace: facts.scratch().bytes,
            workspace_alignment: small(qkvault::exec::SCRATCH_ALIGNMENT as usize),
            tensor_count: small(tensors.len()),
            scalar_count: small(scalars.len()),
            device: ready.as_ref().map_or(-1, |(_, device)| *device),
            deterministic: i32::from(deterministic),
            sm: i32::try_from(facts.sm).unwrap_or(0),
            source: *source,
            cudnn_number: number,
            cudnn: cudnn.as_ptr(),
            engine: engine.as_ptr(),
            what: what.as_ptr(),
            plan_bytes: facts.blob_bytes,
            compile_ms: facts.compile_ms,
            reserved: 0,
            why: why.as_ref().map_or(std::ptr::null(), |why| why.as_ptr()),
            prepare_us: us(times.whole),
            vault_us: us(times.vault),
            load_us: us(times.load.whole),
            checks_us: us(times.load.checks),
            code_us: us(times.load.code),
            kernels_us: us(times.load.kernels),
            attributes_us: us(times.load.attributes),
        }
    }
}

/// Compiles the plan of an attention for a GPU into the vault, if the vault lacks it. No GPU and no driver is needed;
/// it takes 0.3 to 1 second of a core. The plan is for the cuDNN of this context, which alone loads it.
///
/// `gpu` is a name such as `h200`, or the text of a profile. `plan` may be null; else it gets a plan with facts, which
/// cannot be launched, to be freed with `qkv_plan_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_warm(
    context: *const qkv_context,
    attention: *const qkv_attention,
    gpu: *const c_char,
    plan: *mut *mut qkv_plan,
) -> i32 {
    // SAFETY: the caller's promise.
    guarded_with_memory(|| unsafe { ahead(context, attention, gpu, plan, RawRuntime::warm) })
}

/// The plan of an attention for a GPU, if the vault has it, as `qkv_warm` gives it. It compiles nothing: a plan that
/// the vault lacks is `QKV_ERROR_MISSING`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_look(
    context: *const qkv_context,
    attention: *const qkv_attention,
    gpu: *const c_char,
    plan: *mut *mut qkv_plan,
) -> i32 {
    // SAFETY: the caller's promise.
    guarded_with_memory(|| unsafe { ahead(context, attention, gpu, plan, RawRuntime::look) })
}

/// Gives a plan for a target, which no GPU has loaded.
///
/// # Safety
///
/// Handles must be of these kinds, the name null or valid, and the place null or writable.
unsafe fn ahead(
    context: *const qkv_context,
    attention: *const qkv_attention,
    gpu: *const c_char,
    plan: *mut *mut qkv_plan,
    find: impl FnOnce(&RawRuntime, &Valid, &Target) -> Result<Resolution, qkvault::Error>,
) -> Result<(), CallFailure> {
    // SAFETY: the caller's promise.
    let (context, attention, gpu) = unsafe { (borrow(context)?, borrow(attention)?, name(gpu, "gpu")?) };
    let target = context.runtime.compile_target(gpu)?;
    let answer = find(&context.runtime, &attention.valid, &target)?;
    let built = answer.outcome.map_err(qkvault::Error::from)?;
    if plan.is_null() {
        return Ok(());
    }
    let (facts, attention) = (built.facts.clone(), attention.valid.clone());
    let order = LaunchOrder::for_plan(&facts, &attention);
    // SAFETY: the caller's place.
    unsafe {
        put_handle(
            plan,
            Planned::new(facts, attention, order, None, source(Some(answer.source)), Some(&answer.engine))?,
        )
    }
}

/// The plan of an attention, loaded on a GPU: from the process if it has it, in a microsecond; else from the vault, in
/// about a millisecond; else built, if the context's options allow it, in 0.3 to 1 second. A plan that is missing is
/// `QKV_ERROR_MISSING`.
///
/// `device` is CUDA's ordinal of the GPU; its primary context is used, which is that of the CUDA runtime, PyTorch and
/// JAX. The context that is current on the thread stays current. `stream` may be null; a stream that is being captured
/// is `QKV_ERROR_CAPTURED` if the plan is not loaded yet. Free the plan with `qkv_plan_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_prepare(
    context: *const qkv_context,
    attention: *const qkv_attention,
    device: i32,
    stream: *mut c_void,
    plan: *mut *mut qkv_plan,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises handles of these kinds.
        let (context, attention) = unsafe { (borrow(context)?, borrow(attention)?) };
        // SAFETY: the caller promises that the stream is null or a stream of this GPU.
        let ready = unsafe { context.runtime.prepare(&attention.valid, device, stream) }?;
        // SAFETY: the caller's place.
        unsafe { put_handle(plan, Planned::ready(ready, device)?) }
    })
}

/// Tells the facts of a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_plan_facts(plan: *const qkv_plan, info: *mut qkv_plan_info) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a plan, and a pointer that is null or to a `qkv_plan_info` with its size.
        unsafe { write(info, borrow(plan)?.info()) }
    })
}

/// A tensor of a plan, by its place from 0 in the order of a launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_plan_tensor(plan: *const qkv_plan, place: usize, operand: *mut qkv_operand) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a plan, and a pointer that is null or to a `qkv_operand` with its size.
        unsafe { write(operand, nth(&borrow(plan)?.tensors, place)?.info()) }
    })
}

/// A scalar of a plan, by its place from 0 in the order of a launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_plan_scalar(plan: *const qkv_plan, place: usize, operand: *mut qkv_operand) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a plan, and a pointer that is null or to a `qkv_operand` with its size.
        unsafe { write(operand, nth(&borrow(plan)?.scalars, place)?.info()) }
    })
}

/// The place of an operand in the order of a launch, by the name of its role or its name in the description. `scalar`
/// gets 1 if the place is one among the scalars, else 0. For an unknown name the error has the most similar one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_plan_place(
    plan: *const qkv_plan,
    operand: *const c_char,
    place: *mut usize,
    scalar: *mut i32,
) -> i32 {
    guarded(|| {
        crate::sized::place(scalar, "scalar")?;
        // SAFETY: the caller promises a plan and a string that is null or valid.
        let (plan, wanted) = unsafe { (borrow(plan)?, name(operand, "the operand's name")?) };
        let found = plan.order.places(wanted).next();
        let (at, is_scalar) = found.ok_or_else(|| CallFailure::argument(plan.order.unknown(wanted).to_string()))?;
        // SAFETY: the caller's places.
        unsafe {
            put(place, at, "the place")?;
            put(scalar, i32::from(is_scalar), "scalar")
        }
    })
}

/// Loads a plan's kernels now, so that its first launch takes no longer than later ones (about a millisecond). It
/// launches nothing. Call it on a thread that captures no stream, and before captures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_plan_load_kernels(plan: *const qkv_plan) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a plan.
        let loaded = unsafe { borrow(plan) }?.loaded()?;
        loaded.plan().load_kernels().map_err(|detail| CallFailure::new(QKV_ERROR_DEVICE, detail))
    })
}

/// Frees the handle of a plan. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_plan_free(plan: *mut qkv_plan) -> i32 {
    // SAFETY: the caller promises a plan that no call uses any more, or null.
    guarded(|| unsafe { free(plan) })
}
