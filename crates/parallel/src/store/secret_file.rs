//! The file with a secret: only its owner may read it, and it is an ordinary, short file.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::path::Path;

use super::secret::MOST;

/// Reads the text, or says what is wrong with the file. Nothing of what it has comes into the words.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let file = open(path).map_err(|e| format!("cannot be read: {e}"))?;
    let meta = file.metadata().map_err(|e| format!("cannot be read: {e}"))?;
    if !meta.is_file() {
        return Err("is not an ordinary file".to_owned());
    }
    if let Some(why) = distrust(&meta) {
        return Err(why);
    }
    let mut bytes = Vec::new();
    // Somewhat more than a secret, for white space.
    let most = MOST as u64 + 64;
    file.take(most + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("has more than {most} bytes, which are the most"));
    }
    String::from_utf8(bytes).map_err(|_| "is not text".to_owned())
}

#[cfg(unix)]
fn open(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    // A pipe would wait for its other end.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

/// Why others may know what is in the file.
#[cfg(unix)]
fn distrust(meta: &std::fs::Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (owner, me) = (meta.uid(), rustix::process::geteuid().as_raw());
    if owner != 0 && owner != me {
        return Some(format!("belongs to user {owner}, and this process is user {me}"));
    }
    let mode = meta.mode() & 0o7777;
    let open = mode & 0o077 != 0;
    open.then(|| format!("has mode {mode:04o}, which lets others use it: `chmod 600` it, and make a new secret"))
}

#[cfg(not(unix))]
fn distrust(_: &std::fs::Metadata) -> Option<String> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::secret::{FILE_VARIABLE, Secret, VARIABLE};
    use super::*;

    const TEXT: &str = "correct-horse-battery";

    #[test]
    fn a_secret_comes_from_a_variable_or_from_a_file_that_only_its_owner_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let name = path.to_str().expect("text").to_owned();
        let set = |list: &[(&str, &str)]| {
            Secret::from_variables(&|name: &str| list.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
        };
        let wrong = |list: &[(&str, &str)]| {
            let error = set(list).expect_err("refused").to_string();
            assert!(!error.contains(TEXT) && error.contains(FILE_VARIABLE), "{error}");
            error
        };
        assert_eq!(set(&[]).expect("none"), None);
        let secret = Some(Secret::new(TEXT).expect("long enough"));
        assert_eq!(set(&[(VARIABLE, TEXT)]).expect("one"), secret);
        let by_file = [(FILE_VARIABLE, name.as_str())];
        assert!(wrong(&by_file).contains("cannot be read"));
        std::fs::write(&path, format!("{TEXT}\n")).expect("is written");
        let mode = |mode: u32| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("is set");
        for open in [0o666, 0o644, 0o640, 0o620, 0o604] {
            mode(open);
            assert!(wrong(&by_file).contains(&format!("mode 0{open:o}")));
        }
        mode(0o600);
        assert_eq!(set(&by_file).expect("one"), secret);
        assert!(wrong(&[(VARIABLE, TEXT), by_file[0]]).contains("both set"));
        std::fs::write(&path, "x".repeat(5_000)).expect("is written");
        assert!(wrong(&by_file).contains("more than 1088 bytes"));
        std::fs::write(&path, [0xff; 40]).expect("is written");
        assert!(wrong(&by_file).contains("not text"));
    }

    #[test]
    fn pipes_folders_and_devices_are_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("it starts");
        assert!(made.success());
        let begin = std::time::Instant::now();
        for path in [pipe.as_path(), folder.path(), Path::new("/dev/zero")] {
            assert_eq!(read(path), Err("is not an ordinary file".to_owned()), "{path:?}");
        }
        assert!(begin.elapsed() < std::time::Duration::from_secs(5));
    }
}
