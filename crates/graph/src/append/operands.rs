//! What a launch of an append binds.

use crate::operands::{ALIGNMENT, Binding};
use crate::{CacheAppend, DType, Order, Role, Scaled, Storage, Tensor, ValidCacheAppend};

impl ValidCacheAppend {
    /// The operands that a launch binds, in order of unique id: those of the attention that reads the caches, beside
    /// the new keys and values. None of them is a number on the host.
    #[must_use]
    pub fn bindings(&self) -> Vec<Binding> {
        let CacheAppend { new_k, new_v, k, v } = **self;
        let list_of = |count: i64, dtype| Tensor::dense(Order::Bhsd, [count, 1, 1, 1], dtype);
        let batch = k.batch();
        let mut list = vec![
            (Role::K, k, true),
            (Role::V, v, true),
            (Role::SeqLenQ, list_of(batch, DType::I32), false),
            (Role::SeqLenKv, list_of(batch, DType::I32), false),
            (Role::NewK, new_k, false),
            (Role::NewV, new_v, false),
        ];
        for (role, cache) in [(Role::PageTableK, k), (Role::PageTableV, v)] {
            if let Some(pages) = cache.pages_per_sequence() {
                list.push((role, Tensor::dense(Order::Bhsd, [batch, 1, pages, 1], DType::I32), false));
            }
        }
        for (role, new) in [(Role::NewK, new_k), (Role::NewV, new_v)] {
            if let (Storage::Varlen { .. }, Some(of)) = (new.storage, role.offsets()) {
                list.push((Role::Offsets(of), list_of(batch + 1, DType::I64), false));
            }
        }
        if self.narrows() {
            list.extend([Scaled::K, Scaled::V].map(|of| (Role::Descale(of), list_of(1, DType::F32), false)));
        }
        list.sort_by_key(|(role, ..)| role.uid());
        let binding = |(role, t, output): (Role, Tensor, bool)| Binding {
            role,
            dtype: t.dtype,
            scalar: false,
            output,
            bytes: t.bytes().map_or(u64::MAX, i64::unsigned_abs),
            // Lengths, offsets, tables and scales are read one by one.
            alignment: match role {
                Role::K | Role::V | Role::NewK | Role::NewV => ALIGNMENT as u32,
                _ => t.dtype.size() as u32,
            },
        };
        list.into_iter().map(binding).collect()
    }
}
