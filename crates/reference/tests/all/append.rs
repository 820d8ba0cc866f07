//! Appends to caches: places worked out by hand.

use std::collections::BTreeMap;

use qkvault_graph::{CacheAppend, DType, Role, Scaled, Tensor, Varlen};
use qkvault_reference::{Buffer, Inputs, append_to_caches};

fn append(new: Tensor, cache: Tensor, inputs: &[(Role, Buffer)]) -> BTreeMap<Role, Buffer> {
    let append = CacheAppend { new_k: new, new_v: new, k: cache, v: cache }.validate().expect("sound");
    append_to_caches(&append, &inputs.iter().cloned().collect::<Inputs>()).expect("computes")
}

fn ints(dtype: DType, numbers: &[i64]) -> Buffer {
    Buffer::new(dtype, numbers.iter().flat_map(|n| n.to_ne_bytes()[..dtype.size()].to_vec()).collect()).expect("whole")
}

fn values(buffer: &Buffer) -> Vec<f64> {
    (0..buffer.len()).map(|at| buffer.get(at)).collect()
}

#[test]
fn tokens_go_behind_those_that_a_sequence_has() {
    let (new, cache) = (Tensor::bshd(3, 1, 2, 1, DType::F16), Tensor::bshd(3, 1, 4, 1, DType::F16));
    let of = |x: &[f64]| Buffer::from_values(DType::F16, x.iter().copied());
    let inputs = |lengths: [[i64; 3]; 2]| {
        let [counts, lengths] = lengths.map(|lengths| ints(DType::I32, &lengths));
        let (new, cache) = (of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), of(&[9.0; 12]));
        let both = [(Role::NewK, new.clone()), (Role::NewV, new), (Role::K, cache.clone()), (Role::V, cache)];
        both.into_iter().chain([(Role::SeqLenQ, counts), (Role::SeqLenKv, lengths)]).collect::<Vec<_>>()
    };
    let out = append(new, cache, &inputs([[2, 0, 1], [3, 4, 1]]));
    assert_eq!(values(&out[&Role::K]), [9.0, 1.0, 2.0, 9.0, 9.0, 9.0, 9.0, 9.0, 5.0, 9.0, 9.0, 9.0]);
    assert_eq!(out[&Role::V], out[&Role::K]);
    // Before the first position, behind the last one, and more tokens than there are.
    let out = append(new, cache, &inputs([[2, 2, 4], [1, 5, 4]]));
    assert_eq!(values(&out[&Role::K]), [2.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 3.0, 5.0, 6.0, 9.0, 9.0]);
}

#[test]
fn pages_and_offsets_are_followed_as_far_as_they_reach() {
    let new = Tensor::thd(2, 1, 3, 1, 4, DType::BF16);
    let cache = Tensor::paged_nhd(2, 1, 4, 1, 3, 2, DType::E4M3);
    let numbers = Buffer::from_values(DType::BF16, [1.0, 2.0, 3.0, 1000.0]);
    let pool = Buffer::from_values(DType::E4M3, [7.0; 6]);
    let run = |table: [i64; 4], offsets: [i64; 3]| {
        let (table, offsets) = (ints(DType::I32, &table), ints(DType::I64, &offsets));
        let half = Buffer::from_values(DType::F32, [0.5]);
        let out = append(
            new,
            cache,
            &[
                (Role::NewK, numbers.clone()),
                (Role::NewV, numbers.clone()),
                (Role::K, pool.clone()),
                (Role::V, pool.clone()),
                (Role::SeqLenQ, ints(DType::I32, &[3, 1])),
                (Role::SeqLenKv, ints(DType::I32, &[3, 2])),
                (Role::PageTableK, table.clone()),
                (Role::PageTableV, table),
                (Role::Offsets(Varlen::NewK), offsets.clone()),
                (Role::Offsets(Varlen::NewV), offsets),
                (Role::Descale(Scaled::K), half.clone()),
                (Role::Descale(Scaled::V), half),
            ],
        );
        values(&out[&Role::V])
    };
    assert_eq!(run([2, 0, 1, 9], [0, 3, 4]), [6.0, 7.0, 7.0, 448.0, 2.0, 4.0]);
    // Pages that there are not, and rows behind those that the new tensor has.
    assert_eq!(run([3, 0, -1, 9], [0, 3, 4]), [6.0, 7.0, 7.0, 7.0, 7.0, 7.0]);
    assert_eq!(run([2, 0, 1, 9], [2, 4, 4]), [7.0, 7.0, 7.0, 7.0, 6.0, 448.0]);
}
