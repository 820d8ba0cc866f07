//! P22: offsets and page tables against plain loops, and every confusion of batch, tokens and pages.

use proptest::prelude::*;
use qkvault_graph::{
    Attention, BackwardOptions, CuSeqlens, DType, PageTable, RaggedOffsets, Refusal, Tensor, Varlen, ragged_offsets,
    validate,
};

fn codes(refusal: &Refusal) -> Vec<&str> {
    refusal.reasons().iter().map(|r| r.code.as_str()).collect()
}

/// Lengths of many shapes: one sequence, many empty ones, many short ones in a large buffer.
fn lengths() -> impl Strategy<Value = Vec<i32>> {
    let length = || prop_oneof![1 => Just(0), 4 => 0..40_i32];
    prop_oneof![
        prop::collection::vec(length(), 1..2),
        prop::collection::vec(length(), 2..12),
        prop::collection::vec(prop_oneof![9 => Just(0), 1 => 0..3_i32], 2..40),
    ]
}

proptest! {
    #[test]
    fn offsets_equal_those_of_a_plain_loop(
        lengths in lengths(), h in 1..5_i64, d in 1..9_i64, parts in 1..4_i64, extra in 0..2_000_i64,
    ) {
        let tokens: i64 = lengths.iter().map(|&n| i64::from(n)).sum();
        let room = (tokens + extra).max(lengths.len() as i64);
        let cumulative = CuSeqlens::from_lengths(&lengths).expect("lengths of 0 and more");
        prop_assert_eq!(cumulative.batch().get(), lengths.len() as i64);
        prop_assert_eq!(cumulative.tokens().get(), tokens);
        prop_assert_eq!(cumulative.lengths().collect::<Vec<_>>(), lengths.clone());
        prop_assert_eq!(CuSeqlens::new(cumulative.cumulative().to_vec()), Ok(cumulative.clone()));
        let mut t = Tensor::thd(lengths.len() as i64, h, 40, d, room, DType::F16);
        t.strides[2] *= parts;
        let offsets = RaggedOffsets::new(&cumulative, &t).expect("it fits");
        // Walks the buffer token by token; the first token of each sequence is at its offset.
        let mut place = 0;
        let mut expected = vec![];
        for &length in &lengths {
            expected.push(place);
            for _ in 0..length {
                place += parts * h * d;
            }
        }
        expected.push(place);
        prop_assert_eq!(offsets.elements(), &expected[..]);
    }

    #[test]
    fn page_tables_find_every_row(
        lengths in lengths(), page_size in 1..9_i64, seed in any::<u64>(),
    ) {
        let cumulative = CuSeqlens::from_lengths(&lengths).expect("lengths of 0 and more");
        let pages = cumulative.pages(page_size).expect("pages with rows").get().max(1);
        let pool = Tensor::paged_nhd(lengths.len() as i64, 2, 40, 8, pages, page_size, DType::F16);
        // Pages in a scattered order.
        let step = (seed % 97) as i64 * 2 + 1;
        let mut next = 0;
        let rows: Vec<Vec<i32>> = lengths
            .iter()
            .map(|&n| {
                let needed = (0..i64::from(n)).map(|row| row / page_size).max().map_or(0, |last| last + 1);
                (0..needed)
                    .map(|_| {
                        next += 1;
                        ((next * step) % pages) as i32
                    })
                    .collect()
            })
            .collect();
        prop_assert_eq!(cumulative.pages(page_size).expect("pages with rows").get(), rows.iter().map(Vec::len).sum::<usize>() as i64);
        let table = PageTable::new(&pool, &cumulative, &rows).expect("it fits");
        prop_assert_eq!(table.entries().len(), table.width() * lengths.len());
        for (i, &n) in lengths.iter().enumerate() {
            for row in 0..n as usize {
                let at = row / page_size as usize;
                prop_assert_eq!(table.entries()[i * table.width() + at], rows[i][at]);
            }
        }
    }

    #[test]
    fn any_numbers_are_lengths_or_refused(numbers in prop::collection::vec(any::<i64>(), 0..6), small in prop::collection::vec(-3..9_i64, 0..6)) {
        for numbers in [numbers, small] {
            let falls = numbers.windows(2).any(|w| w[1] < w[0]);
            let sound = numbers.len() > 1 && numbers[0] == 0 && !falls
                && numbers.windows(2).all(|w| w[1] - w[0] <= i64::from(i32::MAX));
            match CuSeqlens::new(numbers.clone()) {
                Ok(_) => prop_assert!(sound, "{:?}", numbers),
                Err(refusal) => {
                    prop_assert!(!sound, "{:?}", numbers);
                    prop_assert!(!refusal.reasons().is_empty());
                }
            }
        }
    }
}

#[test]
fn offsets_beyond_32_bits_are_exact() {
    let t = Tensor::thd(2, 128, i64::from(i32::MAX), 256, 1 << 33, DType::BF16);
    let lengths = CuSeqlens::from_lengths(&[i32::MAX, 7]).expect("lengths");
    let offsets = RaggedOffsets::new(&lengths, &t).expect("it fits");
    assert_eq!(offsets.elements(), [0, 2_147_483_647 * 32_768, 2_147_483_654 * 32_768]);
    let wide = Tensor { strides: [1, 1, i64::MAX / 2, 1], ..t };
    assert_eq!(codes(&RaggedOffsets::new(&lengths, &wide).expect_err("too wide")), ["offsets.overflow"]);
}

