//! What the library says in its own words.

use crate::registry::Entry;
use crate::registry::entry::entries;

entries![
    LIBRARY_DEVICE = Entry {
        code: "library.device",
        cause: "The library refuses the device properties.",
        field: "target.device",
        ..Entry::library()
    },
    LIBRARY_GRAPH = Entry {
        code: "library.graph",
        cause: "The library refuses the op graph.",
        field: "op graph",
        ..Entry::library()
    },
    LIBRARY_HEURISTICS =
        Entry { code: "library.heuristics", cause: "The heuristics give no engine.", ..Entry::library() },
    LIBRARY_ENGINE = Entry {
        code: "library.engine",
        cause: "The engine that is named does not take the op graph.",
        ..Entry::library()
    },
    LIBRARY_PLAN = Entry { code: "library.plan", cause: "No engine makes a plan.", ..Entry::library() },
    LIBRARY_SILENT = Entry {
        code: "library.silent",
        cause: "The library refuses without a word.",
        field: "heuristics",
        ..Entry::library()
    },
    LIBRARY_REFUSED = Entry {
        code: "library.refused",
        cause: "The library refuses, with its own status in the code (`library.not-supported-shape`), its words, and \
                the engines that said so.",
        field: "library",
        ..Entry::library()
    },
];
