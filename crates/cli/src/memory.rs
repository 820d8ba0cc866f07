//! Uploads operands to device memory, binds them by role, and downloads results, for the commands that launch.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut as _};
use qkvault_exec::{Args, Bound, LoadedPlan, Workspace, cudarc};
use qkvault_graph::{Attention, DType, Role, buffer_len};
use qkvault_reference::{Buffer, Inputs};

/// The status and the explanation of a failed table row.
pub type Failure = (&'static str, String);

/// A failure that is not a refusal.
pub fn failed(error: impl std::fmt::Display) -> Failure {
    ("failed", error.to_string())
}

/// Device memory for every operand of a plan.
pub struct Memory(BTreeMap<Role, (DType, CudaSlice<u8>)>);

impl Memory {
    /// Uploads the inputs, and fills the outputs with poison. Leaves out internal buffers and operands that the plan
    /// provides.
    pub fn upload(
        stream: &Arc<CudaStream>,
        attention: &Attention,
        plan: &LoadedPlan,
        inputs: &Inputs,
    ) -> Result<Memory, Failure> {
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
        Ok(Memory(memory))
    }

    /// Binds all operands to a plan. The lifetime keeps the bound plan from outliving this memory.
    pub fn bind<'a>(
        &'a mut self,
        plan: &LoadedPlan,
        inputs: &Inputs,
        stream: &Arc<CudaStream>,
    ) -> Result<Bound<'a>, Failure> {
        self.bind_over(plan, inputs, stream, None)
    }

    /// Binds all operands to a plan, as [`Memory::bind`] does, and shares a workspace with other plans.
    pub fn bind_over<'a>(
        &'a mut self,
        plan: &LoadedPlan,
        inputs: &Inputs,
        stream: &Arc<CudaStream>,
        workspace: Option<&Arc<Workspace>>,
    ) -> Result<Bound<'a>, Failure> {
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
            // SAFETY: the bound plan borrows this memory, nothing else uses it meanwhile, and all work on it is ordered
            // by one stream.
            bindings = unsafe { bindings.address(role, address, bytes) };
        }
        plan.bind(bindings, stream).map_err(failed)
    }

    /// The current contents of an operand, or `None` if the plan does not have it.
    pub fn download(&self, stream: &Arc<CudaStream>, role: Role) -> Result<Option<Buffer>, Failure> {
        let Some((dtype, slice)) = self.0.get(&role) else { return Ok(None) };
        let bytes = stream.clone_dtoh(slice).map_err(failed)?;
        Buffer::new(*dtype, bytes).map(Some).map_err(failed)
    }
}
