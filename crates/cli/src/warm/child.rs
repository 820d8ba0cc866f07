//! `warm` in a child process: cuDNN has ended processes that ask it for a plan, and whoever compiles a thousand plans
//! must not lose the rest by one of them. A child keeps a journal of what it compiles; if a signal ends it, the next
//! child compiles what was open one after the other, and what was open alone when a process ended is told as failed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail};

use super::stopped;
use crate::{Outcome, out};

/// The most processes for one command. Two for each plan that ends one.
const MOST: usize = 40;

/// What a parent tells its child. Users do not see these options.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ChildArgs {
    /// Where the child writes what it begins and ends
    #[arg(long, hide = true, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// The parent, without which the child ends
    #[arg(long, hide = true, value_name = "PID", requires = "journal")]
    parent: Option<u32>,
    /// Numbers of plans to compile first and one after the other
    #[arg(long, hide = true, value_name = "N,...", value_delimiter = ',', requires = "journal")]
    suspects: Vec<usize>,
    /// A plan that is not compiled, because it ended a process, and how that one ended
    #[arg(long, hide = true, value_name = "N:STATUS", requires = "journal")]
    ended: Vec<EndedPlan>,
}

/// A plan that ended a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EndedPlan {
    plan: usize,
    status: String,
}

impl FromStr for EndedPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<EndedPlan, String> {
        let parts = text.split_once(':').and_then(|(plan, status)| Some((plan.parse().ok()?, status.to_owned())));
        parts.map(|(plan, status)| EndedPlan { plan, status }).ok_or_else(|| "a number, a colon, a status".to_owned())
    }
}

impl ChildArgs {
    /// Whether this process is such a child.
    pub(super) const fn is_child(&self) -> bool {
        self.journal.is_some()
    }

    /// Whether another child came before.
    pub(super) fn goes_on(&self) -> bool {
        !self.suspects.is_empty() || !self.ended.is_empty()
    }

    pub(super) fn is_suspect(&self, plan: usize) -> bool {
        self.suspects.contains(&plan)
    }

    /// How the process ended that compiled this plan, if one did.
    pub(super) fn ended(&self, plan: usize) -> Option<&str> {
        self.ended.iter().find(|ended| ended.plan == plan).map(|ended| ended.status.as_str())
    }

    /// Opens the journal, and watches the parent.
    pub(super) fn journal(&self) -> anyhow::Result<Journal> {
        if let Some(parent) = self.parent {
            stopped::end_without(parent);
        }
        let open = |path: &PathBuf| {
            File::options().append(true).open(path).with_context(|| format!("{} cannot be written", path.display()))
        };
        Ok(Journal(self.journal.as_ref().map(open).transpose()?.map(Mutex::new)))
    }
}

/// What a child has begun and ended, a line each. Without a file it keeps nothing.
pub(super) struct Journal(Option<Mutex<File>>);

impl Journal {
    /// Runs what may end the process.
    pub(super) fn within<T>(&self, plan: usize, run: impl FnOnce() -> T) -> T {
        self.note('+', plan);
        let done = run();
        self.note('-', plan);
        done
    }

    fn note(&self, sign: char, plan: usize) {
        // A line that is lost makes one more suspect or one less, and compiles nothing wrongly.
        if let Some(file) = &self.0 {
            let _ = writeln!(file.lock().unwrap_or_else(PoisonError::into_inner), "{sign}{plan}");
        }
    }
}

/// The plans that were begun and not ended.
fn open(journal: &Path) -> Vec<usize> {
    let mut open = BTreeSet::new();
    for line in std::fs::read_to_string(journal).unwrap_or_default().lines() {
        match (line.strip_prefix('+').map(str::parse), line.strip_prefix('-').map(str::parse)) {
            (Some(Ok(begun)), _) => _ = open.insert(begun),
            (_, Some(Ok(ended))) => _ = open.remove(&ended),
            _ => {}
        }
    }
    open.into_iter().collect()
}

/// Runs this command in children until one ends by itself: what each has compiled is in the vault for the next.
pub(super) fn run() -> anyhow::Result<Outcome> {
    let program = super::this_program()?;
    let folder = tempfile::tempdir().context("no folder for a journal of what is compiled")?;
    let (mut ended, mut suspects) = (BTreeMap::new(), Vec::new());
    for number in 0..MOST {
        let journal = folder.path().join(number.to_string());
        File::create(&journal).with_context(|| format!("{} cannot be written", journal.display()))?;
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).args(words(&journal, &suspects, &ended));
        let status = command.status().with_context(|| format!("{} does not start", program.display()))?;
        if let Some(code) = status.code() {
            return Ok(Outcome::of_child(code));
        }
        let open = open(&journal);
        let Some(next) = after(&status, open, &mut ended) else {
            bail!("the process that compiles ended before it compiled anything: {status}");
        };
        suspects = next;
    }
    bail!("{MOST} processes that compile were ended, the last plans being of the numbers {:?}", ended.keys())
}

/// What to compile alone after a process that left these plans open, and none if it had begun nothing.
fn after(status: &ExitStatus, open: Vec<usize>, ended: &mut BTreeMap<usize, String>) -> Option<Vec<usize>> {
    match open.as_slice() {
        [] => None,
        [plan] => {
            out::problem(&format!(
                "the process that compiles ended ({status}) in one plan; the others go on without it"
            ));
            ended.insert(*plan, status.to_string());
            Some(Vec::new())
        }
        several => {
            out::problem(&format!(
                "the process that compiles ended ({status}); the {} plans that it had begun are tried one by one",
                several.len()
            ));
            Some(open)
        }
    }
}

fn words(journal: &Path, suspects: &[usize], ended: &BTreeMap<usize, String>) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["--journal".into(), journal.into()];
    words.extend(["--parent".into(), std::process::id().to_string().into()]);
    if !suspects.is_empty() {
        let list: Vec<String> = suspects.iter().map(ToString::to_string).collect();
        words.extend(["--suspects".into(), list.join(",").into()]);
    }
    for (plan, status) in ended {
        words.extend(["--ended".into(), format!("{plan}:{status}").into()]);
    }
    words
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn what_was_open_alone_ended_the_process_and_several_are_tried_one_by_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        File::create(&path).expect("a file");
        let args = ChildArgs { journal: Some(path.clone()), ..ChildArgs::default() };
        let journal = args.journal().expect("opens");
        assert_eq!(journal.within(3, || open(&path)), [3]);
        let both = journal.within(4, || journal.within(12, || open(&path)));
        assert_eq!((both, open(&path)), (vec![4, 12], Vec::new()));
        let (status, mut ended) = (ExitStatus::from_raw(11), BTreeMap::new());
        assert_eq!(after(&status, Vec::new(), &mut ended), None);
        assert_eq!(after(&status, vec![4, 12], &mut ended), Some(vec![4, 12]));
        assert!(ended.is_empty());
        assert_eq!(after(&status, vec![12], &mut ended), Some(Vec::new()));
        assert_eq!(ended[&12], "signal: 11 (SIGSEGV)");
        let told = words(&path, &[1, 2], &ended);
        assert!(told.ends_with(&["1,2".into(), "--ended".into(), "12:signal: 11 (SIGSEGV)".into()]), "{told:?}");
        let again: EndedPlan = "12:signal: 11 (SIGSEGV)".parse().expect("reads");
        assert_eq!((again.plan, &again.status), (12, &ended[&12]));
        assert!("12".parse::<EndedPlan>().is_err());
    }
}
