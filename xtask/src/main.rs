//! `cargo xtask`: the chores of this workspace, every command of `qkvault`, and the programs of the workspace `dev`.
//!
//! Exit code 0 means success, 1 an error or a refusal, 2 wrong usage.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use qkvault_base::LibrarySet;
use qkvault_cli::{self as cli, Globals};
use xtask::{
    bindings, bundle, candle, capi, deny, dev, fa4_tests, fetch, jax_tests, miri, record_tests, release, requirements,
    test, tidy, torch_tests, ui, wheel,
};

/// Runs the chores of the qkvault workspace, the commands of `qkvault`, and the programs of the workspace `dev`.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Main {
    /// Accept NVIDIA's licence for the fetched libraries (recorded for later runs; also
    /// QKVAULT_ACCEPT_NVIDIA_LICENSE=1)
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
    /// Download the cuDNN libraries to the cache folder, with pip and pinned hashes
    Fetch(fetch::Args),
    /// Generate the cuDNN declarations, or check that they are up to date
    Bindings(bindings::Args),
    /// Make a folder to copy to a GPU host, with the commands, a packed vault and scripts; the host needs no toolchain
    Bundle(bundle::Args),
    /// Write the C header from the Rust code, with the goldens of its structs and functions
    Header,
    /// Build the C library into a folder with its header and a file for pkg-config
    Capi(capi::Args),
    /// Build the wheel of the Python package
    Wheel(wheel::Args),
    /// Run unit tests in Miri, which reports undefined behaviour
    Miri(miri::Args),
    /// Run the tests of the recorder of PyTorch programs; installs PyTorch, transformers and diffusers
    RecordTests(record_tests::Args),
    /// Run the tests of the Python module for JAX, which installs JAX
    JaxTests(jax_tests::Args),
    /// Run the tests of PyTorch's door with the oracle; installs PyTorch and transformers
    TorchTests(torch_tests::Args),
    /// Compile every family of FlashAttention-4's kernels and compare their launches; downloads its toolchain
    Fa4Tests(fa4_tests::Args),
    /// Put random inputs to everything that reads data from outside
    Fuzz(dev::Args),
    /// Check the types of candle-qkvault's feature `cuda`, without nvcc
    CandleCheck,
    /// Write the lists of Python packages that chores install, with hashes of all wheels
    Requirements,
    /// Check what no compiler checks: dependencies of packages and modules, module comments, pages, forbidden words
    Tidy,
    /// Check the workspace with the oldest Rust that Cargo.toml names
    Msrv,
    /// Check licences, sources, duplicates and advisories of dependencies (cargo-deny)
    Deny(deny::Args),
    /// Compare the public interface with a release or a commit (cargo-semver-checks)
    Semver(release::SemverArgs),
    /// Pack and build every package as for publishing; upload nothing
    PublishDryRun(release::PublishArgs),
    /// Run every check and test that needs no GPU
    Test(test::Args),
    /// Run the checks of CI: `test`, and whether the declarations are up to date
    Ci(test::Args),
    #[command(flatten)]
    Qkvault(cli::Command),
    /// Compare the rules' answers with cuDNN's for random descriptions (`qkvault-lab`)
    FuzzRules(dev::Args),
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
        Command::Header => capi::header()?,
        Command::Capi(args) => capi::run(&args)?,
        Command::Wheel(args) => wheel::run(&args)?,
        Command::Miri(args) => miri::run(&args)?,
        Command::RecordTests(args) => record_tests::run(&args)?,
        Command::JaxTests(args) => jax_tests::run(&args)?,
        Command::TorchTests(args) => torch_tests::run(&args)?,
        Command::Fa4Tests(args) => fa4_tests::run(&args, &options)?,
        Command::Fuzz(_) => dev::program("qkvault-fuzz", "fuzz", false)?,
        Command::FuzzRules(_) => dev::program("qkvault-lab", "fuzz-rules", true)?,
        Command::CandleCheck => candle::check()?,
        Command::Requirements => requirements::run(&options)?,
        Command::Tidy => tidy::run()?,
        Command::Msrv => release::msrv()?,
        Command::Deny(args) => deny::run(&args)?,
        Command::Semver(args) => release::semver(&args)?,
        Command::PublishDryRun(args) => release::publish_dry_run(&args)?,
        Command::Test(args) => test::run(&args, &options)?,
        Command::Ci(args) => test::ci(&args, &options)?,
        Command::Qkvault(mut command) => {
            if let Some(library) = command.library_to_fetch() {
                let set = if library.full { LibrarySet::Full } else { LibrarySet::Slim };
                let fetched = fetch::ensure(library.cudnn.as_deref(), set, &options)?;
                // The folder names the exact version; a partial version would be read as one that ends in 0.
                (library.cudnn, library.cudnn_path) = (None, Some(fetched.dir));
            }
            return Ok(cli::main(globals, &command));
        }
    }
    Ok(ExitCode::SUCCESS)
}
