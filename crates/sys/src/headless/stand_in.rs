//! Loads the embedded stand-in into the process, and distinguishes it from a driver.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};
use std::path::PathBuf;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::{SONAME, StandInError};

/// The stand-in, as `build.rs` compiled it; empty on systems other than Linux.
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libcuda.so.1"));

/// The function that only the stand-in exports.
const MARKER: &str = "qkvault_headless_standin";

/// Opens a library and never closes it.
fn open(name: &OsStr, more: i32) -> Result<ManuallyDrop<Library>, libloading::Error> {
    // SAFETY: the library is the NVIDIA driver, whose initialisers are as safe as linking to it, or the stand-in, which
    // has no initialisers.
    unsafe { Library::open(Some(name), RTLD_NOW | more) }.map(ManuallyDrop::new)
}

/// Whether the loader already has (`loaded_only`) or can load a `libcuda.so.1`. A library loaded here stays loaded.
pub(crate) fn open_by_name(loaded_only: bool) -> bool {
    open(OsStr::new(SONAME), if loaded_only { libc::RTLD_NOLOAD } else { 0 }).is_ok()
}

/// Whether the loaded `libcuda.so.1` exports the marker function.
pub(crate) fn has_marker() -> bool {
    open(OsStr::new(SONAME), libc::RTLD_NOLOAD).is_ok_and(|library| {
        // SAFETY: the symbol is looked up and never called.
        unsafe { library.get::<unsafe extern "C" fn() -> i32>(MARKER) }.is_ok()
    })
}

/// Loads the stand-in from an anonymous file in memory, or from a temporary file if there is no `/proc`.
pub(crate) fn load() -> Result<(), StandInError> {
    if BYTES.is_empty() {
        return Err(StandInError::Unsupported);
    }
    let from_memory = in_memory().and_then(|file| {
        // The descriptor stays open. The loader knows the library by this path: if the number were reused, the loader
        // would take the new file for this library.
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.into_raw_fd()));
        open(path.as_os_str(), RTLD_GLOBAL).map_err(|error| std::io::Error::other(qkvault_base::with_sources(&error)))
    });
    match from_memory {
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::debug!("the stand-in could not be loaded from memory ({error}), trying a file");
            from_file()
        }
    }
}

fn in_memory() -> std::io::Result<File> {
    // SAFETY: the name ends with a NUL; the result is a new descriptor or -1.
    let descriptor = unsafe { libc::memfd_create(c"libcuda.so.1".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(BYTES)?;
    Ok(file)
}

fn from_file() -> Result<(), StandInError> {
    let write = |reason| StandInError::Write { reason };
    // Only the owner can read the file, its name is unpredictable, and it is removed as soon as it is mapped.
    let mut file = tempfile::Builder::new().prefix("libcuda.so.1-").tempfile().map_err(write)?;
    file.write_all(BYTES).map_err(write)?;
    file.flush().map_err(write)?;
    open(file.path().as_os_str(), RTLD_GLOBAL)
        .map(drop)
        .map_err(|error| StandInError::Open { reason: qkvault_base::with_sources(&error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other test runs without `/proc`, so this one calls the fallback directly.
    #[test]
    fn a_private_file_serves_where_memory_does_not() {
        if open_by_name(false) {
            return;
        }
        from_file().expect("the temporary folder can be written");
        assert!(has_marker());
    }
}
