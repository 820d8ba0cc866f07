//! `cargo xtask fetch`: gets cuDNN and what it needs into the user's cache folder.
//!
//! Wheels come through pip, so that the index and proxy configured for it are used, and are checked against pinned hashes. They are unpacked
//! into a temporary folder beside the final one, a manifest is written last, and one rename makes the whole visible: whatever cuts a run
//! short, a folder that looks complete is complete. Other commands call [`ensure`].

mod download;
mod error;
mod licence;
mod manifest;
mod pins;
mod pip;
mod unpack;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use qkvault_base::LibrarySet;

pub use error::Error;
use manifest::{Manifest, State};
use pins::{Parcel, Pins};

use crate::ui;

/// Begins the name of every folder that is being filled.
const UNFINISHED: &str = ".unfinished-";

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The version, whole or in part: 9.27.0.42, 9.19
    #[arg(long, value_name = "VERSION")]
    cudnn: Option<String>,
    /// The three libraries that attention needs (the default)
    #[arg(long, conflicts_with = "full")]
    slim: bool,
    /// All of cuDNN, with the cuBLAS that it needs: more than 1 GB to download
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    options: Options,
}

/// How to fetch, the same for every command that does.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Make the folder `VERSION-SET` below DIR instead of in the cache folder
    #[arg(long, value_name = "DIR")]
    pub dest: Option<PathBuf>,
    /// Whether NVIDIA's licence is accepted; `--accept-nvidia-license` is an option of every command of `cargo xtask`
    #[arg(skip)]
    pub accept_nvidia_license: bool,
    /// Another list of wheels; for tests
    #[arg(long, value_name = "FILE", hide = true)]
    pub pins: Option<PathBuf>,
    /// Take wheels from this folder and from nowhere else; for tests and for machines without a network
    #[arg(long, value_name = "DIR", hide = true)]
    pub find_links: Option<PathBuf>,
}

impl Args {
    /// The same, with NVIDIA's licence accepted or not.
    #[must_use]
    pub fn accepting(mut self, accepted: bool) -> Args {
        self.options.accept_nvidia_license = accepted;
        self
    }
}

/// What was asked for, where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The folder, with `nvidia/…/lib` below it; [`qkvault_sys::Search::at`] takes it.
    pub dir: PathBuf,
    /// Its unpacked size.
    pub bytes: u64,
    /// Whether all was there before.
    pub was_there: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), Error> {
    let set = if args.full { LibrarySet::Full } else { LibrarySet::Slim };
    let fetched = ensure(args.cudnn.as_deref(), set, &args.options)?;
    let what = if fetched.was_there { "nothing to do, all is there" } else { "fetched" };
    ui::say(&format!("{what}: {} ({})", fetched.dir.display(), ui::size(fetched.bytes)));
    Ok(())
}

/// Makes sure that a cuDNN is there, fetching it if it is not. The version may be given in part; without one it is the list's default.
pub fn ensure(version: Option<&str>, set: LibrarySet, options: &Options) -> Result<Fetched, Error> {
    let parcel = Pins::read(options.pins.as_deref())?.cudnn(version, set)?;
    let dest = options.dest.clone().unwrap_or_else(qkvault_base::cudnn_dir);
    ensure_parcel(&parcel, &dest, options)
}

/// Makes sure that a tool of a chore is there.
pub(crate) fn ensure_tool(name: &str, options: &Options) -> Result<Fetched, Error> {
    let parcel = Pins::read(options.pins.as_deref())?.tool(name)?;
    ensure_parcel(&parcel, &qkvault_base::libraries_dir().join("tools"), options)
}

fn ensure_parcel(parcel: &Parcel, dest: &Path, options: &Options) -> Result<Fetched, Error> {
    let dir = dest.join(&parcel.folder);
    // First without the lock, so that a complete set needs no folder that can be written.
    if let State::Whole(bytes) = Manifest::state(parcel, &dir) {
        return Ok(Fetched { dir, bytes, was_there: true });
    }
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    if (os, arch) != ("linux", "x86_64") {
        return Err(Error::Platform { os, arch });
    }
    if parcel.nvidia {
        licence::accepted(options.accept_nvidia_license)?;
    }
    std::fs::create_dir_all(dest).map_err(|cause| Error::io("create", dest, cause))?;
    let lock = lock(dest)?;
    let broken = match Manifest::state(parcel, &dir) {
        // Another run finished while this one waited.
        State::Whole(bytes) => return Ok(Fetched { dir, bytes, was_there: true }),
        State::Absent => false,
        State::Broken(reason) => {
            ui::say(&format!("{} is not complete ({reason}); it is fetched again", dir.display()));
            true
        }
    };
    if lock.is_some() {
        sweep(dest);
    }
    let wheels = dest.join(".wheels");
    let files = download::wheels(parcel, &wheels, &dir, options)?;
    let bytes = fill(parcel, &files, dest, &dir, broken)?;
    // Only when everything is in place: until then they spare a second download.
    let _ = std::fs::remove_dir_all(&wheels);
    Ok(Fetched { dir, bytes, was_there: false })
}

/// Unpacks into a temporary folder and moves it into place.
fn fill(parcel: &Parcel, files: &[PathBuf], dest: &Path, dir: &Path, broken: bool) -> Result<u64, Error> {
    let create = |cause| Error::io("create a folder in", dest, cause);
    let temporary = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(dest).map_err(create)?;
    let mut entries = Vec::new();
    for (wheel, file) in parcel.wheels.iter().zip(files) {
        if !ui::watched() {
            ui::say(&format!("unpacking {} {}", wheel.name, wheel.version));
        }
        entries.extend(unpack::wheel(wheel, file, temporary.path())?);
    }
    let bytes = entries.iter().map(|entry| entry.bytes).sum();
    Manifest::new(parcel, entries).write(temporary.path())?;
    // Readable by all like any installed library; a temporary folder is its maker's alone.
    open_to_all(temporary.path())?;
    if broken {
        let aside = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(dest).map_err(create)?;
        std::fs::rename(dir, aside.path().join("old")).map_err(|cause| Error::io("move aside", dir, cause))?;
    }
    std::fs::rename(temporary.path(), dir).map_err(|cause| Error::io("move into place", dir, cause))?;
    // It is no longer where it was made.
    let _ = temporary.keep();
    Ok(bytes)
}

fn open_to_all(dir: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir, mode).map_err(|cause| Error::io("set the permissions of", dir, cause))
}

/// One fetch at a time per folder. Where the file system has no locks, the final rename alone must do.
fn lock(dest: &Path) -> Result<Option<File>, Error> {
    let path = dest.join(".lock");
    let file = File::create(&path).map_err(|cause| Error::io("create", &path, cause))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            ui::say("another fetch is running; waiting for it");
            Ok(file.lock().is_ok().then_some(file))
        }
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Removes what runs that were cut short left behind. Called with the lock held, so nobody is filling them.
fn sweep(dest: &Path) {
    for entry in std::fs::read_dir(dest).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
