//! The scheduler: which sequences run, which wait, and what the next step computes.
//!
//! Each step has every sequence that decodes, then chunks of prompts up to the limit of tokens. A sequence is admitted
//! when the pool has pages for its prompt. It takes more while it grows; when none is left, the sequence that came last
//! loses its pages, waits at the head of the queue, and is computed again. The oldest one always goes on, because no
//! request is larger than the pool.

use std::collections::VecDeque;
use std::time::Instant;

use crate::config::ServerLimits;
use crate::pages::PagePool;
use crate::request::{Event, RequestKind, Sampling, ServerRequest, Summary};
use crate::step::{ModelStep, Pick, Picked};

/// A request that runs or waits.
#[derive(Debug)]
struct Sequence {
    id: u64,
    /// The prompt, then the answer as far as it is known.
    tokens: Vec<u32>,
    prompt: usize,
    /// Tokens at which the sequence is complete.
    end: usize,
    /// `None` for a request that asks for scores.
    sampling: Option<Sampling>,
    /// Scores that the client has. A sequence that is computed again gives them no second time.
    scored: usize,
    /// Tokens whose keys are in the pages.
    written: usize,
    table: Vec<i32>,
    preempted: usize,
    arrived: Instant,
}

impl Sequence {
    /// Tokens that are known and not yet computed. The last token of a scored answer needs none.
    fn left(&self) -> usize {
        let known = self.tokens.len() - usize::from(self.sampling.is_none());
        known - self.written
    }

    /// How many of the next `rows` rows give a token or a score.
    fn picks(&self, rows: usize) -> usize {
        match self.sampling {
            Some(_) => usize::from(self.written + rows == self.tokens.len()),
            None => (self.written + rows).saturating_sub(self.written.max(self.prompt - 1 + self.scored)),
        }
    }

    fn summary(&self) -> Summary {
        Summary { prompt_tokens: self.prompt, tokens: self.tokens.len() - self.prompt, preempted: self.preempted }
    }
}

/// The sequences of a step, and how many rows and picks each has.
#[derive(Debug, Default)]
pub struct Owners(Vec<(u64, usize, usize)>);

/// Sequences and pages.
#[derive(Debug)]
pub struct Scheduler {
    limits: ServerLimits,
    pages: PagePool,
    waiting: VecDeque<Sequence>,
    /// In the order of their arrival.
    running: Vec<Sequence>,
    preemptions: u64,
}

impl Scheduler {
    /// A scheduler without requests.
    #[must_use]
    pub fn new(limits: ServerLimits) -> Scheduler {
        let pages = PagePool::new(limits.pages);
        Scheduler { limits, pages, waiting: VecDeque::new(), running: Vec::new(), preemptions: 0 }
    }

    /// Adds a request to the queue. False if the queue is full.
    pub fn submit(&mut self, id: u64, request: ServerRequest, now: Instant) -> bool {
        if self.waiting.len() >= self.limits.queue {
            return false;
        }
        let ServerRequest { prompt: mut tokens, wanted } = request;
        let prompt = tokens.len();
        let (end, sampling) = match wanted {
            RequestKind::Tokens(count, sampling) => (prompt + count, Some(sampling)),
            RequestKind::Scores(answer) => {
                tokens.extend(answer);
                (tokens.len(), None)
            }
        };
        let (scored, written, table, preempted) = (0, 0, Vec::new(), 0);
        let sequence = Sequence { id, tokens, prompt, end, sampling, scored, written, table, preempted, arrived: now };
        self.waiting.push_back(sequence);
        true
    }

