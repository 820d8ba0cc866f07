//! The serde form of an attention: its fields, and in front of them the format that they are written in.
//!
//! Every field is written, absent ones as null, and every field must be there to be read: what an older or newer qkvault left out is not
//! taken for "none". A field that this one does not know is an error. Format 1 is read for ever; a field that is added to it later gets a
//! default on purpose, with which it means what format 1 meant.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::attention::{Attention, Dropout, Fp8, Outputs, PaddedRows, Pass, ScoreModBprop};
use crate::expr::ScoreExpr;
use crate::{Mask, Tensor};

/// The format of what is written: the number under `qkvault` in the JSON of an attention.
pub const ATTENTION_FORMAT: u32 = 1;

/// Reads an optional field that must be there, as null or as a value: serde takes a missing one for null otherwise.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

/// The number in front, checked before anything that follows is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format;

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(ATTENTION_FORMAT)
    }
}

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Format, D::Error> {
        match u32::deserialize(from)? {
            ATTENTION_FORMAT => Ok(Format),
            0 => Err(de::Error::custom(format_args!(
                "there is no format 0 of attentions; this qkvault writes {ATTENTION_FORMAT}"
            ))),
            newer => Err(de::Error::custom(format_args!(
                "written by a newer qkvault (format {newer}), this one reads {ATTENTION_FORMAT}; read it with that one, or write it as text"
            ))),
        }
    }
}

/// An attention with its format.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttentionForm {
    #[serde(default)]
    qkvault: Option<Format>,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    mask: Mask,
    #[serde(deserialize_with = "present")]
    score_mod: Option<ScoreExpr>,
    sink: bool,
    #[serde(deserialize_with = "present")]
    dropout: Option<Dropout>,
    block_mask: bool,
    outputs: Outputs,
    padded_rows: PaddedRows,
    #[serde(deserialize_with = "present")]
    fp8: Option<Fp8>,
    pass: Pass,
    // The last, because where it is left out a list of fields is one shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    score_mod_bprop: Option<ScoreModBprop>,
}

/// An attention that does not say its format.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "an attention says its format in the field `qkvault`, and there is none; write `\"qkvault\": {ATTENTION_FORMAT}` in front of `q`"
)]
pub(crate) struct NoFormat;

impl TryFrom<AttentionForm> for Attention {
    type Error = NoFormat;

    fn try_from(form: AttentionForm) -> Result<Attention, NoFormat> {
        let AttentionForm {
            qkvault,
            q,
            k,
            v,
            o,
            mask,
            score_mod,
            score_mod_bprop,
            sink,
            dropout,
            block_mask,
            outputs,
            padded_rows,
            fp8,
            pass,
        } = form;
        let Format = qkvault.ok_or(NoFormat)?;
        Ok(Attention {
            q,
            k,
            v,
            o,
            mask,
            score_mod,
            score_mod_bprop,
            sink,
            dropout,
            block_mask,
            outputs,
            padded_rows,
            fp8,
            pass,
        })
    }
}

impl From<Attention> for AttentionForm {
    fn from(attention: Attention) -> AttentionForm {
        let Attention {
            q,
            k,
            v,
            o,
            mask,
            score_mod,
            score_mod_bprop,
            sink,
            dropout,
            block_mask,
            outputs,
            padded_rows,
            fp8,
            pass,
        } = attention;
        let qkvault = Some(Format);
        AttentionForm {
            qkvault,
            q,
            k,
            v,
            o,
            mask,
            score_mod,
            score_mod_bprop,
            sink,
            dropout,
            block_mask,
            outputs,
            padded_rows,
            fp8,
            pass,
        }
    }
}
