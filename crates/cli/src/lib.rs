//! The `qkvault` command as functions, and the code that it shares with `qkvault-lab`: options, opening the vault,
//! output, operands on a GPU. `cargo xtask` runs the same code.
//!
//! Every command prints a table or lines of text, or one JSON object with `--json`. Exit code 0 means success, 1 means
//! that something was refused, failed or is corrupt, 2 means wrong usage.

#![deny(unsafe_code)]

mod cache;
pub mod clock;
pub mod codes;
pub mod data;
mod deep;
mod doctor;
mod failure;
mod file;
pub mod jobs;
#[allow(unsafe_code, reason = "the one place of the commands that binds addresses and records graphs")]
pub mod memory;
mod model;
mod older;
pub mod out;
mod pack;
mod probe;
mod profile;
mod ranks;
mod rejections;
mod run;
mod serve;
pub mod target;
mod threads;
mod traffic;
pub mod turns;
mod warm;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use qkvault_cache::{Mode, Vault, VaultOptions};
use qkvault_compile::Engines;
use qkvault_graph::EnginePolicy;

pub use target::{LibraryArgs, TargetArgs};

/// Options of every command.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Vault and output")]
pub struct Globals {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// The vault's folder (also QKVAULT_CACHE_DIR; default: below the user's cache folder)
    #[arg(long, global = true, value_name = "DIR")]
    pub vault: Option<PathBuf>,
    /// A remote store, an http(s) address or a folder: the vault looks there for entries that it lacks, and uploads
    /// what it builds (also QKVAULT_REMOTE; QKVAULT_REMOTE_TOKEN holds a bearer token)
    #[arg(long, global = true, value_name = "ADDRESS|DIR")]
    pub remote: Option<String>,
    /// Longest time that one look-up waits for the remote store, in milliseconds (also QKVAULT_REMOTE_DEADLINE_MS;
    /// default: 1000)
    #[arg(long, global = true, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=600_000))]
    pub remote_deadline_ms: Option<u32>,
}

/// Parses an option whose values have the same names as in JSON.
///
/// # Errors
///
/// The text names no value of `T`.
pub fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).map_err(|error| error.to_string())
}

/// The policy of a word on the command line: `auto`, or an engine.
///
/// # Errors
///
/// A sentence with the words that there are.
pub fn policy(text: &str) -> Result<EnginePolicy, String> {
    Engines::built_in().policy(text)
}

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Report what this machine has, what it lacks, and how to fix that
    Doctor(doctor::DoctorArgs),
    /// Show the attentions of a model, from its config.json or GGUF file
    Model(model::ModelCommandArgs),
    /// Compile the plans that a model needs; the target GPU need not be present
    Warm(warm::WarmArgs),
    /// Run a model's attentions on the GPU with plans from the vault, or on the CPU, and check the numbers
    Run(run::RunArgs),
    /// Inspect and maintain the vault
    #[command(subcommand)]
    Cache(cache::CacheCommand),
    /// Write the vault, or a part of it, to one file
    Pack(pack::PackArgs),
    /// Check a whole pack, then store its entries in the vault
    Unpack(pack::UnpackArgs),
    /// List, show and capture GPU profiles
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// Check whether a GPU and a cuDNN version support a model's attentions: by which engine, the expected time and the
    /// derivative of a score modification, or the reasons and the nearest change
    #[command(visible_alias = "explain")]
    Probe(probe::ProbeArgs),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything succeeded.
    Good,
    /// Something was refused, is corrupt or is missing; the command has printed it.
    Bad,
    /// A child process did what this one was asked, and has printed how it went: its exit code.
    Child(u8),
}

impl Outcome {
    /// The outcome of a child process with this exit code.
    pub(crate) fn of_child(code: i32) -> Outcome {
        Outcome::Child(u8::try_from(code).unwrap_or(1))
    }
}

impl Command {
    /// The cuDNN options of a command that compiles, if the cuDNN may have to be fetched first, as `cargo xtask` does.
    ///
    /// `None` if the command needs no cuDNN, or if `--cudnn-path` or `QKVAULT_CUDNN_PATH` names one.
    #[must_use]
    pub fn library_to_fetch(&mut self) -> Option<&mut LibraryArgs> {
        let library = match self {
            Command::Warm(args) => &mut args.library,
            Command::Probe(args) if args.needs_library() => &mut args.library,
            Command::Doctor(_)
            | Command::Model(_)
            | Command::Run(_)
            | Command::Cache(_)
            | Command::Pack(_)
            | Command::Unpack(_)
            | Command::Profile(_)
            | Command::Probe(_) => return None,
        };
        let named = library.cudnn_path.is_some() || std::env::var_os("QKVAULT_CUDNN_PATH").is_some();
        // Each version of a list has a process of its own, which fetches it.
        (!named && library.versions().len() < 2).then_some(library)
    }
}

/// Prints the page that `help text` asks for, if this is what the process was started with.
#[must_use]
pub fn printed_page() -> bool {
    let asked = std::env::args_os().skip(1).eq(["help", "text"]);
    if asked {
        // Signs that a table of Markdown needs are not for a terminal.
        out::lines(&qkvault_graph::text::PAGE.replace("\\|", "|"));
    }
    asked
}

