//! Workspaces and memory.

use crate::registry::Entry;
use crate::registry::declare;

declare![
    WORKSPACE_LIMIT = Entry {
        code: "workspace.limit",
        cause: "Every engine that supports the attention needs more workspace than the options allow.",
        field: "options.workspace_limit",
        fix: "raise the limit",
        source: "the compiled plan, whose workspace cuDNN reports",
        ..Entry::rule()
    },
    WORKSPACE_QUADRATIC = Entry {
        code: "workspace.quadratic",
        cause: "The workspace holds a gradient of every score, because the backward is deterministic or computes the \
                gradient of a bias, and that is too much.",
        fix: "sum dQ in any order (deterministic: no) and request no gradient of a bias, process fewer sequences at a \
              time, or compile a deterministic backward for a GPU with compute capability 10.x, which needs no such \
              workspace",
        source: "cudnn-frontend 1.23, node/scaled_dot_product_flash_attention.h, and the workspaces of compiled plans",
        evidence: "Each gradient has 16 bits, and the numbers of rows and keys are rounded up to multiples of 64: 128 \
                   heads of 32,768 queries and keys need 275 GB.",
        ..Entry::rule()
    },
    MEMORY_BUDGET = Entry {
        code: "memory.budget",
        cause: "Operands and scratch memory together exceed the budget.",
        field: "dims",
        fix: "process fewer sequences or heads at a time, or use a GPU with more memory",
        source: "the sizes of the operands and of the workspace",
        ..Entry::rule()
    },
];
