//! Bad input on a GPU: each is an error with the reason, and the attention after it is right.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_qkvault::{Error, Options, attention};
use candle_qkvault_examples::plain::{Plain, plain};

use crate::cases::relative;

/// How many were errors of this crate, and the texts of those that were not.
pub(crate) fn run(base: &Options, device: &Device) -> Result<(usize, Vec<String>)> {
    let random = |dims: &[usize]| Tensor::randn(0f32, 1.0, dims, device);
    let half = |dims: &[usize]| random(dims)?.to_dtype(DType::BF16);
    let q = half(&[2, 64, 4, 64])?;
    let mut all: Vec<(&str, Result<Tensor>)> = vec![
        ("float32", attention(&random(&[2, 64, 4, 64])?, &q, &q, base)),
        ("two types", attention(&q, &q.to_dtype(DType::F16)?, &q, base)),
        ("another rank", attention(&q, &half(&[64, 4, 64])?, &q, base)),
        ("heads that do not divide", attention(&q, &half(&[2, 64, 3, 64])?, &half(&[2, 64, 3, 64])?, base)),
        ("another batch", attention(&q, &half(&[3, 64, 4, 64])?, &half(&[3, 64, 4, 64])?, base)),
        ("another head dim", attention(&q, &half(&[2, 64, 4, 32])?, &half(&[2, 64, 4, 32])?, base)),
        ("the head dim is not innermost", attention(&q, &half(&[2, 64, 64, 4])?.transpose(2, 3)?, &q, base)),
        ("one row for all", attention(&q, &half(&[2, 1, 4, 64])?.broadcast_as((2, 64, 4, 64))?, &q, base)),
        ("a sink of another size", attention(&q, &q, &q, &base.clone().sink(&random(&[3])?))),
        ("a bias of another size", attention(&q, &q, &q, &base.clone().bias(&half(&[1, 4, 64, 65])?))),
    ];
    if !device.is_cpu() {
        // On the CPU any address will do, and there is no other device.
        let long = half(&[2 * 64 * 4 * 64 + 8])?;
        let moved = long.narrow(0, 1, 2 * 64 * 4 * 64)?.reshape((2, 64, 4, 64))?;
        all.push(("an address between 16 bytes", attention(&q, &moved, &q, base)));
        all.push(("a tensor on the CPU", attention(&q, &q.to_device(&Device::Cpu)?, &q, base)));
    }
    let tracked = Var::from_tensor(&q)?;
    let o = attention(&tracked, &q, &q, &base.clone().inference(true))?;
    all.push(("a gradient without statistics", o.backward().map(|_| o.clone())));
    let (mut right, mut wrong) = (0, Vec::new());
    for (name, result) in all {
        match result {
            Err(error) if Error::of(&error).is_some() => right += 1,
            Err(error) => wrong.push(format!("{name}: an error of another kind: {error}")),
            Ok(_) => wrong.push(format!("{name} was computed")),
        }
    }
    let off = relative(&attention(&q, &q, &q, base)?, &plain(&q, &q, &q, &Plain::default())?, 0.0)?;
    if off.is_nan() || off > 0.02 {
        wrong.push(format!("the attention after bad input is off by {off}"));
    }
    Ok((right, wrong))
}
