//! Calls of the C interface: the input is a program of them, with texts, numbers, handles of every kind and no handle,
//! structs of any size, and arrays with guards behind them.
//!
//! What a caller promises is kept, for nothing can be said of a program that breaks it: pointers are null or point to
//! memory, a handle is not used after it was freed.

use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};

use qkvault_c::describe::*;
use qkvault_c::oracle::*;
use qkvault_c::serving::*;
use qkvault_c::status::{QKV_ERROR_ARGUMENT, QKV_ERROR_PARSE, QKV_ERROR_REFUSED, QKV_OK, qkv_error, qkv_last_error};
use qkvault_c::text::qkv_string_free;
use qkvault_c::training::qkv_training;

use super::{Answer, Target};

/// Calls of the C interface.
pub(super) const CALLS: Target = Target {
    name: "c_calls",
    about: "calls of the C interface",
    seeds,
    words: &[
        "q: bf16 [1,2,4,8]",
        "k: [1,1,4,8]",
        "mask: causal",
        "score_mod: tanh(score)",
        "\"least_keys\":",
        "\"growth\":",
        "outputs: stats",
        "lengths: per-sequence",
        "scale",
        "stats",
        "seq_len_q",
        "scalar.0",
        "\"heads\":",
        "\n",
    ],
    check,
};

/// A layer of a serving set, as JSON.
const LAYER: &str = r#"{"heads":8,"kv_heads":2,"d_qk":64,"d_v":64,"dtype":"bf16","pages":64,"page_size":16,"layout":"nhd","values_in_keys":false,"window":null,"score_mod":null,"sink":false,"stats":false}"#;

/// A policy of one, as JSON.
const POLICY: &str = r#"{"batch":8,"queries":256,"keys":1024,"tokens":256,"least_batch":1,"least_queries":16,"least_keys":128,"few":2,"growth":{"few":2,"many":8,"mixed":16,"queries":8,"keys":16}}"#;

/// Most bytes of all operands of an attention that the oracle computes here: larger ones take as long as they take.
const SMALL: u64 = 64 << 10;

/// Calls of a program at most.
const MOST: usize = 64;

fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "q: bf16 [1,2,4,8]\nmask: causal\noutputs: stats",
        "q: f16 [2,4,8,16]\nk: [2,2,8,16]\nscore_mod: scalar $cap: float; tanh(score / $cap) * $cap\nlengths: per-sequence",
        "q: bf16 [1,1,2,8]\ndropout: philox 0.25",
    ];
    let long = |text: &str| [&(text.len() as u16).to_le_bytes(), text.as_bytes()].concat();
    let parse = |text: &str| [&[0][..], &long(text)].concat();
    let mut seeds = Vec::new();
    for text in texts {
        let mut program = parse(text);
        // Every question about the description, its backward, an oracle with random inputs that runs, and its outputs.
        for call in [[2, 1, 0], [3, 1, 1], [4, 1, 0], [5, 1, 0], [6, 1, 0], [7, 1, 2], [8, 1, 0], [9, 1, 1], [10, 1, 9]]
        {
            program.extend(call);
        }
        program.extend([11, 1, 7, 12, 4, 5, 15, 4, 0, 16, 4, 0, 17, 4, 0, 18, 1, 0, 19, 4, 0]);
        seeds.push(program);
    }
    for policy in [None, Some(POLICY)] {
        let mut program = vec![13];
        program.extend(long(LAYER));
        program.push(u8::from(policy.is_some()));
        program.extend(policy.map(long).unwrap_or_default());
        program.extend([14, 1, 3, 14, 1, 0, 20, 1, 2, 9, 0, 4, 0, 7, 0, 1]);
        seeds.push(program);
    }
    seeds
}

/// A handle that lives.
#[derive(Clone, Copy)]
enum Held {
    Attention(*mut qkv_attention),
    Serving(*mut qkv_serving),
    Oracle(*mut qkv_oracle, bool),
}

impl Held {
    fn address(self) -> *mut c_void {
        match self {
            Held::Attention(at) => at.cast(),
            Held::Serving(at) => at.cast(),
            Held::Oracle(at, _) => at.cast(),
        }
    }
}

/// The rest of a program.
struct Program<'a> {
    rest: &'a [u8],
    held: Vec<Held>,
    /// How many calls ended with each status.
    ended: [u32; 16],
}

