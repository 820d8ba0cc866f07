//! A stand-in for `libcuda.so.1`, so that cuDNN can compile plans on a machine with no NVIDIA driver.
//!
//! cuDNN compiles without a GPU when it is given a device's properties, but it needs a driver library in the process;
//! newer versions do not even load without one. [`ensure`] looks for a driver. If there is none, it loads a library
//! that is embedded in this crate, and every later look-up of `libcuda.so.1` in the process finds that library. Its
//! functions for loading and inspecting compiled kernels succeed; all others return `CUDA_ERROR_NO_DEVICE`.
//!
//! A program that only compiles plans depends on this crate and calls [`ensure`] before it first uses cuDNN. A process
//! that runs plans must not call it: it needs the loader's error when there is no driver. [`is_stand_in_loaded`] tests
//! whether the process has a stand-in.
//!
//! This relies on a rule of the GNU dynamic loader: a loaded library serves every later request for its SONAME,
//! whatever path it was loaded from.

mod stand_in;

use std::sync::Mutex;
use std::sync::PoisonError;

/// The SONAME of NVIDIA's driver library.
const SONAME: &str = "libcuda.so.1";

/// What serves `libcuda.so.1` in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Driver {
    /// An NVIDIA driver, left as it is.
    Real,
    /// The stand-in: the process can compile plans but cannot run them.
    StandIn,
}

/// Why the process has neither a driver nor a stand-in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StandInError {
    /// The system is not Linux. The stand-in exists only for Linux, as do cuDNN's runtime-compiled engines.
    #[error("no libcuda.so.1 was found, and the stand-in for it exists for Linux only; compile plans on Linux")]
    Unsupported,
    /// The stand-in could not be written to memory or to a temporary file.
    #[error(
        "no libcuda.so.1 was found, and the stand-in for it could not be written: {reason}; set TMPDIR to a folder that can be written"
    )]
    Write {
        /// The system's reason.
        reason: std::io::Error,
    },
    /// The dynamic loader refused the stand-in.
    #[error(
        "no libcuda.so.1 was found, and the stand-in for it could not be loaded ({reason}); if /proc is not mounted, set TMPDIR to a folder on \
         a file system that allows execution"
    )]
    Open {
        /// The loader's reason.
        reason: String,
    },
}

/// Loads the stand-in even on a machine with a driver, for processes that only compile.
///
/// If the process has a driver, cuDNN asks it for every kernel that it compiles, and the driver has no kernel for a GPU
/// of another kind. If the process has already loaded a driver, that driver stays and [`Driver::Real`] is returned, so
/// call this first. A process with the stand-in cannot run anything.
///
/// # Errors
///
/// [`StandInError`] if the stand-in does not exist for this system, or cannot be written or loaded.
pub fn force_stub_driver() -> Result<Driver, StandInError> {
    once(|| if stand_in::open_by_name(true) { Ok(loaded()) } else { stand_in::load().map(|()| Driver::StandIn) })
}

static ENSURED: Mutex<Option<Driver>> = Mutex::new(None);

/// Loads the driver's `libcuda.so.1` if there is one, and otherwise the stand-in.
///
/// A success is cached for the life of the process; after a failure the next call tries again. Concurrent callers wait
/// for the first one.
///
/// # Errors
///
/// [`StandInError`] if there is no driver, and the stand-in does not exist for this system or cannot be written or
/// loaded.
pub fn ensure() -> Result<Driver, StandInError> {
    once(|| {
        if stand_in::open_by_name(true) || stand_in::open_by_name(false) {
            return Ok(loaded());
        }
        stand_in::load()?;
        tracing::debug!("no {SONAME} found: a stand-in is loaded, plans can be compiled and not run");
        Ok(Driver::StandIn)
    })
}

/// Runs `find` and caches its result; a failure is not cached.
fn once(find: impl FnOnce() -> Result<Driver, StandInError>) -> Result<Driver, StandInError> {
    let mut ensured = ENSURED.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = ensured.map_or_else(find, Ok)?;
    *ensured = Some(driver);
    Ok(driver)
}

/// Which library is loaded. Another copy of this crate (in a plugin, for example) may have loaded its own stand-in.
fn loaded() -> Driver {
    if is_stand_in_loaded() { Driver::StandIn } else { Driver::Real }
}

/// Whether the `libcuda.so.1` of this process is a stand-in, loaded by this crate or by another copy of it. This
/// function loads nothing.
#[must_use]
pub fn is_stand_in_loaded() -> bool {
    stand_in::has_marker()
}
