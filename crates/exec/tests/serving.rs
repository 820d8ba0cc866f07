//! Serving steps: the block has what the oracle reads, errors name their operand, and updates change only what differs.

mod common;

use std::time::Instant;

use common::{facts_of, forward, h200, operand};
use proptest::prelude::*;
use qkvault_compile::PlanFacts;
use qkvault_cudnn::{CompileOptions, lower};
use qkvault_exec::serving::{BatchInputError, BatchInputErrors, PlanSet, Rows, Step, StepBuffer, StepLayout};
use qkvault_graph::CuSeqlens;
use qkvault_graph::{
    Attention, Band, CacheAppend, CudnnVersion, DType, Fp8, Operand, Role, Tensor, Valid, Varlen, operands,
    ragged_offsets, validate,
};
use qkvault_serving::{Bucket, Buckets, ServeLayer, ServePolicy, StepKind, StepSize};

const PAGE: i64 = 4;

/// Varlen queries over pages: up to 3 sequences of up to 8 queries and 16 keys, 20 tokens in all, a pool of 9 pages.
fn mixed() -> Valid {
    let q = Tensor::thd(3, 4, 8, 16, 20, DType::BF16);
    let kv = Tensor::paged_nhd(3, 2, 16, 16, 9, PAGE, DType::BF16);
    let a = Attention::forward(q, kv, kv, q).with_lengths().with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats();
    validate(a).expect("sound")
}

fn layout(a: &Valid, minor: u16) -> StepLayout {
    let target = h200(CudnnVersion::v9(minor, 0));
    let graph = lower(a, &target, &CompileOptions::default()).expect("lowers");
    let layout = StepLayout::for_plan(a, &facts_of(&graph, &target)).expect("it has steps");
    assert_eq!(layout, StepLayout::of_graph(a, &graph).expect("it has steps"));
    layout
}

fn facts(a: &Valid) -> PlanFacts {
    // Pages of 4 rows, which are smaller than lowering allows for so few keys.
    let operand = |o: &Operand| (!o.role.is_scalar()).then(|| operand(o.role, o.tensor.dtype, o.output, 4096));
    let target = h200(CudnnVersion::v9(27, 0));
    let bindings = operands(a).iter().filter_map(operand).collect();
    PlanFacts { bindings, ..forward(&target) }
}

fn image(a: &Valid) -> StepBuffer {
    StepBuffer::new(StepLayout::for_plan(a, &facts(a)).expect("it has steps"))
}

/// The words of an operand.
fn words(image: &StepBuffer, role: Role) -> &[i32] {
    let (_, at, n) = image.layout().operands().find(|(r, ..)| *r == role).expect("the plan has it");
    &image.words()[at..at + n]
}

fn wide(image: &StepBuffer, role: Role) -> Vec<i64> {
    let pair = |w: &[i32]| i64::from(w[0] as u32) | i64::from(w[1]) << 32;
    words(image, role).chunks_exact(2).map(pair).collect()
}

fn errors<T: AsRef<[i32]>>(image: &mut StepBuffer, step: &Step<'_, T>) -> Vec<BatchInputError> {
    let before = image.words().to_vec();
    let errors: BatchInputErrors = image.fill(step).expect_err("refused");
    assert_eq!(image.words(), before, "a refused step changes nothing");
    assert!(!errors.to_string().is_empty());
    errors.to_vec()
}

/// Hopper's 8-bit kernel never ends over a sequence without keys, and a batch is rarely full.
#[test]
fn idle_sequences_of_8_bit_pages_have_one_key_and_no_query() {
    let layer = ServeLayer::new((4, 2), (16, 16), DType::BF16, 9, PAGE).in_8_bits(Fp8::Delayed);
    let bucket = Bucket { kind: StepKind::Decode, batch: 3, queries: 1, keys: 16, tokens: 3 };
    let mut image = image(&layer.attention(&bucket).expect("sound"));
    image.fill(&Step::paged(Rows::Lengths(&[1]), Rows::Lengths(&[6]), &[vec![4, 2]])).expect("sound");
    assert_eq!(words(&image, Role::SeqLenQ), [1, 0, 0]);
    assert_eq!(words(&image, Role::SeqLenKv), [6, 1, 1]);
    // The description has no band, and a query without a key of its own is still an error.
    let pages = [vec![4]];
    let step = Step::paged(Rows::Lengths(&[2]), Rows::Lengths(&[1]), &pages);
    assert!(!errors(&mut image, &step).is_empty());
}

