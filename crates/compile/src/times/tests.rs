//! The table reads, every row chooses for its own case what was faster there, and nothing speaks for what is far.

use qkvault_graph::{Attention, Band, Corner, DType, Tensor, expr, validate};

use super::*;
use crate::{CUDNN, FA4, KERNELS};

/// All engines, in the order without times.
const ALL: [EngineId; 3] = [CUDNN, KERNELS, FA4];

fn times(kernels_us: Option<f64>, cudnn_us: Option<f64>, fa4_us: Option<f64>) -> Times {
    let all = [(KERNELS, kernels_us), (CUDNN, cudnn_us), (FA4, fa4_us)];
    all.into_iter().filter_map(|(engine, us)| Some((engine.name(), us?))).collect()
}

fn paged(batch: i64, queries: i64, keys: i64) -> Attention {
    let mut a = Attention::bshd(batch, (32, 8), (queries, keys), 128, DType::BF16).with_lengths();
    a.k = Tensor::paged_nhd(batch, 8, keys, 128, batch * keys / 64, 64, DType::BF16);
    a.v = a.k;
    a.with_band(Band::CAUSAL_BOTTOM_RIGHT)
}

fn chosen(a: Attention) -> Option<EngineId> {
    let case = Case::for_attention(&validate(a).expect("valid"));
    let (row, distance) = Table::built_in().nearest(&case, &ALL)?;
    Some(row.order(&ALL, distance)[0])
}

#[test]
fn the_built_in_table_reads_and_every_row_is_of_a_case_that_was_measured_in_two_engines() {
    let table: Table = serde_json::from_str(include_str!("../../data/engines.json")).expect("reads");
    assert_eq!((table.format, &table), (TABLE_FORMAT, Table::built_in()));
    assert!(!table.rows.is_empty() && table.source.contains("cuDNN"));
    for (at, row) in table.rows.iter().enumerate() {
        let Row { case, reach, times } = row;
        let timed: Vec<f64> = ALL.iter().filter_map(|engine| times.us(*engine)).collect();
        assert!(timed.len() > 1 && timed.iter().all(|us| *us > 0.0) && (0.0..=8.0).contains(reach), "{row:?}");
        assert!(case.heads % case.kv_heads == 0 && case.features.is_sorted(), "{row:?}");
        assert!(table.rows[..at].iter().all(|other| other.case != *case), "twice: {row:?}");
        let (nearest, distance) = table.nearest(case, &ALL).expect("itself");
        assert_eq!((nearest, distance), (row, 0.0));
        let first = row.order(&ALL, 0.0)[0];
        let best = timed.iter().copied().fold(f64::MAX, f64::min);
        assert!(times.us(first).expect("timed") <= best / CLEAR, "{first:?}: {row:?}");
        assert!(first == CUDNN || times.us(CUDNN).is_none_or(|us| best < CLEAR * us), "{first:?}: {row:?}");
    }
}

#[test]
fn each_measured_case_of_serving_goes_to_the_engine_that_was_faster() {
    for (batch, queries, keys, engine) in [
        (1, 1, 1024, KERNELS),
        (8, 1, 1024, KERNELS),
        (64, 1, 8192, CUDNN),
        (256, 1, 1024, CUDNN),
        (1, 4, 32_768, KERNELS),
        (8, 2, 8192, KERNELS),
        (1, 128, 32_768, KERNELS),
    ] {
        assert_eq!(chosen(paged(batch, queries, keys)), Some(engine), "{batch} x {queries} over {keys}");
    }
    let window = |n| paged(1, 1, 32_768).with_band(Band::window(Corner::BottomRight, n));
    assert_eq!(chosen(window(1024)), Some(KERNELS));
}