    /// Removes a request, wherever it is, and takes back its pages.
    pub fn cancel(&mut self, id: u64) {
        self.waiting.retain(|sequence| sequence.id != id);
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            let mut sequence = self.running.remove(at);
            self.pages.release(&mut sequence.table);
        }
    }

    /// Removes the requests that have waited too long for their first token.
    pub fn expire(&mut self, now: Instant) -> Vec<u64> {
        let patience = self.limits.patience;
        let late = |s: &Sequence| s.preempted == 0 && now.duration_since(s.arrived) >= patience;
        let expired = self.waiting.iter().filter(|s| late(s)).map(|s| s.id).collect();
        self.waiting.retain(|s| !late(s));
        expired
    }

    /// Plans the next step; `None` if nothing can run.
    pub fn plan(&mut self) -> Option<(ModelStep, Owners)> {
        self.grow();
        self.admit();
        let (mut step, mut owners) = (ModelStep::default(), Owners::default());
        let mut picks = self.limits.batch;
        // Decodes come first, so that no chunk delays them.
        for at in 0..self.running.len() {
            if self.running[at].left() == 1 && step.rows() < self.limits.tokens {
                picks -= self.running[at].picks(1);
                self.running[at].add(1, &self.limits, &mut step, &mut owners);
                step.decodes += 1;
            }
        }
        for sequence in &self.running {
            let room = self.limits.tokens - step.rows();
            let mut rows = sequence.left().min(self.limits.chunk).min(room);
            if sequence.left() == 1 || rows == 0 {
                continue;
            }
            // Scores are rows of logits, of which a step has as many as sequences.
            rows -= sequence.picks(rows).saturating_sub(picks);
            if rows == 0 {
                continue;
            }
            picks -= sequence.picks(rows);
            sequence.add(rows, &self.limits, &mut step, &mut owners);
            step.chunks.push(rows as i32);
        }
        (step.rows() > 0).then_some((step, owners))
    }

    /// Takes the results of a step. Returns what each request gets, in order.
    pub fn finish(&mut self, owners: &Owners, mut picked: &[Picked]) -> Vec<(u64, Event)> {
        let mut events = Vec::new();
        for &(id, rows, picks) in &owners.0 {
            let (own, others) = picked.split_at(picks);
            picked = others;
            let Some(at) = self.running.iter().position(|sequence| sequence.id == id) else { continue };
            let sequence = &mut self.running[at];
            sequence.written += rows;
            match (sequence.sampling, own) {
                (None, []) => {}
                (None, own) => {
                    sequence.scored += own.len();
                    events.push((id, Event::Scores(own.iter().map(|picked| picked.gap).collect())));
                }
                (Some(_), own) => {
                    for Picked { token, .. } in own {
                        sequence.tokens.push(*token);
                        events.push((id, Event::Token(*token)));
                    }
                }
            }
            let complete = match sequence.sampling {
                Some(_) => sequence.tokens.len() == sequence.end,
                None => sequence.left() == 0,
            };
            if complete {
                events.push((id, Event::Done(sequence.summary())));
                let mut sequence = self.running.remove(at);
                self.pages.release(&mut sequence.table);
            }
        }
        events
    }

    /// Gives each running sequence the pages of its known tokens. Without pages the sequence that came last loses its.
    fn grow(&mut self) {
        let mut at = 0;
        while at < self.running.len() {
            let needed = self.limits.pages_of(self.running[at].tokens.len());
            if self.pages.grow(&mut self.running[at].table, needed) {
                at += 1;
            } else if let Some(mut last) = self.running.pop() {
                self.pages.release(&mut last.table);
                (last.written, last.preempted) = (0, last.preempted + 1);
                self.preemptions += 1;
                self.waiting.push_front(last);
            }
        }
    }

    /// Admits requests in their order, while there are pages for their tokens and for one more page of each that runs.
    fn admit(&mut self) {
        while self.running.len() < self.limits.batch {
            let Some(first) = self.waiting.front() else { return };
            let needed = self.limits.pages_of(first.tokens.len());
            let reserve = if self.running.is_empty() { 0 } else { self.running.len().div_ceil(8) };
            if self.pages.free() < needed + reserve {
                return;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            if !self.pages.grow(&mut sequence.table, needed) {
                self.waiting.push_front(sequence);
                return;
            }
            self.running.push(sequence);
        }
    }

    /// Sequences that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How often a sequence lost its pages.
    #[must_use]
    pub const fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// The pool.
    #[must_use]
    pub const fn pages(&self) -> &PagePool {
        &self.pages
    }
}

impl Sequence {
    /// Adds the next rows of a sequence to a step.
    fn add(&self, rows: usize, limits: &ServerLimits, step: &mut ModelStep, owners: &mut Owners) {
        let page = limits.page;
        let picks = self.picks(rows);
        for position in self.written..self.written + rows {
            let slot = self.table[position / page] as usize * page + position % page;
            if position + picks >= self.written + rows {
                let target = self.tokens.get(position + 1).filter(|_| self.sampling.is_none());
                let Sampling { temperature, seed } = self.sampling.unwrap_or_default();
                let target = target.map_or(-1, |&token| token as i32);
                step.picks.push(Pick { row: step.rows() as i32, temperature, seed, target });
            }
            step.tokens.push(self.tokens[position] as i32);
            step.positions.push(position as i32);
            step.slots.push(slot as i32);
        }
        step.keys.push((self.written + rows) as i32);
        step.tables.push(self.table.clone());
        owners.0.push((self.id, rows, picks));
    }
}
