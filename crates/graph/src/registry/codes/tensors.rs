//! Tensors on their own, and operands that contradict each other.

use crate::entries;
use crate::registry::Entry;

entries![
    TENSOR_DIMS = Entry {
        code: "tensor.dims",
        cause: "A dim is below 1.",
        needed: "every dim must be at least 1",
        fix: "give (batch, heads, sequence, head dim)",
        ..Entry::description()
    },
    TENSOR_DIMS_LIMIT = Entry {
        code: "tensor.dims-limit",
        cause: "A dim is above 2^31 - 1.",
        needed: "no dim may exceed 2147483647: indices and lengths are 32-bit integers",
        fix: "split the batch or the sequence",
        ..Entry::description()
    },
    TENSOR_STRIDES = Entry {
        code: "tensor.strides",
        cause: "A stride is below 1.",
        needed: "every stride must be at least 1; cuDNN broadcasts by a dim of 1, not by a stride of 0",
        fix: "give strides in elements, in the order (batch, head, sequence, head dim)",
        ..Entry::description()
    },
    TENSOR_HEAD_DIM_STRIDE = Entry {
        code: "tensor.head-dim-stride",
        cause: "The head dim is not contiguous.",
        needed: "the head dim must be contiguous: stride 1",
        fix: "copy the tensor so that the head dim is innermost",
        ..Entry::description()
    },
    TENSOR_TOKENS = Entry {
        code: "tensor.tokens",
        cause: "A varlen buffer has no room for tokens.",
        needed: "the buffer must have room for at least one token",
        fix: "give the capacity of the varlen buffer in tokens",
        ..Entry::description()
    },
    TENSOR_PAGES = Entry {
        code: "tensor.pages",
        cause: "A pool has no pages, or its pages have no rows.",
        needed: "at least one page of at least one row",
        fix: "give the pool's page count and the rows of one page",
        ..Entry::description()
    },
    TENSOR_PAGES_LIMIT = Entry {
        code: "tensor.pages-limit",
        cause: "A pool has more pages or rows than 32-bit tables can name.",
        needed: "at most 2147483647 of each: page tables hold 32-bit integers",
        fix: "use larger pages, or split the pool",
        ..Entry::description()
    },
    TENSOR_SPAN = Entry {
        code: "tensor.span",
        cause: "A tensor spans more bytes than can be counted.",
        needed: "the tensor must span fewer than 2^63 bytes",
        fix: "check the strides: they are in elements, not bytes",
        ..Entry::description()
    },
    TENSOR_OVERLAP = Entry {
        code: "tensor.overlap",
        cause: "Two elements of an output share memory.",
        needed: "an output's elements must not share memory",
        fix: "give each (batch, head, row) its own place in memory",
        ..Entry::description()
    },
    SHAPE_MISMATCH = Entry {
        code: "shape.mismatch",
        cause: "Two operands have different sizes on an axis that they share.",
        fix: "give dims as (batch, heads, sequence, head dim), whatever the order in memory",
        ..Entry::description()
    },
    SHAPE_SCORES = Entry {
        code: "shape.scores",
        cause: "There are more scores than can be counted.",
        field: "q.dims, k.dims",
        needed: "batch, heads, queries and keys must multiply to fewer than 2^63 scores",
        fix: "split the batch, the heads or the queries",
        ..Entry::description()
    },
    HEADS_GROUP = Entry {
        code: "heads.group",
        cause: "The number of query heads is not a multiple of the number of key heads or of value heads.",
        needed: "query heads must be a multiple of key heads and of value heads",
        fix: "give each key and value head a whole group of query heads",
        ..Entry::description()
    },
    STORAGE_PAGED = Entry {
        code: "storage.paged",
        cause: "An operand other than K and V is paged.",
        needed: "only K and V can be paged",
        fix: "make it dense or varlen",
        ..Entry::description()
    },
    STORAGE_VARLEN = Entry {
        code: "storage.varlen",
        cause: "Q is varlen and O is not, or O is varlen and Q is not.",
        field: "o.storage",
        needed: "O must be varlen when Q is, and only then",
        fix: "give O the storage of Q",
        ..Entry::description()
    },
    STORAGE_PAGED_PAIR = Entry {
        code: "storage.paged-pair",
        cause: "One of K and V is paged and the other is not.",
        field: "v.storage",
        needed: "K and V must both be paged or neither",
        fix: "give V the storage of K",
        ..Entry::description()
    },
    STORAGE_PAGED_BACKWARD = Entry {
        code: "storage.paged-backward",
        cause: "A backward has paged operands.",
        needed: "a backward has no paged operands",
        fix: "gather the pages first",
        ..Entry::description()
    },
    STORAGE_GRADIENT = Entry {
        code: "storage.gradient",
        cause: "A gradient and its tensor have different storage.",
        fix: "give it the storage of its tensor",
        ..Entry::description()
    },
    DTYPE_MIXED = Entry {
        code: "dtype.mixed",
        cause: "Q, K and V have different element types.",
        fix: "convert one of them",
        ..Entry::description()
    },
    DTYPE_INPUT = Entry {
        code: "dtype.input",
        cause: "The element type of Q does not fit the scaling.",
        field: "q.dtype",
        ..Entry::description()
    },
    DTYPE_OUTPUT = Entry {
        code: "dtype.output",
        cause: "The element type of O does not fit the scaling.",
        field: "o.dtype",
        fix: "change O's element type",
        ..Entry::description()
    },
    DTYPE_GRADIENT = Entry {
        code: "dtype.gradient",
        cause: "The element type of a gradient does not fit the scaling.",
        fix: "change the gradient's element type",
        ..Entry::description()
    },
];
