//! The driver's library: whether there is one, and the kind of memory at an address.
//!
//! cudarc panics when it cannot load the driver, so this module looks for the driver first. It does not use cudarc's
//! check, which exists only for one of its ways of linking, and another crate of the program may choose another. The
//! stand-in with which plans are compiled does not count as a driver.

use std::ffi::{c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;

use libloading::Library;
use qkvault_base::Unloaded;

pub(crate) mod words;

/// The name by which cuDNN and cudarc load the driver.
const SONAME: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// Why there is no driver to run plans with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDriver {
    /// The dynamic loader finds no driver.
    #[error(
        "there is no NVIDIA driver here: {SONAME} cannot be loaded ({detail}). Plans can be compiled on this machine \
         (`qkvault warm`); to run them use a machine where `nvidia-smi` lists a GPU, and start a container with the \
         NVIDIA runtime (`--gpus all`)"
    )]
    Absent {
        /// The error of the dynamic loader.
        detail: String,
    },
    /// A library of that name is there and does not load.
    #[error(
        "the NVIDIA driver here cannot be used: {detail}. Install the driver again, in a container use the NVIDIA \
         runtime (`--gpus all`), and take folders with other files of this name out of LD_LIBRARY_PATH"
    )]
    NotLoaded {
        /// The file or name, and the error of the dynamic loader.
        detail: String,
    },
    /// The process has loaded the stand-in with which plans are compiled.
    #[error(
        "there is no NVIDIA driver here: the {SONAME} of this process is qkvault's stand-in, which compiles plans and \
         runs none. To run them use a machine where `nvidia-smi` lists a GPU"
    )]
    StandIn,
}

/// Checks that there is a driver. Initialises nothing; the library stays loaded.
///
/// # Errors
///
/// [`NoDriver`] without a driver; it never panics.
pub fn driver() -> Result<(), NoDriver> {
    if qkvault_sys::headless::is_stand_in_loaded() {
        return Err(NoDriver::StandIn);
    }
    open().map(|_| ())
}

/// The driver's library, opened once and never closed.
pub(crate) fn open() -> Result<&'static Library, NoDriver> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    // SAFETY: the driver's initialisers are as safe as linking to it.
    let opened = unsafe { Library::new(SONAME) };
    let library = opened.map_err(|error| {
        let why = Unloaded::new(Path::new(SONAME), &error);
        let detail = why.to_string();
        if why.is_there() { NoDriver::NotLoaded { detail } } else { NoDriver::Absent { detail } }
    })?;
    Ok(LIBRARY.get_or_init(|| library))
}

/// The kind of memory at an address, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Memory of this GPU (CUDA's ordinal).
    Device(i32),
    /// Managed memory, which CUDA moves between host and GPUs.
    Managed,
    /// Page-locked host memory.
    PinnedHost,
    /// Memory that CUDA did not allocate or register: ordinary host memory, or no memory.
    Unregistered,
    /// There is no driver, or it returned an error.
    Unknown,
}

type PointerGetAttributes = unsafe extern "C" fn(c_uint, *mut c_uint, *mut *mut c_void, u64) -> c_int;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `_IS_MANAGED` and `_DEVICE_ORDINAL` of the driver API.
const ATTRIBUTES: [c_uint; 3] = [2, 8, 9];
const MEMORYTYPE_HOST: c_uint = 1;
const MEMORYTYPE_DEVICE: c_uint = 2;

/// The kind of memory at an address. The call into the driver takes a fraction of a microsecond.
#[must_use]
pub fn memory_kind(address: u64) -> MemoryKind {
    static FUNCTION: OnceLock<Option<PointerGetAttributes>> = OnceLock::new();
    let function = FUNCTION.get_or_init(|| {
        let library = open().ok()?;
        // SAFETY: every driver of CUDA 7 or later has this function with this signature.
        unsafe { library.get::<PointerGetAttributes>("cuPointerGetAttributes") }.ok().map(|f| *f)
    });
    let Some(function) = function else { return MemoryKind::Unknown };
    let mut attributes = ATTRIBUTES;
    let (mut kind, mut managed, mut ordinal): (c_uint, c_uint, c_int) = (0, 0, -2);
    let mut values =
        [(&raw mut kind).cast::<c_void>(), (&raw mut managed).cast::<c_void>(), (&raw mut ordinal).cast::<c_void>()];
    // SAFETY: three attributes and three places, each at least as large as its attribute; the address is not followed.
    let status = unsafe { function(3, attributes.as_mut_ptr(), values.as_mut_ptr(), address) };
    match (status, kind) {
        // Sources differ on whether the flag is one byte or one word: any bit of it means yes.
        (0, _) if managed != 0 => MemoryKind::Managed,
        (0, MEMORYTYPE_DEVICE) => MemoryKind::Device(ordinal),
        (0, MEMORYTYPE_HOST) => MemoryKind::PinnedHost,
        (0, _) => MemoryKind::Unregistered,
        _ => MemoryKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_an_address_is_unknown_not_a_crash() {
        if driver().is_err() {
            assert_eq!(memory_kind(0x1000), MemoryKind::Unknown);
        }
    }
}