/// What a struct of any size lies in: bytes that tell whether more than the size were written.
#[repr(align(16))]
struct Room([u8; 256]);

impl Room {
    fn new(size: usize) -> Room {
        let mut room = Room([0xa5; 256]);
        room.0[..size_of::<usize>()].copy_from_slice(&size.to_ne_bytes());
        room
    }

    fn at<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }

    /// Checks that nothing behind the size was written.
    fn check(&self, size: usize) {
        assert!(self.0[size.max(size_of::<usize>())..].iter().all(|byte| *byte == 0xa5), "written beyond {size} bytes");
    }
}

impl<'a> Program<'a> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.rest.split_first().map_or((0, self.rest), |(first, rest)| (*first, rest));
        self.rest = rest;
        first
    }

    /// Bytes with a length of two bytes before them.
    fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(u16::from_le_bytes([self.byte(), self.byte()])).min(self.rest.len());
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        bytes
    }

    /// A number, small ones as one byte.
    fn number(&mut self) -> u64 {
        match self.byte() {
            0xff => (0..8).fold(0, |sum, _| sum << 8 | u64::from(self.byte())),
            0xfe => u64::MAX - u64::from(self.byte()),
            small => u64::from(small),
        }
    }

    /// A handle of any kind, or null.
    fn any(&mut self) -> *mut c_void {
        let at = usize::from(self.byte());
        if at == 0 {
            null_mut()
        } else {
            self.held.get((at - 1) % self.held.len().max(1)).map_or(null_mut(), |h| h.address())
        }
    }

    /// A name of an operand.
    fn name(&mut self) -> CString {
        const NAMES: [&str; 12] =
            ["q", "k", "v", "o", "stats", "scale", "scalar.0", "cap", "seq_len_q", "d_o", "d_q", "sink"];
        let at = usize::from(self.byte());
        match NAMES.get(at) {
            Some(name) => CString::new(*name).unwrap_or_default(),
            None => CString::new(self.bytes()).unwrap_or_default(),
        }
    }

    fn ended(&mut self, status: i32) -> bool {
        let known = [QKV_OK, QKV_ERROR_ARGUMENT, QKV_ERROR_PARSE, QKV_ERROR_REFUSED].contains(&status);
        assert!(known, "status {status}: {}", last());
        self.ended[status as usize] += 1;
        status == QKV_OK
    }

    /// Notes a new handle, which is there exactly if the call went well.
    fn made(&mut self, status: i32, handle: Held) {
        let made = self.ended(status);
        assert_eq!(made, !handle.address().is_null(), "a handle and no success, or the reverse");
        if made {
            self.held.push(handle);
        }
    }

    /// Whether a handle is an attention that is small enough to be computed.
    fn is_small(&self, handle: *const c_void) -> bool {
        let attention = self.held.iter().find_map(|held| match held {
            Held::Attention(at) if at.cast_const().cast() == handle => Some(*at),
            _ => None,
        });
        let Some(attention) = attention else { return true };
        let (mut count, mut bytes) = (0, 0_u64);
        // SAFETY: a description that lives, and a place.
        unsafe { qkv_attention_operand_count(attention, &raw mut count) };
        for place in 0..count {
            let mut room = Room::new(size_of::<qkvault_c::operand::qkv_operand>());
            let at: *mut qkvault_c::operand::qkv_operand = room.at();
            // SAFETY: a description that lives, and a struct with its size, which the call fills.
            bytes = bytes.saturating_add(unsafe {
                qkv_attention_operand(attention, place, at);
                (*at).bytes
            });
        }
        bytes <= SMALL
    }
}

/// What the last error of this thread says.
fn last() -> String {
    let mut error = qkv_error {
        struct_size: size_of::<qkv_error>(),
        status: 0,
        reason_count: 0,
        message: null(),
        kind: null(),
        codes: null(),
        reasons: null(),
    };
    // SAFETY: a struct with its size; the strings are valid until the next failing call.
    unsafe {
        assert_eq!(qkv_last_error(&raw mut error), QKV_OK);
        std::ffi::CStr::from_ptr(error.message).to_string_lossy().into_owned()
    }
}

