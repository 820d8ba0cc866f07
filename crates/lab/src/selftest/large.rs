//! `selftest --large`: runs training steps that are too large for the oracle on the GPU, and writes each operand to a
//! file, with a description. bench/selftest_large.py computes the same steps with PyTorch in float32 and compares them.

use std::path::Path;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_compile::{Compiler, OnMiss, Plan, Planner};
use qkvault_exec::{Device, Session, Training, cudarc};
use qkvault_graph::{CompileOptions, Pass, Role, Target, Valid, operands};
use qkvault_reference::{Buffer, Inputs, Tolerance, backward, cancellation, forward};
use qkvault_sys::Library;
use rayon::prelude::*;
use serde_json::{Value, json};

use super::{Args, cases};
use qkvault_cli::data::{self, Recipe, Split};
use qkvault_cli::memory::{Failure, Memory, failed};
use qkvault_cli::{Globals, Outcome, open_vault, out};

/// The machine that computes.
enum Machine {
    /// A GPU.
    Gpu(Box<Gpu>),
    /// The oracle, for small sizes.
    Oracle,
}

/// A GPU, and the planner that compiles for it.
struct Gpu {
    session: Session,
    stream: Arc<CudaStream>,
    planner: Planner,
    target: Target,
}

/// One case: its description, and its two plans if there is a GPU.
struct Case {
    number: u64,
    what: String,
    ready: Result<(Training, Vec<Arc<Plan>>), Failure>,
}

/// Runs the cases and writes each to a folder below `folder`.
pub(super) fn run(globals: &Globals, args: &Args, folder: &Path) -> anyhow::Result<Outcome> {
    let (machine, facts) = open(globals, args)?;
    let numbers: Vec<u64> = args.numbers(None).collect();
    let list: Vec<Case> = numbers.par_iter().map(|&number| describe(args, number, &machine)).collect();
    let (mut rows, mut bad) = (Vec::new(), 0);
    for Case { number, what, ready } in list {
        let done = ready.and_then(|(training, plans)| {
            let step = Step { args, number, training: &training, plans: &plans, machine: &machine };
            step.run(&folder.join(number.to_string()))
        });
        let (status, why) = match done {
            Ok(faults) if faults.is_empty() => ("written", String::new()),
            Ok(faults) => ("wrong", faults.join("; ")),
            Err(failure) => failure,
        };
        bad += usize::from(status != "written" && status != "refused");
        rows.push(json!({ "case": number, "attention": what, "status": status, "why": why }));
    }
    out::json(&json!({ "machine": facts, "seed": args.seed, "cases": rows }));
    Ok(if bad == 0 { Outcome::Good } else { Outcome::Bad })
}

fn open(globals: &Globals, args: &Args) -> anyhow::Result<(Machine, Value)> {
    if args.cpu {
        return Ok((Machine::Oracle, json!({ "where": "the oracle, on the CPU" })));
    }
    let device = Device::open(args.device)?;
    let search = args.library.search()?;
    let library = Library::open(&search)?;
    let session = Session::open(&device, &library)?;
    let target = session.target()?.clone();
    let facts = json!({
        "device": device.name(), "cudnn": library.version().to_string(), "cudnn_set": library.set().to_string(),
        "target": target.label(), "driver": target.device.driver_ver,
    });
    let planner = Planner::new(open_vault(globals)?, Some(Compiler::open(&search)?));
    let stream = device.context().new_stream()?;
    Ok((Machine::Gpu(Box::new(Gpu { session, stream, planner, target })), facts))
}

fn describe(args: &Args, number: u64, machine: &Machine) -> Case {
    let (attention, options) = cases::training(args.seed, number, !args.cpu);
    let ready = || {
        let training = Training::for_attention(&attention, options).map_err(|r| ("refused", r.to_string()))?;
        let Machine::Gpu(gpu) = machine else { return Ok((training, Vec::new())) };
        let plan = |pass: &Valid| {
            let answer = gpu.planner.plan(pass, &gpu.target, &CompileOptions::cudnn(), OnMiss::Compile);
            answer.map_err(failed)?.outcome.map_err(|refusal| ("refused", refusal.to_string()))
        };
        let plans = vec![plan(training.forward())?, plan(training.backward())?];
        Ok((training, plans))
    };
    Case { number, what: attention.to_string(), ready: ready() }
}

/// One training step to run and write.
struct Step<'a> {
    args: &'a Args,
    number: u64,
    training: &'a Training,
    plans: &'a [Arc<Plan>],
    machine: &'a Machine,
}

