//! Cumulative lengths, offsets and page tables of a launch.

use crate::entries;
use crate::registry::Entry;

entries![
    LENGTHS_NEGATIVE = Entry {
        code: "lengths.negative",
        cause: "A length is negative.",
        needed: "lengths of 0 or more",
        fix: "a sequence may be empty: give 0",
        ..Entry::description()
    },
    OFFSETS_ENTRIES = Entry {
        code: "offsets.entries",
        cause: "The cumulative lengths contain no sequence.",
        field: "cu_seqlens",
        needed: "one entry more than there are sequences, and at least one sequence",
        fix: "begin with 0 and end with the number of tokens",
        ..Entry::description()
    },
    OFFSETS_START = Entry {
        code: "offsets.start",
        cause: "The cumulative lengths do not start at 0.",
        field: "cu_seqlens[0]",
        needed: "the first sequence begins at 0",
        fix: "give cumulative lengths, not lengths: 0, then the sum up to each sequence",
        ..Entry::description()
    },
    OFFSETS_FALLS = Entry {
        code: "offsets.falls",
        cause: "The cumulative lengths decrease.",
        needed: "cumulative lengths that never decrease",
        fix: "give the number of rows before each sequence, in the order of the batch",
        ..Entry::description()
    },
    OFFSETS_LENGTH_LIMIT = Entry {
        code: "offsets.length-limit",
        cause: "A sequence is longer than 2^31 - 1.",
        needed: "no sequence may be longer than 2147483647",
        fix: "lengths are 32-bit integers: split the sequence",
        ..Entry::description()
    },
    OFFSETS_BATCH = Entry {
        code: "offsets.batch",
        cause: "The offsets are for another number of sequences.",
        field: "cu_seqlens",
        fix: "give one entry per sequence and one more, not one per token",
        ..Entry::description()
    },
    OFFSETS_CAPACITY = Entry {
        code: "offsets.capacity",
        cause: "There are more tokens than the varlen buffer can hold.",
        field: "cu_seqlens",
        fix: "use a plan for a larger buffer, or fewer sequences",
        ..Entry::description()
    },
    OFFSETS_LONGEST = Entry {
        code: "offsets.longest",
        cause: "A sequence is longer than the plan accepts.",
        field: "cu_seqlens",
        fix: "use a plan for longer sequences",
        ..Entry::description()
    },
    OFFSETS_OVERFLOW = Entry {
        code: "offsets.overflow",
        cause: "An offset does not fit 63 bits.",
        field: "tensor.strides[2]",
        needed: "offsets that fit 63 bits",
        fix: "check the strides: they are in elements, not bytes",
        ..Entry::description()
    },
    OFFSETS_STORAGE = Entry {
        code: "offsets.storage",
        cause: "Offsets are given for an operand that is not varlen.",
        needed: "only varlen tensors have offsets",
        fix: "bind no offsets to it",
        ..Entry::description()
    },
    PAGES_BATCH = Entry {
        code: "pages.batch",
        cause: "The page table is for another number of sequences.",
        fix: "give one row of pages and one length per sequence, not per token or page",
        ..Entry::description()
    },
    PAGES_SHORT = Entry {
        code: "pages.short",
        cause: "There are fewer pages than a sequence needs.",
        fix: "give every page that holds a row of the sequence",
        ..Entry::description()
    },
    PAGES_LONG = Entry {
        code: "pages.long",
        cause: "There are more pages than a sequence can have.",
        fix: "use a plan for longer sequences, or give only pages that are in use",
        ..Entry::description()
    },
    PAGES_POOL = Entry {
        code: "pages.pool",
        cause: "A page is not in the pool.",
        fix: "give page indices in the pool, and leave out entries that stand for no page",
        ..Entry::description()
    },
    PAGES_STORAGE = Entry {
        code: "pages.storage",
        cause: "A page table is given for an operand that is not paged.",
        field: "storage",
        needed: "only paged tensors have a page table",
        fix: "bind no page table to it",
        ..Entry::description()
    },
];
