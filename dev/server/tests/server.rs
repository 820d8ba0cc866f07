//! The whole server on this CPU: HTTP, streams, the scheduler, faults, and pages that come back.

mod kit;

use std::time::Duration;

use kit::{Server, numbers, post, prompt};
use qkvault_server::ServerError;
use qkvault_server::config::ServerLimits;
use qkvault_server::engine::ServedModel;
use qkvault_server::metrics::Metrics;
use qkvault_server::step::{ModelStep, Picked};
use serde_json::json;

/// Lengths of prompts and answers of a crowd: one token, one page and one more, more than a chunk.
const SIZES: [(usize, usize); 8] = [(1, 20), (16, 12), (17, 16), (40, 9), (5, 24), (70, 6), (33, 15), (90, 4)];

#[test]
fn each_answer_of_a_crowd_is_that_of_its_prompt_alone_and_every_page_comes_back() {
    let server = Server::slow(ServerLimits::SMALL);
    let prompts: Vec<_> = (0..16).map(|n| (prompt(n, SIZES[n as usize % 8].0), SIZES[n as usize % 8].1)).collect();
    let alone: Vec<_> = prompts.iter().map(|(prompt, count)| server.tokens(prompt, *count)).collect();
    assert!(alone.iter().zip(&prompts).all(|(answer, (_, count))| answer.len() == *count));
    assert_ne!(alone[0][..4], alone[8][..4], "other prompts have other answers");
    std::thread::scope(|scope| {
        let crowd: Vec<_> =
            prompts.iter().map(|(prompt, count)| scope.spawn(|| server.tokens(prompt, *count))).collect();
        for ((crowd, alone), (prompt, _)) in crowd.into_iter().zip(&alone).zip(&prompts) {
            assert_eq!(crowd.join().expect("answered"), *alone, "a prompt of {} tokens", prompt.len());
        }
    });
    let steps = server.metric("steps_total");
    assert!(server.metric("tokens_total") > steps, "several sequences shared steps");
    server.wait("pages_used", 0);
    assert_eq!((server.metric("running"), server.metric("requests_done_total")), (0, 32));
    assert_eq!((server.metric("plan_builds_total"), server.metric("preemptions_total")), (0, 0));
    server.end();
}

#[test]
fn a_pool_that_is_too_small_for_all_makes_sequences_wait_or_start_again_and_changes_no_answer() {
    // Eight sequences grow to five pages each; there are sixteen.
    let server = Server::slow(ServerLimits { pages: 16, ..ServerLimits::SMALL });
    let prompts: Vec<_> = (0..8).map(|n| prompt(100 + n, 20 + n as usize)).collect();
    let alone: Vec<_> = prompts.iter().map(|prompt| server.tokens(prompt, 40)).collect();
    std::thread::scope(|scope| {
        let crowd: Vec<_> = prompts.iter().map(|prompt| scope.spawn(|| server.tokens(prompt, 40))).collect();
        for (crowd, alone) in crowd.into_iter().zip(&alone) {
            assert_eq!(crowd.join().expect("answered"), *alone);
        }
    });
    assert!(server.metric("preemptions_total") > 0, "the pool was never full");
    server.wait("pages_used", 0);
    server.end();
}

#[test]
fn tokens_are_streamed_as_they_come_and_a_client_that_goes_away_gives_its_pages_back() {
    let server = Server::slow(ServerLimits::SMALL);
    let asked = prompt(7, 30);
    let whole = server.tokens(&asked, 12);
    let events: Vec<_> = server.stream(&asked, 12).collect();
    let (done, tokens) = events.split_last().expect("events");
    assert_eq!(tokens.iter().map(|event| event["token"].as_u64().expect("a token")).collect::<Vec<_>>(), whole);
    assert_eq!(done["done"], json!({ "prompt_tokens": 30, "tokens": 12, "preempted": 0 }));
    // The answer goes on for 220 tokens; the client reads two.
    let gone: Vec<_> = server.stream(&asked, 220).take(2).collect();
    assert_eq!(gone.iter().map(|event| event["token"].as_u64().expect("a token")).collect::<Vec<_>>(), whole[..2]);
    server.wait("requests_vanished_total", 1);
    server.wait("pages_used", 0);
    assert!(server.metric("tokens_total") < 12 + 12 + 220, "it went on without its client");
    assert_eq!(server.tokens(&asked, 12), whole, "and the next one is served as before");
    server.end();
}

#[test]
fn wrong_and_too_long_requests_get_400_and_413_with_the_reason_and_change_nothing() {
    let server = Server::start(ServerLimits::SMALL);
    let cases = [
        (400, json!({ "prompt": [1, 512], "max_new": 4 }).to_string(), "0 to 511"),
        (400, json!({ "prompt": [], "max_new": 4 }).to_string(), "one token"),
        (400, json!({ "prompt": [1], "max_new": 0 }).to_string(), "one token"),
        (400, json!({ "prompt": [1], "max_new": 4, "temperature": -1.0 }).to_string(), "0 or more"),
        (400, json!({ "prompt": [1], "max_tokens": 4 }).to_string(), "max_tokens"),
        (400, "{\"prompt\": ".to_owned(), "EOF"),
        (400, json!({ "prompt": [1, -2], "max_new": 4 }).to_string(), "a text, or a list of tokens"),
        (413, json!({ "prompt": vec![1; 300], "max_new": 4 }).to_string(), "256"),
        (413, json!({ "prompt": "x".repeat(2 << 20), "max_new": 4 }).to_string(), "bytes"),
    ];
    for (status, body, word) in &cases {
        let answer = server.post("/generate", body);
        assert_eq!(answer.status, *status, "{}", answer.body);
        assert!(answer.body["error"].as_str().is_some_and(|why| why.contains(word)), "{}", answer.body);
    }
    assert_eq!((server.metric("requests_wrong_total"), server.metric("steps_total")), (cases.len() as u64, 0));
    server.end();
}

