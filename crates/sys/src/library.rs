//! The loaded cuDNN: found, checked, opened once per process, and never closed.

use std::ffi::{CStr, OsString, c_char};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::bindings::{AttributeName, CudnnFunctions, Kind, Status};
use crate::error::{CallError, CudnnLoadError, Error};
use crate::needs::NvrtcLibrary;
use crate::search::Search;
use crate::tried::{SearchStep, Tried};
use crate::{needs, open, process};
use qkvault_base::{CudnnVersion, LibrarySet};

/// The cuDNN of this process.
///
/// It is opened at most once and never closed, because cuDNN starts threads and hands out pointers into itself.
pub struct Library {
    pub(crate) table: ManuallyDrop<FunctionTable>,
    pub(crate) path: PathBuf,
    pub(crate) origin: SearchStep,
    pub(crate) version: CudnnVersion,
    pub(crate) set: LibrarySet,
    /// Major version of the CUDA that cuDNN was built with.
    pub(crate) cuda: usize,
    pub(crate) nvrtc: Option<NvrtcLibrary>,
    /// The variables at the time the library was opened. `Debug` omits them, because they may hold secrets.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Set once the libraries that the engines need were found.
    pub(crate) engines: OnceLock<()>,
    /// Places that were passed over because others can change what lies there.
    pub(crate) untrusted: Vec<Tried>,
}

/// The function table.
pub(crate) struct FunctionTable(pub(crate) CudnnFunctions);

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Library { table: _, path, origin, version, set, cuda, nvrtc, environment: _, engines: _, untrusted: _ } =
            self;
        f.debug_struct("Library")
            .field("path", path)
            .field("origin", origin)
            .field("version", version)
            .field("set", set)
            .field("cuda", cuda)
            .field("nvrtc", nvrtc)
            .finish_non_exhaustive()
    }
}

/// A loaded library file. Plans depend on these files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Its length in bytes; 0 if the file no longer exists.
    pub bytes: u64,
}

/// Gets a function of the table, or the error that this cuDNN has no function of that name.
macro_rules! function {
    ($library:expr, $name:ident) => {
        match &$library.table().$name {
            Ok(function) => Ok(*function),
            Err(_) => Err($library.no_function(stringify!($name))),
        }
    };
}
pub(crate) use function;

static OPEN: OnceLock<Mutex<Option<Arc<Library>>>> = OnceLock::new();

impl Library {
    /// Opens the first usable cuDNN of the search, or returns the one that is already open if it satisfies the search.
    ///
    /// Everything that can be checked without a GPU is checked before cuDNN is used: the version, the neighbouring
    /// libraries, and the libraries that this version and set open later. Only the driver's library is checked later,
    /// when the first descriptor is created ([`Library::check_engines`]), so a stand-in may be loaded after this call.
    ///
    /// # Errors
    ///
    /// [`CudnnLoadError`] with every place of the search and the reason why it was not used, or if another cuDNN is
    /// already open.
    pub fn open(search: &Search) -> Result<Arc<Self>, CudnnLoadError> {
        crate::ending::on_this_thread();
        let mut present = OPEN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &*present {
            open::satisfies(library, search)?;
            return Ok(Arc::clone(library));
        }
        let library = Arc::new(open::find(search)?);
        tracing::debug!(version = %library.version, set = %library.set, path = %library.path.display(), origin = %library.origin, "cuDNN loaded");
        *present = Some(Arc::clone(&library));
        Ok(library)
    }

    /// The version that `cudnnGetVersion` returns.
    #[must_use]
    pub fn version(&self) -> CudnnVersion {
        self.version
    }

    /// The set of cuDNN's libraries that is installed.
    #[must_use]
    pub fn set(&self) -> LibrarySet {
        self.set
    }

    /// The path of the loaded `libcudnn.so.9`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The places before this one that were passed over because others can change what lies there, with the reasons.
    #[must_use]
    pub fn untrusted(&self) -> &[Tried] {
        &self.untrusted
    }

    /// Which step of the search found it.
    #[must_use]
    pub fn origin(&self) -> &SearchStep {
        &self.origin
    }

    /// Every loaded file of cuDNN and of the libraries that it uses (NVRTC, cuBLAS, the driver).
    #[must_use]
    pub fn files(&self) -> Vec<LoadedFile> {
        const STEMS: &[&str] = &["libcudnn", "libnvrtc", "libcublas", "libcuda.", "libcudart", "libnvJitLink"];
        let ours = |path: &PathBuf| {
            path.file_name().is_some_and(|name| STEMS.iter().any(|stem| name.to_string_lossy().starts_with(stem)))
        };
        let files = process::loaded_files().into_iter().filter(ours);
        files.map(|path| LoadedFile { bytes: path.metadata().map_or(0, |data| data.len()), path }).collect()
    }

    /// The major version of the CUDA that this cuDNN was built with: 12 or 13.
    #[must_use]
    pub fn cuda_major(&self) -> usize {
        self.cuda
    }

    /// The NVRTC that this cuDNN compiles with. `None` from 9.21 on, where the compiler is part of cuDNN.
    #[must_use]
    pub fn nvrtc(&self) -> Option<&NvrtcLibrary> {
        self.nvrtc.as_ref()
    }

    /// The environment variables at the time the library was opened. cuDNN reads some of its variables once and others
    /// at every build.
    #[must_use]
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.environment
    }

    /// Checks that the libraries which the engines need are present, including the driver's library (or a stand-in).
    ///
    /// [`Descriptor::create`](crate::Descriptor::create) and [`CudnnHandle::create`](crate::CudnnHandle::create) call
    /// this, because cuDNN opens its engines when the first tensor is finalized.
    ///
    /// # Errors
    ///
    /// [`CudnnLoadError`] with the missing library.
    pub fn check_engines(&self) -> Result<(), CudnnLoadError> {
        if self.engines.get().is_none() {
            needs::engines(&self.path)?;
            let _ = self.engines.set(());
        }
        Ok(())
    }

    pub(crate) fn table(&self) -> &CudnnFunctions {
        &self.table.0
    }

    pub(crate) fn no_function(&self, function: &'static str) -> Error {
        Error::NoFunction { function, version: self.version, path: self.path.clone() }
    }

    /// Converts a status of cuDNN to a result. Fetches cuDNN's message at once, before another call overwrites it.
    pub(crate) fn check(
        &self,
        call: &'static str,
        status: Status,
        kind: Option<Kind>,
        attribute: Option<AttributeName>,
    ) -> Result<(), CallError> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        Err(CallError { call, status, kind, attribute, detail: self.last_error() })
    }

    fn last_error(&self) -> String {
        let Ok(function) = &self.table().cudnnGetLastErrorString else {
            return String::new();
        };
        let mut buffer = [0_u8; 4096];
        // SAFETY: the function writes at most the given number of bytes; the last byte stays 0, so the text is
        // terminated.
        unsafe { function(buffer.as_mut_ptr().cast::<c_char>(), buffer.len() - 1) };
        CStr::from_bytes_until_nul(&buffer).map(|text| text.to_string_lossy().trim().to_owned()).unwrap_or_default()
    }
}
