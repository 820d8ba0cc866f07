//! `cache verify --deep`: generates every entry again from its description, compiles it, compares all that the entry
//! says, and prints one line per entry. Nothing that is stored is run or compiled.

use qkvault_cache::{Entry, Listed, Vault};
use qkvault_compile::{Engines, Planner, RebuildCheck};
use qkvault_graph::PlanKey;
use qkvault_sys::headless;
use rayon::prelude::*;
use serde_json::{Value, json};

use crate::target::LibraryArgs;
use crate::{Globals, Outcome, out};

/// The result for one entry.
struct EntryRow {
    listed: Listed,
    /// `same`, `skipped`, `different`, `failed` or `bad`.
    status: &'static str,
    text: String,
}

/// Runs the command. The outcome is good if no plan differs, is bad, or fails to compile.
pub(super) fn run(globals: &Globals, vault: &Vault, library: &LibraryArgs) -> anyhow::Result<Outcome> {
    let all: Vec<Listed> = vault.ls().filter(|listed| !listed.shadowed).collect();
    // A process that only compiles needs no driver, which would be asked for every kernel.
    headless::force_stub_driver()?;
    let planner = Planner::opening(vault.clone(), library.search()?);
    let engines = planner.engines();
    let rows: Vec<EntryRow> = all.into_par_iter().map(|listed| check(vault, engines, listed)).collect();
    let count = |status| rows.iter().filter(|row| row.status == status).count();
    let [same, skipped, different, failed, bad] = ["same", "skipped", "different", "failed", "bad"].map(count);
    if globals.json {
        let list: Vec<Value> = rows
            .iter()
            .map(|EntryRow { listed, status, text }| {
                let what = listed.header.as_ref().ok().map(|header| header.what.clone());
                json!({ "key": listed.key.to_string(), "path": listed.path, "what": what, "status": status, "text": text })
            })
            .collect();
        out::json(&json!({
            "cudnn": planner.opened_compiler().map(|compiler| compiler.library().version().to_string()), "entries": list,
            "same": same, "skipped": skipped,
            "different": different, "failed": failed, "bad": bad,
        }));
    } else {
        for EntryRow { listed, status, text } in &rows {
            out::line(&format!("{status} {}: {text}", &listed.key.to_string()[..12]));
        }
        let rest = format!("{different} different, {failed} failed, {bad} bad");
        out::line(&format!("{same} the same when built again, {skipped} skipped, {rest}"));
    }
    Ok(if different + failed + bad == 0 { Outcome::Good } else { Outcome::Bad })
}

fn check(vault: &Vault, engines: &Engines, listed: Listed) -> EntryRow {
    let rebuilt = |entry: &Entry| engines.verify(PlanKey::from_bytes(listed.key.0), entry);
    // `show` applies the same checks as a look-up.
    let shown = vault.show(&listed.key).into_iter().find(|(shown, _)| shown.path == listed.path);
    let (status, text) = match shown {
        None => ("bad", "it is gone".to_owned()),
        Some((_, Err(why))) => ("bad", why.to_string()),
        Some((_, Ok(entry))) => match rebuilt(&entry) {
            RebuildCheck::Same { kernels, kernel_bytes } => {
                let s = if kernels == 1 { "" } else { "s" };
                ("same", format!("{kernels} kernel{s}, {}: {}", out::bytes(kernel_bytes as u64), entry.what))
            }
            RebuildCheck::SameRefusal => ("same", format!("refused again, for the same reasons: {}", entry.what)),
            RebuildCheck::Skipped { why } => ("skipped", why),
            RebuildCheck::Different(difference) => ("different", difference.to_string()),
            RebuildCheck::Failed(failure) => ("failed", failure.to_string()),
            other => ("failed", format!("{other:?}")),
        },
    };
    EntryRow { listed, status, text }
}
