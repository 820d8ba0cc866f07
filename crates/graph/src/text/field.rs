//! The fields of a text, each given at most once, and the defaults of those left out.

use super::ParseError;
use super::cursor::{Cursor, one_of};
use super::layout;
use super::value::{self, TensorText};
use crate::expr::ScoreExpr;
use crate::{Band, Dropout, Fp8, Lengths, Origins, Outputs, PaddedRows, Tensor};

/// Names of the fields, in the order in which they are printed.
pub(super) const NAMES: [&str; 27] = [
    "pass",
    "q",
    "k",
    "v",
    "o",
    "mask",
    "lengths",
    "mask_mod",
    "score_mod",
    "score_mod_bprop",
    "trust_score_mod_bprop",
    "origins",
    "sink",
    "dropout",
    "block_mask",
    "outputs",
    "padded_rows",
    "invariant",
    "draft_tree",
    "fp8",
    "d_o",
    "d_q",
    "d_k",
    "d_v",
    "d_o_half",
    "d_sink",
    "deterministic",
];

/// The fields that a text gives; `None` for those left out.
#[derive(Default)]
pub(super) struct Fields {
    /// The start of each field of the text, by name.
    pub(super) places: Vec<(&'static str, usize)>,
    pub(super) backward: Option<bool>,
    /// Q, K, V, O, dO, dQ, dK, dV, dO in 16 bits.
    pub(super) tensors: [Option<TensorText>; 9],
    /// Whether the text says that there is no 16-bit dO.
    pub(super) no_half: bool,
    pub(super) band: Option<Option<Band>>,
    pub(super) lengths: Option<Lengths>,
    pub(super) mask_mod: Option<Option<ScoreExpr>>,
    pub(super) score_mod: Option<Option<ScoreExpr>>,
    pub(super) score_mod_bprop: Option<Option<ScoreExpr>>,
    pub(super) trusted: Option<bool>,
    pub(super) origins: Option<Option<Origins>>,
    pub(super) sink: Option<bool>,
    pub(super) dropout: Option<Option<Dropout>>,
    pub(super) block_mask: Option<bool>,
    pub(super) outputs: Option<Outputs>,
    pub(super) padded_rows: Option<PaddedRows>,
    pub(super) invariant: Option<bool>,
    pub(super) draft_tree: Option<bool>,
    pub(super) fp8: Option<Option<Fp8>>,
    pub(super) d_sink: Option<bool>,
    pub(super) deterministic: Option<bool>,
}

impl Fields {
    /// Reads one field: name, colon, value, end of the line.
    pub(super) fn read(&mut self, c: &mut Cursor<'_>) -> Result<(), ParseError> {
        let start = c.at;
        let word = c.peek_word();
        let Some(&name) = NAMES.iter().find(|name| **name == word) else {
            return Err(c.expected(format!("a field: {}", one_of(&NAMES))));
        };
        if self.place(name).is_some() {
            return Err(ParseError::at(c.text, start, format!("`{name}` a second time"), "each field once"));
        }
        self.places.push((name, start));
        c.at += word.len();
        c.sign(':')?;
        self.value(name, c)?;
        if c.at_end_of_line() { Ok(()) } else { Err(c.expected("the end of the line")) }
    }

    fn value(&mut self, name: &'static str, c: &mut Cursor<'_>) -> Result<(), ParseError> {
        match name {
            "pass" => self.backward = Some(c.choice(&[("forward", false), ("backward", true)])?),
            "mask" => self.band = Some(value::band(c)?),
            "lengths" => {
                let choices = [("full", Lengths::Full), ("per-sequence", Lengths::PerSequence)];
                self.lengths = Some(c.choice(&choices)?);
            }
            "mask_mod" => self.mask_mod = Some(value::expression(c)?),
            "score_mod" => self.score_mod = Some(value::expression(c)?),
            "score_mod_bprop" => self.score_mod_bprop = Some(value::expression(c)?),
            "trust_score_mod_bprop" => self.trusted = Some(value::flag(c)?),
            "origins" => {
                let choices = [
                    ("none", None),
                    ("any", Some(Origins::Any)),
                    ("every-query-sees-a-key", Some(Origins::EveryQuerySeesAKey)),
                ];
                self.origins = Some(c.choice(&choices)?);
            }
            "sink" => self.sink = Some(value::flag(c)?),
            "dropout" => self.dropout = Some(value::dropout(c)?),
            "block_mask" => self.block_mask = Some(value::flag(c)?),
            "outputs" => self.outputs = Some(value::outputs(c)?),
            "padded_rows" => {
                let choices = [("undefined", PaddedRows::Undefined), ("zero", PaddedRows::Zero)];
                self.padded_rows = Some(c.choice(&choices)?);
            }
            "fp8" => {
                let choices = [
                    ("none", None),
                    ("delayed", Some(Fp8::Delayed)),
                    ("current", Some(Fp8::Current)),
                    ("block", Some(Fp8::Block)),
                    ("cache", Some(Fp8::Cache)),
                ];
                self.fp8 = Some(c.choice(&choices)?);
            }
            "invariant" => self.invariant = Some(value::flag(c)?),
            "draft_tree" => self.draft_tree = Some(value::flag(c)?),
            "d_sink" => self.d_sink = Some(value::flag(c)?),
            "deterministic" => self.deterministic = Some(value::flag(c)?),
            "d_o_half" if c.peek_word() == "none" => {
                c.choice(&[("none", ())])?;
                self.no_half = true;
            }
            tensor => {
                let at = ["q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v", "d_o_half"].iter().position(|n| *n == tensor);
                self.tensors[at.expect("every other field is a tensor")] = Some(value::tensor(c)?);
            }
        }
        Ok(())
    }

    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.places.iter().find(|(n, _)| *n == name).map(|&(_, at)| at)
    }

    /// The first field that only a backward has.
    pub(super) fn gradient_field(&self) -> Option<(&'static str, usize)> {
        let gradients = NAMES.iter().skip_while(|name| **name != "d_o");
        self.places.iter().find(|(place, _)| gradients.clone().any(|name| name == place)).copied()
    }
}

/// The default of O: Q with the head dim of V, in the layout of Q if that has a name, otherwise in the usual one.
pub(super) fn output(q: &Tensor, d_v: i64) -> Option<Tensor> {
    let [b, h, s, d_qk] = q.dims;
    if d_v == d_qk {
        return Some(*q);
    }
    let dims = [b, h, s, d_v];
    let word = layout::word(q).unwrap_or(layout::words(q.storage)[0]);
    let Tensor { dims: _, strides: _, dtype, storage } = *q;
    Some(Tensor { dims, strides: layout::strides(word, dims, storage)?, dtype, storage })
}
