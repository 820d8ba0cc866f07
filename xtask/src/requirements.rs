//! `cargo xtask requirements`: writes the lists of Python packages that chores install, with the hash of every wheel.
//!
//! What is wished stands in `adapters/python/tests/requirements/*.in`. uv resolves it for every Python from the oldest
//! that the list is for, from the index alone: no wheel is downloaded. A list has every package that comes with those
//! wished, so that pip installs nothing whose hash is not in the repository (`--require-hashes`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::{cargo, fetch, jax_tests, torch_tests, ui};

/// The folder of the lists, from the root.
pub(crate) const FOLDER: &str = "adapters/python/tests/requirements";

/// The newest Python of the lists, as a minor version of 3.
const NEWEST_PYTHON: u32 = 14;

/// A list to write.
#[derive(Debug, PartialEq, Eq)]
struct RequirementsList {
    /// The name of its file, without the ending.
    name: String,
    /// What is wished.
    wishes: String,
    /// The oldest Python that it is for, as a minor version of 3.
    python: u32,
}

/// Packages as uv writes them (PEP 751).
#[derive(Debug, Deserialize)]
struct LockedPackages {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
    marker: Option<String>,
    #[serde(default)]
    wheels: Vec<LockedWheel>,
}

#[derive(Debug, Deserialize)]
struct LockedWheel {
    url: String,
    hashes: Hashes,
}

#[derive(Debug, Deserialize)]
struct Hashes {
    sha256: String,
}

/// The text of a list of this name.
///
/// # Errors
///
/// The file cannot be read.
pub(crate) fn list(name: &str) -> Result<String> {
    let path = path(&format!("{name}.txt"));
    std::fs::read_to_string(&path)
        .with_context(|| format!("{} cannot be read; `cargo xtask requirements` writes the lists", path.display()))
}

/// Writes every list anew.
///
/// # Errors
///
/// uv cannot be fetched or does not find packages that fit, or a file cannot be written.
pub fn run(options: &fetch::FetchOptions) -> Result<()> {
    let uv = fetch::ensure_program("uv", options)?;
    let folder = tempfile::tempdir().context("no temporary folder could be made")?;
    let (wished, locked) = (folder.path().join("wished.in"), folder.path().join("pylock.toml"));
    let (from, to) = (text_of(&wished)?, text_of(&locked)?);
    for RequirementsList { name, wishes, python } in lists()? {
        std::fs::write(&wished, &wishes).with_context(|| format!("{from} could not be written"))?;
        let python = format!("3.{python}");
        let words = ["pip", "compile", "--quiet", "--universal", "--python-version", &python];
        let output = ["--only-binary", ":all:", "--format", "pylock.toml", "--output-file", &to, &from];
        // A lock of the list before would be taken for a preference.
        let _ = std::fs::remove_file(&locked);
        cargo::run_program(uv.clone().into(), &[&words[..], &output].concat(), &[])?;
        let found = std::fs::read_to_string(&locked).with_context(|| format!("{to} cannot be read"))?;
        let head = format!("# Written by `cargo xtask requirements`: Linux on x86-64, Python {python} and newer.\n");
        let file = path(&format!("{name}.txt"));
        let text = head + &written(&found).with_context(|| name.clone())?;
        std::fs::write(&file, text).with_context(|| format!("{} could not be written", file.display()))?;
        ui::say(&format!("written: {}", file.display()));
    }
    Ok(())
}

fn path(file: &str) -> PathBuf {
    cargo::root().join(FOLDER).join(file)
}

fn text_of(path: &Path) -> Result<String> {
    Ok(path.to_str().context("the temporary folder's name is not UTF-8")?.to_owned())
}

/// Every list: those of the usual runs, and of the versions that a matrix has.
fn lists() -> Result<Vec<RequirementsList>> {
    let wishes = |name: &str| {
        let path = path(&format!("{name}.in"));
        std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))
    };
    let usual = |name: &str| {
        Ok::<_, anyhow::Error>(RequirementsList { name: name.to_owned(), wishes: wishes(name)?, python: 11 })
    };
    let mut lists = vec![usual("record")?, usual("jax")?, usual("torch")?, usual("wheel")?];
    for (version, least, _) in jax_tests::MATRIX {
        let wishes = format!("jax=={version}\nflatbuffers\nnumpy\n");
        lists.push(RequirementsList { name: format!("jax-{version}"), wishes, python: least });
    }
    let torch = wishes("torch")?;
    for version in torch_tests::MATRIX {
        let wishes = torch_tests::of_version(&torch, version);
        lists.push(RequirementsList { name: format!("torch-{version}"), wishes, python: 11 });
    }
    Ok(lists)
}

/// A list as pip reads it, from packages as uv writes them.
fn written(locked: &str) -> Result<String> {
    let LockedPackages { packages } = toml::from_str(locked).context("uv wrote another form of file")?;
    let mut out = String::new();
    for Package { name, version, marker, wheels } in packages {
        if marker.as_deref().is_some_and(is_elsewhere) {
            continue;
        }
        let file = |wheel: &LockedWheel| wheel.url.rsplit('/').next().unwrap_or_default().to_owned();
        let mut hashes: Vec<&str> =
            wheels.iter().filter(|wheel| fits(&file(wheel))).map(|wheel| wheel.hashes.sha256.as_str()).collect();
        hashes.sort_unstable();
        ensure!(!hashes.is_empty(), "{name} {version} has no wheel for Linux on x86-64; wish for another version");
        let marker = marker.map(|marker| format!(" ; {marker}")).unwrap_or_default();
        out += &format!("{name}=={version}{marker}");
        out.extend(hashes.iter().map(|hash| format!(" \\\n    --hash=sha256:{hash}")));
        out.push('\n');
    }
    if out.is_empty() { bail!("uv found no package") } else { Ok(out) }
}

