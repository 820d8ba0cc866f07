//! The training part of a bundle: the cases of `bench`, the example, their scripts, and their plans.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use qkvault_cli::Globals;
use qkvault_lab as lab;

use super::copy;

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
    // `bench` prints refusals itself; the bundle is useful without the refused plans.
    let _ = lab::main(globals, &lab::parse(bench(&out.join("training.txt"), target, cudnn))?);
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

/// The command line that compiles the cases of a file.
fn bench(cases: &Path, target: &str, cudnn: &Path) -> Vec<OsString> {
    let [bench, attentions, plan] = ["bench", "attentions", "--plan"].map(OsString::from);
    let [of, on, with] = ["--cases", "--target", "--cudnn-path"].map(OsString::from);
    vec![bench, attentions, plan, of, cases.into(), on, target.into(), with, cudnn.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_compiles_the_cases_of_a_bundle_exists() {
        let words = bench(Path::new("training.txt"), "h200", Path::new("cudnn"));
        lab::parse(words).expect("qkvault-lab has the command");
    }
}
