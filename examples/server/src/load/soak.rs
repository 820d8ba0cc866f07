//! Minutes of load on a server whose pool is too small for it, with clients that vanish and requests that are wrong.
//! Afterwards every page must be free, memory as large as in the beginning, and the answers those of their prompts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::check::Checked;
use super::client::Client;
use super::process::Server;
use super::users::{Random, Told};
use super::{Common, say};
use crate::Failure;
use crate::config::Limits;

/// Bytes that memory may grow between the first and the last third.
const DEVICE_GROWTH: u64 = 32 << 20;
const RESIDENT_GROWTH: u64 = 64 << 20;

/// How long a user waits after a 503: less than it says, so that the pool stays full.
const AGAIN: Duration = Duration::from_millis(50);

/// Kinds of requests: one is too long, one wrong, three vanish, the others are right.
const KINDS: usize = 20;

/// Answers that are kept and checked.
const KEPT: usize = 100;

/// What users saw.
#[derive(Debug, Default)]
struct Tally {
    /// How often each kind of request had each outcome.
    outcomes: BTreeMap<String, u64>,
    wrong: Vec<String>,
    told: Vec<Told>,
    tokens: u64,
    seen: u64,
}

/// The limits of the server, and the requests that go with them.
struct Traffic {
    options: Vec<String>,
    context: usize,
    prompt: (usize, usize),
    answer: (usize, usize),
    vocab: usize,
}

impl Traffic {
    fn new(common: &Common, users: usize) -> Result<Traffic, Failure> {
        let vocab = common.shape()?.vocab;
        // The pool has room for a part of the sequences that may run, and fewer may wait than there are users.
        let running = users.min(if common.cpu { Limits::SMALL.batch } else { Limits::LARGE.batch });
        let (context, page, prompt, answer): (usize, usize, (usize, usize), (usize, usize)) = match common.cpu {
            true => (256, 16, (1, 60), (8, 40)),
            false => (2048, 64, (1, 900), (16, 200)),
        };
        let longest = (prompt.1 + answer.1).div_ceil(page);
        let (pages, queue) = ((running * longest / 4).max(context / page), (users / 4).max(1));
        let numbers = [("--context", context), ("--pages", pages), ("--queue", queue)];
        let options = numbers.into_iter().flat_map(|(name, number)| [name.to_owned(), number.to_string()]);
        let options = options.chain(["--patience".to_owned(), "2".to_owned()]).collect();
        Ok(Traffic { options, context, prompt, answer, vocab })
    }
}

pub(super) fn run(common: &Common, minutes: f64, users: usize) -> Result<Value, Failure> {
    let traffic = Traffic::new(common, users)?;
    let options: Vec<&str> = traffic.options.iter().map(String::as_str).collect();
    let server = Server::start(common, &options)?;
    let (stop, tally) = (AtomicBool::new(false), Mutex::new(Tally::default()));
    let started = Instant::now();
    let mut memory: Vec<(u64, u64)> = Vec::new();
    std::thread::scope(|scope| -> Result<(), Failure> {
        for number in 0..users {
            let (base, stop, tally, traffic) = (&server.base, &stop, &tally, &traffic);
            scope.spawn(move || {
                let (mut client, mut random) = (Client::new(base), Random::new(common.seed, number));
                // Each user makes every kind of request in turn.
                for kind in (number..).take_while(|_| !stop.load(Relaxed)) {
                    one(&mut client, base, (kind % KINDS, &mut random), traffic, tally);
                }
            });
        }
        let length = Duration::from_secs_f64(minutes * 60.0);
        let mut result = Ok(());
        while started.elapsed() < length && result.is_ok() {
            std::thread::sleep((length / 60).clamp(Duration::from_millis(50), Duration::from_secs(5)));
            result = server.metrics().map(|page| memory.push((page.of("device_bytes"), page.of("resident_bytes"))));
            if memory.len().is_multiple_of(12) {
                say(&format!("{:.0} s: {:?}", started.elapsed().as_secs_f64(), lock(&tally).outcomes));
            }
        }
        stop.store(true, Relaxed);
        result
    })?;
    let Tally { outcomes, mut wrong, told, tokens, .. } = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    let page = server.settle()?;
    for (metric, most) in [("pages_used", 0), ("plan_builds_total", 0), ("requests_failed_total", 0)] {
        if page.of(metric) > most {
            wrong.push(format!("{metric} is {}", page.of(metric)));
        }
    }
    let device = growth(&memory, |sample| sample.0);
    let resident = growth(&memory, |sample| sample.1);
    for (name, growth, most) in [("device", device, DEVICE_GROWTH), ("process", resident, RESIDENT_GROWTH)] {
        if growth > most {
            wrong.push(format!("memory of the {name} grew by {growth} bytes"));
        }
    }
    for (kind, least) in [("vanished", 1), ("too long: 413", 1), ("wrong: 400", 1), ("busy: 503", 1), ("whole", 1)] {
        if outcomes.get(kind).copied().unwrap_or(0) < least {
            wrong.push(format!("no request was '{kind}'"));
        }
    }
    if page.of("preemptions_total") == 0 {
        wrong.push("the pool was never full".to_owned());
    }
    let checked = Checked::of(&server.client, &told, KEPT)?;
    wrong.extend(checked.problems("soak"));
    let record = json!({
        "model": common.model, "minutes": minutes, "users": users, "options": traffic.options, "said": server.said,
        "outcomes": outcomes, "tokens": tokens, "checked": checked.record(),
        "preempted": page.of("preemptions_total"), "pages_most": page.of("pages_most"), "pages": page.of("pages"),
        "pages_left": page.of("pages_used"), "plan_builds": page.of("plan_builds_total"),
        "vanished_on_the_server": page.of("requests_vanished_total"),
        "memory": { "samples": memory.len(), "device_grew": device, "process_grew": resident,
            "device": memory.last().map(|sample| sample.0), "process": memory.last().map(|sample| sample.1) },
        "wrong": wrong,
    });
    server.stop()?;
    Ok(record)
}

