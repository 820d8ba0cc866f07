//! A stand-in for `libcuda.so.1`, so that cuDNN can compile plans on a machine with no NVIDIA driver.
//!
//! cuDNN compiles without a GPU when it is given a device's properties, but it wants a driver library in the process:
//! newer ones do not even load without it. [`ensure`] looks for a driver and, only if there is none, loads a library
//! that this crate carries inside. Any later look-up of `libcuda.so.1` in the process finds it. Loading and looking at
//! compiled kernels succeeds there; everything else answers that there is no device.
//!
//! A crate that compiles plans only has to depend on this one and call [`ensure`] before cuDNN is first used. Processes
//! that are to run plans do not call it: they want the reason why there is no driver, and [`is_stand_in_loaded`] tells
//! them if it is this.
//!
//! It rests on a rule of the GNU dynamic loader: a library that is loaded serves every later request for its SONAME,
//! from wherever it was loaded.

#![warn(clippy::missing_errors_doc, clippy::must_use_candidate)]

mod stand_in;

use std::sync::Mutex;
use std::sync::PoisonError;

use thiserror::Error;

/// The name under which everything looks for the driver.
const SONAME: &str = "libcuda.so.1";

/// What serves `libcuda.so.1` in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Driver {
    /// An NVIDIA driver; it was not touched.
    Real,
    /// The stand-in: plans can be compiled, nothing can run.
    StandIn,
}

/// Why there is neither a driver nor a stand-in.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The stand-in exists for Linux only, as cuDNN's runtime-compiled engines do.
    #[error("no libcuda.so.1 was found, and the stand-in for it exists for Linux only; compile plans on Linux")]
    Unsupported,
    /// The bytes of the stand-in could not be put where the dynamic loader takes them from.
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

/// Makes sure that this process has the stand-in, also on a machine with a driver: for processes that only compile.
/// With a driver in the process, cuDNN asks it for the kernels that it has compiled, and a GPU's driver has none for
/// another GPU.
///
/// A driver that the process has loaded already stays, and is returned; so call this first. Nothing can run in this
/// process afterwards.
///
/// # Errors
///
/// [`enum@Error`] if the system has no stand-in, or it cannot be written or loaded.
pub fn force_stub_driver() -> Result<Driver, Error> {
    once(|| if stand_in::open_by_name(true) { Ok(loaded()) } else { stand_in::load().map(|()| Driver::StandIn) })
}

static ENSURED: Mutex<Option<Driver>> = Mutex::new(None);

/// Makes sure that this process has a `libcuda.so.1`: the driver's if there is one, else the stand-in.
///
/// It does its work once per process; after a failure the next call tries again. Threads that call at the same time
/// wait for the first.
///
/// # Errors
///
/// [`enum@Error`] if there is no driver and no stand-in, or the stand-in cannot be written or loaded.
pub fn ensure() -> Result<Driver, Error> {
    once(|| {
        if stand_in::open_by_name(true) || stand_in::open_by_name(false) {
            return Ok(loaded());
        }
        stand_in::load()?;
        tracing::debug!("no {SONAME} found: a stand-in is loaded, plans can be compiled and not run");
        Ok(Driver::StandIn)
    })
}

/// Runs `find` once and caches its result.
fn once(find: impl FnOnce() -> Result<Driver, Error>) -> Result<Driver, Error> {
    let mut ensured = ENSURED.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = ensured.map_or_else(find, Ok)?;
    *ensured = Some(driver);
    Ok(driver)
}

/// Which one the process has loaded. Another copy of this crate in it (a plugin's) may have loaded its own stand-in.
fn loaded() -> Driver {
    if is_stand_in_loaded() { Driver::StandIn } else { Driver::Real }
}

/// Whether the `libcuda.so.1` of this process is a stand-in, loaded by this crate or by another copy of it. Loads
/// nothing.
#[must_use]
pub fn is_stand_in_loaded() -> bool {
    stand_in::has_marker()
}
