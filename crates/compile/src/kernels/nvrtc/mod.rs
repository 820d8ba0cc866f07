//! NVRTC as a compiler of kernels: CUDA C becomes a cubin on any machine, with no GPU and no driver.
//!
//! The library is loaded when it is first needed. Its version is pinned, because a plan's key contains it: a machine
//! that only launches must know the key without the library.

mod error;
mod functions;
mod places;

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use qkvault_cudnn::CompilerEnv;
use qkvault_kernels::recipe::architecture;

pub use error::{NvrtcError, NvrtcTried};
use functions::Functions;

/// The NVRTC that compiles kernels, major and minor: the oldest of CUDA 13, so that every driver of CUDA 13 loads them.
pub const NVRTC: (u32, u32) = (13, 0);

/// The oldest CUDA version of a driver that loads what [`NVRTC`] compiles, as major * 1000 + minor * 10.
pub const NVRTC_DRIVER: u32 = 13_000;

/// All options that sources of this project are compiled with, besides the architecture. NVRTC has others that write
/// and read files, so nobody else's are handed on.
const OPTIONS: [&str; 3] = ["--std=c++17", "--prec-div=false", "--prec-sqrt=false"];

/// NVRTC, loaded. Cheap to clone. Threads may share it and compile at the same time.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    functions: Arc<Functions>,
    path: PathBuf,
}

impl Nvrtc {
    /// Loads NVRTC of version [`NVRTC`]: the one at `path` (its file or folder), else that of `QKVAULT_NVRTC_PATH`;
    /// these two are exact. Without them the first usable one of: the folder that `cargo xtask fetch` makes, the
    /// fetched sets of cuDNN, the Python environments of `VIRTUAL_ENV` and `CONDA_PREFIX`, `CUDA_HOME`, `CUDA_PATH`,
    /// the dynamic loader's own search. A file that others than this user and root can change is not usable, unless
    /// `QKVAULT_LIBRARIES_ALLOW_SHARED` is `1`.
    ///
    /// # Errors
    ///
    /// [`NvrtcError::NotFound`] with every place and why it is not used; the error names the command that fetches one.
    pub fn open(path: Option<&Path>) -> Result<Nvrtc, NvrtcError> {
        Nvrtc::find(path, &|name| std::env::var_os(name))
    }

    fn find(path: Option<&Path>, variable: &places::Variables<'_>) -> Result<Nvrtc, NvrtcError> {
        let mut tried = Vec::new();
        for place in places::to_try(path, variable) {
            let trusted = distrust(&place, variable).map_or(Ok(()), Err);
            match trusted.and_then(|()| Functions::load(&place)).and_then(|functions| functions.checked(&place)) {
                Ok(functions) => {
                    tracing::debug!(path = %place.display(), "NVRTC loaded");
                    return Ok(Nvrtc { functions: Arc::new(functions), path: place });
                }
                Err(reason) => tried.push(NvrtcTried { path: place, reason }),
            }
        }
        Err(NvrtcError::NotFound { tried })
    }

    /// The path of the library.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles CUDA C to a cubin for an architecture, given as major * 10 + minor. Takes some tenths of a second of
    /// one core. `name` is the file in messages.
    ///
    /// # Errors
    ///
    /// [`NvrtcError::Source`] with the compiler's log; [`NvrtcError::Option`] for an option that no source of this
    /// project is compiled with; [`NvrtcError::Variable`] while a variable is set that changes
    /// what NVRTC compiles, because no key contains it.
    pub fn compile(&self, name: &str, source: &str, options: &[String], sm: u32) -> Result<Vec<u8>, NvrtcError> {
        self.program(name, source, options, sm)?.cubin()
    }

    /// The same as a program, which has the compiler's messages too.
    fn program(&self, name: &str, source: &str, options: &[String], sm: u32) -> Result<Program<'_>, NvrtcError> {
        let environment = CompilerEnv::from_variables(std::env::vars_os());
        if let Some((variable, value)) = environment.pairs().find(|(name, _)| !name.starts_with("CUDNN_")) {
            return Err(NvrtcError::Variable { name: variable.to_owned(), value: value.to_owned() });
        }
        if let Some(option) = options.iter().find(|option| !OPTIONS.contains(&option.as_str())) {
            return Err(NvrtcError::Option { option: option.clone() });
        }
        let text = |what: &'static str, text: &str| CString::new(text).map_err(|_| NvrtcError::Zero { what });
        let arch = format!("-arch={}", architecture(sm));
        let options: Vec<CString> =
            options.iter().chain([&arch]).map(|option| text("an option", option)).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let program = Program::new(&self.functions, &text("the name", name)?, &text("the source", source)?)?;
        // More options than a number has room for do not exist.
        let count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
        // SAFETY: the program is alive, and so are `count` options, which end in 0.
        let status = unsafe { (self.functions.compile)(program.handle, count, pointers.as_ptr()) };
        if status == functions::COMPILATION || status == functions::INVALID_OPTION {
            return Err(NvrtcError::Source { name: name.to_owned(), sm, log: program.log() });
        }
        self.functions.check("compile the source", status)?;
        Ok(program)
    }
}

/// Why a file must not be loaded: others can change it. A name that the loader resolves is not checked.
fn distrust(place: &Path, variable: &places::Variables<'_>) -> Option<String> {
    if place.parent().is_none_or(|folder| folder.as_os_str().is_empty()) {
        return None;
    }
    qkvault_base::distrust_library(place, variable)
}

/// A program of NVRTC, destroyed when it is dropped.
struct Program<'a> {
    functions: &'a Functions,
    handle: functions::Handle,
}

impl<'a> Program<'a> {
    fn new(functions: &'a Functions, name: &CStr, source: &CStr) -> Result<Program<'a>, NvrtcError> {
        let mut handle = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: `handle` is writable; both texts end in 0 and are copied; there are no headers.
        let status = unsafe { (functions.create)(&raw mut handle, source.as_ptr(), name.as_ptr(), 0, none, none) };
        functions.check("take the source", status)?;
        Ok(Program { functions, handle })
    }

    /// The compiler's messages; empty if it gives none.
    fn log(&self) -> String {
        let bytes = self.bytes(self.functions.log_size, self.functions.log).unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let status = |status| NvrtcError::Call { step: "give the cubin", status, name: self.functions.name(status) };
        let cubin = self.bytes(self.functions.cubin_size, self.functions.cubin).map_err(status)?;
        if cubin.starts_with(b"\x7fELF") { Ok(cubin) } else { Err(NvrtcError::NoCubin { bytes: cubin.len() }) }
    }

    fn bytes(&self, size: functions::Size, get: functions::Get) -> Result<Vec<u8>, c_int> {
        let mut length = 0;
        // SAFETY: the program is alive, and `length` is writable.
        let status = unsafe { size(self.handle, &raw mut length) };
        if status != 0 {
            return Err(status);
        }
        let mut bytes = vec![0_u8; length];
        // SAFETY: NVRTC writes as many bytes as it has told.
        let status = unsafe { get(self.handle, bytes.as_mut_ptr().cast()) };
        if status == 0 { Ok(bytes) } else { Err(status) }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { (self.functions.destroy)(&raw mut self.handle) };
    }
}

#[cfg(test)]
mod tests;
