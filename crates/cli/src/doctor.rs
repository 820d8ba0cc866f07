//! `doctor`: reports what this machine has, what it lacks, and how to fix that.

use std::path::PathBuf;

use qkvault_base::{LIBRARIES_ALLOW_SHARED_VARIABLE, Shown, distrust_library, on_one_line, shared_library};
use qkvault_cache::{Key, Mode, VaultOptions};
use qkvault_compile::{Compiler, NvrtcError};
use qkvault_exec::{Device, DeviceMemory};
use qkvault_fa4::{Installed, NotInstalled};
use qkvault_sys::{Library, NvrtcLibrary};
use serde_json::{Value, json};

use crate::target::LibraryArgs;
use crate::{Globals, Outcome, failure, older, open_vault, out};

/// Options of `doctor`.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    library: LibraryArgs,
}

/// One finding.
struct DoctorFinding {
    what: &'static str,
    good: bool,
    text: String,
    facts: Value,
}

/// Runs the command. A missing GPU is not a fault: the machine can still compile.
pub(super) fn run(globals: &Globals, args: &DoctorArgs) -> anyhow::Result<Outcome> {
    let mut findings = vec![gpu(), cudnn(args)?, kernels(), fa4(), vault(globals)];
    findings.extend(remote(globals));
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
        for DoctorFinding { what, good, text, facts: _ } in &findings {
            let mark = if *good { "ok " } else { "NO " };
            out::lines(&format!("{mark} {what:<8} {}", text.replace('\n', "\n             ")));
        }
    }
    Ok(if good { Outcome::Good } else { Outcome::Bad })
}

fn gpu() -> DoctorFinding {
    match Device::open(0) {
        Ok(device) => {
            let (memory, bytes) = match device.memory() {
                Ok(DeviceMemory { free, total }) => (
                    format!("{} free of {}", out::bytes(free), out::bytes(total)),
                    json!({ "free": free, "total": total }),
                ),
                Err(error) => (error.to_string(), Value::Null),
            };
            DoctorFinding {
                what: "gpu",
                good: true,
                text: format!("{} ({}), {memory}", Shown(device.name()), device.uuid()),
                facts: json!({ "present": true, "name": device.name(), "memory": bytes }),
            }
        }
        Err(error) => DoctorFinding {
            what: "gpu",
            good: true,
            text: format!(
                "none to run on: {}\nplans can be compiled here and run elsewhere",
                on_one_line(&error.to_string())
            ),
            facts: json!({ "present": false, "why": error.to_string() }),
        },
    }
}

fn cudnn(args: &DoctorArgs) -> anyhow::Result<DoctorFinding> {
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
            let mut list: Vec<String> =
                library.files().iter().map(|f| format!("{} ({})", shown(&f.path), out::bytes(f.bytes))).collect();
            let toolchain = compiler.toolchain();
            let nvrtc = library.nvrtc().map(nvrtc);
            list.extend(nvrtc.iter().map(|(text, _)| text.clone()));
            let trust = trust(Some(library));
            let notes = toolchain.environment.notes().chain(trust.iter().cloned());
            list.extend(notes.map(|note| format!("note: {}", Shown(&note))));
            DoctorFinding {
                what: "cudnn",
                good: true,
                text: format!(
                    "{} {} set ({toolchain}), found by {}\n{}",
                    library.version(),
                    library.set(),
                    on_one_line(&library.origin().to_string()),
                    list.join("\n")
                ),
                facts: json!({
                    "version": library.version().to_string(),
                    "set": library.set().to_string(),
                    "path": library.path(),
                    "files": files,
                    "toolchain": toolchain,
                    "nvrtc": nvrtc.map(|(_, facts)| facts),
                    "notes": toolchain.environment.notes().chain(trust).collect::<Vec<_>>(),
                }),
            }
        }
        Err(error) => {
            let (why, trust) = (failure::text(&error.into()), trust(None));
            let text = trust.iter().fold(why.clone(), |text, note| format!("{text}\nnote: {}", Shown(note)));
            DoctorFinding { what: "cudnn", good: false, text, facts: json!({ "why": why, "notes": trust }) }
        }
    })
}

/// Folders of libraries that others can change: those that are passed over, and what is used of them because that is
/// allowed. Those of kernels' compilers too, which no other finding has.
fn trust(library: Option<&Library>) -> Vec<String> {
    let untrusted = library.into_iter().flat_map(Library::untrusted);
    let mut notes: Vec<String> = untrusted.map(|place| format!("not used: {place}")).collect();
    let variable = |name: &str| std::env::var_os(name);
    let mut used: Vec<PathBuf> = library.into_iter().map(|library| library.path().to_owned()).collect();
    match qkvault_compile::Nvrtc::open(None) {
        Ok(nvrtc) => used.push(nvrtc.path().to_owned()),
        Err(NvrtcError::NotFound { tried }) => {
            let shared = tried.iter().filter(|place| distrust_library(&place.path, variable).is_some());
            notes.extend(
                shared.map(|place| format!("not used for kernels: {}: {}", place.path.display(), place.reason)),
            );
        }
        // Others tell why kernels do not compile; here it is about folders.
        Err(_) => {}
    }
    match Installed::find() {
        Ok(found) => used.push(found.site),
        Err(error @ NotInstalled::Untrusted { .. }) => notes.push(format!("not used: {error}")),
        Err(_) => {}
    }
    notes.extend(used.iter().filter_map(|path| {
        let why = shared_library(path, variable)?;
        Some(format!("used because {LIBRARIES_ALLOW_SHARED_VARIABLE} is 1: {}: {why}", path.display()))
    }));
    notes
}

