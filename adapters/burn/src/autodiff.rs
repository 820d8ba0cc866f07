//! The attention as an operation of burn's autodiff.

use std::array;
use std::sync::Arc;

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_backend::tensor::FloatTensor;
use burn_tensor::backend::AutodiffBackend;
use qkvault::graph::Valid;

use crate::Error;
use crate::backend::{AttentionBackend, Compute};
use crate::run::{Call, Forward, PLACES, Q, backward, describe, forward};

/// The operation. What its backward reads is its state.
#[derive(Debug)]
struct Attend;

/// What a backward reads, and which tensors are tracked.
type State<B> = (Arc<Forward<B>>, [bool; PLACES]);

impl<B: Compute> Backward<B, PLACES> for Attend {
    type State = State<B>;

    fn backward(self, ops: Ops<State<B>, PLACES>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d_o = grads.consume::<B>(&ops.node);
        let (of, tracked) = ops.state;
        let gradients = backward(&of, d_o, tracked);
        // burn's backward returns nothing. What can be known of a refusal is told by the forward.
        let gradients = gradients.unwrap_or_else(|error| panic!("the backward of an attention: {error}"));
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: Compute, C: CheckpointStrategy> AttentionBackend for Autodiff<B, C> {
    fn attend(call: Call<Self>) -> Result<FloatTensor<Self>, Error> {
        let Call { floats, .. } = &call;
        let tracked = tracked(&call);
        let Some(q) = &floats[Q] else { return Err(Error::Tensor("q is missing".to_owned())) };
        // The node of places without a tensor, which is not tracked.
        let none = <Autodiff<B, C> as AutodiffBackend>::from_inner(q.primitive.clone());
        let nodes = array::from_fn(|place| floats[place].as_ref().unwrap_or(&none).node.clone());
        let inner = inner(call);
        match Attend.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let of: Forward<B> = forward(inner, Some(tracked))?;
                let o = of.o.clone();
                Ok(prep.finish((Arc::new(of), tracked), o))
            }
            OpsKind::UnTracked(prep) => {
                let of: Forward<B> = forward(inner, None)?;
                Ok(prep.finish(of.o))
            }
        }
    }

    fn describe(call: Call<Self>) -> Result<Vec<Valid>, Error> {
        let tracked = tracked(&call);
        describe(inner(call), tracked.contains(&true).then_some(tracked))
    }
}

/// Which tensors get gradients.
fn tracked<B: Compute, C: CheckpointStrategy>(of: &Call<Autodiff<B, C>>) -> [bool; PLACES] {
    array::from_fn(|place| of.floats[place].as_ref().is_some_and(|own| own.is_tracked()))
}

/// The call over the backend below.
fn inner<B: Compute, C: CheckpointStrategy>(of: Call<Autodiff<B, C>>) -> Call<B> {
    let Call { plain, floats, mask, sequences } = of;
    Call { plain, floats: floats.map(|own| own.map(|own| own.primitive)), mask, sequences }
}
