//! One call of each function, with arguments out of the program.

use std::ffi::c_char;
use std::ptr::{null, null_mut};

use qkvault_c::describe::*;
use qkvault_c::oracle::*;
use qkvault_c::serving::*;
use qkvault_c::status::QKV_OK;
use qkvault_c::text::qkv_string_free;
use qkvault_c::training::qkv_training;

use super::program::{CallProgram, LiveHandle, SMALL, StructRoom, last};

/// One call.
///
/// # Safety
///
/// Every handle of the program lives.
pub(super) unsafe fn call(program: &mut CallProgram<'_>) {
    let mut text: *mut c_char = null_mut();
    let code = program.byte() % 23;
    // SAFETY: pointers are null, or to variables and arrays of this function; lengths are theirs; handles live.
    unsafe {
        match code {
            0 | 1 => {
                let bytes = program.bytes();
                let parse = if code == 0 { qkv_attention_parse } else { qkv_attention_from_json };
                let mut made = null_mut();
                let status = parse(bytes.as_ptr().cast(), bytes.len(), &raw mut made);
                program.made(status, LiveHandle::Attention(made));
            }
            2..=4 => {
                let print = [qkv_attention_text, qkv_attention_json, qkv_attention_summary][usize::from(code - 2)];
                let status = print(program.any().cast_const().cast(), &raw mut text);
                if program.ended(status) && code < 4 {
                    let printed = std::ffi::CStr::from_ptr(text).to_bytes().to_vec();
                    let parse = if code == 2 { qkv_attention_parse } else { qkv_attention_from_json };
                    let mut again = null_mut();
                    let status = parse(printed.as_ptr().cast(), printed.len(), &raw mut again);
                    assert_eq!(status, QKV_OK, "what is printed reads again: {}", last());
                    assert_eq!(qkv_attention_free(again), QKV_OK);
                }
                assert_eq!(qkv_string_free(text), QKV_OK);
                program.byte();
            }
            5 => {
                let mut key = [0_u8; 40];
                let status = qkv_attention_key(program.any().cast_const().cast(), key.as_mut_ptr());
                program.ended(status);
                assert_eq!(key[32..], [0; 8], "a key has 32 bytes");
                program.byte();
            }
            6 => {
                let mut scale = f32::NAN;
                let status = qkv_attention_default_scale(program.any().cast_const().cast(), &raw mut scale);
                assert!(!program.ended(status) || (scale.is_finite() && scale > 0.0), "a scale of {scale}");
                program.byte();
            }
            7 => {
                let (handle, place) = (program.any(), program.number() as usize);
                let size = 8 + place % 200;
                let mut room = StructRoom::new(size);
                let status = qkv_attention_operand(handle.cast_const().cast(), place, room.at());
                program.ended(status);
                room.check(size);
            }
            8 => {
                let (handle, options) = (program.any(), program.byte());
                let (deterministic, d_sink, mut made) = (i32::from(options & 1), i32::from(options & 2), null_mut());
                let status = qkv_attention_backward(handle.cast_const().cast(), deterministic, d_sink, &raw mut made);
                program.made(status, LiveHandle::Attention(made));
            }
            9 => {
                let (handle, options) = (program.any(), program.byte());
                let (mut forward, mut backward) = (null_mut(), null_mut());
                let (deterministic, d_sink) = (i32::from(options & 1), i32::from(options & 2));
                let place = if options & 4 == 0 { &raw mut backward } else { null_mut() };
                let handle = handle.cast_const().cast();
                let status = qkv_training(handle, deterministic, d_sink, &raw mut forward, place);
                program.made(status, LiveHandle::Attention(forward));
                if status == QKV_OK {
                    program.held.push(LiveHandle::Attention(backward));
                }
            }
            10 => {
                let (handle, mut count) = (program.any(), 0);
                let status = qkv_attention_operand_count(handle.cast_const().cast(), &raw mut count);
                program.ended(status);
                program.byte();
            }
            11 => {
                let handle = program.any();
                let (small, mut made) = (program.is_small(handle), null_mut());
                let status = qkv_oracle_new(handle.cast_const().cast(), &raw mut made);
                program.made(status, LiveHandle::Oracle(made, small));
            }
            12 | 15 | 16 => {
                let handle = program.any();
                let large = |held: &LiveHandle| matches!(held, LiveHandle::Oracle(at, false) if at.cast() == handle);
                if program.held.iter().any(large) {
                    return;
                }
                let status = match code {
                    12 => qkv_oracle_random(handle.cast(), program.number()),
                    15 => qkv_oracle_run(handle.cast()),
                    _ => qkv_oracle_add_forward(handle.cast()),
                };
                program.ended(status);
            }
            13 => {
                let layer = program.bytes();
                let policy = if program.byte() & 1 == 1 { Some(program.bytes()) } else { None };
                let (policy, length) = policy.map_or((null(), 0), |bytes| (bytes.as_ptr().cast(), bytes.len()));
                let mut made = null_mut();
                let status = qkv_serving_new(layer.as_ptr().cast(), layer.len(), policy, length, &raw mut made);
                program.made(status, LiveHandle::Serving(made));
            }
            14 => {
                let (handle, mut count, mut made) = (program.any(), 0, null_mut());
                let status = qkv_serving_count(handle.cast_const().cast(), &raw mut count);
                program.ended(status);
                let place = program.number() as usize;
                let status = qkv_serving_attention(handle.cast_const().cast(), place, &raw mut made);
                assert!(status != QKV_OK || place < count, "attention {place} of {count}");
                program.made(status, LiveHandle::Attention(made));
            }
            17 => {
                let (handle, name, dtype) = (program.any(), program.name(), i32::from(program.byte()));
                let (mut array, mut bytes) = (vec![0xa5_u8; SMALL as usize + 16], usize::from(program.byte()) << 6);
                let room = bytes;
                let handle = handle.cast_const().cast();
                let status = match dtype {
                    0..=2 => qkv_oracle_input(handle, name.as_ptr(), array.as_mut_ptr().cast(), &raw mut bytes),
                    _ => {
                        let dtype = [0, 1, 64, 65][dtype as usize % 4];
                        qkv_oracle_output(handle, name.as_ptr(), dtype, array.as_mut_ptr().cast(), &raw mut bytes)
                    }
                };
                program.ended(status);
                assert!(array[room..].iter().all(|byte| *byte == 0xa5), "written beyond {room} bytes");
            }
            18 => {
                let (handle, name, dtype) = (program.any(), program.name(), i32::from(program.byte()));
                let data = program.bytes();
                let data = (data.as_ptr().cast(), data.len());
                let status = qkv_oracle_set(handle.cast(), name.as_ptr(), dtype, data.0, data.1);
                program.ended(status);
            }
            19 => {
                let (handle, name, data) = (program.any(), program.name(), program.bytes());
                let size = 8 + data.len() % 100;
                let (mut room, at) = (StructRoom::new(size), data.as_ptr().cast());
                let status = qkv_oracle_compare(handle.cast_const().cast(), name.as_ptr(), at, data.len(), room.at());
                program.ended(status);
                room.check(size);
            }
            20 => {
                let handle = program.any().cast_const().cast();
                let [sequences, queries, keys] = [(); 3].map(|()| program.number() as i64);
                let (mixed, mut place) = (i32::from(program.byte()), 0);
                let status = qkv_serving_pick(handle, sequences, queries, keys, mixed, &raw mut place);
                if program.ended(status) {
                    let mut bucket = StructRoom::new(size_of::<qkv_bucket>());
                    let at: *mut qkv_bucket = bucket.at();
                    assert_eq!(qkv_serving_bucket(handle, place, at), QKV_OK, "{}", last());
                    let holds = (*at).batch >= sequences && (*at).queries >= queries && (*at).keys >= keys;
                    assert!(holds, "{:?} holds {sequences} sequences, {queries} queries and {keys} keys", *at);
                }
            }
            21 => {
                let (handle, place) = (program.any(), program.number() as usize);
                let size = 8 + place % 90;
                let mut room = StructRoom::new(size);
                let status = qkv_serving_bucket(handle.cast_const().cast(), place, room.at());
                program.ended(status);
                room.check(size);
            }
            _ => {
                // The handle is freed as one of a kind: as another it stays, and that is an error.
                let (handle, kind) = (program.any(), program.byte() % 3);
                let status = match kind {
                    0 => qkv_attention_free(handle.cast()),
                    1 => qkv_serving_free(handle.cast()),
                    _ => qkv_oracle_free(handle.cast()),
                };
                let own = |held: &LiveHandle| {
                    let its = match held {
                        LiveHandle::Attention(_) => 0,
                        LiveHandle::Serving(_) => 1,
                        LiveHandle::Oracle(..) => 2,
                    };
                    held.address() == handle && its == kind
                };
                let known = program.held.iter().any(own) || handle.is_null();
                assert_eq!(program.ended(status), known, "a handle is freed as what it is: {}", last());
                program.held.retain(|held| !own(held));
            }
        }
    }
}
