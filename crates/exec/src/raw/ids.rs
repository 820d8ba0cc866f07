//! Small numbers for values that are made once, each under a name, and kept for ever.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// The number of a plan in a table. It stays the plan's as long as the table lives, and is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanId(NonZeroU32);

impl PlanId {
    /// The number, for callers in other languages.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The id of a number; `None` for 0. Whether a table has it, the table says.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<PlanId> {
        match NonZeroU32::new(number) {
            Some(number) => Some(PlanId(number)),
            None => None,
        }
    }

    fn of_place(at: usize) -> Option<PlanId> {
        u32::try_from(at + 1).ok().and_then(PlanId::from_number)
    }

    const fn place(self) -> usize {
        self.get() as usize - 1
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Why there is no value under a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotMade<E> {
    /// All places are taken.
    Full,
    /// It could not be made.
    Failed(E),
}

/// A name: it has an id once its value is made.
#[derive(Default)]
struct NamedId {
    id: OnceLock<PlanId>,
    /// Held by the thread that makes the value.
    making: Mutex<()>,
}

/// Values under names and ids. There is room for a fixed number of them, so a value never moves and is found by its id
/// without a lock.
pub(crate) struct Ids<K, V> {
    values: Box<[OnceLock<V>]>,
    taken: AtomicUsize,
    names: RwLock<HashMap<K, Arc<NamedId>>>,
}

impl<K: Eq + Hash, V> Ids<K, V> {
    pub(crate) fn with_room(room: usize) -> Ids<K, V> {
        let values = (0..room.min(u32::MAX as usize - 1)).map(|_| OnceLock::new()).collect();
        Ids { values, taken: AtomicUsize::new(0), names: RwLock::default() }
    }

    pub(crate) fn room(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// The value of an id, without a lock.
    pub(crate) fn value(&self, id: PlanId) -> Option<&V> {
        self.values.get(id.place())?.get()
    }

    /// The id of a name whose value is made.
    pub(crate) fn find(&self, name: &K) -> Option<PlanId> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        names.get(name)?.id.get().copied()
    }

    /// The id of a name. Of threads that ask at once one makes the value, and the others wait for it; where it fails,
    /// the next one tries.
    pub(crate) fn find_or_make<E>(&self, name: K, make: impl FnOnce() -> Result<V, E>) -> Result<PlanId, NotMade<E>> {
        let named = {
            let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(names.entry(name).or_default())
        };
        let _making = named.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = named.id.get() {
            return Ok(*id);
        }
        if self.len() >= self.room() {
            return Err(NotMade::Full);
        }
        let value = make().map_err(NotMade::Failed)?;
        let next = |taken: usize| (taken < self.room()).then_some(taken + 1);
        let at = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| NotMade::Full)?;
        let id = PlanId::of_place(at).ok_or(NotMade::Full)?;
        // The place is this call's alone.
        let _ = self.values[at].set(value);
        let _ = named.id.set(id);
        Ok(id)
    }
}

impl<K, V> fmt::Debug for Ids<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ids({} of {})", self.taken.load(Ordering::Relaxed), self.values.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_name_keeps_its_id_and_its_value_is_made_once() {
        let ids: Ids<&str, u32> = Ids::with_room(4);
        assert_eq!((ids.find(&"a"), ids.len()), (None, 0));
        let a = ids.find_or_make("a", || Ok::<_, ()>(7)).expect("made");
        let b = ids.find_or_make("b", || Ok::<_, ()>(8)).expect("made");
        let again = ids.find_or_make("a", || -> Result<u32, ()> { panic!("it is made already") });
        assert_eq!((again, ids.find(&"b"), ids.len()), (Ok(a), Some(b), 2));
        assert_eq!((ids.value(a), ids.value(b)), (Some(&7), Some(&8)));
        assert_eq!((a.get(), b.get()), (1, 2));
    }

    #[test]
    fn ids_of_no_value_are_told_and_zero_is_none() {
        let ids: Ids<u8, u8> = Ids::with_room(2);
        let of = |number| PlanId::from_number(number).and_then(|id| ids.value(id));
        assert_eq!((of(0), of(1), of(3), of(u32::MAX)), (None, None, None, None));
        assert_eq!(PlanId::from_number(0), None);
    }

    #[test]
    fn what_fails_takes_no_place_and_is_tried_again() {
        let ids: Ids<u8, u8> = Ids::with_room(1);
        assert_eq!(ids.find_or_make(1, || Err("no memory")), Err(NotMade::Failed("no memory")));
        assert_eq!((ids.find(&1), ids.len()), (None, 0));
        let made = ids.find_or_make(1, || Ok::<_, &str>(5)).expect("the second time");
        assert_eq!(ids.value(made), Some(&5));
        let full = ids.find_or_make(2, || -> Result<u8, &str> { panic!("there is no room for it") });
        assert_eq!(full, Err(NotMade::Full));
        assert_eq!(ids.find_or_make(1, || Err("not asked")), Ok(made), "what is there is still found");
    }

    #[test]
    fn threads_that_ask_at_once_get_one_id_each_name() {
        let (ids, made, gate): (Ids<u32, u32>, _, _) = (Ids::with_room(64), AtomicU32::new(0), Barrier::new(8));
        let found: Vec<Vec<PlanId>> = std::thread::scope(|scope| {
            let ask = || {
                gate.wait();
                let one = |name| {
                    let make = || {
                        made.fetch_add(1, Ordering::Relaxed);
                        Ok::<_, ()>(name * 10)
                    };
                    ids.find_or_make(name, make).expect("room")
                };
                (0..64).map(one).collect()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(made.load(Ordering::Relaxed), 64);
        assert!(found.iter().all(|ids| *ids == found[0]));
        assert!((0..64).all(|name: u32| ids.value(found[0][name as usize]) == Some(&(name * 10))));
    }
}
