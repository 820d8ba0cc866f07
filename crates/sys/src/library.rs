//! The loaded cuDNN: found, opened once per process, checked, and never closed.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libloading::os::unix::Library as Shared;

use crate::bindings::{AttributeName, Cudnn, Kind, Status};
use crate::error::{CallError, Error, LoadError};
use crate::search::{At, Origin, Place, Reason, SONAME, Search, Tried, fits};
use crate::version::{LibrarySet, Version};
use crate::{log, needs, places, process};

/// The one cuDNN of this process.
///
/// It is opened at most once and never closed: cuDNN starts threads and hands out pointers into itself.
#[derive(Debug)]
pub struct Library {
    table: ManuallyDrop<Table>,
    path: PathBuf,
    origin: Origin,
    version: Version,
    set: LibrarySet,
    engines: OnceLock<()>,
}

/// The function table; its own type only to give it a `Debug` that does not list addresses.
pub(crate) struct Table(pub(crate) Cudnn);

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Table")
    }
}

/// A library file that is loaded, as part of what a plan is compiled with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes; 0 when it is gone since.
    pub bytes: u64,
}

/// Gets a function of the table, or says that this cuDNN has none of that name.
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
    /// Opens the first usable cuDNN of the search, or gives the one that is open already if it is what the search wants.
    ///
    /// Everything that can be checked without a GPU is checked before anything in cuDNN is used: version, neighbours, and the libraries
    /// that this version and set will open later. What it needs of a driver is checked when the first descriptor is made
    /// ([`Library::check_engines`]), so that a stand-in may be loaded after this call.
    pub fn open(search: &Search) -> Result<Arc<Self>, LoadError> {
        let mut open = OPEN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &*open {
            library.satisfies(search)?;
            return Ok(Arc::clone(library));
        }
        let library = Arc::new(Self::find(search)?);
        tracing::debug!(version = %library.version, set = %library.set, path = %library.path.display(), origin = %library.origin, "cuDNN loaded");
        *open = Some(Arc::clone(&library));
        Ok(library)
    }

    /// The version that the library itself reports.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Which of cuDNN's libraries are there.
    pub fn set(&self) -> LibrarySet {
        self.set
    }

    /// The loaded `libcudnn.so.9`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What led to it.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Every file of cuDNN, and of what it uses (NVRTC, cuBLAS, the driver), that is loaded now.
    pub fn files(&self) -> Vec<LoadedFile> {
        const STEMS: &[&str] = &["libcudnn", "libnvrtc", "libcublas", "libcuda.", "libcudart", "libnvJitLink"];
        let ours = |path: &PathBuf| {
            path.file_name().is_some_and(|name| STEMS.iter().any(|stem| name.to_string_lossy().starts_with(stem)))
        };
        let files = process::loaded_files().into_iter().filter(ours);
        files.map(|path| LoadedFile { bytes: path.metadata().map_or(0, |data| data.len()), path }).collect()
    }

    /// The version of the CUDA runtime that this cuDNN was built with, as CUDA counts (13000 is 13.0).
    pub fn cuda_version(&self) -> Result<usize, Error> {
        let function = function!(self, cudnnGetCudartVersion)?;
        // SAFETY: takes nothing and only returns a number.
        Ok(unsafe { function() })
    }

    /// Checks that what the engines need is there, the driver's library (or a stand-in) among it.
    ///
    /// Done for you before the first descriptor or handle is made, because cuDNN opens its engines as the first tensor is finalized.
    pub fn check_engines(&self) -> Result<(), LoadError> {
        if self.engines.get().is_none() {
            needs::engines(&self.path)?;
            let _ = self.engines.set(());
        }
        Ok(())
    }

    pub(crate) fn table(&self) -> &Cudnn {
        &self.table.0
    }

    pub(crate) fn no_function(&self, function: &'static str) -> Error {
        Error::NoFunction { function, version: self.version, path: self.path.clone() }
    }

    /// Makes an answer of cuDNN a result; the library's own words are fetched at once, before another call overwrites them.
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
        // SAFETY: writes at most the given number of bytes; one is kept back so that the text always ends.
        unsafe { function(buffer.as_mut_ptr().cast::<c_char>(), buffer.len() - 1) };
        CStr::from_bytes_until_nul(&buffer).map(|text| text.to_string_lossy().trim().to_owned()).unwrap_or_default()
    }

    /// Whether the open library is what a later search wants; a second one cannot be loaded beside it.
    fn satisfies(&self, search: &Search) -> Result<(), LoadError> {
        let path_differs = search.places().first().is_some_and(|place| match (&place.origin, &place.at) {
            (Origin::Path | Origin::Variable("QKVAULT_CUDNN_PATH"), At::File(file)) => {
                !process::same_file(file, &self.path)
            }
            _ => false,
        });
        let version_differs = search.version.is_some_and(|version| version != self.version);
        let set_differs = search.set.is_some_and(|set| set != self.set);
        if path_differs || version_differs || set_differs {
            return Err(LoadError::Clash {
                loaded: self.path.clone(),
                loaded_version: self.version,
                wanted: search.wanted(),
            });
        }
        Ok(())
    }

    fn find(search: &Search) -> Result<Self, LoadError> {
        let mut tried = Vec::new();
        let before = present();
        for Place { origin, at } in search.places() {
            let exact = matches!(origin, Origin::Path | Origin::Variable("QKVAULT_CUDNN_PATH"));
            let (path, name) = match at {
                At::File(file) => (Some(file.clone()), file.into_os_string()),
                At::Process => match &before {
                    Some(file) => (Some(file.clone()), file.clone().into_os_string()),
                    None => {
                        tried.push(Tried { origin, path: None, reason: Reason::NotLoaded });
                        continue;
                    }
                },
                At::Name(name) => (None, name.into()),
                At::Nothing(path, reason) => {
                    tried.push(Tried { origin, path, reason });
                    continue;
                }
            };
            if let (Some(loaded), Some(file)) = (&before, &path)
                && !process::same_file(loaded, file)
            {
                if exact {
                    return Err(Self::clash(loaded, search));
                }
                tried.push(Tried { origin, path, reason: Reason::AnotherLoaded { loaded: loaded.clone() } });
                continue;
            }
            match Self::load(search, &origin, path.as_deref(), &name) {
                Ok(library) => return Ok(library),
                // From here on a library is in the process, and no other may follow it.
                Err(Refused::Finally(error)) => return Err(*error),
                Err(Refused::Place(_)) if before.is_some() && origin == Origin::Process => {
                    return Err(Self::clash(before.as_deref().unwrap_or(Path::new(SONAME)), search));
                }
                Err(Refused::Place(reason)) => tried.push(Tried { origin, path, reason }),
            }
        }
        Err(LoadError::NotFound { tried })
    }

    fn clash(loaded: &Path, search: &Search) -> LoadError {
        let loaded_version =
            process::already_open(SONAME).and_then(|shared| version_of(&shared)).unwrap_or(Version::new(0, 0, 0));
        LoadError::Clash { loaded: loaded.to_owned(), loaded_version, wanted: search.wanted() }
    }

    fn load(search: &Search, origin: &Origin, path: Option<&Path>, name: &OsStr) -> Result<Self, Refused> {
        if let Some(path) = path {
            fits(search, path).map_err(Refused::Place)?;
            // Before loading, so that a place that lacks something can be passed over for a later one.
            needs::beside(path, places::set_beside(path)).map_err(Refused::unusable)?;
        } else if let Some(wanted) = search.version {
            return Err(Refused::Place(Reason::UnknownVersion { wanted }));
        }
        let shared = process::open(name)
            .map_err(|error| Refused::Place(Reason::NotOpened { detail: process::with_sources(&error) }))?;
        let path = process::file_of(&shared, "cudnnGetVersion").ok_or_else(|| {
            Refused::Place(Reason::Unusable { detail: "it has no function cudnnGetVersion".to_owned() })
        })?;
        needs::graph(&path).map_err(Refused::unusable)?;
        let version = version_of(&shared).unwrap_or(Version::new(0, 0, 0));
        if version.major != Version::SUPPORTED_MAJOR {
            return Err(Refused::Place(Reason::WrongMajor { found: version.to_string() }));
        }
        let set = places::set_beside(&path);
        let wanted = search.version.unwrap_or(version);
        if version != wanted {
            return Err(Refused::Finally(Box::new(Self::clash(&path, search))));
        }
        if search.set.is_some_and(|wanted| wanted != set) {
            return Err(Refused::Finally(Box::new(Self::clash(&path, search))));
        }
        let cuda = cuda_version_of(&shared).unwrap_or_default() / 1000;
        needs::companions(&path, version, set, cuda, &search.environment)
            .map_err(|error| Refused::Finally(Box::new(error)))?;
        // SAFETY: looks symbols up by name and stores their addresses; the types are those of the header of this major version.
        let table = unsafe { Cudnn::from_library(ManuallyDrop::into_inner(shared)) }
            .map_err(|error| Refused::Place(Reason::NotOpened { detail: process::with_sources(&error) }))?;
        let table = ManuallyDrop::new(Table(table));
        if let Some(function) = lacking(&table.0) {
            return Err(Refused::Finally(Box::new(LoadError::Foreign { path, function })));
        }
        log::install(&table.0);
        Ok(Self { table, path, origin: origin.clone(), version, set, engines: OnceLock::new() })
    }
}

