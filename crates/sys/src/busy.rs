//! Locks of the cuDNN objects that change after they are made: handles, and kernel caches.
//!
//! NVIDIA's documentation forbids two threads to use one handle at the same time. A descriptor that refers to a handle
//! makes cuDNN use it, as in the finalization of a plan, on the thread of the descriptor; the same is true of a kernel
//! cache, which every plan that refers to it can write. A launch locks its plan too (`execution.rs`). All other
//! descriptors are only read once they are finalized.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The lock of one object.
#[derive(Debug, Default)]
pub(crate) struct Busy(Mutex<()>);

impl Busy {
    /// Waits until no other thread uses the object, and keeps them away until the result is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The objects that calls into one descriptor can reach: its own if it is a kernel cache, and those of the descriptors
/// and handles that it refers to.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReachableObjects {
    /// By address, each once: locks are taken in this order, so that no two threads wait for each other.
    handles_and_caches: Vec<Arc<Busy>>,
    /// The kernel caches among them.
    caches: Vec<Arc<Busy>>,
}

impl ReachableObjects {
    pub(crate) fn add_handle(&mut self, handle: &Arc<Busy>) {
        insert(&mut self.handles_and_caches, handle);
    }

    pub(crate) fn add_cache(&mut self, cache: &Arc<Busy>) {
        insert(&mut self.handles_and_caches, cache);
        insert(&mut self.caches, cache);
    }

    pub(crate) fn extend(&mut self, other: &ReachableObjects) {
        other.handles_and_caches.iter().for_each(|busy| insert(&mut self.handles_and_caches, busy));
        other.caches.iter().for_each(|busy| insert(&mut self.caches, busy));
    }

    /// The kernel caches alone: what a launch with another handle reaches.
    pub(crate) fn caches(&self) -> Option<ReachableObjects> {
        let caches = || ReachableObjects { handles_and_caches: self.caches.clone(), caches: self.caches.clone() };
        (!self.caches.is_empty()).then(caches)
    }

    /// Waits until no other thread uses any of the objects, and keeps them away until the result is dropped.
    pub(crate) fn hold(&self) -> HeldObjects<'_> {
        // Most descriptors reach none, and a plan one; an empty list allocates nothing.
        let mut all = self.handles_and_caches.iter().map(|busy| busy.hold());
        HeldObjects { _first: all.next(), _others: all.collect() }
    }
}

/// Objects that no other thread uses as long as this value lives.
pub(crate) struct HeldObjects<'a> {
    _first: Option<MutexGuard<'a, ()>>,
    _others: Vec<MutexGuard<'a, ()>>,
}

fn insert(list: &mut Vec<Arc<Busy>>, busy: &Arc<Busy>) {
    let address = Arc::as_ptr(busy);
    if let Err(at) = list.binary_search_by_key(&address, Arc::as_ptr) {
        list.insert(at, Arc::clone(busy));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;

    /// Two threads that reach the same objects, written in other orders, neither meet nor wait for ever.
    #[test]
    fn what_two_descriptors_reach_is_used_by_one_thread_at_a_time() {
        let all: Vec<Arc<Busy>> = (0..4).map(|_| Arc::default()).collect();
        let reach = |order: &[usize]| {
            let mut reach = ReachableObjects::default();
            for &i in order {
                let add = if i % 2 == 0 { ReachableObjects::add_cache } else { ReachableObjects::add_handle };
                add(&mut reach, &all[i]);
                add(&mut reach, &all[i]);
            }
            reach
        };
        let reaches = [reach(&[0, 1, 2]), reach(&[2, 1, 0]), reach(&[3, 2, 1]), reach(&[1, 3])];
        assert_eq!(reaches[0].handles_and_caches.len(), 3, "each once");
        let rounds = if cfg!(miri) { 20 } else { 2_000 };
        let inside: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for (reach, of) in reaches.iter().zip([&[0, 1, 2][..], &[0, 1, 2], &[1, 2, 3], &[1, 3]]) {
                let inside = &inside;
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let _held = reach.hold();
                        for &i in of {
                            assert_eq!(inside[i].fetch_add(1, SeqCst), 0, "two threads use object {i}");
                        }
                        of.iter().for_each(|&i| assert_eq!(inside[i].fetch_sub(1, SeqCst), 1));
                    }
                });
            }
        });
    }

    #[test]
    fn what_is_reached_is_passed_on_and_a_launch_leaves_the_plans_own_handle_out() {
        let (handle, cache) = (Arc::<Busy>::default(), Arc::<Busy>::default());
        let mut inner = ReachableObjects::default();
        inner.add_handle(&handle);
        assert!(inner.caches().is_none());
        inner.add_cache(&cache);
        let mut outer = ReachableObjects::default();
        outer.extend(&inner);
        assert_eq!((outer.handles_and_caches.len(), outer.caches.len()), (2, 1));
        assert_eq!(outer.caches().map(|caches| caches.handles_and_caches.len()), Some(1));
    }
}
