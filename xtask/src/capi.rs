//! `cargo xtask header` writes the C header from the Rust code; `cargo xtask capi` makes a folder that C programs build
//! against.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::{cargo, ui};

/// The folder of the C interface's package.
const PACKAGE: &str = "adapters/c";

/// Options of `capi`.
#[derive(Debug, clap::Args)]
pub struct CapiArgs {
    /// The folder to make: include/qkvault.h, lib/libqkvault.so and lib/pkgconfig/qkvault.pc
    #[arg(long, value_name = "FOLDER", default_value = "target/capi")]
    prefix: PathBuf,
    /// Build quickly and without optimisation
    #[arg(long)]
    debug: bool,
}

/// Writes the header, the layout of its structs and the list of exported functions anew.
///
/// # Errors
///
/// The tests that write them fail, or Python does not start.
pub fn header() -> Result<()> {
    let update = [("UPDATE_GOLDENS", "1")];
    // The list of functions is compared with the header.
    for test in ["header", "exports"] {
        cargo::run(&["test", "-q", "-p", "qkvault-c", "--test", test], &update)?;
    }
    let done = Command::new("python3").arg(cargo::root().join("adapters/python/abi.py")).status();
    ensure!(done.context("python3 does not start")?.success(), "the declarations for ctypes were not written");
    ui::say(&format!("written: {PACKAGE}/include/qkvault.h, {PACKAGE}/tests/goldens, adapters/python/qkvault/_abi.py"));
    Ok(())
}

/// Builds the library and puts it beside its header and a file for pkg-config.
///
/// # Errors
///
/// The library does not build, or the folder cannot be written.
pub fn run(args: &CapiArgs) -> Result<()> {
    let CapiArgs { prefix, debug } = args;
    let built = build(*debug)?;
    let prefix = std::path::absolute(cargo::root().join(prefix))?;
    install(&built, &prefix)?;
    ui::say(&format!("written: {}", prefix.display()));
    Ok(())
}

/// Puts a library beside its header and a file for pkg-config.
///
/// # Errors
///
/// The folder cannot be written.
pub fn install(built: &Path, prefix: &Path) -> Result<()> {
    let install = || -> std::io::Result<()> {
        let (include, lib) = (prefix.join("include"), prefix.join("lib"));
        std::fs::create_dir_all(&include)?;
        std::fs::create_dir_all(lib.join("pkgconfig"))?;
        std::fs::copy(cargo::root().join(PACKAGE).join("include/qkvault.h"), include.join("qkvault.h"))?;
        std::fs::copy(built, lib.join("libqkvault.so.1"))?;
        link("libqkvault.so.1", &lib.join("libqkvault.so"))?;
        std::fs::write(lib.join("pkgconfig/qkvault.pc"), pkg_config(prefix))
    };
    install().with_context(|| format!("{} could not be written", prefix.display()))
}

/// Builds the library, and returns its path.
///
/// # Errors
///
/// It does not build.
pub fn build(debug: bool) -> Result<PathBuf> {
    let mut words = vec!["build", "-p", "qkvault-c", "--lib"];
    words.extend((!debug).then_some("--release"));
    cargo::run(&words, &[])?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| cargo::root().join("target"), PathBuf::from);
    Ok(target.join(if debug { "debug" } else { "release" }).join("libqkvault_c.so"))
}

fn link(to: &str, at: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(at) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => std::os::unix::fs::symlink(to, at),
    }
}

fn pkg_config(prefix: &Path) -> String {
    let (prefix, version) = (prefix.display(), env!("CARGO_PKG_VERSION"));
    format!(
        "prefix={prefix}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/lib\n\nName: qkvault\n\
         Description: attention, compiled ahead of time: cuDNN, FlashAttention-4, own kernels\n\
         Version: {version}\nCflags: -I${{includedir}}\nLibs: -L${{libdir}} -lqkvault\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pkg_config_names_the_folders_and_the_library() {
        let text = pkg_config(Path::new("/opt/qkvault"));
        for line in ["prefix=/opt/qkvault", "Cflags: -I${includedir}", "Libs: -L${libdir} -lqkvault", "Name: qkvault"] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }

    #[test]
    fn a_link_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().join("libqkvault.so");
        for to in ["one", "two"] {
            link(to, &at).expect("it is written");
            assert_eq!(std::fs::read_link(&at).expect("a link"), Path::new(to));
        }
    }
}
