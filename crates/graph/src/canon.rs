//! Canonical bytes, which are hashed. They are equal exactly if the meaning is equal.
//!
//! Everything is written as MessagePack arrays of numbers. Enumerations have numbers here that do not depend on names
//! or declaration order. Every struct is destructured without `..`, so that a new field cannot be forgotten. Display
//! names and values that a launch gets are left out.

use serde::Serialize;

use crate::expr::{AlibiSlopes, Node, ScoreExpr, TensorSpec};
use crate::{
    Attention, Band, Corner, Dropout, DropoutSource, Fp8, Gradients, Lengths, Mask, Origins, Outputs, PaddedRows, Pass,
    ScoreModBprop, Storage, Tensor, Valid, codec,
};

/// The canonical bytes of a valid attention.
#[must_use]
pub fn bytes(valid: &Valid) -> Vec<u8> {
    attention(valid.get())
}

/// The same of an attention in canonical form, before it is a valid one.
pub(crate) fn attention(canonical: &Attention) -> Vec<u8> {
    let Attention {
        q,
        k,
        v,
        o,
        mask,
        score_mod,
        score_mod_bprop,
        origins,
        sink,
        dropout,
        block_mask,
        outputs,
        padded_rows,
        invariant,
        draft_tree,
        fp8,
        pass,
    } = canonical;
    let Outputs { stats, max, sum_exp, amax } = *outputs;
    let padded_rows = match padded_rows {
        PaddedRows::Undefined => 0_u8,
        PaddedRows::Zero => 1,
    };
    // Only 8-bit attentions have largest magnitudes; without them, 16 is added.
    let fp8 = fp8.map(|scaling| {
        let scaling = match scaling {
            Fp8::Delayed => 1_u8,
            Fp8::Current => 2,
            Fp8::Block => 3,
            Fp8::Cache => 4,
        };
        if amax { scaling } else { scaling + 16 }
    });
    // The dropout probability is a scalar: its value is not part of the key.
    let dropout = dropout.map(|Dropout { source, probability: _ }| match source {
        DropoutSource::Philox => 1_u8,
        DropoutSource::Mask => 2,
        DropoutSource::Places => 3,
    });
    let operands = [q, k, v, o].map(tensor);
    let features =
        (score_mod.as_ref().map(expression), sink, dropout, block_mask, (stats, max, sum_exp), padded_rows, fp8);
    let pass = match pass {
        Pass::Forward => None,
        Pass::Backward(Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink, deterministic }) => {
            // The length of the list tells whether there is a 16-bit dO.
            let tensors: Vec<_> = [d_o, d_q, d_k, d_v].into_iter().chain(d_o_half).map(tensor).collect();
            Some((tensors, d_sink, deterministic))
        }
    };
    let mut bytes = codec::encode(&(operands, mask_bytes(mask), features, pass));
    if let (Some(score_mod), Some(ScoreModBprop { derivative, trusted: _ })) = (score_mod, score_mod_bprop) {
        // Only display names tell which of two scalars the derivative reads, so their places in the modification are
        // written, in the order of each table.
        let places = |names: &[String], of: &[String]| -> Vec<usize> {
            names.iter().map(|name| of.iter().position(|n| n == name).unwrap_or(of.len())).collect()
        };
        let scalars = places(derivative.scalar_names(), score_mod.scalar_names());
        let tensors = places(derivative.tensor_names(), score_mod.tensor_names());
        bytes.extend(codec::encode(&(expression(derivative), scalars, tensors)));
    }
    // A number, where the author's derivative is a list. Keys of attentions without origins stay unchanged.
    if let Some(origins) = origins {
        let code = match origins {
            Origins::Any => 1_u8,
            Origins::EveryQuerySeesAKey => 2,
        };
        bytes.extend(codec::encode(&code));
    }
    // A flag, where origins are a number; keys of other attentions stay unchanged.
    if *invariant {
        bytes.extend(codec::encode(invariant));
    }
    // A text, where the two before are a number and a flag.
    if *draft_tree {
        bytes.extend(codec::encode(&"draft tree"));
    }
    bytes
}

fn tensor(t: &Tensor) -> impl Serialize + use<> {
    let Tensor { dims, strides, dtype, storage } = *t;
    let storage = match storage {
        Storage::Dense => (0_u8, 0, 0),
        Storage::Varlen { tokens } => (1, tokens, 0),
        Storage::Paged { pages, page_size } => (2, pages, page_size),
    };
    (dims, strides, dtype.code(), storage)
}

fn mask_bytes(mask: &Mask) -> impl Serialize + use<> {
    let Mask { band, lengths, mask_mod } = mask;
    let band = band.map(|Band { corner, left, right }| {
        let corner = match corner {
            Corner::TopLeft => 1_u8,
            Corner::BottomRight => 2,
        };
        (corner, left, right)
    });
    let lengths = match lengths {
        Lengths::Full => 0_u8,
        Lengths::PerSequence => 1,
    };
    (band, lengths, mask_mod.as_ref().map(expression))
}

/// An expression: its nodes in canonical order, and the kinds of its scalars and tensors, without names.
fn expression(e: &ScoreExpr) -> impl Serialize + use<> {
    let nodes: Vec<(u8, u8, Vec<i64>)> = e.nodes().iter().map(node).collect();
    let scalars: Vec<u8> = e.scalars().iter().map(|crate::expr::ScalarSpec { ty }| ty.code()).collect();
    let tensors: Vec<_> = e.tensors().iter().map(tensor_spec).collect();
    (nodes, scalars, tensors, e.root().0)
}

/// A tensor of an expression. Slopes follow only if there are any, so that keys of other tensors stay unchanged.
fn tensor_spec(spec: &TensorSpec) -> SpecForm {
    let TensorSpec { dims, dtype, grad, alibi } = *spec;
    match alibi {
        None => SpecForm::Bound(dims, dtype.code(), grad.code()),
        Some(AlibiSlopes { model_heads, first_head, bias_max }) => {
            SpecForm::Slopes(dims, dtype.code(), grad.code(), (model_heads, first_head, bias_max.bits()))
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum SpecForm {
    Bound([i64; 4], u8, u8),
    Slopes([i64; 4], u8, u8, (u32, u32, u32)),
}

/// (kind, operation, operands or value).
fn node(n: &Node) -> (u8, u8, Vec<i64>) {
    let id = |n: crate::expr::NodeId| i64::from(n.0);
    let (op, args) = match *n {
        Node::Score | Node::Upstream => (0, vec![]),
        Node::Index(axis) => (axis.dim() as u8, vec![]),
        Node::Length(side) => (side.code(), vec![]),
        Node::Float(x) => (0, vec![i64::from(x.bits())]),
        Node::Int(x) => (0, vec![i64::from(x)]),
        Node::Bool(x) => (0, vec![i64::from(x)]),
        Node::Scalar(s) => (0, vec![i64::from(s.0)]),
        Node::Tensor(t) => (0, vec![i64::from(t.0)]),
        Node::ToFloat(a) | Node::Not(a) => (0, vec![id(a)]),
        Node::Unary(op, a) => (op.code(), vec![id(a)]),
        Node::Binary(op, a, b) => (op.code(), vec![id(a), id(b)]),
        Node::Compare(op, a, b) => (op.code(), vec![id(a), id(b)]),
        Node::Logic(op, a, b) => (op.code(), vec![id(a), id(b)]),
        Node::Select { keep, yes, no } => (0, vec![id(keep), id(yes), id(no)]),
    };
    (n.code(), op, args)
}
