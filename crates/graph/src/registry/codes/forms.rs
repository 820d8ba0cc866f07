//! Forms: the op graphs that a version supports.

use super::LOWERING;
use crate::lower::{FUSED_OPS, UNIFIED_OP, need_the_softmax_operation};
use crate::registry::entry::entries;
use crate::registry::{Applies, Entry, Facts, Gpus, Standing, Versions};
use crate::{Form, Outputs};

/// The fix for most of these refusals.
const EXPANDED: &str = "use the expanded form";

/// What was given, with the version, if the unified form is chosen and `is` holds.
fn unified(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    (f.form == Form::Unified && is).then(|| format!("{what}, for cuDNN {}", f.version()))
}

entries![
    OUTPUTS_COMBINATION = Entry {
        code: "outputs.combination",
        cause: "This set of outputs needs the softmax operation. Versions before 9.21 do not have it, and in newer \
                versions the expanded form, if it is chosen, does not use it.",
        affected: &[Versions::older_than(FUSED_OPS).on(Gpus::ALL), Versions::not_before(FUSED_OPS).on(Gpus::ALL)],
        field: "outputs",
        needed: "Stats alone, or Max and Sum_exp together; other sets need the softmax operation",
        fix: "request Stats alone: Stats is Max + ln(Sum_exp)",
        source: "results of an H200 under 9.19, compared with the float64 oracle (docs/results/selftest.md)",
        evidence: "Before 9.21, Max and Sum_exp were never written if Stats was requested too.",
        applies: Applies::Lowering(|f| {
            let Outputs { stats, max, sum_exp, amax: _ } = f.a.outputs;
            let expanded = f.version() < FUSED_OPS || f.form == Form::Expanded;
            let refused = f.form != Form::Unified && need_the_softmax_operation(f.a.outputs) && expanded;
            refused.then(|| {
                format!("stats {stats}, max {max}, sum_exp {sum_exp}, for cuDNN {} and {:?}", f.version(), f.form)
            })
        }),
        ..Entry::rule()
    },
    FORM_FUSED = Entry {
        code: "form.fused",
        cause: "These versions lack the band-mask and softmax operations, which the fused form uses.",
        affected: &[Versions::older_than(FUSED_OPS).on(Gpus::ALL)],
        field: "options.lab.form",
        needed: "band-mask and softmax operations",
        fix: EXPANDED,
        source: LOWERING,
        applies: Applies::Lowering(|f| {
            let refused = f.form == Form::Fused && !need_the_softmax_operation(f.a.outputs);
            refused.then(|| format!("fused, for cuDNN {}", f.version()))
        }),
        ..Entry::rule()
    },
    FORM_UNIFIED = Entry {
        code: "form.unified",
        cause: "These versions have no unified operation.",
        affected: &[Versions::older_than(UNIFIED_OP).on(Gpus::ALL)],
        field: "options.lab.form",
        fix: EXPANDED,
        source: LOWERING,
        applies: Applies::Lowering(|f| unified(f, true, "the unified operation")),
        ..Entry::rule()
    },
    FORM_UNIFIED_LENGTHS = Entry {
        code: "form.unified-lengths",
        cause: "The unified operation of these versions does not support per-sequence lengths.",
        affected: &[Versions::before(15, 0).on(Gpus::ALL)],
        field: "mask.lengths",
        fix: EXPANDED,
        source: LOWERING,
        applies: Applies::Lowering(|f| unified(f, f.lengths(), "lengths in the unified operation")),
        ..Entry::rule()
    },
    FORM_UNIFIED_OUTPUTS = Entry {
        code: "form.unified-outputs",
        cause: "The unified operation of these versions does not output Max and Sum_exp.",
        affected: &[Versions::before(21, 0).on(Gpus::ALL)],
        field: "outputs",
        fix: EXPANDED,
        source: LOWERING,
        applies: Applies::Lowering(|f| unified(
            f,
            f.a.outputs.max || f.a.outputs.sum_exp,
            "Max or Sum_exp of the unified operation"
        )),
        ..Entry::rule()
    },
    FORM_UNIFIED_BAND = Entry {
        code: "form.unified-band",
        cause: "The unified operation of these versions supports neither a causal mask nor a window.",
        affected: &[Versions::before(21, 0).on(Gpus::ALL)],
        field: "mask.band",
        fix: EXPANDED,
        source: LOWERING,
        applies: Applies::Lowering(|f| unified(
            f,
            f.a.mask.band.is_some(),
            "a causal mask or a window in the unified operation"
        )),
        ..Entry::rule()
    },
    FORM_UNIFIED_SCORE_MOD = Entry {
        code: "form.unified-score-mod",
        cause: "The unified operation of these versions does not support a score expression.",
        affected: &[Versions::before(21, 0).on(Gpus::ALL)],
        field: "score_mod",
        fix: EXPANDED,
        source: LOWERING,
        applies: Applies::Lowering(|f| unified(
            f,
            f.a.score_mod.is_some(),
            "a score expression in the unified operation"
        )),
        ..Entry::rule()
    },
    FORM_UNIFIED_MASK_MOD = Entry {
        code: "form.unified-mask-mod",
        cause: "The unified operation of these versions does not support a mask predicate.",
        affected: &[Versions::before(21, 0).on(Gpus::ALL)],
        field: "mask.mask_mod",
        fix: EXPANDED,
        source: LOWERING,
        applies: Applies::Lowering(|f| unified(f, f.a.mask.mask_mod.is_some(), "a predicate in the unified operation")),
        ..Entry::rule()
    },
    FORM_UNIFIED_SINK = Entry {
        code: "form.unified-sink",
        cause: "The unified operation of these versions does not support a sink.",
        affected: &[Versions::before(21, 0).on(Gpus::ALL)],
        field: "sink",
        fix: EXPANDED,
        source: LOWERING,
        applies: Applies::Lowering(|f| unified(f, f.a.sink, "a sink in the unified operation")),
        ..Entry::rule()
    },
    FORM_UNIFIED_DROPOUT = Entry {
        code: "form.unified-dropout",
        cause: "qkvault does not write dropout in the unified form.",
        field: "dropout",
        needed: "another form",
        fix: EXPANDED,
        source: LOWERING,
        applies: Applies::Lowering(|f| unified(f, f.dropout(), "dropout in the unified operation")),
        ..Entry::rule()
    },
    FORM_UNIFIED_PAGED = Entry {
        code: "form.unified-paged",
        cause: "The unified operation of these versions does not support page tables.",
        affected: &[Versions::before(15, 0).on(Gpus::ALL)],
        field: "k.storage",
        fix: EXPANDED,
        source: LOWERING,
        applies: Applies::Lowering(|f| unified(f, f.a.k.is_paged(), "paged keys and values in the unified operation")),
        ..Entry::rule()
    },
    FORM_UNIFIED_WRONG = Entry {
        code: "form.unified-wrong",
        cause: "The unified operation gives wrong results or reads illegal addresses with any score expression.",
        affected: &[Versions::from(21, 0).on(Gpus::ALL)],
        field: "options.lab.form",
        needed: "another form",
        fix: EXPANDED,
        source: "results of an H200 under 9.27, compared with the float64 oracle (docs/results/forms.md)",
        evidence: "With an expression, 11 of 361 random forwards were wrong and 23 read illegal addresses, and 20 of \
                   120 serving batches were wrong. All 139 forwards and 156 batches without an expression were right, \
                   and so were the other forms.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.27",
            "qkvault-lab selftest --form unified --allow form.unified-wrong --isolate 4"
        )),
        applies: Applies::Lowering(|f| {
            unified(f, f.a.score_mod.is_some(), "a score expression in the unified operation")
        }),
        ..Entry::quirk(14)
    },
];
