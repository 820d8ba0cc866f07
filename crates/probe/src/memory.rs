//! Whether an attention fits in memory: its operands, the buffers a launch adds, and cuDNN's workspace.

use qkvault_graph::op::Scratch;
use qkvault_graph::registry::codes;
use qkvault_graph::{Attention, CompileOptions, Reason, Target, Valid, lower, operands};

use crate::Budget;

/// Bytes that one launch needs in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// All operands. Parts of one shared buffer count each on its own, so that this is the most it can be.
    pub operands: u64,
    /// What is neither input nor output: cuDNN's workspace and the buffers of a backward.
    pub scratch: u64,
    /// Whether cuDNN keeps a gradient of every score in the workspace, which grows with queries times keys.
    pub quadratic: bool,
    /// Whether the workspace is the compiled plan's own. Else it is the least that it can be: known buffers, and the gradients
    /// of the scores where there are any.
    pub exact: bool,
}

impl Footprint {
    /// What is known of an attention without compiling it; nothing where it does not lower.
    #[must_use]
    pub fn of(attention: &Valid, target: &Target, policy: &CompileOptions) -> Option<Footprint> {
        let graph = lower(attention, target, policy).ok()?;
        let quadratic = graph.keeps_scores(target.sm());
        let scores = if quadratic { scores(attention) } else { 0 };
        Some(Footprint {
            operands: operand_bytes(attention),
            scratch: Scratch::of_graph(scores, &graph, Some(attention)).bytes,
            quadratic,
            exact: false,
        })
    }

    /// What a compiled plan of the attention needs: its scratch memory, and whether that holds a gradient of every score.
    #[must_use]
    pub fn of_launch(attention: &Valid, scratch: &Scratch, keeps_scores: bool) -> Footprint {
        Footprint { operands: operand_bytes(attention), scratch: scratch.bytes, quadratic: keeps_scores, exact: true }
    }

    /// Everything together.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.operands.saturating_add(self.scratch)
    }

    /// Why it does not fit a budget, such as what is free on a GPU ([`Budget::free`]); nothing where it does. A number is one that is given.
    #[must_use]
    pub fn over(&self, budget: impl Into<Budget>) -> Option<Reason> {
        let budget = budget.into();
        if self.bytes() <= budget.bytes {
            return None;
        }
        let least = if self.exact { "" } else { "at least " };
        let given = format!(
            "{least}{} bytes: {} of operands and {least}{} beside them",
            self.bytes(),
            self.operands,
            self.scratch
        );
        let needed = format!("no more than {budget}");
        let quadratic = self.quadratic && self.operands <= budget.bytes;
        let code = if quadratic { &codes::WORKSPACE_QUADRATIC } else { &codes::MEMORY_BUDGET };
        Some(code.reason(given).at("dims").with_needed(needed))
    }
}

/// A backward's gradients of scores: 16 bits each, rows and keys rounded up to 64 (cudnn-frontend 1.23,
/// `node/scaled_dot_product_flash_attention.h`).
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
    use qkvault_graph::{BackwardOptions, CudnnVersion, DType, LibrarySet, Origin, Profile, validate};

    fn deepseek(profile: &str, deterministic: bool) -> (Footprint, Target) {
        let target = Profile::named(profile).expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let q = qkvault_graph::Tensor::bshd(1, 128, 32_768, 192, DType::BF16);
        let v = qkvault_graph::Tensor::bshd(1, 128, 32_768, 128, DType::BF16);
        let forward = Attention::forward(q, q, v, v).with_stats();
        let options = BackwardOptions { deterministic, ..BackwardOptions::default() };
        let attention = validate(forward.backward(options)).expect("sound");
        (Footprint::of(&attention, &target, &CompileOptions::default()).expect("lowers"), target)
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

    /// A gate on all memory lets through what ends in an error of the allocator on a GPU that others use.
    #[test]
    fn what_fits_the_gpu_and_not_what_is_free_of_it_is_refused_and_the_figure_is_told() {
        let (found, target) = deepseek("h200", false);
        let total = on_device(&target);
        assert_eq!(found.over(total), None);
        let reason = found.over(Budget::free(found.bytes() - 1, total.bytes)).expect("a byte is missing");
        let figures = format!("{} bytes, which are free on the GPU now, of {}", found.bytes() - 1, total.bytes);
        assert!(reason.code == codes::MEMORY_BUDGET && reason.needed.contains(&figures), "{reason}");
        assert_eq!(found.over(Budget::free(found.bytes(), total.bytes)), None);
        // Who cannot ask says so.
        let (large, target) = deepseek("h200", true);
        let reason = large.over(on_device(&target)).expect("275 GB do not fit");
        assert!(reason.needed.contains("not known here"), "{reason}");
        assert!(found.over(1).is_some_and(|r| r.needed.contains("as given")));
    }

    /// 4 x 65 queries over 3 x 63 keys: a gradient in 16 bits of each of 128 x 64 scores of a head.
    #[test]
    fn a_footprint_counts_operands_to_the_byte_and_gradients_of_scores_in_whole_tiles() {
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let of = |deterministic| {
            let forward = Attention::bshd(3, (4, 4), (65, 63), 64, DType::BF16).with_lengths().with_stats();
            let options = BackwardOptions { deterministic, ..BackwardOptions::default() };
            let attention = validate(forward.backward(options)).expect("sound");
            Footprint::of(&attention, &target, &CompileOptions::default()).expect("lowers")
        };
        let (q, kv, rows, lengths) = (3 * 4 * 65 * 64 * 2, 3 * 4 * 63 * 64 * 2, 3 * 4 * 65 * 4, 3 * 4);
        let operands = 4 * q + 4 * kv + rows + 2 * lengths;
        let sums = 3_u64 * 4 * 65 * 4;
        let direct = Footprint { operands, scratch: 3 * 4 * 128 * 64 * 2 + sums, quadratic: true, exact: false };
        assert_eq!(of(true), direct);
        let in_any_order = of(false);
        assert_eq!((in_any_order.operands, in_any_order.quadratic), (operands, false));
        // Less than the operands is nothing that another order of sums could mend.
        let code = |bytes: u64| direct.over(bytes).map(|r| (r.code, r.origin));
        assert_eq!(code(operands), Some((codes::WORKSPACE_QUADRATIC.clone(), Origin::Rule)));
        assert_eq!(code(operands - 1), Some((codes::MEMORY_BUDGET.clone(), Origin::Rule)));
        assert_eq!(code(direct.bytes()), None);
    }

    #[test]
    fn a_compiled_plan_needs_what_its_facts_say_and_no_more() {
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let attention = validate(Attention::bshd(1, (4, 4), (64, 64), 64, DType::BF16)).expect("sound");
        let graph = lower(&attention, &target, &CompileOptions::default()).expect("lowers");
        let operands = 4 * 4 * 64 * 64 * 2;
        let expected = Footprint { operands, scratch: 999, quadratic: false, exact: true };
        let scratch = Scratch::of(999, &graph.bindings(Some(&attention)));
        assert_eq!(Footprint::of_launch(&attention, &scratch, graph.keeps_scores(90)), expected);
        assert!(expected.over(1).is_some_and(|r| !r.given.contains("at least")));
    }

    #[test]
    fn operands_alone_can_be_too_much() {
        let (found, _) = deepseek("h200", false);
        assert_eq!(found.over(found.bytes()), None);
        assert_eq!(found.over(found.bytes() - 1).map(|r| r.code), Some(codes::MEMORY_BUDGET.clone()));
        assert!(found.over(1).is_some_and(|r| r.given.contains("at least")));
    }
}
