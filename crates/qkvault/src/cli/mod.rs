//! The `qkvault` command as functions: `cargo xtask` runs the very same code.
//!
//! Every command prints a table or lines for people, or one JSON object with `--json`. Exit code 0 is good, 1 means that
//! something was refused, is corrupt or failed, 2 is wrong usage.

mod cache;
mod doctor;
mod jobs;
mod out;
mod profile;
mod run;
mod target;
mod warm;

use std::path::PathBuf;
use std::process::ExitCode;

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
    /// Captured GPUs
    #[command(subcommand)]
    Profile(profile::Command),
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
    /// The cuDNN that the command will compile with, if it compiles: `cargo xtask` fetches it first.
    #[must_use]
    pub fn needs_cudnn(&self) -> Option<&LibraryArgs> {
        match self {
            Command::Warm(args) => Some(&args.library),
            Command::Doctor(_) | Command::Run(_) | Command::Cache(_) | Command::Profile(_) => None,
        }
    }
}

/// Runs a command and says how it ended.
#[must_use]
pub fn main(globals: &Globals, command: &Command) -> ExitCode {
    start_log();
    let done = match command {
        Command::Doctor(args) => doctor::run(globals, args),
        Command::Warm(args) => warm::run(globals, args),
        Command::Run(args) => run::run(globals, args),
        Command::Cache(command) => cache::run(globals, command),
        Command::Profile(command) => profile::run(globals, command),
    };
    match done {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::FAILURE,
        Err(error) => {
            if globals.json {
                out::json(&serde_json::json!({ "error": format!("{error:#}") }));
            }
            out::problem(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Log lines on standard error, as `QKVAULT_LOG` asks (`qkvault_probe=debug,cudnn=info`); warnings by default, without
/// cuDNN's own, which come back as reasons.
fn start_log() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("QKVAULT_LOG").unwrap_or_else(|_| EnvFilter::new("warn,cudnn=off"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = log.try_init();
}

/// The vault that the options name.
fn open_vault(globals: &Globals) -> anyhow::Result<Vault> {
    let options = match &globals.vault {
        Some(folder) => VaultOptions::in_folder(folder),
        None => VaultOptions::new(),
    };
    Ok(Vault::open(options)?)
}
