//! Schedules requests. Each step has decodes first, then prompt chunks up to the token limit.

use half::bf16;
use qkvault::serving::ServePolicy;

use crate::model::{HEAD_DIM, Model, PAGE, Part, QUERY_HEADS, WORDS, mix};
use crate::pages::Pool;

/// Tokens of the prefix that all prompts share. It has two whole pages, which are stored once.
const PREFIX: usize = 2 * PAGE;

struct Request {
    /// The prompt, then the generated tokens.
    tokens: Vec<u64>,
    /// The number of tokens at which the request is done.
    end: usize,
    /// The step in which the request arrives.
    arrives: usize,
    /// The number of keys in the cache.
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
    /// The index of each sequence's running request.
    requests: Vec<usize>,
}

pub(crate) struct Scheduler {
    waiting: Vec<Request>,
    running: Vec<Request>,
    /// Pages of the shared prefix, after a request has written them.
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

    /// Plans the next step: admits requests, allocates pages, and writes keys and values of the step's tokens. `None`
    /// after all requests are served.
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
        let mut plan = Plan { queries: vec![], keys: vec![], tables: vec![], rows: vec![], requests: vec![] };
        // Decodes come first, so that prompt chunks do not delay them.
        let mut order: Vec<usize> = (0..self.running.len()).collect();
        order.sort_by_key(|&index| self.running[index].tokens.len() - self.running[index].written);
        for index in order {
            let request = &mut self.running[index];
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
            plan.requests.push(index);
        }
        Some(plan)
    }

    /// Admits a request if it has arrived, the batch has room, and there are enough pages for all its tokens.
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

    /// Processes the outputs of a step. If all tokens of a sequence are computed, its last row gives the next token.
    pub(crate) fn finish(&mut self, model: &Model, pool: &mut Pool, plan: &Plan, outputs: &[f32]) {
        let mut row = 0;
        for (&index, &new) in plan.requests.iter().zip(&plan.queries) {
            row += new as usize;
            let request = &mut self.running[index];
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

    /// A checksum of all generated tokens.
    pub(crate) fn checksum(&self) -> String {
        format!("{:016x}", self.checksum)
    }
}
