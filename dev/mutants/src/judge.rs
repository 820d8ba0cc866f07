//! Turns on each mutant and runs the tests that reach it, until one fails.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;

use super::mutant::Mutant;
use super::record::MutantVerdict;
use super::scratch;
use super::suite::{Suite, Test};

/// Total time of the tests in one process. Tests after the first failing one are wasted.
const TOGETHER: Duration = Duration::from_millis(1500);

/// Number of likely tests to try first, each in its own process. Likely tests detected mutants nearby.
const LIKELY: usize = 4;

/// Judges mutants.
pub(super) struct Judge<'a> {
    suite: &'a Suite,
    reached: BTreeMap<u32, Vec<usize>>,
    /// How often each test detected a mutant of a function, of a file, and of any.
    noticed: Mutex<BTreeMap<(String, usize), u32>>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(suite: &'a Suite) -> Judge<'a> {
        Judge { suite, reached: suite.by_mutant(), noticed: Mutex::new(BTreeMap::new()) }
    }

    /// The verdict on a mutant.
    pub(super) fn judge(&self, mutant: &Mutant) -> Result<MutantVerdict> {
        let judges = scratch::area(&mutant.file).map_or(&[][..], |area| area.judges);
        let about_it = |at: &usize| {
            let program = &self.suite.programs[self.suite.tests[*at].program].name;
            judges.iter().any(|package| program.split('/').next() == Some(*package))
        };
        let reached = self.reached.get(&mutant.id).map_or(&[][..], Vec::as_slice);
        let tests: Vec<usize> = reached.iter().copied().filter(about_it).collect();
        if tests.is_empty() {
            return Ok(MutantVerdict::Unreached);
        }
        for group in self.groups(mutant, &tests) {
            let tests: Vec<&Test> = group.iter().map(|&at| &self.suite.tests[at]).collect();
            let names: Vec<&String> = tests.iter().map(|t| &t.name).collect();
            let usual: Duration = tests.iter().map(|t| t.takes).sum();
            let limit = (usual * 5).max(Duration::from_secs(10));
            let program = tests[0].program;
            let on = [("QKVAULT_MUTANT", mutant.id.to_string())];
            let ran = self.suite.run(program, &names, &on, limit)?;
            if ran.passed {
                continue;
            }
            let by = group.iter().find(|&&at| ran.failed.contains(&self.suite.tests[at].name)).unwrap_or(&group[0]);
            self.remember(mutant, *by);
            let by = self.suite.label(program, &self.suite.tests[*by].name);
            return Ok(MutantVerdict::Killed { by, late: ran.late });
        }
        Ok(MutantVerdict::Survived { tests: tests.len() })
    }

    /// The tests in the order of running: likely ones first, each alone, then the others by program, the fastest first.
    fn groups(&self, mutant: &Mutant, tests: &[usize]) -> Vec<Vec<usize>> {
        let noticed = self.noticed.lock().unwrap_or_else(|e| e.into_inner());
        let times = |place: &str, at: usize| noticed.get(&(place.to_owned(), at)).copied().unwrap_or(0);
        let mut likely: Vec<(f64, usize)> = tests
            .iter()
            .map(|&at| {
                let times = 8 * times(&mutant.within, at) + 2 * times(&mutant.file, at) + times("", at);
                (f64::from(times) / (0.05 + self.suite.tests[at].takes.as_secs_f64()), at)
            })
            .filter(|(score, _)| *score > 0.0)
            .collect();
        drop(noticed);
        likely.sort_by(|a, b| b.0.total_cmp(&a.0));
        let likely: Vec<usize> = likely.into_iter().map(|(_, at)| at).take(LIKELY).collect();
        let mut groups: Vec<Vec<usize>> = likely.iter().map(|at| vec![*at]).collect();
        let mut open: BTreeMap<usize, (Vec<usize>, Duration)> = BTreeMap::new();
        for &at in tests.iter().filter(|at| !likely.contains(at)) {
            let Test { program, takes, .. } = self.suite.tests[at];
            let (group, sum) = open.entry(program).or_default();
            if !group.is_empty() && *sum + takes > TOGETHER {
                groups.push(std::mem::take(group));
                *sum = Duration::ZERO;
            }
            group.push(at);
            *sum += takes;
        }
        let mut rest: Vec<(Vec<usize>, Duration)> = open.into_values().collect();
        rest.sort_by_key(|(_, sum)| *sum);
        groups.extend(rest.into_iter().map(|(group, _)| group));
        let takes = |group: &Vec<usize>| group.iter().map(|&at| self.suite.tests[at].takes).sum::<Duration>();
        groups[likely.len()..].sort_by_key(takes);
        groups
    }

    fn remember(&self, mutant: &Mutant, test: usize) {
        let mut noticed = self.noticed.lock().unwrap_or_else(|e| e.into_inner());
        for place in [mutant.within.as_str(), mutant.file.as_str(), ""] {
            *noticed.entry((place.to_owned(), test)).or_default() += 1;
        }
    }
}
