//! The versions of the interface and of the library.

use std::ffi::c_char;

use crate::sized::{Grows, write};
use crate::status::guarded;

/// The major version of the interface. Another one is another library, with another soname.
pub const QKV_ABI_MAJOR: u32 = 1;
/// The minor version of the interface: it goes up with every function and field that is added.
pub const QKV_ABI_MINOR: u32 = 2;

/// Versions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_version_info {
    /// Set this to `sizeof(qkv_version_info)`.
    pub struct_size: usize,
    /// `QKV_ABI_MAJOR` of the library.
    pub abi_major: u32,
    /// `QKV_ABI_MINOR` of the library.
    pub abi_minor: u32,
    /// The library's version as text, such as `0.1.0`. It is always valid.
    pub version: *const c_char,
}

// SAFETY: numbers and a pointer.
unsafe impl Grows for qkv_version_info {
    const LEAST: usize = std::mem::offset_of!(qkv_version_info, version);
    const NAME: &'static str = "qkv_version_info";
}

/// Tells the versions of the library that is loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_version(info: *mut qkv_version_info) -> i32 {
    guarded(|| {
        let version = concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast();
        let own = qkv_version_info { struct_size: 0, abi_major: QKV_ABI_MAJOR, abi_minor: QKV_ABI_MINOR, version };
        // SAFETY: the caller's pointer is null or to a `qkv_version_info` with its size.
        unsafe { write(info, own) }
    })
}
