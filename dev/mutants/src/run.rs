//! Runs the command: build, measure, judge, report.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};

use super::judge::Judge;
use super::mutant::Mutant;
use super::record::{MutantVerdict, Record};
use super::suite::{Suite, each};
use super::{MutantsArgs, build, page, scratch};
use xtask::{cargo, ui};

/// The record of verdicts, from the workspace's root.
const RECORD: &str = "target/mutants/record.jsonl";

pub(super) fn run(args: &MutantsArgs) -> Result<()> {
    let root = cargo::root();
    let mut record = Record::open(&root.join(RECORD), args.fresh)?;
    let copy = scratch::WorkspaceCopy::make(&root)?;
    let mut left_out: BTreeSet<String> = record
        .known
        .iter()
        .filter(|(_, e)| matches!(e.verdict, MutantVerdict::DoesNotCompile))
        .map(|(key, _)| key.clone())
        .collect();
    let before = left_out.clone();
    let every = copy.mutate(&root, &BTreeSet::new())?;
    let (mutants, programs) = build::build(&copy, &mut left_out)?;
    for mutant in every.iter().filter(|m| left_out.contains(&m.key) && !before.contains(&m.key)) {
        let entry = record.add(mutant, MutantVerdict::DoesNotCompile)?;
        record.known.insert(entry.mutant.key.clone(), entry);
    }
    let wanted = wanted(args, &mutants, &record);
    ui::say(&format!("judging {} of {} mutants", wanted.len(), mutants.len()));
    if !args.list && !wanted.is_empty() {
        judge(args, &mut record, &wanted, programs)?;
    }
    // Mutants that do not compile have no number; they are in the record.
    page::summarize(&mutants, &record, args.write)
}

fn wanted<'a>(args: &MutantsArgs, mutants: &'a [Mutant], record: &Record) -> Vec<&'a Mutant> {
    let chosen = |m: &&Mutant| {
        let by_file = args.file.is_empty() || args.file.iter().any(|part| m.file.contains(part.as_str()));
        by_file && (args.ids.is_empty() || args.ids.contains(&m.key))
    };
    let unknown = |m: &&Mutant| match record.verdict(m) {
        None => true,
        Some(MutantVerdict::Survived { .. } | MutantVerdict::Unreached) => args.again || !args.ids.is_empty(),
        Some(_) => !args.ids.is_empty(),
    };
    let all: Vec<&Mutant> = mutants.iter().filter(chosen).filter(unknown).collect();
    match args.shard {
        None => all,
        Some(part) => all.into_iter().enumerate().filter(|(i, _)| i % part.of == part.at - 1).map(|(_, m)| m).collect(),
    }
}

fn judge(args: &MutantsArgs, record: &mut Record, wanted: &[&Mutant], programs: Vec<build::TestBinary>) -> Result<()> {
    let suite = Suite::measure(programs, args.cases, args.jobs)?;
    let judge = Judge::new(&suite);
    let (start, done, added) = (Instant::now(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let failed = Mutex::new(None);
    each(args.jobs, wanted, |_, mutant| {
        let verdict = judge.judge(mutant).and_then(|verdict| {
            if !matches!(verdict, MutantVerdict::Killed { .. }) {
                ui::say(&page::line(mutant, &verdict));
            }
            record.add(mutant, verdict)
        });
        match verdict {
            Ok(entry) => added.lock().unwrap_or_else(|e| e.into_inner()).push(entry),
            Err(error) => *failed.lock().unwrap_or_else(|e| e.into_inner()) = Some(error),
        }
        let count = done.fetch_add(1, Ordering::Relaxed) + 1;
        if count % 50 == 0 {
            ui::say(&format!("{count} of {} in {:.0} s", wanted.len(), start.elapsed().as_secs_f64()));
        }
    });
    for entry in added.into_inner().unwrap_or_else(|e| e.into_inner()) {
        record.known.insert(entry.mutant.key.clone(), entry);
    }
    match failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(error) => bail!("a mutant could not be judged: {error:#}"),
        None => Ok(()),
    }
}
