//! Tries the places of a search in order, and checks a library before anything in it is used.

use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::Library as Shared;

use crate::bindings::CudnnFunctions;
use crate::error::CudnnLoadError;
use crate::library::{FunctionTable, Library};
use crate::search::{At, SONAME, Search, SearchPlace, fits};
use crate::tried::{SearchStep, Tried, UnusableReason};
use crate::{log, needs, places, process};
use qkvault_base::{CudnnVersion, distrust_library};

/// Whether the open library satisfies a later search. A second one cannot be loaded beside it.
pub(crate) fn satisfies(library: &Library, search: &Search) -> Result<(), CudnnLoadError> {
    let exact = search
        .places()
        .into_iter()
        .next()
        .filter(|place| is_exact(&place.origin) && !matches!(place.at, At::Nothing(_, UnusableReason::NotSet)));
    let path_differs = match exact.map(|place| (place.origin, place.at)) {
        Some((origin, At::Nothing(path, reason))) => {
            return Err(CudnnLoadError::NotFound { tried: vec![Tried { origin, path, reason }] });
        }
        Some((_, At::File(file))) => !process::same_file(&file, &library.path),
        Some((_, At::Process | At::Name(_))) | None => false,
    };
    let version_differs = search.version.is_some_and(|version| version != library.version);
    let set_differs = search.set.is_some_and(|set| set != library.set);
    if path_differs || version_differs || set_differs {
        return Err(CudnnLoadError::Clash {
            loaded: library.path.clone(),
            loaded_version: library.version,
            wanted: search.wanted(),
        });
    }
    Ok(())
}

