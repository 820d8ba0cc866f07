//! `run` on a GPU: runs plans from the vault on random data with poisoned outputs, compares rows with float64, and
//! times with events.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::CudaStream;
use qkvault_cache::{Mode, Source, Vault, VaultOptions};
use qkvault_compile::{Compiler, OnMiss, Plan, PlanError, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::cudarc;
use qkvault_exec::{Bound, Device, LoadError, LoadedPlan, PrepareError, Session, SessionOptions};
use qkvault_graph::{Role, Valid};
use qkvault_reference::{Inputs, OutputTolerance, View, compare_rows, forward_rows};
use qkvault_sys::{Library, Search};
use serde_json::{Value, json};

use super::pack::Pack;
use super::{RunArgs, RunRow};
use crate::clock::{self, Round, median};
use crate::jobs::AttentionJob;
use crate::memory::{OperandMemory, RowFailure, failed};
use crate::{Globals, flush_remote, open_vault, out, rejections};

pub(super) fn run(
    globals: &Globals,
    args: &RunArgs,
    policy: &CompileOptions,
    jobs: &[AttentionJob],
    device: &Device,
) -> anyhow::Result<(Value, Vec<RunRow>)> {
    let search: Search = args.library.search()?;
    let library = Library::open(&search)?;
    let compiler = if args.build || args.unforeseen { Some(Compiler::open(&search)?) } else { None };
    let pack = args.pack.as_deref().map(Pack::read).transpose()?;
    let options = SessionOptions { workspace_limit: args.workspace_limit, ..SessionOptions::default() };
    let session = Session::with_options(device, &library, options)?;
    let vault = if args.unforeseen { Vault::in_memory(VaultOptions::new()) } else { open_vault(globals)? };
    let planner = Planner::new(vault, compiler);
    let stream = device.context().new_stream()?;
    let target = session.target()?;
    let loads = load_times(args, policy, jobs, &session, &planner);
    let rows: Vec<RunRow> = jobs
        .iter()
        .map(|job| match &job.attention {
            Err(refusal) => RunRow::failed(job, "refused", refusal.to_string()),
            Ok(attention) => {
                let run = Run { args, policy, session: &session, planner: &planner, stream: &stream, job, attention };
                let row = run.row().unwrap_or_else(|(status, why)| RunRow::failed(job, status, why));
                out::note(&format!("{} {}", row.status, row.what));
                row
            }
        })
        .collect();
    let stats = planner.vault().stats();
    if let Some(text) = rejections::note(planner.vault()) {
        out::note(&format!("note: {text}"));
    }
    if let Some(text) = flush_remote(planner.vault()) {
        out::note(&format!("note: {text}"));
    }
    let of = |which: fn(&Load) -> f64| median(&mut loads.iter().map(which).collect::<Vec<_>>());
    let machine = json!({
        "where": "gpu", "device": device.name(), "uuid": device.uuid(), "target": target.label(),
        "cudnn": library.version().to_string(), "cudnn_set": library.set().to_string(), "cudnn_path": library.path(),
        "driver": target.device.driver_ver, "vault": planner.vault().folder(),
        "builds": stats.builds, "disk_hits": stats.hits(), "rejected": stats.rejected(),
        "unforeseen": args.unforeseen, "median_first_launch_ms": median(&mut numbers(&rows, "first_launch_ms")),
        "pack": pack.map(|pack| pack.record(&rows, stats.builds)),
        "median_vault_ms": of(|l| l.vault_ms), "median_load_ms": of(|l| l.load_ms),
        "median_vault_and_load_ms": of(|l| l.vault_ms + l.load_ms),
    });
    Ok((machine, rows))
}

struct Run<'a> {
    args: &'a RunArgs,
    policy: &'a CompileOptions,
    session: &'a Session,
    planner: &'a Planner,
    stream: &'a Arc<CudaStream>,
    job: &'a AttentionJob,
    attention: &'a Valid,
}

