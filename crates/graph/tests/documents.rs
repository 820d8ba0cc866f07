//! The varlen equivalent of attentions with documents, and every reason why one does not exist.

use qkvault_graph::expr::{library, parse_expr};
use qkvault_graph::{
    Attention, BackwardOptions, Band, Batch, CuSeqlens, DType, Documents, Lengths, Order, Refusal, Storage, Tensor,
    Valid, text, validate,
};

const BOUNDS: Documents = Documents { longest: 30, most: 8 };

fn dense() -> Attention {
    let mask = library::document_mask("of_query", "of_key", 2, 64, 64).build_mask_mod().expect("a predicate");
    Attention::bshd(2, (4, 2), (64, 64), 16, DType::BF16).with_mask_mod(mask).with_stats()
}

fn varlen(a: Attention, bounds: Documents) -> Result<Valid, Refusal> {
    validate(a).unwrap_or_else(|e| panic!("{e}")).varlen_documents(bounds)
}

/// The codes of a refusal.
fn codes(a: Attention, bounds: Documents) -> Vec<String> {
    let refusal = varlen(a, bounds).expect_err("no equivalent");
    let reasons = refusal.reasons();
    assert!(reasons.iter().all(|r| !r.given.is_empty() && !r.needed.is_empty() && !r.fix.is_empty()), "{refusal}");
    reasons.iter().map(|r| r.code.to_string()).collect()
}

fn scored(expression: &str) -> Attention {
    dense().with_score_mod(parse_expr(expression).unwrap_or_else(|e| panic!("{expression}: {e}")))
}

#[test]
fn the_varlen_form_has_the_same_memory_and_lengths_of_whole_tiles() {
    let a = varlen(dense().with_band(Band::CAUSAL), BOUNDS).expect("there is one");
    assert_eq!(a.q, Tensor::thd(8, 4, 128, 16, 128, DType::BF16));
    assert_eq!((a.k, a.o), (Tensor::thd(8, 2, 128, 16, 128, DType::BF16), a.q));
    assert_eq!((a.mask.band, a.mask.lengths, &a.mask.mask_mod), (Some(Band::CAUSAL), Lengths::PerSequence, &None));
    assert_eq!(a.row_tensor().storage, Storage::Varlen { tokens: 128 });
    // Parts of one buffer stay parts.
    let [q, k, v] = Tensor::parts::<3>(Order::Bshd, qkvault_graph::Interleave::Parts, [2, 4, 64, 16], DType::BF16);
    let mut parts = dense();
    (parts.q, parts.k, parts.v) = (q.tensor, k.tensor, v.tensor);
    let a = varlen(parts, BOUNDS).expect("there is one");
    assert_eq!((a.q.strides, a.q.storage), ([128 * 192, 16, 192, 1], Storage::Varlen { tokens: 128 }));
    // The printed text parses to the same attention, and other documents give another plan.
    assert_eq!(validate(text::parse(&text::print(&a)).expect("reads")).expect("sound"), a);
    let more = varlen(dense(), Documents { most: 9, ..BOUNDS }).expect("there is one");
    assert_ne!(more.key(), a.key());
}

#[test]
fn the_backward_of_the_varlen_form_is_the_varlen_backward() {
    let forward = validate(dense()).expect("sound");
    for deterministic in [false, true] {
        let options = BackwardOptions { deterministic, ..BackwardOptions::default() };
        let one = validate(forward.varlen_documents(BOUNDS).expect("there is one").backward(options)).expect("sound");
        let other = varlen(forward.backward(options), BOUNDS).expect("there is one");
        assert_eq!(one, other);
    }
}

