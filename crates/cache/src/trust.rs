//! Who can write where the vault reads: folders are made private, and ones that others can write to are refused.
//!
//! A plan is code for the GPU. On Unix a folder is trusted when it belongs to this user or to root and neither group nor
//! others can write to it; the folders above must not let everyone rename what is in them. Elsewhere nothing is checked.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

/// Makes a folder, and those above it that are missing, for this user only; `shared` leaves the access to the umask.
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

/// Why what `meta` describes is not trusted, if it is not.
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

/// Why the folders above `path` are not trusted: one in which everyone may rename what belongs to others.
#[cfg(unix)]
pub(crate) fn distrust_above(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    // What cannot be resolved or looked at is left to the operation that needs it.
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
