//! Call frames: attributes by name, buffers by place, and what XLA tells about a call.

use std::ffi::{CStr, c_int, c_void};

use qkvault::graph::DType;

use super::abi;
use crate::status::{CallFailure, QKV_ERROR_INTERNAL};

/// The frame of one call.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a>(&'a abi::CallFrame);

/// One argument or result: memory with the shape of an array in row-major order.
#[derive(Clone, Copy)]
pub(super) struct FrameMemory<'a> {
    pub(super) dtype: c_int,
    pub(super) dims: &'a [i64],
    pub(super) at: *mut c_void,
}

/// XLA's number of an element type.
pub(super) const fn code(dtype: DType) -> c_int {
    match dtype {
        DType::Bool => 1,
        DType::I32 => 4,
        DType::I64 => 5,
        DType::U8 => 6,
        DType::F16 => 10,
        DType::F32 => 11,
        DType::BF16 => 16,
        DType::E5M2 => 19,
        DType::E4M3 => 20,
        DType::E8M0 => 33,
    }
}

/// XLA's number of float64.
const F64: c_int = 12;
/// XLA's number of a 32-bit integer.
const S32: c_int = 4;
/// XLA's number of a 32-bit integer without a sign.
pub(super) const U32: c_int = 8;

/// What XLA says about a call outside the frame.
fn told(text: &str) -> CallFailure {
    CallFailure::new(QKV_ERROR_INTERNAL, format!("XLA's call cannot be read: {text}"))
}

impl<'a> Frame<'a> {
    /// # Safety
    ///
    /// The frame must be one of XLA's, whose lists are as long as they say and live as long as the result.
    pub(super) const unsafe fn new(frame: &'a abi::CallFrame) -> Frame<'a> {
        Frame(frame)
    }

    /// An attribute's kind and address.
    fn attribute(self, name: &str) -> Result<(c_int, *const c_void), CallFailure> {
        let attrs = &self.0.attrs;
        let count = usize::try_from(attrs.size).unwrap_or(0);
        let found = (0..count).find(|&at| {
            // SAFETY: lists of `size` elements that live as long as the frame (`Frame::new`).
            let span = unsafe { &**attrs.names.add(at) };
            // SAFETY: as above.
            span.len == name.len() && unsafe { list(span.at.cast::<u8>(), span.len) } == name.as_bytes()
        });
        let lacking = || CallFailure::argument(format!("the call has no attribute {name}; make it with qkvault.jax"));
        // SAFETY: as above.
        found.map(|at| unsafe { (*attrs.types.add(at), *attrs.attrs.add(at)) }).ok_or_else(lacking)
    }

    /// An attribute of text.
    pub(super) fn text(self, name: &str) -> Result<&'a str, CallFailure> {
        let (abi::STRING, at) = self.attribute(name)? else {
            return Err(CallFailure::argument(format!(
                "the attribute {name} is no text; make the call with qkvault.jax"
            )));
        };
        // SAFETY: an attribute of this kind is a span.
        let span = unsafe { &*at.cast::<abi::ByteSpan>() };
        // SAFETY: the span's bytes live as long as the frame.
        let bytes = unsafe { list(span.at.cast::<u8>(), span.len) };
        std::str::from_utf8(bytes).map_err(|error| CallFailure::argument(format!("{name} is not UTF-8: {error}")))
    }

