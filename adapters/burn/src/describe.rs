//! The description of a call: options and tensors as an attention of qkvault.

use qkvault::graph::expr::{Expr, ExprErrors, TensorSpec, key, library, position, scalar, score, tensor};
use qkvault::graph::{self, Attention, BackwardOptions, Band, Corner, DType, Valid, validate};

use crate::Error;
use crate::known::{Key, Sizes};
use crate::run;
use crate::tensor::{Lie, MOST, Order, long};

/// Names of what expressions read.
pub(crate) const BIAS: &str = "bias";
pub(crate) const SLOPES: &str = "alibi_slopes";
pub(crate) const MASK: &str = "mask";
pub(crate) const SOFTCAP: &str = "softcap";

/// The description of a forward, or of its backward.
pub(crate) fn valid(of: &Key) -> Result<Valid, Error> {
    let forward = forward(of)?;
    let Some(tracked) = of.backward else { return Ok(validate(forward)?) };
    // The gradient of the output lies as the output; gradients are new tensors in the order of what they are of.
    let options = BackwardOptions {
        d_o: Some(forward.o),
        d_q: Some(made(&of.q, forward.q)),
        d_k: Some(made(&of.k, forward.k)),
        d_v: Some(made(&of.v, forward.v)),
        d_sink: tracked[run::SINK],
        deterministic: of.deterministic,
        ..BackwardOptions::default()
    };
    Ok(validate(forward.backward(options))?)
}

fn forward(of: &Key) -> Result<Attention, Error> {
    let [q, k, v] = match of.sizes {
        Sizes::Dense => [of.q, of.k, of.v].map(|lie| lie.bhsd(of.dtype)),
        Sizes::Varlen { batch, queries, keys } => {
            [(of.q, queries), (of.k, keys), (of.v, keys)].map(|(lie, most)| lie.varlen(batch, most, of.dtype))
        }
    };
    let o = made(&of.q, graph::Tensor { dims: [q.dims[0], q.dims[1], q.dims[2], v.dims[3]], ..q });
    let mut attention = Attention::forward(q, k, v, o);
    if of.sizes != Sizes::Dense {
        attention = attention.with_lengths();
    }
    if of.left.is_some() || of.right.is_some() {
        let bound = |keys: usize| long(keys);
        // Here a window counts the query's own key, in the options it does not.
        let left = of.left.map(|keys| bound(keys).saturating_add(1));
        attention = attention.with_band(Band { corner: Corner::BottomRight, left, right: of.right.map(bound) });
    }
    attention.score_mod = scores(of).map(|own| own.build_score_mod().map_err(wrong)).transpose()?;
    attention.mask.mask_mod = of.mask.map(|dims| seen(dims).build_mask_mod().map_err(wrong)).transpose()?;
    attention.sink = of.sink;
    attention.outputs.stats = of.stats;
    Ok(attention)
}

/// The scores of a call, if they are more than the product.
fn scores(of: &Key) -> Option<Expr> {
    let tracked = of.backward.unwrap_or_default();
    let spec = |(dtype, dims), place: usize| {
        let spec = TensorSpec::new(dtype, dims);
        if tracked[place] { spec.with_grad() } else { spec }
    };
    let mut modified = score();
    if of.softcap {
        modified = library::softcap(modified, scalar(SOFTCAP));
    }
    if let Some(slopes) = of.slopes {
        modified = modified - tensor(SLOPES, spec(slopes, run::SLOPES)) * (position() - key()).abs();
    }
    if let Some(bias) = of.bias {
        modified = library::bias(modified, BIAS, spec(bias, run::BIAS));
    }
    (of.softcap || of.slopes.is_some() || of.bias.is_some()).then_some(modified)
}

/// Keys that are seen: those whose number is zero.
fn seen(dims: [i64; 4]) -> Expr {
    tensor(MASK, TensorSpec::new(DType::I32, dims)).eq(0)
}

fn wrong(errors: ExprErrors) -> Error {
    Error::Tensor(format!("the options make no expression: {errors}"))
}

/// The extents of a tensor in new memory without gaps, in the order of another.
fn made(like: &Lie, of: graph::Tensor) -> graph::Tensor {
    let [_, h, s, d] = of.dims;
    let strides = match (of.storage, like.order()) {
        (graph::Storage::Varlen { .. }, _) => [s.saturating_mul(h * d), d, h * d, 1],
        (_, Order::RowsOutside) => [s * h * d, d, h * d, 1],
        (_, Order::HeadsOutside) => [h * s * d, s * d, d, 1],
    };
    graph::Tensor { strides, ..of }
}

const _: () = assert!(MOST == 4, "descriptions have four dims");