impl Run<'_> {
    fn row(&self) -> Result<RunRow, RowFailure> {
        let started = Instant::now();
        let prepared = self
            .session
            .prepare(self.planner, self.attention, self.policy, self.args.build_policy())
            .map_err(|e| match e {
                PrepareError::Refused(refusal) => ("refused", refusal.to_string()),
                PrepareError::Load(error @ LoadError::WorkspaceTooLarge { .. }) => ("refused", error.to_string()),
                PrepareError::Plan(error @ PlanError::Missing { .. }) => ("failed", error.to_string()),
                other => failed(other),
            })?;
        let prepare_ms = started.elapsed().as_secs_f64() * 1e3;
        let plan = &prepared.plan;
        let mut inputs = Inputs::random(self.attention, self.args.seed).map_err(failed)?;
        inputs.set_f32(Role::Scale, self.job.uses[0].scale);
        let mut memory = OperandMemory::upload(self.stream, self.attention, plan, &inputs)?;
        // Wait, so that the upload does not count: a service has its data on the device already.
        self.stream.synchronize().map_err(failed)?;
        let launching = Instant::now();
        let (first_launch_ms, times) = {
            let mut bound = memory.bind(plan, &inputs, self.stream)?;
            bound.launch(self.stream).map_err(failed)?;
            self.stream.synchronize().map_err(failed)?;
            let first_launch_ms = prepare_ms + launching.elapsed().as_secs_f64() * 1e3;
            (first_launch_ms, self.time(&mut bound)?)
        };
        self.stream.synchronize().map_err(failed)?;
        let checks = self.check(&inputs, &memory)?;
        let mut row = self.result(plan, prepare_ms, &checks, &times);
        row.facts["first_launch_ms"] = first_launch_ms.into();
        row.facts["built"] = (prepared.answer.source == Source::Built).into();
        Ok(row)
    }

    /// Compares rows of every output with float64, and checks that every element was written.
    fn check(&self, inputs: &Inputs, memory: &OperandMemory) -> Result<Vec<Check>, RowFailure> {
        let rows = forward_rows(self.attention, inputs, &self.sample()).map_err(failed)?;
        let mut checks = Vec::new();
        for role in [Role::O, Role::Stats, Role::Max, Role::SumExp] {
            let Some(actual) = memory.download(self.stream, role)? else { continue };
            let dtype = actual.dtype();
            let view = View::new(self.attention, role, inputs).map_err(failed)?;
            let found = compare_rows(&rows, role, &view, &actual, OutputTolerance::for_role(role, dtype));
            // This counts all elements of an output, also those of rows that are not compared.
            let unwritten = (0..actual.len()).filter(|&i| actual.is_poison(i)).count();
            let whole =
                self.attention.mask.lengths == qkvault_graph::Lengths::Full && self.attention.o.order().is_some();
            // A log-sum-exp in the thousands has an f32 step of more than the absolute bound.
            let fine = found.good || (role == Role::Stats && found.relative < 1e-6 && found.non_finite == 0);
            let good = fine && (unwritten == 0 || !whole);
            checks.push(Check {
                role,
                relative: found.relative,
                max_abs: found.max_abs,
                unwritten,
                good,
                text: format!("{found:?}"),
            });
        }
        Ok(checks)
    }

    /// Rows to check: corners, neighbours of tile edges, and random rows that depend on the seed.
    fn sample(&self) -> Vec<(usize, usize, usize)> {
        let (b, h) = (self.attention.batch() as usize, self.attention.q.heads() as usize);
        let s = self.attention.seq().0 as usize;
        let mut rows = vec![(0, 0, 0), (b - 1, h - 1, s - 1), (0, h - 1, 127.min(s - 1)), (b - 1, 0, 128.min(s - 1))];
        let mut rng = qkvault_base::random::Rng::new(self.args.seed);
        while rows.len() < self.args.rows.max(4) {
            let z = rng.bits() as usize;
            rows.push((z % b, (z >> 12) % h, (z >> 24) % s));
        }
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Median device time of one launch, and host time of one launch call, in milliseconds and microseconds.
    fn time(&self, bound: &mut Bound<'_>) -> Result<Round, RowFailure> {
        if self.args.rounds == 0 {
            return Ok(Round { device_ms: f64::NAN, host_us: f64::NAN });
        }
        // With so many launches, one round takes about two milliseconds.
        let expected = (self.attention.flops() / 5e14).max(self.bytes() / 4e12).max(5e-6);
        let launches = ((2e-3 / expected) as usize).clamp(3, 100);
        let mut device = Vec::new();
        let mut host = Vec::new();
        for round in 0..=self.args.rounds {
            let Round { device_ms, host_us } = clock::round(self.stream, bound, launches)?;
            // The first round warms up.
            if round > 0 {
                host.push(host_us);
                device.push(device_ms);
            }
        }
        Ok(Round { device_ms: median(&mut device).unwrap_or(f64::NAN), host_us: median(&mut host).unwrap_or(f64::NAN) })
    }

    /// Fewest bytes that the attention moves: each operand once; for a single query with a window, only the window of K
    /// and V.
    fn bytes(&self) -> f64 {
        let a = self.attention.get();
        let share = match a.mask.band.and_then(|b| b.left) {
            Some(left) if a.seq().0 == 1 => (left as f64 / a.seq().1 as f64).min(1.0),
            _ => 1.0,
        };
        let bytes = |t: &qkvault_graph::Tensor| t.bytes().unwrap_or_default() as f64;
        bytes(&a.q) + bytes(&a.o) + share * (bytes(&a.k) + bytes(&a.v))
    }

    fn result(&self, plan: &LoadedPlan, prepare_ms: f64, checks: &[Check], times: &Round) -> RunRow {
        let good = checks.iter().all(|c| c.good);
        let of = |role| checks.iter().find(|c| c.role == role);
        let tflops = self.attention.flops() / times.device_ms / 1e9;
        let terabytes = self.bytes() / times.device_ms / 1e9;
        let decode = self.attention.seq().0 == 1;
        let rate = if decode { format!("{terabytes:.2} TB/s") } else { format!("{tflops:.0} TFLOP/s") };
        let checked: Vec<Value> = checks
            .iter()
            .map(|c| json!({ "role": c.role.to_string(), "relative": c.relative, "max_abs": c.max_abs, "unwritten": c.unwritten, "good": c.good }))
            .collect();
        let why = checks.iter().filter(|c| !c.good).map(|c| format!("{}: {}", c.role, c.text)).collect::<Vec<_>>();
        RunRow {
            what: self.job.uses[0].label(),
            status: if good { "right" } else { "wrong" },
            cells: [
                of(Role::O).map_or_else(|| "-".into(), |c| format!("{:.1e}", c.relative)),
                of(Role::Stats).map_or_else(|| "-".into(), |c| format!("{:.1e}", c.max_abs)),
                format!("{:.4}", times.device_ms),
                rate,
            ],
            facts: json!({
                "key": plan.facts().key.to_string(), "engine": plan.facts().engine, "workspace": plan.workspace(),
                "workspace_of_cudnn": plan.facts().workspace, "resident": plan.constant_bytes(),
                "prepare_ms": prepare_ms, "checks": checked, "device_ms": times.device_ms, "host_us": times.host_us,
                "tflops": tflops, "terabytes_per_s": terabytes, "scale": self.job.uses[0].scale,
                "uses": self.job.uses.iter().map(crate::jobs::Use::label).collect::<Vec<_>>(),
            }),
            why: (!why.is_empty()).then(|| why.join("\n")),
        }
    }
}

