//! Documents of a row that are to be varlen sequences.

use crate::registry::Entry;
use crate::registry::entry::entries;

/// What an expression may read where documents are varlen.
const RELATIVE: &str =
    "expressions of the score, the head and `query - key`: positions count from the beginning of a document";

/// Why what goes by blocks of a row has no varlen form.
const NO_BLOCKS: &str = "blocks of the whole row have none in a document";

entries![
    DOCUMENTS_MASK = Entry {
        code: "documents.mask",
        cause: "Documents are to be varlen where no predicate compares them.",
        field: "mask.mask_mod",
        needed: "a document mask: an i32 tensor by query equal to one by key, and with it whatever else must hold",
        fix: "write it as `library::document_mask(..)`, joined to other conditions by `&`",
        ..Entry::description()
    },
    DOCUMENTS_SQUARE = Entry {
        code: "documents.square",
        cause: "The queries of documents are not their keys.",
        field: "k.dims[2]",
        needed: "as many keys as queries: a document's queries are its keys",
        fix: "describe varlen queries and keys with lengths of their own",
        ..Entry::description()
    },
    DOCUMENTS_LONGEST = Entry {
        code: "documents.longest",
        cause: "No row can have a document of this length.",
        field: "longest",
        fix: "give the tokens of the longest document",
        ..Entry::description()
    },
    DOCUMENTS_MOST = Entry {
        code: "documents.most",
        cause: "The rows cannot have this number of documents.",
        field: "most",
        fix: "give the most documents of all rows together",
        ..Entry::description()
    },
    DOCUMENTS_ROWS = Entry {
        code: "documents.rows",
        cause: "Rows that are to be varlen do not lie one after another, token by token.",
        needed: "tokens one after another, each with all of its heads, from row to row too",
        fix: "store it as (batch, sequence, head, head dim)",
        ..Entry::description()
    },
    DOCUMENTS_POSITION = Entry {
        code: "documents.position",
        cause: "An expression reads a position, which a varlen document counts from its own beginning.",
        needed: RELATIVE,
        fix: "compute with `query - key` alone, or keep the document mask",
        ..Entry::description()
    },
    DOCUMENTS_BATCH = Entry {
        code: "documents.batch",
        cause: "An expression reads the number of the row, which varlen documents do not have.",
        needed: RELATIVE,
        fix: "keep the document mask",
        ..Entry::description()
    },
    DOCUMENTS_LENGTH = Entry {
        code: "documents.length",
        cause: "An expression reads the length of the row, which varlen documents do not have.",
        needed: RELATIVE,
        fix: "keep the document mask: a document has its own",
        ..Entry::description()
    },
    DOCUMENTS_TENSOR = Entry {
        code: "documents.tensor",
        cause: "An expression reads a tensor by position or row, which varlen documents do not have.",
        needed: RELATIVE,
        fix: "give one number, or one for each head; else keep the document mask",
        ..Entry::description()
    },
    DOCUMENTS_LENGTHS = Entry {
        code: "documents.lengths",
        cause: "Documents that are to be varlen have per-sequence lengths beside them.",
        field: "mask.lengths",
        needed: "rows that documents fill; lengths are the documents' then",
        fix: "make what pads a row a document of its own, whose output nobody reads",
        ..Entry::description()
    },
    DOCUMENTS_DROPOUT = Entry {
        code: "documents.dropout",
        cause: "The mask of dropout goes by the position in a row, which varlen documents do not have.",
        field: "dropout",
        needed: "none: which number or mask belongs to a score goes by its position in the row",
        fix: "pack the attention without it, and add Philox dropout to the varlen one: other numbers of the same law",
        ..Entry::description()
    },
    DOCUMENTS_BLOCK_MASK = Entry {
        code: "documents.block-mask",
        cause: "A block mask is over rows, which varlen documents do not have.",
        field: "block_mask",
        needed: NO_BLOCKS,
        fix: "leave it out",
        ..Entry::description()
    },
    DOCUMENTS_FP8 = Entry {
        code: "documents.fp8",
        cause: "The scales of microscaled formats are over rows, which varlen documents do not have.",
        field: "fp8",
        needed: NO_BLOCKS,
        fix: "leave it out",
        ..Entry::description()
    },
    DOCUMENTS_IDS = Entry {
        code: "documents.ids",
        cause: "Document ids are no whole rows.",
        field: "ids",
        needed: "whole rows, and at least one",
        fix: "give the id of each token, row after row",
        ..Entry::description()
    },
    DOCUMENTS_SPLIT = Entry {
        code: "documents.split",
        cause: "A document is in two places of a row.",
        needed: "the tokens of a document one after another",
        fix: "give what follows another id, if it is another document, or keep the document mask",
        ..Entry::description()
    },
    DOCUMENTS_COUNT = Entry {
        code: "documents.count",
        cause: "There are more documents than a plan has room for.",
        field: "ids",
        fix: "use a plan for more documents",
        ..Entry::description()
    },
];
