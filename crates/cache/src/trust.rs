//! Who can write where the vault reads: the vault creates private folders and refuses those that others can write to.
//!
//! A plan is code for the GPU. On Unix a folder is trusted when it belongs to this user or to root and neither group
//! nor others can write to it; the folders above must not let everyone rename what is in them. Other systems are not
//! checked.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

/// Creates a folder and the missing ones above it, for this user only, or, if `shared`, as the umask allows.
pub(crate) fn create_private(path: &Path, shared: bool) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    if !shared {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    #[cfg(not(unix))]
    let _ = shared;
    builder.create(path)
}

/// Why the file or folder that `meta` describes is not trusted; `None` if it is.
#[cfg(unix)]
pub(crate) fn distrust(meta: &Metadata) -> Option<String> {
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

#[cfg(not(unix))]
pub(crate) fn distrust(_: &Metadata) -> Option<String> {
    None
}

/// Why the folders above `path` are not trusted: everyone may rename files of others in one of them. `None` if they
/// are.
#[cfg(unix)]
pub(crate) fn distrust_above(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    // A path that cannot be resolved fails in the operation that needs it.
    let real = path.canonicalize().ok()?;
    real.ancestors().skip(1).find_map(|folder| {
        let mode = fs::metadata(folder).ok()?.mode();
        let open = mode & 0o002 != 0 && mode & 0o1000 == 0;
        let mode = mode & 0o7777;
        open.then(|| format!("everyone can rename what is in {} (mode {mode:04o}, not sticky)", folder.display()))
    })
}

#[cfg(not(unix))]
pub(crate) fn distrust_above(_: &Path) -> Option<String> {
    None
}
