//! `pack` and `unpack`: write a vault, or a part of it, to one file, and read it back.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use qkvault_cache::{PackOptions, SealKey, UnpackOptions, UnpackReport, verify_pack};
use qkvault_cudnn::Profile;
use qkvault_graph::LibrarySet;
use qkvault_probe::NEWEST;
use serde_json::json;

use crate::{Globals, Outcome, open_existing_vault, open_vault, out, vault_options};

/// Options of `pack`.
#[derive(Debug, clap::Args)]
pub struct PackArgs {
    /// File to write
    out: PathBuf,
    #[command(flatten)]
    select: Select,
    /// Seal the pack with the secret in this file, at least 16 bytes that nobody else can read (mode 0600); `unpack`
    /// then needs the same secret
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
    /// Refuse a pack without a seal (also QKVAULT_CACHE_REQUIRE_SEAL=1)
    #[arg(long)]
    require_seal: bool,
    /// Check everything and store nothing
    #[arg(long)]
    verify_only: bool,
}

/// Options that select entries.
#[derive(Debug, Default, clap::Args)]
struct Select {
    /// Only entries for this GPU (a name of `profile ls`), or whose target contains this, such as `sm_90` or `cudnn
    /// 9.27.0`
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
    /// Whether every entry is selected.
    fn is_all(&self) -> bool {
        let Select { only_target, only_what, key } = self;
        only_target.is_none() && only_what.is_none() && key.is_empty()
    }

    fn selects(&self, target: &str, what: &str, key: &str) -> bool {
        self.only_target.as_ref().is_none_or(|named| is_for(target, named))
            && self.only_what.as_ref().is_none_or(|w| what.contains(w.as_str()))
            && (self.key.is_empty() || self.key.iter().any(|k| key.starts_with(k.as_str())))
    }
}

/// Whether the target of an entry is a GPU of this name, or contains the text. A GPU's name stands for its compute
/// capability and its multiprocessors, as far as the entry's target has these.
fn is_for(target: &str, named: &str) -> bool {
    let Ok(profile) = Profile::named(named) else { return target.contains(named) };
    let of_gpu = profile.target(NEWEST, LibrarySet::Slim).label();
    let size = |label: &str| label.split(' ').nth(1).filter(|word| word.ends_with("sm")).map(str::to_owned);
    let same_size = size(target).is_none() || size(target) == size(&of_gpu);
    target.split(' ').next() == of_gpu.split(' ').next() && same_size
}

fn seal(path: Option<&Path>) -> anyhow::Result<Option<SealKey>> {
    let Some(path) = path else { return Ok(None) };
    Ok(Some(SealKey::from_file(path)?))
}

/// Runs `pack`.
pub(super) fn pack(globals: &Globals, args: &PackArgs) -> anyhow::Result<Outcome> {
    let vault = open_existing_vault(globals)?;
    let options = PackOptions { level: args.level, seal: seal(args.seal.as_deref())? };
    let select = &args.select;
    let report = vault
        .pack_file(|h| select.selects(&h.target, &h.what, &h.key.to_string()), &options, &args.out)
        .with_context(|| format!("{} could not be written", args.out.display()))?;
    if report.entries == 0 && report.skipped.is_empty() {
        // A pack of nothing would pass for a pack wherever it is brought.
        std::fs::remove_file(&args.out).with_context(|| format!("{} is an empty pack", args.out.display()))?;
        let folder = vault.folder().map_or_else(|| "the vault, which is off,".to_owned(), |f| f.display().to_string());
        match args.select.is_all() {
            true => anyhow::bail!("nothing is packed: {folder} has no entries"),
            false => anyhow::bail!("nothing is packed: no entry of {folder} is selected (`cache ls` lists them)"),
        }
    }
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
        out::line(&format!("{}, {plain}, packed to {packed}: {}", out::entries(report.entries), args.out.display()));
        out::line(
            "the pack contains GPU code that cuDNN generated: share it within your own deployment, do not publish it",
        );
    }
    Ok(if report.skipped.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// Runs `unpack`.
pub(super) fn unpack(globals: &Globals, args: &UnpackArgs) -> anyhow::Result<Outcome> {
    let require_seal = args.require_seal || vault_options(globals).resolve()?.require_seal;
    let options = UnpackOptions { seal: seal(args.seal.as_deref())?, require_seal, ..UnpackOptions::default() };
    let file = File::open(&args.input).with_context(|| format!("{} could not be opened", args.input.display()))?;
    let refused = || format!("{} cannot be unpacked", args.input.display());
    if args.verify_only {
        let manifest = verify_pack(file, &options).with_context(refused)?;
        if globals.json {
            out::json(&json!({ "entries": manifest.entries.len(), "plain_bytes": manifest.plain_len() }));
        } else {
            out::line(&format!("{}, all good", out::entries(manifest.entries.len())));
        }
        note_trust(&options);
        return Ok(Outcome::Good);
    }
    let vault = open_vault(globals)?;
    let select = &args.select;
    let report = vault.unpack(file, |e| select.selects(&e.target, &e.what, &e.key.to_string()), &options);
    let report = report.with_context(refused)?;
    if globals.json {
        out::json(&json!({
            "entries": report.entries, "selected": report.selected, "stored": report.stored, "already": report.already,
            "kept": report.kept, "sealed": options.seal.is_some(),
        }));
    } else {
        let UnpackReport { stored, already, kept, entries, .. } = report;
        let kept = match kept {
            0 => String::new(),
            kept => format!(", {kept} refusals or times left out, because there are plans"),
        };
        out::line(&format!("{stored} stored, {already} already there{kept}, of {entries}"));
    }
    if report.selected == 0 {
        let why = if report.entries == 0 { "the pack is empty" } else { "none of the pack's entries is selected" };
        out::note(&format!("note: nothing was stored: {why}"));
    }
    note_trust(&options);
    Ok(Outcome::Good)
}

/// Says what an unsealed pack can do. A pack that was opened without a key has no seal.
fn note_trust(options: &UnpackOptions) {
    if options.seal.is_none() {
        out::note(
            "note: the pack is not sealed: whoever could write it can run code on your GPU and read that memory; \
             `--require-seal` refuses such packs (docs/safety.md)",
        );
    }
}
