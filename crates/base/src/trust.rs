//! Who can write where code is read from: one rule for the vault's folder and for folders of libraries.
//!
//! On Unix a file or folder is trusted when it belongs to this user or to root and neither its group nor others can
//! write to it; the folders above must not let everyone rename what is in them. Other systems are not checked.

use std::ffi::OsString;
use std::fs::Metadata;
use std::path::Path;

#[cfg(unix)]
mod libraries;

/// The variable that allows libraries which others can change: `1` or `0`.
pub const LIBRARIES_ALLOW_SHARED_VARIABLE: &str = "QKVAULT_LIBRARIES_ALLOW_SHARED";

/// Why the file or folder that `meta` describes is not trusted; `None` if it is.
#[cfg(unix)]
#[must_use]
pub fn distrust(meta: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (owner, me) = (meta.uid(), rustix::process::geteuid().as_raw());
    if owner != 0 && owner != me {
        return Some(format!("it belongs to user {owner}, this process is user {me}"));
    }
    let mode = meta.mode() & 0o7777;
    let who = match (mode & 0o020 != 0, mode & 0o002 != 0) {
        (false, false) => return None,
        (true, false) => "its group",
        (_, true) => "everyone",
    };
    Some(format!("{who} can write to it (mode {mode:04o})"))
}

/// Why the file or folder that `meta` describes is not trusted: owners and permissions are not known here.
#[cfg(not(unix))]
#[must_use]
pub fn distrust(_: &Metadata) -> Option<String> {
    None
}

/// Why the folders above `path` are not trusted: everyone may rename files of others in one of them. `None` if they
/// are.
#[cfg(unix)]
#[must_use]
pub fn distrust_above(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    // A path that cannot be resolved fails in the operation that needs it.
    let real = path.canonicalize().ok()?;
    real.ancestors().skip(1).find_map(|folder| {
        let mode = std::fs::metadata(folder).ok()?.mode();
        let open = mode & 0o002 != 0 && mode & 0o1000 == 0;
        let mode = mode & 0o7777;
        open.then(|| format!("everyone can rename what is in {} (mode {mode:04o}, not sticky)", folder.display()))
    })
}

/// Why the folders above `path` are not trusted: owners and permissions are not known here.
#[cfg(not(unix))]
#[must_use]
pub fn distrust_above(_: &Path) -> Option<String> {
    None
}

/// Why a library must not be loaded (or a folder of programs must not be used): others can change it, a library of the
/// same family beside it, the folder, or, in the cache folder, a folder above it. The text says how to fix that. `None`
/// if it may, and if [`LIBRARIES_ALLOW_SHARED_VARIABLE`] is `1`.
///
/// A group of the user's own, which has the user's number and no members, counts as the user: many systems let such a
/// group write to whatever the user makes.
pub fn distrust_library(path: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let allowed = variable(LIBRARIES_ALLOW_SHARED_VARIABLE).filter(|value| !value.is_empty());
    match allowed.as_deref().map(|value| value.to_str()) {
        Some(Some("1")) => None,
        None | Some(Some("0")) => shared_library(path, variable).map(|why| {
            format!(
                "is not trusted: {why}. A library runs in this process, so whoever can write there can run code in it. \
                 Make it private (chown it to this user or root, chmod -R go-w), use another one, or, if you trust \
                 everyone who can write there, allow it with {LIBRARIES_ALLOW_SHARED_VARIABLE}=1"
            )
        }),
        Some(_) => {
            let value = allowed.unwrap_or_default();
            Some(format!("is not used: {LIBRARIES_ALLOW_SHARED_VARIABLE} is {value:?}, expected 1 or 0"))
        }
    }
}

/// Who else can change a library, or a folder of programs, and where, whether or not that is allowed; `None` if nobody
/// can. The same rule as [`distrust_library`]'s.
#[cfg(unix)]
pub fn shared_library(path: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    libraries::shared(path, &crate::CacheDir::find(variable).path)
}

/// Who else can change a library: owners and permissions are not known here.
#[cfg(not(unix))]
pub fn shared_library(_: &Path, _: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    None
}

/// While this value lives, group and others cannot write to what this process makes, in any of its threads. For
/// programs that fetch what [`distrust_library`] judges later: many users' files are open to their group.
#[cfg(unix)]
#[derive(Debug)]
pub struct OnlyOwnerWrites(rustix::fs::Mode);

#[cfg(unix)]
impl OnlyOwnerWrites {
    /// Begins; the rest of the process's mask stays.
    #[must_use]
    pub fn begin() -> Self {
        use rustix::fs::Mode;
        let before = rustix::process::umask(Mode::WGRP | Mode::WOTH);
        rustix::process::umask(before | Mode::WGRP | Mode::WOTH);
        OnlyOwnerWrites(before)
    }
}

#[cfg(unix)]
impl Drop for OnlyOwnerWrites {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

#[cfg(all(test, unix))]
mod tests;
