//! Families of kernels that no GPU has judged, as data: `data/unproven.json` has their names, each with the reason.
//! Such a family is taken where the options name FlashAttention-4, and never by itself. An entry goes once `gpu_fa4`
//! (in `crates/exec/tests`) has compared the family with the oracle on a GPU.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use qkvault_graph::{PaddedRows, Storage, Valid};
use qkvault_kernels::unproven_lists;

use crate::forward::shares_tiles;
use crate::packed::is_packed;

/// The families of an attention that may be unproven.
fn families(a: &Valid) -> impl Iterator<Item = &'static str> {
    let moved = a.padded_rows == PaddedRows::Zero || (a.outputs.stats && a.q.storage == Storage::Dense);
    let of_sequences = is_packed(a).then(|| match (a.is_backward(), a.k.is_paged()) {
        (_, true) => "pages.forward",
        (true, false) if moved => "padded.backward",
        (false, false) if moved => "padded.forward",
        (true, false) => "sequences.backward",
        (false, false) => "sequences.forward",
    });
    of_sequences.into_iter().chain(shares_tiles(a).then_some("groups.forward"))
}

fn unproven_families() -> &'static BTreeMap<String, String> {
    static LIST: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    // A test reads the file, so there is no other case; every family would be unproven.
    LIST.get_or_init(|| serde_json::from_str(include_str!("../data/unproven.json")).unwrap_or_default())
}

/// Why kernels that take an attention are chosen only by name: no GPU has judged them.
#[must_use]
pub fn unproven(attention: &Valid) -> Option<&'static str> {
    let of_family = families(attention).find_map(|family| unproven_families().get(family)).map(String::as_str);
    of_family.or_else(|| unproven_lists(attention))
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::{Attention, BackwardOptions, DType, Tensor, validate};

    #[test]
    fn the_list_names_families_and_says_why() {
        let q = Tensor::thd(2, 4, 40, 64, 70, DType::BF16);
        let dense = Tensor::bshd(2, 4, 40, 64, DType::BF16);
        let pool = Tensor::paged_nhd(2, 4, 40, 64, 9, 16, DType::BF16);
        let forward = |q, k| Attention::forward(q, k, k, q).with_lengths().with_stats();
        let backward = |q, k| forward(q, k).backward(BackwardOptions::default());
        let all = [forward(q, q), backward(q, q), forward(dense, dense), backward(dense, dense), forward(q, pool)];
        let wide = Tensor::bshd(2, 8, 40, 64, DType::BF16);
        let all = all.into_iter().chain([Attention::forward(wide, dense, dense, wide)]);
        let known: Vec<_> = all.flat_map(|a| families(&validate(a).expect("valid")).collect::<Vec<_>>()).collect();
        assert_eq!(known.len(), 6, "{known:?}");
        let list = unproven_families();
        assert!(list.keys().all(|name| known.contains(&name.as_str())), "{list:?}");
        assert!(list.values().all(|why| why.contains("no GPU")), "{list:?}");
        assert!(include_str!("../data/unproven.json").matches(':').count() == list.len());
        assert_eq!(unproven(&validate(Attention::bshd(1, (2, 2), (9, 9), 64, DType::BF16)).expect("valid")), None);
    }

    #[test]
    fn what_a_judged_family_does_not_have_is_a_family_of_its_own() {
        let dense = Tensor::bshd(2, 4, 40, 64, DType::BF16);
        let lengths = || Attention::forward(dense, dense, dense, dense).with_lengths();
        let mut zeros = lengths();
        zeros.padded_rows = PaddedRows::Zero;
        let found = [lengths(), lengths().with_stats(), zeros]
            .map(|a| families(&validate(a).expect("valid")).collect::<Vec<_>>());
        assert_eq!(found, [["sequences.forward"], ["padded.forward"], ["padded.forward"]]);
    }
}
