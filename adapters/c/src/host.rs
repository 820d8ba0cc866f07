//! Calls of frameworks on the host: what a launch is given is less than what the oracle asks for.

use qkvault::exec::Number;
use qkvault::exec::raw::constant_values;
use qkvault::graph::{DType, Role, Valid, operand, validate};
use qkvault::reference::{Buffer, ExactOutputs, Inputs, backward_of_o, forward};

use crate::oracle::computed;
use crate::status::CallFailure;

/// The outputs of a call with the inputs of a launch: numbers by role beside tensors, without constants. With `of_o`, a
/// backward takes its row sums from the O that is given, as kernels do, and not from the exact one.
pub(crate) fn on_host(
    attention: &Valid,
    mut inputs: Inputs,
    scalars: impl IntoIterator<Item = (Role, DType, Number)>,
    of_o: bool,
) -> Result<ExactOutputs, CallFailure> {
    for (role, dtype, number) in scalars {
        let value = match number {
            Number::F32(x) => f64::from(x),
            Number::I32(x) => f64::from(x),
            Number::I64(x) => x as f64,
        };
        inputs.insert(role, Buffer::from_values(dtype, [value]));
    }
    for (role, values) in constant_values(attention) {
        inputs.insert(role, Buffer::from_values(DType::F32, values.iter().map(|x| f64::from(*x))));
    }
    if operand(attention.get(), Role::Sink).is_some() && inputs.get(Role::Sink).is_none() {
        inputs.insert(Role::Sink, sinks(attention, &inputs)?);
    }
    if of_o {
        return Ok(backward_of_o(attention, &inputs)?);
    }
    computed(attention, &inputs)
}

/// The sinks of a backward, whose launch is not given them because Stats contains them: what Stats has more than the
/// scores. Each is found in the row where it is the largest part.
fn sinks(backward: &Valid, inputs: &Inputs) -> Result<Buffer, CallFailure> {
    let mut plain = backward.as_forward();
    (plain.sink, plain.outputs.stats) = (false, true);
    let scores = forward(&validate(plain)?, inputs)?;
    let tensor = backward.row_tensor();
    let (step, heads) = (tensor.strides[1] as usize, tensor.dims[1] as usize);
    let given = inputs.get(Role::Stats).zip(scores.buffer(Role::Stats));
    let (whole, scores) =
        given.ok_or_else(|| CallFailure::argument("a backward with sinks needs the Stats of its forward"))?;
    let of = |h: usize| {
        let own = (0..whole.len().min(scores.len())).filter(|at| at / step % heads == h);
        let parts = own.map(|at| (1.0 - (scores.get(at) - whole.get(at)).exp(), whole.get(at)));
        let sound = parts.filter(|(part, whole)| *part > 0.0 && *part <= 1.0 && whole.is_finite());
        sound.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(f64::from(f32::MIN), |(part, whole)| whole + part.ln())
    };
    Ok(Buffer::from_values(DType::F32, (0..heads).map(of)))
}