impl Step<'_> {
    /// Runs and writes the step. Returns the faults: two runs of a deterministic backward that differ.
    fn run(&self, folder: &Path) -> Result<Vec<String>, Failure> {
        let (forward, backward) = (self.training.forward(), self.training.backward());
        let scalars = [("cap", 30.0), ("slope", 0.05), ("curve", 0.05)].map(|(name, value)| (name.to_owned(), value));
        let recipe = Recipe {
            scalars: scalars.into(),
            draw_others: true,
            documents: Split::Equal(3),
            varlen: Vec::new(),
            seed: self.args.seed ^ (self.number << 20),
        };
        let mut inputs = data::inputs(backward, &recipe).map_err(failed)?;
        for (role, buffer) in self.pass(forward, 0, &inputs)? {
            inputs.insert(role, buffer);
        }
        let gradients = self.pass(backward, 1, &inputs)?;
        let mut faults = Vec::new();
        if let Pass::Backward(options) = backward.pass
            && options.deterministic
        {
            let again = self.pass(backward, 1, &inputs)?;
            // cuDNN sums the sink's gradient in any order, even in a deterministic backward.
            let differ = |role: Role, a: &Buffer, b: &Buffer| role != Role::DSink && a.bytes() != b.bytes();
            let wrong = gradients.iter().zip(&again).filter(|((role, a), (_, b))| differ(*role, a, b));
            faults.extend(wrong.map(|((role, _), _)| format!("{role}: two deterministic runs differ")));
        }
        for (role, buffer) in gradients {
            inputs.insert(role, buffer);
        }
        self.write(folder, &inputs, &recipe).map_err(failed)?;
        Ok(faults)
    }

    /// Runs one pass and returns its outputs.
    fn pass(&self, attention: &Valid, which: usize, inputs: &Inputs) -> Result<Vec<(Role, Buffer)>, Failure> {
        let Machine::Gpu(gpu) = self.machine else {
            let outputs = if which == 0 { forward(attention, inputs) } else { backward(attention, inputs) };
            let outputs = outputs.map_err(failed)?;
            let roles = outputs.iter().map(qkvault_reference::Output::role).collect::<Vec<_>>();
            return Ok(roles.into_iter().filter_map(|role| Some((role, outputs.buffer(role)?))).collect());
        };
        let Gpu { session, stream, planner: _, target: _ } = &**gpu;
        let plan = session.load(&self.plans[which]).map_err(failed)?;
        let mut memory = Memory::upload(stream, attention, &plan, inputs)?;
        memory.bind(&plan, inputs, stream)?.launch(stream).map_err(failed)?;
        stream.synchronize().map_err(failed)?;
        let outputs = operands(attention).into_iter().filter(|o| o.output).map(|o| o.role);
        outputs.filter_map(|role| memory.download(stream, role).map(|b| Some((role, b?))).transpose()).collect()
    }

    /// Writes each operand to a raw file, and the description to case.json.
    fn write(&self, folder: &Path, all: &Inputs, recipe: &Recipe) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let (forward, backward) = (self.training.forward(), self.training.backward());
        let mut files = Vec::new();
        let mut written: Vec<Role> = Vec::new();
        for (pass, list) in [("forward", operands(forward)), ("backward", operands(backward))] {
            for operand in list {
                let (role, t) = (operand.role, operand.tensor);
                let Some(buffer) = all.get(role).filter(|_| !written.contains(&role)) else { continue };
                written.push(role);
                let file = format!("{}.bin", role.uid());
                std::fs::write(folder.join(&file), buffer.bytes())?;
                let allowed = Tolerance::of_launch(role, t.dtype);
                let finite = |x: f64| x.is_finite().then_some(x);
                files.push(json!({
                    "role": role.to_string(), "file": file, "dtype": t.dtype.to_string(), "dims": t.dims, "strides": t.strides,
                    "output": operand.output.then_some(pass), "relative": finite(allowed.relative),
                    "absolute": finite(allowed.absolute), "floor": cancellation(forward, role, t.dtype, false),
                }));
            }
        }
        let expression = |e: Option<&qkvault_graph::ScoreExpr>| {
            e.map(|e| json!({
            "text": e.to_string(), "nodes": e.nodes(), "scalars": e.scalars().len(),
            "tensors": e.tensors().iter().map(|t| json!({ "dims": t.dims, "grad": t.grad })).collect::<Vec<_>>(),
        }))
        };
        let case = json!({
            "case": self.number, "seed": self.args.seed, "attention": forward.to_string(), "backward": backward.to_string(),
            "band": forward.mask.band, "lengths": forward.mask.lengths, "score_mod": expression(forward.score_mod.as_ref()),
            "mask_mod": expression(forward.mask.mask_mod.as_ref()), "dropout": forward.dropout, "documents": recipe.documents.count(),
            "plans": self.plans.iter().map(|p| p.facts.key.to_string()).collect::<Vec<_>>(), "operands": files,
        });
        std::fs::write(folder.join("case.json"), format!("{case:#}\n"))
    }
}
