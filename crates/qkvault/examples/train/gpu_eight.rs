//! Computes the attention in 8 bits on the GPU: conversions quantize what comes in and turn back what goes out, and
//! training pairs of plans run between them.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use qkvault::Runtime;
use qkvault::exec::{Args, Device, Fp8Training, LoadedPlan, SavedForBackward, TrainingPair, cudarc};
use qkvault::graph::{DType, Fp8, Role, Scaled};

use crate::Failure;
use crate::eight::RECIPE;
use crate::gpu::{narrow, record, vault, widen};
use crate::model::{Config, Machine};

/// One layer: its pair of plans, what a forward saves, its scales, and its operands in 8 bits. Outputs of current
/// scaling are in 16 bits.
struct Layer {
    pair: TrainingPair,
    saved: SavedForBackward,
    scales: Fp8Training,
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
    /// A tensor in 16 bits on its way to or from the host.
    wide: CudaSlice<u8>,
    dtype: DType,
    /// Whether outputs are in 8 bits.
    narrow: bool,
    scale: f32,
}

const QKV: [Scaled; 3] = [Scaled::Q, Scaled::K, Scaled::V];

impl Gpu {
    pub(crate) fn new(config: &Config, device: &Device, folder: Option<&str>, build: bool) -> Result<Gpu, Failure> {
        let runtime = Runtime::options().on(device).vault(vault(folder)).build_missing(build).open()?;
        let stream = device.context().new_stream()?;
        let elements = config.batch * config.seq * config.width;
        let zeros = |bytes: usize| stream.alloc_zeros::<u8>(bytes);
        let narrow = config.fp8 == Some(Fp8::Delayed);
        let output = || zeros(elements * if narrow { 1 } else { config.dtype.size() });
        let mut layers = Vec::new();
        for training in &config.attentions()? {
            let pair = runtime.training(training)?;
            layers.push(Layer {
                saved: pair.saved(&stream)?,
                scales: runtime.fp8_training(training, RECIPE, &stream)?,
                qkv: [zeros(elements)?, zeros(elements)?, zeros(elements)?],
                o: output()?,
                d_o: zeros(elements)?,
                gradients: [output()?, output()?, output()?],
                pair,
            });
        }
        let conversions = config.conversions()?;
        Ok(Gpu {
            inputs: runtime.conversion(&conversions.inputs)?,
            upstream: runtime.conversion(&conversions.d_o)?,
            outputs: runtime.conversion(&conversions.outputs)?,
            wide: zeros(elements * config.dtype.size())?,
            dtype: config.dtype,
            narrow,
            scale: config.attentions()?[0].forward().default_scale(),
            layers,
            stream,
        })
    }
}

/// The numbers of an output on the host: converted by its descale, or as they are.
fn read(
    (plan, wide, dtype): (Option<&LoadedPlan>, &mut CudaSlice<u8>, DType),
    (output, which, scales): (&CudaSlice<u8>, Scaled, &Fp8Training),
    stream: &Arc<CudaStream>,
) -> Result<Vec<f32>, Failure> {
    let Some(plan) = plan else { return Ok(widen(dtype, &stream.clone_dtoh(output)?)) };
    let args = Args::new().tensor(Role::Narrow, output).tensor_mut(Role::Wide, &mut *wide);
    plan.launch(stream, scales.dequantize(which, args))?;
    Ok(widen(dtype, &stream.clone_dtoh(wide)?))
}

impl Machine for Gpu {
    fn attend(&mut self, layer: usize, qkv: [&[f32]; 3]) -> Result<Vec<f32>, Failure> {
        let Gpu { stream, layers, inputs, outputs, wide, dtype, narrow: eight, scale, .. } = self;
        let Layer { pair, saved, scales, qkv: stored, o, .. } = &mut layers[layer];
        for ((which, stored), values) in QKV.into_iter().zip(&mut *stored).zip(qkv) {
            stream.memcpy_htod(&narrow(*dtype, values), wide)?;
            let args = Args::new().tensor(Role::Wide, &*wide).tensor_mut(Role::Narrow, stored);
            inputs.launch(stream, scales.quantize(which, args))?;
        }
        let [q, k, v] = &*stored;
        let args = Args::new().q(q).k(k).v(v).o(&mut *o).scale(*scale);
        pair.forward(saved, scales.forward(args), stream)?;
        read((eight.then_some(&**outputs), wide, *dtype), (o, Scaled::O, scales), stream)
    }

    fn attend_back(&mut self, layer: usize, d_o: &[f32]) -> Result<[Vec<f32>; 3], Failure> {
        let Gpu { stream, layers, upstream, outputs, wide, dtype, narrow: eight, .. } = self;
        let Layer { pair, saved, scales, qkv: [q, k, v], o, d_o: stored, gradients } = &mut layers[layer];
        stream.memcpy_htod(&narrow(*dtype, d_o), wide)?;
        let args = Args::new().tensor(Role::Wide, &*wide).tensor_mut(Role::Narrow, &mut *stored);
        upstream.launch(stream, scales.quantize(Scaled::DO, args))?;
        let [d_q, d_k, d_v] = &mut *gradients;
        let args = Args::new().q(&*q).k(&*k).v(&*v).saved_o(&*o).d_o(&*stored);
        pair.backward(saved, scales.backward(args.d_q(d_q).d_k(d_k).d_v(d_v)), stream)?;
        let plan = eight.then_some(&**outputs);
        let mut of = |at: usize, which| read((plan, wide, *dtype), (&gradients[at], which, scales), stream);
        let real = [of(0, Scaled::DQ)?, of(1, Scaled::DK)?, of(2, Scaled::DV)?];
        scales.update(stream)?;
        Ok(real)
    }

    fn record(&self) -> serde_json::Value {
        record(self.layers.iter().map(|layer| &layer.pair))
    }
}
