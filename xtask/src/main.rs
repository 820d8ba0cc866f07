//! `cargo xtask`: the chores of this workspace, every command of `qkvault`, and the programs of `dev`.
//!
//! Exit code 0 means success, 1 an error or a refusal, 2 wrong usage.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use qkvault_base::LibrarySet;
use qkvault_cli::{self as cli, Globals};
use xtask::{
    bindings, bundle, burn, candle, capi, deny, dev, fa4_tests, fetch, jax_tests, miri, record_tests, release,
    requirements, test, tidy, torch_tests, ui, wheel,
};

/// Runs the chores of the qkvault workspace, the commands of `qkvault`, and the programs of `dev`.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Xtask {
    /// Accept NVIDIA's licence for the fetched libraries (recorded for later runs; also
    /// QKVAULT_ACCEPT_NVIDIA_LICENSE=1)
    #[arg(long, global = true)]
    accept_nvidia_license: bool,
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Chore,
}

#[derive(Debug, clap::Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one per process")]
enum Chore {
    /// Download the cuDNN libraries to the cache folder, with pip and pinned hashes
    Fetch(fetch::FetchArgs),
    /// Generate the cuDNN declarations, or check that they are up to date
    Bindings(bindings::BindingsArgs),
    /// Make a folder to copy to a GPU host, with the commands, a packed vault and scripts; the host needs no toolchain
    Bundle(bundle::BundleArgs),
    /// Write the C header from the Rust code, with the goldens of its structs and functions
    Header,
    /// Build the C library into a folder with its header and a file for pkg-config
    Capi(capi::CapiArgs),
    /// Build the wheel of the Python package
    Wheel(wheel::WheelArgs),
    /// Run unit tests in Miri, which reports undefined behaviour
    Miri(miri::MiriArgs),
    /// Run the tests of the recorder of PyTorch programs; installs PyTorch, transformers and diffusers
    RecordTests(record_tests::RecordTestsArgs),
    /// Run the tests of the Python module for JAX, which installs JAX
    JaxTests(jax_tests::JaxTestsArgs),
    /// Run the tests of PyTorch's door with the oracle; installs PyTorch and transformers
    TorchTests(torch_tests::TorchTestsArgs),
    /// Compile every family of FlashAttention-4's kernels and compare their launches; downloads its toolchain
    Fa4Tests(fa4_tests::Fa4TestsArgs),
    /// Put random inputs to everything that reads data from outside
    Fuzz(dev::DevArgs),
    /// Check the types of candle-qkvault's feature `cuda`, without nvcc
    CandleCheck,
    /// Test burn-qkvault on the CPU, and check its feature `cuda`: CI does not, for it takes minutes to build burn
    BurnCheck,
    /// Write the lists of Python packages that chores install, with hashes of all wheels
    Requirements,
    /// Check what no compiler checks: dependencies of packages and modules, module comments, pages, forbidden words
    Tidy,
    /// Check the workspace with the oldest Rust that Cargo.toml names
    Msrv,
    /// Check licences, sources, duplicates and advisories of dependencies (cargo-deny)
    Deny(deny::DenyArgs),
    /// Compare the public interface with a release or a commit (cargo-semver-checks)
    Semver(release::SemverArgs),
    /// Pack and build every package as for publishing; upload nothing
    PublishDryRun(release::PublishArgs),
    /// Ask everything that a release needs, and print yes or no and what to do; upload nothing
    Release(release::ReleaseArgs),
    /// Run every check and test that needs no GPU
    Test(test::TestArgs),
    /// Run the checks of CI: `test`, and whether the declarations are up to date
    Ci(test::TestArgs),
    #[command(flatten)]
    Qkvault(cli::Command),
    /// Compare the rules' answers with cuDNN's for random descriptions (`qkvault-lab`)
    FuzzRules(dev::DevArgs),
}

fn main() -> ExitCode {
    if cli::printed_page() {
        return ExitCode::SUCCESS;
    }
    let Xtask { accept_nvidia_license: accept, globals, command } = Xtask::parse();
    match run(accept, &globals, command) {
        Ok(code) => code,
        Err(error) => {
            ui::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(accept: bool, globals: &Globals, command: Chore) -> Result<ExitCode> {
    let options = fetch::FetchOptions { accept_nvidia_license: accept, ..fetch::FetchOptions::default() };
    match command {
        Chore::Fetch(args) => fetch::run(&args.accepting(accept))?,
        Chore::Bindings(args) => bindings::run(&args.accepting(accept))?,
        Chore::Bundle(args) => bundle::run(&args, &options)?,
        Chore::Header => capi::header()?,
        Chore::Capi(args) => capi::run(&args)?,
        Chore::Wheel(args) => wheel::run(&args)?,
        Chore::Miri(args) => miri::run(&args)?,
        Chore::RecordTests(args) => record_tests::run(&args)?,
        Chore::JaxTests(args) => jax_tests::run(&args)?,
        Chore::TorchTests(args) => torch_tests::run(&args)?,
        Chore::Fa4Tests(args) => fa4_tests::run(&args, globals.json, &options)?,
        Chore::Fuzz(_) => dev::program("qkvault-fuzz", "fuzz", false)?,
        Chore::FuzzRules(_) => dev::program("qkvault-lab", "fuzz-rules", true)?,
        Chore::CandleCheck => candle::check()?,
        Chore::BurnCheck => burn::check()?,
        Chore::Requirements => requirements::run(&options)?,
        Chore::Tidy => tidy::run()?,
        Chore::Msrv => release::msrv()?,
        Chore::Deny(args) => deny::run(&args)?,
        Chore::Semver(args) => release::semver(&args)?,
        Chore::PublishDryRun(args) => release::publish_dry_run(&args)?,
        Chore::Release(args) => release::run(&args, &options)?,
        Chore::Test(args) => test::run(&args, &options)?,
        Chore::Ci(args) => test::ci(&args, &options)?,
        Chore::Qkvault(mut command) => {
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