/// The cuDNN that the process has, loaded by whomever; one of its sub-libraries is enough, because it is found by name by any other.
fn present() -> Option<PathBuf> {
    let whole = process::already_open(SONAME).and_then(|library| process::file_of(&library, "cudnnGetVersion"));
    whole.or_else(|| {
        let part = |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcudnn"));
        Some(process::loaded_files().into_iter().find(part)?.with_file_name(SONAME))
    })
}

/// Why a place was not used: it alone, or nothing after it may be used either.
enum Refused {
    Place(Reason),
    Finally(Box<LoadError>),
}

impl Refused {
    fn unusable(error: LoadError) -> Self {
        Self::Place(Reason::Unusable { detail: error.to_string() })
    }
}

/// Asks an open library for its version.
fn version_of(shared: &Shared) -> Option<Version> {
    // SAFETY: every cuDNN has this function with this signature.
    let function = unsafe { shared.get::<unsafe extern "C" fn() -> usize>("cudnnGetVersion") }.ok()?;
    // SAFETY: takes nothing and only returns a number.
    Some(Version::from_number(unsafe { function() }))
}

/// Asks an open library for the CUDA version it was built with: 13000 is 13.0.
fn cuda_version_of(shared: &Shared) -> Option<usize> {
    // SAFETY: every cuDNN has this function with this signature.
    let function = unsafe { shared.get::<unsafe extern "C" fn() -> usize>("cudnnGetCudartVersion") }.ok()?;
    // SAFETY: takes nothing and only returns a number.
    Some(unsafe { function() })
}

/// The first function that every cuDNN 9 has and this one does not.
fn lacking(table: &Cudnn) -> Option<&'static str> {
    let every = [
        ("cudnnGetLastErrorString", table.cudnnGetLastErrorString.is_ok()),
        ("cudnnCreate", table.cudnnCreate.is_ok()),
        ("cudnnDestroy", table.cudnnDestroy.is_ok()),
        ("cudnnSetStream", table.cudnnSetStream.is_ok()),
        ("cudnnSetCallback", table.cudnnSetCallback.is_ok()),
        ("cudnnBackendCreateDescriptor", table.cudnnBackendCreateDescriptor.is_ok()),
        ("cudnnBackendDestroyDescriptor", table.cudnnBackendDestroyDescriptor.is_ok()),
        ("cudnnBackendFinalize", table.cudnnBackendFinalize.is_ok()),
        ("cudnnBackendSetAttribute", table.cudnnBackendSetAttribute.is_ok()),
        ("cudnnBackendGetAttribute", table.cudnnBackendGetAttribute.is_ok()),
        ("cudnnBackendExecute", table.cudnnBackendExecute.is_ok()),
    ];
    every.into_iter().find(|(_, present)| !present).map(|(name, _)| name)
}
