//! Documents within rows as separate sequences: the varlen form of an attention with a document mask.
//!
//! If a predicate compares documents, cuDNN computes every score and hides most of them; varlen sequences are computed
//! separately. No token has to move: rows of documents that follow each other already are a varlen buffer. On an H200,
//! the varlen form of four documents of 1024 tokens in each of four rows took a seventh of the time
//! (`docs/results/training.md`).
//!
//! ```
//! use qkvault_graph::expr::library;
//! use qkvault_graph::{Attention, Batch, CuSeqlens, DType, Documents, ragged_offsets, validate};
//!
//! // Two rows of 512 tokens, at most 6 documents in both together, of up to 200 tokens.
//! let mask = library::document_mask("document_of_query", "document_of_key", 2, 512, 512).build_mask_mod().unwrap();
//! let dense = validate(Attention::bshd(2, (8, 2), (512, 512), 64, DType::BF16).with_mask_mod(mask).with_stats())?;
//! let varlen = dense.varlen_documents(Documents { longest: 200, most: 6 })?;
//! assert_eq!((varlen.q.dims, varlen.mask.mask_mod.is_none()), ([6, 8, 256, 64], true));
//!
//! // Besides the same Q, K, V and O, a launch needs the starts of the documents, from the ids that the mask reads.
//! let ids: Vec<i32> = (0..1024).map(|token| token % 512 / 180).collect();
//! let documents = CuSeqlens::from_documents(&ids, 512, Batch::new(6).unwrap())?;
//! assert_eq!(documents.lengths().collect::<Vec<_>>(), [180, 180, 152, 180, 180, 152]);
//! let offsets = ragged_offsets(&varlen, &documents, &documents)?;
//! # Ok::<(), qkvault_graph::Refusal>(())
//! ```

mod form;

use crate::valid::Problems;
use crate::{Refusal, Valid, validate};

/// Bounds on the documents of every launch, which the description of an attention does not contain.
///
/// The caller also promises that the documents of a row follow each other without gaps and fill it, and that none
/// appears in two places. [`crate::CuSeqlens::from_documents`] checks this for the ids of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Documents {
    /// Tokens of the longest document. Plans compute whole tiles, so it is rounded up to a multiple of 128.
    pub longest: i64,
    /// Largest number of documents in all rows together. A launch with fewer has empty ones at the end.
    pub most: i64,
}

/// Rows and keys of a tile of cuDNN's kernels, to which the length of varlen sequences is rounded.
const TILE: i64 = 128;

impl Valid {
    /// The varlen equivalent of an attention with a document mask: one sequence for each document, over the same
    /// memory.
    ///
    /// A launch differs as follows:
    /// * Q, K, V, O and their gradients are bound unchanged: rows that lie one after another are the varlen tokens;
    /// * `SeqLenQ` and `SeqLenKv` are the documents' lengths, and every varlen operand has its offsets
    ///   ([`crate::ragged_offsets`]);
    /// * Stats, Max and Sum_exp are (tokens, heads) in the order of Q's tokens, not (batch, heads, sequence);
    /// * the ids of the documents are not read, and the tensors and scalars of the remaining predicate get new numbers.
    ///
    /// Bands and expressions of `query - key`, such as ALiBi, mean the same in both. The forward and the backward of
    /// one description can each be converted, or the backward can be derived from the varlen forward.
    ///
    /// # Errors
    ///
    /// Every reason why there is no varlen equivalent: no document mask; rows that are not one after another in memory;
    /// different numbers of queries and keys; per-sequence lengths; an expression that reads a position, a length or
    /// the index of a sequence, or a tensor by position; dropout, whose mask depends on positions; a block mask;
    /// microscaled formats; bounds that are too small.
    pub fn varlen_documents(&self, documents: Documents) -> Result<Valid, Refusal> {
        let mut problems = Problems::default();
        let varlen = form::varlen(self.get(), documents, &mut problems);
        match Refusal::from_reasons(problems.into_reasons()) {
            Some(refusal) => Err(refusal),
            None => validate(varlen),
        }
    }
}
