//! The training part of a bundle: the cases of `bench`, the example, their scripts, and their plans.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use qkvault_cli::Globals;

use super::{copy, lab};

/// Copies programs and scripts into the bundle, and compiles their plans into the vault of `globals`.
pub(super) fn add(
    root: &Path,
    release: &Path,
    out: &Path,
    globals: &Globals,
    target: &str,
    cudnn: &Path,
) -> Result<()> {
    for file in ["training.txt", "forms.txt", "training.sh", "training_gpu.sh", "training_peers.py"] {
        copy(&root.join("bench").join(file), &out.join(file))?;
    }
    for file in ["train.sh", "train.py"] {
        copy(&root.join("crates/qkvault/examples/train").join(file), &out.join(file))?;
    }
    let example = out.join("train");
    copy(&release.join("examples/train"), &example)?;
    let cases = out.join("training.txt").display().to_string();
    lab(release, globals, &["bench", "attentions", "--plan", "--cases", &cases, "--target", target], cudnn)?;
    let vault = globals.vault.as_ref().context("the bundle has no vault folder")?;
    for dtype in ["bf16", "f16"] {
        let mut plan = Command::new(&example);
        plan.args(["--plan", target, "--dtype", dtype, "--vault"]).arg(vault).env("QKVAULT_CUDNN_PATH", cudnn);
        let status = plan.status().context("the example could not be started")?;
        if !status.success() {
            bail!("the example's plans were not compiled ({status})");
        }
    }
    Ok(())
}
