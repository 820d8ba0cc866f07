//! Computes the attention on the GPU, with training pairs of plans.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use half::{bf16, f16};
use qkvault::Runtime;
use qkvault::cache::{Vault, VaultOptions};
use qkvault::compile::{Compiler, OnMiss, Planner};
use qkvault::exec::{Args, Device, SavedForBackward, Scales, TrainingPair, cudarc};
use qkvault::graph::DType;
use qkvault::sys::Search;
use qkvault::{CompileOptions, Profile};

use crate::Failure;
use crate::clock::Clock;
use crate::eight::RECIPE;
use crate::model::{Config, Conversions, Machine};

/// One layer: its pair of plans, the buffers that a forward saves, and its operands.
struct Layer {
    pair: TrainingPair,
    saved: SavedForBackward,
    q: CudaSlice<u8>,
    k: CudaSlice<u8>,
    v: CudaSlice<u8>,
    o: CudaSlice<u8>,
    d_o: CudaSlice<u8>,
    d_q: CudaSlice<u8>,
    d_k: CudaSlice<u8>,
    d_v: CudaSlice<u8>,
}

pub(crate) struct Gpu {
    stream: Arc<CudaStream>,
    layers: Vec<Layer>,
    dtype: DType,
    scale: f32,
    cap: f32,
    plain: bool,
    clock: Clock,
}

pub(crate) fn vault(folder: Option<&str>) -> VaultOptions {
    folder.map_or_else(VaultOptions::new, VaultOptions::in_folder)
}

/// Compiles both passes of both layers. The target GPU need not be present.
pub(crate) fn plan(config: &Config, folder: Option<&str>, profile: &str) -> Result<(), Failure> {
    let compiler = Compiler::open(&Search::default())?;
    let profile = match std::fs::read_to_string(profile) {
        Ok(text) => Profile::from_json(&text)?,
        Err(_) => Profile::named(profile)?,
    };
    let target = compiler.target(&profile);
    let planner = Planner::new(Vault::open(vault(folder))?, Some(compiler));
    for training in config.attentions()? {
        for pass in [training.forward(), training.backward()] {
            let answer = planner.plan(pass, &target, &CompileOptions::default(), OnMiss::Compile)?;
            let facts = &answer.outcome.map_err(|refusal| refusal.to_string())?.facts;
            println!("{pass}: {}, {} bytes of scratch memory", facts.key, facts.scratch().bytes);
        }
    }
    if config.fp8.is_some() {
        let Conversions { inputs, d_o, outputs } = config.conversions()?;
        for conversion in [inputs, d_o, outputs] {
            let answer = planner.conversion(&conversion, target.sm(), OnMiss::Compile)?;
            let facts = &answer.outcome.map_err(|refusal| refusal.to_string())?.facts;
            println!("{conversion}: {}", facts.key);
        }
        for update in config.attentions()?.iter().filter_map(|training| Scales::new(training, RECIPE).update()) {
            let answer = planner.scale_update(&update, target.sm(), OnMiss::Compile)?;
            let facts = &answer.outcome.map_err(|refusal| refusal.to_string())?.facts;
            println!("{update}: {}", facts.key);
        }
    }
    Ok(())
}

impl Gpu {
    pub(crate) fn new(config: &Config, device: &Device, folder: Option<&str>, build: bool) -> Result<Gpu, Failure> {
        let runtime = Runtime::options().on(device).vault(vault(folder)).build_missing(build).open()?;
        let stream = device.context().new_stream()?;
        let bytes = config.batch * config.seq * config.width * config.dtype.size();
        let mut layers = Vec::new();
        for training in &config.attentions()? {
            let pair = runtime.training(training)?;
            let zeros = || stream.alloc_zeros::<u8>(bytes);
            let saved = pair.saved(&stream)?;
            let [q, k, v, o] = [zeros()?, zeros()?, zeros()?, zeros()?];
            let [d_o, d_q, d_k, d_v] = [zeros()?, zeros()?, zeros()?, zeros()?];
            layers.push(Layer { pair, saved, q, k, v, o, d_o, d_q, d_k, d_v });
        }
        let scale = config.attentions()?[0].forward().default_scale();
        let Config { dtype, cap, plain, .. } = *config;
        Ok(Gpu { stream, layers, dtype, scale, cap, plain, clock: Clock::default() })
    }
}

/// Converts to the attention's element type.
pub(crate) fn narrow(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
    }
}

pub(crate) fn widen(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let pairs = bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match dtype {
        DType::F16 => pairs.map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        _ => pairs.map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
    }
}

impl Machine for Gpu {
    fn attend(&mut self, layer: usize, qkv: [&[f32]; 3]) -> Result<Vec<f32>, Failure> {
        let Gpu { stream, layers, dtype, scale, cap, plain, clock } = self;
        clock.begin(layer);
        let Layer { pair, saved, q, k, v, o, .. } = &mut layers[layer];
        for (slice, values) in [&mut *q, &mut *k, &mut *v].into_iter().zip(qkv) {
            stream.memcpy_htod(&narrow(*dtype, values), slice)?;
        }
        let mut args = Args::new().q(&*q).k(&*k).v(&*v).o(&mut *o).scale(*scale);
        // The plan of the second layer has its slopes already.
        if layer == 0 && !*plain {
            args = args.scalar("cap", *cap);
        }
        clock.time(false, stream, || Ok(pair.forward(saved, args, stream)?))?;
        Ok(widen(*dtype, &stream.clone_dtoh(o)?))
    }

    fn attend_back(&mut self, layer: usize, d_o: &[f32]) -> Result<[Vec<f32>; 3], Failure> {
        let Gpu { stream, layers, dtype, clock, .. } = self;
        let Layer { pair, saved, q, k, v, o, d_o: upstream, d_q, d_k, d_v } = &mut layers[layer];
        stream.memcpy_htod(&narrow(*dtype, d_o), upstream)?;
        let inputs = Args::new().q(&*q).k(&*k).v(&*v).saved_o(&*o).d_o(&*upstream);
        let args = inputs.d_q(&mut *d_q).d_k(&mut *d_k).d_v(&mut *d_v);
        clock.time(true, stream, || Ok(pair.backward(saved, args, stream)?))?;
        let read = |slice: &CudaSlice<u8>| Ok::<_, Failure>(widen(*dtype, &stream.clone_dtoh(slice)?));
        Ok([read(d_q)?, read(d_k)?, read(d_v)?])
    }

    fn record(&self) -> serde_json::Value {
        record(self.layers.iter().map(|layer| &layer.pair), &self.clock)
    }
}

/// The plans of pairs, and the times of steps.
pub(crate) fn record<'a>(pairs: impl Iterator<Item = &'a TrainingPair>, clock: &Clock) -> serde_json::Value {
    let plans = pairs.flat_map(|pair| [pair.forward_plan(), pair.backward_plan()]);
    let list: Vec<serde_json::Value> = plans
        .map(|plan| {
            let facts = plan.facts();
            serde_json::json!({
                "what": facts.what, "key": facts.key.to_string(), "workspace": plan.workspace(),
                "resident": plan.constant_bytes(), "cudnn": facts.cudnn().map(|own| own.cudnn.to_string()), "engine": facts.engine,
            })
        })
        .collect();
    serde_json::json!({ "plans": list, "step": clock.medians() })
}
