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

use crate::error::CudnnLoadError;
use crate::open::version_of;
use crate::places;
use crate::process;
use crate::search::Environment;
use qkvault_base::{CudnnVersion, LibrarySet, Unloaded};

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

/// What to do where a library of cuDNN's own is missing or does not load.
const AGAIN: &str = "it belongs beside libcudnn.so.9: install that package again";

/// Checks that cuDNN's other libraries are beside the one to load, and of its version, as far as names tell it. Only
/// looks for files.
pub(crate) fn beside(library: &Path, set: LibrarySet) -> Result<(), CudnnLoadError> {
    let dir = dir_of(library);
    let full = if set == LibrarySet::Full { FULL } else { &[] };
    match [GRAPH, RUNTIME_COMPILED].iter().chain(full).find(|name| !dir.join(name).exists()) {
        None => one_version(library, dir),
        Some(name) => Err(CudnnLoadError::Missing {
            library: (*name).to_owned(),
            needed_by: library.display().to_string(),
            looked_in: vec![place(&dir.join(name))],
            remedy: AGAIN.to_owned(),
        }),
    }
}

/// Where a file is not: its folder, or a link that leads to nothing.
fn place(file: &Path) -> String {
    match qkvault_base::dangling(file) {
        Some(target) => {
            format!("{}: a symbolic link to {}, which does not exist", file.display(), target.display())
        }
        None => dir_of(file).display().to_string(),
    }
}

/// Refuses a folder whose files are named after several versions, as a package that was updated in part leaves it. Some
/// of them load together, and no cuDNN is tested so.
fn one_version(library: &Path, dir: &Path) -> Result<(), CudnnLoadError> {
    let others = [GRAPH, RUNTIME_COMPILED].iter().chain(FULL).map(|name| dir.join(name));
    let named: Vec<(PathBuf, CudnnVersion)> = std::iter::once(library.to_owned())
        .chain(others)
        .filter_map(|file| places::version_named(&file).map(|version| (file, version)))
        .collect();
    if named.windows(2).all(|pair| pair[0].1 == pair[1].1) {
        return Ok(());
    }
    let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let versions: Vec<String> = named.iter().map(|(file, version)| format!("{} is {version}", name(file))).collect();
    Err(CudnnLoadError::Mixed { folder: dir.to_owned(), versions: versions.join(", ") })
}

/// Whose fault an undefined symbol is: that of a cuDNN library of another version, which files do not tell but symbols
/// do, or that of a driver that lacks a function.
fn who_lacks(library: &Path, name: &str, words: &str) -> Option<String> {
    let symbol = words.split_once("undefined symbol: ")?.1;
    if symbol.contains("cudnn") {
        let graph = process::already_open(GRAPH).and_then(|shared| version_of(&shared));
        let graph = graph.map_or_else(String::new, |version| format!(", which is {version}"));
        let dir = dir_of(library).display();
        let two = format!("the cuDNN libraries in {dir} are of different versions");
        return Some(format!("{two}: {name} does not fit {GRAPH}{graph}"));
    }
    let driver = process::loaded_file(DRIVER).filter(|_| symbol.starts_with("cu"))?;
    Some(format!("{} lacks it: that is no driver, or one that is too old for this cuDNN", driver.display()))
}

/// Opens the graph library beside this `libcudnn.so.9`. Even `cudnnGetVersion` needs it.
pub(crate) fn graph(library: &Path) -> Result<(), CudnnLoadError> {
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
) -> Result<Option<NvrtcLibrary>, CudnnLoadError> {
    let companions = Companions { library, version, set, environment };
    let nvrtc = if version < COMPILER_INSIDE { Some(companions.nvrtc(&format!("libnvrtc.so.{cuda}"))?) } else { None };
    if set == LibrarySet::Full {
        companions.open(&format!("libcublasLt.so.{cuda}"), "nvidia-cublas")?;
    }
    Ok(nvrtc)
}

/// Opens the driver's library, unless it or the stand-in is already open, and then the engines, which need it.
pub(crate) fn engines(library: &Path) -> Result<(), CudnnLoadError> {
    if process::already_open(DRIVER).is_none()
        && let Err(error) = process::open(OsStr::new(DRIVER))
    {
        let why = Unloaded::new(Path::new(DRIVER), &error);
        let install =
            "to run, install the NVIDIA driver; to compile without one, call qkvault_sys::headless::ensure() first";
        let mend = "install the NVIDIA driver again, or take the folder of that file out of LD_LIBRARY_PATH";
        let (needed_by, remedy) = ("cuDNN's engines", if why.is_there() { mend } else { install });
        return Err(unloaded(
            DRIVER,
            needed_by,
            vec!["this process".to_owned(), why.to_string()],
            why.is_there(),
            remedy,
        ));
    }
    sub_library(library, RUNTIME_COMPILED)
}

fn dir_of(library: &Path) -> &Path {
    library.parent().unwrap_or(Path::new(""))
}

fn sub_library(library: &Path, name: &str) -> Result<(), CudnnLoadError> {
    let file = dir_of(library).join(name);
    process::open(file.as_os_str()).map(drop).map_err(|error| {
        let why = Unloaded::new(&file, &error);
        let mut tried = vec![why.to_string()];
        tried.extend(who_lacks(library, name, &tried[0]));
        unloaded(name, &library.display().to_string(), tried, why.is_there(), AGAIN)
    })
}

