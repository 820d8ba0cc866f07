//! `libnccl.so.2`, loaded at run time: the functions that are used, declared by hand from NCCL's documentation.
//!
//! Nothing is linked, and a missing library or function is an error with what was tried. NCCL loads without a GPU.

use std::ffi::{CStr, OsString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use qkvault_base::{Unloaded, distrust_library, python_packages, python_prefixes};

use crate::comm::CommError;

/// The name under which NCCL 2 is installed; wheels have no other.
const NAME: &str = "libnccl.so.2";
/// The oldest version whose communicators take a configuration of the size used here.
const OLDEST: c_int = 21_800;
/// The variable that names the library or its folder.
const VARIABLE: &str = "QKVAULT_NCCL";

/// NCCL's handle of a communicator.
pub(super) type NcclHandle = *mut c_void;

/// The id that all ranks of a communicator share: rank 0 makes it, and the caller or a store carries it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct NcclId(pub [u8; 128]);

/// A configuration of NCCL 2.18. Newer libraries take its size and use their defaults for what they have added.
#[repr(C)]
pub(super) struct NcclConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl NcclConfig {
    /// Calls that return at once, and at most so many blocks for each kernel, which attention then cannot use.
    pub(super) const fn non_blocking(max_ctas: Option<u32>) -> NcclConfig {
        const UNSET: c_int = c_int::MIN;
        NcclConfig {
            size: size_of::<NcclConfig>(),
            magic: 0xcafe_beef,
            version: OLDEST as c_uint,
            blocking: 0,
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: match max_ctas {
                Some(most) => most as c_int,
                None => UNSET,
            },
            net_name: std::ptr::null(),
            split_share: UNSET,
        }
    }
}

/// A status of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct NcclStatus(pub(super) c_int);

impl NcclStatus {
    pub(super) const SUCCESS: NcclStatus = NcclStatus(0);
    pub(super) const IN_PROGRESS: NcclStatus = NcclStatus(7);
}

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $name:literal: fn($($arg:ty),*) $(-> $out:ty)?;)+) => {
        /// The functions.
        pub(super) struct NcclFunctions {
            $($(#[$doc])* pub(super) $field: unsafe extern "C" fn($($arg),*) $(-> $out)?,)+
        }

        impl NcclFunctions {
            /// # Safety
            ///
            /// The library is NCCL 2.
            unsafe fn from_library(library: &libloading::Library) -> Result<NcclFunctions, String> {
                Ok(NcclFunctions {
                    $($field: {
                        // SAFETY: the library is NCCL 2, whose function of this name has had this type since 2.18.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($arg),*) $(-> $out)?>($name) };
                        *found.map_err(|e| format!("it has no {} ({e})", String::from_utf8_lossy($name).trim_end_matches('\0')))?
                    },)+
                })
            }
        }
    };
}

functions! {
    version = b"ncclGetVersion\0": fn(*mut c_int) -> NcclStatus;
    unique_id = b"ncclGetUniqueId\0": fn(*mut NcclId) -> NcclStatus;
    init = b"ncclCommInitRankConfig\0": fn(*mut NcclHandle, c_int, NcclId, c_int, *mut NcclConfig) -> NcclStatus;
    finalize = b"ncclCommFinalize\0": fn(NcclHandle) -> NcclStatus;
    destroy = b"ncclCommDestroy\0": fn(NcclHandle) -> NcclStatus;
    abort = b"ncclCommAbort\0": fn(NcclHandle) -> NcclStatus;
    async_error = b"ncclCommGetAsyncError\0": fn(NcclHandle, *mut NcclStatus) -> NcclStatus;
    group_start = b"ncclGroupStart\0": fn() -> NcclStatus;
    group_end = b"ncclGroupEnd\0": fn() -> NcclStatus;
    send = b"ncclSend\0": fn(*const c_void, usize, c_int, c_int, NcclHandle, *mut c_void) -> NcclStatus;
    receive = b"ncclRecv\0": fn(*mut c_void, usize, c_int, c_int, NcclHandle, *mut c_void) -> NcclStatus;
    error_string = b"ncclGetErrorString\0": fn(NcclStatus) -> *const c_char;
    last_error = b"ncclGetLastError\0": fn(NcclHandle) -> *const c_char;
}

/// NCCL as it was found. It stays loaded until the process ends.
pub struct NcclLibrary {
    pub(super) functions: NcclFunctions,
    version: c_int,
    path: PathBuf,
    /// Keeps the functions alive.
    _library: libloading::Library,
}

/// The library of this process.
static LOADED: Mutex<Option<Arc<NcclLibrary>>> = Mutex::new(None);

impl NcclLibrary {
    /// NCCL of this process: what `QKVAULT_NCCL` names, what the process has loaded or the loader finds, or that of
    /// PyTorch's and JAX's wheels, in `VIRTUAL_ENV`, `CONDA_PREFIX` or for a `python3` on the `PATH`. It is loaded
    /// once. A file that others can change is not loaded, as with cuDNN.
    ///
    /// # Errors
    ///
    /// [`CommError::Library`] with everything that was tried.
    pub fn open() -> Result<Arc<NcclLibrary>, CommError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &*loaded {
            return Ok(Arc::clone(library));
        }
        let library = Arc::new(NcclLibrary::first(&places(|name| std::env::var_os(name)))?);
        *loaded = Some(Arc::clone(&library));
        Ok(library)
    }

    fn first(places: &[PathBuf]) -> Result<NcclLibrary, CommError> {
        let mut tried = Vec::new();
        for path in places {
            match NcclLibrary::load(path) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push(format!("{}: {why}", path.display())),
            }
        }
        Err(CommError::Library { what: format!("NCCL cannot be used ({})", tried.join("; ")) })
    }

    /// NCCL at this path.
    fn load(path: &PathBuf) -> Result<NcclLibrary, String> {
        if path.is_absolute()
            && let Some(why) = distrust_library(path, |name| std::env::var_os(name))
        {
            return Err(why);
        }
        // SAFETY: NCCL's initialisers only register its own tables; the path is the user's or the system's choice.
        let library =
            unsafe { libloading::Library::new(path) }.map_err(|e| Unloaded::new(path, &e).why().to_owned())?;
        // SAFETY: a library that has `ncclGetVersion` and the others is NCCL; a version below is refused before any
        // other of its functions is called.
        let functions = unsafe { NcclFunctions::from_library(&library) }?;
        let mut version = 0;
        // SAFETY: the function writes one int.
        let status = unsafe { (functions.version)(&raw mut version) };
        if status != NcclStatus::SUCCESS {
            return Err(format!("ncclGetVersion gives status {}", status.0));
        }
        if version < OLDEST {
            return Err(format!("it is NCCL {}, older than {}", readable(version), readable(OLDEST)));
        }
        Ok(NcclLibrary { functions, version, path: path.clone(), _library: library })
    }

    /// Its version, such as `2.28.9`.
    #[must_use]
    pub fn version(&self) -> String {
        readable(self.version)
    }

    /// Where it was found.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// A new id, for the ranks of one communicator. It needs no GPU.
    ///
    /// # Errors
    ///
    /// [`CommError::Call`], if this machine has no network interface that NCCL takes.
    pub fn new_id(&self) -> Result<NcclId, CommError> {
        let mut id = NcclId([0; 128]);
        // SAFETY: the function writes 128 bytes.
        let status = unsafe { (self.functions.unique_id)(&raw mut id) };
        self.checked("ncclGetUniqueId", status, std::ptr::null_mut())?;
        Ok(id)
    }

    /// An error for a status that is neither success nor in progress, in NCCL's own words.
    pub(super) fn checked(
        &self,
        call: &'static str,
        status: NcclStatus,
        handle: NcclHandle,
    ) -> Result<NcclStatus, CommError> {
        if status == NcclStatus::SUCCESS || status == NcclStatus::IN_PROGRESS {
            return Ok(status);
        }
        let words = |text: *const c_char| {
            // SAFETY: NCCL gives static text, or null.
            if text.is_null() { String::new() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
        };
        // SAFETY: both functions take any value; the handle is null or a communicator.
        let (name, last) = unsafe { ((self.functions.error_string)(status), (self.functions.last_error)(handle)) };
        let (name, last) = (words(name), words(last));
        let what = if last.is_empty() { name } else { format!("{name}: {}", last.trim()) };
        Err(CommError::Call { call, what: format!("{what} (status {})", status.0) })
    }
}

