//! Serving sets: the attentions that any step runs on.

use std::ffi::c_char;

use qkvault::serving::{Bucket, Buckets, ServeLayer, ServePolicy, StepKind, StepSize};

use crate::context::put_handle;
use crate::describe::{DescriptionContent, qkv_attention};
use crate::handle::{Opaque, borrow, free};
use crate::sized::{Grows, put, write};
use crate::status::{CallFailure, guarded, guarded_with_memory};
use crate::text::text;

/// The attentions of a layer for every step in the ranges of a policy.
///
/// Threads may share it. Free it with `qkv_serving_free`.
pub struct qkv_serving {
    _opaque: [u8; 0],
}

/// What a serving set's handle holds.
#[derive(Debug)]
pub struct Serving {
    layer: ServeLayer,
    buckets: Buckets,
}

impl Opaque for qkv_serving {
    type Inside = Serving;
    const TAG: u64 = 0x0005_676e_6976_7265;
    const NAME: &'static str = "qkv_serving";
}

/// The largest sizes of one attention of a serving set.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_bucket {
    /// Set this to `sizeof(qkv_bucket)`.
    pub struct_size: usize,
    /// Sequences.
    pub batch: i64,
    /// New tokens of a sequence.
    pub queries: i64,
    /// Keys of a sequence.
    pub keys: i64,
    /// New tokens of a step: the room of varlen buffers.
    pub tokens: i64,
    /// 1 if each sequence has one new token (dense queries), else 0 (varlen queries).
    pub decode: i32,
    /// Must be ignored.
    pub reserved: i32,
}

// SAFETY: numbers.
unsafe impl Grows for qkv_bucket {
    const LEAST: usize = size_of::<qkv_bucket>();
    const NAME: &'static str = "qkv_bucket";
}

/// The serving set of a layer, from JSON: see `ServeLayer` and `ServePolicy` of the Rust package `qkvault-serving` for
/// the fields. A null `policy` is the default one: up to 256 sequences of up to 32,768 keys and 8,192 new tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_serving_new(
    layer: *const c_char,
    layer_length: usize,
    policy: *const c_char,
    policy_length: usize,
    serving: *mut *mut qkv_serving,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises texts of these lengths.
        let layer: ServeLayer = serde_json::from_str(unsafe { text(layer, layer_length, "the layer") }?)?;
        let policy = match policy.is_null() {
            true => ServePolicy::default().for_heads(layer.kv_heads),
            // SAFETY: as above.
            false => serde_json::from_str(unsafe { text(policy, policy_length, "the policy") }?)?,
        };
        let buckets = Buckets::new(&policy)?;
        // SAFETY: the caller's place.
        unsafe { put_handle(serving, Serving { layer, buckets }) }
    })
}

/// The number of attentions of a serving set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_serving_count(serving: *const qkv_serving, count: *mut usize) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a serving set and a place.
        unsafe { put(count, borrow(serving)?.buckets.len(), "the count") }
    })
}

impl Serving {
    fn bucket(&self, place: usize) -> Result<Bucket, CallFailure> {
        let count = self.buckets.len();
        let outside = || CallFailure::argument(format!("attention {place} of {count}; places begin at 0"));
        if place < count { Ok(self.buckets.get(place)) } else { Err(outside()) }
    }
}

/// The sizes of an attention of a serving set, by its place from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_serving_bucket(serving: *const qkv_serving, place: usize, bucket: *mut qkv_bucket) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a serving set.
        let Bucket { kind, batch, queries, keys, tokens } = unsafe { borrow(serving) }?.bucket(place)?;
        let decode = i32::from(kind == StepKind::Decode);
        let own = qkv_bucket { struct_size: 0, batch, queries, keys, tokens, decode, reserved: 0 };
        // SAFETY: the caller's pointer is null or to a `qkv_bucket` with its size.
        unsafe { write(bucket, own) }
    })
}

/// The description of an attention of a serving set, by its place from 0. Free it with `qkv_attention_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_serving_attention(
    serving: *const qkv_serving,
    place: usize,
    attention: *mut *mut qkv_attention,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a serving set.
        let Serving { layer, .. } = unsafe { borrow(serving) }?;
        // SAFETY: as above.
        let bucket = unsafe { borrow(serving) }?.bucket(place)?;
        // SAFETY: the caller's place.
        unsafe { put_handle(attention, DescriptionContent::new(layer.attention(&bucket)?)) }
    })
}

/// The place of the smallest attention that holds a step: so many sequences, new tokens of the sequence with the most,
/// and keys of the sequence with the most. With `mixed` 1, of those with varlen queries alone, for a decode whose own
/// attention is refused. A step outside the ranges is `QKV_ERROR_ARGUMENT`. It allocates nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_serving_pick(
    serving: *const qkv_serving,
    sequences: i64,
    queries: i64,
    keys: i64,
    mixed: i32,
    place: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a serving set.
        let Serving { buckets, .. } = unsafe { borrow(serving) }?;
        let step = StepSize { sequences, queries, keys };
        let picked = if mixed == 0 { buckets.pick(step) } else { buckets.pick_mixed(step) };
        let outside = || {
            let text = format!(
                "no attention holds {sequences} sequences of {queries} new tokens and {keys} keys; the policy is {:?}",
                buckets.policy()
            );
            CallFailure::argument(text)
        };
        // SAFETY: the caller's place.
        unsafe { put(place, picked.ok_or_else(outside)?, "the place") }
    })
}

/// Frees a serving set. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_serving_free(serving: *mut qkv_serving) -> i32 {
    // SAFETY: the caller promises a serving set that no call uses any more, or null.
    guarded(|| unsafe { free(serving) })
}
