//! The program that an input is, with the handles that live, and memory that tells what a call wrote.

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

use qkvault_c::describe::{qkv_attention, qkv_attention_operand, qkv_attention_operand_count};
use qkvault_c::operand::qkv_operand;
use qkvault_c::oracle::qkv_oracle;
use qkvault_c::serving::qkv_serving;
use qkvault_c::status::{QKV_ERROR_ARGUMENT, QKV_ERROR_PARSE, QKV_ERROR_REFUSED, QKV_OK, qkv_error, qkv_last_error};

/// Most bytes of all operands of an attention that the oracle computes here: larger ones take as long as they take.
pub(super) const SMALL: u64 = 64 << 10;

/// A handle that lives.
#[derive(Clone, Copy)]
pub(super) enum LiveHandle {
    Attention(*mut qkv_attention),
    Serving(*mut qkv_serving),
    Oracle(*mut qkv_oracle, bool),
}

impl LiveHandle {
    pub(super) fn address(self) -> *mut c_void {
        match self {
            LiveHandle::Attention(at) => at.cast(),
            LiveHandle::Serving(at) => at.cast(),
            LiveHandle::Oracle(at, _) => at.cast(),
        }
    }
}

/// The rest of a program.
pub(super) struct CallProgram<'a> {
    pub(super) rest: &'a [u8],
    pub(super) held: Vec<LiveHandle>,
    /// How many calls ended with each status.
    pub(super) ended: [u32; 16],
}

/// What a struct of any size lies in: bytes that tell whether more than the size were written.
#[repr(align(16))]
pub(super) struct StructRoom([u8; 256]);

impl StructRoom {
    pub(super) fn new(size: usize) -> StructRoom {
        let mut room = StructRoom([0xa5; 256]);
        room.0[..size_of::<usize>()].copy_from_slice(&size.to_ne_bytes());
        room
    }

    pub(super) fn at<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }

    /// Checks that nothing behind the size was written.
    pub(super) fn check(&self, size: usize) {
        assert!(self.0[size.max(size_of::<usize>())..].iter().all(|byte| *byte == 0xa5), "written beyond {size} bytes");
    }
}

impl<'a> CallProgram<'a> {
    pub(super) fn byte(&mut self) -> u8 {
        let (first, rest) = self.rest.split_first().map_or((0, self.rest), |(first, rest)| (*first, rest));
        self.rest = rest;
        first
    }

    /// Bytes with a length of two bytes before them.
    pub(super) fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(u16::from_le_bytes([self.byte(), self.byte()])).min(self.rest.len());
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        bytes
    }

    /// A number, small ones as one byte.
    pub(super) fn number(&mut self) -> u64 {
        match self.byte() {
            0xff => (0..8).fold(0, |sum, _| sum << 8 | u64::from(self.byte())),
            0xfe => u64::MAX - u64::from(self.byte()),
            small => u64::from(small),
        }
    }

    /// A handle of any kind, or null.
    pub(super) fn any(&mut self) -> *mut c_void {
        let at = usize::from(self.byte());
        if at == 0 {
            null_mut()
        } else {
            self.held.get((at - 1) % self.held.len().max(1)).map_or(null_mut(), |h| h.address())
        }
    }

    /// A name of an operand.
    pub(super) fn name(&mut self) -> CString {
        const NAMES: [&str; 12] =
            ["q", "k", "v", "o", "stats", "scale", "scalar.0", "cap", "seq_len_q", "d_o", "d_q", "sink"];
        let at = usize::from(self.byte());
        match NAMES.get(at) {
            Some(name) => CString::new(*name).unwrap_or_default(),
            None => CString::new(self.bytes()).unwrap_or_default(),
        }
    }

    pub(super) fn ended(&mut self, status: i32) -> bool {
        let known = [QKV_OK, QKV_ERROR_ARGUMENT, QKV_ERROR_PARSE, QKV_ERROR_REFUSED].contains(&status);
        assert!(known, "status {status}: {}", last());
        self.ended[status as usize] += 1;
        status == QKV_OK
    }

    /// Notes a new handle, which is there exactly if the call went well.
    pub(super) fn made(&mut self, status: i32, handle: LiveHandle) {
        let made = self.ended(status);
        assert_eq!(made, !handle.address().is_null(), "a handle and no success, or the reverse");
        if made {
            self.held.push(handle);
        }
    }

    /// Whether a handle is an attention that is small enough to be computed.
    pub(super) fn is_small(&self, handle: *const c_void) -> bool {
        let attention = self.held.iter().find_map(|held| match held {
            LiveHandle::Attention(at) if at.cast_const().cast() == handle => Some(*at),
            _ => None,
        });
        let Some(attention) = attention else { return true };
        let (mut count, mut bytes) = (0, 0_u64);
        // SAFETY: a description that lives, and a place.
        unsafe { qkv_attention_operand_count(attention, &raw mut count) };
        for place in 0..count {
            let mut room = StructRoom::new(size_of::<qkv_operand>());
            let at: *mut qkv_operand = room.at();
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
pub(super) fn last() -> String {
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
