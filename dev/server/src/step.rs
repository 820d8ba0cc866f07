//! A step: the rows that one pass of the model computes, and which of them give a token.
//!
//! Sequences with one new token come first, then those with a chunk of their prompt. So the attention of a step is a
//! decode over its first rows and a launch over chunks for the others.

use qkvault::exec::serving::{Rows, Step as Batch};
use qkvault::serving::StepSize;

/// A row whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pick {
    /// The row.
    pub row: i32,
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Seed of the noise of a temperature.
    pub seed: u32,
    /// The token whose score is wanted, or -1.
    pub target: i32,
}

/// What a picked row gives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Picked {
    /// The chosen token.
    pub token: u32,
    /// How far the logit of the target is below the largest; 0 without a target.
    pub gap: f32,
}

/// One pass of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelStep {
    /// The token of each row.
    pub tokens: Vec<i32>,
    /// The position of each row in its sequence.
    pub positions: Vec<i32>,
    /// Where the key and the value of each row go: page times rows of a page, plus the row in the page.
    pub slots: Vec<i32>,
    /// Sequences with one row; they come first.
    pub decodes: usize,
    /// Rows of each other sequence.
    pub chunks: Vec<i32>,
    /// Keys of each sequence, with those of its new rows.
    pub keys: Vec<i32>,
    /// Pages of each sequence.
    pub tables: Vec<Vec<i32>>,
    /// The rows whose logits are wanted.
    pub picks: Vec<Pick>,
}

/// A part of a step that one launch computes.
#[derive(Clone, Copy, Debug)]
pub struct StepPart<'a> {
    /// The first row.
    pub row: usize,
    /// New tokens of each sequence.
    pub queries: Rows<'a>,
    /// Keys of each sequence.
    pub keys: &'a [i32],
    /// Pages of each sequence.
    pub tables: &'a [Vec<i32>],
}

impl ModelStep {
    /// Rows of the step.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The sequences with one new token.
    #[must_use]
    pub fn decode(&self) -> Option<StepPart<'_>> {
        let (keys, tables) = (&self.keys[..self.decodes], &self.tables[..self.decodes]);
        (self.decodes > 0).then_some(StepPart { row: 0, queries: Rows::One(self.decodes), keys, tables })
    }

    /// The sequences with a chunk.
    #[must_use]
    pub fn prefill(&self) -> Option<StepPart<'_>> {
        let (keys, tables) = (&self.keys[self.decodes..], &self.tables[self.decodes..]);
        let queries = Rows::Lengths(&self.chunks);
        (!self.chunks.is_empty()).then_some(StepPart { row: self.decodes, queries, keys, tables })
    }
}

impl<'a> StepPart<'a> {
    /// The sizes by which a plan is chosen.
    #[must_use]
    pub fn size(&self) -> StepSize {
        let sequences = self.queries.sequences();
        StepSize {
            sequences: sequences as i64,
            queries: (0..sequences).map(|sequence| self.queries.length(sequence)).max().unwrap_or(1),
            keys: self.keys.iter().copied().max().map_or(1, i64::from),
        }
    }

    /// The lengths and tables, as a batch takes them.
    #[must_use]
    pub const fn batch(&self) -> Batch<'a> {
        Batch::paged(self.queries, Rows::Lengths(self.keys), self.tables)
    }
}