#[test]
fn a_step_is_what_the_kernels_read() {
    let a = mixed();
    let mut image = image(&a);
    let pages = [vec![3, 7, 1], vec![], vec![8]];
    let step = Step::paged(Rows::Lengths(&[5, 0, 1]), Rows::Lengths(&[9, 0, 4]), &pages);
    image.fill(&step).expect("sound");
    assert_eq!(words(&image, Role::SeqLenQ), [5, 0, 1]);
    assert_eq!(words(&image, Role::SeqLenKv), [9, 0, 4]);
    for table in [Role::PageTableK, Role::PageTableV] {
        // Kernels look up pages of a whole tile beyond the length: they find the sequence's first page.
        assert_eq!(words(&image, table), [3, 7, 1, 3, 0, 0, 0, 0, 8, 8, 8, 8]);
    }
    // The offsets that the description derives from the same lengths.
    let lengths = CuSeqlens::from_lengths(&[5, 0, 1]).expect("lengths");
    let expected = ragged_offsets(&a, &lengths, &CuSeqlens::from_lengths(&[9, 0, 4]).expect("lengths")).expect("fit");
    for varlen in [Varlen::Q, Varlen::O, Varlen::Stats] {
        assert_eq!(wide(&image, Role::Offsets(varlen)), expected[&varlen].elements(), "{varlen:?}");
    }
    // Q and O have equal offsets and share a section.
    let at = |role| image.layout().operands().find(|(r, ..)| *r == role).expect("there").1;
    assert_eq!(at(Role::Offsets(Varlen::Q)), at(Role::Offsets(Varlen::O)));
    assert!(image.layout().operands().all(|(_, at, _)| at % 64 == 0), "aligned to 256 bytes");
    image.layout().check_words(image.words()).expect("sound as a kernel reads it");
}

/// One block for an attention and for the append of its keys and values.
#[test]
fn offsets_of_new_keys_and_values_follow_from_the_queries() {
    let a = mixed();
    let append = CacheAppend::before(&a, DType::BF16).validate().expect("sound");
    let layout = StepLayout::with_append(&a, &facts(&a), &append).expect("it has steps");
    let mut image = StepBuffer::new(layout);
    let pages = [vec![3, 7, 1], vec![], vec![8]];
    image.fill(&Step::paged(Rows::Lengths(&[5, 0, 1]), Rows::Lengths(&[9, 0, 4]), &pages)).expect("sound");
    // Two heads of 16, where the queries have four.
    for varlen in [Varlen::NewK, Varlen::NewV] {
        assert_eq!(wide(&image, Role::Offsets(varlen)), [0, 5 * 32, 5 * 32, 6 * 32], "{varlen:?}");
    }
    assert_eq!(wide(&image, Role::Offsets(Varlen::Q)), [0, 5 * 64, 5 * 64, 6 * 64]);
    image.layout().check_words(image.words()).expect("sound as a kernel reads it");
}

/// An append with tables of fewer pages would write into the pages of other sequences, in silence.
#[test]
fn an_append_to_other_caches_than_the_attention_reads_is_refused() {
    let a = mixed();
    let append = CacheAppend::before(&a, DType::BF16);
    let refused = |append: CacheAppend| {
        let append = append.validate().expect("sound");
        StepLayout::with_append(&a, &facts(&a), &append).expect_err("another attention's").to_string()
    };
    let mut shorter = append;
    (shorter.k.dims[2], shorter.v.dims[2]) = (append.k.dims[2] - PAGE, append.v.dims[2] - PAGE);
    assert!(refused(shorter).contains("writes K"), "{}", refused(shorter));
    let mut fewer = append;
    (fewer.new_k.dims[2], fewer.new_v.dims[2]) = (1, 1);
    assert!(refused(fewer).contains("room for 1 new tokens"), "{}", refused(fewer));
}

