//! `cargo xtask fa4-tests`: compiles the kernels of every family of FlashAttention-4 and compares their launches with
//! the compiler's own host functions. With `--toolchain` it compares another FlashAttention-4 with the pinned one.
//!
//! It is in no run of CI, because it downloads 110 MB and compiles for a quarter of an hour of one core. Where the
//! toolchain is fetched, `cargo xtask test` compares one family.

use anyhow::{Context as _, Result};
use qkvault_skip::{Need, PROMISED};

use crate::fetch::ToolchainChoice;
use crate::{cargo, fetch, ui};

/// Options of `fa4-tests`.
#[derive(Debug, clap::Args)]
pub struct Fa4TestsArgs {
    /// Only families whose names contain one of these parts, separated by commas: "backward d64,forward"
    #[arg(long, value_name = "PARTS")]
    family: Option<String>,
    /// Tell what another toolchain changes, launch by launch and kernel by kernel: `newest`, or versions, of which the
    /// pinned ones may be left out: flash-attn-4==4.0.0b36,nvidia-cutlass-dsl==4.8.1,quack-kernels==0.6.5
    #[arg(long, value_name = "VERSIONS")]
    toolchain: Option<ToolchainChoice>,
}

/// Fetches the toolchain, then runs the tests that need it, or compares another toolchain with it.
///
/// # Errors
///
/// A toolchain cannot be fetched, a test fails, or the other toolchain changes something.
pub fn run(args: &Fa4TestsArgs, json: bool, options: &fetch::FetchOptions) -> Result<()> {
    let fetched = fetch::ensure_engine("fa4", options)?;
    ui::say(&format!("FlashAttention-4: {}", fetched.dir.display()));
    let families = args.family.as_deref().unwrap_or("all");
    if let Some(choice) = &args.toolchain {
        return compare(choice, families, json, options);
    }
    let variables = [(PROMISED, Need::Fa4.name()), ("QKVAULT_FA4_FAMILY", families)];
    cargo::run(&["test", "--package", "qkvault-fa4", "--test", "launches", "--", "--nocapture"], &variables)?;
    cargo::run(&["test", "--package", "qkvault-compile", "--test", "fa4"], &variables)
}

/// Fetches a toolchain to try, and compares it with the pinned one.
fn compare(choice: &ToolchainChoice, families: &str, json: bool, options: &fetch::FetchOptions) -> Result<()> {
    let Some(tried) = fetch::ensure_tried(choice, options)? else {
        ui::say("the pinned toolchain is the newest that pip finds; name versions to try others");
        return Ok(());
    };
    let (dir, size) = (tried.fetched.dir.display(), ui::size(tried.fetched.bytes));
    ui::say(&format!("to try: {dir} ({size}; nothing else uses it, so it may be deleted)"));
    let site = tried.fetched.dir.to_str().context("the cache folder's name is not UTF-8")?;
    let [flash_attn, cutlass_dsl, quack] = tried.toolchain.packages().map(|(_, version)| version);
    let form = if json { "json" } else { "text" };
    let program = ["run", "--package", "qkvault-fa4", "--example", "upgrade", "--"];
    let words = [&program[..], &[site, flash_attn, cutlass_dsl, quack, families, form]].concat();
    cargo::run(&words, &[]).context("something has changed, or could not be compared")
}
