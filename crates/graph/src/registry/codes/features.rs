//! Masks, score expression, dropout, sinks and gradients.

use crate::entries;
use crate::registry::Entry;

entries![
    BAND_LEFT = Entry {
        code: "band.left",
        cause: "The window is empty: it excludes even the diagonal.",
        field: "mask.band.left",
        needed: "a window of 1 or more: it includes the diagonal",
        fix: "count the diagonal in the window, or use None for no bound",
        ..Entry::description()
    },
    BAND_RIGHT = Entry {
        code: "band.right",
        cause: "The right bound is negative.",
        field: "mask.band.right",
        needed: "a number of keys beyond the diagonal: 0 (causal) or more",
        fix: "use None for no bound",
        ..Entry::description()
    },
    ORIGINS_EXTENT = Entry {
        code: "origins.extent",
        cause: "Positions would not be exact as f32, in which masks compare them.",
        field: "origins",
        needed: "at most 8388608 queries and as many keys in one attention with origins",
        fix: "describe a shorter chunk: its origins say where it begins",
        ..Entry::description()
    },
    DRAFT_TREE_QUERIES = Entry {
        code: "draft-tree.queries",
        cause: "A row of a tree of drafts has 64 bits, one for each query of the sequence.",
        field: "q.dims[2]",
        needed: "at most 64 queries",
        fix: "verify fewer drafts at a time, or leave draft_tree out",
        ..Entry::description()
    },
    DRAFT_TREE_BACKWARD = Entry {
        code: "draft-tree.backward",
        cause: "Drafts are verified, and nothing is learned from them.",
        field: "pass",
        needed: "a forward",
        fix: "leave draft_tree out of a backward",
        ..Entry::description()
    },
    DRAFT_TREE_ORIGINS = Entry {
        code: "draft-tree.origins",
        cause: "The keys of drafts are the last ones of a sequence, and origins make the keys a part of longer ones.",
        field: "origins",
        needed: "no origins",
        fix: "leave origins out, or draft_tree",
        ..Entry::description()
    },
    BAND_EMPTY = Entry {
        code: "band.empty",
        cause: "The band has no bound.",
        field: "mask.band",
        needed: "at least one bound",
        fix: "leave the band out for a full mask",
        ..Entry::description()
    },
    MASK_CONTRADICTION = Entry {
        code: "mask.contradiction",
        cause: "No query sees any key.",
        field: "mask",
        needed: "a mask that lets some query see some key",
        fix: "remove the part of the mask that hides the keys that the other part keeps",
        ..Entry::description()
    },
    MASK_MOD_SCORE = Entry {
        code: "mask-mod.score",
        cause: "The mask predicate reads the score.",
        field: "mask.mask_mod",
        needed: "a predicate that reads only indices, lengths, scalars and tensors",
        fix: "change the score with a score expression instead: select(condition, score, a large negative number)",
        ..Entry::description()
    },
    MASK_MOD_NOTHING = Entry {
        code: "mask-mod.nothing",
        cause: "The mask predicate is false everywhere.",
        field: "mask.mask_mod",
        needed: "a predicate that is true for some key",
        fix: "leave the predicate out for a full mask",
        ..Entry::description()
    },
    MASK_MOD_GRADIENT = Entry {
        code: "mask-mod.gradient",
        cause: "A gradient is requested for a tensor of the mask predicate.",
        needed: "no gradient: a predicate has no derivative",
        fix: "request no gradient, or use the tensor in the score expression",
        ..Entry::description()
    },
    SCORE_MOD_TYPE = Entry {
        code: "score-mod.type",
        cause: "The expression has the wrong type.",
        fix: "make score_mod a float and mask_mod a boolean: comparisons give booleans, and select gives a float",
        ..Entry::description()
    },
    SCORE_MOD_BROADCAST = Entry {
        code: "score-mod.broadcast",
        cause: "A tensor of an expression does not broadcast to the scores.",
        fix: "give extents that broadcast over (batch, query heads, queries, keys): each is 1 or the full size",
        ..Entry::description()
    },
    SCORE_MOD_SLOPES = Entry {
        code: "score-mod.slopes",
        cause: "The number of ALiBi slopes differs from the number of query heads.",
        needed: "one ALiBi slope for each query head",
        fix: "give the tensor as many heads as Q; `alibi N from I` selects them among a model's N heads",
        ..Entry::description()
    },
    SCORE_MOD_UNREAD = Entry {
        code: "score-mod.unread",
        cause: "The score expression does not read the score.",
        field: "score_mod",
        needed: "an expression that reads the score: without it, the result does not depend on Q and K",
        fix: "add to the score or multiply it; to hide keys, use the mask predicate",
        ..Entry::description()
    },
    SCORE_MOD_DERIVATIVE = Entry {
        code: "score-mod.derivative",
        cause: "A derivative that the backward needs does not exist.",
        field: "score_mod",
        fix: "change the expression, request no gradient of that tensor, or run only the forward",
        ..Entry::description()
    },
    SCORE_MOD_BPROP_ALONE = Entry {
        code: "score-mod-bprop.alone",
        cause: "score_mod_bprop is given without score_mod.",
        field: "score_mod_bprop",
        needed: "a score_mod: without one, the gradient of the score is that of the softmax",
        fix: "add score_mod, or leave score_mod_bprop out",
        ..Entry::description()
    },
    SCORE_MOD_BPROP_TYPE = Entry {
        code: "score-mod-bprop.type",
        cause: "The expression score_mod_bprop is not a float.",
        field: "score_mod_bprop",
        fix: "write the derivative as a number",
        ..Entry::description()
    },
    SCORE_MOD_BPROP_OPERAND = Entry {
        code: "score-mod-bprop.operand",
        cause: "The expression score_mod_bprop reads a scalar or tensor that score_mod does not read.",
        field: "score_mod_bprop",
        fix: "read the scalars and tensors of score_mod, by their names there",
        ..Entry::description()
    },
    SCORE_MOD_BPROP_DISAGREES = Entry {
        code: "score-mod-bprop.disagrees",
        cause: "The expression score_mod_bprop is not the derivative of score_mod.",
        field: "score_mod_bprop",
        fix: "correct the derivative, leave it out so that qkvault derives it, or mark it as trusted",
        ..Entry::description()
    },
    SCORE_MOD_BPROP_UNCHECKED = Entry {
        code: "score-mod-bprop.unchecked",
        cause: "The values of score_mod are too rough for a numerical derivative, with which score_mod_bprop could be \
                compared.",
        field: "score_mod_bprop",
        fix: "leave the derivative out so that qkvault derives it, or mark it as trusted",
        ..Entry::description()
    },
    LENGTHS_MISSING = Entry {
        code: "lengths.missing",
        cause: "Varlen or paged operands have no per-sequence lengths.",
        field: "mask.lengths",
        needed: "per-sequence lengths: sequences in varlen and paged operands differ in length",
        fix: "use per-sequence lengths",
        ..Entry::description()
    },
    DROPOUT_PROBABILITY = Entry {
        code: "dropout.probability",
        cause: "The dropout probability is not in the range 0 to 1 (1 excluded).",
        field: "dropout.probability",
        needed: "a probability of at least 0 and below 1",
        fix: "to use no dropout, leave it out; a probability of 1 would zero everything",
        ..Entry::description()
    },
    BACKWARD_STATS = Entry {
        code: "backward.stats",
        cause: "The forward of this backward does not output Stats.",
        field: "outputs.stats",
        needed: "Stats of the forward: the backward reads this log-sum-exp",
        fix: "add `with_stats()` to the forward that this backward belongs to",
        ..Entry::description()
    },
    BACKWARD_SINK = Entry {
        code: "backward.sink",
        cause: "The gradient of a sink is requested, but there is no sink.",
        field: "pass.d_sink",
        needed: "a sink",
        fix: "add the sink to the forward or drop d_sink",
        ..Entry::description()
    },
    BACKWARD_HALF_MISSING = Entry {
        code: "backward.half-missing",
        cause: "A microscaled backward lacks the 16-bit dO.",
        field: "pass.d_o_half",
        needed: "dO in 16 bits, in addition to the 8-bit dO: the row sums of dO and O are computed from it",
        fix: "derive the backward with `Attention::backward`, which adds it",
        ..Entry::description()
    },
    BACKWARD_HALF_EXTRA = Entry {
        code: "backward.half-extra",
        cause: "A 16-bit dO is given, but this backward does not read it.",
        field: "pass.d_o_half",
        needed: "one dO: only a backward with block scales reads a second one",
        fix: "leave d_o_half out",
        ..Entry::description()
    },
    BACKWARD_CACHE = Entry {
        code: "backward.cache",
        cause: "A cache of keys and values in 8 bits has no gradients.",
        field: "fp8",
        needed: "a forward, or an attention whose operands are all trained",
        fix: "compute the backward in 16 bits (fp8: none) or with 8-bit operands (fp8: delayed)",
        ..Entry::description()
    },
];
