//! Other processes: this test binary, started again with a job.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{disk_faults, kills, processes};

const JOB: &str = "QKVAULT_TEST_JOB";
const FOLDER: &str = "QKVAULT_TEST_FOLDER";

/// A command that runs a job on a folder.
pub(crate) fn job(name: &str, folder: &Path) -> Command {
    let this = std::env::current_exe().expect("a test knows its own file");
    let mut command = Command::new(this);
    as_job(&mut command, name, folder);
    command
}

/// The same, run by a shell: `script` gets the test binary and its arguments as `"$@"` and the folder as `$FOLDER`.
pub(crate) fn job_under(script: &str, name: &str, folder: &Path) -> Command {
    let this = std::env::current_exe().expect("a test knows its own file");
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(this);
    as_job(&mut command, name, folder);
    command.env("FOLDER", folder);
    command
}

fn as_job(command: &mut Command, name: &str, folder: &Path) {
    command
        .args(["--exact", "root::child::entry", "--nocapture", "--test-threads=1"])
        .env(JOB, name)
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

/// The entry of every job; as a test of its own it does nothing.
#[test]
fn entry() {
    let Some(name) = std::env::var_os(JOB) else { return };
    let folder = std::env::var_os(FOLDER).expect("a job has a folder");
    let folder = Path::new(&folder);
    match name.to_str() {
        Some("write for ever") => kills::write_for_ever(folder),
        Some("warm") => processes::warm(folder),
        Some("fill") => disk_faults::fill(folder),
        Some("read only") => disk_faults::use_read_only(folder),
        #[cfg(feature = "http")]
        Some("serve") => super::server::serve(folder),
        other => panic!("no job {other:?}"),
    }
}
