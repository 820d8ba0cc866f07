//! Uploads operands to device memory, binds them by role, and downloads results, for the commands that launch; and
//! records bound plans into a graph, for those that measure. The commands have no `unsafe` code but here.

pub mod floor;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, DevicePtrMut as _};
use qkvault_exec::{Args, Bound, LoadedPlan, Workspace, cudarc};
use qkvault_graph::{Attention, DType, Role, buffer_len};
use qkvault_reference::{Buffer, Inputs};

/// Bytes of the heap in use, by Rust and by libraries: those that glibc's allocator has given out. Memory that it keeps
/// for later does not count, so the size of the process would tell less.
#[must_use]
pub fn heap_bytes() -> u64 {
    // SAFETY: the function only reads the allocator's counters, under its locks.
    let counted = unsafe { libc::mallinfo2() };
    (counted.uordblks + counted.hblkhd) as u64
}

/// The status and the explanation of a failed table row.
pub type RowFailure = (&'static str, String);

/// A failure that is not a refusal.
pub fn failed(error: impl std::fmt::Display) -> RowFailure {
    ("failed", error.to_string())
}

/// Device memory for every operand of a plan.
pub struct OperandMemory(BTreeMap<Role, (DType, CudaSlice<u8>)>);

impl OperandMemory {
    /// Uploads the inputs, and fills the outputs with poison. Leaves out internal buffers and operands that the plan
    /// provides.
    pub fn upload(
        stream: &Arc<CudaStream>,
        attention: &Attention,
        plan: &LoadedPlan,
        inputs: &Inputs,
    ) -> Result<OperandMemory, RowFailure> {
        let mut memory = BTreeMap::new();
        for binding in
            plan.facts().bindings.iter().filter(|b| !b.scalar && !b.role.is_internal() && !plan.provides(b.role))
        {
            let role = binding.role;
            let slice = if binding.output {
                let len = buffer_len(attention, role).ok_or_else(|| failed(format!("{role} has no size")))?;
                stream.clone_htod(Buffer::poisoned(binding.dtype, len).bytes())
            } else {
                let bytes = inputs.buffer(role).map_err(failed)?.bytes();
                // Exactly the bytes that the plan requires, so that compute-sanitizer detects every read beyond them.
                let room = usize::try_from(binding.bytes).map_err(failed)?;
                if bytes.len() < room {
                    let mut padded = bytes.to_vec();
                    padded.resize(room, 0xff);
                    stream.clone_htod(&padded)
                } else {
                    stream.clone_htod(bytes)
                }
            };
            memory.insert(role, (binding.dtype, slice.map_err(failed)?));
        }
        Ok(OperandMemory(memory))
    }

    /// Binds all operands to a plan. The lifetime keeps the bound plan from outliving this memory.
    pub fn bind<'a>(
        &'a mut self,
        plan: &LoadedPlan,
        inputs: &Inputs,
        stream: &Arc<CudaStream>,
    ) -> Result<Bound<'a>, RowFailure> {
        self.bind_over(plan, inputs, stream, None)
    }

    /// Binds all operands to a plan, as [`OperandMemory::bind`] does, and shares a workspace with other plans.
    pub fn bind_over<'a>(
        &'a mut self,
        plan: &LoadedPlan,
        inputs: &Inputs,
        stream: &Arc<CudaStream>,
        workspace: Option<&Arc<Workspace>>,
    ) -> Result<Bound<'a>, RowFailure> {
        let mut bindings = Args::new();
        if let Some(workspace) = workspace {
            bindings = bindings.workspace(workspace);
        }
        for binding in plan.facts().bindings.iter().filter(|b| b.scalar) {
            let buffer = inputs.buffer(binding.role).map_err(failed)?;
            bindings = match buffer.dtype() {
                DType::I32 => bindings.scalar(binding.role, buffer.int(0) as i32),
                _ => bindings.scalar(binding.role, buffer.get(0) as f32),
            };
        }
        for (&role, (_, slice)) in &mut self.0 {
            let bytes = slice.len() as u64;
            let address = slice.device_ptr_mut(stream).0;
            // A borrowed slice has an event recorded after each launch, which timings would contain, and lengths and
            // offsets have not gone through a batch.
            // SAFETY: the bound plan borrows this memory, nothing else uses it meanwhile, and all work on it is ordered
            // by one stream. Inputs, and so lengths and offsets, are those of the oracle, which bounds them.
            bindings = unsafe { bindings.address(role, address, bytes) };
        }
        plan.bind(bindings, stream).map_err(failed)
    }

    /// The current contents of an operand, or `None` if the plan does not have it.
    pub fn download(&self, stream: &Arc<CudaStream>, role: Role) -> Result<Option<Buffer>, RowFailure> {
        let Some((dtype, slice)) = self.0.get(&role) else { return Ok(None) };
        let bytes = stream.clone_dtoh(slice).map_err(failed)?;
        Buffer::new(*dtype, bytes).map(Some).map_err(failed)
    }
}

/// Launches of bound plans that are recorded as one CUDA graph, so that measured times have no time of the host in
/// them. Bound plans are borrowed until all replays are finished.
pub struct Recorded<'r, 'a> {
    graph: CudaGraph,
    stream: Arc<CudaStream>,
    _bound: PhantomData<&'r mut [Bound<'a>]>,
}

impl<'r, 'a> Recorded<'r, 'a> {
    /// Records `launches` launches of the plans, which take turns. Nothing runs. Other bound plans must not share their
    /// workspaces, and batches must not be updated while this value lives.
    pub fn new(bound: &'r mut [Bound<'a>], stream: &Arc<CudaStream>, launches: usize) -> anyhow::Result<Self> {
        // Everything that wrote operands is finished. On this stream launches find a handle.
        if let Some(first) = bound.first_mut() {
            first.launch(stream)?;
        }
        stream.context().synchronize()?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let queued = bound.iter().cycle().take(launches).try_for_each(|bound| {
            // SAFETY: this value borrows the bound plans, which have their operands, and waits for the replays in
            // `drop`. One stream orders the replays, and everything earlier is finished.
            unsafe { bound.launch_captured(stream) }
        });
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        queued?;
        let graph = graph?.ok_or_else(|| anyhow::anyhow!("the driver gave an empty graph"))?;
        Ok(Recorded { graph, stream: Arc::clone(stream), _bound: PhantomData })
    }

    /// Queues a replay on the stream of the recording.
    pub fn launch(&mut self) -> anyhow::Result<()> {
        Ok(self.graph.launch()?)
    }
}

impl Drop for Recorded<'_, '_> {
    fn drop(&mut self) {
        self.stream.context().record_err(self.stream.synchronize());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_grows_by_what_is_allocated() {
        let before = heap_bytes();
        let held = std::hint::black_box(vec![1_u8; 10 << 20]);
        assert!(heap_bytes() >= before + (8 << 20), "{before} to {}", heap_bytes());
        drop(held);
    }
}
