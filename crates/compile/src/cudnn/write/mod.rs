//! Writes an op graph as cuDNN descriptors: one tensor descriptor per tensor, one operation descriptor per operation.

use std::sync::Arc;

use qkvault_cudnn::OpGraph;
use qkvault_cudnn::op::{Op, OpTensor, TensorId, TensorKind};
use qkvault_graph::ALIGNMENT;
use qkvault_graph::{BLOCK, DType};
use qkvault_sys::{
    AttributeName as A, CudnnVersion, DataType, Descriptor, Error, Kind, Library, ReshapeMode, RngDistribution,
    TensorReordering,
};

use crate::cudnn::convert;

/// The first version with modes of a reshape.
const RESHAPE_MODE: CudnnVersion = CudnnVersion::new(9, 22, 0);

/// cuDNN's operation graph, finalized.
pub(crate) fn op_graph(library: &Arc<Library>, graph: &OpGraph) -> Result<Descriptor, Error> {
    let writer = Writer::new(library, graph)?;
    let ops = graph.ops.iter().map(|op| writer.op(op)).collect::<Result<Vec<Descriptor>, _>>()?;
    let mut descriptor = Descriptor::create(library, Kind::OPERATIONGRAPH)?;
    descriptor.set_descriptors(A::OPERATIONGRAPH_OPS, &ops.iter().collect::<Vec<_>>())?;
    descriptor.finalized()
}

struct Writer<'a> {
    library: &'a Arc<Library>,
    graph: &'a OpGraph,
    tensors: Vec<Option<Descriptor>>,
}

impl<'a> Writer<'a> {
    /// A writer with a descriptor for every tensor.
    fn new(library: &'a Arc<Library>, graph: &'a OpGraph) -> Result<Writer<'a>, Error> {
        let mut writer = Writer { library, graph, tensors: Vec::with_capacity(graph.tensors.len()) };
        writer.tensors.resize_with(graph.tensors.len(), || None);
        // Offsets come first: the tensors that use them refer to their descriptors.
        for pass in [false, true] {
            for (i, t) in graph.tensors.iter().enumerate() {
                if t.offsets.is_some() == pass {
                    writer.tensors[i] = Some(writer.tensor(TensorId(i as u32), t)?);
                }
            }
        }
        Ok(writer)
    }
}

