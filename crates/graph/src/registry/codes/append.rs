//! Appends of new keys and values to caches.

use crate::entries;
use crate::registry::Entry;

entries![
    APPEND_TYPE = Entry {
        code: "append.type",
        cause: "New keys have no 16 bits, or caches neither 8 bits nor their type.",
        needed: "new ones in f16 or bf16, caches in e4m3, e5m2 or the type of the new ones, V like K",
        fix: "convert what is new to 16 bits, or describe the cache as it is",
        ..Entry::description()
    },
    APPEND_STORAGE = Entry {
        code: "append.storage",
        cause: "New keys are in pages, or a cache is varlen.",
        needed: "new ones dense or varlen, caches dense or in pages",
        fix: "describe a pool with its page table as the cache",
        ..Entry::description()
    },
    APPEND_DIMS = Entry {
        code: "append.dims",
        cause: "Tensors of an append differ in sequences, heads or head dims.",
        needed: "one batch; of K and of V each the heads and the head dim of their cache; as many rows of V as of K",
        fix: "take `CacheAppend::before` of the attention that reads the caches",
        ..Entry::description()
    },
];
