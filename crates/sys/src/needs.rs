//! Finds and opens the libraries that cuDNN would otherwise open by itself.
//!
//! cuDNN opens its engines and NVIDIA's compiler on first use. If one is missing, it returns no engines at all or an
//! internal error, or it ends the process. The table lists what each version and set opens. It was observed with the
//! loader's trace (`LD_DEBUG=libs`) during the compile of an attention, for 9.14.0, 9.19.0, 9.20.0, 9.21.0, 9.23.0,
//! 9.25.1, 9.27.0, 9.28.0 and 9.28.1 (which looks for `libcudnn_engines_precompiled` and `libcudnn_engines_tensor_ir`
//! in the slim set too, and compiles without them):
//!
//! | what | needed by | without it |
//! |---|---|---|
//! | `libcudnn_graph` | every call, `cudnnGetVersion` too | the process ends |
//! | `libcudnn_engines_runtime_compiled` | finalizing any tensor or operation | status 1008 |
//! | `libnvrtc` and the `libnvrtc-builtins` of its exact version | 9.20 and older, also to load a plan; from 9.21 the compiler is inside `libcudnn_graph` | no engines; status 3008 on loading; without the builtins 4001 |
//! | `libcublasLt` | the full set, 9.19 and newer | the process ends |
//! | `libcuda.so.1` | all; linked by the engines of 9.27, opened by those of 9.25 and older | status 1008; no engines |
//!
//! `libnvrtc` does not search its own folder for its builtins, so both are opened here by absolute path. The loader
//! gives a library that is already open under a name to every later look-up of that name.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use libloading::os::unix::Library as Shared;

use crate::error::LoadError;
use crate::places;
use crate::process;
use crate::search::Environment;
use qkvault_base::{CudnnVersion, LibrarySet};

const GRAPH: &str = "libcudnn_graph.so.9";
const RUNTIME_COMPILED: &str = "libcudnn_engines_runtime_compiled.so.9";
const DRIVER: &str = "libcuda.so.1";

/// The libraries of the full set that are not in the slim one, for every 9.x.
const FULL: &[&str] = &[
    "libcudnn_ops.so.9",
    "libcudnn_cnn.so.9",
    "libcudnn_adv.so.9",
    "libcudnn_heuristic.so.9",
    "libcudnn_engines_precompiled.so.9",
];

/// The first version in which the compiler is part of `libcudnn_graph`.
const COMPILER_INSIDE: CudnnVersion = CudnnVersion::new(9, 21, 0);

/// Folders, relative to cuDNN's, in which NVIDIA's wheels keep the other libraries; cuDNN's run path has the same ones.
const WHEELS: &[&str] = &["../../cu13/lib", "../../cublas/lib", "../../cuda_nvrtc/lib"];

/// Checks that cuDNN's other libraries are beside the one to load. Only looks for files.
pub(crate) fn beside(library: &Path, set: LibrarySet) -> Result<(), LoadError> {
    let dir = dir_of(library);
    let full = if set == LibrarySet::Full { FULL } else { &[] };
    match [GRAPH, RUNTIME_COMPILED].iter().chain(full).find(|name| !dir.join(name).exists()) {
        None => Ok(()),
        Some(name) => Err(LoadError::Missing {
            library: (*name).to_owned(),
            needed_by: library.display().to_string(),
            looked_in: vec![dir.display().to_string()],
            remedy: "it belongs beside libcudnn.so.9: install that package again".to_owned(),
        }),
    }
}

/// Opens the graph library beside this `libcudnn.so.9`. Even `cudnnGetVersion` needs it.
pub(crate) fn graph(library: &Path) -> Result<(), LoadError> {
    sub_library(library, GRAPH)
}