/// Parses a command from its words, such as `["warm", "--model", "config.json"]`, for programs that run several
/// commands.
///
/// # Errors
///
/// The words are not a valid command; the error describes why.
pub fn parse<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Command, clap::Error> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct CommandLine {
        #[command(subcommand)]
        command: Command,
    }
    <CommandLine as clap::Parser>::try_parse_from(words).map(|words| words.command)
}

/// Runs a command and returns its exit code.
#[must_use]
pub fn main(globals: &Globals, command: &Command) -> ExitCode {
    finish(globals, || match command {
        Command::Doctor(args) => doctor::run(globals, args),
        Command::Model(args) => model::run(globals, args),
        Command::Warm(args) => warm::run(globals, args),
        Command::Run(args) => run::run(globals, args),
        Command::Cache(command) => cache::run(globals, command),
        Command::Pack(args) => pack::pack(globals, args),
        Command::Unpack(args) => pack::unpack(globals, args),
        Command::Profile(command) => profile::run(globals, command),
        Command::Probe(args) => probe::run(globals, args),
    })
}

/// Starts the log, runs a command, prints its error, and returns its exit code.
#[must_use]
pub fn finish(globals: &Globals, command: impl FnOnce() -> anyhow::Result<Outcome>) -> ExitCode {
    start_log();
    match command() {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::FAILURE,
        Ok(Outcome::Child(code)) => ExitCode::from(code),
        Err(error) => {
            let text = failure::text(&error);
            if globals.json {
                out::json(&serde_json::json!({ "error": text }));
            }
            out::problem(&format!("error: {text}"));
            failure::code(&error).into()
        }
    }
}

/// Starts the log on standard error, filtered by `QKVAULT_LOG` (`qkvault_probe=debug,cudnn=info`).
///
/// The default shows warnings, except those of cuDNN, which become reasons, and of the vault, which the commands print
/// at their end.
fn start_log() {
    use tracing_subscriber::EnvFilter;
    let filter =
        EnvFilter::try_from_env("QKVAULT_LOG").unwrap_or_else(|_| EnvFilter::new("warn,cudnn=off,qkvault_cache=error"));
    // Without colours: they are escapes too, and those of a message would not be told from them.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| out::Log);
    let _ = log.try_init();
}

/// Opens the vault that the options name.
///
/// # Errors
///
/// The vault cannot be opened.
pub fn open_vault(globals: &Globals) -> anyhow::Result<Vault> {
    Ok(Vault::open(vault_options(globals))?)
}

/// Opens the vault that the options name to read it: one that is not there is an error, not an empty folder.
///
/// # Errors
///
/// There is no folder of this name, or the vault cannot be opened.
pub fn open_existing_vault(globals: &Globals) -> anyhow::Result<Vault> {
    let options = vault_options(globals);
    let settings = options.resolve()?;
    let empty = !settings.folder.is_dir() && settings.layers.is_empty() && settings.remote.is_none();
    if settings.mode != Mode::Off && empty {
        let folder = settings.folder.display();
        anyhow::bail!("there is no vault at {folder}: `qkvault warm` makes one, `--vault DIR` names another");
    }
    open_vault(globals)
}

/// The vault that the options name. Options take precedence over the environment.
pub fn vault_options(globals: &Globals) -> VaultOptions {
    let Globals { json: _, vault, remote, remote_deadline_ms } = globals;
    let options = match vault {
        Some(folder) => VaultOptions::in_folder(folder),
        None => VaultOptions::new(),
    };
    let given: [(&str, Option<OsString>); 2] = [
        ("QKVAULT_REMOTE", remote.as_ref().map(Into::into)),
        ("QKVAULT_REMOTE_DEADLINE_MS", remote_deadline_ms.map(|ms| ms.to_string().into())),
    ];
    options.environment(move |name| {
        let given = given.iter().find(|(given, _)| *given == name).and_then(|(_, value)| value.clone());
        given.or_else(|| std::env::var_os(name))
    })
}

/// Longest time that a command waits at its end for its uploads to the remote store.
const FLUSH: Duration = Duration::from_secs(60);

/// Waits for the uploads to the remote store, and returns a note if some failed or are not finished, or if the store
/// did not answer: with the cause.
fn flush_remote(vault: &Vault) -> Option<String> {
    let remote = vault.settings().remote.as_ref()?;
    let done = vault.flush_remote(FLUSH);
    let stats = vault.stats();
    let lost = stats.upload_failures + stats.uploads_dropped;
    let late = if done { String::new() } else { format!(", the rest did not finish within {} s", FLUSH.as_secs()) };
    let mut parts = Vec::new();
    if lost > 0 || !done {
        parts.push(format!(
            "uploads to the remote store {}: {} succeeded, {lost} failed{late}",
            remote.location, stats.uploads
        ));
    }
    let unanswered = stats.remote_failures + stats.remote_skipped;
    if unanswered > 0 {
        parts.push(format!("{unanswered} look-ups got no answer from the remote store"));
    }
    parts.extend(vault.remote_trouble().filter(|_| !parts.is_empty()));
    (!parts.is_empty()).then(|| parts.join("; "))
}
