//! Reading the file with a seal's secret: a small file that nobody else can read or change.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{SealKey, WeakSecret};

/// Most bytes of a secret's file.
const MOST: u64 = 4096;

/// Why a file gives no secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// It cannot be read.
    #[error("the seal's secret {} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// It is a folder, a pipe, a device or a socket.
    #[error("the seal's secret {} is {found}, expected a regular file; write the secret into a file of mode 0600", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// Others can read or change it, or it belongs to another user.
    #[error(
        "the seal's secret {} is not private: {why}. Whoever knows the secret can seal what he likes: make a new one if \
         others may have read it, and keep it private (chown it to this user, chmod 600)",
        path.display()
    )]
    NotPrivate {
        /// The file.
        path: PathBuf,
        /// Who can read or write it, and its mode.
        why: String,
    },
    /// It has more bytes than a secret.
    #[error("the seal's secret {} has {}{found} bytes, the limit is {limit}; give a file with the secret alone", path.display(), at_least(*found, *limit))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its bytes; `limit` + 1 if it is still growing.
        found: u64,
        /// The most bytes.
        limit: u64,
    },
    /// It has too few bytes, or none.
    #[error("the seal's secret {}: {weak}", path.display())]
    Weak {
        /// The file.
        path: PathBuf,
        /// How many bytes it has.
        weak: WeakSecret,
    },
}

fn at_least(found: u64, limit: u64) -> &'static str {
    if found == limit + 1 { "at least " } else { "" }
}

impl SealKey {
    /// The key derived from the secret in a file, as [`SealKey::from_secret`] does.
    ///
    /// The file is a regular one of at most 4096 bytes that belongs to this user or to root; on Unix neither its group
    /// nor others may read or write it. A file of root's may be readable for its group, if this user is not root.
    ///
    /// # Errors
    ///
    /// [`SecretError`] with what is wrong and how to fix it. It never contains the secret.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let unreadable = |source| SecretError::Unreadable { path: path.to_owned(), source };
        // Looked at before it is opened: to open a device may do something. Then again, as the file that is read.
        check(path, &std::fs::metadata(path).map_err(unreadable)?)?;
        let file = open(path).map_err(unreadable)?;
        check(path, &file.metadata().map_err(unreadable)?)?;
        let mut secret = Vec::new();
        // One byte past the limit is enough to notice a file that grew meanwhile.
        file.take(MOST + 1).read_to_end(&mut secret).map_err(unreadable)?;
        if secret.len() as u64 > MOST {
            return Err(SecretError::TooLong { path: path.to_owned(), found: MOST + 1, limit: MOST });
        }
        SealKey::from_secret(&secret).map_err(|weak| SecretError::Weak { path: path.to_owned(), weak })
    }
}

fn check(path: &Path, meta: &Metadata) -> Result<(), SecretError> {
    let path = path.to_owned();
    if !meta.is_file() {
        return Err(SecretError::NotAFile { path, found: kind(meta) });
    }
    if let Some(why) = exposed(meta) {
        return Err(SecretError::NotPrivate { path, why });
    }
    match meta.len() {
        found if found > MOST => Err(SecretError::TooLong { path, found, limit: MOST }),
        _ => Ok(()),
    }
}

/// Opens a file without waiting for the other end of a pipe that took its place.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;

        use rustix::fs::OFlags;
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32);
    }
    options.open(path)
}

#[cfg(unix)]
fn kind(meta: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let kind = meta.file_type();
    match () {
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

#[cfg(not(unix))]
fn kind(meta: &Metadata) -> &'static str {
    if meta.is_dir() { "a folder" } else { "no regular file" }
}

/// Who else can read or change a secret's file; `None` if nobody can.
#[cfg(unix)]
fn exposed(meta: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    if let Some(why) = crate::trust::distrust(meta) {
        return Some(why);
    }
    let mode = meta.mode() & 0o7777;
    // Services that get secrets from root read them through a group.
    let given_by_root = meta.uid() == 0 && !rustix::process::geteuid().is_root();
    match (mode & 0o040 != 0, mode & 0o004 != 0) {
        (_, true) => Some(format!("everyone can read it (mode {mode:04o})")),
        (true, false) if !given_by_root => Some(format!("its group can read it (mode {mode:04o})")),
        _ => None,
    }
}

#[cfg(not(unix))]
fn exposed(_: &Metadata) -> Option<String> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use qkvault_skip::{Need, skip};

    use super::*;

    const GOOD: &[u8] = b"correct horse battery\n";

    fn file(folder: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("a temporary folder can be written");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a temporary folder can be written");
        path
    }

    fn refused(path: &Path, words: &[&str]) {
        let text = SealKey::from_file(path).expect_err("refused").to_string();
        for words in words.iter().copied().chain([&*path.to_string_lossy()]) {
            assert!(text.contains(words), "'{words}' is not in: {text}");
        }
        assert!(!text.contains("correct horse"), "{text}");
    }

    #[test]
    fn audit_14_a_secret_that_others_can_read_or_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o640, 0o604, 0o620, 0o602, 0o644, 0o666] {
            refused(&file(folder.path(), "open", GOOD, mode), &["not private", &format!("{mode:04o}"), "chmod 600"]);
        }
        let key = SealKey::from_secret(GOOD).unwrap();
        for mode in [0o600, 0o400] {
            assert_eq!(SealKey::from_file(&file(folder.path(), &format!("{mode}"), GOOD, mode)).unwrap(), key);
        }
        // A link, as container platforms make.
        let link = folder.path().join("link");
        symlink(folder.path().join("384"), &link).unwrap();
        assert_eq!(SealKey::from_file(&link).unwrap(), key);
    }

    #[test]
    fn audit_14_pipes_devices_and_folders_are_no_secrets_and_nothing_waits_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        refused(&pipe, &["a pipe", "regular file"]);
        refused(Path::new("/dev/zero"), &["a device"]);
        refused(folder.path(), &["a folder"]);
        refused(&folder.path().join("absent"), &["cannot be read"]);
    }

    #[test]
    fn audit_14_a_secret_is_bounded_on_both_sides() {
        let folder = tempfile::tempdir().unwrap();
        refused(&file(folder.path(), "empty", b"", 0o600), &["at least 16 bytes", "has 0"]);
        refused(&file(folder.path(), "short", b"short", 0o600), &["has 5"]);
        refused(&file(folder.path(), "long", &[b'x'; 4097], 0o600), &["4097 bytes", "limit is 4096"]);
        let sparse = file(folder.path(), "sparse", b"", 0o600);
        OpenOptions::new().write(true).open(&sparse).unwrap().set_len(1 << 40).unwrap();
        refused(&sparse, &["1099511627776 bytes"]);
        assert!(SealKey::from_file(&file(folder.path(), "most", &[b'x'; 4096], 0o600)).is_ok());
    }

    #[test]
    fn audit_14_a_secret_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return skip(Need::Faults, "the tests run as root, who can give files away");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path(), "foreign", GOOD, 0o600);
        chown(&path, Some(12_345), None).unwrap();
        refused(&path, &["belongs to user 12345"]);
    }
}
