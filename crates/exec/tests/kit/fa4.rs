//! Plans of FlashAttention-4's kernels for the test vault.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{FA4, Gpu, OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_graph::Valid;
use qkvault_skip::{Need, skip};

use crate::common::say;

/// The GPUs that the plans are for.
pub(crate) const HOPPER: Gpu<'_> = Gpu { sm: 90, target: None };

/// Compiles the plans of attentions into the vault of the tests, on all cores, where that is asked for.
pub(crate) fn fill(attentions: &[Valid]) {
    let (Ok(folder), true) = (std::env::var("QKVAULT_TEST_VAULT"), std::env::var_os("QKVAULT_TEST_FILL").is_some())
    else {
        return skip(Need::Asked, "QKVAULT_TEST_VAULT and QKVAULT_TEST_FILL are not both set");
    };
    let planner = Planner::new(Vault::open(VaultOptions::in_folder(folder)).expect("a vault"), None);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(attention) = attentions.get(next.fetch_add(1, Relaxed)) {
                    let answer = planner.plan_by(FA4, attention, HOPPER, &CompileOptions::default(), OnMiss::Compile);
                    let answer = answer.unwrap_or_else(|error| panic!("{}: {error}", **attention));
                    let plan = answer.outcome.unwrap_or_else(|refusal| panic!("{}: {refusal}", **attention));
                    say(&format!("{}: {} bytes", **attention, plan.facts.blob_bytes));
                }
            });
        }
    });
}
