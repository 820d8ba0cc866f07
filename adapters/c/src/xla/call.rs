//! What a custom call computes: its description, and which argument or result each operand is.
//!
//! Arguments are the description's inputs in its order, less scalars and constants; results are its outputs in its
//! order, then, for a GPU, scratch memory. Scalars are an attribute.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use qkvault::exec::Number;
use qkvault::exec::raw::constant_values;
use qkvault::graph::{DType, Role, Valid, operand, text as form, validate};

use super::cuda::LoadedCall;
use super::frame::{Frame, FrameMemory, U32, code};
use super::plans::CallPlans;
use crate::status::CallFailure;

/// The version of the arguments and attributes. Serialised programs keep it.
pub(super) const VERSION: i32 = 1;

/// An operand that is an argument or a result.
#[derive(Debug)]
pub(super) struct CallOperand {
    pub(super) role: Role,
    pub(super) dtype: DType,
    pub(super) bytes: u64,
    /// Bytes of the array. Kernels may read some more, which XLA's memory has.
    pub(super) held: u64,
    name: String,
    code: c_int,
    /// Its extents in the order of memory, without those of 1.
    dims: Vec<i64>,
}

/// A description with the order of its operands. All calls with equal descriptions share one.
#[derive(Debug)]
pub(super) struct XlaCall {
    text: String,
    pub(super) attention: Valid,
    pub(super) inputs: Vec<CallOperand>,
    pub(super) outputs: Vec<CallOperand>,
    pub(super) scalars: Vec<(Role, DType)>,
    /// Its plans by GPU.
    pub(super) plans: CallPlans<LoadedCall>,
}

/// The calls of the process, by the key in their attributes. Programs are few, and calls are small.
type Calls = RwLock<HashMap<String, Vec<Arc<XlaCall>>>>;

static CALLS: LazyLock<Calls> = LazyLock::new(Calls::default);

impl XlaCall {
    /// What a frame's call computes.
    pub(super) fn from_frame(frame: Frame<'_>) -> Result<Arc<XlaCall>, CallFailure> {
        let (key, text) = (frame.text("key")?, frame.text("text")?);
        let known = |calls: &HashMap<String, Vec<Arc<XlaCall>>>| {
            calls.get(key).and_then(|calls| calls.iter().find(|call| call.text == text)).cloned()
        };
        if let Some(call) = known(&CALLS.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(call);
        }
        let version = frame.integer("v")?;
        if version != VERSION {
            let text =
                format!("the call has version {version}, and this library reads {VERSION}; install qkvault anew");
            return Err(CallFailure::argument(text));
        }
        let call = Arc::new(XlaCall::parsed(text)?);
        let own: String = call.attention.key().bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        if own != key {
            return Err(CallFailure::argument(format!(
                "the call's text has the key {own}, and its attribute says {key}"
            )));
        }
        let mut calls = CALLS.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(call) = known(&calls) {
            return Ok(call);
        }
        calls.entry(key.to_owned()).or_default().push(call.clone());
        Ok(call)
    }

    pub(super) fn parsed(text: &str) -> Result<XlaCall, CallFailure> {
        let attention = validate(form::parse(text)?)?;
        let constants = constant_values(&attention);
        let (mut inputs, mut outputs, mut scalars) = (Vec::new(), Vec::new(), Vec::new());
        for fact in attention.operand_facts() {
            if fact.scalar {
                scalars.push((fact.role, fact.dtype));
            } else if constants.iter().all(|(role, _)| *role != fact.role) {
                // What strides step over: tokens of all sequences, pages and their rows.
                let extents = operand(attention.get(), fact.role).map_or(fact.dims, |o| o.tensor.extents());
                let name = fact.name.map_or_else(|| fact.role.name().into_owned(), str::to_owned);
                let list = if fact.output { &mut outputs } else { &mut inputs };
                list.push(CallOperand::new((fact.role, name), fact.dtype, fact.bytes, extents, fact.strides));
            }
        }
        let (text, plans) = (text.to_owned(), CallPlans::default());
        Ok(XlaCall { text, attention, inputs, outputs, scalars, plans })
    }

    /// The values of the scalars, in their order.
    pub(super) fn numbers(&self, frame: Frame<'_>) -> Result<impl Iterator<Item = Number> + '_, CallFailure> {
        let values = frame.numbers("scalars")?;
        if values.len() != self.scalars.len() {
            let (given, needed) = (values.len(), self.scalars.len());
            return Err(CallFailure::argument(format!("the call has {given} scalars, and its description {needed}")));
        }
        let values: smallvec::SmallVec<[f64; 6]> = values.into();
        Ok(self.scalars.iter().zip(values).map(|((_, dtype), value)| match dtype {
            DType::I32 => Number::I32(value as i32),
            DType::I64 => Number::I64(value as i64),
            _ => Number::F32(value as f32),
        }))
    }

    /// Checks that arguments and results are those of the description. A result more is scratch memory.
    pub(super) fn check(&self, frame: Frame<'_>) -> Result<(), CallFailure> {
        let (arguments, results) = (frame.arguments(), frame.results());
        let (inputs, outputs) = (self.inputs.len(), self.outputs.len());
        if arguments.len() != inputs || !(outputs..=outputs + 1).contains(&results.len()) {
            let (given, got) = (arguments.len(), results.len());
            return Err(CallFailure::argument(format!(
                "the call has {given} arguments and {got} results; its description has {inputs} inputs and {outputs} outputs"
            )));
        }
        let outputs = results.zip(&self.outputs);
        arguments.zip(&self.inputs).chain(outputs).try_for_each(|(memory, operand)| operand.check(memory))
    }
}

impl CallOperand {
    pub(super) fn new(
        (role, name): (Role, String),
        dtype: DType,
        bytes: u64,
        extents: [i64; 4],
        strides: [i64; 4],
    ) -> CallOperand {
        let mut axes: Vec<usize> = (0..4).filter(|&axis| extents[axis] != 1).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(strides[axis]));
        let dims = axes.iter().map(|&axis| extents[axis]).collect();
        let held = extents.iter().fold(dtype.size() as u64, |all, n| all.saturating_mul(n.unsigned_abs()));
        CallOperand { role, dtype, bytes, held, name, code: code(dtype), dims }
    }

    pub(super) fn check(&self, memory: FrameMemory<'_>) -> Result<(), CallFailure> {
        let dims = memory.dims.iter().copied().filter(|&extent| extent != 1);
        let own = self.dims.iter().copied();
        let same = match memory.dtype == U32 && self.dtype == DType::I64 {
            // JAX has 64-bit integers only if a user says so; else each is two words, the lower one first.
            true => dims.eq(own.chain([2])),
            false => memory.dtype == self.code && dims.eq(own),
        };
        if same {
            return Ok(());
        }
        Err(CallFailure::argument(format!(
            "{} is an array {:?} of XLA's type {}; its description has {:?} (less extents of 1) of type {}: a program is \
             for the shapes it was traced with",
            self.name, memory.dims, memory.dtype, self.dims, self.code
        )))
    }
}