/// One request of a user: most are right, some vanish, some are wrong.
fn one(client: &mut Client, base: &str, (kind, random): (usize, &mut Random), traffic: &Traffic, tally: &Mutex<Tally>) {
    let length = random.within(traffic.prompt.0, traffic.prompt.1);
    let mut prompt = random.prompt(length, traffic.vocab);
    let max_new = random.within(traffic.answer.0, traffic.answer.1);
    let (expected, most) = match kind {
        0 => {
            prompt = random.prompt(traffic.context, traffic.vocab);
            (413, usize::MAX)
        }
        1 => {
            prompt.push(traffic.vocab as u32);
            (400, usize::MAX)
        }
        2..=4 => (200, random.within(0, max_new - 1)),
        _ => (200, usize::MAX),
    };
    let answer = client.stream((&prompt, max_new), most, || ());
    let mut tally = lock(tally);
    let mut count = |what: &str| *tally.outcomes.entry(what.to_owned()).or_default() += 1;
    match answer {
        Ok(answer) if answer.status == 503 && expected == 200 => {
            count("busy: 503");
            if !answer.retry_after {
                tally.wrong.push("a 503 without Retry-After".to_owned());
            }
            drop(tally);
            std::thread::sleep(AGAIN);
        }
        Ok(answer) if answer.status != expected => {
            tally.wrong.push(format!("status {} where {expected} was expected", answer.status));
        }
        Ok(_) if expected == 413 => count("too long: 413"),
        Ok(_) if expected == 400 => count("wrong: 400"),
        Ok(answer) if most < usize::MAX => {
            count("vanished");
            tally.tokens += answer.tokens.len() as u64;
            drop(tally);
            // A new connection: the old one goes away with its unread stream.
            *client = Client::new(base);
        }
        Ok(answer) if !answer.done || answer.tokens.len() != max_new => {
            tally.wrong.push(format!("{} of {max_new} tokens", answer.tokens.len()));
        }
        Ok(answer) => {
            count("whole");
            tally.tokens += max_new as u64;
            tally.seen += 1;
            // A sample of all: each is kept with the same chance.
            let at = if tally.told.len() < KEPT { tally.told.len() } else { random.within(0, tally.seen as usize - 1) };
            match tally.told.get_mut(at) {
                Some(place) => *place = (prompt, answer.tokens),
                None if at < KEPT => tally.told.push((prompt, answer.tokens)),
                None => {}
            }
        }
        Err(error) => tally.wrong.push(error.to_string()),
    }
}

/// How much the largest of the last third is above the largest of the first; the first tenth does not count.
fn growth(samples: &[(u64, u64)], of: impl Fn(&(u64, u64)) -> u64) -> u64 {
    let samples = &samples[samples.len() / 10..];
    let third = samples.len().div_ceil(3);
    let most = |part: &[(u64, u64)]| part.iter().map(&of).max().unwrap_or(0);
    most(&samples[samples.len() - third..]).saturating_sub(most(&samples[..third]))
}

fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}
