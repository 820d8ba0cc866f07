//! Goldens of attentions, as text under version control. Each file holds an attention, written by hand, and after the
//! first `---` its canonical form, its key, and for an H200 (with block scales, a B200) and two versions of cuDNN its
//! op graphs and their keys.
//!
//! `UPDATE_GOLDENS=1 cargo test -p qkvault-graph --test goldens` writes them again; review the changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use qkvault_cudnn::{CompileOptions, Form, OpGraph, Profile, lower, op, plan_key};
use qkvault_graph::{CudnnVersion, Fp8, LibrarySet, text, validate};

mod bytes;

/// The folder of the golden files.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// Compares a text with its golden, or writes the golden if asked to.
fn settle(path: &Path, given: &str, found: &str, stale: &mut Vec<String>) {
    if given == found {
        return;
    }
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|v| v == "1") {
        std::fs::write(path, found).expect("the golden file can be written");
    } else {
        stale.push(format!("{}\n{}", path.display(), difference(given, found)));
    }
}

fn finish(stale: &[String]) {
    assert!(
        stale.is_empty(),
        "{}\n{} golden files differ; if that is meant, run again with UPDATE_GOLDENS=1 and review the change",
        stale.join("\n"),
        stale.len()
    );
}

/// The lines that differ, without common lines at the beginning and the end.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let room = old.len().min(new.len()) - same;
    let tail = old.iter().rev().zip(new.iter().rev()).take(room).take_while(|(a, b)| a == b).count();
    let mut text = format!("from line {}:\n", same + 1);
    for (sign, lines) in [('-', &old[same..old.len() - tail]), ('+', &new[same..new.len() - tail])] {
        for line in lines {
            writeln!(text, "{sign} {line}").expect("writing to a string does not fail");
        }
    }
    text
}

/// Everything that follows from the attention of a golden file.
fn outcome(input: &str) -> String {
    let mut out = String::from(input.trim_end());
    let mut add = |title: &str, body: &str| {
        write!(out, "\n\n--- {title}\n{}", body.trim_end()).expect("writing to a string does not fail");
    };
    let attention = text::parse(input).unwrap_or_else(|e| panic!("{e}\n{input}"));
    let valid = match validate(attention) {
        Ok(valid) => valid,
        Err(refusal) => {
            add("refused", &refusal.to_string());
            return out + "\n";
        }
    };
    add(&format!("canonical: {valid}"), &text::print(valid.get()));
    add("graph key", &valid.key().to_string());
    // No older GPU has attention with block scales.
    let gpu = if valid.fp8 == Some(Fp8::Block) { "b200" } else { "h200" };
    let profile = Profile::named(gpu).expect("built in");
    let mut seen: Vec<(String, OpGraph)> = Vec::new();
    for (version, form) in [(19, Form::Expanded), (27, Form::Expanded), (19, Form::Fused), (27, Form::Fused)] {
        let target = profile.target(CudnnVersion::v9(version, 0), LibrarySet::Slim);
        let options = CompileOptions { lab: qkvault_cudnn::LabOptions::form(form), ..CompileOptions::default() };
        let title = format!("{gpu}, cuDNN 9.{version}, {}", format!("{form:?}").to_lowercase());
        match lower(&valid, &target, &options) {
            Err(refusal) => add(&format!("{title}: refused"), &refusal.to_string()),
            Ok(graph) => {
                assert_eq!(op::check(&graph), Ok(()));
                let key = plan_key(&graph, &target, &options);
                match seen.iter().find(|(_, other)| *other == graph) {
                    Some((same, _)) => add(&title, &format!("plan key {key}\nop graph as for {same}")),
                    None => add(&title, &format!("plan key {key}\n{graph}")),
                }
                seen.push((title, graph));
            }
        }
    }
    out + "\n"
}

#[test]
fn op_graphs_and_keys_equal_the_goldens() {
    let mut stale = Vec::new();
    let mut names = BTreeSet::new();
    let mut keys: BTreeMap<String, String> = BTreeMap::new();
    for entry in std::fs::read_dir(folder()).expect("the goldens are checked in") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "txt") {
            continue;
        }
        let given = std::fs::read_to_string(&path).expect("a golden file");
        let input = given.split("\n---").next().unwrap_or_default();
        let found = outcome(input);
        settle(&path, &given, &found, &mut stale);
        let name = path.file_stem().expect("it has a name").to_string_lossy().into_owned();
        if let Some((_, key)) = found.split_once("--- graph key\n") {
            let key = key.lines().next().unwrap_or_default().to_owned();
            let other = keys.insert(key, name.clone());
            assert!(other.is_none(), "{name} and {other:?} are one attention");
        }
        names.insert(name);
    }
    for needed in [
        "dense",
        "causal",
        "causal_bottom_right",
        "window",
        "window_bottom_right",
        "window_lengths",
        "grouped_heads",
        "one_kv_head",
        "head_dims",
        "interleaved_qkv",
        "lengths",
        "stats",
        "decode",
        "orders",
    ] {
        assert!(names.contains(needed), "no golden {needed}: {names:?}");
    }
    finish(&stale);
}

#[test]
fn a_stale_golden_shows_the_lines_that_differ() {
    assert_eq!(difference("a\nb\nc\nd\n", "a\nx\nd\n"), "from line 2:\n- b\n- c\n+ x\n");
    assert_eq!(difference("a\n", "a\nb\n"), "from line 2:\n+ b\n");
}