#[test]
fn batch_and_tokens_are_not_mixed_up() {
    let t = Tensor::thd(3, 2, 8, 4, 20, DType::F16);
    let refused = |lengths: &[i32]| {
        let lengths = CuSeqlens::from_lengths(lengths).expect("lengths");
        codes(&RaggedOffsets::new(&lengths, &t).expect_err("does not fit")).join(" ")
    };
    assert_eq!(refused(&[1; 20]), "offsets.batch");
    assert_eq!(refused(&[8, 8, 5]), "offsets.capacity");
    assert_eq!(refused(&[9, 0, 0]), "offsets.longest");
    assert_eq!(refused(&[9, 9, 9, 9]), "offsets.batch offsets.capacity offsets.longest");
    let dense = Tensor::bshd(3, 2, 8, 4, DType::F16);
    let lengths = CuSeqlens::from_lengths(&[8; 3]).expect("lengths");
    assert_eq!(codes(&RaggedOffsets::new(&lengths, &dense).expect_err("dense")), ["offsets.storage"]);
}

#[test]
fn offsets_that_decrease_are_refused_with_every_place() {
    let refusal = CuSeqlens::new(vec![1, 5, 3, 4, 2]).expect_err("falls twice and starts at 1");
    assert_eq!(codes(&refusal), ["offsets.start", "offsets.falls", "offsets.falls"]);
    let places: Vec<&str> = refusal.reasons().iter().map(|r| r.field.as_ref()).collect();
    assert_eq!(places, ["cu_seqlens[0]", "cu_seqlens[2]", "cu_seqlens[4]"]);
    assert_eq!(codes(&CuSeqlens::new(vec![]).expect_err("nothing")), ["offsets.entries"]);
    assert_eq!(codes(&CuSeqlens::new(vec![0]).expect_err("no sequence")), ["offsets.entries"]);
    assert!(CuSeqlens::new(vec![0, i64::from(i32::MAX)]).is_ok());
    assert_eq!(codes(&CuSeqlens::new(vec![0, 1 << 31]).expect_err("too long")), ["offsets.length-limit"]);
    assert_eq!(codes(&CuSeqlens::from_lengths(&[3, -1, -2]).expect_err("negative")), ["lengths.negative"; 2]);
}

#[test]
fn page_tables_of_the_wrong_batch_or_pool_are_refused() {
    let pool = Tensor::paged_nhd(2, 2, 8, 4, 5, 4, DType::F16);
    let lengths = CuSeqlens::from_lengths(&[8, 3]).expect("lengths");
    let refused =
        |rows: &[Vec<i32>]| codes(&PageTable::new(&pool, &lengths, rows).expect_err("does not fit")).join(" ");
    let table = PageTable::new(&pool, &lengths, &[vec![4, 0], vec![2]]).expect("fits");
    assert_eq!((table.width(), table.entries()), (2, &[4, 0, 2, 0][..]));
    assert_eq!(refused(&[vec![4, 0]]), "pages.batch");
    assert_eq!(refused(&[vec![4, 0], vec![2], vec![1]]), "pages.batch");
    assert_eq!(refused(&[vec![4], vec![2]]), "pages.short");
    assert_eq!(refused(&[vec![4, 0, 1], vec![2]]), "pages.long");
    assert_eq!(refused(&[vec![4, 5], vec![-1]]), "pages.pool pages.pool");
    let other = CuSeqlens::from_lengths(&[8, 3, 1]).expect("lengths");
    let refusal = PageTable::new(&pool, &other, &[vec![4, 0], vec![2]]).expect_err("three lengths");
    assert_eq!(codes(&refusal), ["pages.batch"]);
    let dense = Tensor::bshd(2, 2, 8, 4, DType::F16);
    assert_eq!(codes(&PageTable::new(&dense, &lengths, &[]).expect_err("dense")), ["pages.storage"]);
}

#[test]
fn every_varlen_operand_has_its_own_offsets() {
    let (q, kv) = (Tensor::thd(2, 8, 16, 4, 32, DType::F16), Tensor::thd(2, 2, 64, 4, 99, DType::F16));
    let forward = Attention::forward(q, kv, kv, q).with_lengths().with_stats();
    let (queries, keys) = (CuSeqlens::new(vec![0, 3, 19]), CuSeqlens::new(vec![0, 64, 64]));
    let (queries, keys) = (queries.expect("lengths"), keys.expect("lengths"));
    let valid = validate(forward.backward(BackwardOptions::default())).expect("sound");
    let offsets = ragged_offsets(&valid, &queries, &keys).expect("they fit");
    assert_eq!(offsets.len(), 9);
    let last = |p: Varlen| offsets[&p].elements()[2];
    assert_eq!([Varlen::Q, Varlen::O, Varlen::DQ, Varlen::DO].map(last), [19 * 8 * 4; 4]);
    assert_eq!([Varlen::K, Varlen::V, Varlen::DK, Varlen::DV].map(last), [64 * 2 * 4; 4]);
    assert_eq!(last(Varlen::Stats), 19 * 8);
    let refusal = ragged_offsets(&valid, &keys, &queries).expect_err("swapped");
    assert!(refusal.to_string().contains("cu_seqlens of Q"), "{refusal}");
    let dense = validate(Attention::bshd(2, (8, 2), (16, 64), 4, DType::F16)).expect("sound");
    assert!(ragged_offsets(&dense, &queries, &keys).expect("nothing to fit").is_empty());
}
