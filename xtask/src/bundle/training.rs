//! What of the bundle is for training: the cases of `bench`, the example, their scripts, and the plans of both.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use qkvault_cli::{self as cli, Globals};

use super::copy;

/// Copies programs and scripts into the bundle and compiles what they run into the vault of `globals`.
pub(super) fn add(
    root: &Path,
    release: &Path,
    out: &Path,
    globals: &Globals,
    target: &str,
    cudnn: &Path,
) -> Result<()> {
    for file in
        ["training.txt", "unified.txt", "training.sh", "training_card.sh", "training_peers.py", "selftest_large.py"]
    {
        copy(&root.join("bench").join(file), &out.join(file))?;
    }
    for file in ["train.sh", "train.py"] {
        copy(&root.join("crates/qkvault/examples/train").join(file), &out.join(file))?;
    }
    let example = out.join("train");
    copy(&release.join("examples/train"), &example)?;
    let cases = out.join("training.txt").into_os_string();
    let words = [OsString::from("bench"), "--plan".into(), "--cases".into(), cases, "--target".into(), target.into()];
    let words = words.into_iter().chain(["--cudnn-path".into(), cudnn.as_os_str().to_owned()]);
    // What is refused is told by `bench` itself; the rest of the bundle is good all the same.
    let _ = cli::main(globals, &cli::parse(words)?);
    let vault = globals.vault.as_ref().context("the bundle's vault is a folder")?;
    for dtype in ["bf16", "f16"] {
        let mut plan = Command::new(&example);
        plan.args(["--plan", target, "--dtype", dtype, "--vault"]).arg(vault).env("QKVAULT_CUDNN_PATH", cudnn);
        let status = plan.status().context("the example did not start")?;
        if !status.success() {
            bail!("the example's plans were not compiled ({status})");
        }
    }
    Ok(())
}
