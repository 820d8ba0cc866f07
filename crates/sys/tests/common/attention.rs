//! A small attention, built by hand from descriptors, that every version from 9.14 on accepts.

use std::sync::Arc;

use qkvault_sys::{
    AttributeName as A, DataType, Descriptor, Error, HeurMode, Kind, Library, PointwiseMode, ReduceTensorOp,
};

/// Batch, heads, queries and keys, head dim.
const DIMS: [i64; 4] = [1, 2, 128, 64];

/// Builds op graphs and assigns uids.
struct Builder<'a> {
    library: &'a Arc<Library>,
    uid: i64,
}

/// Where the values of a tensor are: in memory, only inside the kernel, or passed by value.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Data,
    Virtual,
    ByValue,
}

impl Builder<'_> {
    fn tensor(&mut self, dims: [i64; 4], strides: [i64; 4], data: DataType, place: Place) -> Result<Descriptor, Error> {
        self.uid += 1;
        let mut tensor = Descriptor::create(self.library, Kind::TENSOR)?;
        tensor.set_one(A::TENSOR_DATA_TYPE, data)?;
        tensor.set(A::TENSOR_DIMENSIONS, &dims)?;
        tensor.set(A::TENSOR_STRIDES, &strides)?;
        tensor.set_one(A::TENSOR_UNIQUE_ID, self.uid)?;
        tensor.set_one(A::TENSOR_BYTE_ALIGNMENT, 16_i64)?;
        match place {
            Place::Data => {}
            Place::Virtual => tensor.set_bool(A::TENSOR_IS_VIRTUAL, true)?,
            Place::ByValue => tensor.set_bool(A::TENSOR_IS_BY_VALUE, true)?,
        }
        tensor.finalized()
    }

    /// A contiguous tensor, with its last dimension innermost.
    fn contiguous(&mut self, dims: [i64; 4], data: DataType, place: Place) -> Result<Descriptor, Error> {
        let [_, h, s, d] = dims;
        self.tensor(dims, [h * s * d, s * d, d, 1], data, place)
    }

    fn scores(&mut self, data: DataType) -> Result<Descriptor, Error> {
        let [b, h, s, _] = DIMS;
        self.contiguous([b, h, s, s], data, Place::Virtual)
    }

    fn rows(&mut self, place: Place) -> Result<Descriptor, Error> {
        let [b, h, s, _] = DIMS;
        self.contiguous([b, h, s, 1], DataType::FLOAT, place)
    }

    fn matmul(&self, a: &Descriptor, b: &Descriptor, c: &Descriptor) -> Result<Descriptor, Error> {
        let mut matmul = Descriptor::create(self.library, Kind::MATMUL)?;
        matmul.set_one(A::MATMUL_COMP_TYPE, DataType::FLOAT)?;
        matmul.finalize()?;
        let mut operation = Descriptor::create(self.library, Kind::OPERATION_MATMUL)?;
        operation.set_descriptor(A::OPERATION_MATMUL_ADESC, a)?;
        operation.set_descriptor(A::OPERATION_MATMUL_BDESC, b)?;
        operation.set_descriptor(A::OPERATION_MATMUL_CDESC, c)?;
        operation.set_descriptor(A::OPERATION_MATMUL_DESC, &matmul)?;
        operation.finalized()
    }

    fn pointwise(
        &self,
        mode: PointwiseMode,
        x: &Descriptor,
        b: Option<&Descriptor>,
        y: &Descriptor,
    ) -> Result<Descriptor, Error> {
        let mut pointwise = Descriptor::create(self.library, Kind::POINTWISE)?;
        pointwise.set_one(A::POINTWISE_MODE, mode)?;
        pointwise.set_one(A::POINTWISE_MATH_PREC, DataType::FLOAT)?;
        pointwise.finalize()?;
        let mut operation = Descriptor::create(self.library, Kind::OPERATION_POINTWISE)?;
        operation.set_descriptor(A::OPERATION_POINTWISE_PW_DESCRIPTOR, &pointwise)?;
        operation.set_descriptor(A::OPERATION_POINTWISE_XDESC, x)?;
        if let Some(b) = b {
            operation.set_descriptor(A::OPERATION_POINTWISE_BDESC, b)?;
        }
        operation.set_descriptor(A::OPERATION_POINTWISE_YDESC, y)?;
        operation.finalized()
    }

    fn reduction(&self, operator: ReduceTensorOp, x: &Descriptor, y: &Descriptor) -> Result<Descriptor, Error> {
        let mut reduction = Descriptor::create(self.library, Kind::REDUCTION)?;
        reduction.set_one(A::REDUCTION_OPERATOR, operator)?;
        reduction.set_one(A::REDUCTION_COMP_TYPE, DataType::FLOAT)?;
        reduction.finalize()?;
        let mut operation = Descriptor::create(self.library, Kind::OPERATION_REDUCTION)?;
        operation.set_descriptor(A::OPERATION_REDUCTION_DESC, &reduction)?;
        operation.set_descriptor(A::OPERATION_REDUCTION_XDESC, x)?;
        operation.set_descriptor(A::OPERATION_REDUCTION_YDESC, y)?;
        operation.finalized()
    }
}

