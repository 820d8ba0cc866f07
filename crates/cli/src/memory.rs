//! Operands in device memory for the commands that launch: uploaded, bound by role, downloaded.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut as _};
use qkvault_exec::{Bindings, Bound, LoadedPlan, Workspace, cudarc};
use qkvault_graph::{Attention, DType, Role, buffer_len};
use qkvault_reference::{Buffer, Inputs};

/// A status and why, for the row of a table.
pub type Failure = (&'static str, String);

/// A failure that is nobody's refusal.
pub fn failed(error: impl std::fmt::Display) -> Failure {
    ("failed", error.to_string())
}

/// Device memory for every operand of a plan.
pub struct Memory(BTreeMap<Role, (DType, CudaSlice<u8>)>);

impl Memory {
    /// Inputs as they are, outputs poisoned. Buffers that the launcher provides are not among them, nor what the plan has itself.
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
                // Exactly what the plan demands, so that compute-sanitizer sees every byte that is read beyond.
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

    /// Binds everything to a plan. The bound plan must not outlive this memory, which its lifetime says.
    pub fn bind<'a>(
        &'a mut self,
        plan: &LoadedPlan,
        inputs: &Inputs,
        stream: &Arc<CudaStream>,
    ) -> Result<Bound<'a>, Failure> {
        self.bind_over(plan, inputs, stream, None)
    }

    /// As [`Memory::bind`], with scratch memory that other plans use too.
    pub fn bind_over<'a>(
        &'a mut self,
        plan: &LoadedPlan,
        inputs: &Inputs,
        stream: &Arc<CudaStream>,
        workspace: Option<&Arc<Workspace>>,
    ) -> Result<Bound<'a>, Failure> {
        let mut bindings = Bindings::new();
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
            // SAFETY: this memory is borrowed for as long as the plan is bound, nothing else uses it, and one stream orders all that does.
            bindings = unsafe { bindings.tensor(role, address, bytes) };
        }
        plan.bind(bindings, stream).map_err(failed)
    }

    /// What an operand holds now, if the plan has it.
    pub fn download(&self, stream: &Arc<CudaStream>, role: Role) -> Result<Option<Buffer>, Failure> {
        let Some((dtype, slice)) = self.0.get(&role) else { return Ok(None) };
        let bytes = stream.clone_dtoh(slice).map_err(failed)?;
        Buffer::new(*dtype, bytes).map(Some).map_err(failed)
    }
}
