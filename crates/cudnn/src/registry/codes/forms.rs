//! Forms: the op graphs that a version supports.

use super::LOWERING;
use crate::lower::{FUSED_OPS, need_the_softmax_operation};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Gpus, Versions};
use crate::{Form, Outputs};

declare![
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
            let Outputs { stats, max, sum_exp, .. } = f.a.outputs;
            let expanded = f.version() < FUSED_OPS || f.form == Form::Expanded;
            let refused = need_the_softmax_operation(f.a.outputs) && expanded;
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
        fix: "use the expanded form",
        source: LOWERING,
        applies: Applies::Lowering(|f| {
            let refused = f.form == Form::Fused && !need_the_softmax_operation(f.a.outputs);
            refused.then(|| format!("fused, for cuDNN {}", f.version()))
        }),
        ..Entry::rule()
    },
];
