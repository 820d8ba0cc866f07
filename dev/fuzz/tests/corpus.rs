//! Every input that is kept, and every one that a target makes, is answered within the bounds of time and memory.

use std::panic::{AssertUnwindSafe, catch_unwind};

use qkvault_fuzz::alloc::Counting;
use qkvault_fuzz::{guard, pool, targets};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test, because memory is counted for the whole process.
#[test]
fn every_kept_input_is_answered() {
    for target in targets::ALL {
        let kept = pool::kept(target).expect("the corpus is checked in");
        let made = (target.seeds)().into_iter().map(|bytes| (target.name.into(), bytes));
        let mut accepted = 0;
        for (path, bytes) in kept.into_iter().chain(made) {
            let done = catch_unwind(AssertUnwindSafe(|| guard::run(target, &bytes)));
            let measured = done.unwrap_or_else(|_| panic!("{} fails with {}", target.name, path.display()));
            accepted += usize::from(measured.answer.accepted);
        }
        assert!(accepted > 0, "{} takes none of its inputs, so nothing behind its first check is met", target.name);
    }
}

#[test]
fn every_folder_of_the_corpus_is_a_targets() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");
    for folder in std::fs::read_dir(corpus).expect("the corpus is checked in") {
        let name = folder.expect("listed").file_name().to_string_lossy().into_owned();
        assert!(targets::ALL.iter().any(|target| target.name == name), "{name} is no target");
    }
}
