//! What FlashAttention-4's kernels do not take. An attention that has such a reason is left to another engine.

use qkvault_graph::entries;
use qkvault_graph::registry::Entry;

const FA4: Entry = Entry {
    fix: "leave it to cuDNN",
    source: "FlashAttention-4 4.0.0b36, and what crates/fa4 launches of it",
    ..Entry::not_built()
};

/// What own kernels take in their place.
const FA4_OWN: Entry = Entry {
    needed: "an attention without it, or qkvault's kernels",
    fix: "take qkvault's kernels (engine: kernels)",
    ..FA4
};

entries![
    pub;
    FA4_GPU = Entry {
        code: "fa4.gpu",
        cause: "FlashAttention-4's kernels are compiled for another GPU.",
        field: "target",
        needed: "a GPU of compute capability 9.0",
        ..FA4
    },
    FA4_TYPE = Entry {
        code: "fa4.type",
        cause: "FlashAttention-4's kernels for Hopper compute with 16-bit elements only.",
        field: "q",
        needed: "f16 or bf16",
        ..FA4
    },
    FA4_HEAD_DIM = Entry {
        code: "fa4.head-dim",
        cause: "FlashAttention-4's kernels have tiles for some head dims only.",
        needed: "multiples of 8, at most 256, the same for keys and values, or 192 and 128",
        ..FA4
    },
    FA4_HEADS = Entry {
        code: "fa4.heads",
        cause: "FlashAttention-4's kernels bring keys and values of a head together.",
        field: "v",
        needed: "as many heads of values as of keys",
        ..FA4
    },
    FA4_DROPOUT = Entry {
        code: "fa4.dropout",
        cause: "FlashAttention-4's kernels have no dropout.",
        field: "dropout",
        needed: "none",
        ..FA4
    },
    FA4_EXPRESSION = Entry {
        code: "fa4.expression",
        cause: "FlashAttention-4's kernels get expressions as functions. They have no gradients of tensors, and sums in \
                one order only without lists of tiles.",
        needed: "no gradient of a tensor, no predicate in a deterministic backward, at most 16 scalars, addresses, \
                 extents and steps of tensors",
        ..FA4
    },
    FA4_INVARIANT = Entry {
        code: "fa4.invariant",
        cause: "FlashAttention-4's kernels divide keys and rows by what is in the batch.",
        field: "invariant",
        ..FA4_OWN
    },
    FA4_CACHE = Entry {
        code: "fa4.cache",
        cause: "FlashAttention-4's kernels have Q, K and V in one element type.",
        field: "fp8",
        ..FA4_OWN
    },
    FA4_DRAFT_TREE = Entry {
        code: "fa4.draft-tree",
        cause: "FlashAttention-4's kernels read no bits for each query.",
        field: "draft_tree",
        ..FA4_OWN
    },
    FA4_OUTPUTS = Entry {
        code: "fa4.outputs",
        cause: "FlashAttention-4's kernels write O and Stats only.",
        field: "outputs",
        needed: "O, or O and Stats",
        ..FA4
    },
    FA4_STORAGE = Entry {
        code: "fa4.storage",
        cause: "With lengths, FlashAttention-4's kernels count through the rows of all sequences, and they find the row \
                of a page by one size for keys and values.",
        needed: "dense or varlen tensors; with lengths, dense tensors whose sequences lie one after another; pages with \
                 lengths, of one size",
        ..FA4
    },
    FA4_SEQUENCES = Entry {
        code: "fa4.sequences",
        cause: "Of FlashAttention-4's kernels for sequences with lengths, those that this needs are missing or not \
                launched here.",
        needed: "a bottom-right band, no predicate, a backward that is not deterministic",
        ..FA4
    },
    FA4_BAND = Entry {
        code: "fa4.band",
        cause: "FlashAttention-4's diagonals end in the bottom right corner.",
        needed: "a bottom-right band, or as many queries as keys",
        ..FA4
    },
    FA4_SEQUENCE = Entry {
        code: "fa4.sequence",
        cause: "Numbers of FlashAttention-4's kernels have 32 bits.",
        field: "q",
        needed: "at most 16777216 queries and keys",
        ..FA4
    },
    FA4_GRID = Entry {
        code: "fa4.grid",
        cause: "Sequences and heads are dims of a launch grid, which a driver limits to 65,535.",
        field: "q.dims",
        needed: "at most 65,535 sequences and heads",
        source: "CUDA programming guide, compute capabilities",
        ..FA4
    },
    FA4_STRIDES = Entry {
        code: "fa4.strides",
        cause: "FlashAttention-4's kernels copy by tensor maps.",
        needed: "rows of neighbouring elements, other strides positive multiples of 8 elements, below 2^38",
        ..FA4
    },
    FA4_LOWEST_ROW = Entry {
        code: "fa4.lowest-row",
        cause: "All scores of a row are a large negative constant. Its log-sum-exp in float32 cannot hold the logarithm \
                of the number of keys, from which a backward computes the probabilities.",
        field: "score_mod",
        needed: "in a backward, rows that see a key whose score is above -131072, or no key at all",
        fix: "hide keys with the mask of the attention (a mask_mod, lengths or a band) instead of a constant",
        source: "the rounding of float32 (`crates/graph/src/lowest_rows.rs`); pytorch issue 109517",
        evidence: "On an H100, dK and dV of rows of -3e38 were NaN.",
        ..FA4
    },
];