impl Writer<'_> {
    fn tensor(&self, id: TensorId, t: &OpTensor) -> Result<Descriptor, Error> {
        let OpTensor { dims, strides, dtype, kind, offsets } = t;
        let mut d = Descriptor::create(self.library, Kind::TENSOR)?;
        d.set_one(A::TENSOR_DATA_TYPE, convert::dtype(*dtype))?;
        d.set(A::TENSOR_DIMENSIONS, dims)?;
        d.set(A::TENSOR_STRIDES, strides)?;
        d.set_one(A::TENSOR_UNIQUE_ID, self.graph.uid(id))?;
        d.set_one(A::TENSOR_BYTE_ALIGNMENT, ALIGNMENT as i64)?;
        if *dtype == DType::E8M0 {
            d.set_one(A::TENSOR_REORDERING_MODE, TensorReordering::F8_128x4)?;
        }
        match kind {
            TensorKind::Virtual => d.set_bool(A::TENSOR_IS_VIRTUAL, true)?,
            TensorKind::Scalar(_) | TensorKind::Constant(_) => d.set_bool(A::TENSOR_IS_BY_VALUE, true)?,
            TensorKind::Operand(_) => {}
        }
        if let Some(offsets) = offsets {
            d.set_descriptor(A::TENSOR_RAGGED_OFFSET_DESC, self.at(*offsets))?;
        }
        d.finalized()
    }

    fn at(&self, id: TensorId) -> &Descriptor {
        self.tensors[id.0 as usize].as_ref().expect("offsets are written before the tensors that use them")
    }

    fn set(&self, d: &mut Descriptor, attribute: A, id: TensorId) -> Result<(), Error> {
        d.set_descriptor(attribute, self.at(id))
    }

    fn set_some(&self, d: &mut Descriptor, attribute: A, id: Option<TensorId>) -> Result<(), Error> {
        id.map_or(Ok(()), |id| self.set(d, attribute, id))
    }

    fn create(&self, kind: Kind) -> Result<Descriptor, Error> {
        Descriptor::create(self.library, kind)
    }

    fn op(&self, op: &Op) -> Result<Descriptor, Error> {
        match *op {
            Op::Matmul { a, b, c, m, n, k } => {
                let mut config = self.create(Kind::MATMUL)?;
                config.set_one(A::MATMUL_COMP_TYPE, DataType::FLOAT)?;
                config.finalize()?;
                let mut d = self.create(Kind::OPERATION_MATMUL)?;
                self.set(&mut d, A::OPERATION_MATMUL_ADESC, a)?;
                self.set(&mut d, A::OPERATION_MATMUL_BDESC, b)?;
                self.set(&mut d, A::OPERATION_MATMUL_CDESC, c)?;
                self.set_some(&mut d, A::OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m)?;
                self.set_some(&mut d, A::OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n)?;
                self.set_some(&mut d, A::OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k)?;
                d.set_descriptor(A::OPERATION_MATMUL_DESC, &config)?;
                d.finalized()
            }
            Op::Pointwise { mode, x, b, t, y, axis, compute } => {
                let mut config = self.create(Kind::POINTWISE)?;
                config.set_one(A::POINTWISE_MODE, convert::pointwise(mode))?;
                config.set_one(A::POINTWISE_MATH_PREC, convert::dtype(compute))?;
                if let Some(axis) = axis {
                    config.set_one(A::POINTWISE_AXIS, i64::from(axis))?;
                }
                config.finalize()?;
                let mut d = self.create(Kind::OPERATION_POINTWISE)?;
                d.set_descriptor(A::OPERATION_POINTWISE_PW_DESCRIPTOR, &config)?;
                self.set(&mut d, A::OPERATION_POINTWISE_XDESC, x)?;
                self.set_some(&mut d, A::OPERATION_POINTWISE_BDESC, b)?;
                self.set_some(&mut d, A::OPERATION_POINTWISE_TDESC, t)?;
                self.set(&mut d, A::OPERATION_POINTWISE_YDESC, y)?;
                d.finalized()
            }
            Op::Reduction { op, x, y } => {
                let mut config = self.create(Kind::REDUCTION)?;
                config.set_one(A::REDUCTION_OPERATOR, convert::reduce(op))?;
                config.set_one(A::REDUCTION_COMP_TYPE, DataType::FLOAT)?;
                config.finalize()?;
                let mut d = self.create(Kind::OPERATION_REDUCTION)?;
                d.set_descriptor(A::OPERATION_REDUCTION_DESC, &config)?;
                self.set(&mut d, A::OPERATION_REDUCTION_XDESC, x)?;
                self.set(&mut d, A::OPERATION_REDUCTION_YDESC, y)?;
                d.finalized()
            }
            Op::Rng { keep, seed, offset, y } => {
                let mut config = self.create(Kind::RNG)?;
                config.set_one(A::RNG_DISTRIBUTION, RngDistribution::BERNOULLI)?;
                config.set_one(A::RNG_BERNOULLI_DIST_PROBABILITY, f64::from_bits(keep))?;
                config.finalize()?;
                let mut d = self.create(Kind::OPERATION_RNG)?;
                self.set(&mut d, A::OPERATION_RNG_YDESC, y)?;
                d.set_descriptor(A::OPERATION_RNG_DESC, &config)?;
                self.set(&mut d, A::OPERATION_RNG_SEED, seed)?;
                self.set(&mut d, A::OPERATION_RNG_OFFSET_DESC, offset)?;
                d.finalized()
            }
            Op::Reshape { x, y } => {
                let mut d = self.create(Kind::OPERATION_RESHAPE)?;
                self.set(&mut d, A::OPERATION_RESHAPE_XDESC, x)?;
                self.set(&mut d, A::OPERATION_RESHAPE_YDESC, y)?;
                if self.library.version() >= RESHAPE_MODE {
                    d.set_one(A::OPERATION_RESHAPE_MODE, ReshapeMode::VIEW_ONLY)?;
                }
                d.finalized()
            }
            Op::Dequantize { x, scale, y } => {
                let mut d = self.create(Kind::OPERATION_BLOCK_SCALE_DEQUANTIZE)?;
                self.set(&mut d, A::OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC, x)?;
                self.set(&mut d, A::OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC, scale)?;
                self.set(&mut d, A::OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC, y)?;
                d.set_one(A::OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC, DataType::FLOAT)?;
                // As in NVIDIA's front end, whichever dim the blocks lie along.
                d.set(A::OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE, &[1_i32, BLOCK as i32])?;
                d.set_bool(A::OPERATION_BLOCK_SCALE_DEQUANTIZE_NEG_SCALE, false)?;
                d.finalized()
            }
            Op::PagedLoad { container, table, lengths, y } => {
                let mut d = self.create(Kind::OPERATION_PAGED_CACHE_LOAD)?;
                self.set(&mut d, A::OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC, container)?;
                self.set(&mut d, A::OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC, table)?;
                self.set(&mut d, A::OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC, lengths)?;
                self.set(&mut d, A::OPERATION_PAGED_CACHE_LOAD_YDESC, y)?;
                d.finalized()
            }
            Op::BandMask { x, fill, seq_q, seq_kv, left, shift_right, y, compare } => {
                let mut d = self.create(Kind::OPERATION_DIAGONAL_BAND_MASK)?;
                self.set(&mut d, A::OPERATION_DIAGONAL_BAND_MASK_XDESC, x)?;
                self.set(&mut d, A::OPERATION_DIAGONAL_BAND_MASK_BDESC, fill)?;
                self.set_some(&mut d, A::OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_QDESC, seq_q)?;
                self.set_some(&mut d, A::OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_KVDESC, seq_kv)?;
                self.set_some(&mut d, A::OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC, left)?;
                self.set_some(&mut d, A::OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC, shift_right)?;
                self.set(&mut d, A::OPERATION_DIAGONAL_BAND_MASK_YDESC, y)?;
                d.set_one(A::OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, convert::pointwise(compare))?;
                d.finalized()
            }
            Op::Softmax { x, y, stats, max, sum_exp, sink } => {
                let mut d = self.create(Kind::OPERATION_SOFTMAX)?;
                self.set(&mut d, A::OPERATION_SOFTMAX_XDESC, x)?;
                self.set(&mut d, A::OPERATION_SOFTMAX_YDESC, y)?;
                self.set_some(&mut d, A::OPERATION_SOFTMAX_SINK_DESC, sink)?;
                self.set_some(&mut d, A::OPERATION_SOFTMAX_STATS_DESC, stats)?;
                self.set_some(&mut d, A::OPERATION_SOFTMAX_MAX_DESC, max)?;
                self.set_some(&mut d, A::OPERATION_SOFTMAX_SUM_EXP_DESC, sum_exp)?;
                d.finalized()
            }
        }
    }
}

const _: () = assert!(ALIGNMENT.is_multiple_of(DType::I64.size()), "alignment is a multiple of every element size");
