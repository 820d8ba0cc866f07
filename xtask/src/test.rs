//! `cargo xtask test`: runs every check and test that needs no GPU, with the real cuDNN. `cargo xtask ci` also checks
//! the declarations.

use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use qkvault_base::LibrarySet;
use qkvault_skip::{Need, PROMISED, RECORD};

use crate::{bindings, candle, cargo, deny, dev, doors, fetch, programs, release, skips, tidy, ui};

/// Options of the commands.
#[derive(Debug, clap::Args)]
pub struct TestArgs {
    /// Leave out formatting, clippy, documentation and packages
    #[arg(long)]
    only_tests: bool,
    /// Only tidy, formatting and the unit tests of the libraries: the inner loop
    #[arg(long, conflicts_with_all = ["only_tests", "without_doors"])]
    quick: bool,
    /// Leave out the doors in Python, which install PyTorch and JAX into the cache folder: 8 GB
    #[arg(long)]
    without_doors: bool,
}

/// The cuDNN versions of the tests. Each process loads one.
const VERSIONS: [&str; 3] = ["9.27.0.42", "9.19.0.56", "9.14.0.64"];

/// How many programs run at a time: one for each core that CI has.
const JOBS: usize = 2;

/// Seconds of fuzzing, for all targets together.
const FUZZED: u32 = 20;

/// Runs the command.
///
/// # Errors
///
/// A step fails.
pub fn run(args: &TestArgs, options: &fetch::FetchOptions) -> Result<()> {
    if args.quick {
        return quick();
    }
    for version in VERSIONS {
        let fetched = fetch::ensure(Some(version), LibrarySet::Slim, options)?;
        ui::say(&format!("cuDNN {version}: {}", fetched.dir.display()));
    }
    let fetched = fetch::ensure_engine("fa4", options)?;
    ui::say(&format!("FlashAttention-4: {}", fetched.dir.display()));
    // Packages of Python come over the network, meanwhile cargo builds.
    let installing = (!args.without_doors).then(|| std::thread::spawn(doors::install));
    if !args.only_tests {
        tidy::run()?;
        deny::run(&deny::DenyArgs::default())?;
        cargo::run(&["fmt", "--all", "--check"], &[])?;
        cargo::run(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
        // With the examples, whose dependencies are those of tests too: what clippy has checked is not checked again
        // with other features. Other programs have the names of libraries.
        let doc = ["doc", "--workspace", "--no-deps", "--lib", "--examples"];
        cargo::run(&doc, &[("RUSTDOCFLAGS", "-D warnings")])?;
    }
    let folder = tempfile::tempdir()?;
    let record = folder.path().join("skips");
    let record_name = record.display().to_string();
    let promised = [Need::Cudnn, Need::Fa4];
    let names = promised.map(Need::name).join(",");
    let required = [(PROMISED, &*names), (RECORD, &record_name)];
    let (passed, programs) = (AtomicUsize::new(0), programs::build(&["--workspace"])?);
    let mut tasks = programs::Tasks::new(programs, &passed, &required);
    let mut others: Vec<programs::Task<'_>> = vec![
        task("fuzzing", || dev::fuzz(FUZZED)),
        // With `--doc` cargo does not look at `doctest = false`: the examples of the C door are in C. That door turns
        // the oracle on, which the guide uses.
        task("the documentation's examples", || {
            let words = ["test", "--workspace", "--exclude", "qkvault-c", "--features", "qkvault/oracle", "--doc"];
            cargo::run(&words, &required)
        }),
        task("candle", || candle::test(args.only_tests)),
    ];
    if let Some(installing) = installing {
        installing.join().map_err(|_| anyhow!("installing packages ended in a panic"))??;
        others.extend(doors::tasks()?);
    }
    // Before programs that take less time than most of these.
    tasks.side_by_side.splice(programs::LONG.len()..programs::LONG.len(), others);
    if !args.only_tests {
        tasks.waiting.push(task("packages", release::package));
    }
    tasks.run(JOBS)?;
    ui::say(&format!("{} tests of cargo's programs passed", passed.into_inner()));
    skips::settle(&record, &promised)?;
    ui::say("all checks passed");
    Ok(())
}

/// What runs beside test programs, with its name.
fn task<'t>(name: &'static str, run: impl FnOnce() -> Result<()> + Send + 't) -> programs::Task<'t> {
    Box::new(move || {
        let begun = Instant::now();
        run().with_context(|| format!("{name} failed"))?;
        Ok(format!("{name}: {:.0} s", begun.elapsed().as_secs_f64()))
    })
}

/// What a change is tried with before it is committed. Tests that need a cuDNN which is not fetched skip themselves.
fn quick() -> Result<()> {
    tidy::run()?;
    cargo::run(&["fmt", "--all", "--check"], &[])?;
    let passed = AtomicUsize::new(0);
    programs::Tasks::new(programs::build(&["--workspace", "--lib"])?, &passed, &[]).run(JOBS)?;
    ui::say(&format!("{} unit tests passed; `cargo xtask test` runs everything", passed.into_inner()));
    Ok(())
}

/// Runs the checks of CI.
///
/// # Errors
///
/// A step fails.
pub fn ci(args: &TestArgs, options: &fetch::FetchOptions) -> Result<()> {
    run(args, options)?;
    bindings::run(&bindings::BindingsArgs::check().accepting(options.accept_nvidia_license))
}
