//! The pinned packages that compile the kernels, and where a fetch puts them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use qkvault_base::{CacheDir, MANIFEST};

use crate::python::{NoPython, PYTHON_VARIABLE, Python};

/// Versions of the packages that decide what is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fa4Toolchain {
    /// `flash-attn-4`: the kernels, in Python.
    pub flash_attn: &'static str,
    /// `nvidia-cutlass-dsl`: their compiler, with `ptxas` inside.
    pub cutlass_dsl: &'static str,
    /// `quack-kernels`: functions that the kernels use.
    pub quack: &'static str,
}

impl Fa4Toolchain {
    /// The packages with their versions.
    #[must_use]
    pub fn packages(&self) -> [(&'static str, &'static str); 3] {
        let Fa4Toolchain { flash_attn, cutlass_dsl, quack } = *self;
        [("flash-attn-4", flash_attn), ("nvidia-cutlass-dsl", cutlass_dsl), ("quack-kernels", quack)]
    }

    /// The folder of a toolchain that is tried (`cargo xtask fa4-tests --toolchain`), below that of fetched libraries:
    /// not among `engines`, so that it never compiles plans, whichever versions it has.
    #[doc(hidden)]
    #[must_use]
    pub fn tried(&self, libraries: &Path, python: &str) -> PathBuf {
        let Fa4Toolchain { flash_attn, cutlass_dsl, quack } = self;
        libraries.join("tried").join(folder("fa4", &format!("{flash_attn}-dsl-{cutlass_dsl}-quack-{quack}"), python))
    }
}

/// The one toolchain whose kernels are launched: the host's side of a launch is written for it.
pub const TOOLCHAIN: Fa4Toolchain = Fa4Toolchain { flash_attn: "4.0.0b36", cutlass_dsl: "4.8.1", quack: "0.6.5" };

/// The oldest CUDA version of a driver that loads what the toolchain compiles, as major * 1000 + minor * 10: its cubins
/// have the ABI of CUDA 13.
pub const DRIVER: u32 = 13_000;

/// Versions of Python that the packages are for.
pub const PYTHONS: [&str; 4] = ["3.11", "3.12", "3.13", "3.14"];

/// The folder of an engine's packages for a version of Python (`3.12`), below `engines` of the fetched libraries.
#[must_use]
pub fn folder(name: &str, version: &str, python: &str) -> String {
    format!("{name}-{version}-cp{}", python.replace('.', ""))
}

/// The fetched toolchain and the Python that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The Python.
    pub python: Python,
    /// The folder of the packages.
    pub site: PathBuf,
}

/// The toolchain cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotInstalled {
    /// There is no Python that it is for.
    #[error(transparent)]
    Python(#[from] NoPython),
    /// Others can change its packages.
    #[error("FlashAttention-4 {} in {} {why}", TOOLCHAIN.flash_attn, site.display())]
    Untrusted {
        /// The folder.
        site: PathBuf,
        /// Who can, and how to fix it.
        why: String,
    },
    /// It is not fetched.
    #[error(
        "FlashAttention-4 {} is not fetched for Python {python} ({} is not complete); run `cargo xtask fetch --engine fa4 \
         --accept-nvidia-license`{}",
        TOOLCHAIN.flash_attn,
        site.display(),
        others(found)
    )]
    Fetch {
        /// The version of the first Python that it could run on.
        python: String,
        /// The folder where it would be.
        site: PathBuf,
        /// Other versions that are fetched.
        found: Vec<String>,
    },
}

fn others(found: &[String]) -> String {
    if found.is_empty() { String::new() } else { format!("; fetched are: {}", found.join(", ")) }
}

