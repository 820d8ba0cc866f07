//! Names of files and folders of a vault. The format of what is kept stands in a folder's name, so a new one never meets an old file.

use std::path::{Path, PathBuf};

use crate::{Cause, Key};

/// Ending of entry files.
pub(crate) const ENTRY_SUFFIX: &str = ".qkv";

/// Start of the names of files being written; they stand beside the entries, so that renaming stays in one folder.
pub(crate) const TEMP_PREFIX: &str = ".tmp-";

/// Format of what is kept: number of the folder `vault/v3`, of the names in a remote store, and of packs.
///
/// It goes up with the layout, and whenever what is kept under keys, or the keys, change meaning, though entries be readable still:
/// nobody would ask for an old key again. What is left of an older one is known by its folder ([`Vault::older`](crate::Vault::older)).
pub const STORE_FORMAT: u16 = 3;

/// The places of one vault.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// What the user named.
    pub(crate) root: PathBuf,
    /// `ROOT/vault`.
    pub(crate) vault: PathBuf,
    /// `ROOT/vault/v3`.
    pub(crate) version: PathBuf,
    /// `ROOT/vault/v3/entries`.
    pub(crate) entries: PathBuf,
    /// `ROOT/vault/v3/locks`.
    pub(crate) locks: PathBuf,
    /// `ROOT/vault/v3/quarantine`.
    pub(crate) quarantine: PathBuf,
}

impl Places {
    pub(crate) fn new(root: PathBuf) -> Self {
        let vault = root.join("vault");
        let version = vault.join(format!("v{STORE_FORMAT}"));
        Places {
            entries: version.join("entries"),
            locks: version.join("locks"),
            quarantine: version.join("quarantine"),
            version,
            vault,
            root,
        }
    }

    /// The folder of an entry: 256 of them, by the first byte of the key.
    pub(crate) fn shard(&self, key: &Key) -> PathBuf {
        self.entries.join(&key.to_string()[..2])
    }

    /// The file of an entry.
    pub(crate) fn entry(&self, key: &Key) -> PathBuf {
        let name = entry_name(key);
        let mut path = PathBuf::with_capacity(self.entries.as_os_str().len() + name.len() + 4);
        path.push(&self.entries);
        path.push(&name[..2]);
        path.push(name);
        path
    }

    /// The lock file of a key.
    pub(crate) fn lock(&self, key: &Key) -> PathBuf {
        self.locks.join(format!("{key}.lock"))
    }

    /// A name for a rejected entry; `unique` tells apart those of one key and cause.
    pub(crate) fn rejected(&self, key: &Key, cause: Cause, unique: u64) -> PathBuf {
        let name = format!("{key}.{cause}.{}-{unique}", std::process::id());
        self.quarantine.join(name)
    }
}

/// The file name of an entry.
pub(crate) fn entry_name(key: &Key) -> String {
    format!("{key}{ENTRY_SUFFIX}")
}

/// The key in the name of an entry file; `None` for any other file.
pub(crate) fn key_of(path: &Path) -> Option<Key> {
    let name = path.file_name()?.to_str()?;
    let key: Key = name.strip_suffix(ENTRY_SUFFIX)?.parse().ok()?;
    // Upper case would be a second name for the same key.
    (name == entry_name(&key)).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_others_do_not() {
        let places = Places::new("/r".into());
        let key = Key([0xab; 32]);
        let path = places.entry(&key);
        assert!(path.starts_with("/r/vault/v3/entries/ab"));
        assert_eq!(key_of(&path), Some(key));
        for other in ["x", "ab.qkv", ".tmp-123", &format!("{key}.qkv.bak")] {
            assert_eq!(key_of(Path::new(other)), None, "{other}");
        }
        let upper = format!("{}.qkv", key.to_string().to_uppercase());
        assert_eq!(key_of(Path::new(&upper)), None);
    }
}
