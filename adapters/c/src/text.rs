//! Strings across the border: those of the caller are checked and copied or borrowed, ours are freed by the caller.

use std::ffi::{CStr, CString, c_char};

use qkvault_base::room_for;

use crate::sized::{list, put};
use crate::status::{CallFailure, c_string, guarded};

/// Most bytes of a text that the library reads.
const MOST: usize = 16 << 20;

/// Bytes of memory for each byte of a text, while it is read.
const EACH: usize = 20;

/// Bytes of a text from which on its memory is asked for before. Names of operands are shorter, and launches have them.
const LONG: usize = 1 << 12;

/// A text of the caller with its length.
///
/// # Safety
///
/// `at` must be null, or point to `length` readable bytes.
pub(crate) unsafe fn text<'a>(at: *const c_char, length: usize, what: &str) -> Result<&'a str, CallFailure> {
    if at.is_null() {
        return Err(CallFailure::argument(format!("{what} is null; give a text in UTF-8 and its length")));
    }
    taken(length, what)?;
    // SAFETY: the caller's promise.
    let bytes = unsafe { list(at.cast::<u8>(), length, what) }?;
    std::str::from_utf8(bytes).map_err(|error| CallFailure::argument(format!("{what} is not UTF-8: {error}")))
}

/// A text of the caller that ends with a null character.
///
/// # Safety
///
/// `at` must be null, or point to readable bytes up to a null character.
pub(crate) unsafe fn name<'a>(at: *const c_char, what: &str) -> Result<&'a str, CallFailure> {
    // SAFETY: the caller's promise.
    let given = unsafe { optional(at, what) }?;
    given.ok_or_else(|| CallFailure::argument(format!("{what} is null; give a text in UTF-8")))
}

/// A text of the caller that ends with a null character, if there is one.
///
/// # Safety
///
/// As for [`name`].
pub(crate) unsafe fn optional<'a>(at: *const c_char, what: &str) -> Result<Option<&'a str>, CallFailure> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let given = unsafe { CStr::from_ptr(at) };
    taken(given.count_bytes(), what)?;
    given.to_str().map(Some).map_err(|error| CallFailure::argument(format!("{what} is not UTF-8: {error}")))
}

/// Checks the length of a text, and that there is room for what is made of it.
fn taken(length: usize, what: &str) -> Result<(), CallFailure> {
    if length > MOST {
        return Err(CallFailure::argument(format!("{what} has {length} bytes, and at most {MOST} are read")));
    }
    if length > LONG { Ok(room_for((length * EACH) as u64)?) } else { Ok(()) }
}

/// Gives a text to the caller, who frees it with `qkv_string_free`.
///
/// # Safety
///
/// `place` must be null or writable.
pub(crate) unsafe fn give_text(place: *mut *mut c_char, text: String) -> Result<(), CallFailure> {
    let text = c_string(text).into_raw();
    // SAFETY: the caller's promise.
    let given = unsafe { put(place, text, "the text") };
    if given.is_err() {
        // SAFETY: made above, and nobody has it.
        drop(unsafe { CString::from_raw(text) });
    }
    given
}

/// Frees a text that a function of this library gave. Null is no error. Any thread may free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_string_free(text: *mut c_char) -> i32 {
    guarded(|| {
        if !text.is_null() {
            // SAFETY: the caller promises that `give_text` made it.
            drop(unsafe { CString::from_raw(text) });
        }
        Ok(())
    })
}
