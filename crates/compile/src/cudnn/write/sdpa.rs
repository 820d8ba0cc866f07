//! Writes the unified operation of attention: both halves as one descriptor, and the operations between them as its
//! subgraph.
//!
//! The subgraph is a separate operation graph. Tensors that both use (lengths) have one unique id and a descriptor in
//! each, as in cudnn-frontend 1.23.

use qkvault_graph::op::{Op, TensorId};
use qkvault_sys::{AttributeName as A, CudnnVersion, DataType, Descriptor, Error, Kind};

use super::Writer;

/// The first version that takes other outputs of the softmax in a separate descriptor.
const SOFTMAX: CudnnVersion = CudnnVersion::new(9, 21, 0);

/// A unified operation of a graph: its halves, and the operations between them.
pub(super) struct Unified<'a> {
    first: &'a Op,
    inner: &'a [Op],
    last: &'a Op,
}

impl Unified<'_> {
    pub(super) fn of(ops: &[Op]) -> Option<Unified<'_>> {
        match ops {
            [first @ Op::SdpaScores { .. }, inner @ .., last @ Op::SdpaOutput { .. }] => {
                Some(Unified { first, inner, last })
            }
            _ => None,
        }
    }
}

impl Writer<'_> {
    pub(super) fn sdpa(&self, op: &Unified<'_>) -> Result<Descriptor, Error> {
        let mut d = self.create(Kind::OPERATION_SDPA_FWD)?;
        self.half(&mut d, op.first)?;
        self.half(&mut d, op.last)?;
        if let (Op::SdpaScores { scores, .. }, Op::SdpaOutput { scores: masked, .. }) = (op.first, op.last)
            && !op.inner.is_empty()
        {
            let inner = Writer::new(self.library, self.graph)?;
            let ops: Vec<Descriptor> = op.inner.iter().map(|op| inner.op(op)).collect::<Result<_, _>>()?;
            let mut subgraph = self.create(Kind::OPERATIONGRAPH)?;
            subgraph.set_descriptors(A::OPERATIONGRAPH_OPS, &ops.iter().collect::<Vec<_>>())?;
            subgraph.finalize()?;
            d.set_descriptor(A::OPERATION_SDPA_FWD_SUBGRAPH, &subgraph)?;
            d.set_one(A::OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, self.graph.uid(*scores))?;
            d.set_one(A::OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, self.graph.uid(*masked))?;
        }
        d.finalized()
    }

    /// Writes the attributes of one half. One half alone is incomplete: cuDNN reports what is missing.
    pub(super) fn half(&self, d: &mut Descriptor, op: &Op) -> Result<(), Error> {
        match *op {
            Op::SdpaScores { q, k, table, seq_kv: _, scale, scores: _ } => {
                self.set(d, A::OPERATION_SDPA_FWD_QDESC, q)?;
                self.set(d, A::OPERATION_SDPA_FWD_KDESC, k)?;
                self.set_some(d, A::OPERATION_SDPA_FWD_PAGE_TABLE_KDESC, table)?;
                self.set(d, A::OPERATION_SDPA_FWD_SCALEDESC, scale)
            }
            Op::SdpaOutput { scores, v, table, seq_q, seq_kv, o, stats, max, sum_exp, sink } => {
                self.set(d, A::OPERATION_SDPA_FWD_VDESC, v)?;
                self.set(d, A::OPERATION_SDPA_FWD_ODESC, o)?;
                self.set_some(d, A::OPERATION_SDPA_FWD_PAGE_TABLE_VDESC, table)?;
                self.set_some(d, A::OPERATION_SDPA_FWD_SEQ_LEN_QDESC, seq_q)?;
                self.set_some(d, A::OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, seq_kv)?;
                if self.library.version() < SOFTMAX {
                    return self.set_some(d, A::OPERATION_SDPA_FWD_STATSDESC, stats);
                }
                if [stats, max, sum_exp, sink].iter().all(Option::is_none) {
                    return Ok(());
                }
                let mut softmax = self.create(Kind::OPERATION_SOFTMAX)?;
                // The softmax descriptor needs placeholder tensors for its input and output that no other operation
                // references.
                softmax.set_descriptor(A::OPERATION_SOFTMAX_XDESC, &self.unnamed(scores, 0)?)?;
                softmax.set_descriptor(A::OPERATION_SOFTMAX_YDESC, &self.unnamed(scores, 1)?)?;
                self.set_some(&mut softmax, A::OPERATION_SOFTMAX_SINK_DESC, sink)?;
                self.set_some(&mut softmax, A::OPERATION_SOFTMAX_STATS_DESC, stats)?;
                self.set_some(&mut softmax, A::OPERATION_SOFTMAX_MAX_DESC, max)?;
                self.set_some(&mut softmax, A::OPERATION_SOFTMAX_SUM_EXP_DESC, sum_exp)?;
                softmax.finalize()?;
                d.set_descriptor(A::OPERATION_SDPA_FWD_SOFTMAX_DESC, &softmax)
            }
            _ => Ok(()),
        }
    }

    /// A virtual tensor like another one, with a unique id after those of the graph.
    fn unnamed(&self, like: TensorId, number: usize) -> Result<Descriptor, Error> {
        let like = self.graph.tensor(like);
        let mut d = self.create(Kind::TENSOR)?;
        d.set_one(A::TENSOR_DATA_TYPE, DataType::FLOAT)?;
        d.set(A::TENSOR_DIMENSIONS, &like.dims)?;
        d.set(A::TENSOR_STRIDES, &like.strides)?;
        let after = TensorId((self.graph.tensors.len() + number) as u32);
        d.set_one(A::TENSOR_UNIQUE_ID, qkvault_graph::op::unnamed_uid(after))?;
        d.set_one(A::TENSOR_BYTE_ALIGNMENT, qkvault_graph::op::ALIGNMENT as i64)?;
        d.set_bool(A::TENSOR_IS_VIRTUAL, true)?;
        d.finalized()
    }
}
