//! The text form: printed texts parse to the same attention, errors have a place and a cause, and nothing panics.

mod errors;

use proptest::prelude::*;
use qkvault_graph::arbitrary::{self, Space};
use qkvault_graph::expr::{TensorSpec, query, scalar, score, tensor};
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, DType, Dropout, DropoutSource, Fp8, Interleave, Order, Outputs,
    PaddedRows, Pass, Storage, Tensor, text,
};

fn read(given: &str) -> Attention {
    text::parse(given).unwrap_or_else(|e| panic!("{e}\n{given}"))
}

fn names(a: &Attention) -> Vec<&str> {
    [&a.score_mod, &a.mask.mask_mod]
        .into_iter()
        .flatten()
        .flat_map(|e| e.scalar_names().iter().chain(e.tensor_names()).map(String::as_str))
        .collect()
}

fn round_trip(a: &Attention) {
    let printed = text::print(a);
    let again = read(&printed);
    assert_eq!(&again, a, "{printed}");
    assert_eq!(names(&again), names(a), "{printed}");
    assert_eq!(text::print(&again), printed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn valid_attentions_round_trip(a in arbitrary::attention(Space::WIDE)) {
        round_trip(&a);
    }

    #[test]
    fn invalid_attentions_round_trip((a, _) in arbitrary::invalid(Space::SMALL)) {
        round_trip(&a);
    }

    #[test]
    fn any_text_reads_or_is_refused(given in "\\PC{0,200}") {
        arbitrary::read_text(&given);
    }

    #[test]
    fn any_lines_read_or_are_refused(
        lines in prop::collection::vec(
            ("(q|k|o|mask|score|keep|d_q|pass|dropout|outputs|fp8)", "[:{}\\[\\],# a-z0-9.$@\n-]{0,40}"),
            0..8,
        ),
    ) {
        let lines: Vec<String> = lines.into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
        arbitrary::read_text(&lines.join("\n"));
    }

    #[test]
    fn a_text_with_a_piece_changed_reads_or_is_refused(
        a in arbitrary::attention(Space::SMALL), at in any::<prop::sample::Index>(), piece in "\\PC{0,3}", cut in 0..4_usize,
    ) {
        let printed = text::print(&a);
        let places: Vec<usize> = printed.char_indices().map(|(i, _)| i).collect();
        let from = at.index(places.len());
        let to = (from + cut).min(places.len() - 1);
        arbitrary::read_text(&format!("{}{piece}{}", &printed[..places[from]], &printed[places[to]..]));
    }
}

#[test]
fn every_variant_of_every_enum_round_trips() {
    let base = Attention::bshd(2, (4, 2), (8, 16), 32, DType::BF16).with_lengths().with_stats();
    let mut list: Vec<Attention> = vec![base.clone()];
    let mut with = |change: &dyn Fn(&mut Attention)| {
        let mut a = base.clone();
        change(&mut a);
        list.push(a);
    };
    for dtype in DType::ALL {
        with(&|a| a.q.dtype = dtype);
    }
    for order in Order::ALL {
        with(&|a| a.v = Tensor::dense(order, a.v.dims, a.v.dtype));
        for interleave in [Interleave::Parts, Interleave::Heads] {
            with(&|a| a.k = Tensor::parts::<3>(order, interleave, a.k.dims, a.k.dtype)[0].tensor);
            with(&|a| a.k = Tensor::parts::<2>(order, interleave, a.k.dims, a.k.dtype)[0].tensor);
        }
    }
    with(&|a| a.q = Tensor::thd(2, 4, 8, 32, 11, DType::BF16));
    with(&|a| a.k = Tensor::paged_nhd(2, 4, 8, 32, 5, 4, DType::BF16));
    with(&|a| a.k = Tensor::paged_hnd(2, 4, 8, 32, 5, 4, DType::BF16));
    with(&|a| a.k.strides = [i64::MIN, -1, i64::MAX, 0]);
    for corner in [Corner::TopLeft, Corner::BottomRight] {
        for left in [None, Some(-3), Some(7)] {
            for right in [None, Some(0), Some(9)] {
                with(&|a| a.mask.band = Some(Band { corner, left, right }));
            }
        }
    }
    for source in [DropoutSource::Philox, DropoutSource::Mask, DropoutSource::Places] {
        for probability in [0.0, 0.1, 1e-30, f32::INFINITY, -0.0] {
            with(&|a| a.dropout = Some(Dropout::new(source, probability)));
        }
    }
    for [stats, max, sum_exp] in [[false, true, true], [true, false, true], [false; 3], [true; 3]] {
        with(&|a| a.outputs = Outputs::new(stats, max, sum_exp));
    }
    with(&|a| a.padded_rows = PaddedRows::Zero);
    for fp8 in [Fp8::Delayed, Fp8::Current, Fp8::Block, Fp8::Cache] {
        with(&|a| a.fp8 = Some(fp8));
    }
    with(&|a| a.sink = true);
    with(&|a| a.block_mask = true);
    with(&|a| a.mask.lengths = qkvault_graph::Lengths::Full);
    for (d_sink, deterministic) in [(false, true), (true, false)] {
        let d_o = Some(Tensor::bhsd(2, 4, 8, 32, DType::F16));
        with(&|a| *a = a.backward(BackwardOptions { d_o, d_sink, deterministic, ..Default::default() }));
    }
    for a in &list {
        round_trip(a);
    }
}

#[test]
fn the_text_is_complete_and_readable() {
    let slopes = tensor("alibi_slopes", TensorSpec::new(DType::F32, [1, 32, 1, 1]));
    let capped = (score() / scalar("softcap")).tanh() * scalar("softcap");
    let mut a = Attention::bshd(2, (32, 8), (512, 1024), 128, DType::BF16)
        .with_band(Band { corner: Corner::BottomRight, left: Some(128), right: Some(0) })
        .with_lengths()
        .with_score_mod(capped.build_score_mod().expect("a score"))
        .with_mask_mod((query() % 7).ne(3).build_mask_mod().expect("a predicate"))
        .with_sink()
        .with_dropout(0.1)
        .with_stats();
    a.k = Tensor::paged_hnd(2, 8, 1024, 128, 256, 16, DType::BF16);
    a.v.strides[0] += 8;
    assert_eq!(
        text::print(&a),
        "\
pass: forward
q: bf16 [2,32,512,128] bshd
k: bf16 [2,8,1024,128] paged 256 x 16 hnd
v: bf16 [2,8,1024,128] strides [1048584,128,1024,1]
o: bf16 [2,32,512,128] bshd
mask: band left 128 right 0 bottom-right
lengths: per-sequence
mask_mod: query % 7 != 3
score_mod: scalar $softcap: float; tanh(score / $softcap) * $softcap
sink: yes
dropout: philox 0.1
block_mask: no
outputs: stats
padded_rows: undefined
fp8: none
"
    );
    let long =
        (capped + slopes * (qkvault_graph::expr::key() - query()).to_float()).build_score_mod().expect("a score");
    let printed = text::print(&a.with_score_mod(long));
    let expected = "\
score_mod: {
  scalar $softcap: float;
  tensor @alibi_slopes: f32[1, 32, 1, 1];
";
    assert!(printed.contains(expected), "{printed}");
}

#[test]
fn defaults_are_those_of_the_constructors() {
    assert_eq!(read("q: f16 [2,8,64,32]"), Attention::bshd(2, (8, 8), (64, 64), 32, DType::F16));
    assert_eq!(
        read("# decode\n\n q : f16 [2,8,1,32]  # one query\nk:[2,2,64,32]\n\tmask: causal bottom-right"),
        Attention::bshd(2, (8, 2), (1, 64), 32, DType::F16).with_band(Band::CAUSAL_BOTTOM_RIGHT)
    );
    let a = read(
        "pass: backward\nq: bf16 [1,4,64,192] sbhd\nv: [1,4,64,128] b3hsd\nmask: causal window 16\nd_v: f16 [1,4,64,128]",
    );
    assert_eq!(a.o, Tensor::sbhd(1, 4, 64, 128, DType::BF16));
    assert_eq!(a.v, Tensor::parts::<3>(Order::Bhsd, Interleave::Parts, [1, 4, 64, 128], DType::BF16)[2].tensor);
    assert_eq!(a.mask.band, Some(Band::window(Corner::TopLeft, 16)));
    let Pass::Backward(g) = a.pass else { panic!("a backward") };
    assert_eq!((g.d_q, g.d_k, g.d_o), (a.q, a.k, a.o));
    assert_eq!(g.d_v, Tensor::bshd(1, 4, 64, 128, DType::F16));
    assert!(a.outputs.stats && !g.deterministic);
    let a = read("q: bf16 [4,8,128,64] varlen tokens 300\nv: [4,8,128,32] paged 9 x 16\nlengths: per-sequence");
    assert_eq!(a.q, Tensor::thd(4, 8, 128, 64, 300, DType::BF16));
    assert_eq!(a.o, Tensor::thd(4, 8, 128, 32, 300, DType::BF16));
    assert_eq!(a.v.storage, Storage::Paged { pages: 9, page_size: 16 });
}

#[test]
fn expressions_are_on_one_line_or_in_braces_with_comments() {
    let a = read(
        "q: f16 [1,2,8,8]\nscore_mod: { # softcap\n  scalar $c: float; # given at launch\n  tanh(score / $c) * $c } # end\nsink: yes",
    );
    let b = read("q: f16 [1,2,8,8]\nscore_mod: scalar $cap: float; tanh(score / $cap) * $cap # softcap\nsink: yes");
    assert_eq!(a, b);
    assert_eq!((names(&a), names(&b)), (vec!["c"], vec!["cap"]));
}
