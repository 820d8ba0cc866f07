//! What a plan keeps of its last launches, by their addresses.
//!
//! Programs come back to the same buffers: each layer of a model at every step, each block of a caching allocator. What
//! a launch made of their addresses serves again, with other numbers.

use std::sync::{Mutex, PoisonError};

/// Launches that a plan keeps: more than the layers of most models.
const KEPT: usize = 64;

/// Values that launches take out, so that no other changes them meanwhile, and give back.
#[derive(Debug)]
pub(crate) struct KeptLaunches<T>(Mutex<KeptRing<T>>);

#[derive(Debug)]
struct KeptRing<T> {
    values: Vec<T>,
    /// The place where the next value is looked for first: layers take turns.
    next: usize,
}

impl<T> Default for KeptLaunches<T> {
    fn default() -> KeptLaunches<T> {
        KeptLaunches(Mutex::new(KeptRing { values: Vec::new(), next: 0 }))
    }
}

/// The result of a look-up.
pub(crate) enum Taken<T> {
    /// The value for these addresses.
    Found(T),
    /// None; where no more are kept, the value that was used longest ago, for its memory.
    New(Option<T>),
}

impl<T> KeptLaunches<T> {
    /// Takes out the value that `is_for` these addresses.
    pub(crate) fn take(&self, is_for: impl Fn(&T) -> bool) -> Taken<T> {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, next) = (ring.values.len(), ring.next);
        let found = (0..count).map(|i| (next + i) % count).find(|at| is_for(&ring.values[*at]));
        match found {
            Some(at) => {
                ring.next = at;
                Taken::Found(ring.values.swap_remove(at))
            }
            None => Taken::New((count >= KEPT).then(|| ring.values.swap_remove(next % KEPT))),
        }
    }

    /// Keeps a value for later launches, in the place of one that was used longer ago.
    pub(crate) fn give_back(&self, value: T) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let KeptRing { values, next } = &mut *ring;
        if values.len() < KEPT {
            // Put back where it was taken from: `swap_remove` has moved the last value there.
            values.push(value);
            let last = values.len() - 1;
            values.swap((*next).min(last), last);
        }
        *next = (*next + 1) % KEPT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(kept: &KeptLaunches<usize>, of: usize) -> bool {
        let (value, new) = match kept.take(|value| *value == of) {
            Taken::Found(value) => (value, false),
            Taken::New(_) => (of, true),
        };
        kept.give_back(value);
        new
    }

    #[test]
    fn as_many_launches_as_are_kept_find_theirs_in_every_order() {
        let kept = KeptLaunches::default();
        assert!((0..KEPT).all(|of| launch(&kept, of)));
        for _ in 0..3 {
            assert!(!(0..KEPT).any(|of| launch(&kept, of)));
            assert!(!(0..KEPT).rev().any(|of| launch(&kept, of)));
        }
        assert!(launch(&kept, KEPT) && !launch(&kept, KEPT), "a further one takes the place of an old one");
    }

    #[test]
    fn a_value_that_one_launch_has_is_not_given_to_another() {
        let kept = KeptLaunches::default();
        kept.give_back(7);
        assert!(matches!(kept.take(|_| true), Taken::Found(7)));
        assert!(matches!(kept.take(|_| true), Taken::New(None)));
    }
}
