//! Plans of appends to caches through the vault, with the real NVRTC and without a GPU.

use std::sync::Arc;

use qkvault_compile::cache::{Key, Vault, VaultOptions};
use qkvault_compile::graph::{CacheAppend, DType, Tensor};
use qkvault_compile::{Nvrtc, OnMiss, Planner, RebuildCheck, codes};
use qkvault_skip::{Need, skip};

/// All types, dense caches and pages, for an old and a new GPU; a pool of another size has the same plan.
#[test]
fn appends_are_compiled_once_and_again_by_a_deep_check() {
    if let Err(error) = Nvrtc::open(None) {
        return skip(Need::Cudnn, &error.to_string());
    }
    let folder = tempfile::tempdir().expect("is made");
    let planner = Planner::new(Vault::open(VaultOptions::new().folder(folder.path())).expect("opens"), None);
    let append = |new: DType, cache: DType, pages: i64| {
        let new = Tensor::thd(4, 2, 16, 128, 40, new);
        let k = Tensor::paged_nhd(4, 2, 512, 128, pages, 16, cache);
        let v = if pages > 100 { k } else { Tensor::bhsd(4, 2, 512, 128, cache) };
        CacheAppend { new_k: new, new_v: new, k, v }.validate().expect("is valid")
    };
    for (new, cache, sm) in [
        (DType::BF16, DType::E4M3, 90),
        (DType::F16, DType::E5M2, 89),
        (DType::BF16, DType::E5M2, 120),
        (DType::F16, DType::E4M3, 100),
        (DType::BF16, DType::BF16, 80),
    ] {
        let of = append(new, cache, 99);
        let built = planner.append(&of, sm, OnMiss::Compile).expect("compiles");
        let key = built.outcome.expect("a plan").facts.key;
        assert_eq!(planner.append(&of, sm, OnMiss::Load).expect("is stored").key, Some(key));
        let stored = planner.vault().show(&Key(*key.bytes()));
        let entry = stored.into_iter().find_map(|(_, entry)| entry.ok()).expect("it is stored");
        let check = planner.engines().verify(key, &Arc::new(entry));
        assert!(matches!(check, RebuildCheck::Same { kernels: 1, .. }), "{of}: {check:?}");
    }
    let small = append(DType::BF16, DType::E4M3, 200);
    planner.append(&small, 90, OnMiss::Compile).expect("compiles").outcome.expect("a plan");
    let large = append(DType::BF16, DType::E4M3, 4096);
    let plan = planner.append(&large, 90, OnMiss::Load).expect("is stored").outcome.expect("a plan");
    assert_eq!((&plan.facts.bindings, plan.facts.graph_key), (&large.bindings(), large.key()));
    let old = planner.append(&small, 80, OnMiss::Compile).expect("an answer");
    assert!(old.outcome.expect_err("too old").has(&codes::CONVERSION_GPU));
}