#[test]
fn where_nothing_near_was_measured_nobody_speaks() {
    let plain = || Attention::bshd(1, (2, 2), (64, 64), 128, DType::BF16).causal();
    assert_eq!(chosen(plain()), None, "a tiny prompt");
    assert_eq!(chosen(plain().with_stats().backward(Default::default())), None, "a tiny backward");
    let long = || Attention::bshd(4, (16, 16), (4096, 4096), 128, DType::BF16).causal().with_stats();
    let deterministic = qkvault_graph::BackwardOptions { deterministic: true, ..Default::default() };
    assert_eq!(chosen(long().backward(deterministic)), None, "sums in one order");
    let narrow = Attention::bshd(1, (2, 2), (65_536, 65_536), 128, DType::BF16);
    assert_eq!(chosen(narrow.with_band(Band::window(Corner::BottomRight, 16))), None, "a narrow window");
    let squared = expr::score() * expr::score();
    assert_eq!(chosen(plain().with_score_mod(squared.build_score_mod().expect("builds"))), None, "an expression");
    assert_eq!(chosen(paged(1, 1, 1024).with_sink()), None, "sinks");
    assert_eq!(chosen(paged(256, 128, 32_768)), None, "many chunks at once fill the GPU without splits");
}

/// Measured with cuDNN 9.19 and FlashAttention-4 4.0.0b36: cuDNN keeps d64 at 1k forward.
#[test]
fn prompts_and_backwards_go_to_the_engine_that_was_faster_there_or_near() {
    let square = |b, heads, s, d| Attention::bshd(b, heads, (s, s), d, DType::BF16).causal();
    let backward = |a: Attention| a.with_stats().backward(Default::default());
    for (a, engine) in [
        (square(4, (16, 16), 4096, 128), FA4),
        (square(8, (16, 16), 1024, 64), CUDNN),
        (square(4, (32, 8), 4096, 64), FA4),
        (square(2, (32, 8), 8192, 128), FA4),
        (square(1, (64, 8), 16_384, 128), FA4),
        (square(4, (16, 16), 4096, 96), FA4),
    ] {
        assert_eq!(chosen(a.clone()), Some(engine), "{a}");
        assert_eq!(chosen(backward(a.clone())), Some(FA4), "backward of {a}");
    }
}

#[test]
fn the_farther_a_row_is_the_clearer_it_must_be() {
    let case = Case::for_attention(&validate(paged(1, 1, 1024)).expect("valid"));
    let times = |us| times(Some(us), Some(10.0), None);
    let first = |us, distance| Row { case: case.clone(), reach: 3.0, times: times(us) }.order(&ALL, distance)[0];
    assert_eq!((first(9.6, 0.0), first(9.6, 1.0)), (KERNELS, CUDNN));
    assert_eq!((first(7.0, 3.0), first(9.8, 0.0)), (KERNELS, CUDNN));
}

#[test]
fn engines_are_in_the_order_of_their_times_and_cudnn_before_what_is_not_clearly_faster() {
    let order = |kernels, cudnn, fa4, of: &[EngineId]| times(kernels, cudnn, fa4).order(of, CLEAR);
    let (some, all) = (Some, &ALL);
    assert_eq!(order(some(9.0), some(10.0), some(8.0), all), [FA4, KERNELS, CUDNN]);
    assert_eq!(order(some(9.8), some(10.0), some(12.0), all), [CUDNN, KERNELS, FA4]);
    assert_eq!(order(some(9.8), some(10.0), some(8.0), all), [FA4, CUDNN, KERNELS]);
    assert_eq!(order(some(9.8), None, some(9.7), all), [FA4, KERNELS], "cuDNN refuses");
    assert_eq!(order(some(9.0), some(10.0), some(8.0), &[CUDNN, KERNELS]), [KERNELS, CUDNN]);
    let times = times(some(9.0), some(10.0), None);
    assert_eq!(times.ratio(KERNELS, all), Some((0.9, CUDNN)));
    assert_eq!((times.ratio(FA4, all), times.ratio(KERNELS, &[KERNELS])), (None, None));
}
