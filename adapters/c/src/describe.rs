//! Descriptions: text and JSON become a valid attention, which tells its key and its operands.

use std::ffi::c_char;

use qkvault::exec::raw::constant_values;
use qkvault::graph::{Attention, BackwardOptions, Valid, text as form, validate};

use crate::context::put_handle;
use crate::handle::{Opaque, borrow, free};
use crate::operand::{NamedOperand, qkv_operand};
use crate::sized::{put, write};
use crate::status::{CallFailure, guarded, guarded_with_memory};
use crate::text::{give_text, text};

/// A valid description of one attention. It never changes.
///
/// Threads may share it. Free it with `qkv_attention_free`; plans that were made of it stay valid.
pub struct qkv_attention {
    _opaque: [u8; 0],
}

/// What a description's handle holds.
#[derive(Debug)]
pub struct DescriptionContent {
    pub(crate) valid: Valid,
    operands: Vec<NamedOperand>,
}

impl Opaque for qkv_attention {
    type Inside = DescriptionContent;
    const TAG: u64 = 0x0002_6e6f_6974_7461;
    const NAME: &'static str = "qkv_attention";
}

impl DescriptionContent {
    pub(crate) fn new(valid: Valid) -> DescriptionContent {
        let constants = constant_values(&valid);
        let facts = valid.operand_facts();
        let is_constant = |role| constants.iter().any(|(other, _)| *other == role);
        let operands = facts.iter().map(|fact| NamedOperand::new(fact, is_constant(fact.role))).collect();
        DescriptionContent { valid, operands }
    }

    pub(crate) fn validated(attention: Attention) -> Result<DescriptionContent, CallFailure> {
        Ok(DescriptionContent::new(validate(attention)?))
    }
}

/// Reads a description from its text form, of which only the first line below is needed; `qkvault help text` prints the
/// page with all fields and operations.
///
///     q: bf16 [1,32,4096,128]
///     k: [1,8,4096,128]
///     mask: causal
///     score_mod: scalar $cap: float; tanh(score / $cap) * $cap
///
/// `length` is the number of bytes, without a null character. `QKV_ERROR_PARSE` tells line and column,
/// `QKV_ERROR_REFUSED` everything in which the description contradicts itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_parse(
    text_form: *const c_char,
    length: usize,
    attention: *mut *mut qkv_attention,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a text of this length.
        let parsed = form::parse(unsafe { text(text_form, length, "the description") }?)?;
        // SAFETY: the caller's place.
        unsafe { put_handle(attention, DescriptionContent::validated(parsed)?) }
    })
}

/// Reads a description from JSON, as `qkv_attention_json` writes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_from_json(
    json: *const c_char,
    length: usize,
    attention: *mut *mut qkv_attention,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a text of this length.
        let parsed: Attention = serde_json::from_str(unsafe { text(json, length, "the description") }?)?;
        // SAFETY: the caller's place.
        unsafe { put_handle(attention, DescriptionContent::validated(parsed)?) }
    })
}

/// The backward of a forward: the gradients of Q, K and V, and of tensors of expressions that ask for theirs. Its
/// inputs are those of the forward, `o`, `stats` and `d_o`.
///
/// `deterministic` and `d_sink` are 0 or 1: whether two runs must agree bit for bit, and whether the gradient of the
/// sinks is computed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_backward(
    forward: *const qkv_attention,
    deterministic: i32,
    d_sink: i32,
    backward: *mut *mut qkv_attention,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a description.
        let forward = unsafe { borrow(forward) }?;
        let options = backward_options(deterministic, d_sink);
        // SAFETY: the caller's place.
        unsafe { put_handle(backward, DescriptionContent::validated(forward.valid.backward(options))?) }
    })
}

pub(crate) fn backward_options(deterministic: i32, d_sink: i32) -> BackwardOptions {
    BackwardOptions { deterministic: deterministic != 0, d_sink: d_sink != 0, ..BackwardOptions::default() }
}

/// The complete text form of a description, in canonical form: equal attentions have equal texts, but for names of
/// scalars and tensors. Free it with `qkv_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_text(attention: *const qkv_attention, text_form: *mut *mut c_char) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a description.
        let printed = form::print(unsafe { borrow(attention) }?.valid.get());
        // SAFETY: the caller's place.
        unsafe { give_text(text_form, printed) }
    })
}

/// A description as JSON. Free it with `qkv_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_json(attention: *const qkv_attention, json: *mut *mut c_char) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a description.
        let written = serde_json::to_string(unsafe { borrow(attention) }?.valid.get())?;
        // SAFETY: the caller's place.
        unsafe { give_text(json, written) }
    })
}

/// A description in one short line for people, such as `fwd bf16 b1 h32/8 q4096 kv4096 d128 causal`. Free it with
/// `qkv_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_summary(attention: *const qkv_attention, summary: *mut *mut c_char) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a description.
        let told = unsafe { borrow(attention) }?.valid.to_string();
        // SAFETY: the caller's place.
        unsafe { give_text(summary, told) }
    })
}

/// The key of a description: 32 bytes, written to `key`, equal exactly for attentions that compute the same, in every
/// process and on every machine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_key(attention: *const qkv_attention, key: *mut u8) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a description, and room for 32 bytes.
        unsafe { put(key.cast::<[u8; 32]>(), *borrow(attention)?.valid.key().bytes(), "the key") }
    })
}

/// The softmax scale that is usual: one over the square root of the head dim.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_default_scale(attention: *const qkv_attention, scale: *mut f32) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a description and a place.
        unsafe { put(scale, borrow(attention)?.valid.default_scale(), "the scale") }
    })
}

/// The number of operands of a description: tensors and scalars that a launch reads and writes. No plan and no GPU is
/// needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_operand_count(attention: *const qkv_attention, count: *mut usize) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a description and a place.
        unsafe { put(count, borrow(attention)?.operands.len(), "the count") }
    })
}

/// An operand of a description, by its place from 0. Plans list theirs in the same order, tensors and scalars apart
/// (`qkv_plan_tensor`, `qkv_plan_scalar`), and leave constants out. Plans of a cuDNN before 9.7 have offsets of 32
/// bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_operand(
    attention: *const qkv_attention,
    place: usize,
    operand: *mut qkv_operand,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a description.
        let operands = &unsafe { borrow(attention) }?.operands;
        // SAFETY: the caller's pointer is null or to a `qkv_operand` with its size.
        unsafe { write(operand, nth(operands, place)?.info()) }
    })
}

/// The operand at a place.
pub(crate) fn nth<T>(operands: &[T], place: usize) -> Result<&T, CallFailure> {
    let count = operands.len();
    operands.get(place).ok_or_else(|| CallFailure::argument(format!("place {place} of {count}; places begin at 0")))
}

/// Frees a description. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_attention_free(attention: *mut qkv_attention) -> i32 {
    // SAFETY: the caller promises a description that no call uses any more, or null.
    guarded(|| unsafe { free(attention) })
}
