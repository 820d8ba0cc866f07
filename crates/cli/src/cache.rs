//! `cache`: inspects and maintains the vault.

use std::time::SystemTime;

use qkvault_cache::{Depth, DiskLimits, EntryKind, Listed, Vault, parse_bytes};
use qkvault_compile::PlanFacts;
use qkvault_graph::{Refusal, codec};
use serde_json::{Value, json};

use crate::target::LibraryArgs;
use crate::{Globals, Outcome, deep, older, open_existing_vault, open_vault, out};

/// Commands that work on the vault.
#[derive(Debug, clap::Subcommand)]
pub enum CacheCommand {
    /// Print the vault's folder
    Dir,
    /// List the entries
    Ls,
    /// Print all details of one entry
    Show {
        /// The key, or its first digits
        key: String,
    },
    /// Count entries and bytes
    Stats,
    /// Check every entry; change nothing
    Verify {
        /// Check headers only, do not read payloads
        #[arg(long)]
        headers: bool,
        /// Also compile every plan again with the cuDNN that is found, and compare the kernels
        #[arg(long, conflicts_with = "headers")]
        deep: bool,
        #[command(flatten)]
        library: LibraryArgs,
    },
    /// Delete the oldest entries until the vault is within its limits
    Gc {
        /// Most bytes to keep, such as 500MB (also QKVAULT_CACHE_MAX_BYTES)
        #[arg(long, value_name = "BYTES", value_parser = size)]
        max_bytes: Option<u64>,
    },
    /// Delete every entry
    Clear,
}

fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "a size is written like 500M or 2G".to_owned())
}

/// Runs one of the commands.
pub(super) fn run(globals: &Globals, command: &CacheCommand) -> anyhow::Result<Outcome> {
    let vault = match command {
        CacheCommand::Dir => open_vault(globals)?,
        _ => open_existing_vault(globals)?,
    };
    match command {
        CacheCommand::Dir => {
            let folder = vault.folder().map(|f| f.display().to_string());
            if globals.json {
                out::json(&json!({ "folder": folder }));
            } else {
                out::line(folder.as_deref().unwrap_or("none: the vault is off"));
            }
        }
        CacheCommand::Ls => list(globals, &vault, &vault.ls().collect::<Vec<_>>()),
        CacheCommand::Show { key } => return show(globals, &vault, key),
        CacheCommand::Stats => stats(globals, &vault),
        CacheCommand::Verify { headers: _, deep: true, library } => return deep::run(globals, &vault, library),
        CacheCommand::Verify { headers, deep: false, library: _ } => return Ok(verify(globals, &vault, *headers)),
        CacheCommand::Gc { max_bytes } => {
            let mut limits: DiskLimits = vault.settings().limits;
            limits.max_bytes = max_bytes.or(limits.max_bytes);
            let older = vault.clear_older()?;
            let report = vault.gc(&limits)?;
            if globals.json {
                out::json(&json!({
                    "entries": report.entries, "bytes": report.bytes, "evicted": report.evicted,
                    "evicted_bytes": report.evicted_bytes, "leftovers": report.leftovers, "failed": report.failed,
                    "spared": report.spared, "over": report.over,
                    "older": older::json(&older),
                }));
            } else {
                let (was, gone) = (out::bytes(report.bytes), out::bytes(report.evicted_bytes));
                out::line(&format!("{} of {} deleted ({gone} of {was})", report.evicted, out::entries(report.entries)));
                older.iter().for_each(|one| out::line(&older::deleted(one)));
                if report.failed > 0 {
                    out::line(&format!("{} could not be deleted", out::entries(report.failed)));
                }
                if report.over {
                    let minutes = limits.grace.as_secs().div_ceil(60);
                    out::line(&format!(
                        "more is left than the limit: {} used within {minutes} minutes stay; run it again later, or \
                         `cache clear`",
                        out::entries(report.spared)
                    ));
                }
            }
        }
        CacheCommand::Clear => {
            let older = vault.clear_older()?;
            let usage = vault.clear()?;
            if globals.json {
                out::json(&json!({
                    "entries": usage.entries, "bytes": usage.bytes, "older": older::json(&older),
                }));
            } else {
                out::line(&format!("{} deleted ({})", out::entries(usage.entries), out::bytes(usage.bytes)));
                older.iter().for_each(|one| out::line(&older::deleted(one)));
            }
        }
    }
    Ok(Outcome::Good)
}