#[test]
fn sequences_that_are_not_there_are_idle() {
    let mut image = image(&mixed());
    let pages = [vec![0, 1], vec![2, 3], vec![4]];
    image.fill(&Step::paged(Rows::One(3), Rows::Lengths(&[7, 8, 2]), &pages)).expect("sound");
    image.fill(&Step::paged(Rows::One(1), Rows::Cumulative(&[0, 8]), &pages[..1])).expect("sound");
    assert_eq!((words(&image, Role::SeqLenQ), words(&image, Role::SeqLenKv)), (&[1, 0, 0][..], &[8, 0, 0][..]));
    assert_eq!(wide(&image, Role::Offsets(Varlen::Stats)), [0, 4, 4, 4]);
    assert_eq!(image.sequences(), 1);
}

#[test]
fn offsets_that_fall_or_exceed_the_tokens_are_named() {
    let mut image = image(&mixed());
    let pages = [vec![0, 1, 2, 3], vec![4, 5], vec![6, 7]];
    let keys = Rows::Lengths(&[16, 8, 8]);
    let falls = errors(&mut image, &Step::paged(Rows::Cumulative(&[0, 5, 3, 4]), keys, &pages));
    assert_eq!(falls, [BatchInputError::Falls { operand: Role::SeqLenQ, entry: 2, given: 3, before: 5 }]);
    let start = errors(&mut image, &Step::paged(Rows::Cumulative(&[1, 5, 6, 7]), keys, &pages));
    assert!(matches!(start[..], [BatchInputError::Falls { entry: 0, given: 1, .. }]));
    let tokens = errors(&mut image, &Step::paged(Rows::Lengths(&[8, 8, 8]), keys, &pages));
    let q = BatchInputError::Tokens { operand: Role::Offsets(Varlen::Q), given: 24, room: 20 };
    let stats = BatchInputError::Tokens { operand: Role::Offsets(Varlen::Stats), given: 24, room: 20 };
    assert_eq!(tokens, [q, stats]);
}

#[test]
fn lengths_over_the_plan_and_of_another_batch_are_named() {
    let mut image = image(&mixed());
    let pages = [vec![0, 1, 2, 3, 4], vec![5]];
    let keys = Rows::Lengths(&[17, 1]);
    let long = errors(&mut image, &Step::paged(Rows::Lengths(&[9, 1]), keys, &pages));
    assert_eq!(
        long,
        [
            BatchInputError::Length { operand: Role::SeqLenQ, sequence: 0, given: 9, most: 8 },
            BatchInputError::Length { operand: Role::SeqLenKv, sequence: 0, given: 17, most: 16 },
        ]
    );
    let negative = errors(&mut image, &Step::paged(Rows::One(1), Rows::Lengths(&[-1]), &pages[..1]));
    assert!(negative.contains(&BatchInputError::Length { operand: Role::SeqLenKv, sequence: 0, given: -1, most: 16 }));
    let many = errors(&mut image, &Step::paged(Rows::One(4), Rows::Lengths(&[1; 4]), &pages));
    assert_eq!(many, [BatchInputError::Sequences { operand: Role::SeqLenQ, given: 4, most: 3 }]);
    // One length per token instead of one per sequence.
    let tokens = errors(&mut image, &Step::paged(Rows::One(2), Rows::Lengths(&[1; 3]), &pages));
    assert_eq!(tokens, [BatchInputError::OtherBatch { operand: Role::SeqLenKv, given: 3, needed: 2 }]);
    let table = errors(&mut image, &Step::paged(Rows::One(2), Rows::Lengths(&[1, 1]), &pages[..1]));
    let of = |operand| BatchInputError::OtherBatch { operand, given: 1, needed: 2 };
    assert_eq!(table, [of(Role::PageTableK), of(Role::PageTableV)]);
    let blind = errors(&mut image, &Step::paged(Rows::Lengths(&[3]), Rows::Lengths(&[2]), &pages[..1]));
    assert_eq!(blind, [BatchInputError::NoKey { operand: Role::SeqLenKv, sequence: 0, queries: 3, keys: 2 }]);
}

