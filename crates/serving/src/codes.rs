//! Reasons for which a serving policy is refused.

use qkvault_graph::entries;
use qkvault_graph::registry::Entry;

entries![
    pub;
    SERVE_RANGE = Entry {
        code: "serve.range",
        cause: "A range of serving steps is empty or too large.",
        fix: "give sizes from 1 to 2^30; they count sequences, new tokens and keys",
        ..Entry::description()
    },
    SERVE_GROWTH = Entry {
        code: "serve.growth",
        cause: "A growth is below 2, so the plans of a serving set would not grow.",
        needed: "2 or more, or none for one plan",
        fix: "give a growth of 2 or more (the factor from one plan to the next), or none",
        ..Entry::description()
    },
    SERVE_QUERIES = Entry {
        code: "serve.queries",
        cause: "A sequence has more new tokens than keys.",
        field: "serve.queries",
        fix: "raise `keys` or lower `queries`: the keys of a sequence include its new tokens",
        ..Entry::description()
    },
    SERVE_TOKENS = Entry {
        code: "serve.tokens",
        cause: "A step has room for fewer tokens than there are sequences, or than one sequence may have new tokens.",
        field: "serve.tokens",
        fix: "raise `tokens` to at least `batch` and `queries`, or lower these",
        ..Entry::description()
    },
    SERVE_SCORE_MOD = Entry {
        code: "serve.score-mod",
        cause: "The score expression becomes too large when it counts queries by position.",
        field: "score_mod",
        needed: "an expression that fits when it counts queries by position",
        fix: "write it with `position`",
        ..Entry::description()
    },
];
