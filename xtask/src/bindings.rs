//! bootstrap
use anyhow::Result;
use std::path::PathBuf;

/// Options.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// folder
    #[arg(long)]
    include: PathBuf,
}

/// Runs.
pub fn run(args: &Args) -> Result<()> {
    #[cfg(feature = "bindings")]
    std::fs::write("/tmp/wh-sys/bindings.rs", crate::generate::generate(&args.include, &PathBuf::from("xtask/src/stub"), "nvidia-cudnn-jit-cu13 9.27.0.42")?)?;
    let _ = args;
    Ok(())
}
