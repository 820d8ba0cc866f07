//! Families of kernels that no GPU has judged, as data: `data/unproven.json` has their names, each with the reason.
//! Such a family is taken where the options name FlashAttention-4, and never by itself. An entry goes once `gpu_fa4`
//! (in `crates/exec/tests`) has compared the family with the oracle on a GPU.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use qkvault_graph::Valid;

use crate::packed::is_packed;

/// The family of an attention that may be unproven.
fn family(a: &Valid) -> Option<&'static str> {
    is_packed(a).then(|| if a.is_backward() { "sequences.backward" } else { "sequences.forward" })
}

fn unproven_families() -> &'static BTreeMap<String, String> {
    static LIST: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    // A test reads the file, so there is no other case; every family would be unproven.
    LIST.get_or_init(|| serde_json::from_str(include_str!("../data/unproven.json")).unwrap_or_default())
}

/// Why kernels that take an attention are chosen only by name: no GPU has judged them.
#[must_use]
pub fn unproven(attention: &Valid) -> Option<&'static str> {
    unproven_families().get(family(attention)?).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::{Attention, BackwardOptions, DType, Tensor, validate};

    #[test]
    fn the_list_names_families_and_says_why() {
        let q = Tensor::thd(2, 4, 40, 64, 70, DType::BF16);
        let forward = Attention::forward(q, q, q, q).with_lengths().with_stats();
        let backward = forward.clone().backward(BackwardOptions::default());
        let known = [forward, backward].map(|a| family(&validate(a).expect("valid")).expect("a family"));
        let list = unproven_families();
        assert!(list.keys().all(|name| known.contains(&name.as_str())), "{list:?}");
        assert!(list.values().all(|why| why.contains("no GPU")), "{list:?}");
        assert!(include_str!("../data/unproven.json").matches(':').count() == list.len());
        assert_eq!(unproven(&validate(Attention::bshd(1, (2, 2), (9, 9), 64, DType::BF16)).expect("valid")), None);
    }
}
