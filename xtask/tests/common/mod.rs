//! Artificial wheels and lists, and isolated runs of the program on them.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;

/// A temporary folder with everything that the program may read or write in a test.
pub(crate) struct World {
    root: tempfile::TempDir,
}

/// The file name of the artificial wheel.
pub(crate) const WHEEL: &str = "made_up_cudnn-9.99.0.1-py3-none-any.whl";

/// The files of an artificial, small wheel for cuDNN.
pub(crate) fn usual() -> Vec<(String, Vec<u8>)> {
    let dist = "made_up_cudnn-9.99.0.1.dist-info";
    let files = [
        ("nvidia/cudnn_jit/lib/libcudnn.so.9".to_owned(), "a library".repeat(1000)),
        ("nvidia/cudnn_jit/lib/libextra.so.1".to_owned(), "a library that is not wanted".to_owned()),
        ("nvidia/cudnn_jit/include/cudnn_graph.h".to_owned(), "a header".to_owned()),
        ("nvidia/cudnn_jit/__init__.py".to_owned(), "a program that is not wanted".to_owned()),
        (format!("{dist}/licenses/License.txt"), "a licence".to_owned()),
        (format!("{dist}/METADATA"), "Metadata-Version: 2.1\nName: made-up-cudnn\nVersion: 9.99.0.1\n".to_owned()),
        (
            format!("{dist}/WHEEL"),
            "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n".to_owned(),
        ),
        (format!("{dist}/RECORD"), String::new()),
    ];
    files.into_iter().map(|(name, text)| (name, text.into_bytes())).collect()
}

/// A zip file with these members, in this order.
pub(crate) fn zip(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in files {
        archive.start_file(name.as_str(), SimpleFileOptions::default()).expect("a member can be begun");
        archive.write_all(bytes).expect("memory takes it");
    }
    archive.finish().expect("memory takes it").into_inner()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl World {
    /// A world with a list that pins this wheel, and a folder with the wheel.
    pub(crate) fn with_wheel(wheel: &[u8]) -> Self {
        let world = Self { root: tempfile::tempdir().expect("a temporary folder") };
        for dir in ["links", "cache"] {
            std::fs::create_dir(world.path(dir)).expect("it can be written");
        }
        std::fs::write(world.path("links").join(WHEEL), wheel).expect("it can be written");
        world.pin(&sha256(wheel));
        world
    }

    /// Writes the list, with this hash for the wheel.
    pub(crate) fn pin(&self, sha256: &str) {
        let list = format!(
            "default = '9.99.0.1'\n[[set]]\ncudnn = '9.99.0.1'\nset = 'slim'\nwheels = ['made-up-cudnn 9.99.0.1']\n[[wheel]]\n\
             name = 'made-up-cudnn'\nversion = '9.99.0.1'\nfile = '{WHEEL}'\nsha256 = '{sha256}'\nbytes = 1\nonly = ['libcudnn']\n"
        );
        std::fs::write(self.path("wheels.toml"), list).expect("it can be written");
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.root.path().join(below)
    }

    /// The folder of the fetched set.
    pub(crate) fn set(&self) -> PathBuf {
        self.path("cache/libraries/cudnn/9.99.0.1-slim")
    }

    /// Copies the wheel to the download folder, so that pip has nothing to do.
    pub(crate) fn downloaded(&self) {
        let wheels = self.path("cache/libraries/cudnn/.wheels");
        std::fs::create_dir_all(&wheels).expect("it can be written");
        std::fs::copy(self.path("links").join(WHEEL), wheels.join(WHEEL)).expect("it can be written");
    }

    /// `cargo xtask fetch` with the list and folders of this world, and with NVIDIA's licence accepted.
    pub(crate) fn fetch(&self) -> Command {
        let mut command = self.xtask(&["fetch", "--accept-nvidia-license"]);
        command.arg("--pins").arg(self.path("wheels.toml")).arg("--find-links").arg(self.path("links"));
        command
    }

    /// The program, without the user's cache and settings.
    pub(crate) fn xtask(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(args).env("QKVAULT_CACHE_DIR", self.path("cache")).env_remove("QKVAULT_ACCEPT_NVIDIA_LICENSE");
        command.stdin(std::process::Stdio::null()).current_dir(self.root.path());
        command
    }

    /// All names in the fetch folder except the set and the lock.
    pub(crate) fn left_over(&self) -> Vec<String> {
        let entries = self.path("cache/libraries/cudnn").read_dir().into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name != ".lock" && name != "9.99.0.1-slim").collect()
    }
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn good(mut command: Command) -> String {
    let done = command.output().expect("it can be started");
    let output = stderr_of(&done);
    assert!(done.status.success(), "{output}");
    output
}

/// Runs a command that must fail with exit code 1 and one paragraph, and returns the paragraph.
pub(crate) fn bad(mut command: Command) -> String {
    let done = command.output().expect("it can be started");
    let output = stderr_of(&done);
    assert_eq!(done.status.code(), Some(1), "{output}");
    let (_, paragraph) = output.split_once("error: ").unwrap_or_else(|| panic!("no error in: {output}"));
    assert!(!paragraph.trim_end().contains('\n'), "more than one paragraph: {paragraph}");
    assert!(!output.contains("panicked"), "{output}");
    paragraph.trim_end().to_owned()
}

fn stderr_of(done: &Output) -> String {
    assert!(done.stdout.is_empty(), "standard output is for results: {}", String::from_utf8_lossy(&done.stdout));
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// Every file below a folder, relative to it, sorted.
pub(crate) fn files(dir: &Path) -> Vec<String> {
    fn walk(dir: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in dir.read_dir().into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                walk(&entry.path(), root, found);
            } else {
                let path = entry.path();
                found.push(path.strip_prefix(root).expect("it is below").to_string_lossy().into_owned());
            }
        }
    }
    let mut found = Vec::new();
    walk(dir, dir, &mut found);
    found.sort();
    found
}
