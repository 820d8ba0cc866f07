//! The operands of an attention: every role with its dims, strides, element type, direction and buffer size.
//!
//! Scalars and tensors of the score expression have the first numbers, those of the mask predicate the next.

mod binding;
mod fact;
mod named;
mod nearest;
mod scales;

use crate::expr::TensorSpec;
use crate::{Attention, DType, DropoutSource, Gradients, Lengths, Order, Pass, Role, Storage, Tensor, Varlen};

pub use binding::{ALIGNMENT, Binding, SCRATCH_ALIGNMENT, bytes_bound};
pub use fact::OperandFact;
pub use named::{NamedScalar, NamedTensor, ReadBy};
pub use nearest::nearest as nearest_name;
pub use scales::{BLOCK, block_scales};

/// Rows and columns of one tile of a block mask.
pub const TILE: usize = 128;

/// One operand of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Its role.
    pub role: Role,
    /// Dims, strides, element type, storage.
    pub tensor: Tensor,
    /// Whether the attention writes it.
    pub output: bool,
}

impl Operand {
    /// Elements of its buffer; `None` if this machine cannot address them.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        let span = self.tensor.span().and_then(|n| usize::try_from(n).ok());
        span.filter(|&n| n.checked_mul(8).is_some())
    }

    /// The offsets of its sequences, if it is varlen.
    #[must_use]
    pub const fn offsets(&self) -> Option<Varlen> {
        match self.tensor.storage {
            Storage::Varlen { .. } => self.role.offsets(),
            Storage::Dense | Storage::Paged { .. } => None,
        }
    }
}

/// Elements of the buffer of a role; `None` for roles that the attention does not have.
#[must_use]
pub fn buffer_len(attention: &Attention, role: Role) -> Option<usize> {
    operand(attention, role)?.elements()
}

/// The operand of a role, if the attention has it.
#[must_use]
pub fn operand(attention: &Attention, role: Role) -> Option<Operand> {
    operands(attention).into_iter().find(|o| o.role == role)
}

/// Every operand of an attention, including scalars, without the launcher's own buffers.
#[must_use]
pub fn operands(attention: &Attention) -> Vec<Operand> {
    let Attention {
        q,
        k,
        v,
        o,
        mask,
        score_mod: _,
        score_mod_bprop: _,
        origins,
        sink,
        dropout,
        block_mask,
        outputs,
        padded_rows: _,
        invariant: _,
        draft_tree,
        fp8,
        pass,
    } = attention;
    let ([b, h_q, s_q, _], s_kv) = (q.dims, k.dims[2]);
    let backward = attention.is_backward();
    let mut list = List(Vec::new());
    list.input(Role::Q, *q);
    list.input(Role::K, *k);
    list.input(Role::V, *v);
    list.add(Role::O, *o, !backward);
    let rows = attention.row_tensor();
    list.when(outputs.stats, Role::Stats, rows, !backward);
    list.when(outputs.max && !backward, Role::Max, rows, true);
    list.when(outputs.sum_exp && !backward, Role::SumExp, rows, true);
    list.input(Role::Scale, number(DType::F32));
    expressions(&mut list, attention);
    for role in [Role::QueryOrigin, Role::KeyOrigin] {
        list.when(origins.is_some(), role, number(DType::I32), false);
    }
    if mask.lengths == Lengths::PerSequence {
        list.input(Role::SeqLenQ, dense([b, 1, 1, 1], DType::I32));
        list.input(Role::SeqLenKv, dense([b, 1, 1, 1], DType::I32));
    }
    for (role, t) in [(Role::PageTableK, k), (Role::PageTableV, v)] {
        if let Some(pages) = t.pages_per_sequence() {
            list.input(role, dense([b, 1, pages, 1], DType::I32));
        }
    }
    list.when(*sink, Role::Sink, dense([1, h_q, 1, 1], DType::F32), false);
    if let Some(dropout) = dropout {
        match dropout.source {
            DropoutSource::Philox | DropoutSource::Places => {
                list.input(Role::DropoutSeed, number(DType::I64));
                list.input(Role::DropoutOffset, number(DType::I64));
            }
            DropoutSource::Mask => list.input(Role::DropoutMask, dense([b, h_q, s_q, s_kv], q.dtype)),
        }
    }
    let tiles = |n: i64| (n + TILE as i64 - 1) / TILE as i64;
    let blocks = dense([b, h_q, tiles(s_q), (tiles(s_kv) + 7) / 8], DType::U8);
    list.when(*block_mask, Role::BlockMask, blocks, false);
    // The rows are those of the queries.
    let tree = match q.storage {
        Storage::Varlen { tokens } => dense([1, 1, tokens, 2], DType::I32),
        Storage::Dense | Storage::Paged { .. } => dense([b, 1, s_q, 2], DType::I32),
    };
    list.when(*draft_tree, Role::DraftTree, tree, false);
    if let Pass::Backward(Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink, deterministic: _ }) = pass {
        list.input(Role::DO, *d_o);
        if let Some(half) = d_o_half {
            list.input(Role::DOHalf, *half);
        }
        list.add(Role::DQ, *d_q, true);
        list.add(Role::DK, *d_k, true);
        list.add(Role::DV, *d_v, true);
        list.when(*d_sink, Role::DSink, dense([1, h_q, 1, 1], DType::F32), true);
    }
    if let Some(scaling) = fp8 {
        scales::add(&mut list, attention, *scaling);
    }
    offsets(&mut list, b);
    list.0
}

struct List(Vec<Operand>);

impl List {
    fn add(&mut self, role: Role, tensor: Tensor, output: bool) {
        self.0.push(Operand { role, tensor, output });
    }

    fn input(&mut self, role: Role, tensor: Tensor) {
        self.add(role, tensor, false);
    }

    fn when(&mut self, there: bool, role: Role, tensor: Tensor, output: bool) {
        if there {
            self.add(role, tensor, output);
        }
    }
}

/// A dense tensor in row-major order.
fn dense(dims: [i64; 4], dtype: DType) -> Tensor {
    Tensor::dense(Order::Bhsd, dims, dtype)
}

fn number(dtype: DType) -> Tensor {
    dense([1; 4], dtype)
}

/// A tensor of a score expression, row-major over (batch, head, query, key).
#[must_use]
pub fn score_tensor(spec: &TensorSpec) -> Tensor {
    dense(spec.dims, spec.dtype)
}

fn expressions(list: &mut List, attention: &Attention) {
    for scalar in named::scalars(attention) {
        list.input(scalar.role, number(scalar.dtype));
    }
    for tensor in named::tensors(attention) {
        let of = dense(tensor.dims, tensor.dtype);
        list.input(tensor.role, of);
        if let Some(gradient) = tensor.gradient {
            list.add(gradient, of, true);
        }
    }
}

fn offsets(list: &mut List, batch: i64) {
    let mut which: Vec<Varlen> = list.0.iter().filter_map(Operand::offsets).collect();
    which.sort_unstable();
    which.dedup();
    for varlen in which {
        list.input(Role::Offsets(varlen), dense([batch + 1, 1, 1, 1], DType::I64));
    }
}