    /// An attribute that is a list of float64.
    pub(super) fn numbers(self, name: &str) -> Result<&'a [f64], CallFailure> {
        let wrong = || CallFailure::argument(format!("the attribute {name} is no list of float64"));
        let (abi::ARRAY, at) = self.attribute(name)? else { return Err(wrong()) };
        // SAFETY: an attribute of this kind is an array.
        let array = unsafe { &*at.cast::<abi::Array>() };
        let data = array.data.cast::<f64>();
        if array.dtype != F64 || !data.is_aligned() {
            return Err(wrong());
        }
        // SAFETY: aligned, and so long.
        Ok(unsafe { list(data, array.size) })
    }

    /// An attribute that is one 32-bit integer.
    pub(super) fn integer(self, name: &str) -> Result<i32, CallFailure> {
        let wrong = || CallFailure::argument(format!("the attribute {name} is no 32-bit integer"));
        let (abi::SCALAR, at) = self.attribute(name)? else { return Err(wrong()) };
        // SAFETY: an attribute of this kind is a scalar.
        let scalar = unsafe { &*at.cast::<abi::Scalar>() };
        // SAFETY: its type says what it is.
        if scalar.dtype == S32 { Ok(unsafe { scalar.value.cast::<i32>().read_unaligned() }) } else { Err(wrong()) }
    }

    /// The arguments.
    pub(super) fn arguments(self) -> impl ExactSizeIterator<Item = FrameMemory<'a>> {
        memories(&self.0.args)
    }

    /// The results.
    pub(super) fn results(self) -> impl ExactSizeIterator<Item = FrameMemory<'a>> {
        memories(&self.0.rets)
    }

    /// The CUDA stream of the call.
    pub(super) fn stream(self) -> Result<*mut c_void, CallFailure> {
        let (extension, context, stream) = (std::ptr::null_mut(), self.0.context, std::ptr::null_mut());
        let mut asked = abi::StreamGet { struct_size: size_of::<abi::StreamGet>(), extension, context, stream };
        let ask = self.api()?.stream_get.ok_or_else(|| told("it has no function for streams"))?;
        // SAFETY: XLA's function with its arguments.
        self.taken(unsafe { ask(&raw mut asked) })?;
        Ok(asked.stream)
    }

    /// CUDA's ordinal of the GPU of the call.
    pub(super) fn ordinal(self) -> Result<i32, CallFailure> {
        let struct_size = size_of::<abi::OrdinalGet>() - abi::TAIL;
        let (extension, context) = (std::ptr::null_mut(), self.0.context);
        let mut asked = abi::OrdinalGet { struct_size, extension, context, ordinal: -1 };
        let ask = self.api()?.ordinal_get.ok_or_else(|| told("it has no function for devices"))?;
        // SAFETY: XLA's function with its arguments.
        self.taken(unsafe { ask(&raw mut asked) })?;
        Ok(asked.ordinal)
    }

    fn api(self) -> Result<&'a abi::Api, CallFailure> {
        // SAFETY: null, or XLA's functions, which live as long as the process.
        unsafe { self.0.api.as_ref() }.ok_or_else(|| told("it has no functions"))
    }

    /// Destroys an error of XLA and gives its text.
    fn taken(self, error: *mut abi::XlaError) -> Result<(), CallFailure> {
        if error.is_null() {
            return Ok(());
        }
        let api = self.api()?;
        let (extension, message) = (std::ptr::null_mut(), std::ptr::null());
        let struct_size = size_of::<abi::ErrorDetails>() - abi::TAIL;
        let mut details = abi::ErrorDetails { struct_size, extension, error, message, code: 0 };
        let mut destroy = abi::ErrorDestroy { struct_size: size_of::<abi::ErrorDestroy>(), extension, error };
        let (Some(ask), Some(free)) = (api.error_details, api.error_destroy) else {
            return Err(told("it fails, and has no functions for errors"));
        };
        // SAFETY: XLA's functions; the error is ours to read and to destroy, and its text is copied before.
        unsafe {
            ask(&raw mut details);
            let text = match details.message.is_null() {
                true => "without a message".into(),
                false => CStr::from_ptr(details.message).to_string_lossy().into_owned(),
            };
            free(&raw mut destroy);
            Err(told(&text))
        }
    }
}

/// # Safety
///
/// `at` must point to `len` values, which live as long as the result; it may be anything if there are none.
const unsafe fn list<'a, T>(at: *const T, len: usize) -> &'a [T] {
    match len == 0 || at.is_null() {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { std::slice::from_raw_parts(at, len) },
    }
}

fn memories<'a>(operands: &'a abi::FfiOperands) -> impl ExactSizeIterator<Item = FrameMemory<'a>> {
    // SAFETY: `Frame::new`; every operand is a buffer, of which there is only this kind.
    let buffers = unsafe { list(operands.operands, usize::try_from(operands.size).unwrap_or(0)) };
    buffers.iter().map(|&buffer| {
        // SAFETY: as above.
        let buffer = unsafe { &*buffer };
        // SAFETY: as many dims as the rank says.
        let dims = unsafe { list(buffer.dims, usize::try_from(buffer.rank).unwrap_or(0)) };
        FrameMemory { dtype: buffer.dtype, dims, at: buffer.data }
    })
}
