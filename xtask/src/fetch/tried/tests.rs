//! Which toolchain a choice is, and which packages pip finds for it among artificial wheels, without a network.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use qkvault_skip::{Need, skip};
use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;

use super::*;

#[test]
fn a_toolchain_is_named_by_versions_and_pinned_ones_fill_up() {
    let choice: ToolchainChoice = "Flash_Attn_4==4.0.0b37,quack-kernels==0.7.0".parse().expect("versions");
    let dsl = format!("nvidia-cutlass-dsl=={}", TOOLCHAIN.cutlass_dsl);
    assert_eq!(choice.requirements(), ["flash-attn-4==4.0.0b37", "quack-kernels==0.7.0", &dsl]);
    let newest: ToolchainChoice = "newest".parse().expect("a word");
    assert_eq!(newest.requirements(), ["flash-attn-4>=4.0.0b0", "nvidia-cutlass-dsl", "quack-kernels"]);
    for wrong in ["", "latest", "flash-attn-4", "flash-attn-4==", "--pre==1", "a==1;b", "a==-1", "a==1,", "a b==1"] {
        let error = ToolchainChoice::from_str(wrong).expect_err(wrong);
        assert!(error.contains("flash-attn-4==4.0.0b36, or newest"), "{error}");
    }
    let twice = ToolchainChoice::from_str("flash-attn-4==1,flash_attn_4==2").expect_err("two versions");
    assert!(twice.contains("two versions"), "{twice}");
}

#[test]
fn of_requirements_those_of_the_toolchain_are_taken() {
    let pinned = ["quack-kernels", "typing-extensions", "nvidia-cutlass-dsl"].map(str::to_owned);
    let needed = |line: &str| needed(line, &pinned);
    assert_eq!(needed("torch"), None);
    assert_eq!(needed("typing_extensions>=4.10").as_deref(), Some("typing_extensions>=4.10"));
    assert_eq!(needed("quack-kernels>=0.5.3").as_deref(), Some("quack-kernels>=0.5.3"));
    assert_eq!(needed("nvidia-cutlass-dsl-libs-new==4.9").as_deref(), Some("nvidia-cutlass-dsl-libs-new==4.9"));
    assert_eq!(needed("nvidia-cutlass-dsl-libs-cu12==4.9"), None);
    assert_eq!(needed("quack-kernels; extra == \"dev\""), None);
    let cu13 = needed("nvidia-cutlass-dsl-libs-cu13==4.9; extra == \"cu13\"");
    assert_eq!(cu13.as_deref(), Some("nvidia-cutlass-dsl-libs-cu13==4.9"));
    let python = "typing-extensions; python_version < \"3.12\"";
    assert_eq!(needed(python).as_deref(), Some(python));
}

/// Writes a wheel that requires others.
fn wheel(links: &Path, name: &str, version: &str, requires: &[&str]) {
    let file = name.replace('-', "_");
    let dist = format!("{file}-{version}.dist-info");
    let requires: String = requires.iter().map(|line| format!("Requires-Dist: {line}\n")).collect();
    let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: cu13\n{requires}");
    let tag = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    let path = links.join(format!("{file}-{version}-py3-none-any.whl"));
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path).expect("it can be written"));
    for (name, text) in [("METADATA", &*metadata), ("WHEEL", tag), ("RECORD", "")] {
        archive.start_file(format!("{dist}/{name}"), SimpleFileOptions::default()).expect("a member can be begun");
        archive.write_all(text.as_bytes()).expect("it can be written");
    }
    archive.finish().expect("it can be written");
}

#[test]
fn a_toolchain_to_try_has_what_it_requires_without_pytorch_in_a_folder_of_its_own() {
    if !Command::new("python3").args(["-m", "pip", "--version"]).output().is_ok_and(|done| done.status.success()) {
        return skip(Need::Pip, "`python3 -m pip` cannot be run");
    }
    let root = tempfile::tempdir().expect("a temporary folder");
    let links = root.path();
    for version in ["4.0.0b98", "4.0.0b99"] {
        wheel(links, "flash-attn-4", version, &["nvidia-cutlass-dsl>=4.6", "torch", "quack-kernels>=0.5"]);
    }
    for version in [TOOLCHAIN.cutlass_dsl, "97.0"] {
        let cu12 = format!("nvidia-cutlass-dsl-libs-cu12=={version}");
        let cu13 = format!("nvidia-cutlass-dsl-libs-cu13=={version}; extra == \"cu13\"");
        wheel(links, "nvidia-cutlass-dsl", version, &[&cu12, &cu13]);
        wheel(links, "nvidia-cutlass-dsl-libs-cu13", version, &[]);
    }
    wheel(links, "quack-kernels", TOOLCHAIN.quack, &["torch", "nvidia-cutlass-dsl[cu13]>=4.6; extra == \"cu13\""]);
    let libraries = root.path().join("libraries");
    let options =
        FetchOptions { dest: Some(libraries.clone()), find_links: Some(links.to_owned()), ..FetchOptions::default() };
    let found = |choice: &str| parcel(&choice.parse().expect("a choice"), &options);
    let (toolchain, parcel, dest) = found("flash-attn-4==4.0.0b98").expect("its wheels are there");
    assert_eq!(toolchain, Fa4Toolchain { flash_attn: "4.0.0b98", ..TOOLCHAIN });
    assert_eq!(dest, libraries.join("tried"), "not among the engines");
    assert_eq!((parcel.licence, parcel.whole), (Some(Licence::CutlassDsl), true));
    let mut wheels: Vec<String> =
        parcel.wheels.iter().map(|wheel| format!("{} {}", wheel.name, wheel.version)).collect();
    wheels.sort_unstable();
    let dsl = TOOLCHAIN.cutlass_dsl;
    let of_dsl = [format!("nvidia-cutlass-dsl {dsl}"), format!("nvidia-cutlass-dsl-libs-cu13 {dsl}")];
    let others = ["flash-attn-4 4.0.0b98".to_owned(), format!("quack-kernels {}", TOOLCHAIN.quack)];
    let mut expected = [of_dsl, others].concat();
    expected.sort_unstable();
    assert_eq!(wheels, expected);
    for wheel in &parcel.wheels {
        let hash = Sha256::digest(std::fs::read(links.join(&wheel.file)).expect("the file's name"));
        assert_eq!(wheel.sha256, hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), "{}", wheel.file);
    }

    let (newest, of_newest, _) = found("newest").expect("its wheels are there");
    assert_eq!((newest.flash_attn, newest.cutlass_dsl), ("4.0.0b99", "97.0"));
    assert_ne!(of_newest.folder, parcel.folder);
    let error = found("flash-attn-4==4.0.0b97").expect_err("there is none").to_string();
    assert!(error.contains("flash-attn-4==4.0.0b97") && error.contains("pip index versions"), "{error}");
}
