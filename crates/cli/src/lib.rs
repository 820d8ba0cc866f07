//! The `qkvault` command as functions, and what its commands share with those of `qkvault-lab`: options, the vault that they name, output,
//! operands on a GPU. `cargo xtask` runs the very same code.
//!
//! Every command prints a table or lines for people, or one JSON object with `--json`. Exit code 0 is good, 1 means that
//! something was refused, is corrupt or failed, 2 is wrong usage.

mod cache;
pub mod clock;
pub mod data;
mod deep;
mod doctor;
mod failure;
mod jobs;
pub mod memory;
mod older;
pub mod out;
mod pack;
mod probe;
mod profile;
mod rejections;
mod run;
mod serve;
pub mod target;
mod warm;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use qkvault_cache::{Vault, VaultOptions};

pub use target::{LibraryArgs, TargetArgs};

/// Options of every command.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Globals {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// The vault's folder (also QKVAULT_CACHE_DIR; default: below the user's cache folder)
    #[arg(long, global = true, value_name = "DIR")]
    pub vault: Option<PathBuf>,
    /// A remote store that is asked for what the vault lacks and given what is built: an http(s) address, or a folder
    /// (also QKVAULT_REMOTE; a bearer token is taken from QKVAULT_REMOTE_TOKEN)
    #[arg(long, global = true, value_name = "ADDRESS|DIR")]
    pub remote: Option<String>,
    /// Longest time that one look-up waits for it, in milliseconds (also QKVAULT_REMOTE_DEADLINE_MS; default: 1000)
    #[arg(long, global = true, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=600_000))]
    pub remote_deadline_ms: Option<u32>,
}

/// An option's value by the name that it has in JSON.
///
/// # Errors
///
/// The text is no name of one.
pub fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).map_err(|error| error.to_string())
}

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Say what was found on this machine, what was not, and what to do about it
    Doctor(doctor::Args),
    /// Compile the plans that a model needs, for a GPU that need not be here
    Warm(warm::Args),
    /// Run a model's attentions on the GPU with plans from the vault, or on the CPU, and check the numbers
    Run(run::Args),
    /// Look at the vault and keep it in order
    #[command(subcommand)]
    Cache(cache::Command),
    /// Write the vault, or a part of it, to one file
    Pack(pack::PackArgs),
    /// Take a pack's entries into the vault, after checking all of it
    Unpack(pack::UnpackArgs),
    /// Captured GPUs
    #[command(subcommand)]
    Profile(profile::Command),
    /// Say whether a GPU and a cuDNN can run a model's attentions, and if not why
    Probe(probe::Args),
}

/// What a command came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Good,
    /// Something was refused, is corrupt or is missing; it has been told.
    Bad,
}

impl Command {
    /// The cuDNN that the command will compile with, if it compiles with one that may have to be fetched first, as
    /// `cargo xtask` does; one that is named by path or variable is taken as it is.
    #[must_use]
    pub fn library_to_fetch(&mut self) -> Option<&mut LibraryArgs> {
        let library = match self {
            Command::Warm(args) => &mut args.library,
            Command::Probe(args) if args.needs_library() => &mut args.library,
            Command::Doctor(_)
            | Command::Run(_)
            | Command::Cache(_)
            | Command::Pack(_)
            | Command::Unpack(_)
            | Command::Profile(_)
            | Command::Probe(_) => return None,
        };
        let named = library.cudnn_path.is_some() || std::env::var_os("QKVAULT_CUDNN_PATH").is_some();
        (!named).then_some(library)
    }
}

/// A command from its words, for programs that run several: `["warm", "--model", "config.json"]`.
///
/// # Errors
///
/// What is wrong with the words.
pub fn parse<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Command, clap::Error> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct Words {
        #[command(subcommand)]
        command: Command,
    }
    <Words as clap::Parser>::try_parse_from(words).map(|words| words.command)
}

/// Runs a command and says how it ended.
#[must_use]
pub fn main(globals: &Globals, command: &Command) -> ExitCode {
    finish(globals, || match command {
        Command::Doctor(args) => doctor::run(globals, args),
        Command::Warm(args) => warm::run(globals, args),
        Command::Run(args) => run::run(globals, args),
        Command::Cache(command) => cache::run(globals, command),
        Command::Pack(args) => pack::pack(globals, args),
        Command::Unpack(args) => pack::unpack(globals, args),
        Command::Profile(command) => profile::run(globals, command),
        Command::Probe(args) => probe::run(globals, args),
    })
}

/// Runs what a command does, with its log, tells its error, and gives its exit code.
#[must_use]
pub fn finish(globals: &Globals, command: impl FnOnce() -> anyhow::Result<Outcome>) -> ExitCode {
    start_log();
    match command() {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::FAILURE,
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

/// Log lines on standard error, as `QKVAULT_LOG` asks (`qkvault_probe=debug,cudnn=info`); warnings by default, without
/// cuDNN's own, which come back as reasons, and the vault's, which the commands tell at their end.
fn start_log() {
    use std::io::IsTerminal as _;
    use tracing_subscriber::EnvFilter;
    let filter =
        EnvFilter::try_from_env("QKVAULT_LOG").unwrap_or_else(|_| EnvFilter::new("warn,cudnn=off,qkvault_cache=error"));
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    let _ = log.try_init();
}

/// The vault that the options name. What they say beats the environment.
///
/// # Errors
///
/// It cannot be opened.
pub fn open_vault(globals: &Globals) -> anyhow::Result<Vault> {
    let Globals { json: _, vault, remote, remote_deadline_ms } = globals;
    let options = match vault {
        Some(folder) => VaultOptions::in_folder(folder),
        None => VaultOptions::new(),
    };
    let given: [(&str, Option<OsString>); 2] = [
        ("QKVAULT_REMOTE", remote.as_ref().map(Into::into)),
        ("QKVAULT_REMOTE_DEADLINE_MS", remote_deadline_ms.map(|ms| ms.to_string().into())),
    ];
    let options = options.environment(move |name| {
        let given = given.iter().find(|(given, _)| *given == name).and_then(|(_, value)| value.clone());
        given.or_else(|| std::env::var_os(name))
    });
    Ok(Vault::open(options)?)
}

/// Longest time that a command waits at its end until what it built is in the remote store.
const FLUSH: Duration = Duration::from_secs(60);

/// Waits for the remote store to take what was built, and says what it did not take.
fn flush_remote(vault: &Vault) -> Option<String> {
    let remote = vault.settings().remote.as_ref()?;
    let done = vault.flush_remote(FLUSH);
    let stats = vault.stats();
    let lost = stats.upload_failures + stats.uploads_dropped;
    let late = if done { String::new() } else { format!(", the rest not within {} s", FLUSH.as_secs()) };
    (lost > 0 || !done).then(|| {
        format!("the remote store {} took {} entries and did not take {lost}{late}", remote.location, stats.uploads)
    })
}
