//! `selftest --judged FILE`: what a run on a GPU says of the sources of the kernels ([`Judged`]).

use std::path::Path;

use anyhow::Context as _;
use qkvault_compile::{FA4, KERNELS};
use qkvault_graph::{Valid, validate};
use qkvault_kernels::Judged;

use super::{Attentions, SelftestArgs};

/// Adds right cases to a file, which need not exist.
pub(super) fn add(args: &SelftestArgs, file: &Path, gpu: &str, right: &[u64]) -> anyhow::Result<()> {
    let lists = args.engine == FA4.policy();
    anyhow::ensure!(
        lists || args.engine == KERNELS.policy(),
        "only --engine kernels and --engine fa4 run these sources"
    );
    let mut judged = match std::fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text).with_context(|| format!("{} is no such record", file.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Judged::default(),
        Err(error) => return Err(error.into()),
    };
    let attentions = Attentions::from_args(args)?;
    let valid: Vec<Valid> = right.iter().filter_map(|n| validate(attentions.attention(*n)).ok()).collect();
    judged.add(gpu, valid.iter(), lists);
    Ok(std::fs::write(file, format!("{}\n", serde_json::to_string_pretty(&judged)?))?)
}