/// Opens the libraries outside cuDNN that this version and set need, except for the driver. Returns the NVRTC, if it is
/// a library of its own.
///
/// `cuda` is the major version of the CUDA that this cuDNN was built with; it is part of the names.
pub(crate) fn companions(
    library: &Path,
    version: CudnnVersion,
    set: LibrarySet,
    cuda: usize,
    environment: &Environment,
) -> Result<Option<Nvrtc>, LoadError> {
    let companions = Companions { library, version, set, environment };
    let nvrtc = if version < COMPILER_INSIDE { Some(companions.nvrtc(&format!("libnvrtc.so.{cuda}"))?) } else { None };
    if set == LibrarySet::Full {
        companions.open(&format!("libcublasLt.so.{cuda}"), "nvidia-cublas")?;
    }
    Ok(nvrtc)
}

/// Opens the driver's library, unless it or the stand-in is already open, and then the engines, which need it.
pub(crate) fn engines(library: &Path) -> Result<(), LoadError> {
    if process::already_open(DRIVER).is_none()
        && let Err(error) = process::open(OsStr::new(DRIVER))
    {
        return Err(LoadError::Missing {
            library: DRIVER.to_owned(),
            needed_by: "cuDNN's engines".to_owned(),
            looked_in: vec!["this process".to_owned(), qkvault_base::with_sources(&error)],
            remedy: "to run, install the NVIDIA driver; to compile without one, call qkvault_headless::ensure() first"
                .to_owned(),
        });
    }
    sub_library(library, RUNTIME_COMPILED)
}

fn dir_of(library: &Path) -> &Path {
    library.parent().unwrap_or(Path::new(""))
}

fn sub_library(library: &Path, name: &str) -> Result<(), LoadError> {
    let file = dir_of(library).join(name);
    process::open(file.as_os_str()).map(drop).map_err(|error| LoadError::Missing {
        library: name.to_owned(),
        needed_by: library.display().to_string(),
        looked_in: vec![qkvault_base::with_sources(&error)],
        remedy: "it belongs beside libcudnn.so.9: install that package again".to_owned(),
    })
}

/// The NVRTC that a cuDNN compiles with, where it is a library of its own (9.20 and older).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvrtc {
    /// The path of the file.
    pub path: PathBuf,
    /// The version that `nvrtcVersion` returns: major, minor.
    pub version: (u32, u32),
    /// Whether the process had loaded it before cuDNN was opened. cuDNN then uses it whatever lies beside cuDNN,
    /// because it asks the loader for the name.
    pub was_loaded: bool,
    /// Other files of the same name in the folders searched; they are not used.
    pub others: Vec<PathBuf>,
}

/// The cuDNN that needs companions, for the search and for errors.
struct Companions<'a> {
    library: &'a Path,
    version: CudnnVersion,
    set: LibrarySet,
    environment: &'a Environment,
}

