//! `cargo xtask wheel`: builds the wheel of the Python package, and checks it as a user and the package index would.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::record_tests::environment;
use crate::release::Published;
use crate::{capi, cargo, ui};

/// The list of packages with auditwheel.
const PACKAGES: &str = "wheel";

/// What an empty environment runs: a question that needs no GPU, no cuDNN and no other package. It prints the folder
/// that the package is in, and "yes" where the attention is supported.
const PROBE: &str = "\
import pathlib, qkvault
found = qkvault.Attention(q='bf16 [1,32,4096,128]', k='bf16 [1,8,4096,128]', mask='causal').explain('h200')
print(pathlib.Path(qkvault.__file__).parent.parent, qkvault.__version__, 'yes' if found else 'no', sep='\\n')";

/// Options of `wheel`.
#[derive(Debug, clap::Args)]
pub struct WheelArgs {
    /// The folder to write the wheel to
    #[arg(long, value_name = "FOLDER", default_value = "target/wheel")]
    out: PathBuf,
    /// Build quickly and without optimisation
    #[arg(long)]
    debug: bool,
    /// Also ask auditwheel for its platform, install it into an empty environment and import it there
    #[arg(long)]
    check: bool,
}

/// What auditwheel says of a wheel, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Audit {
    wheel: String,
    overall_tag: String,
}

/// Builds the library and packs it with the Python files.
///
/// # Errors
///
/// The library does not build, Python does not start, the wheel cannot be written, or its check fails.
pub fn run(args: &WheelArgs) -> Result<()> {
    let library = capi::build(args.debug)?;
    let wheel = pack(&library, &cargo::root().join(&args.out))?;
    if args.check {
        audit(&wheel)?;
        let folder = tempfile::tempdir().context("no temporary folder could be made")?;
        try_in(folder.path(), &wheel)?;
    }
    ui::say(&format!("written: {wheel}\ninstall it with: pip install {wheel}"));
    Ok(())
}

/// What a release needs: the wheel as users get it, its policy, and an empty environment with it.
///
/// # Errors
///
/// It is not built, or a check fails.
pub(crate) fn released() -> Result<()> {
    run(&WheelArgs { out: "target/wheel".into(), debug: false, check: true })
}

/// Packs a library with the Python files, and returns the path of the wheel.
fn pack(library: &Path, out: &Path) -> Result<String> {
    let mut command = Command::new("python3");
    command.arg(cargo::root().join("adapters/python/wheel.py")).arg("--library").arg(library);
    command.args(["--version", env!("CARGO_PKG_VERSION"), "--out"]).arg(out);
    if let Some(address) = Published::repository(&cargo::root())? {
        command.args(["--repository", &address]);
    }
    let done = command.output().context("python3 does not start; it packs the wheel")?;
    ensure!(done.status.success(), "the wheel was not packed: {}", String::from_utf8_lossy(&done.stderr));
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// Installs auditwheel into the cache folder.
///
/// # Errors
///
/// It cannot be installed.
pub(crate) fn install_auditwheel() -> Result<PathBuf> {
    environment("wheel-tests", PACKAGES)
}

/// Asks auditwheel for the platform of a wheel, which is the one that its name promises.
fn audit(wheel: &str) -> Result<()> {
    let python = install_auditwheel()?;
    let done = Command::new(python).args(["-m", "auditwheel", "show", "--json", wheel]).output();
    let done = done.context("auditwheel does not start")?;
    ensure!(done.status.success(), "auditwheel does not take {wheel}: {}", String::from_utf8_lossy(&done.stderr));
    promised(&String::from_utf8_lossy(&done.stdout))
}

/// Whether the platform in a wheel's name is the one that auditwheel found.
fn promised(said: &str) -> Result<()> {
    let Audit { wheel, overall_tag } = serde_json::from_str(said).context("auditwheel wrote another form of JSON")?;
    let tag = wheel.strip_suffix(".whl").and_then(|name| name.rsplit('-').next()).unwrap_or_default();
    ensure!(
        tag == overall_tag && tag.starts_with("manylinux_"),
        "{wheel}: by auditwheel's policies its platform is {overall_tag}; see `auditwheel show` and `platform_tag` in \
         adapters/python/wheel.py"
    );
    Ok(())
}

/// Packs a library, checks the wheel's platform, installs it with pip into an empty environment below `folder`, asks a
/// question there, and returns the folder of its packages: a place for `PYTHONPATH` that has the package and nothing
/// else of the project.
///
/// # Errors
///
/// The wheel is not packed, its name promises another platform, or it does not work in an empty environment.
pub(crate) fn install(library: &Path, folder: &Path) -> Result<String> {
    let wheel = pack(library, folder)?;
    audit(&wheel)?;
    try_in(folder, &wheel)
}

fn try_in(folder: &Path, wheel: &str) -> Result<String> {
    let at = folder.join("empty");
    let at = at.to_str().context("the temporary folder's name is not UTF-8")?;
    let python = format!("{at}/bin/python");
    // pip of the Python outside installs into it, so that it has this package alone.
    cargo::run_program("python3".into(), &["-m", "venv", "--without-pip", at], &[])?;
    let words = ["-m", "pip", "--python", &python, "install", "--quiet", "--no-index", wheel];
    cargo::run_program("python3".into(), &words, &[])?;
    // `-I`: neither the folder of this process nor variables bring the sources in.
    let mut command = Command::new(&python);
    command.args(["-I", "-c", PROBE]).current_dir(folder).env_remove("QKVAULT_LIBRARY");
    let done = command.output().with_context(|| format!("{python} does not start"))?;
    let (said, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let lines: Vec<&str> = said.lines().collect();
    match lines[..] {
        [packages, version, "yes"] if done.status.success() && version == env!("CARGO_PKG_VERSION") => {
            ensure!(packages.starts_with(at), "an empty environment imported {packages} in place of the wheel");
            Ok(packages.to_owned())
        }
        _ => anyhow::bail!("{wheel} does not work in an empty environment: {said}{errors}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_in_the_name_is_the_one_that_auditwheel_found() {
        let said = |name: &str, tag: &str| {
            let wheel = format!("qkvault-0.1.0-py3-none-{name}.whl");
            promised(&serde_json::json!({ "wheel": wheel, "overall_tag": tag, "pure": false }).to_string())
        };
        said("manylinux_2_34_x86_64", "manylinux_2_34_x86_64").expect("they agree");
        let old = said("manylinux_2_17_x86_64", "manylinux_2_34_x86_64").expect_err("a symbol is too new").to_string();
        assert!(old.contains("its platform is manylinux_2_34_x86_64"), "{old}");
        said("linux_x86_64", "linux_x86_64").expect_err("the package index takes no such wheel");
    }
}
