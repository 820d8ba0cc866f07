//! `cargo xtask`: the chores of this workspace, and every command of `qkvault`, which is the same code.
//!
//! Exit code 0 is good, 1 is an error or a refusal, 2 is wrong usage.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use qkvault_base::LibrarySet;
use qkvault_cli::{self as cli, Globals};
use xtask::{bindings, bundle, fetch, mutants, release, test, tidy, ui};

/// The chores of the qkvault workspace, and the commands of `qkvault`.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Main {
    /// Accept NVIDIA's licence of the libraries that are fetched (remembered; also QKVAULT_ACCEPT_NVIDIA_LICENSE=1)
    #[arg(long, global = true)]
    accept_nvidia_license: bool,
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one per process")]
enum Command {
    /// Get the cuDNN libraries, by pip and with pinned hashes, into the cache folder
    Fetch(fetch::Args),
    /// Generate the cuDNN declarations, or check that they are up to date
    Bindings(bindings::Args),
    /// Make a folder to copy to a GPU host: the command, a packed vault, a script; needs no toolchain there
    Bundle(bundle::Args),
    /// Change the code in many small ways and tell which changes no test notices
    Mutants(mutants::Args),
    /// Check what no compiler checks: who may import whom, module comments, words that must not be here
    Tidy,
    /// Build the workspace with the oldest Rust that Cargo.toml promises
    Msrv,
    /// Check licences, sources, duplicates and advisories of what is used (cargo-deny)
    Deny(release::DenyArgs),
    /// Compare the public interface with a release or a commit (cargo-semver-checks)
    Semver(release::SemverArgs),
    /// Pack and build every package as it would be published; nothing is uploaded
    PublishDryRun(release::PublishArgs),
    /// Run every check and test that needs no GPU
    Test(test::Args),
    /// What CI runs: `test`, and that the declarations are up to date
    Ci(test::Args),
    #[command(flatten)]
    Qkvault(cli::Command),
    #[command(flatten)]
    Lab(qkvault_lab::Command),
}

fn main() -> ExitCode {
    let Main { accept_nvidia_license: accept, globals, command } = Main::parse();
    match run(accept, &globals, command) {
        Ok(code) => code,
        Err(error) => {
            ui::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(accept: bool, globals: &Globals, command: Command) -> Result<ExitCode> {
    let options = fetch::Options { accept_nvidia_license: accept, ..fetch::Options::default() };
    match command {
        Command::Fetch(args) => fetch::run(&args.accepting(accept))?,
        Command::Bindings(args) => bindings::run(&args.accepting(accept))?,
        Command::Bundle(args) => bundle::run(&args, &options)?,
        Command::Mutants(args) => mutants::run(&args)?,
        Command::Tidy => tidy::run()?,
        Command::Msrv => release::msrv()?,
        Command::Deny(args) => release::deny(&args)?,
        Command::Semver(args) => release::semver(&args)?,
        Command::PublishDryRun(args) => release::publish_dry_run(&args)?,
        Command::Test(args) => test::run(&args, &options)?,
        Command::Ci(args) => test::ci(&args, &options)?,
        Command::Qkvault(mut command) => {
            if let Some(library) = command.library_to_fetch() {
                let set = if library.full { LibrarySet::Full } else { LibrarySet::Slim };
                let fetched = fetch::ensure(library.cudnn.as_deref(), set, &options)?;
                // The folder says exactly which; a version given in part would be taken for one that ends in 0.
                (library.cudnn, library.cudnn_path) = (None, Some(fetched.dir));
            }
            return Ok(cli::main(globals, &command));
        }
        Command::Lab(command) => return Ok(qkvault_lab::main(globals, &command)),
    }
    Ok(ExitCode::SUCCESS)
}
