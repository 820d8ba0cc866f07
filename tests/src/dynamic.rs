//! What cuDNN's dynamic shapes and kernel caches give: every line of `DYNAMIC_SHAPES` put to the library.

use qkvault_graph::{Attention, BackwardOptions, DType, OpGraph, Policy, Target, lower, validate};
use qkvault_probe::{Compiled, Compiler, DYNAMIC_SHAPES, DynamicShapes, Failure, KernelCache};
use serde_json::Value;

use crate::cudnn::{compiler, target};
use crate::kernel::cubins;

/// Finds again, for one version, what the table says of it.
///
/// # Panics
///
/// When it finds something else, or the table has no line for a direction.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let mut checked = 0;
    for gpu in ["a100", "l40s", "h200", "b200"] {
        let target = target(&compiler, gpu);
        for backward in [false, true] {
            let told = DynamicShapes::of(&target, backward);
            assert_eq!(told, Some(find(&compiler, &target, backward)), "{target}, backward: {backward}");
            checked += 1;
        }
    }
    let lines: usize =
        DYNAMIC_SHAPES.iter().filter(|(v, ..)| v.to_string() == version).map(|(_, _, sms, _)| sms.len()).sum();
    assert_eq!(checked, lines, "every line of this version was put to it");
}

fn graph(target: &Target, batch: i64, seq: i64, backward: bool) -> OpGraph {
    let mut attention = Attention::bshd(batch, (8, 8), (seq, seq), 128, DType::BF16);
    if backward {
        attention = attention.with_stats();
        attention = attention.backward(BackwardOptions::default());
    }
    lower(&validate(attention).unwrap(), target, &Policy::default()).unwrap()
}

fn find(compiler: &Compiler, target: &Target, backward: bool) -> DynamicShapes {
    let [first, further, odd] = [(1, 1024), (4, 2048), (1, 1000)].map(|(b, s)| graph(target, b, s, backward));
    let policy = Policy::default();
    let dynamic = |graph: &OpGraph, kernels: &KernelCache| compiler.compile_dynamic(graph, target, &policy, kernels);
    let kernels = compiler.kernel_cache(&first).unwrap_or_else(|e| panic!("an empty cache: {e}"));
    let filled = match dynamic(&first, &kernels) {
        Ok(plan) => plan,
        Err(Failure::Refused(refusal)) => {
            assert!(refusal.to_string().contains("does not support dynamic shape"), "{refusal}");
            return DynamicShapes::Refused;
        }
        Err(failure) => panic!("{failure}"),
    };
    let fixed = |graph: &OpGraph| compiler.compile(graph, target, &policy).unwrap_or_else(|e| panic!("{e}"));
    let [from_cache, odd_from_cache] = [&further, &odd].map(|graph| dynamic(graph, &kernels).unwrap());
    let [alone, odd_alone] = [&further, &odd].map(fixed);
    assert!(from_cache.milliseconds * 5 < filled.milliseconds, "{} ms", from_cache.milliseconds);
    let same_kernels = cubins(&from_cache.blob) == cubins(&alone.blob);
    let same_odd_kernels = cubins(&odd_from_cache.blob) == cubins(&odd_alone.blob);
    let same_sizes = sizes(&from_cache) == sizes(&alone);
    // Written, read again and used: if it served, the plan would have the sizes of the shape that filled it.
    let again = compiler.read_kernel_cache(&kernels.bytes().unwrap()).unwrap();
    let kept = dynamic(&further, &again).unwrap();
    let kept = kept.milliseconds * 5 < filled.milliseconds;
    if same_kernels && same_odd_kernels && same_sizes && kept {
        return DynamicShapes::SamePlan;
    }
    // The reasons that the table's documentation gives, each of them.
    assert!(!same_sizes && sizes(&from_cache) == sizes(&filled), "the sizes are those of the first shape");
    assert!(!same_odd_kernels && cubins(&odd_from_cache.blob) == cubins(&filled.blob), "the kernel of other lengths");
    assert!(!kept, "a cache that was read again serves");
    DynamicShapes::OtherPlan
}

/// What a kernel's parameters begin with, in base64: batch, heads, heads of K and V, lengths (24 bytes).
fn sizes(plan: &Compiled) -> String {
    let plan: Value = serde_json::from_slice(&plan.blob).unwrap();
    let raw = plan["engine"]["payload"]["kernels"][0]["kernelParams"]["rawData"].as_str();
    raw.unwrap_or_else(|| panic!("a plan's kernel has parameters"))[..32].to_owned()
}
