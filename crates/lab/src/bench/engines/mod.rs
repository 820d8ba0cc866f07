//! `bench engines`: the times of cuDNN and of qkvault's kernels for the same attentions, in turns, in captured graphs.
//! It writes the record of the results, and the table by which an engine is chosen.

mod cases;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaSlice, CudaStream};
use qkvault_base::random::Rng;
use qkvault_cli::clock::median;
use qkvault_cli::memory::Recorded;
use qkvault_cli::target::LibraryArgs;
use qkvault_cli::{Globals, Outcome, open_vault, out};
use qkvault_compile::{OnMiss, Planner};
use qkvault_exec::serving::{Rows, Step};
use qkvault_exec::{Args as Operands, BatchMetadata, Bound, Device, LoadedPlan, Session, cudarc};
use qkvault_graph::{CompileOptions, EnginePolicy, Role, Valid};

use cases::{Full, Named};
use rows::{Measured, Peers};

/// Options of `bench engines`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    library: LibraryArgs,
    /// The record of the results
    #[arg(long, value_name = "FILE", default_value = "engines.json")]
    out: PathBuf,
    /// Also write the table by which an engine is chosen (crates/kernels/data/engines.json)
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Times of other libraries: a JSON list of {"case", "direction", "peer", "ms"}
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// Only cases whose name has these words
    #[arg(long, value_name = "WORDS", default_value = "")]
    only: String,
    /// Rounds; each times both engines once, and every other round begins with the other one
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Only print the cases
    #[arg(long)]
    show: bool,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &Args) -> anyhow::Result<Outcome> {
    let list: Vec<Named> = cases::list()?.into_iter().filter(|case| case.name.contains(&args.only)).collect();
    if args.show {
        list.iter().for_each(|case| out::line(&format!("{}: {}", case.name, case.attention)));
        return Ok(Outcome::Good);
    }
    let peers = args.peers.as_deref().map(Peers::read).transpose()?.unwrap_or_default();
    let search = args.library.search()?;
    let device = Device::open(args.device)?;
    let session = Session::open(&device, &search)?;
    let planner = Planner::opening(open_vault(globals)?, search);
    let stream = device.context().new_stream()?;
    let machine = format!(
        "{}, driver of CUDA {}, cuDNN {}, captured graphs that take turns, medians of {} rounds",
        device.name(),
        session.gpu().driver,
        session.library()?.version(),
        args.rounds
    );
    let mut measured = Vec::new();
    for case in list {
        match measure(args, &session, &planner, &stream, &case) {
            Ok(row) => {
                out::note(&row.to_string());
                measured.push(row);
            }
            // Other cases are worth their time.
            Err(error) => out::problem(&format!("{}: {error:#}", case.name)),
        }
        write(&args.out, &rows::record(&machine, &measured, &peers))?;
        if let Some(file) = &args.table {
            write(file, &serde_json::to_value(rows::table(&machine, &measured))?)?;
        }
    }
    Ok(if measured.is_empty() { Outcome::Bad } else { Outcome::Good })
}

fn write(file: &std::path::Path, value: &serde_json::Value) -> anyhow::Result<()> {
    std::fs::write(file, format!("{value:#}\n")).with_context(|| format!("{} cannot be written", file.display()))
}

