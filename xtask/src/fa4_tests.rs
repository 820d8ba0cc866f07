//! `cargo xtask fa4-tests`: compiles the kernels of every family of FlashAttention-4 and compares their launches with
//! the compiler's own host functions.
//!
//! It is in no run of CI, because it downloads 110 MB and compiles for a quarter of an hour of one core. Where the
//! toolchain is fetched, `cargo xtask test` compares one family.

use anyhow::Result;
use qkvault_skip::{Need, PROMISED};

use crate::{cargo, fetch, ui};

/// Options of `fa4-tests`.
#[derive(Debug, clap::Args)]
pub struct Fa4TestsArgs {
    /// Only families whose names contain one of these parts, separated by commas: "backward d64,forward"
    #[arg(long, value_name = "PARTS")]
    family: Option<String>,
}

/// Fetches the toolchain, then runs the tests that need it.
///
/// # Errors
///
/// The toolchain cannot be fetched, or a test fails.
pub fn run(args: &Fa4TestsArgs, options: &fetch::FetchOptions) -> Result<()> {
    let fetched = fetch::ensure_engine("fa4", options)?;
    ui::say(&format!("FlashAttention-4: {}", fetched.dir.display()));
    let variables = [(PROMISED, Need::Fa4.name()), ("QKVAULT_FA4_FAMILY", args.family.as_deref().unwrap_or("all"))];
    cargo::run(&["test", "--package", "qkvault-fa4", "--test", "launches", "--", "--nocapture"], &variables)?;
    cargo::run(&["test", "--package", "qkvault-compile", "--test", "fa4"], &variables)
}
