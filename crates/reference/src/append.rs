//! The append of new keys and values to caches by its definition, bit for bit.

use std::collections::BTreeMap;

use qkvault_graph::{CacheAppend, DType, Role, Scaled, Storage, Tensor, ValidCacheAppend};

use crate::{Buffer, Inputs, ReferenceError};

/// Computes an append: both caches as a device holds them afterwards. What no token is written to has the bytes that
/// the caches in `inputs` have. A pool may be larger than the description's: then it has more pages.
///
/// ```
/// use qkvault_graph::{CacheAppend, DType, Role, Scaled, Tensor};
/// use qkvault_reference::{Buffer, Inputs, append_to_caches};
///
/// // Two new tokens of a sequence that then has three, in e4m3 with descales of 1/2.
/// let (new, cache) = (Tensor::bshd(1, 1, 2, 1, DType::F16), Tensor::bshd(1, 1, 4, 1, DType::E4M3));
/// let append = CacheAppend { new_k: new, new_v: new, k: cache, v: cache }.validate()?;
/// let mut inputs = Inputs::new();
/// for (new, cache, descale) in [(Role::NewK, Role::K, Scaled::K), (Role::NewV, Role::V, Scaled::V)] {
///     inputs.insert(new, Buffer::from_values(DType::F16, [1.0, 1000.0]));
///     inputs.insert(cache, Buffer::from_values(DType::E4M3, [7.0; 4]));
///     inputs.set_f32(Role::Descale(descale), 0.5);
/// }
/// inputs.set_i32(Role::SeqLenQ, &[2]);
/// inputs.set_i32(Role::SeqLenKv, &[3]);
/// let caches = append_to_caches(&append, &inputs)?;
/// assert_eq!([0, 1, 2, 3].map(|at| caches[&Role::K].get(at)), [7.0, 2.0, 448.0, 7.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ReferenceError`] for an input that is missing, too short or of another type.
pub fn append_to_caches(append: &ValidCacheAppend, inputs: &Inputs) -> Result<BTreeMap<Role, Buffer>, ReferenceError> {
    let CacheAppend { new_k, new_v, k, v } = **append;
    for binding in append.bindings() {
        let (role, needed) = (binding.role, binding.bytes as usize / binding.dtype.size());
        let given = inputs.typed(role, binding.dtype)?.len();
        if given < needed {
            return Err(ReferenceError::TooShort { role, given, needed });
        }
    }
    let mut caches = BTreeMap::new();
    for (from, new, to, cache) in [(Role::NewK, new_k, Role::K, k), (Role::NewV, new_v, Role::V, v)] {
        let [table, scaled] = match to {
            Role::K => [Role::PageTableK, Role::Descale(Scaled::K)],
            _ => [Role::PageTableV, Role::Descale(Scaled::V)],
        };
        let descale = if append.narrows() { inputs.buffer(scaled)?.get(0) as f32 } else { 1.0 };
        let source = inputs.buffer(from)?;
        let mut written = inputs.buffer(to)?.clone();
        let offsets = from.offsets().and_then(|of| inputs.get(Role::Offsets(of)));
        for batch in 0..cache.batch() {
            let at = batch as usize;
            let count = inputs.buffer(Role::SeqLenQ)?.int(at);
            let begin = inputs.buffer(Role::SeqLenKv)?.int(at) - count;
            for row in 0..count.min(new.seq()) {
                let read = first_read(&new, offsets, batch, row);
                let place = first_written(&cache, written.len() as i64, inputs.get(table), batch, begin + row);
                let (Some(read), Some(place)) = (read, place) else { continue };
                for (head, column) in (0..new.heads()).flat_map(|h| (0..new.head_dim()).map(move |d| (h, d))) {
                    let read = (read + head * new.strides[1] + column) as usize;
                    let place = (place + head * cache.strides[1] + column) as usize;
                    match append.narrows() {
                        true => set(&mut written, place, source.get(read) as f32 / descale),
                        false => copy(source, read, &mut written, place),
                    }
                }
            }
        }
        caches.insert(to, written);
    }
    Ok(caches)
}

/// The first element of a token, if the new tensor has its row.
fn first_read(new: &Tensor, offsets: Option<&Buffer>, batch: i64, row: i64) -> Option<i64> {
    let step = new.strides[2];
    match new.storage {
        Storage::Varlen { tokens } => {
            let offset = offsets?.int(batch as usize);
            let begins = offset >= 0 && offset % step == 0 && row < tokens - offset / step;
            begins.then(|| offset + row * step)
        }
        Storage::Dense | Storage::Paged { .. } => Some(batch * new.strides[0] + row * step),
    }
}

/// The first element of a position, if the cache has it: a pool of so many elements.
fn first_written(cache: &Tensor, len: i64, table: Option<&Buffer>, batch: i64, position: i64) -> Option<i64> {
    let [outer, _, step, _] = cache.strides;
    if !(0..cache.seq()).contains(&position) {
        return None;
    }
    let Storage::Paged { pages: _, page_size } = cache.storage else { return Some(batch * outer + position * step) };
    let one = Tensor { storage: Storage::Paged { pages: 1, page_size }, ..*cache };
    let pages = (len - one.span()?) / outer + 1;
    let page = table?.int((batch * cache.pages_per_sequence()? + position / page_size) as usize);
    (0..pages).contains(&page).then(|| page * outer + position % page_size * step)
}

/// Rounds a number to 8 bits. There is one NaN, without a sign.
fn set(cache: &mut Buffer, place: usize, x: f32) {
    cache.set(place, if x.is_nan() { f64::NAN } else { x.into() });
}

/// Copies an element of 16 bits.
fn copy(from: &Buffer, read: usize, to: &mut Buffer, place: usize) {
    let size = DType::F16.size();
    to.bytes_mut()[place * size..][..size].copy_from_slice(&from.bytes()[read * size..][..size]);
}
