//! Computations on the CPU: the oracle, in float64, for tests without a GPU.

use candle_core::{CpuStorage, Storage, Tensor};
use half::{bf16, f16};
use qkvault::exec::Number;
use qkvault::exec::raw::constant_values;
use qkvault::graph::DType;
use qkvault::reference::{Buffer, Inputs, backward, forward};

use crate::Error;
use crate::run::{Made, Run};
use crate::tensor::{dtype, span};

/// Computes the outputs of a run.
pub(crate) fn compute(run: &Run<'_>) -> Result<Vec<Made>, Error> {
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
    let results = if valid.is_backward() { backward(valid, &inputs) } else { forward(valid, &inputs) }?;
    let made = run.outputs.iter().map(|out| {
        let own = results.buffer(out.role);
        let own = own.ok_or_else(|| Error::Gradient(format!("the oracle computed no {}", out.role)))?;
        Ok((Storage::Cpu(storage(out.dtype, own.bytes())?), out.shape.clone()))
    });
    made.collect()
}

/// The memory of a tensor from its first element to its last.
fn buffer(tensor: &Tensor) -> Result<Buffer, Error> {
    let (storage, layout) = tensor.storage_and_layout();
    let (start, end) = (layout.start_offset(), layout.start_offset() + span(tensor));
    macro_rules! bytes {
        ($($name:ident),+) => {
            match &*storage {
                $(Storage::Cpu(CpuStorage::$name(data)) => {
                    data[start..end].iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>()
                })+
                _ => return Err(Error::Tensor("a tensor is not on the CPU".to_owned())),
            }
        };
    }
    let bytes = bytes!(F16, BF16, F32, I32, U32, I64, U8);
    let dtype = dtype(tensor).ok_or_else(|| Error::Tensor(format!("{:?} is not read", tensor.dtype())))?;
    Ok(Buffer::new(dtype, bytes)?)
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
