//! `cargo xtask bindings`: writes the declarations that `qkvault-sys` compiles, or checks that they are up to date.
//!
//! The header comes from the pinned cuDNN and libclang from a pinned wheel. Stub headers replace those of the CUDA
//! toolkit and the C library. The result therefore does not depend on the machine. bindgen is compiled with a program
//! of its own (`xtask/bindgen`), so that no other build has it.

mod stable;

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use qkvault_base::LibrarySet;

use crate::{cargo, fetch, ui};

/// The file of the declarations, from the workspace's root.
const OUTPUT: &str = "crates/sys/src/bindings.rs";

/// The folder of the stub headers, from the workspace's root.
const STUBS: &str = "xtask/src/bindings/stub";

/// The program that runs bindgen.
const MANIFEST: &str = "xtask/bindgen/Cargo.toml";

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct BindingsArgs {
    /// Write nothing; fail if the declarations are not up to date
    #[arg(long)]
    check: bool,
    /// Version of the cuDNN header
    #[arg(long, value_name = "VERSION")]
    cudnn: Option<String>,
    #[command(flatten)]
    fetch: fetch::FetchOptions,
}

impl BindingsArgs {
    /// The arguments of `bindings --check`.
    #[must_use]
    pub fn check() -> BindingsArgs {
        BindingsArgs { check: true, cudnn: None, fetch: fetch::FetchOptions::default() }
    }

    /// Sets whether NVIDIA's licence is accepted.
    #[must_use]
    pub fn accepting(mut self, accepted: bool) -> BindingsArgs {
        self.fetch.accept_nvidia_license = accepted;
        self
    }
}

/// Runs the command.
pub fn run(args: &BindingsArgs) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is below the workspace's root")?;
    let cudnn = fetch::ensure(args.cudnn.as_deref(), LibrarySet::Slim, &args.fetch)?;
    let clang = fetch::ensure_tool("libclang", &args.fetch)?;
    let include = cudnn.dir.join("nvidia/cudnn_jit/include");
    stable::check(&include, &cudnn.dir)?;

    let fresh =
        tempfile::NamedTempFile::new_in(root.join("crates/sys/src")).context("cannot write beside the declarations")?;
    let release = cudnn.dir.file_name().unwrap_or_default();
    let clang = clang.dir.join("libclang-18.1.1.data/platlib/clang/native");
    let parts = [&include, Path::new(release), Path::new(STUBS), fresh.path(), &clang];
    let text = |path: &Path| path.to_str().map(str::to_owned).context("the path of a file is not UTF-8");
    let [include_text, release, stubs, written, clang] = parts.map(text);
    let (include_text, release, stubs, written) = (include_text?, release?, stubs?, written?);
    let target = cargo::target()?;
    let program = ["run", "--quiet", "--locked", "--manifest-path", MANIFEST, "--"];
    let words = [&program[..], &[&include_text, &release, &stubs, &written]].concat();
    cargo::run(&words, &[("LIBCLANG_PATH", &clang?), ("CARGO_TARGET_DIR", &target)])?;

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
