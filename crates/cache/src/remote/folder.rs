//! A folder as a remote: any mount that several hosts share.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{MAX_REMOTE_BYTES, Remote, RemoteError, remote_name};
use crate::read::open_for_reading;
use crate::{Key, trust};

/// A remote that keeps entries as files below a folder. It never creates the folder, because a missing mount must not
/// be filled beneath its mount point.
#[derive(Clone, Debug)]
pub struct FolderRemote {
    root: PathBuf,
    allow_shared: bool,
}

impl FolderRemote {
    /// A remote in this folder, which must exist when the remote is used. With `allow_shared_writable`, others may be
    /// able to write to it; then seal the entries, or trust all these users.
    pub fn new(root: impl Into<PathBuf>, allow_shared_writable: bool) -> Self {
        FolderRemote { root: root.into(), allow_shared: allow_shared_writable }
    }

    fn check(&self, meta: &fs::Metadata, what: &Path) -> Result<(), RemoteError> {
        match trust::distrust(meta) {
            Some(why) if !self.allow_shared => {
                Err(RemoteError::Untrusted { detail: format!("{}: {why}", what.display()) })
            }
            _ => Ok(()),
        }
    }
}

impl Remote for FolderRemote {
    fn location(&self) -> String {
        self.root.display().to_string()
    }

    fn fetch(&self, key: &Key, _: Duration) -> Result<Option<Vec<u8>>, RemoteError> {
        let root = fs::metadata(&self.root).map_err(unreachable)?;
        self.check(&root, &self.root)?;
        let path = self.root.join(remote_name(key));
        // A pipe in the place of an entry must not keep a thread.
        let file = match open_for_reading(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreachable(error)),
        };
        let meta = file.metadata().map_err(unreachable)?;
        self.check(&meta, &path)?;
        if !meta.is_file() {
            let detail = format!("{} is no regular file", path.display());
            return Err(RemoteError::Unreachable { detail });
        }
        let mut bytes = Vec::new();
        file.take(MAX_REMOTE_BYTES + 1).read_to_end(&mut bytes).map_err(unreachable)?;
        match bytes.len() as u64 > MAX_REMOTE_BYTES {
            true => Err(RemoteError::TooLarge { limit: MAX_REMOTE_BYTES }),
            false => Ok(Some(bytes)),
        }
    }

    fn store(&self, key: &Key, bytes: &[u8], _: Duration) -> Result<(), RemoteError> {
        let root = fs::metadata(&self.root).map_err(unreachable)?;
        self.check(&root, &self.root)?;
        let path = self.root.join(remote_name(key));
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(unreachable)?;
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            // Other hosts read as other users; the umask decides how far.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(fs::Permissions::from_mode(0o644));
        }
        let mut file = builder.prefix(".tmp-").tempfile_in(folder).map_err(unreachable)?;
        file.write_all(bytes).map_err(unreachable)?;
        file.as_file().sync_all().map_err(unreachable)?;
        file.persist(&path).map_err(|error| unreachable(error.error))?;
        Ok(())
    }
}

fn unreachable(error: io::Error) -> RemoteError {
    RemoteError::Unreachable { detail: error.to_string() }
}
