//! The reverse sweep over an expression: from the gradient of its value to the gradients of the score and of tensors.

use qkvault_graph::expr::{Binary, Node, NodeId, TensorId, Ty, Unary};

use super::{BoundScore, LANES, Registers, scalar};

/// Steps of an argument within which rounding decides on which side of a whole number it is: a product has four.
const FLIPS: f64 = 32.0;

impl BoundScore<'_> {
    /// Computes the gradients of every node from the gradient of the root, for the run of keys in `values`.
    ///
    /// A gradient of zero stays zero, whatever its factor. The arm of a selection that is not taken therefore has no
    /// influence, even if its slope is infinite.
    pub(crate) fn reverse(&self, values: &Registers, upstream: &[f64], gradients: &mut Registers) {
        let (nodes, n) = (self.program.nodes(), upstream.len());
        gradients.resize(nodes.len());
        gradients.0[self.program.root().at() * LANES..][..n].copy_from_slice(upstream);
        for (at, &node) in nodes.iter().enumerate().rev() {
            let id = NodeId(at as u32);
            if self.program.ty(id) != Ty::Float {
                continue;
            }
            let (before, own) = gradients.0.split_at_mut(at * LANES);
            let own = &own[..n];
            let of = |id: NodeId| values.lanes(id, n);
            match node {
                Node::Unary(op, a) => {
                    let slope = |i: usize| scalar::slope(op, of(a)[i], of(id)[i]);
                    add(before, a, own, slope);
                }
                Node::Binary(op, a, b) => {
                    let slopes = |i: usize| scalar::slopes(op, of(a)[i], of(b)[i], of(id)[i]);
                    add(before, a, own, |i| slopes(i)[0]);
                    add(before, b, own, |i| slopes(i)[1]);
                }
                Node::Select { keep, yes, no } => {
                    add(before, yes, own, |i| of(keep)[i]);
                    add(before, no, own, |i| 1.0 - of(keep)[i]);
                }
                // Integers and truth values have no slope.
                Node::ToFloat(_) => {}
                Node::Score
                | Node::Upstream
                | Node::Index(_)
                | Node::Length(_)
                | Node::Float(_)
                | Node::Int(_)
                | Node::Bool(_)
                | Node::Scalar(_)
                | Node::Tensor(_)
                | Node::Compare(..)
                | Node::Not(_)
                | Node::Logic(..) => {}
            }
        }
    }

    /// Whether a function is computed that a device approximates.
    pub(crate) fn approximates(&self) -> bool {
        self.program.nodes().iter().any(|&node| is_approximate(node))
    }

    /// Adds to each key the variance of the roundings of every node, after [`BoundScore::reverse`] from gradients of 1:
    /// of plain operations and of approximate functions, relative to their values. `products` are the errors of the
    /// products that the scores are.
    pub(crate) fn variances(
        &self,
        values: &Registers,
        gradients: &Registers,
        [plain, approximate]: [f64; 2],
        products: &[f64],
        variances: &mut [f64],
    ) {
        let n = variances.len();
        for (at, &node) in self.program.nodes().iter().enumerate() {
            let id = NodeId(at as u32);
            let error = match node {
                _ if self.program.ty(id) != Ty::Float => continue,
                Node::Unary(Unary::Floor | Unary::Ceil, of) => {
                    // Near a whole number the argument's own rounding decides which one it is, and that of the
                    // product that it may be: its terms may be far larger than what is left of them.
                    let near =
                        |x: f64, product: f64| (x - x.round()).abs() <= FLIPS * (plain * x.abs().max(1.0)).max(product);
                    let arguments = values.lanes(of, n).iter().zip(products);
                    for ((sum, (&x, &product)), &gradient) in
                        variances.iter_mut().zip(arguments).zip(gradients.lanes(id, n))
                    {
                        *sum += if near(x, product) { gradient * gradient } else { 0.0 };
                    }
                    continue;
                }
                node if is_approximate(node) => approximate,
                Node::Binary(..) => plain,
                _ => continue,
            };
            for ((sum, &value), &gradient) in variances.iter_mut().zip(values.lanes(id, n)).zip(gradients.lanes(id, n))
            {
                // A node that decides nothing may hold any number.
                if gradient != 0.0 {
                    *sum += (error * value * gradient).powi(2);
                }
            }
        }
    }

    /// The gradient of the score after [`BoundScore::reverse`]; `None` if the expression does not read the score.
    pub(crate) fn score_gradient<'r>(&self, gradients: &'r Registers, n: usize) -> Option<&'r [f64]> {
        self.leaf(Node::Score).map(|id| gradients.lanes(id, n))
    }

    /// The gradient of a tensor's elements, one per key, after [`BoundScore::reverse`].
    pub(crate) fn tensor_gradient<'r>(
        &self,
        tensor: TensorId,
        gradients: &'r Registers,
        n: usize,
    ) -> Option<&'r [f64]> {
        self.leaf(Node::Tensor(tensor)).map(|id| gradients.lanes(id, n))
    }

    /// The node of a leaf. Equal nodes are stored once, so there is at most one.
    fn leaf(&self, leaf: Node) -> Option<NodeId> {
        self.program.nodes().iter().position(|&node| node == leaf).map(|at| NodeId(at as u32))
    }
}

/// Whether a device approximates the operation.
fn is_approximate(node: Node) -> bool {
    match node {
        Node::Unary(op, _) => !matches!(op, Unary::Neg | Unary::Abs | Unary::Relu | Unary::Floor | Unary::Ceil),
        Node::Binary(op, ..) => matches!(op, Binary::Pow | Binary::Atan2),
        _ => false,
    }
}

fn add(gradients: &mut [f64], to: NodeId, own: &[f64], slope: impl Fn(usize) -> f64) {
    let place = &mut gradients[to.at() * LANES..][..own.len()];
    for (i, (sum, &gradient)) in place.iter_mut().zip(own).enumerate() {
        if gradient != 0.0 {
            let slope = slope(i);
            // A slope of zero also stops an infinite gradient.
            if slope != 0.0 {
                *sum += gradient * slope;
            }
        }
    }
}
