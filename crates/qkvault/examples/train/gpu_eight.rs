//! Computes the attention in 8 bits on the GPU: conversions quantize what comes in and turn back what goes out, and
//! training pairs of plans run between them. A mixed backward reads and writes 16 bits.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use qkvault::Runtime;
use qkvault::exec::{Args, Device, Fp8Training, LoadedPlan, SavedForBackward, TrainingPair, cudarc};
use qkvault::graph::{DType, Fp8, Role, Scaled};

use crate::Failure;
use crate::clock::Clock;
use crate::eight::RECIPE;
use crate::gpu::{narrow, record, vault, widen};
use crate::model::{Config, Machine};

/// One layer: its pair of plans, what a forward saves, its scales, and its operands in 8 bits and in 16. With current
/// scaling O and gradients have 16 bits.
struct Layer {
    pair: TrainingPair,
    saved: SavedForBackward,
    scales: Fp8Training,
    qkv: [CudaSlice<u8>; 3],
    o: CudaSlice<u8>,
    d_o: CudaSlice<u8>,
    gradients: [CudaSlice<u8>; 3],
    wide: Wide,
}

/// Operands of a layer in 16 bits.
struct Wide {
    qkv: [CudaSlice<u8>; 3],
    o: CudaSlice<u8>,
    d_o: CudaSlice<u8>,
    gradients: [CudaSlice<u8>; 3],
}

pub(crate) struct Gpu {
    stream: Arc<CudaStream>,
    layers: Vec<Layer>,
    /// Conversions of Q, K and V, of dO, and of outputs in 8 bits.
    inputs: Arc<LoadedPlan>,
    upstream: Arc<LoadedPlan>,
    outputs: Arc<LoadedPlan>,
    dtype: DType,
    /// Whether outputs are in 8 bits, and whether the backward is in 16.
    narrow: bool,
    mixed: bool,
    scale: f32,
    clock: Clock,
}

const QKV: [Scaled; 3] = [Scaled::Q, Scaled::K, Scaled::V];
const GRADIENTS: [Scaled; 3] = [Scaled::DQ, Scaled::DK, Scaled::DV];

impl Gpu {
    pub(crate) fn new(config: &Config, device: &Device, folder: Option<&str>, build: bool) -> Result<Gpu, Failure> {
        let runtime = Runtime::options().on(device).vault(vault(folder)).build_missing(build).open()?;
        let stream = device.context().new_stream()?;
        let elements = config.batch * config.seq * config.width;
        let zeros = |bytes: usize| stream.alloc_zeros::<u8>(bytes);
        let three = |bytes: usize| Ok::<_, Failure>([zeros(bytes)?, zeros(bytes)?, zeros(bytes)?]);
        let narrow = config.fp8 == Some(Fp8::Delayed);
        let sixteen = elements * config.dtype.size();
        let output = if narrow { elements } else { sixteen };
        let mut layers = Vec::new();
        for training in &config.attentions()? {
            let pair = runtime.training(training)?;
            layers.push(Layer {
                saved: pair.saved(&stream)?,
                scales: runtime.fp8_training(training, RECIPE, &stream)?,
                qkv: three(elements)?,
                o: zeros(output)?,
                d_o: zeros(elements)?,
                gradients: three(output)?,
                wide: Wide {
                    qkv: three(sixteen)?,
                    o: zeros(sixteen)?,
                    d_o: zeros(sixteen)?,
                    gradients: three(sixteen)?,
                },
                pair,
            });
        }
        let conversions = config.conversions()?;
        Ok(Gpu {
            inputs: runtime.conversion(&conversions.inputs)?,
            upstream: runtime.conversion(&conversions.d_o)?,
            outputs: runtime.conversion(&conversions.outputs)?,
            dtype: config.dtype,
            narrow,
            mixed: config.mixed,
            scale: config.attentions()?[0].forward().default_scale(),
            clock: Clock::default(),
            layers,
            stream,
        })
    }
}

