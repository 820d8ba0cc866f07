//! Who can write where the vault reads: the vault creates private folders and refuses those that others can write to.
//!
//! A plan is code for the GPU, so the rule is that of folders of libraries, which is in `qkvault-base`.

use std::fs;
use std::io;
use std::path::Path;

pub(crate) use qkvault_base::{distrust, distrust_above};

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