/// The times of both engines, as far as they take the case.
fn measure(
    args: &Args,
    session: &Session,
    planner: &Planner,
    stream: &Arc<CudaStream>,
    case: &Named,
) -> anyhow::Result<Measured> {
    let mut refused = None;
    let mut plan = |engine| {
        let options = CompileOptions { engine, ..CompileOptions::default() };
        let prepared = session.prepare(planner, &case.attention, &options, OnMiss::Compile);
        prepared.map(|prepared| prepared.plan).map_err(|error| refused = Some(error.to_string())).ok()
    };
    let plans = [plan(EnginePolicy::Kernels), plan(EnginePolicy::Cudnn)];
    let mut all = Vec::new();
    for plan in plans.iter().flatten() {
        all.push(Operand::upload(stream, plan)?);
    }
    let mut of = all.iter_mut();
    let mut bound: [Option<Vec<Bound<'_>>>; 2] = [None, None];
    let mut batches = Vec::new();
    for (at, plan) in plans.iter().enumerate() {
        if let (Some(plan), Some(operand)) = (plan, of.next().filter(|_| plan.is_some())) {
            let (one, batch) = operand.bind(plan, &case.attention, stream)?;
            bound[at] = Some(vec![one]);
            batches.extend(batch);
        }
    }
    // Enough launches for about two milliseconds.
    let mut graphs = Vec::new();
    for (at, bound) in bound.iter_mut().enumerate() {
        let Some(bound) = bound else { continue };
        let once = time(stream, || Ok(bound[0].launch(stream)?))?;
        let calls = ((2000.0 / once) as usize).clamp(5, 200);
        graphs.push((at, calls, Recorded::new(bound, stream, calls)?));
    }
    let mut times: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for round in 0..=args.rounds {
        if round % 2 == 1 {
            graphs.reverse();
        }
        for (at, calls, graph) in &mut graphs {
            let us = time(stream, || graph.launch())? / *calls as f64;
            // The first round only warms up.
            if round > 0 {
                times[*at].push(us);
            }
        }
    }
    let [kernels_us, cudnn_us] = times.map(|mut list| median(&mut list));
    Ok(Measured { name: case.name.clone(), attention: case.attention.clone(), kernels_us, cudnn_us, refused })
}

/// Microseconds of the GPU for what `launch` queues.
pub(super) fn time(stream: &Arc<CudaStream>, mut launch: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let event = || stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    let (start, end) = (event()?, event()?);
    start.record(stream)?;
    launch()?;
    end.record(stream)?;
    end.synchronize()?;
    Ok(f64::from(start.elapsed_ms(&end)?) * 1e3)
}

/// Device memory of one plan: operands by role, all with numbers, because zeros would need less power.
struct Operand {
    tensors: Vec<(Role, bool, CudaSlice<u8>)>,
}

impl Operand {
    fn upload(stream: &Arc<CudaStream>, plan: &LoadedPlan) -> anyhow::Result<Operand> {
        let mut rng = Rng::new(5);
        // 16-bit numbers of either sign between 2^-3 and 2 in bf16; also as f32 they are finite.
        let block: Vec<u8> = (0..1 << 19).flat_map(|_| ((rng.bits() as u16 & 0x81ff) | 0x3e00).to_ne_bytes()).collect();
        let block = stream.clone_htod(&block)?;
        let mut tensors = Vec::new();
        let given = plan.facts().bindings.iter().filter(|b| !b.scalar && !b.role.is_internal());
        for binding in given.filter(|b| !b.role.is_followed() && !plan.provides(b.role)) {
            let bytes = usize::try_from(binding.bytes)?;
            let mut slice = stream.alloc_zeros::<u8>(bytes)?;
            for from in (0..bytes).step_by(block.len()) {
                let to = bytes.min(from + block.len());
                stream.memcpy_dtod(&block.slice(..to - from), &mut slice.slice_mut(from..to))?;
            }
            tensors.push((binding.role, binding.output, slice));
        }
        Ok(Operand { tensors })
    }

    /// Binds the operands, with lengths and pages of a full batch.
    fn bind<'a>(
        &'a mut self,
        plan: &LoadedPlan,
        attention: &Valid,
        stream: &Arc<CudaStream>,
    ) -> anyhow::Result<(Bound<'a>, Option<BatchMetadata>)> {
        let mut args = Operands::new().scale(0.088);
        for (role, output, slice) in &mut self.tensors {
            args = if *output { args.tensor_mut(*role, slice) } else { args.tensor(*role, &*slice) };
        }
        for scalar in plan.facts().bindings.iter().filter(|b| b.scalar && b.role != Role::Scale) {
            args = args.scalar(scalar.role, 50.0_f32);
        }
        let batch = cases::full(attention).map(|Full { queries, keys, tables }| {
            let mut batch = BatchMetadata::new(plan, attention, stream)?;
            batch.update(&Step::paged(Rows::Lengths(&queries), Rows::Lengths(&keys), &tables), stream)?;
            anyhow::Ok(batch)
        });
        let batch = batch.transpose()?;
        if let Some(batch) = &batch {
            args = args.batch(batch);
        }
        Ok((plan.bind(args, stream)?, batch))
    }
}