fn check(bytes: &[u8]) -> Answer {
    let mut program = Program { rest: bytes, held: Vec::new(), ended: [0; 16] };
    for _ in 0..MOST {
        if program.rest.is_empty() {
            break;
        }
        // SAFETY: the module says what is kept of a caller's promises.
        unsafe { call(&mut program) };
    }
    for held in std::mem::take(&mut program.held) {
        // SAFETY: handles that live, each freed once.
        let status = unsafe {
            match held {
                Held::Attention(at) => qkv_attention_free(at),
                Held::Serving(at) => qkv_serving_free(at),
                Held::Oracle(at, _) => qkv_oracle_free(at),
            }
        };
        assert_eq!(status, QKV_OK, "{}", last());
    }
    let ended = program.ended.map(|count| count.min(3));
    if ended[QKV_OK as usize] == 0 {
        return Answer::refused(&last());
    }
    let counts: String = ended.iter().map(|count| char::from(b'a' + *count as u8)).collect();
    Answer::taken(&format!("{counts} {}", last()))
}

/// One call.
///
/// # Safety
///
/// Every handle of the program lives.
unsafe fn call(program: &mut Program<'_>) {
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
                program.made(status, Held::Attention(made));
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
                let mut room = Room::new(size);
                let status = qkv_attention_operand(handle.cast_const().cast(), place, room.at());
                program.ended(status);
                room.check(size);
            }
            8 => {
                let (handle, options) = (program.any(), program.byte());
                let (deterministic, d_sink, mut made) = (i32::from(options & 1), i32::from(options & 2), null_mut());
                let status = qkv_attention_backward(handle.cast_const().cast(), deterministic, d_sink, &raw mut made);
                program.made(status, Held::Attention(made));
            }
            9 => {
                let (handle, options) = (program.any(), program.byte());
                let (mut forward, mut backward) = (null_mut(), null_mut());
                let (deterministic, d_sink) = (i32::from(options & 1), i32::from(options & 2));
                let place = if options & 4 == 0 { &raw mut backward } else { null_mut() };
                let handle = handle.cast_const().cast();
                let status = qkv_training(handle, deterministic, d_sink, &raw mut forward, place);
                program.made(status, Held::Attention(forward));
                if status == QKV_OK {
                    program.held.push(Held::Attention(backward));
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
                program.made(status, Held::Oracle(made, small));
            }
            12 | 15 | 16 => {
                let handle = program.any();
                let large = |held: &Held| matches!(held, Held::Oracle(at, false) if at.cast() == handle);
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
                program.made(status, Held::Serving(made));
            }
            14 => {
                let (handle, mut count, mut made) = (program.any(), 0, null_mut());
                let status = qkv_serving_count(handle.cast_const().cast(), &raw mut count);
                program.ended(status);
                let place = program.number() as usize;
                let status = qkv_serving_attention(handle.cast_const().cast(), place, &raw mut made);
                assert!(status != QKV_OK || place < count, "attention {place} of {count}");
                program.made(status, Held::Attention(made));
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
                let (mut room, at) = (Room::new(size), data.as_ptr().cast());
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
                    let mut bucket = Room::new(size_of::<qkv_bucket>());
                    let at: *mut qkv_bucket = bucket.at();
                    assert_eq!(qkv_serving_bucket(handle, place, at), QKV_OK, "{}", last());
                    let holds = (*at).batch >= sequences && (*at).queries >= queries && (*at).keys >= keys;
                    assert!(holds, "{:?} holds {sequences} sequences, {queries} queries and {keys} keys", *at);
                }
            }
            21 => {
                let (handle, place) = (program.any(), program.number() as usize);
                let size = 8 + place % 90;
                let mut room = Room::new(size);
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
                let own = |held: &Held| {
                    let its = match held {
                        Held::Attention(_) => 0,
                        Held::Serving(_) => 1,
                        Held::Oracle(..) => 2,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs that fail at their first call would try nothing.
    #[test]
    fn what_changes_begin_with_goes_well() {
        for (place, seed) in seeds().iter().enumerate() {
            let mut program = Program { rest: seed, held: Vec::new(), ended: [0; 16] };
            let mut calls = 0;
            while !program.rest.is_empty() {
                let left = program.rest.len();
                // SAFETY: the module says what is kept of a caller's promises.
                unsafe { call(&mut program) };
                assert!(program.rest.len() < left);
                calls += 1;
            }
            let well = program.ended[QKV_OK as usize];
            assert!(well * 3 > calls * 2, "program {place}: {well} of {calls} calls go well: {}", last());
        }
    }
}
