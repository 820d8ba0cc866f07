//! Skipped tests, counted and told: to the test harness a test that ends early is as good as one that passes.
//!
//! Tests write what they skip into a record (`qkvault_skip`). Which tests may be skipped, and for want of what, is written down in
//! `tests/goldens/skips.txt`: one that starts to skip for another reason is noticed, and so is one that needs a GPU and was not
//! skipped where there is none, which then passed without doing anything or is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use qkvault_skip::{Need, Skip};

use crate::{cargo, ui};

/// Where it is written down which tests may be skipped.
const GOLDEN: &str = "tests/goldens/skips.txt";

const HEAD: &str = "# Tests that may be skipped, and for want of what; on a machine without a GPU all of \"gpu\" are.\n\
                    # Written by UPDATE_GOLDENS=1 cargo xtask test.\n";

/// A test and what it is skipped for want of.
type Known = BTreeSet<(Need, String)>;

/// Tells what was skipped, and compares it with what is written down.
///
/// # Errors
///
/// Every test that should not have been skipped, or should have been.
pub(crate) fn settle(record: &Path, promised: &[Need]) -> Result<()> {
    // Nothing is skipped where nobody wrote.
    let text = std::fs::read_to_string(record).unwrap_or_default();
    let skips = read(&text)?;
    told(&skips).iter().for_each(|line| ui::say(line));
    let golden = cargo::root().join(GOLDEN);
    let known = known(&std::fs::read_to_string(&golden).with_context(|| format!("{GOLDEN} is not there"))?)?;
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        std::fs::write(&golden, updated(&known, &skips))?;
        ui::say(&format!("written: {GOLDEN}"));
        return Ok(());
    }
    let wrong = wrong(&skips, &known, promised, has_gpu());
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("{} skipped tests are not as {GOLDEN} says:\n  {}", wrong.len(), wrong.join("\n  "));
}

/// Whether a driver serves a GPU here, asked without any library.
fn has_gpu() -> bool {
    ["/dev/nvidiactl", "/dev/dxg"].iter().any(|device| Path::new(device).exists())
}

fn read(record: &str) -> Result<Vec<Skip>> {
    record
        .lines()
        .map(|line| Skip::parse(line).with_context(|| format!("no line of a record of skips: {line}")))
        .collect()
}

fn known(golden: &str) -> Result<Known> {
    let line = |line: &str| {
        let (need, test) = line.split_once(' ')?;
        let need = Need::ALL.into_iter().find(|known| known.name() == need)?;
        Some((need, test.to_owned()))
    };
    let lines = golden.lines().filter(|line| !line.starts_with('#'));
    lines.map(|given| line(given).with_context(|| format!("{GOLDEN}: no need and test: {given}"))).collect()
}

/// One line for each need, with the tests.
fn told(skips: &[Skip]) -> Vec<String> {
    let mut by_need: BTreeMap<Need, BTreeSet<&str>> = BTreeMap::new();
    for skip in skips {
        by_need.entry(skip.need).or_default().insert(&skip.test);
    }
    let line = |(need, tests): (Need, BTreeSet<&str>)| {
        let (is, names) = (if tests.len() == 1 { "test was" } else { "tests were" }, Vec::from_iter(tests));
        format!("{} {is} skipped because there is {}: {}", names.len(), need.words(), names.join(", "))
    };
    by_need.into_iter().map(line).collect()
}

fn wrong(skips: &[Skip], known: &Known, promised: &[Need], has_gpu: bool) -> Vec<String> {
    let found: Known = skips.iter().map(|skip| (skip.need, skip.test.clone())).collect();
    let mut wrong = Vec::new();
    for Skip { need, test, why } in skips {
        if promised.contains(need) {
            wrong.push(format!("{test}: skipped for want of what was promised, {}: {why}", need.name()));
        } else if !known.contains(&(*need, test.clone())) {
            wrong.push(format!("{test}: may not be skipped for want of {}: {why}", need.name()));
        }
    }
    for (need, test) in known.iter().filter(|(need, _)| *need == Need::Gpu && !has_gpu) {
        if !found.contains(&(*need, test.clone())) {
            wrong.push(format!("{test}: needs a GPU, there is none, and it did not say that it was skipped"));
        }
    }
    wrong.dedup();
    wrong
}

