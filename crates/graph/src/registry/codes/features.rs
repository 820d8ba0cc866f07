//! Masks, score expression, dropout, sinks and gradients.

use crate::registry::Entry;
use crate::registry::entry::entries;

entries![
    BAND_LEFT = Entry {
        code: "band.left",
        cause: "A window holds not even the diagonal.",
        field: "mask.band.left",
        needed: "a window that looks back holds at least the diagonal: 1 or more",
        fix: "the length counts the diagonal; use None for no bound",
        ..Entry::description()
    },
    BAND_RIGHT = Entry {
        code: "band.right",
        cause: "A right bound is negative.",
        field: "mask.band.right",
        needed: "keys beyond the diagonal: 0 (causal) or more",
        fix: "use None for no bound",
        ..Entry::description()
    },
    BAND_EMPTY = Entry {
        code: "band.empty",
        cause: "A band has no bound.",
        field: "mask.band",
        needed: "at least one bound",
        fix: "leave the band out for a full mask",
        ..Entry::description()
    },
    MASK_CONTRADICTION = Entry {
        code: "mask.contradiction",
        cause: "No key is seen by any query.",
        field: "mask",
        needed: "some key must be seen by some query",
        fix: "drop the part of the mask that hides what the other part keeps",
        ..Entry::description()
    },
    MASK_MOD_SCORE = Entry {
        code: "mask-mod.score",
        cause: "A predicate reads the score.",
        field: "mask.mask_mod",
        needed: "which keys are seen depends on indices, lengths, scalars and tensors alone",
        fix: "change the score itself with a score expression: select(condition, score, a large negative number)",
        ..Entry::description()
    },
    MASK_MOD_NOTHING = Entry {
        code: "mask-mod.nothing",
        cause: "A predicate is false everywhere.",
        field: "mask.mask_mod",
        needed: "a predicate that some key can satisfy",
        fix: "leave the predicate out for a full mask",
        ..Entry::description()
    },
    MASK_MOD_GRADIENT = Entry {
        code: "mask-mod.gradient",
        cause: "A gradient is asked of a tensor in a predicate.",
        needed: "a predicate has no derivative",
        fix: "ask for no gradient, or use the tensor in the score expression",
        ..Entry::description()
    },
    SCORE_MOD_TYPE = Entry {
        code: "score-mod.type",
        cause: "An expression has the wrong type.",
        fix: "score_mod is a float and mask_mod a boolean; compare to get a predicate, select to get a score",
        ..Entry::description()
    },
    SCORE_MOD_BROADCAST = Entry {
        code: "score-mod.broadcast",
        cause: "A tensor of an expression does not broadcast to the scores.",
        fix: "tensors broadcast over (batch, query heads, queries, keys) by extents of 1",
        ..Entry::description()
    },
    SCORE_MOD_SLOPES = Entry {
        code: "score-mod.slopes",
        cause: "There is not one slope of ALiBi for each query head.",
        needed: "a slope of ALiBi for each query head",
        fix: "give the tensor as many heads as Q; `alibi N from I` says which of a model's N heads they are",
        ..Entry::description()
    },
    SCORE_MOD_UNREAD = Entry {
        code: "score-mod.unread",
        cause: "A score expression does not read the score.",
        field: "score_mod",
        needed: "an expression that reads the score: without it Q and K have no part in the result",
        fix: "add to the score or multiply it; hide keys with the mask's predicate",
        ..Entry::description()
    },
    SCORE_MOD_DERIVATIVE = Entry {
        code: "score-mod.derivative",
        cause: "A derivative that the backward needs does not exist.",
        field: "score_mod",
        fix: "change the expression, ask for no gradient of that tensor, or run the forward alone",
        ..Entry::description()
    },
    SCORE_MOD_BPROP_ALONE = Entry {
        code: "score-mod-bprop.alone",
        cause: "An own backward is given without a score modification.",
        field: "score_mod_bprop",
        needed: "a score modification: without one the gradient of the score is that of the softmax",
        fix: "add the modification, or leave it out",
        ..Entry::description()
    },
    SCORE_MOD_BPROP_TYPE = Entry {
        code: "score-mod-bprop.type",
        cause: "An own backward is no float.",
        field: "score_mod_bprop",
        fix: "write the derivative as a number",
        ..Entry::description()
    },
    SCORE_MOD_BPROP_OPERAND = Entry {
        code: "score-mod-bprop.operand",
        cause: "An own backward reads what the modification does not.",
        field: "score_mod_bprop",
        fix: "read the scalars and tensors of the modification, by their names there",
        ..Entry::description()
    },
    SCORE_MOD_BPROP_DISAGREES = Entry {
        code: "score-mod-bprop.disagrees",
        cause: "An own backward is not the derivative of the modification.",
        field: "score_mod_bprop",
        fix: "correct the derivative, leave it out to have it derived, or say that it is trusted",
        ..Entry::description()
    },
    SCORE_MOD_BPROP_UNCHECKED = Entry {
        code: "score-mod-bprop.unchecked",
        cause: "The modification is too rough to compare an own backward with its derivative.",
        field: "score_mod_bprop",
        fix: "leave the derivative out to have it derived, or say that it is trusted",
        ..Entry::description()
    },
    LENGTHS_MISSING = Entry {
        code: "lengths.missing",
        cause: "Varlen or paged operands come without lengths.",
        field: "mask.lengths",
        needed: "varlen and paged operands have sequences of differing lengths",
        fix: "use per-sequence lengths",
        ..Entry::description()
    },
    DROPOUT_PROBABILITY = Entry {
        code: "dropout.probability",
        cause: "The probability of dropout is not in 0..1.",
        field: "dropout.probability",
        needed: "the probability of zeroing must be at least 0 and below 1",
        fix: "leave dropout out for 0; 1 would zero everything",
        ..Entry::description()
    },
    BACKWARD_STATS = Entry {
        code: "backward.stats",
        cause: "The forward of a backward does not put out Stats.",
        field: "outputs.stats",
        needed: "the backward reads the log-sum-exp of the forward",
        fix: "add `with_stats()` to the forward that this backward belongs to",
        ..Entry::description()
    },
    BACKWARD_SINK = Entry {
        code: "backward.sink",
        cause: "The gradient of a sink is asked for, and there is no sink.",
        field: "pass.d_sink",
        needed: "a gradient of the sink needs a sink",
        fix: "add the sink to the forward or drop d_sink",
        ..Entry::description()
    },
    BACKWARD_HALF_MISSING = Entry {
        code: "backward.half-missing",
        cause: "A microscaled backward comes without the 16-bit dO.",
        field: "pass.d_o_half",
        needed: "dO in 16 bits, beside the 8-bit one: row sums of dO and O are taken from it",
        fix: "derive the backward with `Attention::backward`, which adds it",
        ..Entry::description()
    },
    BACKWARD_HALF_EXTRA = Entry {
        code: "backward.half-extra",
        cause: "A 16-bit dO is given where none is read.",
        field: "pass.d_o_half",
        needed: "one dO: only a backward with block scales reads a second one",
        fix: "leave d_o_half out",
        ..Entry::description()
    },
];
