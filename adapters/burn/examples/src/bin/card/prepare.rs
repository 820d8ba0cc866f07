//! The plans of all cases, compiled where there is no GPU.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn_qkvault::qkvault::Runtime;
use burn_qkvault::qkvault::cache::VaultOptions;
use burn_qkvault::qkvault::graph::Valid;
use burn_qkvault::{Error, Options, descriptions};
use burn_qkvault_examples::case::Case;
use burn_qkvault_examples::tensors::tokens;

use super::{Cpu, Failure};

/// What a case launches.
pub(crate) fn launches(case: &Case) -> Result<Vec<Valid>, Error> {
    let leaves = case.leaves::<Cpu>(&Default::default(), false).tracked(case.tracked);
    let options = case.options(&leaves, Options::new());
    match case.sequences()? {
        None => descriptions(leaves.qkv.clone(), None, &options),
        Some(own) => descriptions(leaves.qkv.clone().map(tokens), Some(&own), &options),
    }
}

/// Fills a vault with the plans of all cases and of the timed calls.
pub(crate) fn fill(vault: &str, gpu: &str, cases: &[Case]) -> Result<(), Failure> {
    let runtime = Runtime::options().vault(VaultOptions::in_folder(vault)).open_raw()?;
    let target = runtime.compile_target(gpu)?;
    // What is timed and chained runs without gradients too, and in either order.
    let timed = Case::timed().into_iter().flat_map(|case| {
        let mut alone = case.clone();
        alone.tracked = [false; 6];
        [alone.unturned(), alone, case]
    });
    let (mut all, timed) = (Vec::new(), timed.collect::<Vec<Case>>());
    for case in cases.iter().chain(&timed) {
        match launches(case) {
            Ok(own) => all.extend(own.into_iter().map(|valid| (valid, case))),
            Err(error) => println!("{error}: {case:?}"),
        }
    }
    let (next, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((valid, case)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let resolved = runtime.warm(valid, &target);
                    match resolved.map(|own| own.outcome) {
                        Ok(Ok(_)) => _ = made.fetch_add(1, Ordering::Relaxed),
                        Ok(Err(refusal)) => println!("refused: {refusal}: {case:?}"),
                        Err(error) => println!("{error}: {case:?}"),
                    }
                }
            });
        }
    });
    println!("{} of {} plans for {}", made.into_inner(), all.len(), target.label());
    Ok(())
}
