//! Reasons for which a training step is refused.

use qkvault_graph::entries;
use qkvault_graph::registry::Entry;

entries![
    pub;
    TRAINING_BACKWARD = Entry {
        code: "training.backward",
        cause: "The attention given for a training pair is a backward.",
        field: "pass",
        needed: "a forward, from which the backward is derived",
        fix: "give the forward, and put the formats of the gradients into the options",
        ..Entry::description()
    },
];
