//! The steps of one rank under construction.

use qkvault_graph::{Attention, DType, Order as Axes, Role, Storage, Tensor};

use crate::step::{Bind, BufferBox, HeldPart, PlanLaunch, RankBuffer, RankSchedule, RankStep, Stream, Transfer};

/// One rank under construction.
pub(crate) struct Maker {
    pub(crate) rank: u32,
    pub(crate) made: RankSchedule,
    /// The stream of launches, and of the copies that they need.
    pub(crate) launches: Stream,
    marks: u32,
}

/// The dense tensor in which an operand's memory lies: a varlen one is a single sequence of all tokens.
pub(crate) fn flat(t: &Tensor) -> Tensor {
    match t.storage {
        Storage::Dense => *t,
        Storage::Varlen { .. } | Storage::Paged { .. } => Tensor { dims: t.extents(), storage: Storage::Dense, ..*t },
    }
}

/// A dense tensor of these dims with the axes in the order of another one.
pub(crate) fn like(t: &Tensor, dims: [i64; 4]) -> Tensor {
    let mut axes = [0, 1, 2];
    axes.sort_by_key(|&axis| std::cmp::Reverse((t.strides[axis], t.dims[axis])));
    let mut strides = [1; 4];
    let mut next = dims[3];
    for &axis in axes.iter().rev() {
        strides[axis] = next;
        next *= dims[axis].max(1);
    }
    Tensor { dims, strides, dtype: t.dtype, storage: Storage::Dense }
}

/// A dense tensor whose tokens are outermost, so that a run of tokens is contiguous.
pub(crate) fn by_tokens(dims: [i64; 4], dtype: DType) -> Tensor {
    Tensor::dense(Axes::Sbhd, dims, dtype)
}

/// A dense tensor in the order of its dims.
pub(crate) fn in_order(dims: [i64; 4], dtype: DType) -> Tensor {
    Tensor::dense(Axes::Bhsd, dims, dtype)
}

/// The piece of a whole buffer.
pub(crate) const fn all(buffer: u32, tensor: &Tensor) -> BufferBox {
    BufferBox { buffer, start: [0; 4], dims: tensor.dims }
}

impl Maker {
    pub(crate) fn new(rank: u32) -> Maker {
        Maker { rank, made: RankSchedule::default(), launches: Stream::Compute, marks: 0 }
    }

    /// A new buffer, as the piece of all of it.
    pub(crate) fn scratch(&mut self, name: impl Into<String>, tensor: Tensor) -> BufferBox {
        self.buffer(name.into(), None, tensor)
    }

    pub(crate) fn buffer(&mut self, name: String, operand: Option<Role>, tensor: Tensor) -> BufferBox {
        let number = self.made.buffers.len() as u32;
        self.made.buffers.push(RankBuffer { name, operand, tensor });
        all(number, &tensor)
    }

    /// A buffer of the caller's, with the parts of the operand that lie in it: where each begins in the operand, where
    /// in the buffer, and its dims.
    pub(crate) fn operand(
        &mut self,
        role: Role,
        tensor: Tensor,
        parts: &[([i64; 4], [i64; 4], [i64; 4])],
    ) -> BufferBox {
        let piece = self.buffer(role.to_string(), Some(role), tensor);
        for &(start, at, dims) in parts {
            self.made.held.push(HeldPart { start, piece: BufferBox { buffer: piece.buffer, start: at, dims } });
        }
        piece
    }

    /// The caller's buffer of an operand.
    pub(crate) fn piece(&self, role: Role) -> Option<BufferBox> {
        let found = self.made.buffers.iter().position(|b| b.operand == Some(role))?;
        Some(all(found as u32, &self.made.buffers[found].tensor))
    }

    pub(crate) fn tensor(&self, piece: BufferBox) -> Tensor {
        self.made.buffers[piece.buffer as usize].tensor
    }

    pub(crate) fn push(&mut self, step: RankStep) {
        self.made.steps.push(step);
    }

    pub(crate) fn copy(&mut self, on: Stream, from: BufferBox, to: BufferBox) {
        if !from.is_empty() {
            self.push(RankStep::Copy { on, from, to });
        }
    }

    pub(crate) fn fill(&mut self, on: Stream, piece: BufferBox, hidden: bool) {
        if !piece.is_empty() {
            self.push(RankStep::Fill { on, piece, hidden });
        }
    }

    pub(crate) fn exchange(&mut self, transfers: Vec<Transfer>) {
        if !transfers.is_empty() {
            self.push(RankStep::Exchange { transfers });
        }
    }

    pub(crate) fn launch(&mut self, plan: u32, binds: Vec<(Role, Bind)>, slice: Option<crate::Slice>) {
        self.push(RankStep::Launch(PlanLaunch { on: self.launches, plan, binds, slice }));
    }

    /// Zeros the gradients of score tensors: a launch writes only the keys that its queries see.
    pub(crate) fn clear_gradients_of_tensors(&mut self) {
        let of_tensors = |b: &RankBuffer| matches!(b.operand, Some(Role::DScoreTensor(_)));
        let found: Vec<BufferBox> =
            (0..).zip(&self.made.buffers).filter(|(_, b)| of_tensors(b)).map(|(n, b)| all(n, &b.tensor)).collect();
        for piece in found {
            self.fill(Stream::Compute, piece, false);
        }
    }

    /// Marks this place of a stream.
    pub(crate) fn record(&mut self, on: Stream) -> u32 {
        let mark = self.marks;
        self.marks += 1;
        self.push(RankStep::Record { on, mark });
        mark
    }

    pub(crate) fn wait(&mut self, on: Stream, mark: u32) {
        self.push(RankStep::Wait { on, mark });
    }

    /// The stream of exchanges waits for everything that one of launches has been given, or `Compute` for exchanges.
    pub(crate) fn hand_over(&mut self, from: Stream) {
        let mark = self.record(from);
        let to = if from == Stream::Exchange { Stream::Compute } else { Stream::Exchange };
        self.wait(to, mark);
    }
}

/// The roles whose rows are those of the queries, in the order in which a launch lists them.
pub(crate) fn query_roles(a: &Attention) -> Vec<Role> {
    let list = [Role::Q, Role::O, Role::Stats, Role::Max, Role::SumExp, Role::DO, Role::DQ];
    list.into_iter().filter(|&role| qkvault_graph::operand(a, role).is_some()).collect()
}
