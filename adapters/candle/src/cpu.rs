//! Computations on the CPU: the oracle, in float64, for tests without a GPU.

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, Storage, Tensor};
use half::{bf16, f16};
use qkvault::exec::Number;
use qkvault::exec::raw::constant_values;
use qkvault::graph::{DType, Valid};
use qkvault::reference::{Buffer, ExactOutputs, Inputs, LaunchJudge, backward, forward};

use crate::Error;
use crate::run::{Made, Run};
use crate::tensor::{dtype, span};

/// Computes the outputs of a run.
pub(crate) fn compute(run: &Run<'_>) -> Result<Vec<Made>, Error> {
    let results = exact(&run.entry.valid, &inputs(run)?)?;
    let made = run.outputs.iter().map(|out| {
        let own = results.buffer(out.role);
        let own = own.ok_or_else(|| Error::Gradient(format!("the oracle computed no {}", out.role)))?;
        Ok((Storage::Cpu(storage(out.dtype, own.bytes())?), out.shape.clone()))
    });
    made.collect()
}

fn exact(valid: &Valid, inputs: &Inputs) -> Result<ExactOutputs, Error> {
    Ok(if valid.is_backward() { backward(valid, inputs) } else { forward(valid, inputs) }?)
}

/// Judges what a launch wrote, each output row by row; all tensors of the run are on the CPU.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "there is no GPU"))]
pub(crate) fn judge(run: &Run<'_>, written: &[CpuStorage]) -> Result<(), Error> {
    let inputs = inputs(run)?;
    let (valid, judge) = (&run.entry.valid, LaunchJudge::new(&run.entry.valid, &inputs));
    let results = exact(valid, &inputs)?;
    let mut faults = Vec::new();
    for (out, written) in run.outputs.iter().zip(written) {
        let lacking = || Error::Gradient(format!("the oracle computed no {}", out.role));
        let expected = results.get(out.role).ok_or_else(lacking)?;
        let bytes = bytes(written, 0, out.shape.elem_count())?;
        faults.extend(judge.judge(expected, &Buffer::new(out.dtype, bytes)?).fault);
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Error::Judged(faults.join("; "))),
    }
}

/// The operands of a run as the oracle reads them.
fn inputs(run: &Run<'_>) -> Result<Inputs, Error> {
    let valid = &run.entry.valid;
    let mut inputs = Inputs::new();
    // A backward of the oracle reads the sink, which the plan of a backward does not.
    for (role, tensor) in &run.inputs {
        inputs.insert(*role, buffer(tensor)?);
    }
    for fact in valid.operand_facts().iter().filter(|fact| fact.role.is_followed()) {
        if let Some(sequences) = run.sequences {
            let numbers = sequences.numbers(fact.role, valid)?;
            inputs.insert(fact.role, Buffer::from_values(fact.dtype, numbers.into_iter().map(|n| n as f64)));
        }
    }
    for (role, dtype, scalar) in &run.entry.scalars {
        let value = match run.number(scalar) {
            Number::F32(x) => f64::from(x),
            Number::I32(x) => f64::from(x),
            Number::I64(x) => x as f64,
        };
        inputs.insert(*role, Buffer::from_values(*dtype, [value]));
    }
    for (role, values) in constant_values(valid) {
        inputs.insert(role, Buffer::from_values(DType::F32, values.iter().map(|x| f64::from(*x))));
    }
    Ok(inputs)
}

/// The memory of a tensor from its first element to its last.
fn buffer(tensor: &Tensor) -> Result<Buffer, Error> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Error::Tensor("a tensor is not on the CPU".to_owned()));
    };
    let dtype = dtype(tensor).ok_or_else(|| Error::Tensor(format!("{:?} is not read", tensor.dtype())))?;
    Ok(Buffer::new(dtype, bytes(storage, layout.start_offset(), span(tensor))?)?)
}

/// Elements of memory of candle's as bytes.
fn bytes(storage: &CpuStorage, start: usize, count: usize) -> Result<Vec<u8>, Error> {
    macro_rules! bytes {
        ($($name:ident),+) => {
            match storage {
                $(CpuStorage::$name(data) => {
                    data[start..start + count].iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>()
                })+
                other => return Err(Error::Tensor(format!("{:?} is not read", other.dtype()))),
            }
        };
    }
    Ok(bytes!(F16, BF16, F32, I32, U32, I64, U8))
}

/// Bytes as memory of candle's.
fn storage(dtype: DType, bytes: &[u8]) -> Result<CpuStorage, Error> {
    let (pairs, words) = (bytes.as_chunks::<2>().0, bytes.as_chunks::<4>().0);
    Ok(match dtype {
        DType::F16 => CpuStorage::F16(pairs.iter().map(|pair| f16::from_ne_bytes(*pair)).collect()),
        DType::BF16 => CpuStorage::BF16(pairs.iter().map(|pair| bf16::from_ne_bytes(*pair)).collect()),
        DType::F32 => CpuStorage::F32(words.iter().map(|word| f32::from_ne_bytes(*word)).collect()),
        other => return Err(Error::Tensor(format!("an output of {other} has no place in candle"))),
    })
}