/// `softmax(scale · Q Kᵀ) V` with Stats, in bf16, in the composite form.
pub(crate) fn attention(library: &Arc<Library>) -> Result<Descriptor, Error> {
    let [batch, heads, length, dim] = DIMS;
    let mut g = Builder { library, uid: 0 };
    let q = g.contiguous(DIMS, DataType::BFLOAT16, Place::Data)?;
    // cuDNN declares K transposed: the same memory with the last two dimensions exchanged.
    let k_strides = [heads * length * dim, length * dim, 1, dim];
    let k = g.tensor([batch, heads, dim, length], k_strides, DataType::BFLOAT16, Place::Data)?;
    let v = g.contiguous(DIMS, DataType::BFLOAT16, Place::Data)?;
    let o = g.contiguous(DIMS, DataType::BFLOAT16, Place::Data)?;
    let scale = g.contiguous([1, 1, 1, 1], DataType::FLOAT, Place::ByValue)?;
    let stats = g.rows(Place::Data)?;

    let score = g.scores(DataType::FLOAT)?;
    let scaled = g.scores(DataType::FLOAT)?;
    let max = g.rows(Place::Virtual)?;
    let centred = g.scores(DataType::FLOAT)?;
    let exp = g.scores(DataType::FLOAT)?;
    let sum = g.rows(Place::Virtual)?;
    let log = g.rows(Place::Virtual)?;
    let p = g.scores(DataType::BFLOAT16)?;

    let operations = [
        g.matmul(&q, &k, &score)?,
        g.pointwise(PointwiseMode::MUL, &score, Some(&scale), &scaled)?,
        g.reduction(ReduceTensorOp::MAX, &scaled, &max)?,
        g.pointwise(PointwiseMode::SUB, &scaled, Some(&max), &centred)?,
        g.pointwise(PointwiseMode::EXP, &centred, None, &exp)?,
        g.reduction(ReduceTensorOp::ADD, &exp, &sum)?,
        g.pointwise(PointwiseMode::LOG, &sum, None, &log)?,
        g.pointwise(PointwiseMode::ADD, &max, Some(&log), &stats)?,
        g.pointwise(PointwiseMode::DIV, &exp, Some(&sum), &p)?,
        g.matmul(&p, &v, &o)?,
    ];
    let mut graph = Descriptor::create(library, Kind::OPERATIONGRAPH)?;
    graph.set_descriptors(A::OPERATIONGRAPH_OPS, &operations.iter().collect::<Vec<_>>())?;
    graph.finalized()
}

/// The device properties of a profile.
pub(crate) fn device(library: &Arc<Library>, json: &str) -> Result<Descriptor, Error> {
    let mut device = Descriptor::create(library, Kind::DEVICEPROP)?;
    device.set(A::DEVICEPROP_JSON_REPRESENTATION, json.as_bytes())?;
    device.finalized()
}

/// The engine configurations that the heuristics propose, best first.
pub(crate) fn engines(graph: &Descriptor, device: &Descriptor, mode: HeurMode) -> Result<Vec<Descriptor>, Error> {
    let mut heuristics = Descriptor::create(graph.library(), Kind::ENGINEHEUR)?;
    heuristics.set_descriptor(A::ENGINEHEUR_OPERATION_GRAPH, graph)?;
    heuristics.set_one(A::ENGINEHEUR_MODE, mode)?;
    heuristics.set_descriptor(A::ENGINEHEUR_DEVICEPROP, device)?;
    heuristics.finalize()?;
    heuristics.get_descriptors(A::ENGINEHEUR_RESULTS, Kind::ENGINECFG)
}

/// Compiles the first engine configuration that gives a plan.
pub(crate) fn plan(engines: &[Descriptor]) -> Result<Descriptor, Error> {
    let mut last = None;
    for engine in engines {
        let mut plan = Descriptor::create(engine.library(), Kind::EXECUTION_PLAN)?;
        plan.set_descriptor(A::EXECUTION_PLAN_ENGINE_CONFIG, engine)?;
        match plan.finalized() {
            Ok(plan) => return Ok(plan),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("at least one engine configuration was given"))
}
