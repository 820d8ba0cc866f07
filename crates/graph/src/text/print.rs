//! Prints an attention as text: every field, always in the same order, so that texts can be compared line by line.

use std::fmt::{self, Write};

use super::layout;
use crate::expr::ScoreExpr;
use crate::{
    Attention, Band, Corner, Dropout, DropoutSource, Fp8, Gradients, Lengths, Mask, Origins, Outputs, PaddedRows, Pass,
    ScoreModBprop, Storage, Tensor,
};

/// Longest expression, in characters, on the line of its field.
const ONE_LINE: usize = 96;

/// The complete text of an attention: [`super::parse`] gives the same attention again, including display names.
#[must_use]
pub fn print(attention: &Attention) -> String {
    let mut text = String::new();
    write(&mut text, attention).expect("writing to a string does not fail");
    text
}

fn write(f: &mut String, attention: &Attention) -> fmt::Result {
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
    } = attention;
    let (direction, gradients) = match pass {
        Pass::Forward => ("forward", None),
        Pass::Backward(gradients) => ("backward", Some(gradients)),
    };
    writeln!(f, "pass: {direction}")?;
    for (name, t) in [("q", q), ("k", k), ("v", v), ("o", o)] {
        tensor(f, name, t)?;
    }
    let Mask { band, lengths, mask_mod } = mask;
    write_band(f, *band)?;
    let lengths = match lengths {
        Lengths::Full => "full",
        Lengths::PerSequence => "per-sequence",
    };
    writeln!(f, "lengths: {lengths}")?;
    expression(f, "mask_mod", mask_mod.as_ref())?;
    expression(f, "score_mod", score_mod.as_ref())?;
    if let Some(ScoreModBprop { derivative, trusted }) = score_mod_bprop {
        expression(f, "score_mod_bprop", Some(derivative))?;
        writeln!(f, "trust_score_mod_bprop: {}", yes(*trusted))?;
    }
    if let Some(origins) = origins {
        let origins = match origins {
            Origins::Any => "any",
            Origins::EveryQuerySeesAKey => "every-query-sees-a-key",
        };
        writeln!(f, "origins: {origins}")?;
    }
    writeln!(f, "sink: {}", yes(*sink))?;
    match dropout {
        None => writeln!(f, "dropout: none")?,
        Some(Dropout { source, probability }) => {
            let source = match source {
                DropoutSource::Philox => "philox",
                DropoutSource::Mask => "mask",
                DropoutSource::Places => "places",
            };
            writeln!(f, "dropout: {source} {probability:?}")?;
        }
    }
    writeln!(f, "block_mask: {}", yes(*block_mask))?;
    let Outputs { stats, max, sum_exp, amax } = *outputs;
    let list = [("stats", stats), ("max", max), ("sum_exp", sum_exp), ("no_amax", !amax)];
    let mut words: Vec<&str> = list.into_iter().filter(|(_, on)| *on).map(|(word, _)| word).collect();
    if words.is_empty() {
        words.push("none");
    }
    writeln!(f, "outputs: {}", words.join(" "))?;
    let padded_rows = match padded_rows {
        PaddedRows::Undefined => "undefined",
        PaddedRows::Zero => "zero",
    };
    writeln!(f, "padded_rows: {padded_rows}")?;
    if *invariant {
        writeln!(f, "invariant: yes")?;
    }
    if *draft_tree {
        writeln!(f, "draft_tree: yes")?;
    }
    let fp8 = match fp8 {
        None => "none",
        Some(Fp8::Delayed) => "delayed",
        Some(Fp8::Current) => "current",
        Some(Fp8::Block) => "block",
        Some(Fp8::Cache) => "cache",
    };
    writeln!(f, "fp8: {fp8}")?;
    if let Some(Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink, deterministic }) = gradients {
        for (name, t) in [("d_o", d_o), ("d_q", d_q), ("d_k", d_k), ("d_v", d_v)] {
            tensor(f, name, t)?;
        }
        match d_o_half {
            Some(t) => tensor(f, "d_o_half", t)?,
            // Without this line, the parser would add the one that such a backward needs.
            None if attention.fp8 == Some(Fp8::Block) => writeln!(f, "d_o_half: none")?,
            None => {}
        }
        writeln!(f, "d_sink: {}", yes(*d_sink))?;
        writeln!(f, "deterministic: {}", yes(*deterministic))?;
    }
    Ok(())
}

const fn yes(on: bool) -> &'static str {
    if on { "yes" } else { "no" }
}

fn tensor(f: &mut String, name: &str, t: &Tensor) -> fmt::Result {
    let Tensor { dims: [b, h, s, d], strides: [sb, sh, ss, sd], dtype, storage } = *t;
    write!(f, "{name}: {dtype} [{b},{h},{s},{d}]")?;
    match storage {
        Storage::Dense => {}
        Storage::Varlen { tokens } => write!(f, " varlen tokens {tokens}")?,
        Storage::Paged { pages, page_size } => write!(f, " paged {pages} x {page_size}")?,
    }
    match layout::word(t) {
        Some(word) => writeln!(f, " {word}"),
        None => writeln!(f, " strides [{sb},{sh},{ss},{sd}]"),
    }
}

fn write_band(f: &mut String, band: Option<Band>) -> fmt::Result {
    let Some(Band { corner, left, right }) = band else { return writeln!(f, "mask: none") };
    match (left, right) {
        (None, Some(0)) => write!(f, "mask: causal")?,
        _ => {
            write!(f, "mask: band")?;
            for (word, bound) in [("left", left), ("right", right)] {
                if let Some(bound) = bound {
                    write!(f, " {word} {bound}")?;
                }
            }
        }
    }
    match corner {
        Corner::TopLeft => writeln!(f),
        Corner::BottomRight => writeln!(f, " bottom-right"),
    }
}

fn expression(f: &mut String, name: &str, e: Option<&ScoreExpr>) -> fmt::Result {
    let Some(e) = e else { return writeln!(f, "{name}: none") };
    let line = e.to_string();
    if line.len() <= ONE_LINE {
        return writeln!(f, "{name}: {line}");
    }
    writeln!(f, "{name}: {{")?;
    for line in format!("{e:#}").lines() {
        writeln!(f, "  {line}")?;
    }
    writeln!(f, "}}")
}