/// Converts a tensor in 8 bits to 16 by its scale.
fn turn_back(
    plan: &LoadedPlan,
    scales: &Fp8Training,
    which: Scaled,
    narrow: &CudaSlice<u8>,
    wide: &mut CudaSlice<u8>,
    stream: &Arc<CudaStream>,
) -> Result<(), Failure> {
    let args = Args::new().tensor(Role::Narrow, narrow).tensor_mut(Role::Wide, wide);
    Ok(plan.launch(stream, scales.dequantize(which, args))?)
}

impl Machine for Gpu {
    fn attend(&mut self, layer: usize, qkv: [&[f32]; 3]) -> Result<Vec<f32>, Failure> {
        let Gpu { stream, layers, inputs, outputs, dtype, narrow: eight, scale, clock, .. } = self;
        let Layer { pair, saved, scales, qkv: stored, o, wide, .. } = &mut layers[layer];
        for (wide, values) in wide.qkv.iter_mut().zip(qkv) {
            stream.memcpy_htod(&narrow(*dtype, values), wide)?;
        }
        clock.begin(layer);
        clock.time(false, stream, || {
            for ((which, wide), stored) in QKV.into_iter().zip(&wide.qkv).zip(&mut *stored) {
                let args = Args::new().tensor(Role::Wide, wide).tensor_mut(Role::Narrow, stored);
                inputs.launch(stream, scales.quantize(which, args))?;
            }
            let [q, k, v] = &*stored;
            let args = Args::new().q(q).k(k).v(v).o(&mut *o).scale(*scale);
            pair.forward(saved, scales.forward(args), stream)?;
            if *eight { turn_back(outputs, scales, Scaled::O, o, &mut wide.o, stream) } else { Ok(()) }
        })?;
        Ok(widen(*dtype, &stream.clone_dtoh(if *eight { &wide.o } else { &*o })?))
    }

    fn attend_back(&mut self, layer: usize, d_o: &[f32]) -> Result<[Vec<f32>; 3], Failure> {
        let Gpu { stream, layers, upstream, outputs, dtype, narrow: eight, mixed, clock, .. } = self;
        let Layer { pair, saved, scales, qkv: [q, k, v], o, d_o: stored, gradients, wide } = &mut layers[layer];
        stream.memcpy_htod(&narrow(*dtype, d_o), &mut wide.d_o)?;
        clock.time(true, stream, || {
            if *mixed {
                // What the forward computed with: other scores would not fit its Stats.
                for ((which, stored), wide) in QKV.into_iter().zip([&*q, &*k, &*v]).zip(&mut wide.qkv) {
                    turn_back(outputs, scales, which, stored, wide, stream)?;
                }
                let ([q, k, v], [d_q, d_k, d_v]) = (&wide.qkv, &mut wide.gradients);
                let args = Args::new().q(q).k(k).v(v).saved_o(if *eight { &wide.o } else { &*o }).d_o(&wide.d_o);
                pair.backward(saved, args.d_q(d_q).d_k(d_k).d_v(d_v), stream)?;
                return Ok(scales.update(stream)?);
            }
            let args = Args::new().tensor(Role::Wide, &wide.d_o).tensor_mut(Role::Narrow, &mut *stored);
            upstream.launch(stream, scales.quantize(Scaled::DO, args))?;
            let [d_q, d_k, d_v] = &mut *gradients;
            let args = Args::new().q(&*q).k(&*k).v(&*v).saved_o(&*o).d_o(&*stored);
            pair.backward(saved, scales.backward(args.d_q(d_q).d_k(d_k).d_v(d_v)), stream)?;
            for ((which, stored), wide) in GRADIENTS.into_iter().zip(&*gradients).zip(&mut wide.gradients) {
                if *eight {
                    turn_back(outputs, scales, which, stored, wide, stream)?;
                }
            }
            Ok(scales.update(stream)?)
        })?;
        let [d_q, d_k, d_v] = if *eight || *mixed { &wide.gradients } else { &*gradients };
        let read = |slice: &CudaSlice<u8>| Ok::<_, Failure>(widen(*dtype, &stream.clone_dtoh(slice)?));
        Ok([read(d_q)?, read(d_k)?, read(d_v)?])
    }

    fn record(&self) -> serde_json::Value {
        record(self.layers.iter().map(|layer| &layer.pair), &self.clock)
    }
}