impl Companions<'_> {
    /// NVRTC with its builtins: the library that cuDNN gets when it asks the loader for this name.
    fn nvrtc(&self, soname: &str) -> Result<Nvrtc, LoadError> {
        let was_loaded = process::already_open(soname).is_some();
        let opened = self.open(soname, "nvidia-cuda-nvrtc")?;
        // Looked up by name, as cuDNN does. If two libraries with one name are loaded, the loader returns the first.
        let shared = process::already_open(soname).or_else(|| process::open(opened.as_os_str()).ok());
        let path = shared.as_ref().and_then(|nvrtc| process::file_of(nvrtc, "nvrtcVersion")).unwrap_or(opened);
        let Some(version) = shared.and_then(|nvrtc| nvrtc_version(&nvrtc)) else {
            let detail = format!("{}: it has no function nvrtcVersion", path.display());
            return Err(self.missing("libnvrtc", vec![detail], "nvidia-cuda-nvrtc"));
        };
        self.builtins(&path, version)?;
        let mut others: Vec<PathBuf> = Vec::new();
        for file in self.folders().map(|dir| dir.join(soname)).filter(|file| file.exists()) {
            let same = |other: &PathBuf| process::same_file(other, &file);
            if !same(&path) && !others.iter().any(same) {
                others.push(file);
            }
        }
        Ok(Nvrtc { path, version, was_loaded, others })
    }

    /// The folders to search for a companion, in order: cuDNN's folder, those of NVIDIA's wheels, and CUDA toolkits.
    fn folders(&self) -> impl Iterator<Item = PathBuf> {
        let dir = dir_of(self.library).to_owned();
        let wheels = WHEELS.iter().map({
            let dir = dir.clone();
            move |below| dir.join(below)
        });
        let toolkits = places::TOOLKIT_VARIABLES
            .iter()
            .filter_map(|name| Some(PathBuf::from(self.environment.get(name)?).join("lib64")));
        std::iter::once(dir).chain(wheels).chain(toolkits)
    }

    /// Opens the library of this name: one that is already open, or from one of `folders`, or as the loader finds it.
    fn open(&self, soname: &str, wheel: &str) -> Result<PathBuf, LoadError> {
        if process::already_open(soname).is_some() {
            return Ok(process::loaded_file(soname).unwrap_or_else(|| PathBuf::from(soname)));
        }
        let mut looked_in = Vec::new();
        for dir in self.folders() {
            let file = dir.join(soname);
            if !file.exists() {
                looked_in.push(dir.display().to_string());
                continue;
            }
            if let Some(why) = self.distrust(&file) {
                looked_in.push(format!("{}: {why}", file.display()));
                continue;
            }
            match process::open(file.as_os_str()) {
                Ok(_) => return Ok(file),
                Err(error) => looked_in.push(qkvault_base::with_sources(&error)),
            }
        }
        match process::open(OsStr::new(soname)) {
            Ok(_) => Ok(process::loaded_file(soname).unwrap_or_else(|| PathBuf::from(soname))),
            Err(error) => {
                looked_in.push(qkvault_base::with_sources(&error));
                Err(self.missing(soname, looked_in, wheel))
            }
        }
    }

    /// Opens the builtins of an open `libnvrtc`; their name contains its version.
    fn builtins(&self, nvrtc: &Path, (major, minor): (u32, u32)) -> Result<(), LoadError> {
        let soname = format!("libnvrtc-builtins.so.{major}.{minor}");
        if process::already_open(&soname).is_some() {
            return Ok(());
        }
        let beside = dir_of(nvrtc).join(&soname);
        if let Some(why) = self.distrust(&beside) {
            return Err(self.missing(&soname, vec![format!("{}: {why}", beside.display())], "nvidia-cuda-nvrtc"));
        }
        let opened = process::open(beside.as_os_str()).or_else(|_| process::open(OsStr::new(&soname)));
        opened.map(drop).map_err(|error| {
            let looked_in = vec![dir_of(nvrtc).display().to_string(), qkvault_base::with_sources(&error)];
            self.missing(&soname, looked_in, "nvidia-cuda-nvrtc")
        })
    }

    /// Why a companion must not be loaded from a file: others can change it.
    fn distrust(&self, file: &Path) -> Option<String> {
        qkvault_base::distrust_library(file, |name| self.environment.get(name))
    }

    fn missing(&self, library: &str, looked_in: Vec<String>, wheel: &str) -> LoadError {
        let Self { version, set, .. } = self;
        LoadError::Missing {
            library: library.to_owned(),
            needed_by: format!("cuDNN {version} ({set}) at {}", self.library.display()),
            looked_in,
            remedy: format!(
                "`cargo xtask fetch --cudnn {version} --{set}` gets cuDNN with all it needs; in a Python environment, install the wheel {wheel}"
            ),
        }
    }
}

fn nvrtc_version(nvrtc: &Shared) -> Option<(u32, u32)> {
    // SAFETY: every NVRTC has this function with this signature.
    let function = unsafe { nvrtc.get::<unsafe extern "C" fn(*mut i32, *mut i32) -> i32>("nvrtcVersion") }.ok()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both addresses are writable.
    let result = unsafe { function(&mut major, &mut minor) };
    (result == 0).then_some((major.try_into().ok()?, minor.try_into().ok()?))
}
