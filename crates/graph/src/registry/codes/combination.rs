//! Combinations of tensors: merges, sums, copies and fills.

use crate::entries;
use crate::registry::Entry;

entries![
    COMBINATION_PARTS = Entry {
        code: "combination.parts",
        cause: "A merge or a sum has no part, or more than one launch combines.",
        needed: "1 to 128 parts",
        fix: "combine up to 128 parts into f32, then the results",
        ..Entry::description()
    },
    COMBINATION_DTYPE = Entry {
        code: "combination.dtype",
        cause: "A tensor of a combination has a type that cannot be added, or another one than it must have.",
        needed: "f16, bf16 or f32, one type for all parts, and f32 for Stats; for a copy the same type twice",
        fix: "convert the tensor first, or describe it with the type that it has",
        ..Entry::description()
    },
    COMBINATION_DIMS = Entry {
        code: "combination.dims",
        cause: "Two tensors of a combination have different dims.",
        needed: "the same dims for all parts and the result, and (batch, heads, queries, 1) for Stats",
        fix: "give all as (batch, heads, sequence, head dim), whatever the order in memory",
        ..Entry::description()
    },
    COMBINATION_STORAGE = Entry {
        code: "combination.storage",
        cause: "A combination reads or writes a tensor that is not dense.",
        needed: "a dense tensor",
        fix: "describe the whole buffer: (1, heads, tokens, head dim) of a varlen one",
        ..Entry::description()
    },
];
