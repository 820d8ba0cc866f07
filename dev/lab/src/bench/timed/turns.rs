//! Loads entries on the GPU, uploads their data, checks each once, and times them in turns with one shared workspace.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_base::random::Rng;
use qkvault_compile::{OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{Bound, LoadedPlan, PrepareError, Session, Workspace, cudarc};
use qkvault_graph::{Lengths, Role, Storage, Valid};
use qkvault_reference::{Inputs, OutputTolerance, View, compare_rows, forward_rows};
use serde_json::{Value, json};

use super::entry::{TimedEntry, TimedPass};
use super::file::TimedCase;
use qkvault_cli::clock;
use qkvault_cli::data;
use qkvault_cli::memory::{OperandMemory, RowFailure, failed};

/// One pass of one entry, loaded on the GPU.
struct LoadedPass {
    entry: usize,
    backward: bool,
    plan: LoadedPlan,
    memory: OperandMemory,
    /// Scalars only; the other operands are in `memory`.
    scalars: Inputs,
}

/// The passes that take turns.
pub(in crate::bench) struct Turns {
    session: Session,
    planner: Planner,
    on_miss: OnMiss,
    stream: Arc<CudaStream>,
    workspace: Option<Arc<Workspace>>,
    entries: Vec<TimedEntry>,
    loaded: Vec<LoadedPass>,
}

impl Turns {
    pub(in crate::bench) fn new(
        session: &Session,
        planner: &Planner,
        on_miss: OnMiss,
        stream: Arc<CudaStream>,
    ) -> Turns {
        let (session, planner) = (session.clone(), planner.clone());
        Turns { session, planner, on_miss, stream, workspace: None, entries: Vec::new(), loaded: Vec::new() }
    }

    pub(in crate::bench) fn entries(&self) -> &[TimedEntry] {
        &self.entries
    }

    /// The stream of all launches.
    pub(in crate::bench) const fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The passes of one direction, bound to their operands, each with the number of its entry. No two share a
    /// workspace, so that all can be recorded.
    pub(in crate::bench) fn bound(&mut self, backward: bool) -> anyhow::Result<Vec<(usize, Vec<Bound<'_>>)>> {
        let stream = &self.stream;
        let mut all = Vec::new();
        for pass in self.loaded.iter_mut().filter(|pass| pass.backward == backward) {
            let LoadedPass { entry, backward: _, plan, memory, scalars } = pass;
            let bound =
                memory.bind(plan, scalars, stream).map_err(|(status, why)| anyhow::anyhow!("{status}: {why}"))?;
            all.push((*entry, vec![bound]));
        }
        Ok(all)
    }

    /// Loads a case in one form, launches both passes once, and checks their outputs.
    pub(in crate::bench) fn add(&mut self, case: &TimedCase, form: &str, options: &CompileOptions, rows: usize) {
        let entry = self.entries.len();
        let mut passes = [false, true].map(|_| TimedPass::new("failed", Some("the forward failed".to_owned())));
        let mut done = || -> Result<(), (usize, RowFailure)> {
            let at = |i: usize| move |failure: RowFailure| (i, failure);
            let (forward, backward) = (case.forward(), case.backward());
            let read = backward.unwrap_or(forward);
            let mut inputs = data::inputs(read, &case.recipe).map_err(|e| (0, failed(e)))?;
            data::set_scales(forward, &mut inputs);
            let plan = self.prepare(forward, options).map_err(at(0))?;
            let (memory, checks) = self.once(forward, &plan, &inputs, rows).map_err(at(0))?;
            for role in [Role::O, Role::Stats] {
                if let Some(buffer) = memory.download(&self.stream, role).map_err(at(0))? {
                    inputs.insert(role, buffer);
                }
            }
            passes[0] = judged(&plan, checks);
            self.loaded.push(LoadedPass { entry, backward: false, plan, memory, scalars: scalars(&inputs) });
            let Some(backward) = backward else {
                passes[1] = TimedPass::new("none", None);
                return Ok(());
            };
            data::set_scales(backward, &mut inputs);
            let plan = self.prepare(backward, options).map_err(at(1))?;
            let (memory, checks) = self.once(backward, &plan, &inputs, 0).map_err(at(1))?;
            passes[1] = judged(&plan, checks);
            self.loaded.push(LoadedPass { entry, backward: true, plan, memory, scalars: scalars(&inputs) });
            Ok(())
        };
        if let Err((pass, (status, why))) = done() {
            passes[pass] = TimedPass::new(status, Some(why));
        }
        self.entries.push(TimedEntry { case: case.clone(), form: form.to_owned(), passes });
    }

    fn prepare(&mut self, attention: &Valid, options: &CompileOptions) -> Result<LoadedPlan, RowFailure> {
        let prepared = self.session.prepare(&self.planner, attention, options, self.on_miss);
        let plan = prepared.map_err(|error| match error {
            PrepareError::Refused(refusal) => ("refused", refusal.to_string()),
            PrepareError::Load(error @ qkvault_exec::LoadError::WorkspaceTooLarge { .. }) => {
                ("refused", error.to_string())
            }
            other => failed(other),
        })?;
        let plan = plan.plan;
        if self.workspace.as_ref().map_or(0, |w| w.bytes()) < plan.workspace() {
            self.workspace = None;
            self.workspace = Some(Workspace::allocate(&self.stream, plan.workspace()).map_err(failed)?);
        }
        Ok(plan)
    }

    /// Launches once over poisoned outputs, and checks every output.
    fn once(
        &self,
        a: &Valid,
        plan: &LoadedPlan,
        inputs: &Inputs,
        rows: usize,
    ) -> Result<(OperandMemory, Vec<Value>), RowFailure> {
        let mut memory = OperandMemory::upload(&self.stream, a, plan, inputs)?;
        let workspace = self.workspace.as_ref();
        memory.bind_over(plan, inputs, &self.stream, workspace)?.launch(&self.stream).map_err(failed)?;
        self.stream.synchronize().map_err(failed)?;
        let mut checks = Vec::new();
        let expected = if rows > 0 {
            forward_rows(a, &data::exact(a, inputs), &sample(a, rows, inputs)).map_err(failed)?
        } else {
            Vec::new()
        };
        for binding in plan.facts().bindings.iter().filter(|b| b.output && !b.role.is_internal()) {
            let role = binding.role;
            let Some(actual) = memory.download(&self.stream, role)? else { continue };
            // Rows beyond lengths may hold anything; varlen documents have no such rows.
            let whole = a.mask.lengths == Lengths::Full || matches!(a.q.storage, Storage::Varlen { .. });
            let bad = (0..actual.len()).filter(|&i| whole && actual.is_poison(i)).count();
            let mut check = json!({ "role": role, "unwritten": bad, "good": bad == 0 });
            // The largest magnitude of all rows does not follow from some.
            if rows > 0 && !matches!(role, Role::Amax(_)) {
                let view = View::new(a, role, inputs).map_err(failed)?;
                let found =
                    compare_rows(&expected, role, &view, &actual, OutputTolerance::for_role(role, actual.dtype()));
                check["relative"] = found.relative.into();
                check["max_abs"] = found.max_abs.into();
                check["good"] = (bad == 0 && found.good).into();
            }
            checks.push(check);
        }
        Ok((memory, checks))
    }

    /// Mean milliseconds of `launches` launches, after `before` untimed ones.
    pub(in crate::bench) fn time(
        &mut self,
        name: &str,
        backward: bool,
        launches: usize,
        before: usize,
    ) -> Result<f64, RowFailure> {
        let entries = &self.entries;
        let pass = self.loaded.iter_mut().find(|s| s.backward == backward && entries[s.entry].name() == name);
        let pass = pass.ok_or_else(|| failed(format!("no entry '{name}' has that pass; see the first line")))?;
        let LoadedPass { entry: _, backward: _, plan, memory, scalars } = pass;
        let mut bound = memory.bind_over(plan, scalars, &self.stream, self.workspace.as_ref())?;
        Ok(clock::round_after(&self.stream, &mut bound, before, launches.max(1))?.device_ms)
    }

    /// Times every pass once per round. Every other round runs in reverse, so that no entry always follows the same
    /// other one.
    pub(in crate::bench) fn alternate(&mut self, rounds: usize) {
        let mut order: Vec<(usize, bool)> = self.loaded.iter().map(|s| (s.entry, s.backward)).collect();
        for _ in 0..rounds {
            for &(entry, backward) in &order {
                let name = self.entries[entry].name();
                let expected_ms = self.entries[entry].case.flops(backward) / 5e11;
                let launches = ((20.0 / expected_ms) as usize).clamp(3, 100);
                let timed = self.time(&name, backward, launches, 1);
                let pass = &mut self.entries[entry].passes[usize::from(backward)];
                match timed {
                    Ok(ms) => pass.times.push(ms),
                    Err((status, why)) => (pass.status, pass.why) = (status, Some(why)),
                }
            }
            order.reverse();
        }
    }
}

fn judged(plan: &LoadedPlan, checks: Vec<Value>) -> TimedPass {
    let bad: Vec<String> = checks.iter().filter(|c| c["good"] != true).map(ToString::to_string).collect();
    let (status, why) = if bad.is_empty() { ("right", None) } else { ("wrong", Some(bad.join("; "))) };
    let facts = Some(plan.facts().clone());
    TimedPass { facts, resident: plan.constant_bytes(), checks, ..TimedPass::new(status, why) }
}

fn scalars(inputs: &Inputs) -> Inputs {
    inputs.iter().filter(|(role, _)| role.is_scalar()).map(|(role, buffer)| (role, buffer.clone())).collect()
}

/// Random rows of O over batches, heads and queries, within the lengths of the sequences.
fn sample(a: &Valid, rows: usize, inputs: &Inputs) -> Vec<(usize, usize, usize)> {
    let sizes = [a.batch(), a.q.heads(), a.seq().0].map(|n| n as usize);
    let length = |b: usize| inputs.get(Role::SeqLenQ).map_or(sizes[2], |lengths| lengths.int(b).max(0) as usize);
    let sequences: Vec<usize> = (0..sizes[0]).filter(|&b| length(b) > 0).collect();
    let Some(&last) = sequences.last() else { return Vec::new() };
    let mut rng = Rng::new(7);
    let mut any = |n: usize| rng.within(0, n - 1);
    let mut list = vec![(last, sizes[1] - 1, length(last) - 1)];
    list.extend((1..rows).map(|_| {
        let b = sequences[any(sequences.len())];
        (b, any(sizes[1]), any(length(b)))
    }));
    list.sort_unstable();
    list.dedup();
    list
}