/// Checks that an answer is a 503 that says when to come again.
fn is_busy(answer: &kit::Answer, word: &str) {
    assert_eq!((answer.status, answer.retry_after.as_deref()), (503, Some("1")), "{}", answer.body);
    assert!(answer.body["error"].as_str().is_some_and(|why| why.contains(word)), "{}", answer.body);
}

#[test]
fn a_request_that_finds_the_queue_full_gets_503_with_retry_after() {
    let server = Server::slow(ServerLimits { batch: 1, queue: 1, ..ServerLimits::SMALL });
    // One runs for long, one waits, one finds the queue full.
    let mut running = server.stream(&prompt(1, 4), 250);
    assert!(running.next().is_some());
    let (url, body) = (server.url("/generate"), json!({ "prompt": [1, 2], "max_new": 4 }).to_string());
    let waits = std::thread::spawn(move || post(&url, &body));
    server.wait("waiting", 1);
    is_busy(&server.post("/generate", &json!({ "prompt": [3], "max_new": 4, "stream": true }).to_string()), "as many");
    assert_eq!(running.filter(|event| event["token"].is_u64()).count(), 249);
    assert_eq!(waits.join().expect("answered").status, 200);
    server.end();
}

#[test]
fn a_request_that_waits_longer_than_the_patience_gets_503_with_retry_after() {
    let server = Server::slow(ServerLimits { batch: 1, patience: Duration::from_millis(50), ..ServerLimits::SMALL });
    let mut running = server.stream(&prompt(1, 4), 250);
    assert!(running.next().is_some());
    is_busy(&server.post("/generate", &json!({ "prompt": [1, 2], "max_new": 4 }).to_string()), "no room");
    drop(running);
    assert_eq!((server.metric("requests_busy_total"), server.tokens(&[1, 2], 4).len()), (1, 4));
    server.end();
}

#[test]
fn a_stopped_server_refuses_new_requests_and_ends_those_that_it_has() {
    let mut server = Server::slow(ServerLimits::SMALL);
    let mut running = server.stream(&prompt(3, 10), 120);
    let first = running.next().expect("an event");
    assert!(first["token"].is_u64());
    server.stop();
    let events: Vec<_> = running.collect();
    assert_eq!(events.last().expect("the end")["done"]["tokens"], 120);
    let address = server.address;
    server.end();
    assert!(std::net::TcpStream::connect(address).is_err(), "it no longer listens");
}

#[test]
fn scores_are_zero_for_the_own_answer_and_not_for_that_of_another_prompt() {
    let server = Server::start(ServerLimits::SMALL);
    let score = |prompt: &[u32], answer: &[u64]| -> Vec<f64> {
        let answer = server.post("/score", &json!({ "prompt": prompt, "answer": answer }).to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["gaps"].as_array().expect("a list").iter().map(|gap| gap.as_f64().expect("a number")).collect()
    };
    // Longer than a chunk, and more scores than a step has.
    let (ours, others) = (prompt(1, 50), prompt(2, 50));
    let answer = server.tokens(&ours, 60);
    assert_eq!(score(&ours, &answer), vec![0.0; 60]);
    let wrong = score(&others, &answer);
    assert_eq!(wrong.len(), 60);
    assert!(wrong.iter().filter(|gap| **gap > 0.3).count() > 20, "{wrong:?}");
    server.wait("pages_used", 0);
    server.end();
}

#[test]
fn a_seed_gives_the_same_sample_in_a_crowd_and_another_seed_another() {
    let server = Server::slow(ServerLimits::SMALL);
    let sample = |seed: u32| {
        let body = json!({ "prompt": "Hello", "max_new": 20, "temperature": 1.0, "seed": seed }).to_string();
        numbers(&server.post("/generate", &body).body["tokens"])
    };
    let alone = sample(1);
    assert_ne!(alone, sample(2));
    std::thread::scope(|scope| {
        let crowd: Vec<_> = (1..7).map(|seed| scope.spawn(move || sample(seed))).collect();
        let crowd: Vec<_> = crowd.into_iter().map(|answer| answer.join().expect("answered")).collect();
        assert_eq!(crowd[0], alone);
    });
    server.end();
}

/// A model that fails after some steps, as a GPU does that is lost.
struct Failing(u32);

impl ServedModel for Failing {
    fn run(&mut self, step: &ModelStep) -> Result<Vec<Picked>, ServerError> {
        self.0 = self.0.checked_sub(1).ok_or("the GPU is lost")?;
        Ok(vec![Picked::default(); step.picks.len()])
    }

    fn report(&mut self, _: &Metrics) {}
}

#[test]
fn a_model_that_fails_gives_every_request_the_reason_and_ends_the_server() {
    let server = Server::with(ServerLimits::SMALL, || Ok(Failing(5)));
    let events: Vec<_> = server.stream(&prompt(1, 10), 20).collect();
    let (last, tokens) = events.split_last().expect("events");
    assert_eq!(tokens.len(), 5);
    assert!(last["error"].as_str().is_some_and(|why| why.contains("the GPU is lost")), "{last}");
    let why = server.ended().expect_err("it failed").to_string();
    assert!(why.contains("the GPU is lost"), "{why}");
}
