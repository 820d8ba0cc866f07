//! Packing the documents of rows as varlen sequences.

use crate::entries;
use crate::registry::Entry;

/// What an expression may read if documents are varlen.
const RELATIVE: &str =
    "expressions of the score, the head and `query - key`: positions count from the beginning of a document";

/// What is needed instead of blocks of a row.
const NO_BLOCKS: &str = "an attention without blocks: blocks of a row do not match the documents in it";

entries![
    DOCUMENTS_MASK = Entry {
        code: "documents.mask",
        cause: "A pack of documents needs a mask predicate that compares documents, and this attention has none.",
        field: "mask.mask_mod",
        needed: "a document mask: an i32 tensor by query equals an i32 tensor by key; other conditions may be joined \
                 to it",
        fix: "write it as `library::document_mask(..)`, joined to other conditions by `&`",
        ..Entry::description()
    },
    DOCUMENTS_SQUARE = Entry {
        code: "documents.square",
        cause: "There are not as many keys as queries.",
        field: "k.dims[2]",
        needed: "as many keys as queries: the tokens of a document are both its queries and its keys",
        fix: "describe varlen queries and keys with separate lengths",
        ..Entry::description()
    },
    DOCUMENTS_LONGEST = Entry {
        code: "documents.longest",
        cause: "No row can hold a document of this length.",
        field: "longest",
        fix: "give the number of tokens of the longest document",
        ..Entry::description()
    },
    DOCUMENTS_MOST = Entry {
        code: "documents.most",
        cause: "The rows cannot hold this number of documents.",
        field: "most",
        fix: "give the largest number of documents that all rows together have",
        ..Entry::description()
    },
    DOCUMENTS_ROWS = Entry {
        code: "documents.rows",
        cause: "The rows of an operand do not lie one after another in memory, token by token, so they cannot become \
                varlen.",
        needed: "tokens one after another, each with all of its heads, also from row to row",
        fix: "store it as (batch, sequence, head, head dim)",
        ..Entry::description()
    },
    DOCUMENTS_POSITION = Entry {
        code: "documents.position",
        cause: "An expression reads a position in the row; a varlen document counts positions from its own beginning.",
        needed: RELATIVE,
        fix: "use only `query - key`, or keep the document mask",
        ..Entry::description()
    },
    DOCUMENTS_ORIGINS = Entry {
        code: "documents.origins",
        cause: "Positions begin at numbers of the launch, and a varlen document counts positions from its own beginning.",
        field: "origins",
        needed: "an attention without origins",
        fix: "keep the document mask, or describe the documents of the chunk as varlen sequences",
        ..Entry::description()
    },
    DOCUMENTS_BATCH = Entry {
        code: "documents.batch",
        cause: "An expression reads the index of the row, which varlen documents do not have.",
        needed: RELATIVE,
        fix: "keep the document mask",
        ..Entry::description()
    },
    DOCUMENTS_LENGTH = Entry {
        code: "documents.length",
        cause: "An expression reads the length of the row, which varlen documents do not have.",
        needed: RELATIVE,
        fix: "keep the document mask: a document has its own length",
        ..Entry::description()
    },
    DOCUMENTS_TENSOR = Entry {
        code: "documents.tensor",
        cause: "An expression reads a tensor by position in the row or by row, which varlen documents do not have.",
        needed: RELATIVE,
        fix: "give one number, or one for each head; otherwise keep the document mask",
        ..Entry::description()
    },
    DOCUMENTS_LENGTHS = Entry {
        code: "documents.lengths",
        cause: "The rows of documents have per-sequence lengths too.",
        field: "mask.lengths",
        needed: "rows that documents fill: the lengths of the varlen attention are those of the documents",
        fix: "make the padding of a row a separate document, and ignore its output",
        ..Entry::description()
    },
    DOCUMENTS_DROPOUT = Entry {
        code: "documents.dropout",
        cause: "The dropout of a score depends on its position in the row, which varlen documents do not have.",
        field: "dropout",
        needed: "no dropout: the random number or mask element of a score depends on its position in the row",
        fix: "pack the attention without dropout, and add Philox dropout to the varlen attention, which draws other \
              numbers of the same distribution",
        ..Entry::description()
    },
    DOCUMENTS_BLOCK_MASK = Entry {
        code: "documents.block-mask",
        cause: "A block mask refers to blocks of whole rows, which varlen documents do not have.",
        field: "block_mask",
        needed: NO_BLOCKS,
        fix: "leave it out",
        ..Entry::description()
    },
    DOCUMENTS_FP8 = Entry {
        code: "documents.fp8",
        cause: "The scales of microscaled formats refer to blocks of whole rows, which varlen documents do not have.",
        field: "fp8",
        needed: NO_BLOCKS,
        fix: "leave it out",
        ..Entry::description()
    },
    DOCUMENTS_IDS = Entry {
        code: "documents.ids",
        cause: "The document ids do not fill whole rows.",
        field: "ids",
        needed: "whole rows, and at least one",
        fix: "give the id of each token, row after row",
        ..Entry::description()
    },
    DOCUMENTS_SPLIT = Entry {
        code: "documents.split",
        cause: "A document has two separate parts in a row.",
        needed: "the tokens of a document one after another",
        fix: "give the second part another id if it is another document, or keep the document mask",
        ..Entry::description()
    },
    DOCUMENTS_COUNT = Entry {
        code: "documents.count",
        cause: "There are more documents than the plan has room for.",
        field: "ids",
        fix: "use a plan for more documents",
        ..Entry::description()
    },
];