/// Opens the first usable place of a search.
pub(crate) fn find(search: &Search) -> Result<Library, CudnnLoadError> {
    let mut tried = Vec::new();
    let before = present();
    for SearchPlace { origin, at } in search.places() {
        let exact = is_exact(&origin);
        let (path, name) = match at {
            At::File(file) => (Some(file.clone()), file.into_os_string()),
            At::Process => match &before {
                Some(file) => (Some(file.clone()), file.clone().into_os_string()),
                None => {
                    tried.push(Tried { origin, path: None, reason: UnusableReason::NotLoaded });
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
                return Err(clash(loaded, search));
            }
            tried.push(Tried { origin, path, reason: UnusableReason::AnotherLoaded { loaded: loaded.clone() } });
            continue;
        }
        match load(search, &origin, path.as_deref(), &name) {
            Ok(mut library) => {
                tried.retain(|place| matches!(place.reason, UnusableReason::Untrusted { .. }));
                library.untrusted = tried;
                return Ok(library);
            }
            // A library is loaded now, and no other may be loaded after it.
            Err(Refused::Finally(error)) => return Err(*error),
            Err(Refused::Place(_)) if before.is_some() && origin == SearchStep::Process => {
                return Err(clash(before.as_deref().unwrap_or(Path::new(SONAME)), search));
            }
            Err(Refused::Place(reason)) => tried.push(Tried { origin, path, reason }),
        }
    }
    Err(CudnnLoadError::NotFound { tried })
}

/// The error that another cuDNN is loaded in the process.
fn clash(loaded: &Path, search: &Search) -> CudnnLoadError {
    // Without its graph library, asking it for its version ends the process.
    let asked = || process::already_open(SONAME).filter(|_| needs::graph(loaded).is_ok());
    let loaded_version = asked().and_then(|shared| version_of(&shared)).or_else(|| places::version_beside(loaded));
    let loaded_version = loaded_version.unwrap_or(CudnnVersion::new(0, 0, 0));
    CudnnLoadError::Clash { loaded: loaded.to_owned(), loaded_version, wanted: search.wanted() }
}

/// Opens one place and checks everything that can be checked.
fn load(search: &Search, origin: &SearchStep, path: Option<&Path>, name: &OsStr) -> Result<Library, Refused> {
    if let Some(path) = path {
        fits(search, origin, path).map_err(Refused::Place)?;
        // Checked before loading, so that the search can continue if the place lacks a library.
        needs::beside(path, places::set_beside(path)).map_err(Refused::unusable)?;
        // What the process has loaded runs already.
        if *origin != SearchStep::Process
            && let Some(why) = distrust_library(path, |name| search.environment.get(name))
        {
            return Err(Refused::Place(UnusableReason::Untrusted { why }));
        }
    } else if let Some(wanted) = search.version {
        return Err(Refused::Place(UnusableReason::UnknownVersion { wanted }));
    }
    let shared = process::open(name).map_err(|error| {
        let why = qkvault_base::Unloaded::new(Path::new(name), &error);
        // A place without a path has the name in its reason.
        let detail = if path.is_some() { why.why().to_owned() } else { why.to_string() };
        Refused::Place(UnusableReason::NotOpened { detail })
    })?;
    let path = process::file_of(&shared, "cudnnGetVersion").ok_or_else(|| {
        Refused::Place(UnusableReason::Unusable { detail: "it has no function cudnnGetVersion".to_owned() })
    })?;
    needs::graph(&path).map_err(Refused::unusable)?;
    let version = version_of(&shared).unwrap_or(CudnnVersion::new(0, 0, 0));
    if version.major != CudnnVersion::SUPPORTED_MAJOR {
        return Err(Refused::Place(UnusableReason::WrongMajor { found: version.to_string() }));
    }
    let set = places::set_beside(&path);
    let wanted = search.version.unwrap_or(version);
    if version != wanted {
        return Err(Refused::Finally(Box::new(clash(&path, search))));
    }
    if search.set.is_some_and(|wanted| wanted != set) {
        return Err(Refused::Finally(Box::new(clash(&path, search))));
    }
    let cuda = cuda_version_of(&shared).unwrap_or_default() / 1000;
    let nvrtc = needs::companions(&path, version, set, cuda, &search.environment)
        .map_err(|error| Refused::Finally(Box::new(error)))?;
    // SAFETY: looks symbols up by name and stores their addresses; the types are those of this major version's header.
    let table = unsafe { CudnnFunctions::from_library(ManuallyDrop::into_inner(shared).into()) };
    let table = ManuallyDrop::new(FunctionTable(table));
    if let Some(function) = lacking(&table.0) {
        return Err(Refused::Finally(Box::new(CudnnLoadError::Foreign { path, function })));
    }
    log::install(&table.0);
    let environment = std::env::vars_os().collect();
    Ok(Library {
        table,
        path,
        origin: origin.clone(),
        version,
        set,
        cuda,
        nvrtc,
        environment,
        engines: OnceLock::new(),
        untrusted: Vec::new(),
    })
}

/// Whether this location was requested explicitly. If it cannot be used, the search fails instead of trying the next
/// one.
fn is_exact(origin: &SearchStep) -> bool {
    matches!(origin, SearchStep::Path | SearchStep::Variable("QKVAULT_CUDNN_PATH"))
}

/// The cuDNN that is loaded in the process, whoever loaded it. One of its sub-libraries is enough, because any cuDNN
/// finds its sub-libraries by name.
fn present() -> Option<PathBuf> {
    let whole = process::already_open(SONAME).and_then(|library| process::file_of(&library, "cudnnGetVersion"));
    whole.or_else(|| {
        let part = |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcudnn"));
        Some(process::loaded_files().into_iter().find(part)?.with_file_name(SONAME))
    })
}

/// Why a place was not used: the search continues (`Place`), or it must end (`Finally`).
enum Refused {
    Place(UnusableReason),
    Finally(Box<CudnnLoadError>),
}

impl Refused {
    fn unusable(error: CudnnLoadError) -> Self {
        Self::Place(UnusableReason::Unusable { detail: error.to_string() })
    }
}

/// The version of an open library.
pub(crate) fn version_of(shared: &Shared) -> Option<CudnnVersion> {
    // SAFETY: every cuDNN has this function with this signature.
    let function = unsafe { shared.get::<unsafe extern "C" fn() -> usize>("cudnnGetVersion") }.ok()?;
    // SAFETY: the function takes no arguments and only returns a number.
    Some(CudnnVersion::from_number(unsafe { function() }))
}

/// The CUDA version that an open library was built with: 13000 is 13.0.
fn cuda_version_of(shared: &Shared) -> Option<usize> {
    // SAFETY: every cuDNN has this function with this signature.
    let function = unsafe { shared.get::<unsafe extern "C" fn() -> usize>("cudnnGetCudartVersion") }.ok()?;
    // SAFETY: the function takes no arguments and only returns a number.
    Some(unsafe { function() })
}

/// The first function that every cuDNN 9 has and this library lacks.
fn lacking(table: &CudnnFunctions) -> Option<&'static str> {
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