#[test]
fn attentions_without_a_varlen_equivalent_are_refused_with_the_reason() {
    let with = |change: fn(&mut Attention)| {
        let mut a = dense();
        change(&mut a);
        a
    };
    let ids = "tensor @q: i32[2, 1, 64, 1]; tensor @k: i32[2, 1, 1, 64]";
    let cases: Vec<(Attention, &str)> = vec![
        (with(|a| a.mask.mask_mod = None), "documents.mask"),
        (with(|a| a.mask.mask_mod = parse_expr("query % 2 == key % 2").ok()), "documents.mask"),
        (dense().with_mask_mod(parse_expr(&format!("{ids}; @q == @k | key < 4")).expect("reads")), "documents.mask"),
        (
            dense().with_mask_mod(parse_expr(&format!("{ids}; @q == @k & key % 3 == 0")).expect("reads")),
            "documents.position",
        ),
        (scored("score + float(key)"), "documents.position"),
        (scored("select(query < 10, score, score * 0.5)"), "documents.position"),
        (scored("score * float(batch + 1)"), "documents.batch"),
        (scored("score / float(key_len)"), "documents.length"),
        (scored("tensor @bias: bf16[1, 4, 64, 64]; score + @bias"), "documents.tensor"),
        (scored("tensor @bias: f32[2, 4, 1, 1]; score + @bias"), "documents.tensor"),
        (with(|a| a.mask.lengths = Lengths::PerSequence), "documents.lengths"),
        (dense().with_dropout(0.1), "documents.dropout"),
        (with(|a| a.block_mask = true), "documents.block-mask"),
        (with(|a| a.q = Tensor::bhsd(2, 4, 64, 16, DType::BF16)), "documents.rows"),
        (with(|a| a.k = Tensor::sbhd(2, 2, 64, 16, DType::BF16)), "documents.rows"),
    ];
    for (a, code) in cases {
        let told = a.to_string();
        assert_eq!(codes(a, BOUNDS), [code], "{told}");
    }
    let mut cross = dense();
    let mask = library::document_mask("of_query", "of_key", 2, 64, 32).build_mask_mod().expect("a predicate");
    (cross.k, cross.v) = (Tensor::bshd(2, 2, 32, 16, DType::BF16), Tensor::bshd(2, 2, 32, 16, DType::BF16));
    assert_eq!(codes(cross.with_mask_mod(mask), BOUNDS), ["documents.square"]);
    // All at once.
    let mut all = scored("score * float(batch + 1) + float(key)").with_dropout(0.1);
    all.q = Tensor::bhsd(2, 4, 64, 16, DType::BF16);
    let found = codes(all, Documents { longest: 65, most: 1 });
    for code in ["batch", "position", "dropout", "rows", "longest"] {
        assert!(found.contains(&format!("documents.{code}")), "{code}: {found:?}");
    }
}

#[test]
fn impossible_bounds_on_documents_are_refused() {
    for (longest, most, code) in [
        (0, 8, "documents.longest"),
        (65, 8, "documents.longest"),
        // Two rows of 64 tokens have at least three documents of up to 30 tokens each.
        (30, 5, "documents.most"),
        (30, 129, "documents.most"),
    ] {
        assert_eq!(codes(dense(), Documents { longest, most }), [code], "{longest} {most}");
    }
    assert!(varlen(dense(), Documents { longest: 30, most: 6 }).is_ok());
    assert!(varlen(dense(), Documents { longest: 64, most: 2 }).is_ok());
}

#[test]
fn documents_in_two_places_are_refused_before_a_launch() {
    let most = Batch::new(4).expect("a count");
    let lengths = |ids: &[i32], row| CuSeqlens::from_documents(ids, row, most).map(|c| c.lengths().collect::<Vec<_>>());
    // The end of a row ends a document, whatever its id.
    assert_eq!(lengths(&[5, 5, 1, 1, 1, 1], 3).expect("contiguous"), [2, 1, 3, 0]);
    for (ids, row, code) in [
        (&[5, 1, 5][..], 3, "documents.split"),
        (&[5, 1], 3, "documents.ids"),
        (&[], 3, "documents.ids"),
        (&[5, 1], 0, "documents.ids"),
        (&[1, 2, 3, 4, 5], 5, "documents.count"),
    ] {
        let refusal = lengths(ids, row).expect_err("not documents");
        assert!(refusal.has(&code.into()), "{ids:?}: {refusal}");
    }
}
