//! XLA's typed FFI, as far as it is used: declared by hand after `xla/ffi/api/c_api.h`, for version 0.1 of its API.
//!
//! jaxlib 0.6 to 0.12 have these layouts. What later versions moved (states, `Error_GetMessage`) is not used, so that
//! one library serves all of them.

use std::ffi::{c_char, c_int, c_void};

/// The version that is declared: the lowest that every jaxlib takes.
pub(super) const VERSION: (c_int, c_int) = (0, 1);

/// An error of XLA.
pub(super) enum XlaError {}
/// What a call runs on.
pub(super) enum ExecutionContext {}

#[repr(C)]
pub(super) struct Extension {
    pub(super) struct_size: usize,
    pub(super) kind: c_int,
    pub(super) next: *mut Extension,
}

/// The kind of the extension that asks a handler what it is.
pub(super) const METADATA: c_int = 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ApiVersion {
    pub(super) struct_size: usize,
    pub(super) extension: *mut Extension,
    pub(super) major: c_int,
    pub(super) minor: c_int,
}

#[repr(C)]
pub(super) struct ByteSpan {
    pub(super) at: *const c_char,
    pub(super) len: usize,
}

#[repr(C)]
pub(super) struct Scalar {
    pub(super) dtype: c_int,
    pub(super) value: *const c_void,
}

#[repr(C)]
pub(super) struct Array {
    pub(super) dtype: c_int,
    pub(super) size: usize,
    pub(super) data: *const c_void,
}

/// A dense array in row-major order.
#[repr(C)]
pub(super) struct FfiBuffer {
    pub(super) struct_size: usize,
    pub(super) extension: *mut Extension,
    pub(super) dtype: c_int,
    pub(super) data: *mut c_void,
    pub(super) rank: i64,
    pub(super) dims: *const i64,
}

/// `XLA_FFI_Args` and `XLA_FFI_Rets`, which have one form.
#[repr(C)]
pub(super) struct FfiOperands {
    pub(super) struct_size: usize,
    pub(super) extension: *mut Extension,
    pub(super) size: i64,
    pub(super) types: *const c_int,
    pub(super) operands: *const *mut FfiBuffer,
}

#[repr(C)]
pub(super) struct Attrs {
    pub(super) struct_size: usize,
    pub(super) extension: *mut Extension,
    pub(super) size: i64,
    pub(super) types: *const c_int,
    pub(super) names: *const *const ByteSpan,
    pub(super) attrs: *const *const c_void,
}

/// Kinds of attributes.
pub(super) const ARRAY: c_int = 1;
pub(super) const SCALAR: c_int = 3;
pub(super) const STRING: c_int = 4;

#[repr(C)]
pub struct CallFrame {
    pub(super) struct_size: usize,
    pub(super) extension: *mut Extension,
    pub(super) api: *const Api,
    pub(super) context: *mut ExecutionContext,
    pub(super) stage: c_int,
    pub(super) args: FfiOperands,
    pub(super) rets: FfiOperands,
    pub(super) attrs: Attrs,
    pub(super) future: *mut c_void,
}

/// The stage before the first execution, with a stream and before anything is captured.
#[cfg(test)]
pub(super) const INITIALIZE: c_int = 2;
#[cfg(test)]
pub(super) const EXECUTE: c_int = 3;

/// What a handler is. Its `struct_size` ends with `traits` in every version.
#[repr(C)]
pub(super) struct Metadata {
    pub(super) struct_size: usize,
    pub(super) api_version: ApiVersion,
    pub(super) traits: u32,
    /// Exists since version 0.2; the `api` of the call tells the version.
    pub(super) state_type: i64,
}

/// A trait of handlers: each call launches the same operations, which may be captured and replayed.
pub(super) const COMMAND_BUFFER_COMPATIBLE: u32 = 1;

#[repr(C)]
pub(super) struct MetadataExtension {
    pub(super) base: Extension,
    pub(super) metadata: *mut Metadata,
}

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(super) struct $name {
            pub(super) struct_size: usize,
            pub(super) extension: *mut Extension,
            $(pub(super) $field: $ty,)+
        }
    )+};
}

arguments! {
    ErrorCreate { message: *const c_char, code: c_int }
    /// Before version 0.4 the function that takes it writes no code.
    ErrorDetails { error: *mut XlaError, message: *const c_char, code: c_int }
    ErrorDestroy { error: *mut XlaError }
    StreamGet { context: *mut ExecutionContext, stream: *mut c_void }
    OrdinalGet { context: *mut ExecutionContext, ordinal: i32 }
}

/// A struct's size up to the end of its last field, which is what `struct_size` is where that is an `int`.
pub(super) const TAIL: usize = 4;

type FfiFunction<A> = Option<unsafe extern "C" fn(*mut A) -> *mut XlaError>;
type UnusedFunction = *const c_void;

/// XLA's functions. Later versions have more at the end.
#[repr(C)]
pub(super) struct Api {
    pub(super) struct_size: usize,
    pub(super) extension: *mut Extension,
    pub(super) version: ApiVersion,
    pub(super) internal: UnusedFunction,
    pub(super) error_create: FfiFunction<ErrorCreate>,
    pub(super) error_details: Option<unsafe extern "C" fn(*mut ErrorDetails)>,
    pub(super) error_destroy: FfiFunction<ErrorDestroy>,
    pub(super) handler_register: UnusedFunction,
    pub(super) stream_get: FfiFunction<StreamGet>,
    pub(super) type_register: UnusedFunction,
    pub(super) context_get: UnusedFunction,
    pub(super) state_set: UnusedFunction,
    pub(super) state_get: UnusedFunction,
    pub(super) memory_allocate: UnusedFunction,
    pub(super) memory_free: UnusedFunction,
    pub(super) pool_schedule: UnusedFunction,
    pub(super) pool_threads: UnusedFunction,
    pub(super) future_create: UnusedFunction,
    pub(super) future_available: UnusedFunction,
    pub(super) future_error: UnusedFunction,
    pub(super) run_id: UnusedFunction,
    pub(super) ordinal_get: FfiFunction<OrdinalGet>,
}
