//! Parses a text. Every text gives an attention or an error; [`crate::validate`] checks whether the attention is valid.

use super::ParseError;
use super::cursor::Cursor;
use super::field::{self, Fields};
use super::value::TensorText;
use crate::{Attention, BackwardOptions, Lengths, Mask, Outputs, PaddedRows, Pass, ScoreModBprop};

/// Parses the text form of an attention ([the module](super) describes it).
///
/// # Errors
///
/// The first place that cannot be parsed, with what is there and what was expected.
pub fn parse(text: &str) -> Result<Attention, ParseError> {
    let mut cursor = Cursor::new(text);
    let mut fields = Fields::default();
    cursor.lines();
    while !cursor.rest().is_empty() {
        fields.read(&mut cursor)?;
        cursor.lines();
    }
    attention(text, fields)
}

fn attention(text: &str, fields: Fields) -> Result<Attention, ParseError> {
    let gradient_field = fields.gradient_field();
    let trusted_at = fields.place("trust_score_mod_bprop").unwrap_or_default();
    let q_at = fields.place("q").unwrap_or_default();
    let Fields {
        places: _,
        backward,
        tensors: [q, k, v, o, d_o, d_q, d_k, d_v, d_o_half],
        no_half,
        band,
        lengths,
        mask_mod,
        score_mod,
        score_mod_bprop,
        trusted,
        origins,
        sink,
        dropout,
        block_mask,
        outputs,
        padded_rows,
        invariant,
        draft_tree,
        fp8,
        d_sink,
        deterministic,
    } = fields;
    let backward = backward.unwrap_or(false);
    if let Some((name, at)) = gradient_field
        && !backward
    {
        return Err(ParseError::at(text, at, format!("`{name}` in a forward"), "a line `pass: backward` too"));
    }
    let q = q.ok_or_else(|| {
        let expected = "the field q, which is required: q: bf16 [1,32,512,128]";
        ParseError::at(text, text.len(), "the end of the text", expected)
    })?;
    let dtype = q.dtype.ok_or_else(|| ParseError::at(text, q.at, "dims", "the element type of q before its dims"))?;
    // The default element type is that of Q.
    let tensor = |t: TensorText| t.with(t.dtype.unwrap_or(dtype));
    let q = tensor(q);
    let k = k.map_or(q, tensor);
    let v = v.map_or(k, tensor);
    let o = o.map(tensor).or_else(|| field::output(&q, v.dims[3])).ok_or_else(|| {
        let found = format!("dims {:?}", q.dims);
        ParseError::at(text, q_at, found, "dims whose strides fit 63 bits, or a field o")
    })?;
    let score_mod_bprop = match (score_mod_bprop.flatten(), trusted) {
        (Some(derivative), trusted) => Some(ScoreModBprop { derivative, trusted: trusted.unwrap_or(false) }),
        (None, Some(true)) => {
            let expected = "a line `score_mod_bprop: ..` too";
            return Err(ParseError::at(text, trusted_at, "`trust_score_mod_bprop` without one", expected));
        }
        (None, _) => None,
    };
    let forward = Attention {
        q,
        k,
        v,
        o,
        mask: Mask { band: band.flatten(), lengths: lengths.unwrap_or(Lengths::Full), mask_mod: mask_mod.flatten() },
        score_mod: score_mod.flatten(),
        score_mod_bprop,
        origins: origins.flatten(),
        sink: sink.unwrap_or(false),
        dropout: dropout.flatten(),
        block_mask: block_mask.unwrap_or(false),
        outputs: outputs.unwrap_or(if backward { Outputs::STATS } else { Outputs::NONE }),
        padded_rows: padded_rows.unwrap_or(PaddedRows::Undefined),
        invariant: invariant.unwrap_or(false),
        draft_tree: draft_tree.unwrap_or(false),
        fp8: fp8.flatten(),
        pass: Pass::Forward,
    };
    if !backward {
        return Ok(forward);
    }
    let mut backward = forward.backward(BackwardOptions {
        d_o: d_o.map(tensor),
        d_o_half: d_o_half.map(|t| t.with(t.dtype.unwrap_or(forward.o.dtype))),
        d_q: d_q.map(tensor),
        d_k: d_k.map(tensor),
        d_v: d_v.map(tensor),
        d_sink: d_sink.unwrap_or(false),
        deterministic: deterministic.unwrap_or(false),
    });
    if let (Pass::Backward(gradients), true) = (&mut backward.pass, no_half) {
        gradients.d_o_half = None;
    }
    Ok(backward)
}