impl Installed {
    /// The fetched toolchain, for the first Python that it is fetched for.
    ///
    /// # Errors
    ///
    /// [`NotInstalled`] with the command that fetches it.
    pub fn find() -> Result<Installed, NotInstalled> {
        Installed::from_variables(&|name| std::env::var_os(name))
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Installed, NotInstalled> {
        let engines = CacheDir::find(variable).path.join("libraries").join("engines");
        let site = |python: &str| engines.join(folder("fa4", TOOLCHAIN.flash_attn, python));
        let wanted = PYTHONS.map(str::to_owned);
        let exact = variable(PYTHON_VARIABLE);
        let mut first = None;
        let whole = |python: &Python| {
            let site = site(&python.version());
            first.get_or_insert_with(|| python.version());
            site.join(MANIFEST).exists().then(|| Installed { python: python.clone(), site })
        };
        let found = Python::all(exact, &wanted, whole).map_err(|none| match first {
            None => none.into(),
            Some(python) => {
                let names = std::fs::read_dir(&engines).into_iter().flatten().flatten();
                let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
                let mut found: Vec<String> = names.filter(|name| name.starts_with("fa4-")).collect();
                found.sort_unstable();
                NotInstalled::Fetch { site: site(&python), python, found }
            }
        })?;
        match qkvault_base::distrust_library(&found.site, variable) {
            Some(why) => Err(NotInstalled::Untrusted { site: found.site, why }),
            None => Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A program that says that it is Python 3.12.
    fn python_3_12(folder: &Path) -> PathBuf {
        let python = folder.join("python");
        std::fs::write(&python, "#!/bin/sh\necho cpython 3 12\n").expect("is written");
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("is set");
        python
    }

    #[test]
    fn a_toolchain_that_is_not_fetched_is_named_with_the_command_and_what_is_fetched() {
        let root = tempfile::tempdir().expect("is made");
        let python = python_3_12(root.path());
        let set = [("QKVAULT_CACHE_DIR", root.path().to_owned()), (PYTHON_VARIABLE, python)];
        let variable =
            |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone().into_os_string());
        let text = Installed::from_variables(&variable).expect_err("nothing is fetched").to_string();
        for words in
            ["4.0.0b36 is not fetched for Python 3.12", "cargo xtask fetch --engine fa4 --accept-nvidia-license"]
        {
            assert!(text.contains(words), "'{words}' is not in: {text}");
        }
        let engines = root.path().join("libraries/engines");
        for name in ["fa4-4.0.0b35-cp312", "fa4-4.0.0b36-cp312"] {
            std::fs::create_dir_all(engines.join(name)).expect("is made");
        }
        let text = Installed::from_variables(&variable)
            .expect_err("another version, and one that is not complete")
            .to_string();
        assert!(text.contains("fetched are: fa4-4.0.0b35-cp312, fa4-4.0.0b36-cp312"), "{text}");
        let site = engines.join("fa4-4.0.0b36-cp312");
        std::fs::write(site.join(MANIFEST), "").expect("is written");
        assert_eq!(Installed::from_variables(&variable).expect("complete").site, site);
    }

    #[test]
    fn a_toolchain_that_is_tried_never_compiles_plans_even_of_the_same_versions() {
        let root = tempfile::tempdir().expect("is made");
        let python = python_3_12(root.path());
        for tried in [TOOLCHAIN, Fa4Toolchain { flash_attn: "4.0.0b35", ..TOOLCHAIN }] {
            let site = tried.tried(&root.path().join("libraries"), "3.12");
            std::fs::create_dir_all(&site).expect("is made");
            std::fs::write(site.join(MANIFEST), "").expect("is written");
        }
        let set = [("QKVAULT_CACHE_DIR", root.path().into()), (PYTHON_VARIABLE, python.into_os_string())];
        let variable = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
        match Installed::from_variables(&variable) {
            Err(NotInstalled::Fetch { found, .. }) => assert_eq!(found, [""; 0]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn audit_13_packages_that_others_can_change_are_refused() {
        let root = tempfile::tempdir().expect("is made");
        let python = python_3_12(root.path());
        let site = root.path().join("libraries/engines").join(folder("fa4", TOOLCHAIN.flash_attn, "3.12"));
        std::fs::create_dir_all(&site).expect("is made");
        std::fs::write(site.join(MANIFEST), "").expect("is written");
        let mut set = vec![("QKVAULT_CACHE_DIR", root.path().into()), (PYTHON_VARIABLE, python.into_os_string())];
        let find = |set: &[(&str, OsString)]| {
            Installed::from_variables(&|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone()))
        };
        assert!(find(&set).is_ok());
        for open in [&site, &root.path().join("libraries")] {
            std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o757)).expect("is set");
            let error = find(&set).expect_err("everyone can write there");
            let text = error.to_string();
            assert!(matches!(error, NotInstalled::Untrusted { .. }) && text.contains("chmod -R go-w"), "{text}");
            set.push((qkvault_base::LIBRARIES_ALLOW_SHARED_VARIABLE, "1".into()));
            assert!(find(&set).is_ok(), "who trusts them may");
            set.pop();
            std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o755)).expect("is set");
        }
    }
}