/// Checks every file. The outcome is good if all files are good.
fn verify(globals: &Globals, vault: &Vault, headers: bool) -> Outcome {
    let report = vault.verify(if headers { Depth::Header } else { Depth::Payload });
    let entries = report.bad.iter().map(|(listed, why)| (&listed.path, Some(listed.key), why.to_string()));
    let folders = report.unlisted.iter().map(|(path, why)| (path, None, why.clone()));
    let recipes: Vec<(Listed, String)> = vault.ls().filter_map(bad_recipe).collect();
    let recipes = recipes.iter().map(|(listed, why)| (&listed.path, Some(listed.key), why.clone()));
    let bad: Vec<_> = entries.chain(folders).chain(recipes).collect();
    if globals.json {
        let list: Vec<Value> = bad
            .iter()
            .map(|(path, key, why)| json!({ "key": key.map(|key| key.to_string()), "path": path, "why": why }))
            .collect();
        out::json(&json!({
            "good": report.good, "good_bytes": report.good_bytes, "bad": list, "older": older::json(&vault.older()),
        }));
    } else {
        for (path, _, why) in &bad {
            out::line(&format!("BAD {}: {why}", path.display()));
        }
        let size = out::bytes(report.good_bytes);
        out::line(&format!("{} good ({size}), {} bad", report.good, bad.len()));
        older::notes(vault).for_each(|note| out::line(&format!("note: {note}")));
    }
    if bad.is_empty() { Outcome::Good } else { Outcome::Bad }
}

/// An entry whose bytes are whole, and whose recipe of a launch refers to what is not there.
fn bad_recipe(listed: Listed) -> Option<(Listed, String)> {
    let facts = codec::decode::<PlanFacts>(&listed.header.as_ref().ok()?.meta).ok()?;
    let why = facts.kernels()?.check(&facts).err()?.to_string();
    Some((listed, why))
}

/// Prints the entry whose key begins with `digits`; for a stored refusal also its reasons.
fn show(globals: &Globals, vault: &Vault, digits: &str) -> anyhow::Result<Outcome> {
    let found: Vec<Listed> = vault.ls().filter(|l| !l.shadowed && l.key.to_string().starts_with(digits)).collect();
    let listed = match &found[..] {
        [] => anyhow::bail!("no entry's key begins with '{digits}'; see `cache ls`"),
        [one] => one,
        many => anyhow::bail!("{} keys begin with '{digits}'; give more of its digits, see `cache ls`", many.len()),
    };
    let mut value = detail(listed);
    let entry = vault.show(&listed.key).into_iter().next().and_then(|(_, entry)| entry.ok());
    if let Some(refusal) = entry.filter(|e| e.kind == EntryKind::Refusal) {
        value["reasons"] = json!(codec::decode::<Refusal>(&refusal.payload)?);
        if !globals.json {
            shown(listed).for_each(|line| out::line(&line));
            out::lines(&codec::decode::<Refusal>(&refusal.payload)?.to_string());
            return Ok(Outcome::Good);
        }
    }
    if globals.json {
        out::json(&value);
    } else {
        shown(listed).for_each(|line| out::line(&line));
    }
    Ok(if listed.header.is_err() { Outcome::Bad } else { Outcome::Good })
}

/// An entry as a person reads it; `--json` has every number.
fn shown(listed: &Listed) -> impl Iterator<Item = String> {
    let mut rows = vec![("key", listed.key.to_string())];
    match &listed.header {
        Err(why) => rows.push(("bad", why.to_string())),
        Ok(header) => {
            rows.extend([("kind", header.kind.to_string()), ("what", header.what.clone())]);
            rows.extend([("target", header.target.clone()), ("library", header.library.clone())]);
            let facts = codec::decode::<PlanFacts>(&header.meta).ok().filter(|_| header.kind == EntryKind::Plan);
            if let Some(facts) = facts {
                let scratch = facts.scratch().bytes;
                rows.push(("engine", crate::warm::computed_by(&facts)));
                rows.push(("code", out::bytes(facts.blob_bytes)));
                rows.push(("workspace", out::bytes(scratch)));
                rows.push(("compiled", format!("in {} ms", facts.compile_ms)));
                let launches = facts.kernels().map(|kernels| kernels.recipe.to_string());
                rows.extend(launches.iter().flat_map(|text| text.lines()).map(|line| ("launch", line.to_owned())));
            }
        }
    }
    rows.push((
        "file",
        format!("{}, {}, used {} ago", listed.path.display(), out::bytes(listed.file_bytes), age(listed)),
    ));
    rows.into_iter().map(|(name, text)| format!("{name:<10} {text}"))
}

