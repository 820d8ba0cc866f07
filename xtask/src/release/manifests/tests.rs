//! Tests of what a release needs of manifests and pages, in a project of two packages.

use super::*;
use crate::cargo;

/// A project with one member, one package beside it and a wheel's page.
fn project() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    write(
        "Cargo.toml",
        "[workspace]\nmembers = [\"crates/*\"]\n[workspace.package]\nversion = \"0.2.0\"\nlicense = \"MIT\"\n\n\
         [workspace.dependencies]\nqkvault = { path = \"crates/a\", version = \"0.2.0\" }\n",
    );
    write(
        "crates/a/Cargo.toml",
        "[package]\nname = \"qkvault\"\nversion.workspace = true\nlicense.workspace = true\nreadme = \"README.md\"\n\
         [package.metadata.docs.rs]\nall-features = true\n",
    );
    write("crates/b/Cargo.toml", "[package]\nname = \"b\"\npublish = false\n");
    write(
        super::super::OUTSIDE[0],
        "[workspace.dependencies]\nqkvault = { path = \"../../crates/a\", version = \"0.2.0\" }\n[package]\n\
         name = \"c\"\nversion = \"0.2.0\"\nlicense = \"MIT\"\nreadme = \"README.md\"\n",
    );
    for name in ["crates/a/README.md", "adapters/candle/README.md", "adapters/python/README.md"] {
        write(name, "Nothing.\n");
    }
    write("CHANGELOG.md", "# Changelog\n\n## 0.2.0: a day\n");
    for other in &super::super::OUTSIDE[1..] {
        write(other, "[package]\nname = \"d\"\npublish = false\n");
    }
    root
}

fn replace(root: &Path, name: &str, from: &str, to: &str) {
    let text = std::fs::read_to_string(root.join(name)).expect("it is there");
    assert!(text.contains(from), "{name}: {from}");
    std::fs::write(root.join(name), text.replace(from, to)).expect("written");
}

/// Why not, on one line.
fn no(answer: Result<String>) -> String {
    format!("{:#}", answer.expect_err("a fault"))
}

#[test]
fn pages_and_manifests_of_this_project_are_ready_but_for_what_a_release_sets() {
    for answer in [links(&cargo::root()), docs_rs(&cargo::root())] {
        answer.expect("ready");
    }
    let names: Vec<String> = Published::all(&cargo::root()).expect("they read").into_iter().map(|p| p.name).collect();
    for name in ["qkvault", "qkvault-c", "qkvault-cli", "candle-qkvault"] {
        assert!(names.iter().any(|own| own == name), "{name}: {names:?}");
    }
    assert!(names.iter().all(|name| !super::super::PRIVATE.contains(&name.as_str())), "{names:?}");
}

#[test]
fn a_version_is_the_same_in_every_manifest_and_heads_the_changelog() {
    let root = project();
    let root = root.path();
    assert_eq!(version(root).expect("equal"), "0.2.0");
    replace(root, "CHANGELOG.md", "0.2.0", "0.2.01");
    assert!(no(version(root)).contains("begins with `## 0.2.01: a day`"));
    replace(root, "CHANGELOG.md", "0.2.01: a day", "Unreleased");
    assert!(no(version(root)).contains("write `## 0.2.0: `"));
    replace(root, "Cargo.toml", "version = \"0.2.0\" }", "version = \"0.1.0\" }");
    replace(root, "adapters/candle/Cargo.toml", "\nversion = \"0.2.0\"", "\nversion = \"0.1.9\"");
    assert_eq!(no(version(root)), "set 0.2.0 there too: Cargo.toml: qkvault, adapters/candle/Cargo.toml: version");
}

#[test]
fn an_address_is_asked_for_and_written_into_every_manifest() {
    let root = project();
    let root = root.path();
    assert!(no(repository(root)).contains("no repository: `cargo xtask release --repository URL`"));
    for wrong in ["http://example.org/q", "https://example.org", "https://example.org/a b", "q"] {
        assert!(set_repository(root, wrong).is_err(), "{wrong}");
    }
    for address in ["https://example.org/one", "https://example.org/two"] {
        set_repository(root, address).expect("written");
        assert_eq!(repository(root).expect("everywhere"), address);
        let text = std::fs::read_to_string(root.join("Cargo.toml")).expect("it is there");
        assert_eq!(text.matches("repository").count(), 1, "{text}");
    }
    replace(root, "crates/a/Cargo.toml", "repository.workspace = true\n", "");
    assert!(no(repository(root)).starts_with("without it: crates/a/Cargo.toml;"));
    let private = std::fs::read_to_string(root.join("crates/b/Cargo.toml")).expect("it is there");
    assert!(!private.contains("repository"));
}

#[test]
fn a_link_that_leads_out_of_a_package_is_found() {
    let root = project();
    let root = root.path();
    links(root).expect("no link at all");
    let good = "[a](https://docs.rs/qkvault) [b](Cargo.toml) [c](#part)\n```\n[d](../x)\n```\n";
    replace(root, "crates/a/README.md", "Nothing.", good);
    links(root).expect("good ones");
    replace(root, "crates/a/README.md", "(#part)", "(../../CHANGELOG.md#part)");
    replace(root, "adapters/python/README.md", "Nothing.", "[e](README.md)");
    let said = no(links(root));
    assert!(said.contains("crates/a/README.md: ../../CHANGELOG.md#part"), "{said}");
    assert!(said.contains("adapters/python/README.md: README.md"), "the wheel has no such file: {said}");
}

#[test]
fn a_package_says_what_docs_rs_builds() {
    let root = project();
    assert!(no(docs_rs(root.path())).ends_with("in adapters/candle/Cargo.toml"));
}
