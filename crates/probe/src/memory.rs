//! The memory of an attention: its operands, the buffers that a launch adds, and cuDNN's workspace.

use qkvault_cudnn::op::Scratch;
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, Target, lower};
use qkvault_graph::{Attention, Reason, Valid, operands};

use crate::Budget;

/// Bytes of device memory that one launch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of all operands. Parts of a shared buffer count separately, so this is an upper bound.
    pub operands: u64,
    /// Bytes of other memory: cuDNN's workspace and the buffers of a backward.
    pub scratch: u64,
    /// Whether cuDNN keeps a gradient of every score in the workspace, which grows with queries times keys.
    pub quadratic: bool,
    /// Whether the workspace is the compiled plan's. Otherwise it is a lower bound: known buffers, and the gradients of
    /// the scores if there are any.
    pub exact: bool,
}

impl Footprint {
    /// The footprint of an attention without a compiled plan; `None` if it does not lower.
    #[must_use]
    pub fn for_attention(attention: &Valid, target: &Target, options: &CompileOptions) -> Option<Footprint> {
        let graph = lower(attention, target, options).ok()?;
        let quadratic = graph.keeps_scores(target.sm());
        let scores = if quadratic { scores(attention) } else { 0 };
        Some(Footprint {
            operands: operand_bytes(attention),
            scratch: Scratch::of_graph(scores, &graph, Some(attention)).bytes,
            quadratic,
            exact: false,
        })
    }

    /// The footprint of a compiled plan: its scratch memory, and whether that holds a gradient of every score.
    #[must_use]
    pub fn of_launch(attention: &Valid, scratch: &Scratch, keeps_scores: bool) -> Footprint {
        Footprint { operands: operand_bytes(attention), scratch: scratch.bytes, quadratic: keeps_scores, exact: true }
    }

    /// The sum of all parts, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.operands.saturating_add(self.scratch)
    }

    /// The reason why it exceeds a budget, such as the free memory of a GPU ([`Budget::free`]); `None` if it fits. A
    /// plain number is a given budget.
    #[must_use]
    pub fn over(&self, budget: impl Into<Budget>) -> Option<Reason> {
        let budget = budget.into();
        if self.bytes() <= budget.bytes {
            return None;
        }
        let least = if self.exact { "" } else { "at least " };
        let given = format!(
            "{least}{} bytes: {} of operands and {least}{} of scratch memory",
            self.bytes(),
            self.operands,
            self.scratch
        );
        let needed = format!("at most {budget}");
        let quadratic = self.quadratic && self.operands <= budget.bytes;
        let code = if quadratic { &codes::WORKSPACE_QUADRATIC } else { &codes::MEMORY_BUDGET };
        Some(code.reason(given).at("dims").with_needed(needed))
    }
}

/// Bytes of a backward's gradients of scores: 16 bits each, with rows and keys rounded up to multiples of 64
/// (cudnn-frontend 1.23, `node/scaled_dot_product_flash_attention.h`).
fn scores(attention: &Attention) -> u64 {
    let ([b, h, s_q, _], s_kv) = (attention.q.dims.map(i64::unsigned_abs), attention.k.dims[2].unsigned_abs());
    [b, h, s_q.next_multiple_of(64), s_kv.next_multiple_of(64), 2].into_iter().fold(1, u64::saturating_mul)
}