/// Whether a marker is about other systems than Linux.
fn is_elsewhere(marker: &str) -> bool {
    !marker.contains("'linux'")
        && ["'win32'", "'darwin'", "'emscripten'"].iter().any(|os| marker.contains(&format!("sys_platform == {os}")))
}

/// Whether pip takes a wheel on Linux on x86-64, by the tags in its name.
fn fits(file: &str) -> bool {
    let mut tags = file.strip_suffix(".whl").unwrap_or_default().rsplit('-');
    let (Some(platform), Some(abi), Some(python)) = (tags.next(), tags.next(), tags.next()) else { return false };
    let linux = |one: &str| one == "any" || (one.contains("linux") && !one.contains("musl") && one.ends_with("x86_64"));
    let version = |tag: &str| tag.strip_prefix("cp3").and_then(|minor| minor.parse().ok());
    let newest = |tag: &str| tag.starts_with("py") || version(tag).is_some_and(|minor: u32| minor <= NEWEST_PYTHON);
    let exact = |tag: &str| version(tag).is_some_and(|minor| (10..=NEWEST_PYTHON).contains(&minor));
    platform.split('.').any(linux)
        && python.split('.').any(newest)
        && abi.split('.').any(|abi| abi == "none" || abi == "abi3" || exact(abi))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requirements of a list: the name and version of each, and its hashes.
    fn requirements(text: &str) -> Vec<(String, Vec<String>)> {
        let lines = text.replace("\\\n", " ");
        let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|line| {
                let mut words = line.split_whitespace();
                let name = words.next().unwrap_or_default().to_owned();
                (name, words.filter_map(|word| word.strip_prefix("--hash=sha256:")).map(str::to_owned).collect())
            })
            .collect()
    }

    #[test]
    fn every_python_requirement_has_a_version_and_a_hash() {
        for RequirementsList { name, wishes, python: _ } in lists().expect("wishes") {
            let found = requirements(&list(&name).expect("a list"));
            for (what, hashes) in &found {
                assert!(what.contains("=="), "{name}: {what} has no version");
                let sound = |hash: &String| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
                let whole = !hashes.is_empty() && hashes.iter().all(sound);
                assert!(whole, "{name}: {what} has no hash; run `cargo xtask requirements`");
            }
            for (wish, _) in requirements(&wishes) {
                let begin = if wish.contains("==") { wish.clone() } else { format!("{wish}==") };
                let there = found.iter().any(|(what, _)| *what == wish || what.starts_with(&begin));
                assert!(there, "{name}: {wish} is wished and not listed; run `cargo xtask requirements`");
            }
        }
        let files = std::fs::read_dir(path("")).expect("the folder").map(|file| file.expect("listed").file_name());
        let known = lists().expect("wishes");
        for file in files.map(|file| file.to_string_lossy().into_owned()) {
            let name = file.strip_suffix(".txt").or_else(|| file.strip_suffix(".in")).unwrap_or(&file);
            assert!(known.iter().any(|list| list.name == name), "{file} is no list of a chore; delete it");
        }
    }

    #[test]
    fn wheels_of_other_machines_are_left_out() {
        for file in [
            "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
            "six-1.17.0-py2.py3-none-any.whl",
            "safetensors-0.7.0-cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "torch-2.11.0-1-cp314-cp314-manylinux_2_28_x86_64.whl",
            "triton-3.6.0-cp312-cp312-linux_x86_64.whl",
        ] {
            assert!(fits(file), "{file}");
        }
        for file in [
            "numpy-2.4.6-cp311-cp311-manylinux_2_28_aarch64.whl",
            "numpy-2.4.6-cp311-cp311-musllinux_1_2_x86_64.whl",
            "numpy-2.4.6-cp314-cp314t-manylinux_2_28_x86_64.whl",
            "numpy-2.4.6-cp39-cp39-manylinux_2_28_x86_64.whl",
            "numpy-2.4.6-cp315-abi3-manylinux_2_28_x86_64.whl",
            "numpy-2.4.6-cp311-cp311-macosx_10_9_x86_64.whl",
            "numpy-2.4.6-cp311-cp311-win_amd64.whl",
            "numpy-2.4.6.tar.gz",
        ] {
            assert!(!fits(file), "{file}");
        }
    }

    #[test]
    fn a_package_without_a_wheel_is_an_error_and_one_for_other_systems_is_left_out() {
        let of = |marker: &str, file: &str| {
            let hash = "0".repeat(64);
            written(&format!(
                "[[packages]]\nname = \"a\"\nversion = \"1\"\n{marker}\n\
                 wheels = [{{ url = \"https://x/{file}\", hashes = {{ sha256 = \"{hash}\" }} }}]\n\
                 [[packages]]\nname = \"b\"\nversion = \"2\"\n\
                 wheels = [{{ url = \"https://x/b-2-py3-none-any.whl\", hashes = {{ sha256 = \"{hash}\" }} }}]\n"
            ))
        };
        let error = of("", "a-1-cp311-cp311-win_amd64.whl").expect_err("no wheel").to_string();
        assert!(error.contains("a 1 has no wheel"), "{error}");
        let marker = "marker = \"sys_platform == 'win32'\"";
        let left = of(marker, "a-1-cp311-cp311-win_amd64.whl").expect("b is left");
        assert!(left.starts_with("b==2 \\\n    --hash=sha256:000"), "{left}");
        let marker = "marker = \"sys_platform == 'linux'\"";
        let both = of(marker, "a-1-py3-none-any.whl").expect("both");
        assert!(both.starts_with("a==1 ; sys_platform == 'linux' \\\n"), "{both}");
    }
}
