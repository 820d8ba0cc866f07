//! Counts and reports skipped tests. To the test harness, a test that returns early has passed.
//!
//! Tests write a record of what they skip (`qkvault_skip`). `tests/goldens/skips.txt` lists the tests that may be
//! skipped, each with what it needs. The check finds tests that skip for another reason, and tests that need a GPU and
//! were not skipped without one: those passed without doing anything, or are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use qkvault_skip::{Need, Skip};

use crate::{cargo, ui};

/// The list of tests that may be skipped.
pub(crate) const GOLDEN: &str = "tests/goldens/skips.txt";

const HEAD: &str = "# Tests that may be skipped, each after what it needs; on a machine without a GPU all of \"gpu\" are.\n\
                    # Written by UPDATE_GOLDENS=1 cargo xtask test.\n";

/// Tests that may be skipped, each with what it needs.
type KnownSkips = BTreeSet<(Need, String)>;

/// Prints the skipped tests, and compares them with the list.
///
/// # Errors
///
/// A test was skipped that must not be, or was not skipped although it must be.
pub(crate) fn settle(record: &Path, promised: &[Need]) -> Result<()> {
    // Without a record no test was skipped.
    let text = std::fs::read_to_string(record).unwrap_or_default();
    let skips = read(&text)?;
    summary(&skips).iter().for_each(|line| ui::say(line));
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
    bail!("{} tests differ from {GOLDEN}:\n  {}", wrong.len(), wrong.join("\n  "));
}

/// Whether this machine has a GPU driver. Needs no library.
fn has_gpu() -> bool {
    ["/dev/nvidiactl", "/dev/dxg"].iter().any(|device| Path::new(device).exists())
}

fn read(record: &str) -> Result<Vec<Skip>> {
    record
        .lines()
        .map(|line| Skip::parse(line).with_context(|| format!("not a line of a record of skips: {line}")))
        .collect()
}

fn known(golden: &str) -> Result<KnownSkips> {
    let line = |line: &str| {
        let (need, test) = line.split_once(' ')?;
        let need = Need::ALL.into_iter().find(|known| known.name() == need)?;
        Some((need, test.to_owned()))
    };
    let lines = golden.lines().filter(|line| !line.starts_with('#'));
    lines.map(|given| line(given).with_context(|| format!("{GOLDEN}: not a need and a test: {given}"))).collect()
}

/// One line for each need, with its tests.
fn summary(skips: &[Skip]) -> Vec<String> {
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

fn wrong(skips: &[Skip], known: &KnownSkips, promised: &[Need], has_gpu: bool) -> Vec<String> {
    let found: KnownSkips = skips.iter().map(|skip| (skip.need, skip.test.clone())).collect();
    let mut wrong = Vec::new();
    for Skip { need, test, why } in skips {
        if promised.contains(need) {
            wrong.push(format!("{test}: skipped for lack of {}, which was required: {why}", need.name()));
        } else if !known.contains(&(*need, test.clone())) {
            wrong.push(format!("{test}: may not be skipped for lack of {}: {why}", need.name()));
        }
    }
    for (need, test) in known.iter().filter(|(need, _)| of_gpus(*need) && !has_gpu) {
        if !found.contains(&(*need, test.clone())) {
            wrong.push(format!("{test}: needs a GPU and there is none, but it did not record a skip"));
        }
    }
    wrong.dedup();
    wrong
}

/// Whether a test with this need is skipped on every machine without a GPU.
const fn of_gpus(need: Need) -> bool {
    matches!(need, Need::Gpu | Need::TwoGpus)
}

/// The new list: for GPU tests those found, for other needs, which depend on the machine, the old and the found ones.
fn updated(known: &KnownSkips, skips: &[Skip]) -> String {
    let kept = known.iter().filter(|(need, _)| !of_gpus(*need)).cloned();
    let found = skips.iter().map(|skip| (skip.need, skip.test.clone()));
    let all: KnownSkips = kept.chain(found).collect();
    all.iter().fold(HEAD.to_owned(), |text, (need, test)| text + &format!("{} {test}\n", need.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(need: Need, test: &str) -> Skip {
        Skip { need, test: test.to_owned(), why: "why".to_owned() }
    }

    fn may(list: &[(Need, &str)]) -> KnownSkips {
        list.iter().map(|(need, test)| (*need, (*test).to_owned())).collect()
    }

    #[test]
    fn skipped_tests_are_counted_by_need() {
        let record = [skip(Need::Gpu, "a/gpu::one"), skip(Need::Pip, "b/c::two"), skip(Need::Gpu, "a/gpu::three")];
        // A test with two processes records it twice.
        let text = record.iter().chain(&record).fold(String::new(), |text, skip| text + &format!("{skip}\n"));
        let lines = summary(&read(&text).expect("a record"));
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
    fn a_test_that_starts_to_skip_or_skips_silently_is_found() {
        let known = may(&[(Need::Gpu, "one"), (Need::Gpu, "two"), (Need::Pip, "three")]);
        let both = [skip(Need::Gpu, "one"), skip(Need::Gpu, "two")];
        assert_eq!(wrong(&both, &known, &[Need::Cudnn], false), [""; 0]);
        let silent = wrong(&both[..1], &known, &[], false);
        assert!(silent.len() == 1 && silent[0].contains("two: needs a GPU"), "{silent:?}");
        assert_eq!(wrong(&[], &known, &[], true), [""; 0], "with a GPU they run");
        let new = wrong(&[skip(Need::Gpu, "three")], &known, &[], true);
        assert!(new.len() == 1 && new[0].contains("three: may not be skipped for lack of gpu"), "{new:?}");
    }

    #[test]
    fn a_required_need_is_never_a_reason_to_skip() {
        let known = may(&[(Need::Cudnn, "one")]);
        let found = wrong(&[skip(Need::Cudnn, "one")], &known, &[Need::Cudnn], true);
        assert!(found.len() == 1 && found[0].contains("which was required"), "{found:?}");
    }

    /// The record cannot show a new test of these programs that returns early without recording it.
    #[test]
    fn every_test_of_the_gpu_programs_is_in_the_list() {
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
                // One that runs only when it is asked for by name is no part of a run.
                if pair[1].starts_with("#[ignore") {
                    continue;
                }
                // A test that needs no GPU has this in its doc comment.
                if !pair[0].lines().last().is_some_and(|line| line.starts_with("/// Without a GPU:")) {
                    tests.push(format!("qkvault-exec/{program}::{name}"));
                }
            }
        }
        assert!(tests.len() > 20, "{tests:?}");
        let missing: Vec<_> = tests
            .iter()
            .filter(|test| {
                ![Need::Gpu, Need::TwoGpus, Need::Asked]
                    .into_iter()
                    .any(|need| known.contains(&(need, (*test).clone())))
            })
            .collect();
        assert!(missing.is_empty(), "UPDATE_GOLDENS=1 cargo xtask test adds them: {missing:?}");
        assert_eq!(updated(&known, &known.iter().map(|(n, t)| skip(*n, t)).collect::<Vec<_>>()), golden);
    }
}
