//! Work on many items by a few threads.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Runs `work` on every item with up to `threads` threads, the calling one among them; results come in no order.
///
/// A panic in any thread resumes in the calling one: lost work must not look like finished work.
pub(crate) fn parallel_map<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Option<R> + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut results = Vec::new();
        while let Some(item) = items.get(next.fetch_add(1, Relaxed)) {
            results.extend(work(item));
        }
        results
    };
    // Starting a thread costs more than a few items.
    let threads = threads.min(items.len().div_ceil(16));
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut all = run();
        for other in others {
            match other.join() {
                Ok(results) => all.extend(results),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

/// The number of threads for work that keeps a core busy.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once() {
        for count in [0, 1, 15, 16, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let mut results = parallel_map(&items, 7, |item| (item % 3 != 0).then_some(*item));
            results.sort_unstable();
            let expected: Vec<usize> = items.into_iter().filter(|item| item % 3 != 0).collect();
            assert_eq!(results, expected);
        }
    }

    #[test]
    fn a_panic_is_passed_on() {
        let items: Vec<usize> = (0..500).collect();
        let work = |item: &usize| -> Option<()> {
            if *item == 400 { std::panic::resume_unwind(Box::new("quietly")) } else { None }
        };
        assert!(std::panic::catch_unwind(|| parallel_map(&items, 4, work)).is_err());
    }
}
