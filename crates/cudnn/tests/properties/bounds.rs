//! Lowering and validation at the last value for which a condition holds and at the next one, and problems that are
//! reported only once.

use qkvault_cudnn::op::{Op, TensorKind};
use qkvault_cudnn::{CompileOptions, Form, OpGraph, Profile, lower, refusals};
use qkvault_graph::{
    Attention, BackwardOptions, CudnnVersion, DType, Fp8, Gradients, LibrarySet, Pass, Role, Storage, Tensor, text,
    validate,
};

fn target(version: &str) -> qkvault_cudnn::Target {
    let cudnn: CudnnVersion = version.parse().expect("a version");
    Profile::named("h200").expect("built in").target(cudnn, LibrarySet::Slim)
}

fn lowered(given: &str, version: &str) -> OpGraph {
    let valid = validate(text::parse(given).expect("an attention")).expect("sound");
    lower(&valid, &target(version), &CompileOptions::default()).unwrap_or_else(|e| panic!("{given}\n{e}"))
}

fn codes(given: &str, version: &str) -> Vec<String> {
    let valid = validate(text::parse(given).expect("an attention")).expect("sound");
    let reasons = refusals(&valid, &target(version), &CompileOptions::default());
    reasons.into_iter().map(|r| r.code.to_string()).collect()
}

#[test]
fn quirks_of_lowering_begin_and_end_at_their_sizes() {
    let narrow =
        |b: i64| format!("q: f16 [{b},2,1,64]\nk: [{b},2,64,64]\nscore_mod: tensor @t: f16[{b}, 1, 1, 1]; score + @t");
    assert_eq!(codes(&narrow(2), "9.19"), ["score-mod.one-query-narrow"]);
    assert_eq!(codes(&narrow(1), "9.19"), [""; 0]);
    let row = |d: i64| format!("pass: backward\nq: f16 [1,1,1,{d}]\nk: [1,1,127,{d}]");
    assert_eq!(codes(&row(128), "9.26"), ["backward.single-row"]);
    assert_eq!([codes(&row(129), "9.26"), codes(&row(128), "9.25.9")], [[""; 0], [""; 0]]);
}

/// On 9.14, what an expression reads excludes the engine for one query, not the number of keys.
#[test]
fn one_query_over_many_keys_keeps_its_engine_if_no_index_is_read() {
    let avoided = |keys: i64, score: &str| {
        lowered(&format!("q: f16 [1,2,1,64]\nk: [1,2,{keys},64]\nscore_mod: {score}"), "9.14").excluded_engines
    };
    assert_eq!(avoided(300, "tanh(score)"), [0_i64; 0]);
    for reads in ["score + float(key)", "score + float(query)"] {
        assert_eq!(avoided(256, reads), [0_i64; 0], "{reads}");
        assert_eq!(avoided(257, reads), [1], "{reads}");
    }
}

/// Masks come before the subtraction of the log-sum-exp while the last row sees the last key, and after it from the
/// next row on.
#[test]
fn masks_come_late_from_the_first_row_that_sees_no_key() {
    let masks_first = |s_q: i64, mask: &str| {
        let given = format!("pass: backward\nq: f16 [1,2,{s_q},64]\nk: [1,2,128,64]\nmask: {mask}");
        let text = lowered(&given, "9.19").to_string();
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}\n{text}"));
        at(" select ") < at(" <Stats>\n")
    };
    for mask in ["causal window 4", "band left 4"] {
        let first = [127, 128, 131, 132, 133, 256].map(|s_q| masks_first(s_q, mask));
        assert_eq!(first, [true, true, true, false, false, false], "{mask}");
    }
}

/// A window over scores that the expression's derivative also reads comes late if it is expanded, and not if it is one
/// operation.
#[test]
fn a_window_that_is_one_operation_stays_before_the_log_sum_exp() {
    let given = "pass: backward\nq: f16 [1,2,128,64]\nmask: band left 64\nscore_mod: rsqrt(abs(score))";
    let valid = validate(text::parse(given).expect("an attention")).expect("sound");
    let early = |form: Form, mask: &str| {
        let options = CompileOptions { lab: qkvault_cudnn::LabOptions::form(form), ..CompileOptions::default() };
        let text = lower(&valid, &target("9.27"), &options).expect("it lowers").to_string();
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}\n{text}"));
        at(mask) < at(" <Stats>\n")
    };
    assert_eq!([early(Form::Expanded, " select "), early(Form::Fused, " band-mask ")], [false, true]);
}

