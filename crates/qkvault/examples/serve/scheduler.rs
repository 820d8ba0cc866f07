//! Requests, and which of their tokens are computed in each step: decodes first, then chunks of prompts into what room is left.

use half::bf16;
use qkvault::serving::ServePolicy;

use crate::model::{HEAD_DIM, Model, PAGE, Part, QUERY_HEADS, WORDS, mix};
use crate::pages::Pool;

/// Tokens that every prompt begins with, two whole pages: their keys are kept once.
const PREFIX: usize = 2 * PAGE;

struct Request {
    /// Prompt, then what was generated.
    tokens: Vec<u64>,
    /// Tokens when it is done.
    end: usize,
    /// Step from which on it may begin.
    arrives: usize,
    /// Keys that are written.
    written: usize,
    table: Vec<i32>,
}

/// One step.
pub(crate) struct Plan {
    pub(crate) queries: Vec<i32>,
    pub(crate) keys: Vec<i32>,
    pub(crate) tables: Vec<Vec<i32>>,
    /// Queries of the new tokens, varlen.
    pub(crate) rows: Vec<bf16>,
    /// Which running request each sequence is.
    scalars: Vec<usize>,
}

pub(crate) struct Scheduler {
    waiting: Vec<Request>,
    running: Vec<Request>,
    /// Pages of the common beginning, once a request has written them.
    prefix: Option<Vec<i32>>,
    policy: ServePolicy,
    now: usize,
    checksum: u64,
}

impl Scheduler {
    pub(crate) fn new(requests: usize, seed: u64, policy: &ServePolicy) -> Scheduler {
        let draw = |i: usize, what: u64, n: u64| mix(mix(seed ^ what << 32) ^ i as u64) % n;
        let mut waiting: Vec<Request> = (0..requests)
            .map(|i| {
                let own = 1 + draw(i, 1, 70) as usize;
                let prompt = (0..PREFIX as u64).map(|t| mix(seed ^ t) % WORDS);
                let tokens: Vec<u64> =
                    prompt.chain((0..own as u64).map(|t| mix(seed ^ t << 9 ^ i as u64) % WORDS)).collect();
                let end = tokens.len() + 1 + draw(i, 2, 40) as usize;
                Request { tokens, end, arrives: draw(i, 3, 60) as usize, written: 0, table: Vec::new() }
            })
            .collect();
        waiting.sort_by_key(|request| std::cmp::Reverse(request.arrives));
        Scheduler { waiting, running: Vec::new(), prefix: None, policy: *policy, now: 0, checksum: 0 }
    }

    /// Admits what there is room for, gives pages, writes keys and values of the step's tokens; nothing when all are served.
    pub(crate) fn next(&mut self, model: &Model, pool: &mut Pool) -> Option<Plan> {
        while self.running.is_empty() && self.waiting.last().is_some_and(|r| r.arrives > self.now) {
            self.now += 1;
        }
        self.admit(pool);
        self.now += 1;
        if self.running.is_empty() {
            if let Some(prefix) = self.prefix.take() {
                prefix.into_iter().for_each(|page| pool.release(page));
            }
            return None;
        }
        let mut room = self.policy.tokens as usize;
        let mut plan = Plan { queries: vec![], keys: vec![], tables: vec![], rows: vec![], scalars: vec![] };
        // Decodes first, so that no chunk of a prompt makes them wait.
        let mut order: Vec<usize> = (0..self.running.len()).collect();
        order.sort_by_key(|&scalar| self.running[scalar].tokens.len() - self.running[scalar].written);
        for scalar in order {
            let request = &mut self.running[scalar];
            let new = (request.tokens.len() - request.written).min(self.policy.queries as usize).min(room);
            if new == 0 {
                continue;
            }
            room -= new;
            for position in request.written..request.written + new {
                let token = request.tokens[position];
                let row = |part| model.row(part, token, position);
                pool.write(&request.table, position, &row(Part::Key), &row(Part::Value));
                plan.rows.extend(row(Part::Query));
            }
            request.written += new;
            plan.queries.push(new as i32);
            plan.keys.push(request.written as i32);
            plan.tables.push(request.table.clone());
            plan.scalars.push(scalar);
        }
        Some(plan)
    }

    /// A request begins when it has arrived, a scalar is free, and there are pages for it to its end.
    fn admit(&mut self, pool: &mut Pool) {
        while self.running.len() < self.policy.batch as usize {
            let Some(request) = self.waiting.last().filter(|r| r.arrives <= self.now) else { return };
            let shared = self.prefix.as_ref().map_or(0, Vec::len);
            let pages = request.end.div_ceil(PAGE) - shared;
            if pool.free() < pages {
                return;
            }
            let Some(mut request) = self.waiting.pop() else { return };
            if let Some(prefix) = &self.prefix {
                prefix.iter().for_each(|&page| pool.share(page));
                request.table.clone_from(prefix);
                request.written = PREFIX;
            }
            request.table.extend((0..pages).filter_map(|_| pool.take()));
            self.running.push(request);
        }
    }

    /// Takes the outputs of a step: the last row of a sequence whose tokens are all computed says its next token.
    pub(crate) fn finish(&mut self, model: &Model, pool: &mut Pool, plan: &Plan, outputs: &[f32]) {
        let mut row = 0;
        for (&scalar, &new) in plan.scalars.iter().zip(&plan.queries) {
            row += new as usize;
            let request = &mut self.running[scalar];
            if self.prefix.is_none() && request.written >= PREFIX {
                let prefix = request.table[..PREFIX / PAGE].to_vec();
                prefix.iter().for_each(|&page| pool.share(page));
                self.prefix = Some(prefix);
            }
            if request.written == request.tokens.len() && request.tokens.len() < request.end {
                let last = (row - 1) * QUERY_HEADS * HEAD_DIM;
                request.tokens.push(model.next(&outputs[last..last + QUERY_HEADS * HEAD_DIM]));
            }
        }
        let (done, running) =
            std::mem::take(&mut self.running).into_iter().partition(|r: &Request| r.tokens.len() == r.end);
        self.running = running;
        let done: Vec<Request> = done;
        for request in done {
            request.table.iter().for_each(|&page| pool.release(page));
            self.checksum = request.tokens.iter().fold(self.checksum, |sum, &token| mix(sum ^ token));
        }
    }

    /// A number that all generated text decides.
    pub(crate) fn checksum(&self) -> String {
        format!("{:016x}", self.checksum)
    }
}
