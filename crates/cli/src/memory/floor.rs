//! The launches that `qkvault-lab bench launch` compares the safe ones with: cuDNN's own call in a loop, the raw layer,
//! and cudarc's own replay.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _};
use half::bf16;
use qkvault_exec::raw::{DeviceBuffer, RawArgs, RawBindings, RawBound};
use qkvault_exec::{Captured, LoadedPlan, Number, Workspace, cudarc};
use qkvault_graph::Role;

type Bf16Slice = CudaSlice<bf16>;

/// A plan bound by addresses, with the memory behind them.
pub struct Raw {
    plan: LoadedPlan,
    bound: RawBound,
    tensors: Vec<DeviceBuffer>,
    scalars: Vec<Number>,
    workspace: DeviceBuffer,
    stream: Arc<CudaStream>,
    /// Q, K, V, O and the workspace stay allocated as long as addresses of them are used.
    _memory: ([Bf16Slice; 3], Bf16Slice, Arc<Workspace>),
}

impl Raw {
    /// Binds a forward without further outputs.
    pub fn new(
        plan: &LoadedPlan,
        stream: &Arc<CudaStream>,
        inputs: [Bf16Slice; 3],
        output: Bf16Slice,
        scale: f32,
        workspace: &Arc<Workspace>,
    ) -> anyhow::Result<Raw> {
        let place = |role: Role| {
            let [q, k, v] = &inputs;
            let slice =
                [(Role::Q, q), (Role::K, k), (Role::V, v), (Role::O, &output)].into_iter().find(|p| p.0 == role);
            let slice = slice.ok_or_else(|| anyhow::anyhow!("{role} is not an operand of this measurement"))?.1;
            anyhow::Ok(DeviceBuffer { address: slice.device_ptr(stream).0, bytes: 2 * slice.len() as u64 })
        };
        let raw = plan.raw();
        let tensors = raw.tensors().iter().map(|t| place(t.role)).collect::<anyhow::Result<Vec<_>>>()?;
        let scalars: Vec<Number> = raw.scalars().iter().map(|_| Number::F32(scale)).collect();
        let mut bindings = RawBindings::new();
        for (tensor, buffer) in raw.tensors().iter().zip(&tensors) {
            bindings = bindings.tensor(tensor.role, buffer.address, buffer.bytes);
        }
        for scalar in raw.scalars() {
            bindings = bindings.scalar(scalar.role, scale);
        }
        let memory = DeviceBuffer { address: workspace.address(), bytes: workspace.bytes() };
        Ok(Raw {
            plan: plan.clone(),
            bound: raw.bind(&bindings, memory)?,
            tensors,
            scalars,
            workspace: memory,
            stream: Arc::clone(stream),
            _memory: (inputs, output, Arc::clone(workspace)),
        })
    }

    /// Microseconds of one of `n` calls of `cudnnBackendExecute`, and nothing else.
    pub fn floor(&self, n: usize) -> anyhow::Result<f64> {
        let started = Instant::now();
        // SAFETY: this value owns all memory, and its launches are on one stream.
        unsafe { self.bound.floor(self.stream.cu_stream().cast(), n) }?;
        Ok(started.elapsed().as_secs_f64() * 1e6 / n as f64)
    }

    /// One launch of the bound plan.
    pub fn launch(&self) -> anyhow::Result<()> {
        // SAFETY: as in `floor`.
        Ok(unsafe { self.bound.launch(self.stream.cu_stream().cast()) }?)
    }

    /// One launch with addresses.
    pub fn launch_with(&self) -> anyhow::Result<()> {
        let Raw { tensors, scalars, workspace, .. } = self;
        let args = RawArgs { tensors, scalars, workspace: *workspace, interleaved: &[] };
        // SAFETY: as in `floor`.
        Ok(unsafe { self.plan.raw().launch_with(&args, self.stream.cu_stream().cast()) }?)
    }
}

/// cudarc's own replay of a graph.
pub fn replay(captured: &Captured<'_>) -> anyhow::Result<()> {
    // SAFETY: the graph's operands are used by this thread alone, on the graph's own stream.
    Ok(unsafe { captured.graph() }.launch()?)
}