/// Room for more pages is declared if pages lie one after another, exactly to the element.
#[test]
fn pools_have_room_for_more_pages_unless_they_reach_into_another_head() {
    let pages = |pages: i64, page: i64| {
        let strides = [page, 1 << 20, 64, 1];
        let q = Tensor::bshd(2, 2, 8, 64, DType::F16);
        let kv = Tensor {
            dims: [2, 2, 128, 64],
            strides,
            dtype: DType::F16,
            storage: Storage::Paged { pages, page_size: 16 },
        };
        let valid = validate(Attention::forward(q, kv, kv, q).with_lengths()).expect("sound");
        let graph = lower(&valid, &target("9.19"), &CompileOptions::default()).expect("it lowers");
        graph.tensors.iter().find(|t| t.kind == TensorKind::Operand(Role::K)).map(|t| t.dims[0])
    };
    let reach = (1 << 20) + 15 * 64 + 63;
    assert_eq!([pages(99, reach), pages(99, reach - 1)], [Some(128), Some(99)]);
    let most = 1 << 30;
    assert_eq!([most - 1, most, most + 1].map(|n| pages(n, reach)), [Some(most), Some(most), Some(most + 1)]);
}

/// Beyond the last row and key, a scalar, a tensor or a position may have any value, and scores are zero or minus
/// infinity.
#[test]
fn a_derivative_that_is_not_a_number_beyond_the_lengths_is_refused() {
    let refused = |score: &str| {
        let given = format!("pass: backward\nq: f16 [1,2,200,64]\nlengths: per-sequence\nscore_mod: {score}");
        codes(&given, "9.19").contains(&"backward.length-tail".to_owned())
    };
    for score in [
        "1.0 / score",
        "scalar $a: float; score * log($a)",
        "tensor @t: f32[1, 1, 200, 200]; score * log(@t)",
        "score * sqrt(float(4 - key))",
        "score * sqrt(float(4 - query))",
        "score * sqrt(float(4 - key - query - head - batch))",
        "tensor @t: f32[1, 2, 200, 200] grad; score * @t",
        // On the diagonal alone, and for a third of the queries (seed 3621, case 2482: NaN in 27 rows of dQ).
        "score + tanh(score + select(query == key, score, 0.5) * select(query % 3 == 1, 0.0, 1.0))",
    ] {
        assert!(refused(score), "{score}");
    }
    for score in [
        "tanh(score)",
        "scalar $a: float; score * $a",
        "tensor @t: f32[1, 1, 200, 200]; score * @t",
        "tensor @t: i32[1, 1, 200, 200]; score * float(@t)",
        "tensor @t: f32[1, 2, 200, 200] grad; score + @t",
        "score * float(key)",
    ] {
        assert!(!refused(score), "{score}");
    }
}

/// The kept share of dropout, and the operands.
#[test]
fn a_backward_reads_masks_and_sinks_as_its_forward_does() {
    let keeps = |pass: &str| {
        let graph = lowered(&format!("pass: {pass}\nq: f16 [2,4,128,64]\ndropout: philox 0.25"), "9.19");
        let keep = |op: &Op| if let Op::Rng { keep, .. } = op { Some(f64::from_bits(*keep)) } else { None };
        graph.ops.iter().find_map(keep)
    };
    assert_eq!([keeps("forward"), keeps("backward")], [Some(0.75); 2]);
    let operands = |given: &str, role: Role| {
        let graph = lowered(given, "9.19");
        let t = graph.tensors.iter().find(|t| t.kind == TensorKind::Operand(role)).map(|t| (t.strides, t.dtype));
        t.unwrap_or_else(|| panic!("{given}"))
    };
    for pass in ["forward", "backward"] {
        let mask = format!("pass: {pass}\nq: f16 [2,4,128,64]\ndropout: mask 0.25");
        assert_eq!(operands(&mask, Role::DropoutMask), ([65536, 16384, 128, 1], DType::F16), "{pass}");
        let sink = format!("pass: {pass}\nq: f16 [2,4,128,64]\nsink: yes\n");
        let sink = if pass == "backward" { sink + "d_sink: yes" } else { sink };
        assert_eq!(operands(&sink, Role::Sink), ([4, 1, 1, 1], DType::F32), "{pass}");
    }
    let sink = "pass: backward\nq: f16 [2,4,128,64]\nsink: yes\nd_sink: yes";
    assert_eq!(operands(sink, Role::DSink), ([4, 1, 1, 1], DType::F32));
}