/// A path on one line.
fn shown(path: &std::path::Path) -> String {
    on_one_line(&path.to_string_lossy()).into_owned()
}

/// The NVRTC in use, the reason, and the other copies: as text, and as data.
fn nvrtc(found: &NvrtcLibrary) -> (String, Value) {
    let NvrtcLibrary { path, version: (major, minor), was_loaded, others } = found;
    let why = if *was_loaded { "loaded in this process before cuDNN" } else { "the first one found" };
    let mut text = format!("NVRTC {major}.{minor} is used: {} ({why})", shown(path));
    for other in others {
        text += &format!("\nnote: another NVRTC is not used: {}", shown(other));
    }
    let version = format!("{major}.{minor}");
    (text, json!({ "version": version, "path": path, "was_loaded": was_loaded, "others": others }))
}

/// What compiles qkvault's own kernels. Without it the other engines go on.
fn kernels() -> DoctorFinding {
    let (text, facts) = match qkvault_compile::Nvrtc::open(None) {
        Ok(found) => {
            let (major, minor) = qkvault_compile::NVRTC;
            let text = format!("NVRTC {major}.{minor}: {}", shown(found.path()));
            (text, json!({ "present": true, "version": format!("{major}.{minor}"), "path": found.path() }))
        }
        Err(error) => {
            let lines: Vec<String> = error.to_string().lines().map(|line| on_one_line(line.trim()).into()).collect();
            let why = lines.join("; ");
            (format!("no NVRTC, so none is compiled here: {why}"), json!({ "present": false, "why": why }))
        }
    };
    DoctorFinding { what: "kernels", good: true, text, facts }
}

/// What compiles FlashAttention-4's kernels.
fn fa4() -> DoctorFinding {
    let (text, facts) = match Installed::find() {
        Ok(found) => {
            let version = qkvault_fa4::TOOLCHAIN.flash_attn;
            let text = format!("FlashAttention-4 {version}: {}", shown(&found.site));
            (text, json!({ "present": true, "version": version, "path": found.site }))
        }
        Err(error) => {
            let why = on_one_line(&error.to_string()).into_owned();
            (format!("none: {why}"), json!({ "present": false, "why": why }))
        }
    };
    DoctorFinding { what: "fa4", good: true, text, facts }
}

/// Whether the remote store answers, if there is one, by a look for a key that it cannot have.
fn remote(globals: &Globals) -> Option<DoctorFinding> {
    let vault = open_vault(globals).ok()?;
    let at = vault.settings().remote.as_ref()?.location.to_string();
    let _ = vault.get(&Key([0; 32]));
    let trouble = vault.remote_trouble();
    let text = trouble.clone().unwrap_or_else(|| format!("{at} answers"));
    let facts = json!({ "location": at, "why": trouble });
    Some(DoctorFinding { what: "remote", good: trouble.is_none(), text: Shown(&text).to_string(), facts })
}

fn vault(globals: &Globals) -> DoctorFinding {
    match open_vault(globals) {
        Ok(vault) => {
            let usage = vault.usage();
            let folder = vault.folder().map_or_else(|| "no folder".to_owned(), |f| f.display().to_string());
            let (entries, bytes) = (out::entries(usage.entries), out::bytes(usage.bytes));
            let mut text = format!("{}: {entries}, {bytes}", Shown(&folder));
            if vault.folder().is_some_and(|folder| !folder.is_dir()) {
                text += "; the folder is not there, the first plan that is kept makes it";
            }
            if vault.settings().mode == Mode::ReadOnly {
                text += "\nnote: it is read only (QKVAULT_CACHE), so nothing that is compiled is kept";
            }
            for layer in &vault.settings().layers {
                let there = if layer.is_dir() { "" } else { ", which is not there" };
                text += &format!("\nlayer {}{there}", shown(layer));
            }
            older::notes(&vault).for_each(|note| text += &format!("\nnote: {}", Shown(&note)));
            let older = older::json(&vault.older());
            let facts = json!({ "folder": folder, "entries": usage.entries, "bytes": usage.bytes, "older": older });
            DoctorFinding { what: "vault", good: true, text, facts }
        }
        Err(error) => {
            let folder = globals.vault.clone().or_else(|| VaultOptions::new().resolve().ok().map(|s| s.folder));
            let text = failure::text(&error);
            DoctorFinding { what: "vault", good: false, facts: json!({ "folder": folder, "why": text }), text }
        }
    }
}
