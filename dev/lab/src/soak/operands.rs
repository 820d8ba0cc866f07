//! The memory of a lane: random inputs on the GPU, and outputs that are poisoned before each launch.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use qkvault_exec::{Args, cudarc};
use qkvault_graph::{DType, Role, Valid, buffer_len, operands};
use qkvault_reference::{Buffer, Inputs, POISON};

/// An output: its role, its element type, its memory.
type OutputMemory = (Role, DType, CudaSlice<u8>);

/// Operands of one attention. Lengths, offsets and tables are not among them: those come from a batch.
pub(super) struct SoakOperands {
    pub(super) inputs: Inputs,
    read: Vec<(Role, CudaSlice<u8>)>,
    written: Vec<OutputMemory>,
    poison: Vec<u8>,
}

impl SoakOperands {
    /// Uploads the inputs but those that `without` names, and allocates the outputs.
    pub(super) fn new(
        stream: &Arc<CudaStream>,
        attention: &Valid,
        inputs: Inputs,
        without: &[Role],
    ) -> anyhow::Result<SoakOperands> {
        let (mut read, mut written, mut longest) = (Vec::new(), Vec::new(), 0);
        for operand in operands(attention) {
            let role = operand.role;
            if operand.output {
                let elements = buffer_len(attention, role).ok_or_else(|| anyhow::anyhow!("{role} has no size"))?;
                let bytes = elements * operand.tensor.dtype.size();
                longest = longest.max(bytes);
                written.push((role, operand.tensor.dtype, stream.alloc_zeros(bytes)?));
            } else if !role.is_scalar() && !role.is_followed() && !without.contains(&role) {
                read.push((role, stream.clone_htod(inputs.buffer(role)?.bytes())?));
            }
        }
        Ok(SoakOperands { inputs, read, written, poison: vec![POISON; longest] })
    }

    /// Overwrites the outputs with poison.
    pub(super) fn poison(&mut self, stream: &Arc<CudaStream>) -> anyhow::Result<()> {
        for (_, _, slice) in &mut self.written {
            stream.memcpy_htod(&self.poison[..slice.len()], slice)?;
        }
        Ok(())
    }

    /// The arguments of a launch, with scalars.
    pub(super) fn args(&mut self, attention: &Valid) -> anyhow::Result<Args<'_>> {
        let args = scalars(attention, &self.inputs)?;
        let args = self.read.iter().fold(args, |all, (role, slice)| all.tensor(*role, slice));
        Ok(self.written.iter_mut().fold(args, |all, (role, _, slice)| all.tensor_mut(*role, slice)))
    }

    /// Adds the inputs but one to arguments.
    pub(super) fn read<'a>(&'a self, args: Args<'a>, but: Role) -> Args<'a> {
        let wanted = self.read.iter().filter(|(role, _)| *role != but);
        wanted.fold(args, |all, (role, slice)| all.tensor(*role, slice))
    }

    /// Adds one output to arguments.
    pub(super) fn output<'a>(&'a mut self, role: Role, args: Args<'a>) -> anyhow::Result<Args<'a>> {
        let found = self.written.iter_mut().find(|(other, ..)| *other == role);
        let (_, _, slice) = found.ok_or_else(|| anyhow::anyhow!("{role} is no output"))?;
        Ok(args.tensor_mut(role, slice))
    }

    /// The memory of an output.
    pub(super) fn written(&self, role: Role) -> anyhow::Result<&CudaSlice<u8>> {
        let found = self.written.iter().find(|(other, ..)| *other == role);
        found.map(|(_, _, slice)| slice).ok_or_else(|| anyhow::anyhow!("{role} is no output"))
    }

    /// The arguments that a launch reads and those that it writes, without scalars.
    pub(super) fn without_scalars(&mut self) -> Args<'_> {
        let args = self.read.iter().fold(Args::new(), |all, (role, slice)| all.tensor(*role, slice));
        self.written.iter_mut().fold(args, |all, (role, _, slice)| all.tensor_mut(*role, slice))
    }

    /// Copies the outputs back, after the launches on the stream.
    pub(super) fn download(&self, stream: &Arc<CudaStream>) -> anyhow::Result<Vec<(Role, Buffer)>> {
        let one = |(role, dtype, slice): &OutputMemory| Ok((*role, Buffer::new(*dtype, stream.clone_dtoh(slice)?)?));
        self.written.iter().map(one).collect()
    }
}

/// The scalars of an attention.
pub(super) fn scalars<'a>(attention: &Valid, inputs: &Inputs) -> anyhow::Result<Args<'a>> {
    let mut args = Args::new();
    for operand in operands(attention).into_iter().filter(|operand| operand.role.is_scalar()) {
        let value = inputs.buffer(operand.role)?;
        args = match value.dtype() {
            DType::I32 => args.scalar(operand.role, value.int(0) as i32),
            _ => args.scalar(operand.role, value.get(0) as f32),
        };
    }
    Ok(args)
}