#[test]
fn tables_that_are_short_or_point_outside_the_pool_are_named() {
    let mut image = image(&mixed());
    let step = |pages: &[Vec<i32>], image: &mut StepBuffer| {
        errors(image, &Step::paged(Rows::One(1), Rows::Lengths(&[9]), pages)).remove(0)
    };
    let operand = Role::PageTableK;
    let short = step(&[vec![1, 2]], &mut image);
    assert_eq!(short, BatchInputError::Short { operand, sequence: 0, given: 2, rows: 9, needed: 3 });
    for page in [9, -1] {
        let outside = step(&[vec![1, 2, page]], &mut image);
        assert_eq!(outside, BatchInputError::Page { operand, sequence: 0, entry: 2, page, last: 8 });
        assert!(outside.to_string().contains("PageTableK"));
    }
    // Entries that no row needs are neither checked nor copied.
    let spare = [vec![1, 2, 3, -1, -1, -1]];
    image.fill(&Step::paged(Rows::One(1), Rows::Lengths(&[9]), &spare)).expect("sound");
    // A table of its own for the values.
    let values = [vec![6, 7, 9]];
    let both = Step { queries: Rows::One(1), keys: Rows::Lengths(&[9]), pages: &spare, value_pages: Some(&values[..]) };
    assert!(matches!(
        errors(&mut image, &both)[..],
        [BatchInputError::Page { operand: Role::PageTableV, page: 9, .. }]
    ));
    // A kernel of the caller's wrote it.
    let mut words = image.words().to_vec();
    let (_, at, _) = image.layout().operands().find(|(role, ..)| *role == Role::PageTableV).expect("it has one");
    words[at + 2] = 9;
    let found = image.layout().check_words(&words).expect_err("found when it is read back");
    assert!(matches!(found[..], [BatchInputError::Page { operand: Role::PageTableV, page: 9, .. }]));
}

#[test]
fn offsets_of_32_bits_that_would_overflow_are_named() {
    // 9.5 has offsets of 32 bits: 2^31 elements are 262,144 tokens of 64 heads of 128.
    let t = Tensor::thd(2, 64, 300_000, 128, 600_000, DType::BF16);
    let a = validate(Attention::forward(t, t, t, t).with_lengths()).expect("sound");
    let rows = Rows::Lengths(&[262_143, 262_144]);
    let mut narrow = StepBuffer::new(layout(&a, 5));
    let overflow = errors(&mut narrow, &Step::unpaged(rows, rows));
    let of = |operand| BatchInputError::Overflow { operand, sequence: 2, given: 524_287 * 64 * 128 };
    assert_eq!(overflow, [of(Role::Offsets(Varlen::Q)), of(Role::Offsets(Varlen::K))]);
    let small = Rows::Lengths(&[100_000, 162_143]);
    narrow.fill(&Step::unpaged(small, small)).expect("it fits");
    assert_eq!(words(&narrow, Role::Offsets(Varlen::V)), [0, 100_000 * 8192, 262_143 * 8192]);
    let mut image = StepBuffer::new(layout(&a, 27));
    image.fill(&Step::unpaged(rows, rows)).expect("64 bits hold it");
    assert_eq!(wide(&image, Role::Offsets(Varlen::O)), [0, 262_143 * 8192, 524_287 * 8192]);
}

