//! Attentions that only some engines compute, or none.

use super::{FE_BACKWARD, GPU};
use crate::lower::{FIRST_NAMED, lacks_engine};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Gpus, Standing, Versions};

declare![
    BACKWARD_DETERMINISTIC_ENGINE = Entry {
        code: "backward.deterministic-engine",
        cause: "On 10.x, NVIDIA's front end names the engine of a deterministic backward, and it names none for this \
                GPU and version.",
        affected: &[
            Versions::older_than(FIRST_NAMED).on(Gpus { from: 100, to: 103 }),
            Versions::ALL.on(Gpus { from: 104, to: 109 })
        ],
        field: "pass.deterministic",
        needed: "on compute capability 10.0 to 10.3, cuDNN 9.18.0 or newer: NVIDIA names no deterministic engine for \
                 others",
        fix: "sum gradients in any order (deterministic: no)",
        source: FE_BACKWARD,
        evidence: "9.14 answers `Engine 5 is not enabled for SDPA_BWD`.",
        applies: Applies::Lowering(|f| {
            let (sm, cudnn) = (f.sm(), f.version());
            lacks_engine(f.a, f.target).then(|| {
                format!("a deterministic backward on compute capability {}.{}, for cuDNN {cudnn}", sm / 10, sm % 10)
            })
        }),
        ..Entry::rule()
    },
    ENGINE_NONDETERMINISTIC = Entry {
        code: "engine.nondeterministic",
        cause: "The engines that support this deterministic backward report that two runs may differ.",
        field: "pass.deterministic",
        needed: "an engine that does not report that two runs may differ",
        fix: "sum gradients in any order (deterministic: no)",
        source: "numerical notes of the engines (docs/results/forms.md)",
        evidence: "No attention engine was seen to report this.",
        ..Entry::rule()
    },
    ENGINE_AMAX = Entry {
        code: "engine.amax",
        cause: "The plan's kernels do not bind a largest magnitude that the attention puts out, so it would keep its old \
                number.",
        field: "outputs.amax",
        needed: "an engine that binds every largest magnitude: kernels that split the keys bind none",
        fix: "leave largest magnitudes out (outputs: no_amax), or use cuDNN 9.23 or older",
        source: "plans of cuDNN 9.24 to 9.27 for compute capability 10.0, which list what their kernels bind",
        evidence: "Chosen first for forwards without a band over 4096 keys or more that leave a part of the GPU idle; the \
                   next configuration binds them.",
        ..Entry::rule()
    },
    ENGINE_WRONG = Entry {
        code: "engine.wrong",
        cause: "The only engines that support the attention count keys wrongly, so key indices and Philox dropout are \
                wrong.",
        field: "score_mod",
        needed: "for one query, no expression over the key index and no Philox dropout: this engine computes them \
                 wrongly",
        fix: "give the expression as a bias tensor of extents [1, heads, 1, keys]",
        source: GPU,
        evidence: "Engine 1 gave an O that was off by 0.1 to 1.5 over more than 256 keys or pages, and read an illegal \
                   address with Philox; engine 2 is right where cuDNN offers it.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --without avoid-engines --isolate 4"
        )),
        ..Entry::quirk(8)
    },
];
