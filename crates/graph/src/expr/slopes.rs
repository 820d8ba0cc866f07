//! The longer formulas of derivatives: bell curves, and the activations made from them.

use super::node::NodeId;
use super::ops::{Binary, Unary};
use super::simplify::Simplifier;

/// `1 - y^2`, with the variable part first.
pub(super) fn one_minus_square(s: &mut Simplifier, y: NodeId) -> NodeId {
    let (square, one) = (s.mul(y, y), s.literal(1.0));
    s.sub(one, square)
}

/// `e^(-a^2 * by)`.
pub(super) fn bell(s: &mut Simplifier, a: NodeId, by: f64) -> NodeId {
    let (square, by) = (s.mul(a, a), s.literal(-by));
    let exponent = s.mul(square, by);
    s.unary(Unary::Exp, exponent)
}

/// `(1 + erf(a / sqrt 2)) / 2 + a * e^(-a^2 / 2) / sqrt(2 pi)`.
pub(super) fn gelu_slope(s: &mut Simplifier, a: NodeId) -> NodeId {
    let root = s.literal(std::f64::consts::FRAC_1_SQRT_2);
    let scaled = s.mul(a, root);
    let erf = s.unary(Unary::Erf, scaled);
    let half = s.literal(0.5);
    let rise = s.mul(erf, half);
    let rise = s.add(rise, half);
    let (bell, density) =
        (bell(s, a, 0.5), s.literal(0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2));
    let weighted = s.mul(a, bell);
    let weighted = s.mul(weighted, density);
    s.add(rise, weighted)
}

/// With `t = tanh(k (a + c a^3))`: `(1 + t) / 2 + a / 2 * (1 - t^2) * k (1 + 3 c a^2)`.
pub(super) fn gelu_tanh_slope(s: &mut Simplifier, a: NodeId) -> NodeId {
    let (k, c) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044_715);
    let square = s.mul(a, a);
    let cube = s.mul(square, a);
    let [k_node, kc, k3c, half] = [k, k * c, 3.0 * k * c, 0.5].map(|value| s.literal(value));
    let (low, high) = (s.mul(a, k_node), s.mul(cube, kc));
    let inner = s.add(low, high);
    let t = s.unary(Unary::Tanh, inner);
    let rise = s.mul(t, half);
    let rise = s.add(rise, half);
    // Bounded, because beyond 1e19 the square is infinite and the bend 0.
    let bound = s.literal(1e30);
    let bounded = s.binary(Binary::Min, square, bound);
    let steep = s.mul(bounded, k3c);
    let steep = s.add(steep, k_node);
    let bend = one_minus_square(s, t);
    let product = s.mul(a, bend);
    let product = s.mul(product, steep);
    let product = s.mul(product, half);
    s.add(rise, product)
}
