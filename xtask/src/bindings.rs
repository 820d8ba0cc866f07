//! `cargo xtask bindings`: writes the declarations that `qkvault-sys` compiles, or checks that they are up to date.
//!
//! The header comes from the pinned cuDNN and libclang from a pinned wheel. Stub headers replace those of the CUDA
//! toolkit and the C library. The result therefore does not depend on the machine. Only a second build of this program,
//! with the feature `bindings`, compiles bindgen.

#[cfg(feature = "bindings")]
mod generate;
mod stable;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use qkvault_base::LibrarySet;

use crate::{fetch, ui};

/// The file of the declarations, from the workspace's root.
const OUTPUT: &str = "crates/sys/src/bindings.rs";

/// The folder of the stub headers, from the workspace's root.
const STUBS: &str = "xtask/src/bindings/stub";

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write nothing; fail if the declarations are not up to date
    #[arg(long)]
    check: bool,
    /// Version of the cuDNN header
    #[arg(long, value_name = "VERSION")]
    cudnn: Option<String>,
    #[command(flatten)]
    fetch: fetch::Options,
    /// Options for the second build of this program
    #[arg(long, value_names = ["INCLUDE", "RELEASE", "OUTPUT"], num_args = 3, hide = true)]
    generate: Option<Vec<PathBuf>>,
}

impl Args {
    /// The arguments of `bindings --check`.
    #[must_use]
    pub fn check() -> Args {
        Args { check: true, cudnn: None, fetch: fetch::Options::default(), generate: None }
    }

    /// Sets whether NVIDIA's licence is accepted.
    #[must_use]
    pub fn accepting(mut self, accepted: bool) -> Args {
        self.fetch.accept_nvidia_license = accepted;
        self
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if let Some([include, release, output]) = args.generate.as_deref() {
        return generate(include, &release.to_string_lossy(), output);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is below the workspace's root")?;
    let cudnn = fetch::ensure(args.cudnn.as_deref(), LibrarySet::Slim, &args.fetch)?;
    let clang = fetch::ensure_tool("libclang", &args.fetch)?;
    let include = cudnn.dir.join("nvidia/cudnn_jit/include");
    stable::check(&include, &cudnn.dir)?;

    let fresh =
        tempfile::NamedTempFile::new_in(root.join("crates/sys/src")).context("cannot write beside the declarations")?;
    let release = cudnn.dir.file_name().unwrap_or_default();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Command::new(cargo)
        .args(["run", "--quiet", "--package", "xtask", "--features", "bindings", "--", "bindings", "--generate"])
        .args([include.as_os_str(), release, fresh.path().as_os_str()])
        .env("LIBCLANG_PATH", clang.dir.join("libclang-18.1.1.data/platlib/clang/native"))
        .current_dir(root)
        .status()
        .context("cargo could not be started")?;
    if !done.success() {
        bail!("the declarations could not be generated; the errors are above");
    }

    let output = root.join(OUTPUT);
    let new = std::fs::read(fresh.path()).context("the generated declarations cannot be read")?;
    let old = std::fs::read(&output).unwrap_or_default();
    if new == old {
        ui::say(&format!("{OUTPUT} is up to date"));
        return Ok(());
    }
    if args.check {
        bail!(
            "{OUTPUT} differs from what `cargo xtask bindings` generates from {}; run that command and commit the result",
            include.display()
        );
    }
    std::fs::write(&output, new).with_context(|| format!("cannot write {}", output.display()))?;
    ui::say(&format!("{OUTPUT} is written"));
    Ok(())
}

#[cfg(feature = "bindings")]
fn generate(include: &Path, release: &str, output: &Path) -> Result<()> {
    let text = generate::generate(include, Path::new(STUBS), release)?;
    std::fs::write(output, text).with_context(|| format!("cannot write {}", output.display()))
}

#[cfg(not(feature = "bindings"))]
fn generate(_include: &Path, _release: &str, _output: &Path) -> Result<()> {
    bail!("this program was built without the feature `bindings` ({STUBS} is used only with it)")
}
