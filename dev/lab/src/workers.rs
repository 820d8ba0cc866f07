//! Worker processes that answer questions line by line. A question that ends the process, hangs it or breaks its GPU
//! context is reported and does not affect the others.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Context as _;

/// A process that answers each line with a line. Dropping it kills the process.
pub(super) struct Worker {
    child: Child,
    /// `None` after the input was closed.
    questions: Option<ChildStdin>,
    answers: Receiver<String>,
}

/// Why there is no answer. The worker cannot be used again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WorkerError {
    /// The process ended.
    #[error("the worker ended: {0}")]
    Ended(String),
    /// The answer takes longer than the limit.
    #[error("no answer within {} s", .0.as_secs())]
    Slow(Duration),
}

/// The command that starts this program again with the same words and `more`. Leaves out `--json`: otherwise the error
/// of a worker that does not start would be a line on standard output and look like an answer.
pub(super) fn this_program<S: AsRef<OsStr>>(more: impl IntoIterator<Item = S>) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program's own file is not known")?);
    command.args(std::env::args_os().skip(1).filter(|word| word != "--json")).args(more);
    Ok(command)
}

impl Worker {
    /// Starts a process. The caller chooses its standard error.
    pub(super) fn start(command: &mut Command) -> anyhow::Result<Worker> {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.context("a worker could not be started")?;
        let (questions, answers) = (child.stdin.take(), child.stdout.take());
        let (Some(questions), Some(output)) = (questions, answers) else {
            anyhow::bail!("a worker has no standard input or output");
        };
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            // The thread ends with the process, or after the receiver is dropped.
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Worker { child, questions: Some(questions), answers })
    }

    /// Sends a line and waits for the line that answers it.
    pub(super) fn ask(&mut self, question: &str, limit: Duration) -> Result<String, WorkerError> {
        // Ignored: writing fails only if the process has ended, and then reading fails, too.
        if let Some(questions) = &mut self.questions {
            let _ = writeln!(questions, "{question}").and_then(|()| questions.flush());
        }
        self.answers.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => WorkerError::Slow(limit),
            RecvTimeoutError::Disconnected => WorkerError::Ended(match self.child.wait() {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            }),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A process that hangs in the library or on the GPU does not end when its input ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Distributes numbered questions over workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Isolation {
    /// Number of parallel workers.
    pub(super) workers: usize,
    /// Questions for one process before a new process replaces it.
    pub(super) each: u64,
    /// Longest time for one answer.
    pub(super) limit: Duration,
}

/// The result of one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CaseReport {
    /// The number of the question.
    pub(super) number: u64,
    /// The answer, or why there is none. After a failure it comes from a new process.
    pub(super) answer: Result<String, String>,
    /// The failure in a process that had answered other questions before, if there was one.
    pub(super) retry: Option<Retry>,
}

/// A failure that led to a second attempt in a new process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Retry {
    /// The answer, or why there was none.
    pub(super) answer: String,
    /// The earlier questions of the process, in order.
    pub(super) before: Vec<u64>,
}

impl Isolation {
    /// Asks every number of a range. If an answer `is_bad` or missing, a new process replaces the worker and gets the
    /// question again, so that no earlier question affects the result.
    ///
    /// # Errors
    ///
    /// A worker cannot be started.
    pub(super) fn ask(
        &self,
        numbers: std::ops::Range<u64>,
        start: impl Fn() -> anyhow::Result<Worker> + Sync,
        is_bad: impl Fn(&str) -> bool + Sync,
        mut take: impl FnMut(CaseReport),
    ) -> anyhow::Result<()> {
        let next = AtomicU64::new(numbers.start);
        let each = self.each.max(1);
        let (start, is_bad) = (&start, &is_bad);
        std::thread::scope(|scope| {
            let (sender, answers) = channel();
            let threads: Vec<_> = (0..self.workers.max(1))
                .map(|_| {
                    let (sender, next, end) = (sender.clone(), &next, numbers.end);
                    scope.spawn(move || {
                        loop {
                            let first = next.fetch_add(each, Ordering::Relaxed);
                            if first >= end {
                                return Ok(());
                            }
                            self.chunk(first..end.min(first + each), start, is_bad, &sender)?;
                        }
                    })
                })
                .collect();
            drop(sender);
            answers.into_iter().for_each(&mut take);
            threads.into_iter().try_for_each(|t| t.join().expect("a thread that only waits does not panic"))
        })
    }

