//! What types alone must keep apart, as far as a running test can say: the rest are `compile_fail` examples of the library.

use qkvault_graph::{CompileOptions, GraphKey, OpGraph, PlanKey, Refusal, Target, Valid};

#[test]
fn what_is_hashed_and_lowered_is_valid_and_nothing_else() {
    // The types of the passes, written out: a second way in would not fit them.
    let _: fn(&Valid) -> GraphKey = Valid::key;
    let _: fn(&Valid, &Target, &CompileOptions) -> Result<OpGraph, Refusal> = qkvault_graph::lower;
    let _: fn(&OpGraph, &Target, &CompileOptions) -> PlanKey = qkvault_graph::plan_key;
}

#[test]
fn descriptions_cross_threads() {
    fn sendable<T: Send + Sync + 'static>() {}
    sendable::<qkvault_graph::Attention>();
    sendable::<Valid>();
    sendable::<OpGraph>();
    sendable::<Refusal>();
}