/// The error for a library that is not there, or is there and does not load.
fn unloaded(library: &str, needed_by: &str, tried: Vec<String>, there: bool, remedy: &str) -> CudnnLoadError {
    let (library, needed_by) = (library.to_owned(), needed_by.to_owned());
    if there {
        // One text: errors that hold this one must stay small.
        CudnnLoadError::NotLoaded { library, needed_by, tried: format!("{}; {remedy}", tried.join("; ")) }
    } else {
        CudnnLoadError::Missing { library, needed_by, looked_in: tried, remedy: remedy.to_owned() }
    }
}

/// The NVRTC that a cuDNN compiles with, where it is a library of its own (9.20 and older).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvrtcLibrary {
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
    fn nvrtc(&self, soname: &str) -> Result<NvrtcLibrary, CudnnLoadError> {
        let was_loaded = process::already_open(soname).is_some();
        let opened = self.open(soname, "nvidia-cuda-nvrtc")?;
        // Looked up by name, as cuDNN does. If two libraries with one name are loaded, the loader returns the first.
        let shared = process::already_open(soname).or_else(|| process::open(opened.as_os_str()).ok());
        let path = shared.as_ref().and_then(|nvrtc| process::file_of(nvrtc, "nvrtcVersion")).unwrap_or(opened);
        let Some(version) = shared.and_then(|nvrtc| nvrtc_version(&nvrtc)) else {
            let detail = format!("{}: it has no function nvrtcVersion", path.display());
            return Err(self.unloaded("libnvrtc", vec![detail], true, "nvidia-cuda-nvrtc"));
        };
        self.builtins(&path, version)?;
        let mut others: Vec<PathBuf> = Vec::new();
        for file in self.folders().map(|dir| dir.join(soname)).filter(|file| file.exists()) {
            let same = |other: &PathBuf| process::same_file(other, &file);
            if !same(&path) && !others.iter().any(same) {
                others.push(file);
            }
        }
        Ok(NvrtcLibrary { path, version, was_loaded, others })
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
    fn open(&self, soname: &str, wheel: &str) -> Result<PathBuf, CudnnLoadError> {
        if process::already_open(soname).is_some() {
            return Ok(process::loaded_file(soname).unwrap_or_else(|| PathBuf::from(soname)));
        }
        let (mut looked_in, mut there) = (Vec::new(), false);
        for dir in self.folders() {
            let file = dir.join(soname);
            if !file.exists() {
                looked_in.push(place(&file));
                continue;
            }
            there = true;
            if let Some(why) = self.distrust(&file) {
                looked_in.push(format!("{}: {why}", file.display()));
                continue;
            }
            match process::open(file.as_os_str()) {
                Ok(_) => return Ok(file),
                Err(error) => looked_in.push(Unloaded::new(&file, &error).to_string()),
            }
        }
        match process::open(OsStr::new(soname)) {
            Ok(_) => Ok(process::loaded_file(soname).unwrap_or_else(|| PathBuf::from(soname))),
            Err(error) => {
                let why = Unloaded::new(Path::new(soname), &error);
                looked_in.push(why.to_string());
                Err(self.unloaded(soname, looked_in, there || why.is_there(), wheel))
            }
        }
    }

    /// Opens the builtins of an open `libnvrtc`; their name contains its version.
    fn builtins(&self, nvrtc: &Path, (major, minor): (u32, u32)) -> Result<(), CudnnLoadError> {
        let soname = format!("libnvrtc-builtins.so.{major}.{minor}");
        if process::already_open(&soname).is_some() {
            return Ok(());
        }
        let beside = dir_of(nvrtc).join(&soname);
        if let Some(why) = self.distrust(&beside) {
            let tried = vec![format!("{}: {why}", beside.display())];
            return Err(self.unloaded(&soname, tried, true, "nvidia-cuda-nvrtc"));
        }
        let Err(first) = process::open(beside.as_os_str()) else { return Ok(()) };
        process::open(OsStr::new(&soname)).map(drop).map_err(|error| {
            let (first, by_name) = (Unloaded::new(&beside, &first), Unloaded::new(Path::new(&soname), &error));
            let there = first.is_there() || by_name.is_there();
            self.unloaded(&soname, vec![first.to_string(), by_name.to_string()], there, "nvidia-cuda-nvrtc")
        })
    }

    /// Why a companion must not be loaded from a file: others can change it.
    fn distrust(&self, file: &Path) -> Option<String> {
        qkvault_base::distrust_library(file, |name| self.environment.get(name))
    }

    fn unloaded(&self, library: &str, tried: Vec<String>, there: bool, wheel: &str) -> CudnnLoadError {
        let Self { version, set, .. } = self;
        let needed_by = format!("cuDNN {version} ({set}) at {}", self.library.display());
        let remedy = format!(
            "`cargo xtask fetch --cudnn {version} --{set}` gets cuDNN with all it needs; in a Python environment, install \
             the wheel {wheel}"
        );
        unloaded(library, &needed_by, tried, there, &remedy)
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