    /// Asks some numbers one after the other, in one process unless one fails.
    fn chunk(
        &self,
        numbers: std::ops::Range<u64>,
        start: impl Fn() -> anyhow::Result<Worker>,
        is_bad: impl Fn(&str) -> bool,
        sender: &Sender<CaseReport>,
    ) -> anyhow::Result<()> {
        let mut worker: Option<Worker> = None;
        let mut before: Vec<u64> = Vec::new();
        for number in numbers {
            let mut retry = None;
            let answer = loop {
                let asked = match &mut worker {
                    Some(worker) => worker,
                    none => none.insert(start()?),
                };
                let answer = asked.ask(&number.to_string(), self.limit).map_err(|silence| silence.to_string());
                if answer.as_deref().is_ok_and(&is_bad) || answer.is_err() {
                    worker = None;
                    let before = std::mem::take(&mut before);
                    if !before.is_empty() {
                        retry = Some(Retry { answer: answer.unwrap_or_else(|why| why), before });
                        continue;
                    }
                }
                break answer;
            };
            if worker.is_some() {
                before.push(number);
            }
            // Sending fails only after the receiver has ended with the command.
            let _ = sender.send(CaseReport { number, answer, retry });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// A worker that answers each number by a branch of a shell `case`, and counts its questions in `n`.
    fn scripted(cases: &str) -> anyhow::Result<Worker> {
        let script = format!("n=0; while read x; do n=$((n+1)); case $x in {cases} *) echo right;; esac; done");
        Worker::start(Command::new("sh").arg("-c").arg(script))
    }

    fn reports(isolation: Isolation, numbers: std::ops::Range<u64>, cases: &str) -> Vec<CaseReport> {
        let mut list = Vec::new();
        let done = isolation.ask(numbers, || scripted(cases), |answer| answer.starts_with("failed"), |t| list.push(t));
        done.expect("every machine has a shell");
        list.sort_by_key(|t| t.number);
        list
    }

    fn right(number: u64) -> CaseReport {
        CaseReport { number, answer: Ok("right".to_owned()), retry: None }
    }

    /// An abort inside cuDNN ends the process before it answers.
    #[test]
    fn a_worker_that_dies_is_reported_as_ended() {
        let mut dying = Worker::start(&mut Command::new("true")).expect("every machine has it");
        let silence = dying.ask("1", SOON).expect_err("the worker ended");
        assert!(matches!(&silence, WorkerError::Ended(status) if status.contains('0')), "{silence}");
        let mut killed = scripted("1) kill -9 $$;;").expect("every machine has a shell");
        assert_eq!(killed.ask("2", SOON), Ok("right".to_owned()));
        let silence = killed.ask("1", SOON).expect_err("the worker ended");
        assert!(silence.to_string().contains("signal: 9"), "{silence}");
    }

    #[test]
    fn a_worker_that_hangs_is_given_up() {
        let mut hanging = scripted("1) exec sleep 60;;").expect("every machine has a shell");
        let limit = Duration::from_millis(300);
        assert_eq!(hanging.ask("1", limit), Err(WorkerError::Slow(limit)));
    }

    #[test]
    fn a_question_that_kills_its_worker_does_not_affect_the_others() {
        let isolation = Isolation { workers: 3, each: 4, limit: SOON };
        let list = reports(isolation, 10..21, "15) kill -9 $$;;");
        assert_eq!(list.iter().map(|t| t.number).collect::<Vec<_>>(), (10..21).collect::<Vec<_>>());
        let dead = &list[5];
        assert!(dead.answer.as_ref().is_err_and(|why| why.contains("signal: 9")), "{dead:?}");
        assert_eq!(dead.retry.as_ref().map(|b| &b.before[..]), Some(&[14][..]));
        list.iter().filter(|t| t.number != 15).for_each(|t| assert_eq!(*t, right(t.number)));
    }

    /// After a launch that faults, every later launch of the process fails.
    #[test]
    fn a_question_that_fails_because_of_another_is_right_in_a_new_process() {
        let isolation = Isolation { workers: 1, each: 10, limit: SOON };
        // 3 breaks the process and still answers `right`; 5 always fails.
        let list = reports(
            isolation,
            0..8,
            "3) bad=1; echo right;; 4) test $bad && echo failed || echo right;; 5) echo failed 5;;",
        );
        let retry = |answer: &str, before: &[u64]| Some(Retry { answer: answer.to_owned(), before: before.to_vec() });
        assert_eq!(list[4], CaseReport { retry: retry("failed", &[0, 1, 2, 3]), ..right(4) });
        assert_eq!(
            list[5],
            CaseReport { number: 5, answer: Ok("failed 5".to_owned()), retry: retry("failed 5", &[4]) }
        );
        for n in [0, 1, 2, 3, 6, 7] {
            assert_eq!(list[n as usize], right(n));
        }
    }

    #[test]
    fn a_worker_that_cannot_be_started_is_an_error() {
        let isolation = Isolation { workers: 2, each: 1, limit: SOON };
        let start = || Worker::start(&mut Command::new("/nonexistent/worker"));
        let error = isolation.ask(0..3, start, |_| false, |_| ()).expect_err("it is not there");
        assert!(format!("{error:#}").contains("a worker could not be started"), "{error:#}");
    }
}
