//! The memory layer: bounded by entries and by bytes. It never drops an entry that someone holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qkvault_base::CacheBounds;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

use crate::{Entry, Key};

type MemoryCache = Cache<Key, Arc<Entry>, EntryWeight, DefaultHashBuilder, Watch>;

/// The entries that this process holds in memory.
pub(crate) struct MemoryTier {
    cache: Option<MemoryCache>,
    evicted: Arc<AtomicU64>,
    weight: EntryWeight,
}

/// Most parts of the cache: enough for the threads that launch, and few enough that each part holds large entries.
const SHARDS: usize = 8;

impl MemoryTier {
    /// A memory layer with these bounds. With 0 entries or 0 bytes it keeps nothing.
    pub(crate) fn new(entries: usize, bytes: u64) -> Self {
        let evicted = Arc::new(AtomicU64::new(0));
        let weight = EntryWeight(CacheBounds { number: entries as u64, bytes });
        let options = OptionsBuilder::new()
            .shards(SHARDS)
            .estimated_items_capacity(entries)
            .weight_capacity(weight.0.capacity())
            .build();
        let cache = match options {
            Ok(options) if entries > 0 && bytes > 0 => Some(Cache::with_options(
                options,
                weight.clone(),
                DefaultHashBuilder::default(),
                Watch(Arc::clone(&evicted)),
            )),
            _ => None,
        };
        MemoryTier { cache, evicted, weight }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.cache.as_ref()?.get(key)
    }

    pub(crate) fn insert(&self, key: Key, entry: Arc<Entry>) {
        let Some(cache) = &self.cache else { return };
        if self.weight.weight(&key, &entry) <= cache.shard_capacity() {
            cache.insert(key, entry);
        } else {
            // The entry is larger than its part of the cache and would push out everything else there. An older entry
            // of the key must not be served in its place, either.
            cache.remove(&key);
        }
    }

    pub(crate) fn forget(&self, key: &Key) {
        if let Some(cache) = &self.cache {
            cache.remove(key);
        }
    }

    pub(crate) fn clear(&self) {
        if let Some(cache) = &self.cache {
            cache.clear();
        }
    }

    /// Keys of entries that someone outside the cache holds.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = Key> + '_ {
        let entries = self.cache.iter().flat_map(|cache| cache.iter());
        // One reference is the cache's, one is the clone that the iterator made.
        entries.filter(|(_, entry)| Arc::strong_count(entry) > 2).map(|(key, _)| key)
    }

    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// The number of entries and bytes held now.
    pub(crate) fn holds(&self) -> (u64, u64) {
        let Some(cache) = &self.cache else {
            return (0, 0);
        };
        cache.iter().fold((0, 0), |(entries, bytes), (_, entry)| (entries + 1, bytes + entry.memory_bytes()))
    }
}

/// An entry weighs what it takes of the number of entries or of their bytes.
#[derive(Clone)]
struct EntryWeight(CacheBounds);

impl Weighter<Key, Arc<Entry>> for EntryWeight {
    fn weight(&self, _: &Key, entry: &Arc<Entry>) -> u64 {
        self.0.weight(entry.memory_bytes())
    }
}

/// Pins entries that are held elsewhere, and counts evictions.
#[derive(Clone)]
struct Watch(Arc<AtomicU64>);

impl Lifecycle<Key, Arc<Entry>> for Watch {
    // Holds the last evicted entry until the lock of the cache is released.
    type RequestState = Option<Arc<Entry>>;

    fn is_pinned(&self, _: &Key, entry: &Arc<Entry>) -> bool {
        Arc::strong_count(entry) > 1
    }

    fn on_evict(&self, state: &mut Self::RequestState, _: Key, entry: Arc<Entry>) {
        self.0.fetch_add(1, Relaxed);
        *state = Some(entry);
    }
}
