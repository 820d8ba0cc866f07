//! `cargo xtask bundle`: makes a folder to copy to a GPU host. It contains the commands, a packed vault, the models,
//! scripts that run them and write JSON, and programs that measure the same attentions in PyTorch. The host needs no
//! toolchain.

mod server;
mod training;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use qkvault_base::LibrarySet;
use qkvault_cli::{self as cli, Globals};

use crate::{cargo, fetch, ui};

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct BundleArgs {
    /// Folder to make
    #[arg(long, value_name = "DIR", default_value = "bundle")]
    out: PathBuf,
    /// The GPU host's cuDNN version; plans load in no other version
    #[arg(long, value_name = "VERSION", default_value = "9.19")]
    cudnn: String,
    /// The host's GPU, by name or profile file
    #[arg(long, value_name = "NAME|FILE", default_value = "h200")]
    target: String,
    /// Model configs (default: all in `models`)
    #[arg(long, value_name = "FILE")]
    model: Vec<PathBuf>,
    /// Also include the cuDNN libraries, for a host without them
    #[arg(long)]
    with_cudnn: bool,
}

const RUN: &str = include_str!("bundle/run.sh");
const PEER: &str = include_str!("bundle/sdpa_peer.py");

/// Runs the command.
///
/// # Errors
///
/// Something could not be built, compiled or written.
pub fn run(args: &BundleArgs, options: &fetch::FetchOptions) -> Result<()> {
    let root = cargo::root();
    let out = root.join(&args.out);
    let fetched = fetch::ensure(Some(&args.cudnn), LibrarySet::Slim, options)?;
    cargo::run(&["build", "--release", "--package", "qkvault-cli", "--bins"], &[])?;
    cargo::run(&["build", "--release", "--package", "qkvault-lab", "--bins"], &[])?;
    cargo::run(&["build", "--release", "--package", "qkvault", "--example", "train"], &[])?;
    server::build()?;
    if out.exists() {
        std::fs::remove_dir_all(&out).with_context(|| format!("{} could not be replaced", out.display()))?;
    }
    std::fs::create_dir_all(out.join("models"))?;
    let target_dir = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    for program in ["qkvault", "qkvault-lab"] {
        copy(&target_dir.join("release").join(program), &out.join(program))?;
    }
    let models = if args.model.is_empty() { models(&root)? } else { args.model.clone() };
    for model in &models {
        copy(model, &out.join("models").join(model.file_name().context("a model has no file name")?))?;
    }
    write(&out.join("run.sh"), RUN, true)?;
    write(&out.join("sdpa_peer.py"), PEER, false)?;
    for file in [
        "bench.sh",
        "serving.sh",
        "serving_peer.py",
        "parallel.sh",
        "context_parallel_peer.py",
        "trust.sh",
        "strides.txt",
        "odd-tensors.txt",
        "sum_records.py",
    ] {
        copy(&root.join("bench").join(file), &out.join(file))?;
    }
    warm(args, &models, &out, &fetched.dir, &root, &target_dir.join("release"))?;
    if args.with_cudnn {
        let lib = out.join("cudnn");
        std::fs::create_dir_all(&lib)?;
        for file in libraries(&fetched.dir)? {
            copy(&file, &lib.join(file.file_name().context("a library has no file name")?))?;
        }
    }
    ui::say(&format!("bundle: {}; copy it to the GPU host and run ./run.sh there", out.display()));
    Ok(())
}

/// Compiles all plans for the scripts, and packs them.
fn warm(args: &BundleArgs, models: &[PathBuf], out: &Path, cudnn: &Path, root: &Path, release: &Path) -> Result<()> {
    let vault = tempfile::tempdir_in(out)?;
    let globals = Globals { vault: Some(vault.path().to_path_buf()), ..Globals::default() };
    // The variants that `run.sh` runs: as published, with Stats, and in f16 with Stats.
    for extra in [&[][..], &["--stats"], &["--stats", "--dtype", "f16"]] {
        let mut line: Vec<std::ffi::OsString> = vec!["warm".into(), "--target".into(), args.target.clone().into()];
        line.extend(["--cudnn-path".into(), cudnn.as_os_str().to_owned()]);
        models.iter().for_each(|m| line.extend(["--model".into(), m.as_os_str().to_owned()]));
        line.extend(extra.iter().map(Into::into));
        // `warm` prints refusals itself; the bundle is useful without the refused plans.
        let _ = cli::main(&globals, &cli::parse(line)?);
    }
    training::add(root, release, out, &globals, &args.target, cudnn)?;
    server::add(root, release, out, &globals, &args.target, cudnn)?;
    // Prints refusals itself, as `warm` does.
    lab(release, &globals, &["bench", "plan", "--target", &args.target], cudnn)?;
    let line = ["pack".into(), out.join("vault.qkvpack").into_os_string()];
    let _ = cli::main(&globals, &cli::parse(line)?);
    Ok(())
}

/// Runs `qkvault-lab` with the vault of a bundle. It prints refusals itself; a bundle is useful without the refused
/// plans.
fn lab(release: &Path, globals: &Globals, words: &[&str], cudnn: &Path) -> Result<()> {
    let vault = globals.vault.as_ref().context("the bundle has no vault folder")?;
    let mut command = std::process::Command::new(release.join("qkvault-lab"));
    command.arg("--vault").arg(vault).args(words).arg("--cudnn-path").arg(cudnn);
    let status = command.status().context("qkvault-lab could not be started")?;
    // Wrong usage: the command is not there, or has other options.
    anyhow::ensure!(status.code() != Some(2), "qkvault-lab does not know `{}`", words.join(" "));
    Ok(())
}

/// Lets a program of the bundle compile its own plans into the bundle's vault.
fn plans(program: &Path, globals: &Globals, words: &[&str], cudnn: &Path) -> Result<()> {
    let vault = globals.vault.as_ref().context("the bundle has no vault folder")?;
    let mut plan = std::process::Command::new(program);
    plan.args(words).arg("--vault").arg(vault).env("QKVAULT_CUDNN_PATH", cudnn);
    let status = plan.status().with_context(|| format!("{} could not be started", program.display()))?;
    anyhow::ensure!(status.success(), "the plans of {} were not compiled ({status})", program.display());
    Ok(())
}

fn models(root: &Path) -> Result<Vec<PathBuf>> {
    let mut list = Vec::new();
    for entry in std::fs::read_dir(root.join("models"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "json") {
            list.push(path);
        }
    }
    list.sort();
    Ok(list)
}

/// Shared libraries below a fetched set.
fn libraries(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut list = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            list.extend(libraries(&path)?);
        } else if path.to_string_lossy().contains(".so.") {
            list.push(path);
        }
    }
    Ok(list)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("{} could not be copied to {}", from.display(), to.display()))?;
    Ok(())
}

fn write(path: &Path, text: &str, executable: bool) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).with_context(|| format!("{} could not be written", path.display()))?;
    if executable {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
