//! The softmax scale of a layer.

use qkvault_graph::Refusal;

use super::dims::Dims;
use super::row::{self, Scale};
use super::stacks::Stack;
use crate::fields::Faults;

/// The scale of the layer at this place.
pub(super) fn read(stack: &Stack<'_>, dims: &Dims, index: usize, faults: &mut Faults) -> f64 {
    let fields = &stack.fields;
    let d = dims.d_qk as f64;
    let row = stack.row.unwrap_or(row::usual());
    match row.scale {
        Scale::One => return 1.0,
        Scale::Inverse => return 1.0 / d,
        Scale::HalfDim => return 1.0 / (d / 2.0).sqrt(),
        Scale::Fields => {}
    }
    let given = &["attention_multiplier", "attn_config.softmax_scale", "attention_softmax_scale"];
    if let Some(scale) = faults.take(fields.float(given)) {
        return scale;
    }
    if let Some(scalar) = faults.take(fields.float(&["query_pre_attn_scalar"])) {
        return 1.0 / scalar.sqrt();
    }
    let inverse = &["mup_scale_qk_dot_by_d", "scale_qk_dot_by_d"];
    if faults.take(fields.flag(inverse)) == Some(true) {
        return 1.0 / d;
    }
    let plain = fields.flag(&["scale_attn_weights"]).ok().flatten() == Some(false);
    let mut scale = if plain { 1.0 } else { 1.0 / d.sqrt() };
    if fields.flag(&["scale_attn_by_inverse_layer_idx"]).ok().flatten() == Some(true) {
        scale /= index as f64 + 1.0;
    }
    if dims.latent.is_some() && !row.no_yarn { scale * yarn(stack, faults) } else { scale }
}

/// With YaRN, the scale of latent attention is multiplied by the square of `0.1 * mscale_all_dim * ln(factor) + 1`.
fn yarn(stack: &Stack<'_>, faults: &mut Faults) -> f64 {
    for part in ["rope_parameters", "rope_scaling"] {
        let name = |field: &str| format!("{part}.{field}");
        let Some((_, serde_json::Value::Object(_))) = stack.fields.value(&[part]) else { continue };
        let kind = [name("rope_type"), name("type")];
        let kind = kind.iter().find_map(|name| stack.fields.text(&[name.as_str()]));
        if kind.is_none_or(|kind| kind == "default") {
            continue;
        }
        let mut float = |field: &str| faults.take(stack.fields.float(&[name(field).as_str()]).or_else(zero));
        let (factor, mscale) = (float("factor").unwrap_or(1.0), float("mscale_all_dim").unwrap_or(0.0));
        let grow = if factor > 1.0 { 0.1 * mscale * factor.ln() + 1.0 } else { 1.0 };
        return grow * grow;
    }
    1.0
}

/// A factor of zero means that there is none.
fn zero(refusal: Refusal) -> Result<Option<f64>, Refusal> {
    let none = refusal.reasons().iter().all(|reason| matches!(reason.given.as_str(), "0" | "0.0"));
    if none { Ok(None) } else { Err(refusal) }
}
