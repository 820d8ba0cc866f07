//! `pack` and `unpack`: write a vault, or a part of it, to one file, and read it back.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use qkvault_cache::{PackOptions, SealKey, UnpackOptions, verify_pack};
use serde_json::json;

use crate::{Globals, Outcome, open_vault, out};

/// Options of `pack`.
#[derive(Debug, clap::Args)]
pub struct PackArgs {
    /// File to write
    out: PathBuf,
    #[command(flatten)]
    select: Select,
    /// Seal the pack with the secret in this file, at least 16 bytes; `unpack` then needs the same secret
    #[arg(long, value_name = "FILE")]
    seal: Option<PathBuf>,
    /// Compression level, 1 to 19
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,
}

/// Options of `unpack`.
#[derive(Debug, clap::Args)]
pub struct UnpackArgs {
    /// File to read
    input: PathBuf,
    #[command(flatten)]
    select: Select,
    /// File with the secret that the pack was sealed with
    #[arg(long, value_name = "FILE")]
    seal: Option<PathBuf>,
    /// Check everything and store nothing
    #[arg(long)]
    verify_only: bool,
}

/// Options that select entries.
#[derive(Debug, Default, clap::Args)]
struct Select {
    /// Only entries whose target contains this, such as `sm_90` or `cudnn 9.27.0`
    #[arg(long, value_name = "TEXT")]
    only_target: Option<String>,
    /// Only entries whose attention contains this, such as `d128` or `causal`
    #[arg(long, value_name = "TEXT")]
    only_what: Option<String>,
    /// Only keys that begin with this; may be given several times
    #[arg(long, value_name = "DIGITS")]
    key: Vec<String>,
}

impl Select {
    fn selects(&self, target: &str, what: &str, key: &str) -> bool {
        self.only_target.as_ref().is_none_or(|t| target.contains(t.as_str()))
            && self.only_what.as_ref().is_none_or(|w| what.contains(w.as_str()))
            && (self.key.is_empty() || self.key.iter().any(|k| key.starts_with(k.as_str())))
    }
}

fn seal(path: Option<&Path>) -> anyhow::Result<Option<SealKey>> {
    let Some(path) = path else { return Ok(None) };
    let secret = std::fs::read(path).with_context(|| format!("the secret {} could not be read", path.display()))?;
    Ok(Some(SealKey::from_secret(&secret)?))
}

/// Runs `pack`.
pub(super) fn pack(globals: &Globals, args: &PackArgs) -> anyhow::Result<Outcome> {
    let vault = open_vault(globals)?;
    let options = PackOptions { level: args.level, seal: seal(args.seal.as_deref())? };
    let select = &args.select;
    let report = vault
        .pack_file(|h| select.selects(&h.target, &h.what, &h.key.to_string()), &options, &args.out)
        .with_context(|| format!("{} could not be written", args.out.display()))?;
    if globals.json {
        out::json(&json!({
            "entries": report.entries, "plain_bytes": report.plain_bytes, "packed_bytes": report.packed_bytes,
            "skipped": report.skipped.iter().map(|(path, why)| json!({ "path": path, "why": why.to_string() })).collect::<Vec<_>>(),
        }));
    } else {
        for (path, why) in &report.skipped {
            out::line(&format!("left out {}: {why}", path.display()));
        }
        let (plain, packed) = (out::bytes(report.plain_bytes), out::bytes(report.packed_bytes));
        out::line(&format!("{} entries, {plain}, packed to {packed}: {}", report.entries, args.out.display()));
        out::line(
            "the pack contains GPU code that cuDNN generated: share it within your own deployment, do not publish it",
        );
    }
    Ok(if report.skipped.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// Runs `unpack`.
pub(super) fn unpack(globals: &Globals, args: &UnpackArgs) -> anyhow::Result<Outcome> {
    let options = UnpackOptions { seal: seal(args.seal.as_deref())?, ..UnpackOptions::default() };
    let file = File::open(&args.input).with_context(|| format!("{} could not be opened", args.input.display()))?;
    if args.verify_only {
        let manifest = verify_pack(file, &options)?;
        if globals.json {
            out::json(&json!({ "entries": manifest.entries.len(), "plain_bytes": manifest.plain_len() }));
        } else {
            out::line(&format!("{} entries, all good", manifest.entries.len()));
        }
        return Ok(Outcome::Good);
    }
    let vault = open_vault(globals)?;
    let select = &args.select;
    let report = vault.unpack(file, |e| select.selects(&e.target, &e.what, &e.key.to_string()), &options)?;
    if globals.json {
        out::json(&json!({
            "entries": report.entries, "selected": report.selected, "stored": report.stored, "already": report.already,
        }));
    } else {
        let (stored, already, all) = (report.stored, report.already, report.entries);
        out::line(&format!("{stored} stored, {already} already there, of {all}"));
    }
    Ok(Outcome::Good)
}
