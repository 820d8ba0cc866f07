//! Checks that every test of a `gpu*` program is in the list of tests that may be skipped: otherwise only the whole run
//! finds out, on a machine without a GPU, at its end.

use crate::skips;

/// Tests of these programs that need no GPU.
const WITHOUT_GPU: [&str; 3] =
    ["fill", "the_oracle_is_asked_for_few_numbers", "drawn_steps_are_sound_and_the_oracle_takes_them"];

/// Adds a fault for every test of the file that `listed`, the list's text, does not name.
pub(super) fn look(name: &str, text: &str, listed: &str, found: &mut Vec<String>) {
    let Some((_, program)) = name.trim_end_matches(".rs").rsplit_once("/tests/gpu") else { return };
    for test in tests(text).filter(|test| !WITHOUT_GPU.contains(test)) {
        let end = format!("/gpu{program}::{test}");
        if !listed.lines().any(|line| line.ends_with(&end)) {
            found.push(format!("{name}: {} does not list {test}; add the line `gpu PACKAGE{end}`", skips::GOLDEN));
        }
    }
}

/// Names of a file's tests.
fn tests(text: &str) -> impl Iterator<Item = &str> {
    let after = text.split("#[test]").skip(1);
    after.filter_map(|rest| rest.split_once("fn ")?.1.split_once('(').map(|(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_test_that_is_not_listed_is_found_before_the_whole_run() {
        let text =
            "#[test]\nfn one() {}\nfn help() {}\n/// Two.\n#[test]\n#[ignore]\nfn two() {}\n#[test]\nfn fill() {}";
        let mut found = Vec::new();
        look("crates/exec/tests/gpu_a.rs", text, "gpu qkvault-exec/gpu_a::one\n", &mut found);
        look("crates/exec/tests/gpu.rs", text, "gpu e/gpu::one\ngpu e/gpu::two\n", &mut found);
        look("crates/exec/tests/other.rs", text, "", &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("does not list two; add the line `gpu PACKAGE/gpu_a::two`"), "{found:?}");
    }
}
