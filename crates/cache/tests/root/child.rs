//! Other processes: this test binary, started again with a job.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{disk_faults, kills, processes};

/// What a process is told: its job, and the folder, a line each.
const TOLD: &str = "QKVAULT_TEST_CHILD";

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
        .env(TOLD, format!("{name}\n{}", folder.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

/// The entry of every job; as a test of its own it does nothing.
#[test]
fn entry() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let (name, folder) = told.split_once('\n').expect("a job has a folder");
    let folder = Path::new(folder);
    match name {
        "write for ever" => kills::write_for_ever(folder),
        "warm" => processes::warm(folder),
        "fill" => disk_faults::fill(folder),
        "read only" => disk_faults::use_read_only(folder),
        #[cfg(feature = "http")]
        "serve" => super::server::serve(folder),
        other => panic!("no job {other:?}"),
    }
}
