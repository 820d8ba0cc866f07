//! Guarantees of types, as far as a running test can check them; the others are `compile_fail` examples of the library.

use qkvault_cudnn::{CompileOptions, OpGraph, Target};
use qkvault_graph::{GraphKey, PlanKey, Refusal, Valid};

#[test]
fn only_valid_attentions_are_hashed_and_lowered() {
    // The types of the passes: another way in would not fit them.
    let _: fn(&Valid) -> GraphKey = Valid::key;
    let _: fn(&Valid, &Target, &CompileOptions) -> Result<OpGraph, Refusal> = qkvault_cudnn::lower;
    let _: fn(&OpGraph, &Target, &CompileOptions) -> PlanKey = qkvault_cudnn::plan_key;
}

#[test]
fn descriptions_cross_threads() {
    fn sendable<T: Send + Sync + 'static>() {}
    sendable::<qkvault_graph::Attention>();
    sendable::<Valid>();
    sendable::<OpGraph>();
    sendable::<Refusal>();
}
