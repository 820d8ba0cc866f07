//! Refusals of cuDNN itself, with its own message.

use crate::registry::Entry;
use crate::registry::declare;

declare![
    LIBRARY_DEVICE = Entry {
        code: "library.device",
        cause: "cuDNN refuses the device properties.",
        field: "target.device",
        ..Entry::library()
    },
    LIBRARY_GRAPH =
        Entry { code: "library.graph", cause: "cuDNN refuses the op graph.", field: "op graph", ..Entry::library() },
    LIBRARY_HEURISTICS =
        Entry { code: "library.heuristics", cause: "The heuristics give no engine.", ..Entry::library() },
    LIBRARY_ENGINE = Entry {
        code: "library.engine",
        cause: "The engine that qkvault names does not support the op graph.",
        ..Entry::library()
    },
    LIBRARY_PLAN = Entry { code: "library.plan", cause: "No engine makes a plan.", ..Entry::library() },
    LIBRARY_SILENT = Entry {
        code: "library.silent",
        cause: "cuDNN refuses without a message.",
        field: "heuristics",
        ..Entry::library()
    },
    LIBRARY_REFUSED = Entry {
        code: "library.refused",
        cause: "cuDNN refuses. Its status is in the code (`library.not-supported-shape`), and the reason has its \
                message and the engines that gave it.",
        field: "library",
        ..Entry::library()
    },
];
