//! One fresh process of `bench cold`: the first output, then further shapes, each from the vault or by cuDNN's own
//! deserialize and finalize alone. With `--engine` the plans are those of one engine; a process whose plans are of
//! kernels or of FlashAttention-4 loads no cuDNN, so all of its further shapes come from the vault.

use std::time::Instant;

use qkvault::Runtime;
use qkvault_cli::{Globals, Outcome, out, policy};
use qkvault_compile::{Engines, OnMiss, Plan};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_exec::Device;
use qkvault_graph::{EnginePolicy, LibrarySet, Valid};
use qkvault_sys::{AttributeName, CudnnHandle, Descriptor, Kind, Library};
use serde_json::json;
use std::sync::Arc;

use super::ground::GroundOptions;
use super::shapes::{Data, FIRST, shuffled};

/// Options of one process.
#[derive(Debug, clap::Args)]
pub(super) struct FirstArgs {
    #[command(flatten)]
    options: GroundOptions,
    /// Further shapes
    #[arg(long, default_value_t = 0)]
    further: usize,
    /// Seed of their order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Whose plans: auto, cudnn, kernels or fa4
    #[arg(long, value_name = "ENGINE", value_parser = policy, default_value = "auto")]
    engine: EnginePolicy,
}

/// Prints a line at the first output and a line at the end.
pub(super) fn run(globals: &Globals, args: &FirstArgs) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let mut steps = Vec::new();
    let mut step = |name: &str| steps.push(json!([name, started.elapsed().as_secs_f64() * 1e3]));
    // A program has a context before it asks for an attention, so what counts begins here.
    let device = Device::open(args.options.device)?;
    device.context().synchronize()?;
    step("context");
    let ground = args.options.open_with(globals, args.engine)?;
    step("runtime");
    let plan = ground.runtime.plan(&FIRST.attention()?)?;
    step("plan");
    let mut data = Data::upload(&ground.stream, &[FIRST])?;
    step("data");
    data.launch(&plan, &ground.stream, &FIRST)?;
    step("output");
    let after_context = steps[4][1].as_f64().zip(steps[0][1].as_f64()).map(|(output, context)| output - context);
    out::record(&json!({
        "steps_ms": steps, "after_context_ms": after_context, "engine": args.engine.name(), "builds": ground.builds(),
    }));
    anyhow::ensure!(data.written(&ground.stream, &FIRST)?, "an output was not written");
    let shapes = &shuffled(args.seed)[..args.further];
    let mut data = Data::upload(&ground.stream, shapes)?;
    // cuDNN's own time is the floor of its plans alone.
    let own = !Engines::built_in().need_target(args.engine);
    let cudnn = if own || args.further == 0 { None } else { Some(ground.runtime.session()?.library()?) };
    let cudnn =
        cudnn.map(|library| Ok::<_, qkvault_sys::Error>((library, CudnnHandle::create(library)?))).transpose()?;
    let (mut plan_ms, mut output_ms, mut floor_ms, mut kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (i, shape) in shapes.iter().enumerate() {
        let attention = shape.attention()?;
        ground.stream.synchronize()?;
        let floor = cudnn.as_ref().filter(|_| i % 2 == 1);
        let Some((library, handle)) = floor else {
            let started = Instant::now();
            let plan = ground.runtime.plan(&attention)?;
            plan_ms.push(started.elapsed().as_secs_f64() * 1e3);
            data.launch(&plan, &ground.stream, shape)?;
            output_ms.push(started.elapsed().as_secs_f64() * 1e3);
            continue;
        };
        let plan = stored(&ground.runtime, &attention)?;
        let started = Instant::now();
        kept.push(load(library, handle, &plan)?);
        floor_ms.push(started.elapsed().as_secs_f64() * 1e3);
    }
    out::record(
        &json!({ "plan_ms": plan_ms, "output_ms": output_ms, "floor_ms": floor_ms, "builds": ground.builds() }),
    );
    Ok(Outcome::Good)
}

/// The plan of the vault, compiled by the slim or the full set of this cuDNN.
fn stored(runtime: &Runtime, attention: &Valid) -> anyhow::Result<Arc<Plan>> {
    let here = runtime.target()?;
    let find = |libraries: LibrarySet| {
        let target = Target { libraries, ..here.clone() };
        runtime.planner().plan(attention, &target, &CompileOptions::cudnn(), OnMiss::Load)
    };
    let found = find(LibrarySet::Slim).or_else(|_| find(LibrarySet::Full))?;
    found.outcome.map_err(|refusal| anyhow::anyhow!("{attention}: {refusal}"))
}

/// cuDNN's own part of loading a plan: deserialize and finalize.
fn load(library: &Arc<Library>, handle: &CudnnHandle, plan: &Plan) -> Result<Descriptor, qkvault_sys::Error> {
    let mut descriptor = Descriptor::create(library, Kind::EXECUTION_PLAN)?;
    descriptor.set(AttributeName::EXECUTION_PLAN_JSON_REPRESENTATION, &plan.blob)?;
    descriptor.set_handle(AttributeName::EXECUTION_PLAN_HANDLE, handle)?;
    descriptor.finalize()?;
    Ok(descriptor)
}

/// The words that start such a process.
pub(super) fn words(options: &GroundOptions, build: bool, further: usize, seed: u64) -> Vec<String> {
    let mut words = vec!["bench".to_owned(), "first".to_owned()];
    let mut add = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    add("device", options.device.to_string());
    add("further", further.to_string());
    add("seed", seed.to_string());
    if let Some(version) = &options.library.cudnn {
        add("cudnn", version.clone());
    }
    if let Some(path) = &options.library.cudnn_path {
        add("cudnn-path", path.display().to_string());
    }
    if options.library.full {
        words.push("--full".to_owned());
    }
    if build {
        words.push("--build".to_owned());
    }
    words
}
