//! The attentions of models as cases: what their users compute, beside the cases that cover sizes and features.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Parser as _;
use qkvault_cli::jobs::{self, ModelArgs};
use qkvault_cli::out;
use qkvault_graph::{Storage, Valid};

use super::cases::EngineCase;

/// Names of these cases begin so.
pub(super) const PREFIX: &str = "model ";

/// An engine that takes longer for padding alone is not timed.
pub(super) const LONG_MS: f64 = 30.0;

/// Products of a GPU in a millisecond, at its best.
const PRODUCTS: f64 = 8e11;

/// The least milliseconds of an engine that computes a packed batch as if each sequence had the most rows, as cuDNN
/// does (26 seconds for a step of 8,192 rows, seen on an H200).
pub(super) fn padding_ms(a: &Valid) -> f64 {
    let ([b, h, s, d], most) = (a.q.dims.map(|n| n as f64), a.k.seq() as f64);
    match a.q.storage {
        Storage::Varlen { tokens } if (tokens as f64) < b * s => {
            2.0 * (b * s - tokens as f64) * h * most * (d + a.v.head_dim() as f64) / PRODUCTS
        }
        Storage::Varlen { .. } | Storage::Dense | Storage::Paged { .. } => 0.0,
    }
}

/// The options of models as commands read them.
#[derive(clap::Parser)]
struct ModelOptions {
    #[command(flatten)]
    args: ModelArgs,
}

/// Every attention of models, in all phases, each once.
pub(super) fn list(models: &[PathBuf]) -> anyhow::Result<Vec<EngineCase>> {
    let mut files = Vec::new();
    for path in models {
        add(path, &mut files)?;
    }
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let mut words = vec!["models".to_owned(), "--phase".to_owned(), "prefill,train,decode,serve".to_owned()];
    for file in &files {
        words.extend(["--model".to_owned(), file.display().to_string()]);
    }
    let jobs = jobs::plan(&ModelOptions::try_parse_from(words)?.args)?;
    jobs.notes.iter().for_each(|note| out::note(&format!("note: {note}")));
    let case = |job: jobs::AttentionJob| {
        let attention = job.attention.ok()?;
        Some(EngineCase { name: format!("{PREFIX}{}", job.uses[0].label()), attention })
    };
    Ok(jobs.jobs.into_iter().filter_map(case).collect())
}

fn add(path: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let read = || format!("{} cannot be read", path.display());
    let entries = std::fs::read_dir(path).with_context(read)?.collect::<Result<Vec<_>, _>>().with_context(read)?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    let wanted = |path: &PathBuf| path.is_dir() || path.extension().is_some_and(|end| end == "json");
    paths.iter().filter(|path| wanted(path)).try_for_each(|path| add(path, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_of_every_model_is_among_the_cases_each_attention_once() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let list = list(&[folder]).expect("models");
        let named = |words: &str| list.iter().filter(|case| case.name.contains(words)).count();
        for words in
            ["gemma-2-27b", "gpt-oss-20b", "mpt-7b", "llama-4-scout", "train backward", "serve mixed", "decode"]
        {
            assert!(named(words) > 4, "{words}");
        }
        let keys: std::collections::BTreeSet<_> = list.iter().map(|case| case.attention.key()).collect();
        assert_eq!(keys.len(), list.len());
    }
}
