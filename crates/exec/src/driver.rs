//! The driver's library: whether there is one, and the one question that binding asks it (what kind of memory is at an address).
//!
//! cudarc panics when it cannot load the driver, so this is asked first, and by our own means: cudarc's check exists only under one of its
//! ways of linking, and another crate of the program may have chosen another. A stand-in that compiles plans is no driver.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// The name under which cuDNN and cudarc find the driver.
const SONAME: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// Why nothing can run here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDriver {
    /// The loader finds no driver.
    #[error(
        "there is no NVIDIA driver here: {SONAME} cannot be loaded ({detail}). Plans can be compiled on this machine (`qkvault warm`), but \
         to run them use a machine where `nvidia-smi` lists a GPU; in a container, start it with the NVIDIA runtime (`--gpus all`)"
    )]
    Absent {
        /// The loader's reason.
        detail: String,
    },
    /// What is loaded is the library that stands in for a driver while plans are compiled.
    #[error(
        "there is no NVIDIA driver here: the {SONAME} of this process is qkvault's stand-in, with which plans are compiled and nothing can \
         run. To run them use a machine where `nvidia-smi` lists a GPU"
    )]
    StandIn,
}

/// Says whether there is a driver. Initialises nothing; the library stays loaded.
///
/// # Errors
///
/// [`NoDriver`]. Never a panic.
pub fn driver() -> Result<(), NoDriver> {
    if qkvault_headless::is_stand_in_loaded() {
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
    let library = opened.map_err(|error| NoDriver::Absent { detail: qkvault_base::with_sources(&error) })?;
    Ok(LIBRARY.get_or_init(|| library))
}

/// What an address points to, as far as the driver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Memory of this GPU (CUDA's ordinal).
    Device(i32),
    /// Managed memory, which moves between host and GPUs by itself.
    Managed,
    /// Page-locked host memory.
    PinnedHost,
    /// Nothing that CUDA allocated or registered: ordinary host memory, or no memory at all.
    Unregistered,
    /// The driver could not be asked.
    Unknown,
}

type PointerGetAttributes = unsafe extern "C" fn(c_uint, *mut c_uint, *mut *mut c_void, u64) -> c_int;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `_IS_MANAGED` and `_DEVICE_ORDINAL` of the driver API.
const ATTRIBUTES: [c_uint; 3] = [2, 8, 9];
const MEMORYTYPE_HOST: c_uint = 1;
const MEMORYTYPE_DEVICE: c_uint = 2;

/// Asks the driver what kind of memory is at an address; a fraction of a microsecond.
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
        // The flag is one byte or one word, depending on whom one reads: any bit of it means yes.
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
