//! The server's part of a bundle: the example server, the client that loads it, PyTorch's beside them, and plans.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use qkvault_cli::Globals;

use super::{copy, plans};
use crate::cargo;

/// The model that is measured.
const MODEL: &str = "1b";

/// Pages of the pool that `load preempt` makes too small. Some plans know how many there are.
const SMALL_POOL: &str = "320";

/// Builds the programs, which know their commit.
pub(super) fn build() -> Result<()> {
    cargo::run(&["build", "--release", "--package", "qkvault-server", "--bins"], &[("QKVAULT_COMMIT", &commit())])
}

/// The commit that is checked out, or that it is unknown; a plus sign says that files differ from it.
fn commit() -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).current_dir(cargo::root()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    let commit = git(&["rev-parse", "--short=8", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    if changed { commit + "+" } else { commit }
}

/// Copies programs and scripts into the bundle, and compiles the plans into the vault of `globals`.
pub(super) fn add(
    root: &Path,
    release: &Path,
    out: &Path,
    globals: &Globals,
    target: &str,
    cudnn: &Path,
) -> Result<()> {
    for file in ["server.sh", "server_peer.py", "server_peer_model.py"] {
        copy(&root.join("bench").join(file), &out.join(file))?;
    }
    for program in ["server", "load"] {
        copy(&release.join(program), &out.join(program))?;
    }
    [&[][..], &["--pages", SMALL_POOL]].into_iter().try_for_each(|pages| {
        plans(&out.join("server"), globals, &[&["--model", MODEL, "--plan", target], pages].concat(), cudnn)
    })
}