#[test]
fn offsets_of_dq_with_gaps_that_are_not_those_of_q_are_named() {
    let t = Tensor::thd(3, 4, 8, 16, 30, DType::BF16);
    let part = Tensor { strides: [8 * 192, 16, 192, 1], ..t };
    let forward = Attention::forward(part, t, t, t).with_lengths().with_stats();
    let d_q = qkvault_graph::BackwardOptions { d_q: Some(t), ..Default::default() };
    let a = validate(forward.backward(d_q)).expect("sound");
    let layout = layout(&a, 19);
    let lengths = |n: i64| [5, 0, 1].iter().map(|&x| x * n as i32).collect::<Vec<i32>>();
    // Rows before each sequence, with gaps between sequences, as elements.
    let elements =
        |starts: [i64; 4], row: i64| starts.iter().flat_map(|&n| [(n * row) as i32, 0]).collect::<Vec<i32>>();
    let mut read: std::collections::BTreeMap<Role, Vec<i32>> = layout
        .operands()
        .map(|(role, ..)| match role {
            Role::Offsets(Varlen::Q) => (role, elements([0, 7, 7, 20], 192)),
            Role::Offsets(Varlen::Stats) => (role, elements([0, 7, 7, 20], 4)),
            Role::Offsets(_) => (role, elements([0, 7, 7, 20], 64)),
            _ => (role, lengths(1)),
        })
        .collect();
    layout.check_operands(&read).expect("gaps are Q's, in rows of another size");
    read.insert(Role::Offsets(Varlen::K), elements([0, 9, 9, 30], 64));
    layout.check_operands(&read).expect("keys may lie otherwise");
    read.insert(Role::Offsets(Varlen::DQ), elements([0, 5, 6, 20], 64));
    let found = layout.check_operands(&read).expect_err("dQ would be wrong");
    assert_eq!(
        found[..],
        [BatchInputError::Gaps { operand: Role::Offsets(Varlen::DQ), sequence: 2, given: 6, needed: 7 }]
    );
    assert!(found.to_string().contains("offsets of DQ"), "{found}");
    read.insert(Role::Offsets(Varlen::DV), elements([0, 5, 25, 31], 64));
    let found = layout.check_operands(&read).expect_err("and dV falls beyond its tokens");
    assert!(found.iter().any(|e| matches!(e, BatchInputError::Gaps { .. })), "{found}");
    read.insert(Role::Offsets(Varlen::DV), elements([0, 5, 30, 31], 64));
    let found = layout.check_operands(&read).expect_err("and dV falls beyond its tokens");
    let of = BatchInputError::Tokens { operand: Role::Offsets(Varlen::DV), given: 31, room: 30 };
    assert!(found.contains(&of), "{found}");
    read.remove(&Role::SeqLenKv);
    let missing = layout.check_operands(&read).expect_err("lengths are missing");
    assert!(matches!(&missing[..], [BatchInputError::NoStep { what }] if what.contains("SeqLenKv")), "{missing}");
}

#[test]
fn what_is_overwritten_on_the_device_is_told() {
    let mut image = image(&mixed());
    let pages = [vec![3, 7, 1]];
    image.fill(&Step::paged(Rows::Lengths(&[5]), Rows::Lengths(&[9]), &pages)).expect("sound");
    image.verify(image.words()).expect("as it was put there");
    let at = |role| image.layout().operands().find(|(r, ..)| *r == role).expect("there").1;
    let with = |word: usize, value: i32| {
        let mut device = image.words().to_vec();
        device[word] = value;
        image.verify(&device).expect_err("overwritten")[0].clone()
    };
    let table = with(at(Role::PageTableK) + 1, 8);
    assert_eq!(table, BatchInputError::Overwritten { operand: Role::PageTableK, word: 1, found: 8, expected: 7 });
    assert!(matches!(with(at(Role::PageTableK) + 1, 99), BatchInputError::Page { page: 99, .. }));
    assert!(matches!(with(at(Role::SeqLenKv), 17), BatchInputError::Length { given: 17, .. }));
    assert!(matches!(with(at(Role::Offsets(Varlen::Q)) + 2, 3), BatchInputError::Falls { entry: 1, given: 3, .. }));
}

/// Queries, keys and pages of each sequence.
type Drawn = (Vec<i32>, Vec<i32>, Vec<Vec<i32>>);

/// Random sound steps of [`mixed`].
fn steps() -> impl Strategy<Value = Vec<Drawn>> {
    let sequence = (0..=6_i32, 0..=10_i32, prop::collection::vec(0..9_i32, 4));
    prop::collection::vec(prop::collection::vec(sequence, 0..=3), 1..8).prop_map(|steps| {
        let each = |step: Vec<(i32, i32, Vec<i32>)>| {
            let keys: Vec<i32> = step.iter().map(|(q, more, _)| q + more).collect();
            (step.iter().map(|(q, ..)| *q).collect(), keys, step.into_iter().map(|(.., pages)| pages).collect())
        };
        steps.into_iter().map(each).collect()
    })
}

