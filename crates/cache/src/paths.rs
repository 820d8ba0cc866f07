//! Names of the files and folders of a vault. A folder's name has the format, so a new version never reads an old file.

use std::path::{Path, PathBuf};

use crate::{Key, RejectionCause};

/// Ending of entry files.
pub(crate) const ENTRY_SUFFIX: &str = ".qkv";

/// Start of the names of files being written. They lie beside the entries, so that a rename stays in one folder.
pub(crate) const TEMP_PREFIX: &str = ".tmp-";

/// Format of the store: the number of the folder `vault/v4`, of the names in a remote store, and of packs.
///
/// It is raised with the layout of the folder, and when keys or payloads change their meaning, because no one looks an
/// old key up again. [`Vault::older`](crate::Vault::older) finds folders of older formats.
pub const STORE_FORMAT: u16 = 4;

/// The folders of one vault.
#[derive(Clone, Debug)]
pub(crate) struct VaultLayout {
    /// The folder that the user named.
    pub(crate) root: PathBuf,
    /// `ROOT/vault`.
    pub(crate) vault: PathBuf,
    /// `ROOT/vault/v4`.
    pub(crate) version: PathBuf,
    /// `ROOT/vault/v4/entries`.
    pub(crate) entries: PathBuf,
    /// `ROOT/vault/v4/locks`.
    pub(crate) locks: PathBuf,
    /// `ROOT/vault/v4/quarantine`.
    pub(crate) quarantine: PathBuf,
}

impl VaultLayout {
    pub(crate) fn new(root: PathBuf) -> Self {
        let vault = root.join("vault");
        let version = vault.join(format!("v{STORE_FORMAT}"));
        VaultLayout {
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

    /// The file of a rejected entry; `unique` distinguishes files of one key and cause.
    pub(crate) fn rejected(&self, key: &Key, cause: RejectionCause, unique: u64) -> PathBuf {
        let name = format!("{key}.{cause}.{}-{unique}", std::process::id());
        self.quarantine.join(name)
    }
}

/// Whether this is the name of a file in quarantine: `<key>.<cause>.<process>-<number>`.
pub(crate) fn is_rejected(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let mut parts = name.unwrap_or_default().splitn(3, '.');
    let (key, cause, unique) = (parts.next(), parts.next(), parts.next());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    key.is_some_and(|key| key.parse::<Key>().is_ok())
        // Older versions had other causes.
        && cause.is_some_and(|cause| !cause.is_empty() && cause.bytes().all(|c| c.is_ascii_lowercase() || c == b'-'))
        && unique.and_then(|unique| unique.split_once('-')).is_some_and(|(a, b)| is_number(a) && is_number(b))
}

/// Whether this is the name of a lock: `<key>.lock`.
pub(crate) fn is_lock(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_suffix(".lock")).is_some_and(|key| key.parse::<Key>().is_ok())
}

/// The file name of an entry.
pub(crate) fn entry_name(key: &Key) -> String {
    format!("{key}{ENTRY_SUFFIX}")
}

/// The key in the name of an entry file; `None` for any other file.
pub(crate) fn key_of(path: &Path) -> Option<Key> {
    let name = path.file_name()?.to_str()?;
    let key: Key = name.strip_suffix(ENTRY_SUFFIX)?.parse().ok()?;
    // Upper case would be a second name of the same key.
    (name == entry_name(&key)).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_rejected_files_and_locks_are_known_and_no_others() {
        let layout = VaultLayout::new("/r".into());
        let key = Key([0xab; 32]);
        for cause in RejectionCause::ALL {
            assert!(is_rejected(&layout.rejected(&key, cause, 7)), "{cause}");
        }
        assert!(is_lock(&layout.lock(&key)));
        let others = ["notes.txt", "ab.magic.1-2", &format!("{key}"), &format!("{key}.magic"), ".", ".."];
        for other in others.into_iter().chain(["", "x.lock", &format!("{key}.magic.1-2.bak"), &format!("{key}.A.1-2")])
        {
            assert!(!is_rejected(Path::new(other)) && !is_lock(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn names_come_back_and_others_do_not() {
        let layout = VaultLayout::new("/r".into());
        let key = Key([0xab; 32]);
        let path = layout.entry(&key);
        assert!(path.starts_with(format!("/r/vault/v{STORE_FORMAT}/entries/ab")));
        assert_eq!(key_of(&path), Some(key));
        for other in ["x", "ab.qkv", ".tmp-123", &format!("{key}.qkv.bak")] {
            assert_eq!(key_of(Path::new(other)), None, "{other}");
        }
        let upper = format!("{}.qkv", key.to_string().to_uppercase());
        assert_eq!(key_of(Path::new(&upper)), None);
    }
}
