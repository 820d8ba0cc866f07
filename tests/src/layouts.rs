//! Checks plans of attentions whose operands each have their own layout: a plan must require the bytes of each
//! operand's own layout.

use qkvault_compile::{OnMiss, Planner, Resolution};
use qkvault_graph::{Attention, Pass, Role, Storage, Tensor, validate};

use crate::cudnn::{compiler, target};
use crate::generated::LAYOUTS;
use crate::golden::{RECENT, turn};

/// The checks of all versions together use every sixth attention of the table.
const PART: usize = 6;

/// Bytes from the first element of a tensor to the end of its last one.
fn reach(t: &Tensor) -> u64 {
    let [b, h, s, d] = match t.storage {
        Storage::Dense => t.dims,
        Storage::Varlen { tokens } => [1, t.dims[1], tokens, t.dims[3]],
        Storage::Paged { pages, page_size } => [pages, t.dims[1], page_size, t.dims[3]],
    };
    let steps = [b, h, s, d].into_iter().zip(t.strides).map(|(n, stride)| (n - 1) * stride);
    ((steps.sum::<i64>() + 1) * t.dtype.size() as i64).unsigned_abs()
}

/// The tensors of a description, by role.
fn tensors(a: &Attention) -> Vec<(Role, Tensor)> {
    let mut list = vec![(Role::Q, a.q), (Role::K, a.k), (Role::V, a.v), (Role::O, a.o)];
    if let Pass::Backward(g) = &a.pass {
        list.extend([(Role::DO, g.d_o), (Role::DQ, g.d_q), (Role::DK, g.d_k), (Role::DV, g.d_v)]);
    }
    list
}

/// Plans a part of the table for an H200 and compares the plans' requirements with the layouts.
///
/// # Panics
///
/// Panics if a plan requires other bytes or alignments, or if too few attentions have a plan.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let target = target(&compiler, "h200");
    let vault = qkvault_cache::Vault::in_memory(qkvault_cache::VaultOptions::new());
    let planner = Planner::new(vault, Some(compiler));
    let (mut plans, mut demanded) = (0, 0);
    let rows = LAYOUTS.attentions().into_iter().step_by(PART).collect();
    for attention in turn(rows, version, RECENT) {
        let valid = validate(attention).unwrap();
        let answer = planner.plan(&valid, &target, &Default::default(), OnMiss::Compile).unwrap();
        let Resolution { outcome: Ok(plan), .. } = answer else { continue };
        plans += 1;
        for (role, tensor) in tensors(&valid) {
            let binding = plan.facts.bindings.iter().find(|b| b.role == role).unwrap();
            let demands = (binding.bytes, binding.alignment, binding.dtype);
            assert_eq!(demands, (reach(&tensor), 16, tensor.dtype), "{role} of {}", valid.get());
            demanded += 1;
        }
    }
    assert!(plans >= 3 && demanded > 6 * plans, "{plans} plans, {demanded} operands");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_of_layouts_has_operands_with_their_own_layouts_in_every_storage() {
        let list = LAYOUTS.attentions();
        assert!(list.len() >= 60 && list.iter().all(|a| validate(a.clone()).is_ok()), "{} attentions", list.len());
        let strides = |a: &Attention| tensors(a).iter().map(|(_, t)| t.strides).collect::<BTreeSet<_>>().len();
        let stored = |a: &&Attention| a.k.storage != Storage::Dense;
        let counts = [
            list.iter().filter(|a| a.is_backward() && strides(a) >= 6).count(),
            list.iter().filter(|a| !a.is_backward() && strides(a) >= 3).count(),
            list.iter().filter(stored).filter(|a| a.is_backward()).count() * 4,
            list.iter().filter(|a| matches!(a.k.storage, Storage::Paged { .. })).count() * 4,
        ];
        assert!(counts.iter().all(|&n| n >= 12), "{counts:?}");
    }
}
