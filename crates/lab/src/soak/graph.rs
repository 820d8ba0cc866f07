//! A lane that replays a CUDA graph: other data with every replay, other memory now and then.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use qkvault::Runtime;
use qkvault_exec::{Args, Captured, cudarc};
use qkvault_graph::{Role, Valid};
use qkvault_reference::{Buffer, Inputs, POISON, forward};

use super::checked::Checked;
use super::lanes::Lane;
use super::operands::scalars;

/// Replays between two replacements of the operands.
const REPLAYS: usize = 16;

const INPUTS: [Role; 3] = [Role::Q, Role::K, Role::V];

/// Two sets of data take turns in the memory that the graph owns. It has a stream of its own, because no other launch
/// may come to a stream that is being captured.
pub(super) struct Graph {
    stream: Arc<CudaStream>,
    attention: Valid,
    graph: Captured<'static>,
    data: Vec<(Inputs, Checked)>,
    turns: usize,
}

impl Graph {
    pub(super) fn new(runtime: &Runtime, attention: Valid, seed: u64, what: &str) -> anyhow::Result<Graph> {
        let stream = runtime.device().context().new_stream()?;
        let mut data = Vec::new();
        for part in 0..2 {
            let mut inputs = Inputs::random(&attention, 2 * seed + part)?;
            // The graph has one scale for both.
            inputs.set_f32(Role::Scale, attention.default_scale());
            let checked = Checked::new(what, vec![forward(&attention, &inputs)?], true);
            data.push((inputs, checked));
        }
        let args = memory(&stream, &attention, &data[0].0)?;
        let graph = runtime.plan(&attention)?.bind(args, &stream)?.capture(&stream)?;
        Ok(Graph { stream, attention, graph, data, turns: 0 })
    }

    fn slice(&mut self, role: Role) -> anyhow::Result<&mut CudaSlice<u8>> {
        self.graph.slice_mut(role).ok_or_else(|| anyhow::anyhow!("the graph does not own {role}"))
    }
}

/// Fresh memory that a graph can own.
fn memory(stream: &Arc<CudaStream>, attention: &Valid, inputs: &Inputs) -> anyhow::Result<Args<'static>> {
    let mut args = scalars(attention, inputs)?;
    for role in INPUTS {
        args = args.tensor(role, stream.alloc_zeros::<u8>(inputs.buffer(role)?.bytes().len())?);
    }
    // O has the size of Q: a decode of one head dim.
    Ok(args.tensor_mut(Role::O, stream.alloc_zeros::<u8>(inputs.buffer(Role::Q)?.bytes().len())?))
}

impl Lane for Graph {
    fn turn(&mut self, _: &Runtime) -> anyhow::Result<()> {
        let stream = Arc::clone(&self.stream);
        let number = self.turns % self.data.len();
        self.turns += 1;
        if self.turns.is_multiple_of(REPLAYS) {
            let args = memory(&stream, &self.attention, &self.data[0].0)?;
            self.graph.update(args)?;
        }
        for role in INPUTS {
            let bytes = self.data[number].0.buffer(role)?.bytes().to_vec();
            stream.memcpy_htod(&bytes, self.slice(role)?)?;
        }
        let o = self.slice(Role::O)?;
        let poison = vec![POISON; o.len()];
        stream.memcpy_htod(&poison, o)?;
        self.graph.launch()?;
        let bytes = stream.clone_dtoh(self.slice(Role::O)?)?;
        let found = Buffer::new(self.attention.o.dtype, bytes)?;
        self.data[number].1.check(vec![(Role::O, found)])
    }
}