/// `21809` as `2.18.9`.
fn readable(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Where to look, in this order.
fn places(variable: impl Fn(&str) -> Option<OsString> + Copy) -> Vec<PathBuf> {
    if let Some(named) = variable(VARIABLE) {
        let named = PathBuf::from(named);
        return vec![if named.is_dir() { named.join(NAME) } else { named }];
    }
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).map(PathBuf::from);
    let prefixes = environments.chain(python_prefixes(variable));
    let wheels = prefixes.flat_map(|prefix| python_packages(&prefix));
    let files = wheels.map(|packages| packages.join("nvidia/nccl/lib").join(NAME)).filter(|file| file.exists());
    std::iter::once(PathBuf::from(NAME)).chain(files).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine with PyTorch and no environment that is active, NCCL was found by a variable alone.
    #[test]
    fn audit_nccl_of_a_wheel_is_found_by_the_python_on_the_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("it exists");
        let nccl = root.join("lib/python3.12/dist-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&nccl).and_then(|()| std::fs::create_dir(root.join("bin"))).expect("folders");
        for file in [nccl.join(NAME), root.join("bin/python3")] {
            std::fs::write(file, "").expect("is written");
        }
        let path = root.join("bin").into_os_string();
        let found = places(|name| (name == "PATH").then(|| path.clone()));
        assert_eq!(found, [PathBuf::from(NAME), nccl.join(NAME)]);
        let named = places(|name| (name == VARIABLE).then(|| nccl.clone().into_os_string()));
        assert_eq!(named, [nccl.join(NAME)]);
    }

    #[test]
    fn a_library_that_is_not_there_or_is_not_nccl_is_an_error_with_the_place() {
        let none = NcclLibrary::first(&[PathBuf::from("/nowhere/libnccl.so.2")]).err().expect("nothing is there");
        assert!(none.to_string().contains("/nowhere/libnccl.so.2"), "{none}");
        assert_eq!(none.reason().code.as_str(), "nccl.library");
        // The C library is there, and is not NCCL.
        let other = NcclLibrary::first(&[PathBuf::from("libc.so.6")]).err().expect("is not NCCL");
        assert!(other.to_string().contains("ncclGetVersion"), "{other}");
        // A file that is there and a link that leads nowhere are told apart from one that is absent.
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("libnccl.so.2");
        std::fs::write(&file, "no library").expect("it can be written");
        let junk = NcclLibrary::first(std::slice::from_ref(&file)).err().expect("is junk").to_string();
        assert!(junk.contains("it is there and does not load") && junk.contains("file too short"), "{junk}");
        let link = folder.path().join("link.so");
        std::os::unix::fs::symlink("gone.so", &link).expect("a link");
        let gone = NcclLibrary::first(&[link]).err().expect("leads nowhere").to_string();
        assert!(gone.contains("link.so: a symbolic link to gone.so, which does not exist"), "{gone}");
        assert_eq!((readable(22_809), readable(OLDEST)), ("2.28.9".to_owned(), "2.18.0".to_owned()));
        assert_eq!(size_of::<NcclConfig>(), 48);
    }
}
