//! Parsers for the values of fields: tensors, bands, expressions and others.

use super::ParseError;
use super::cursor::{Cursor, one_of};
use super::layout;
use crate::expr::{self, ScoreExpr};
use crate::{Band, Corner, DType, Dropout, DropoutSource, Outputs, Storage, Tensor};

/// A tensor whose element type may have a default.
#[derive(Clone, Copy)]
pub(super) struct TensorText {
    /// The start of the tensor, for an error about the element type.
    pub(super) at: usize,
    pub(super) dtype: Option<DType>,
    dims: [i64; 4],
    strides: [i64; 4],
    storage: Storage,
}

impl TensorText {
    pub(super) fn with(self, dtype: DType) -> Tensor {
        let TensorText { at: _, dtype: _, dims, strides, storage } = self;
        Tensor { dims, strides, dtype, storage }
    }
}

pub(super) fn tensor(c: &mut Cursor<'_>) -> Result<TensorText, ParseError> {
    c.blanks();
    let at = c.at;
    let word = c.peek_word();
    let dtype = match word {
        "" => None,
        _ => Some(word.parse().map_err(|_| c.expected("an element type such as bf16, or dims"))?),
    };
    c.at += word.len();
    c.blanks();
    let dims_at = c.at;
    let dims = c.four()?;
    let storage = if c.take("varlen") {
        if !c.take("tokens") {
            return Err(c.expected("tokens and the capacity of the buffer"));
        }
        Storage::Varlen { tokens: c.integer()? }
    } else if c.take("paged") {
        let pages = c.integer()?;
        if !c.take("x") {
            return Err(c.expected("x and the rows of a page"));
        }
        Storage::Paged { pages, page_size: c.integer()? }
    } else {
        Storage::Dense
    };
    let strides = if c.take("strides") { c.four()? } else { contiguous(c, dims_at, dims, storage)? };
    Ok(TensorText { at, dtype, dims, strides, storage })
}

/// The strides of the layout word here, or of the default one.
fn contiguous(c: &mut Cursor<'_>, dims_at: usize, dims: [i64; 4], storage: Storage) -> Result<[i64; 4], ParseError> {
    let words = layout::words(storage);
    let given = c.peek_word();
    let word = match words.iter().find(|word| **word == given) {
        Some(word) => {
            c.at += word.len();
            word
        }
        None if given.is_empty() => words[0],
        None => {
            let other = if storage == Storage::Dense { "varlen, paged, " } else { "" };
            return Err(c.expected(format!("{other}strides or a layout: {}", one_of(words))));
        }
    };
    layout::strides(word, dims, storage).ok_or_else(|| {
        ParseError::at(c.text, dims_at, format!("dims {dims:?}"), format!("dims whose strides as {word} fit 63 bits"))
    })
}

pub(super) fn band(c: &mut Cursor<'_>) -> Result<Option<Band>, ParseError> {
    #[derive(Clone, Copy)]
    enum Kind {
        None,
        Causal,
        Band,
    }
    let (left, right) = match c.choice(&[("none", Kind::None), ("causal", Kind::Causal), ("band", Kind::Band)])? {
        Kind::None => return Ok(None),
        Kind::Causal => (if c.take("window") { Some(c.integer()?) } else { None }, Some(0)),
        Kind::Band => {
            let left = if c.take("left") { Some(c.integer()?) } else { None };
            (left, if c.take("right") { Some(c.integer()?) } else { None })
        }
    };
    let corner = c.option(&[("top-left", Corner::TopLeft), ("bottom-right", Corner::BottomRight)]);
    Ok(Some(Band { corner: corner.unwrap_or(Corner::TopLeft), left, right }))
}

pub(super) fn flag(c: &mut Cursor<'_>) -> Result<bool, ParseError> {
    c.choice(&[("yes", true), ("no", false)])
}

pub(super) fn dropout(c: &mut Cursor<'_>) -> Result<Option<Dropout>, ParseError> {
    let choices = [
        ("none", None),
        ("philox", Some(DropoutSource::Philox)),
        ("mask", Some(DropoutSource::Mask)),
        ("places", Some(DropoutSource::Places)),
    ];
    let Some(source) = c.choice(&choices)? else { return Ok(None) };
    Ok(Some(Dropout { source, probability: c.number("a probability of zeroing of at least 0 and below 1")? }))
}

pub(super) fn outputs(c: &mut Cursor<'_>) -> Result<Outputs, ParseError> {
    let mut outputs = Outputs::default();
    if c.take("none") {
        return Ok(outputs);
    }
    loop {
        match c.peek_word() {
            "stats" => outputs.stats = true,
            "max" => outputs.max = true,
            "sum_exp" => outputs.sum_exp = true,
            "no_amax" => outputs.amax = false,
            _ => return Err(c.expected("none, or some of stats, max, sum_exp and no_amax")),
        }
        c.at += c.peek_word().len();
        if c.at_end_of_line() {
            return Ok(outputs);
        }
    }
}

/// Parses `none`, an expression up to the end of the line, or one in braces.
pub(super) fn expression(c: &mut Cursor<'_>) -> Result<Option<ScoreExpr>, ParseError> {
    let start = c.clone();
    if c.take("none") && c.at_end_of_line() {
        return Ok(None);
    }
    *c = start;
    c.blanks();
    let braces = c.rest().starts_with('{');
    let end = if braces {
        c.at += 1;
        let bare = without_comments(c.rest());
        c.at + bare.find('}').ok_or_else(|| ParseError::at(c.text, c.text.len(), "the end of the text", "`}`"))?
    } else {
        let line = c.rest().lines().next().unwrap_or_default();
        c.at + line.find('#').unwrap_or(line.len())
    };
    let from = c.at;
    let text = without_comments(&c.text[from..end]);
    c.at = if braces { end + 1 } else { end };
    expr::parse_expr(&text).map(Some).map_err(|error| match error {
        expr::ParseError::Syntax { line, column, expected, found } => {
            let first = ParseError::at(c.text, from, found, expected);
            let column = if line == 1 { first.column + column - 1 } else { column };
            ParseError { line: first.line + line - 1, column, ..first }
        }
        expr::ParseError::Meaning { problems } => {
            ParseError::at(c.text, from, format!("an expression with problems ({problems})"), "one that is well typed")
        }
    })
}

/// The text with blanks in place of comments, so that all other characters keep their places.
fn without_comments(text: &str) -> String {
    let mut comment = false;
    text.chars()
        .flat_map(|c| {
            comment = c == '#' || (comment && c != '\n');
            let blanks = if comment { c.len_utf8() } else { 0 };
            std::iter::repeat_n(' ', blanks).chain((!comment).then_some(c))
        })
        .collect()
}