proptest! {
    #[test]
    fn updates_in_place_leave_what_a_fresh_step_would_and_say_every_word_that_changed(steps in steps()) {
        let mut image = image(&mixed());
        let mut device = image.words().to_vec();
        for (queries, keys, pages) in &steps {
            let step = Step::paged(Rows::Lengths(queries), Rows::Lengths(keys), pages);
            let changed = image.fill(&step).expect("sound").to_vec();
            for range in changed {
                device[range.clone()].copy_from_slice(&image.words()[range]);
            }
            prop_assert_eq!(&device[..], image.words());
            image.verify(&device).expect("sound");
            prop_assert_eq!(image.fill(&step).expect("sound"), &[], "again is no change");
            let mut fresh = self::image(&mixed());
            fresh.fill(&step).expect("sound");
            for role in [Role::SeqLenQ, Role::SeqLenKv, Role::Offsets(Varlen::Q), Role::Offsets(Varlen::Stats)] {
                prop_assert_eq!(words(&image, role), words(&fresh, role));
            }
            for (i, (row, &keys)) in pages.iter().zip(keys).enumerate() {
                let used = (i64::from(keys) + PAGE - 1) / PAGE;
                prop_assert_eq!(&words(&image, Role::PageTableK)[i * 4..][..used as usize], &row[..used as usize]);
            }
        }
    }
}

#[test]
fn a_decode_whose_plan_is_refused_runs_as_a_mixed_step() {
    let policy = ServePolicy { batch: 16, queries: 64, keys: 4096, tokens: 64, ..ServePolicy::default() };
    let buckets = Buckets::new(&policy).expect("sound");
    let taken = |bucket: Bucket| Ok::<_, ()>((bucket.kind == StepKind::Mixed).then_some(bucket));
    let set = PlanSet::new(buckets.clone(), taken).expect("no error");
    let step = StepSize { sequences: 3, queries: 1, keys: 100 };
    let at = set.pick(step).expect("a mixed plan");
    assert_eq!(set.get(at).map(|b| (b.kind, b.batch)), Some((StepKind::Mixed, 16)));
    assert_eq!(set.pick(StepSize { sequences: 17, ..step }), None);
    assert_eq!(set.iter().count(), buckets.iter().filter(|b| b.kind == StepKind::Mixed).count());
    let all = PlanSet::new(buckets, |bucket| Ok::<_, ()>(Some(bucket))).expect("no error");
    assert_eq!(all.get(all.pick(step).expect("there")).map(|b| b.kind), Some(StepKind::Decode));
}

#[test]
fn many_changes_are_few_copies_and_few_changes_leave_the_rest_alone() {
    let q = Tensor::bshd(40, 4, 1, 64, DType::BF16);
    let kv = Tensor::paged_hnd(40, 4, 4096, 64, 5000, 16, DType::BF16);
    let a = validate(Attention::forward(q, kv, kv, q).with_lengths()).expect("sound");
    let mut image = StepBuffer::new(layout(&a, 27));
    let mut device = image.words().to_vec();
    let mut tables: Vec<Vec<i32>> = (0..40).map(|i| (0..256).map(|page| (i * 120 + page) % 5000).collect()).collect();
    let mut fill = |keys: &[i32], tables: &[Vec<i32>]| {
        let step = Step::paged(Rows::One(40), Rows::Lengths(keys), tables);
        let changed = image.fill(&step).expect("sound").to_vec();
        for range in &changed {
            device[range.clone()].copy_from_slice(&image.words()[range.clone()]);
        }
        assert_eq!(device, image.words());
        (changed.len(), changed.iter().map(ExactSizeIterator::len).sum::<usize>())
    };
    let mut keys = vec![2000; 40];
    let (copies, words) = fill(&keys, &tables);
    assert!(copies <= 4 && words > 2 * 40 * 125, "{copies} copies of {words} words");
    // Fewer keys in the same page change only lengths.
    keys.fill(1992);
    let (copies, words) = fill(&keys, &tables);
    assert!(copies == 1 && words <= 64, "{copies} copies of {words} words");
    // Two sequences have a page moved.
    tables[3][7] = 4999;
    tables[30][9] = 4998;
    let (copies, words) = fill(&keys, &tables);
    assert!(copies == 4 && words == 4, "{copies} copies of {words} words");
    // A sequence with a new page changes its length, its entry in each table, and one entry at the end of the tile.
    keys[17] = 2001;
    let (copies, words) = fill(&keys, &tables);
    assert!(copies == 3 && words <= 1 + 2 * 17, "{copies} copies of {words} words");
}

