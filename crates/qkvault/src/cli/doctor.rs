//! `doctor`: what was found on this machine, what was not, and what to do about it.

use qkvault_cache::VaultOptions;
use qkvault_probe::Compiler;
use qkvault_sys::Library;
use serde_json::{Value, json};

use super::target::LibraryArgs;
use super::{Globals, Outcome, failure, open_vault, out};

/// Options of `doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    library: LibraryArgs,
}

/// One finding.
struct Finding {
    what: &'static str,
    good: bool,
    text: String,
    facts: Value,
}

/// Runs the command. A machine without a GPU is no fault: it can compile.
pub(super) fn run(globals: &Globals, args: &Args) -> anyhow::Result<Outcome> {
    let findings = [gpu(), cudnn(args)?, vault(globals)];
    let good = findings.iter().all(|f| f.good);
    if globals.json {
        let map: serde_json::Map<String, Value> = findings
            .iter()
            .map(|f| {
                let mut value = f.facts.clone();
                value["good"] = f.good.into();
                value["text"] = f.text.clone().into();
                (f.what.to_owned(), value)
            })
            .collect();
        out::json(&json!({ "version": env!("CARGO_PKG_VERSION"), "good": good, "findings": map }));
    } else {
        out::line(&format!("qkvault {}", env!("CARGO_PKG_VERSION")));
        for Finding { what, good, text, facts: _ } in &findings {
            let mark = if *good { "ok " } else { "NO " };
            out::line(&format!("{mark} {what:<8} {}", text.replace('\n', "\n             ")));
        }
    }
    Ok(if good { Outcome::Good } else { Outcome::Bad })
}

fn gpu() -> Finding {
    match qkvault_exec::Device::open(0) {
        Ok(device) => Finding {
            what: "gpu",
            good: true,
            text: format!("{} ({})", device.name(), device.uuid()),
            facts: json!({ "present": true, "name": device.name() }),
        },
        Err(error) => Finding {
            what: "gpu",
            good: true,
            text: format!("none to run on: {error}\nplans can be compiled here and run elsewhere"),
            facts: json!({ "present": false, "why": error.to_string() }),
        },
    }
}

fn cudnn(args: &Args) -> anyhow::Result<Finding> {
    let search = args.library.search()?;
    let opened = Compiler::open(&search).and_then(|compiler| {
        compiler.library().check_engines().map_err(qkvault_sys::Error::from)?;
        Ok(compiler)
    });
    Ok(match opened {
        Ok(compiler) => {
            let library: &Library = compiler.library();
            let files: Vec<Value> =
                library.files().iter().map(|f| json!({ "path": f.path, "bytes": f.bytes })).collect();
            let list: Vec<String> =
                library.files().iter().map(|f| format!("{} ({})", f.path.display(), out::bytes(f.bytes))).collect();
            Finding {
                what: "cudnn",
                good: true,
                text: format!(
                    "{} {} set, found by {}\n{}",
                    library.version(),
                    library.set(),
                    library.origin(),
                    list.join("\n")
                ),
                facts: json!({
                    "version": library.version().to_string(),
                    "set": library.set().to_string(),
                    "path": library.path(),
                    "files": files,
                }),
            }
        }
        Err(error) => {
            Finding { what: "cudnn", good: false, text: error.to_string(), facts: json!({ "why": error.to_string() }) }
        }
    })
}

fn vault(globals: &Globals) -> Finding {
    match open_vault(globals) {
        Ok(vault) => {
            let usage = vault.usage();
            let folder = vault.folder().map_or_else(|| "no folder".to_owned(), |f| f.display().to_string());
            Finding {
                what: "vault",
                good: true,
                text: format!("{folder}: {} entries, {}", usage.entries, out::bytes(usage.bytes)),
                facts: json!({ "folder": folder, "entries": usage.entries, "bytes": usage.bytes }),
            }
        }
        Err(error) => {
            let folder = globals.vault.clone().or_else(|| VaultOptions::new().resolve().ok().map(|s| s.folder));
            let text = failure::text(&error);
            Finding { what: "vault", good: false, facts: json!({ "folder": folder, "why": text }), text }
        }
    }
}
