//! The table reads, every row chooses for its own case what was faster there, and nothing speaks for what is far.

use qkvault_graph::{Attention, Band, Corner, DType, Tensor, validate};

use super::*;

fn paged(batch: i64, queries: i64, keys: i64) -> Attention {
    let mut a = Attention::bshd(batch, (32, 8), (queries, keys), 128, DType::BF16).with_lengths();
    a.k = Tensor::paged_nhd(batch, 8, keys, 128, batch * keys / 64, 64, DType::BF16);
    a.v = a.k;
    a.with_band(Band::CAUSAL_BOTTOM_RIGHT)
}

fn chosen(a: Attention) -> Option<Engine> {
    let case = Case::of(&validate(a).expect("valid"));
    Table::built_in().nearest(&case).map(|(row, distance)| row.engine(distance))
}

#[test]
fn the_built_in_table_reads_and_every_row_is_of_a_case_that_was_measured_in_both_engines() {
    let table: Table = serde_json::from_str(include_str!("../../data/engines.json")).expect("reads");
    assert_eq!((table.format, &table), (TABLE_FORMAT, Table::built_in()));
    assert!(!table.rows.is_empty() && table.source.contains("cuDNN"));
    for (at, row) in table.rows.iter().enumerate() {
        let Row { case, reach, kernels_us, cudnn_us } = row;
        assert!(*kernels_us > 0.0 && *cudnn_us > 0.0 && (0.0..=8.0).contains(reach), "{row:?}");
        assert!(case.heads % case.kv_heads == 0 && case.features.is_sorted(), "{row:?}");
        assert!(table.rows[..at].iter().all(|other| other.case != *case), "twice: {row:?}");
        let (nearest, distance) = table.nearest(case).expect("itself");
        assert_eq!((nearest, distance), (row, 0.0));
        assert_eq!(row.engine(0.0) == Engine::Kernels, row.ratio() < 0.97, "{row:?}");
    }
}

#[test]
fn each_measured_case_of_serving_goes_to_the_engine_that_was_faster() {
    for (batch, queries, keys, engine) in [
        (1, 1, 1024, Engine::Kernels),
        (8, 1, 1024, Engine::Kernels),
        (64, 1, 8192, Engine::Cudnn),
        (256, 1, 1024, Engine::Cudnn),
        (1, 4, 32_768, Engine::Kernels),
        (8, 2, 8192, Engine::Kernels),
        (1, 128, 32_768, Engine::Kernels),
    ] {
        assert_eq!(chosen(paged(batch, queries, keys)), Some(engine), "{batch} x {queries} over {keys}");
    }
    let window = |n| paged(1, 1, 32_768).with_band(Band::window(Corner::BottomRight, n));
    assert_eq!(chosen(window(1024)), Some(Engine::Kernels));
}

#[test]
fn where_nothing_near_was_measured_nobody_speaks() {
    let plain = || Attention::bshd(4, (16, 16), (4096, 4096), 128, DType::BF16).causal();
    assert_eq!(chosen(plain()), None, "a prompt");
    assert_eq!(chosen(plain().with_stats().backward(Default::default())), None, "a backward");
    assert_eq!(chosen(paged(1, 1, 1024).with_sink()), None, "sinks");
    assert_eq!(chosen(paged(256, 128, 32_768)), None, "many chunks at once fill the GPU without splits");
}

#[test]
fn the_farther_a_row_is_the_clearer_it_must_be() {
    let case = Case::of(&validate(paged(1, 1, 1024)).expect("valid"));
    let row = |kernels_us| Row { case: case.clone(), reach: 3.0, kernels_us, cudnn_us: 10.0 };
    assert_eq!((row(9.6).engine(0.0), row(9.6).engine(1.0)), (Engine::Kernels, Engine::Cudnn));
    assert_eq!((row(7.0).engine(3.0), row(9.8).engine(0.0)), (Engine::Kernels, Engine::Cudnn));
}