/// A random number from 1 to `high`, with equal probability for each order of magnitude.
fn spread(state: &mut u64, high: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let unit = (*state >> 11) as f64 * 2f64.powi(-53);
    ((unit * ((high + 1) as f64).ln()).exp() as usize).clamp(1, high)
}

/// The default serving set over pages of this many rows.
fn default_set(page: i64) -> PlanSet<StepBuffer> {
    let layer = ServeLayer::new((32, 8), (128, 128), DType::BF16, 600_000, page);
    let target = h200(CudnnVersion::v9(19, 0));
    PlanSet::new(Buckets::new(&ServePolicy::default()).expect("sound"), |bucket| {
        let a = layer.attention(&bucket).expect("sound");
        let graph = lower(&a, &target, &CompileOptions::default()).expect("lowers");
        let image = StepBuffer::new(StepLayout::of_graph(&a, &graph)?);
        Ok::<_, BatchInputErrors>(Some(image))
    })
    .expect("every plan has steps")
}

/// Fills decode steps, prints their host times, and returns the sorted bytes and ranges of all steps.
fn costs(name: &str, page: i64, steps: usize, mut next: impl FnMut(&mut Vec<i32>)) -> (Vec<usize>, Vec<usize>) {
    let mut set = default_set(page);
    let width = (32_768 / page) as i32;
    let tables: Vec<Vec<i32>> = (0..256).map(|i| (0..width).map(|entry| i * width + entry).collect()).collect();
    let (mut times, mut bytes, mut copies, mut keys) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..steps {
        next(&mut keys);
        let longest = i64::from(keys.iter().copied().max().unwrap_or(1));
        let size = StepSize { sequences: keys.len() as i64, queries: 1, keys: longest };
        let image = set.pick(size).and_then(|at| set.get_mut(at)).expect("in range");
        let clock = Instant::now();
        let changed = image
            .fill(&Step::paged(Rows::One(keys.len()), Rows::Lengths(&keys), &tables[..keys.len()]))
            .expect("sound");
        times.push(clock.elapsed());
        bytes.push(changed.iter().map(|range| 4 * range.len()).sum::<usize>());
        copies.push(changed.iter().map(|range| range.len().div_ceil(1 << 14)).sum::<usize>());
    }
    times.sort_unstable();
    bytes.sort_unstable();
    copies.sort_unstable();
    let (half, most) = (steps / 2, steps * 99 / 100);
    common::say(&format!(
        "{name}: filled in {:?} (p99 {:?}); {} bytes (p99 {}); {} copies (p99 {})",
        times[half], times[most], bytes[half], bytes[most], copies[half], copies[most]
    ));
    (bytes, copies)
}

#[test]
fn steps_of_a_server_are_few_small_copies() {
    // 256 sequences grow by a key at each step, and in one of a hundred steps a sequence is replaced.
    let mut state = 7;
    let (bytes, copies) = costs("growing", 16, 1000, |keys| {
        keys.resize_with(256, || spread(&mut state, 30_000) as i32);
        keys.iter_mut().for_each(|n| *n += 1);
        if spread(&mut state, 100) == 1 {
            let at = spread(&mut state, 256) - 1;
            keys[at] = spread(&mut state, 30_000) as i32;
        }
        keys.iter_mut().for_each(|n| *n = if *n > 32_000 { 2 } else { *n });
    });
    assert!(bytes[990] < 1 << 20 && copies[990] <= 1 + 2 * 32, "{} bytes, {} copies", bytes[990], copies[990]);
    // Random lengths change at most each piece of both tables.
    let (bytes, copies) = costs("at random", 64, 2000, |keys| {
        keys.clear();
        let sequences = spread(&mut state, 256);
        keys.extend((0..sequences).map(|_| spread(&mut state, 32_768) as i32));
    });
    assert!(bytes[1999] <= 4 * (2 * 256 * 512 + 2 * 256) && copies[1999] <= 3 + 2 * 8, "{} copies", copies[1999]);
}
