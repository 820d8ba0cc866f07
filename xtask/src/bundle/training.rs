//! The training part of a bundle: the cases of `bench`, the example, their scripts, and their plans.

use std::path::Path;

use anyhow::Result;
use qkvault_cli::Globals;

use super::{copy, lab, plans};

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
    let plan = |dtype| plans(&example, globals, &["--plan", target, "--dtype", dtype], cudnn);
    ["bf16", "f16"].into_iter().try_for_each(plan)
}
