//! The scheduler alone, with a model that answers at once: random traffic, and what must hold after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use qkvault_server::config::{ModelShape, ServerLimits};
use qkvault_server::request::{Event, RequestKind, Sampling, ServerRequest};
use qkvault_server::scheduler::Scheduler;
use qkvault_server::step::{ModelStep, Picked};
use qkvault_server::weights::mix;

fn request(prompt: usize, wanted: RequestKind, limits: &ServerLimits) -> ServerRequest {
    let shape = ModelShape::named("tiny").expect("it is there");
    ServerRequest::new(vec![1; prompt], wanted, &shape, limits).expect("in range")
}

/// What a step must be, whatever the traffic.
fn check(step: &ModelStep, limits: &ServerLimits) {
    assert!(step.rows() <= limits.tokens && step.keys.len() <= limits.batch && step.picks.len() <= limits.batch);
    assert_eq!(step.decodes + step.chunks.len(), step.keys.len());
    assert_eq!(step.rows() as i32, step.decodes as i32 + step.chunks.iter().sum::<i32>());
    // No page has two owners, and every row is written once, into a page of its own sequence.
    let pages: Vec<i32> = step.tables.iter().flatten().copied().collect();
    assert_eq!(pages.iter().collect::<BTreeSet<_>>().len(), pages.len());
    let rows = std::iter::repeat_n(&1, step.decodes).chain(&step.chunks);
    let mut row = 0;
    for ((&rows, &keys), table) in rows.zip(&step.keys).zip(&step.tables) {
        for at in 0..rows {
            let position = step.positions[row];
            assert_eq!(position, keys - rows + at);
            let page = limits.page as i32;
            assert_eq!(step.slots[row], table[(position / page) as usize] * page + position % page);
            row += 1;
        }
    }
}

#[test]
fn random_traffic_ends_with_every_answer_whole_and_every_page_free() {
    let limits = ServerLimits { pages: 24, queue: 1000, ..ServerLimits::SMALL };
    let (mut preempted, mut cancelled) = (0, 0);
    for seed in 0..40_u32 {
        let draw = |at: u32, most: u32| mix(seed << 20 ^ at) % most;
        let mut scheduler = Scheduler::new(limits);
        let now = Instant::now();
        let mut wanted = BTreeMap::new();
        for id in 0..60_u32 {
            let (prompt, count) = (1 + draw(id, 150) as usize, 1 + draw(id + 1000, 60) as usize);
            let scores = draw(id + 2000, 5) == 0;
            let what = match scores {
                true => RequestKind::Scores(vec![2; count]),
                false => RequestKind::Tokens(count, Sampling::default()),
            };
            assert!(scheduler.submit(u64::from(id), request(prompt, what, &limits), now));
            wanted.insert(u64::from(id), count);
        }
        let mut got: BTreeMap<u64, usize> = BTreeMap::new();
        let mut steps = 0;
        while let Some((step, owners)) = scheduler.plan() {
            check(&step, &limits);
            let picked = vec![Picked { token: 3, gap: 0.5 }; step.picks.len()];
            for (id, event) in scheduler.finish(&owners, &picked) {
                match event {
                    Event::Token(_) => *got.entry(id).or_default() += 1,
                    Event::Scores(scores) => *got.entry(id).or_default() += scores.len(),
                    Event::Done(summary) => {
                        assert_eq!((summary.tokens, got.get(&id)), (wanted[&id], wanted.get(&id)), "request {id}");
                        wanted.remove(&id);
                    }
                    Event::Refused(refused) => panic!("{refused:?}"),
                }
            }
            if steps % 7 == 3 && draw(steps + 3000, 3) == 0 {
                let id = u64::from(draw(steps + 4000, 60));
                scheduler.cancel(id);
                cancelled += u32::from(wanted.remove(&id).is_some());
            }
            steps += 1;
            assert!(steps < 10_000, "no progress");
        }
        assert!(wanted.is_empty(), "{wanted:?}");
        assert_eq!((scheduler.pages().used(), scheduler.running(), scheduler.waiting()), (0, 0, 0));
        preempted += scheduler.preemptions();
    }
    assert!(preempted > 40 && cancelled > 40, "{preempted} preempted, {cancelled} cancelled");
}

#[test]
fn decodes_are_in_every_step_while_a_long_prompt_runs_in_chunks() {
    let limits = ServerLimits { tokens: 40, ..ServerLimits::SMALL };
    let mut scheduler = Scheduler::new(limits);
    let tokens = |count| RequestKind::Tokens(count, Sampling::default());
    assert!(scheduler.submit(0, request(8, tokens(50), &limits), Instant::now()));
    let (step, owners) = scheduler.plan().expect("a step");
    assert_eq!((step.decodes, &step.chunks[..]), (0, &[8][..]));
    scheduler.finish(&owners, &[Picked::default()]);
    assert!(scheduler.submit(1, request(100, tokens(2), &limits), Instant::now()));
    for chunk in [32, 32, 32, 4] {
        let (step, owners) = scheduler.plan().expect("a step");
        assert_eq!((step.decodes, &step.chunks[..]), (1, &[chunk][..]));
        assert_eq!(step.picks.len(), 1 + usize::from(chunk == 4));
        scheduler.finish(&owners, &vec![Picked::default(); step.picks.len()]);
    }
    assert_eq!(scheduler.plan().expect("a step").0.decodes, 2);
}

#[test]
fn requests_that_wait_too_long_leave_the_queue_and_those_that_were_preempted_stay() {
    let limits =
        ServerLimits { patience: Duration::from_secs(1), batch: 2, pages: 16, context: 256, ..ServerLimits::SMALL };
    let mut scheduler = Scheduler::new(limits);
    let now = Instant::now();
    for id in 0..3 {
        assert!(scheduler.submit(id, request(100, RequestKind::Tokens(100, Sampling::default()), &limits), now));
    }
    // Two run and fill the pool; the younger one loses its pages.
    while scheduler.preemptions() == 0 {
        let (step, owners) = scheduler.plan().expect("a step");
        scheduler.finish(&owners, &vec![Picked::default(); step.picks.len()]);
    }
    assert_eq!((scheduler.running(), scheduler.waiting()), (1, 2));
    assert!(scheduler.expire(now).is_empty());
    assert_eq!(scheduler.expire(now + Duration::from_secs(2)), [2]);
    assert_eq!(scheduler.waiting(), 1);
}