/// The difference between the numbers of keys and queries is a number if the dims give it.
#[test]
fn lengths_in_the_dims_are_numbers_in_the_canonical_form() {
    let score = |keys: &str, more: &str| {
        let given = format!("q: f16 [1,2,100,64]\nk: [1,2,300,64]\nscore_mod: score + float({keys}){more}");
        validate(text::parse(&given).expect("an attention")).expect("sound").get().score_mod.clone()
    };
    let ahead = "key_len - query_len";
    assert_eq!(score(ahead, ""), score("200", ""));
    assert_eq!(score("query_len - key_len", ""), score("-200", ""));
    let per_sequence = "\nlengths: per-sequence";
    assert_ne!(score(ahead, per_sequence), score("200", per_sequence));
}

fn found(a: Attention) -> Vec<String> {
    let reasons = validate(a).err().into_iter().flat_map(|r| r.reasons().to_vec());
    reasons.map(|r| format!("{} {}", r.code, r.field)).collect()
}

/// A dim that cannot be counted is compared with nothing: not with heads, other dims or bounds of a mask.
#[test]
fn an_invalid_dim_is_reported_once() {
    let change = |change: fn(&mut Attention)| {
        let mut a = Attention::bshd(4, (4, 2), (8, 8), 16, DType::F16);
        change(&mut a);
        found(a)
    };
    assert_eq!(change(|a| a.q.dims[1] = -1), ["tensor.dims q.dims"]);
    assert_eq!(change(|a| a.k.dims[1] = -3), ["tensor.dims k.dims"]);
    assert_eq!(change(|a| a.q.dims[2] = i64::MAX), ["tensor.dims-limit q.dims"]);
    assert_eq!(change(|a| a.k.dims[2] = i64::MAX), ["tensor.dims-limit k.dims"]);
    let masked = |axis: fn(&mut Attention) -> &mut i64| {
        let mut a = text::parse("q: f16 [1,1,8,16]\nmask_mod: key <= query").expect("an attention");
        assert_eq!(found(a.clone()), [""; 0]);
        *axis(&mut a) = -9;
        found(a)
    };
    assert_eq!(masked(|a| &mut a.k.dims[2]), ["tensor.dims k.dims"]);
    assert_eq!(masked(|a| &mut a.q.dims[2]), ["tensor.dims q.dims"]);
    // Room for more tokens than bytes can be counted, although the declared view is small.
    let tokens = |tokens: i64| {
        let q = Tensor::bshd(2, 2, 8, 16, DType::F16);
        let varlen = Tensor { storage: Storage::Varlen { tokens }, ..q };
        found(Attention::forward(varlen, varlen, varlen, varlen).with_lengths())
    };
    assert_eq!(tokens(99), [""; 0]);
    assert_eq!(tokens(1 << 60), ["q", "k", "v", "o"].map(|t| format!("tensor.span {t}.strides")));
}

/// A backward with block scales reads dO twice, and both are checked.
#[test]
fn the_second_gradient_of_the_output_is_checked_like_the_first() {
    let change = |change: fn(&mut Tensor)| {
        let mut forward = Attention::bshd(2, (4, 2), (64, 64), 64, DType::E4M3).with_stats();
        (forward.fp8, forward.o.dtype) = (Some(Fp8::Block), DType::BF16);
        let mut a = forward.backward(BackwardOptions { d_o: Some(forward.q), ..BackwardOptions::default() });
        let Pass::Backward(Gradients { d_o_half: Some(half), .. }) = &mut a.pass else { panic!("a second dO") };
        change(half);
        found(a)
    };
    assert_eq!(change(|_| {}), [""; 0]);
    assert_eq!(change(|half| half.strides = [1; 4]), [""; 0]);
    assert_eq!(change(|half| half.dims[1] = 0), ["tensor.dims d_o_half.dims"]);
    assert_eq!(change(|half| half.dims[1] = 5), ["shape.mismatch d_o_half.dims[1]"]);
    assert_eq!(change(|half| half.dtype = DType::E4M3), ["dtype.gradient d_o_half.dtype"]);
}
