//! Computations on the CPU: the oracle, in float64, for tests without a GPU. Flex's tensors are copied without gaps, in
//! the order in which they lie.

use std::sync::Arc;

use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_backend::{ExecutionError, TensorData, TensorMetadata as _, read_sync};
use burn_flex::Flex;
use burn_tensor::Tensor;
use burn_tensor::ops::{FloatTensorOps as _, IntTensorOps as _};
use qkvault::exec::Number;
use qkvault::exec::raw::constant_values;
use qkvault::graph::{DType, Role, Valid};
use qkvault::reference::{Buffer, Inputs, backward, forward};

use crate::backend::{AttentionBackend, Compute};
use crate::known::Entry;
use crate::options::Plain;
use crate::run::{self, Call, Run};
use crate::tensor::{Lie, Order, burn_dtype, dtype};
use crate::{Error, Options, Sequences};

impl AttentionBackend for Flex {
    fn attend(call: Call<Flex>) -> Result<FloatTensor<Flex>, Error> {
        Ok(run::forward(call, None)?.o)
    }

    fn describe(call: Call<Flex>) -> Result<Vec<Valid>, Error> {
        run::describe(call, None)
    }
}

impl Compute for Flex {
    fn lie(tensor: &FloatTensor<Flex>) -> Lie {
        let dims = tensor.shape().to_vec();
        let strides: Vec<usize> = tensor.layout().strides().iter().map(|n| n.unsigned_abs()).collect();
        let rows = Lie::made(&dims, Order::RowsOutside);
        match Lie::new(&dims, &strides).is_same(&rows) && !tensor.is_contiguous() {
            true => rows,
            false => Lie::contiguous(&dims),
        }
    }

    fn readable(tensor: FloatTensor<Flex>) -> FloatTensor<Flex> {
        tensor
    }

    fn ordered(tensor: FloatTensor<Flex>, order: Order) -> FloatTensor<Flex> {
        match order == Order::RowsOutside && tensor.rank() == 4 {
            true => tensor.transpose(1, 2).to_contiguous().transpose(1, 2),
            false => tensor.to_contiguous(),
        }
    }

    fn whole(tensor: IntTensor<Flex>) -> IntTensor<Flex> {
        tensor
    }

    fn prepare(_: &Entry, _: &Plain, _: &FloatTensor<Flex>) -> Result<(), Error> {
        Ok(())
    }

    fn compute(run: Run<'_, Flex>) -> Result<Vec<FloatTensor<Flex>>, Error> {
        let inputs = inputs(&run)?;
        let valid = &run.entry.valid;
        let results = if valid.is_backward() { backward(valid, &inputs) } else { forward(valid, &inputs) }?;
        let device = burn_flex::FlexDevice;
        let made = run.outputs.iter().map(|out| {
            let own = results.buffer(out.role);
            let own = own.ok_or_else(|| Error::Device(format!("the oracle computed no {}", out.role)))?;
            let mut dims = out.dims.clone();
            let turned = dims.len() == 4 && out.lie.order() == Order::RowsOutside;
            if turned {
                dims.swap(1, 2);
            }
            let data = TensorData::from_bytes_vec(own.into_bytes(), dims, burn_dtype(out.dtype)?);
            let made = Flex::float_from_data(data, &device);
            Ok(if turned { made.transpose(1, 2) } else { made })
        });
        made.collect()
    }
}

/// The operands of a run as the oracle reads them.
fn inputs(run: &Run<'_, Flex>) -> Result<Inputs, Error> {
    let valid = &run.entry.valid;
    let mut inputs = Inputs::new();
    // A backward of the oracle reads the sink, which the plan of a backward does not.
    for (role, tensor) in &run.inputs {
        let turned = tensor.rank() == 4 && Flex::lie(tensor).order() == Order::RowsOutside;
        let tensor = if turned { tensor.transpose(1, 2) } else { tensor.clone() };
        inputs.insert(*role, buffer(read_sync(Flex::float_into_data(tensor)))?);
    }
    if let Some((role, mask)) = &run.mask {
        inputs.insert(*role, buffer(read_sync(Flex::int_into_data(mask.clone())))?);
    }
    for (role, dtype) in followed(valid) {
        if let Some(sequences) = run.sequences {
            let numbers = sequences.numbers(role, valid)?;
            inputs.insert(role, Buffer::from_values(dtype, numbers.into_iter().map(|n| n as f64)));
        }
    }
    for &(role, dtype, scalar) in &run.entry.scalars {
        let value = match run.number(scalar) {
            Number::F32(x) => f64::from(x),
            Number::I32(x) => f64::from(x),
            Number::I64(x) => x as f64,
        };
        inputs.insert(role, Buffer::from_values(dtype, [value]));
    }
    for (role, values) in constant_values(valid) {
        inputs.insert(role, Buffer::from_values(DType::F32, values.iter().map(|x| f64::from(*x))));
    }
    Ok(inputs)
}

/// The description and the operands of a call and of its backward, for programs that judge launches: the oracle's
/// forward gives the backward O and the statistics. `tracked` says which of q, k, v, bias, slopes and sink get
/// gradients.
///
/// # Errors
///
/// As [`attention`](crate::attention).
#[doc(hidden)]
pub fn operands<const D: usize>(
    tensors: [Tensor<Flex, D>; 3],
    sequences: Option<&Arc<Sequences>>,
    options: &Options<Flex>,
    tracked: [bool; 6],
    d_o: Tensor<Flex, D>,
) -> Result<[(Valid, Inputs); 2], Error> {
    let call = crate::attention::call(tensors, sequences, options);
    run::forward(call, Some(tracked))?
        .each_run(tracked, d_o.into_primitive().tensor(), |run| Ok((run.entry.valid.clone(), inputs(run)?)))
}

fn followed(valid: &Valid) -> Vec<(Role, DType)> {
    valid.operand_facts().iter().filter(|fact| fact.role.is_followed()).map(|fact| (fact.role, fact.dtype)).collect()
}

fn buffer(data: Result<TensorData, ExecutionError>) -> Result<Buffer, Error> {
    let data = data.map_err(|error| Error::Device(error.to_string()))?;
    let own = dtype(data.dtype).ok_or_else(|| Error::Tensor(format!("{:?} is not read", data.dtype)))?;
    Ok(Buffer::new(own, data.bytes.to_vec())?)
}