/// What is written down from now on: of a GPU what was found, of everything else, which depends on the machine, both.
fn updated(known: &Known, skips: &[Skip]) -> String {
    let kept = known.iter().filter(|(need, _)| *need != Need::Gpu).cloned();
    let found = skips.iter().map(|skip| (skip.need, skip.test.clone()));
    let all: Known = kept.chain(found).collect();
    all.iter().fold(HEAD.to_owned(), |text, (need, test)| text + &format!("{} {test}\n", need.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(need: Need, test: &str) -> Skip {
        Skip { need, test: test.to_owned(), why: "why".to_owned() }
    }

    fn may(list: &[(Need, &str)]) -> Known {
        list.iter().map(|(need, test)| (*need, (*test).to_owned())).collect()
    }

    #[test]
    fn skipped_tests_are_counted_and_told_by_need() {
        let record = [skip(Need::Gpu, "a/gpu::one"), skip(Need::Pip, "b/c::two"), skip(Need::Gpu, "a/gpu::three")];
        // A test of two processes says it twice.
        let text = record.iter().chain(&record).fold(String::new(), |text, skip| text + &format!("{skip}\n"));
        let lines = told(&read(&text).expect("a record"));
        assert_eq!(
            lines,
            [
                "2 tests were skipped because there is no GPU: a/gpu::one, a/gpu::three",
                "1 test was skipped because there is no pip: b/c::two"
            ]
        );
        assert!(read("no record").is_err());
    }

    #[test]
    fn a_test_that_starts_to_skip_or_skips_without_a_word_is_noticed() {
        let known = may(&[(Need::Gpu, "one"), (Need::Gpu, "two"), (Need::Pip, "three")]);
        let both = [skip(Need::Gpu, "one"), skip(Need::Gpu, "two")];
        assert_eq!(wrong(&both, &known, &[Need::Cudnn], false), [""; 0]);
        let silent = wrong(&both[..1], &known, &[], false);
        assert!(silent.len() == 1 && silent[0].contains("two: needs a GPU"), "{silent:?}");
        assert_eq!(wrong(&[], &known, &[], true), [""; 0], "with a GPU they run");
        let new = wrong(&[skip(Need::Gpu, "three")], &known, &[], true);
        assert!(new.len() == 1 && new[0].contains("three: may not be skipped for want of gpu"), "{new:?}");
    }

    #[test]
    fn what_was_promised_is_never_skipped() {
        let known = may(&[(Need::Cudnn, "one")]);
        let found = wrong(&[skip(Need::Cudnn, "one")], &known, &[Need::Cudnn], true);
        assert!(found.len() == 1 && found[0].contains("what was promised"), "{found:?}");
    }

    /// A new test of these programs that returns before it does anything, and says nothing, is in no record.
    #[test]
    fn every_test_of_the_gpu_programs_is_written_down() {
        let golden = std::fs::read_to_string(cargo::root().join(GOLDEN)).expect("it is there");
        let known = known(&golden).expect("it reads");
        let folder = cargo::root().join("crates/exec/tests");
        let mut tests = Vec::new();
        for file in folder.read_dir().expect("a folder").map(|entry| entry.expect("listed").path()) {
            let program = file.file_stem().expect("a name").to_string_lossy().into_owned();
            if !program.starts_with("gpu") {
                continue;
            }
            let text = std::fs::read_to_string(&file).expect("it reads");
            let parts: Vec<&str> = text.split("#[test]\n").collect();
            for pair in parts.windows(2) {
                let name = pair[1].split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).expect("a function").0;
                // One that does its work everywhere says so in its documentation.
                if !pair[0].lines().last().is_some_and(|line| line.starts_with("/// Without a GPU:")) {
                    tests.push(format!("qkvault-exec/{program}::{name}"));
                }
            }
        }
        assert!(tests.len() > 20, "{tests:?}");
        let missing: Vec<_> = tests
            .iter()
            .filter(|test| ![Need::Gpu, Need::Asked].into_iter().any(|need| known.contains(&(need, (*test).clone()))))
            .collect();
        assert!(missing.is_empty(), "UPDATE_GOLDENS=1 cargo xtask test writes them down: {missing:?}");
        assert_eq!(updated(&known, &known.iter().map(|(n, t)| skip(*n, t)).collect::<Vec<_>>()), golden);
    }
}