fn operand_bytes(attention: &Attention) -> u64 {
    let memory = operands(attention).into_iter().filter(|o| !o.role.is_scalar());
    memory.filter_map(|o| o.tensor.bytes()).map(i64::unsigned_abs).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_device;
    use qkvault_cudnn::Profile;
    use qkvault_graph::{BackwardOptions, CudnnVersion, DType, LibrarySet, Origin, validate};

    fn deepseek(profile: &str, deterministic: bool) -> (Footprint, Target) {
        let target = Profile::named(profile).expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let q = qkvault_graph::Tensor::bshd(1, 128, 32_768, 192, DType::BF16);
        let v = qkvault_graph::Tensor::bshd(1, 128, 32_768, 128, DType::BF16);
        let forward = Attention::forward(q, q, v, v).with_stats();
        let options = BackwardOptions { deterministic, ..BackwardOptions::default() };
        let attention = validate(forward.backward(options)).expect("sound");
        (Footprint::for_attention(&attention, &target, &CompileOptions::default()).expect("lowers"), target)
    }

    /// NVIDIA's own sweep ran out of memory here (128 heads, 32k, deterministic, H200).
    #[test]
    fn a_deterministic_backward_that_is_too_large_is_a_reason_with_its_alternatives() {
        let (found, target) = deepseek("h200", true);
        let reason = found.over(on_device(&target)).expect("275 GB do not fit");
        assert!(
            found.quadratic && reason.code == codes::WORKSPACE_QUADRATIC && reason.fix.contains("deterministic: no")
        );
        let (found, target) = deepseek("h200", false);
        assert!(!found.quadratic && found.over(on_device(&target)).is_none(), "{found:?}");
        let (found, target) = deepseek("b200", true);
        assert!(!found.quadratic && found.over(on_device(&target)).is_none(), "{found:?}");
    }

    /// A budget of all memory accepts attentions that end in an allocation error on a GPU that others use.
    #[test]
    fn an_attention_larger_than_the_free_memory_is_refused_with_the_figure() {
        let (found, target) = deepseek("h200", false);
        let total = on_device(&target);
        assert_eq!(found.over(total), None);
        let reason = found.over(Budget::free(found.bytes() - 1, total.bytes)).expect("a byte is missing");
        let figures = format!("{} bytes, which are free on the GPU now, of {}", found.bytes() - 1, total.bytes);
        assert!(reason.code == codes::MEMORY_BUDGET && reason.needed.contains(&figures), "{reason}");
        assert_eq!(found.over(Budget::free(found.bytes(), total.bytes)), None);
        // A caller that cannot query free memory gives all memory as the budget.
        let (large, target) = deepseek("h200", true);
        let reason = large.over(on_device(&target)).expect("275 GB do not fit");
        assert!(reason.needed.contains("of which others may use some"), "{reason}");
        assert!(found.over(1).is_some_and(|r| r.needed.contains("the given budget")));
    }

    /// 4 x 65 queries over 3 x 63 keys: a gradient in 16 bits of each of 128 x 64 scores of a head.
    #[test]
    fn a_footprint_counts_operands_to_the_byte_and_gradients_of_scores_in_whole_tiles() {
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let of = |deterministic| {
            let forward = Attention::bshd(3, (4, 4), (65, 63), 64, DType::BF16).with_lengths().with_stats();
            let options = BackwardOptions { deterministic, ..BackwardOptions::default() };
            let attention = validate(forward.backward(options)).expect("sound");
            Footprint::for_attention(&attention, &target, &CompileOptions::default()).expect("lowers")
        };
        let (q, kv, rows, lengths) = (3 * 4 * 65 * 64 * 2, 3 * 4 * 63 * 64 * 2, 3 * 4 * 65 * 4, 3 * 4);
        let operands = 4 * q + 4 * kv + rows + 2 * lengths;
        let sums = 3_u64 * 4 * 65 * 4;
        let direct = Footprint { operands, scratch: 3 * 4 * 128 * 64 * 2 + sums, quadratic: true, exact: false };
        assert_eq!(of(true), direct);
        let in_any_order = of(false);
        assert_eq!((in_any_order.operands, in_any_order.quadratic), (operands, false));
        // If the operands alone exceed the budget, another order of sums does not help.
        let code = |bytes: u64| direct.over(bytes).map(|r| (r.code, r.origin));
        assert_eq!(code(operands), Some((codes::WORKSPACE_QUADRATIC.clone(), Origin::Rule)));
        assert_eq!(code(operands - 1), Some((codes::MEMORY_BUDGET.clone(), Origin::Rule)));
        assert_eq!(code(direct.bytes()), None);
    }

    #[test]
    fn the_footprint_of_a_compiled_plan_equals_its_facts() {
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let attention = validate(Attention::bshd(1, (4, 4), (64, 64), 64, DType::BF16)).expect("sound");
        let graph = lower(&attention, &target, &CompileOptions::default()).expect("lowers");
        let operands = 4 * 4 * 64 * 64 * 2;
        let expected = Footprint { operands, scratch: 999, quadratic: false, exact: true };
        let scratch = Scratch::new(999, &graph.bindings(Some(&attention)));
        assert_eq!(Footprint::of_launch(&attention, &scratch, graph.keeps_scores(90)), expected);
        assert!(expected.over(1).is_some_and(|r| !r.given.contains("at least")));
    }

    #[test]
    fn operands_alone_can_exceed_a_budget() {
        let (found, _) = deepseek("h200", false);
        assert_eq!(found.over(found.bytes()), None);
        assert_eq!(found.over(found.bytes() - 1).map(|r| r.code), Some(codes::MEMORY_BUDGET.clone()));
        assert!(found.over(1).is_some_and(|r| r.given.contains("at least")));
    }
}
