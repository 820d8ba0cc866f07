//! Captured decodes: the whole step as one CUDA graph, for some numbers of rows and each plan that they run on.
//!
//! A graph's addresses never change. Before a replay the step's inputs, lengths and tables are written where they are;
//! rows that a step does not have are those of token 0 without a place in the pages.

use std::collections::BTreeMap;

use qkvault::exec::LaunchGraph;

use super::Queue;
use super::attention::GpuAttention;
use crate::ServerError;
use crate::config::ServerLimits;
use crate::metrics::Metrics;
use crate::step::ModelStep;

/// Rows of captured decodes beside those of the plans.
const ROWS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 96, 128, 192];

/// Captured decodes by rows and the plan that they run on.
pub(super) struct Graphs {
    graphs: BTreeMap<(usize, usize), LaunchGraph<'static>>,
    rows: Vec<usize>,
    keys: i64,
    replays: u64,
}

impl Graphs {
    /// Runs each decode once, so that kernels and handles are loaded, and captures it if `capture`.
    pub(super) fn new(queue: &mut Queue, limits: &ServerLimits, capture: bool) -> Result<Graphs, ServerError> {
        let mut rows: Vec<usize> = ROWS.into_iter().filter(|&rows| rows < limits.batch).chain([limits.batch]).collect();
        // Where a plan ends a graph ends, so that all steps of a graph have one plan.
        rows.extend(queue.attention.batches());
        rows.sort_unstable();
        rows.dedup();
        let keys = limits.context as i64;
        let mut graphs = BTreeMap::new();
        queue.products.timing = true;
        for &rows in &rows {
            let Some(plan) = queue.attention.plan_of(rows, keys) else { continue };
            queue.attention.choose(plan);
            queue.buffers.give(&ModelStep::default(), (rows, rows), &queue.stream)?;
            let mut step = queue.whole((rows, rows))?;
            step.run()?;
            queue.stream.synchronize()?;
            if capture {
                graphs.insert((rows, plan), step.capture()?);
            }
        }
        queue.products.timing = false;
        Ok(Graphs { graphs, rows, keys, replays: 0 })
    }

    /// The captured step for a decode, which replays it: its rows and its graph.
    pub(super) fn for_step(
        &mut self,
        step: &ModelStep,
        attention: &GpuAttention,
    ) -> Option<(usize, &mut LaunchGraph<'static>)> {
        if !step.chunks.is_empty() || step.picks.len() != step.decodes {
            return None;
        }
        let rows = *self.rows.iter().find(|&&rows| rows >= step.decodes)?;
        let plan = attention.plan_of(rows, self.keys)?;
        let graph = self.graphs.get_mut(&(rows, plan))?;
        self.replays += 1;
        Some((rows, graph))
    }

    pub(super) fn report(&self, metrics: &Metrics) {
        Metrics::set(&metrics.graphs, self.graphs.len() as u64);
        Metrics::set(&metrics.graph_replays_total, self.replays);
    }
}
