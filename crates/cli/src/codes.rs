//! Reasons for which a command has nothing to do, beside those of everything below.

use qkvault_cudnn::registry as cudnn;
use qkvault_graph::entries as declare;
use qkvault_graph::registry;
use qkvault_graph::registry::Entry;

pub use qkvault_cudnn::registry::codes::*;
pub use qkvault_models::codes::*;

declare![
    WARM_NOTHING = Entry {
        code: "warm.nothing",
        cause: "No attention is left to compile.",
        field: "--seq",
        needed: "at least one attention",
        fix: "give --phase, --batch and --seq that the model supports; the notes tell what was left out",
        ..Entry::description()
    },
    RUN_TRAIN = Entry {
        code: "run.train",
        cause: "A training step is requested, but this command runs only inference.",
        field: "--phase",
        needed: "prefill or decode",
        fix: "`qkvault-lab bench attentions` times both passes of a step, and `qkvault-lab selftest` checks them",
        ..Entry::description()
    },
    RUN_SERVE = Entry {
        code: "run.serve",
        cause: "Serving steps are requested, but this command runs only whole batches.",
        field: "--phase",
        needed: "prefill or decode",
        fix: "`qkvault-lab bench engines` times steps, and `qkvault-lab selftest --serving` checks them",
        ..Entry::description()
    },
];

/// Every entry there is: of descriptions, of each engine, and of everything else that refuses.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    let own = [
        qkvault_kernels::codes::ENTRIES,
        qkvault_fa4::codes::ENTRIES,
        qkvault_parallel::codes::ENTRIES,
        qkvault_models::codes::ENTRIES,
        qkvault_serving::codes::ENTRIES,
        qkvault_exec::codes::ENTRIES,
        ENTRIES,
    ];
    registry::entries().chain(cudnn::facts()).chain(own.into_iter().flatten().copied())
}