fn age(listed: &Listed) -> String {
    let seconds = SystemTime::now().duration_since(listed.last_used).map_or(0, |d| d.as_secs());
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn list(globals: &Globals, vault: &Vault, all: &[Listed]) {
    if globals.json {
        let entries: Vec<Value> = all.iter().map(detail).collect();
        out::json(&json!({ "entries": entries, "older": older::json(&vault.older()) }));
        return;
    }
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|l| {
            let key = l.key.to_string()[..12].to_owned();
            let size = out::bytes(l.file_bytes);
            match &l.header {
                Ok(h) => vec![key, h.kind.to_string(), h.what.clone(), h.target.clone(), size, age(l)],
                Err(why) => vec![key, "bad".into(), why.to_string(), String::new(), size, age(l)],
            }
        })
        .collect();
    out::table(&["key", "kind", "what", "target", ">size", ">used"], &rows);
    older::notes(vault).for_each(|note| out::line(&format!("note: {note}")));
}

fn detail(listed: &Listed) -> Value {
    let mut value = json!({
        "key": listed.key.to_string(),
        "path": listed.path,
        "file_bytes": listed.file_bytes,
        "shadowed": listed.shadowed,
    });
    match &listed.header {
        Err(why) => value["rejected"] = why.to_string().into(),
        Ok(header) => {
            value["kind"] = header.kind.to_string().into();
            value["what"] = header.what.clone().into();
            value["target"] = header.target.clone().into();
            value["library"] = header.library.clone().into();
            value["payload_bytes"] = header.payload_len.into();
            if header.kind == EntryKind::Plan
                && let Ok(facts) = codec::decode::<PlanFacts>(&header.meta)
            {
                let scratch = facts.scratch();
                let buffer = |(role, offset, bytes): &(qkvault_graph::Role, u64, u64)| json!({ "role": role, "offset": offset, "bytes": bytes });
                value["scratch"] = json!({
                    "bytes": scratch.bytes, "of_cudnn": facts.workspace,
                    "buffers": scratch.buffers.iter().map(buffer).collect::<Vec<_>>(),
                });
                if let Some(kernels) = facts.kernels() {
                    value["recipe"] = json!(kernels.recipe.to_string().lines().collect::<Vec<_>>());
                }
                value["facts"] = json!(facts);
            }
        }
    }
    value
}

fn stats(globals: &Globals, vault: &Vault) {
    let usage = vault.usage();
    let (mut plans, mut refusals, mut times, mut bad) = (0, 0, 0, 0);
    let mut targets: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
    for listed in vault.ls() {
        match &listed.header {
            Ok(h) => {
                *targets.entry(h.target.clone()).or_default() += 1;
                match h.kind {
                    EntryKind::Plan => plans += 1,
                    EntryKind::Refusal => refusals += 1,
                    EntryKind::Times => times += 1,
                }
            }
            Err(_) => bad += 1,
        }
    }
    if globals.json {
        out::json(&json!({
            "folder": vault.folder(), "entries": usage.entries, "bytes": usage.bytes, "plans": plans,
            "refusals": refusals, "times": times, "bad": bad, "quarantined": usage.quarantined, "temporary": usage.temporary,
            "foreign": usage.foreign, "targets": targets,
        }));
        return;
    }
    out::line(&format!(
        "plans: {plans}, refusals: {refusals}, times: {times}, bad: {bad}; {} in {} files, {} more in quarantine",
        out::bytes(usage.bytes),
        usage.entries,
        usage.quarantined
    ));
    for (target, n) in targets {
        out::line(&format!("  {n} for {target}"));
    }
}