/// The fact `name` of every row that has it as a number.
fn numbers(rows: &[RunRow], name: &str) -> Vec<f64> {
    rows.iter().filter_map(|row| row.facts[name].as_f64()).collect()
}

/// Loads per plan for a median.
const LOADS: usize = 21;

/// Times of one load, in milliseconds.
struct Load {
    /// Looking it up, reading its file and checking it.
    vault_ms: f64,
    /// Loading it into cuDNN.
    load_ms: f64,
}

/// Loads every plan from its file to the device many times, and returns the median of each plan.
///
/// Each load opens the vault again, so that its memory is empty. The first loads of a process also load cuDNN's own
/// libraries.
fn load_times(
    args: &RunArgs,
    policy: &CompileOptions,
    jobs: &[AttentionJob],
    session: &Session,
    planner: &Planner,
) -> Vec<Load> {
    let Some(folder) = planner.vault().folder() else { return Vec::new() };
    let mut loads = Vec::new();
    for attention in jobs.iter().filter_map(|job| job.attention.as_ref().ok()) {
        let (mut vault_ms, mut load_ms) = (Vec::new(), Vec::new());
        for _ in 0..if args.rounds == 0 { 1 } else { LOADS } {
            let Ok(vault) = Vault::open(VaultOptions::in_folder(folder).mode(Mode::ReadOnly)) else { return loads };
            let planner = Planner::new(vault, None);
            let started = Instant::now();
            let Some(plan) = find(&planner, attention, session, policy) else { break };
            vault_ms.push(started.elapsed().as_secs_f64() * 1e3);
            let started = Instant::now();
            let Ok(_loaded) = session.load(&plan) else { break };
            load_ms.push(started.elapsed().as_secs_f64() * 1e3);
        }
        if let (Some(vault_ms), Some(load_ms)) = (median(&mut vault_ms), median(&mut load_ms)) {
            loads.push(Load { vault_ms, load_ms });
        }
    }
    loads
}

/// Finds the stored plan for this machine in the same way as `Session::prepare`.
fn find(planner: &Planner, attention: &Valid, session: &Session, policy: &CompileOptions) -> Option<Arc<Plan>> {
    let here = session.target().ok()?;
    let accept = |_: &Plan| Ok(());
    qkvault_exec::prepare(planner, here, attention, policy, OnMiss::Load, accept).ok()?.answer.outcome.ok()
}

struct Check {
    role: Role,
    relative: f64,
    max_abs: f64,
    unwritten: usize,
    good: bool,
    text: String,
}
