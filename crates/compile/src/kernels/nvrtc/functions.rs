//! NVRTC's functions, found in the library at run time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use qkvault_base::{Unloaded, dangling};

use super::{NVRTC, NvrtcError};

/// `nvrtcProgram`.
pub(super) type Handle = *mut c_void;
/// A function that tells a length.
pub(super) type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
/// A function that writes as many bytes.
pub(super) type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;
type Texts = *const *const c_char;

/// `NVRTC_ERROR_INVALID_OPTION`.
pub(super) const INVALID_OPTION: c_int = 5;
/// `NVRTC_ERROR_COMPILATION`.
pub(super) const COMPILATION: c_int = 6;

/// The functions that compiling needs, as `nvrtc.h` of CUDA 13.0 declares them.
#[derive(Debug)]
pub(super) struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub(super) create: unsafe extern "C" fn(*mut Handle, *const c_char, *const c_char, c_int, Texts, Texts) -> c_int,
    pub(super) compile: unsafe extern "C" fn(Handle, c_int, Texts) -> c_int,
    pub(super) destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    pub(super) log_size: Size,
    pub(super) log: Get,
    pub(super) cubin_size: Size,
    pub(super) cubin: Get,
}

/// Opens a library and never closes it: it may have threads of its own.
fn open(path: &Path) -> Result<ManuallyDrop<Library>, Unloaded> {
    // SAFETY: loading runs initialisers of NVIDIA's compiler, at a path that the user gave or that a fetch filled.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    library.map(ManuallyDrop::new).map_err(|error| Unloaded::new(path, &error))
}

impl Functions {
    /// Loads the library, after the one with its built-in declarations, which NVRTC opens by name when it compiles: the
    /// loader finds a name that is loaded, and would not look into the folder.
    pub(super) fn load(path: &Path) -> Result<Functions, String> {
        let builtins = format!("libnvrtc-builtins.so.{}.{}", NVRTC.0, NVRTC.1);
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let builtins = folder.join(&builtins);
            if path.exists() && (builtins.exists() || dangling(&builtins).is_some()) {
                open(&builtins).map_err(|why| why.to_string())?;
            }
        }
        let library = open(path).map_err(|unloaded| unloaded.why().to_owned())?;
        macro_rules! find {
            ($name:literal) => {{
                // SAFETY: the type is that of the function in NVIDIA's header; the library is never closed.
                let found = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                *found.map_err(|_| concat!("it has no function ", $name).to_owned())?
            }};
        }
        Ok(Functions {
            version: find!("nvrtcVersion"),
            error_string: find!("nvrtcGetErrorString"),
            create: find!("nvrtcCreateProgram"),
            compile: find!("nvrtcCompileProgram"),
            destroy: find!("nvrtcDestroyProgram"),
            log_size: find!("nvrtcGetProgramLogSize"),
            log: find!("nvrtcGetProgramLog"),
            cubin_size: find!("nvrtcGetCUBINSize"),
            cubin: find!("nvrtcGetCUBIN"),
        })
    }

    /// These functions, if the library has the pinned version.
    pub(super) fn checked(self, path: &Path) -> Result<Functions, String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both numbers are writable.
        let status = unsafe { (self.version)(&raw mut major, &raw mut minor) };
        if status != 0 {
            return Err(format!("it does not tell its version: {}", self.name(status)));
        }
        if (u32::try_from(major), u32::try_from(minor)) != (Ok(NVRTC.0), Ok(NVRTC.1)) {
            return Err(format!("it is version {major}.{minor}, and plans are compiled by {}.{}", NVRTC.0, NVRTC.1));
        }
        // A folder with the library alone: then the loader's own search must know the other one.
        let builtins = format!("libnvrtc-builtins.so.{major}.{minor}");
        if let Err(why) = open(Path::new(&builtins)) {
            let folder = path.parent().map_or_else(String::new, |folder| format!(" in {}", folder.display()));
            return Err(format!("there is no {builtins}{folder}, which it needs ({why})"));
        }
        Ok(self)
    }

    pub(super) fn check(&self, step: &'static str, status: c_int) -> Result<(), NvrtcError> {
        if status == 0 { Ok(()) } else { Err(NvrtcError::Call { step, status, name: self.name(status) }) }
    }

    /// The name of a status.
    pub(super) fn name(&self, status: c_int) -> String {
        // SAFETY: the function takes any number, and returns a text that lives as long as the library, or null.
        let text = unsafe { (self.error_string)(status) };
        if text.is_null() {
            return "an unknown status".to_owned();
        }
        // SAFETY: a text of the library, which is never closed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
