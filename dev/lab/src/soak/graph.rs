//! A lane that replays a CUDA graph: other data with every replay, other memory now and then.

use std::sync::Arc;

use anyhow::Context as _;
use cudarc::driver::{CudaSlice, CudaStream};
use qkvault::Runtime;
use qkvault_exec::{Args, Captured, Updated, cudarc};
use qkvault_graph::{Role, Valid};
use qkvault_reference::{Buffer, Inputs, POISON, forward};

use super::checked::CheckedOutputs;
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
    data: Vec<(Inputs, CheckedOutputs)>,
    turns: usize,
    /// How the operands were replaced last.
    updated: Option<Updated>,
}

impl Graph {
    pub(super) fn new(runtime: &Runtime, attention: Valid, seed: u64, what: &str) -> anyhow::Result<Graph> {
        let stream = runtime.device()?.context().new_stream()?;
        let mut data = Vec::new();
        for part in 0..2 {
            let mut inputs = Inputs::random(&attention, 2 * seed + part)?;
            // The graph has one scale for both.
            inputs.set_f32(Role::Scale, attention.default_scale());
            let checked = CheckedOutputs::new(what, vec![forward(&attention, &inputs)?], false);
            data.push((inputs, checked));
        }
        let args = memory(&stream, &attention, &data[0].0)?;
        let graph = runtime.plan(&attention)?.bind(args, &stream)?.capture(&stream)?;
        Ok(Graph { stream, attention, graph, data, turns: 0, updated: None })
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
            self.updated = Some(self.graph.update(args)?);
        }
        for role in INPUTS {
            let bytes = self.data[number].0.buffer(role)?.bytes().to_vec();
            stream.memcpy_htod(&bytes, self.slice(role)?)?;
        }
        let o = self.slice(Role::O)?;
        let poison = vec![POISON; o.len()];
        stream.memcpy_htod(&poison, o)?;
        self.graph.launch()?;
        let Graph { attention, graph, data, turns, updated, .. } = self;
        let o = graph.slice::<u8>(Role::O).ok_or_else(|| anyhow::anyhow!("the graph does not own O"))?;
        let read = || Ok(vec![(Role::O, Buffer::new(attention.o.dtype, stream.clone_dtoh(o)?)?)]);
        let checked = data[number].1.check(&stream, read);
        checked.with_context(|| format!("replay {turns}, operands last replaced {updated:?}, every {REPLAYS} replays"))
    }
}
