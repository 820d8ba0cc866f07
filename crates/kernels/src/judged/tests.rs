//! What a GPU has judged follows from sources and right cases, and is that of today's sources.

use super::*;
use qkvault_graph::{Attention, Band, DType, Tensor, validate};

fn decode() -> Valid {
    let mut a =
        Attention::bshd(2, (8, 2), (1, 512), 64, DType::BF16).with_lengths().with_band(Band::CAUSAL_BOTTOM_RIGHT);
    a.k = Tensor::paged_nhd(2, 2, 512, 64, 16, 64, DType::BF16);
    a.v = a.k;
    validate(a).expect("valid")
}

/// Who changes a kernel runs the self-test on a GPU; until then the kernels are taken by name only.
#[test]
fn the_sources_of_today_are_those_that_a_gpu_judged() {
    let Judged { attention, invariant, drafts, gather, narrow, lists } = Judged::built_in();
    let all = [
        ("kernels", attention, Own::Usual.digest()),
        ("kernels", invariant, Own::Invariant.digest()),
        ("kernels", drafts, Own::Drafts.digest()),
        ("kernels", gather, Own::Gather.digest()),
        ("kernels", narrow, Own::Narrow.digest()),
        ("fa4", lists, digest(&LISTS, &[])),
    ];
    for (what, judged, sources) in all {
        assert_eq!(
            judged.sources, sources,
            "run `qkvault-lab selftest --engine {what} --judged crates/kernels/data/judged.json` on a GPU"
        );
        // Paths that few cases took are taken by name.
        assert!(what == "fa4" || judged.right.get("pages").is_some_and(|n| *n >= ENOUGH), "{:?}", judged.right);
    }
    assert_eq!(unproven(&decode()), None);
    let invariant = (*decode()).clone().invariant();
    assert_eq!(unproven(&validate(invariant).expect("valid")), None);
}

/// Code that drafts alone have changes nothing for others, and is judged for itself.
#[test]
fn a_tree_of_drafts_is_judged_apart_from_other_attentions() {
    let mut a = (*decode()).clone();
    a.draft_tree = true;
    let a = validate(a).expect("valid");
    assert_eq!(unproven(&a), None);
    let mut judged = Judged::default();
    judged.add("a GPU", std::iter::repeat_n(&a, 20), false);
    assert_eq!((judged.drafts.right.get("pages"), judged.attention.right.len()), (Some(&20), 0));
    assert_ne!(Own::Drafts.digest(), Own::Usual.digest());
}

/// Kernels that copy tiles row by row have a record of their own, whatever else they do; others have the digests that
/// they would have without.
#[test]
fn copies_row_by_row_are_judged_apart_from_other_attentions() {
    let over = |page: i64| {
        let mut a = (*decode()).clone();
        a.k = Tensor::paged_nhd(2, 2, 512, 64, 1024 / page, page, DType::BF16);
        a.v = a.k;
        a
    };
    for (page, own) in [(1, Own::Gather), (8, Own::Gather), (24, Own::Gather), (16, Own::Usual), (48, Own::Usual)] {
        assert_eq!(Own::of_attention(&validate(over(page)).expect("valid")), own, "pages of {page}");
    }
    let mut drafts = over(4);
    drafts.draft_tree = true;
    let all = [over(4), over(4).invariant(), drafts].map(|a| validate(a).expect("valid"));
    let mut judged = Judged::default();
    judged.add("a GPU", all.iter().cycle().take(60), false);
    let Judged { attention, invariant, drafts, gather, narrow, lists: _ } = &judged;
    let of = |path: &str| gather.right.get(path).copied();
    assert_eq!(
        (of("small pages"), of("invariant"), of("drafts"), of("lengths")),
        (Some(60), Some(20), Some(20), Some(60))
    );
    assert!([attention, invariant, drafts, narrow].iter().all(|judged| judged.right.is_empty()));
    assert!(all.iter().all(|a| unproven(a).is_none()));
    let (with, without) = ("#if GATHER\nint c;\n#else\nint a;\n#endif\nint b;\n", "int a;\nint b;\n");
    assert_eq!(digest(&[with], &[]), digest(&[without], &[]));
    assert_eq!(digest(&[with], &[GATHER]), digest(&["int c;\nint b;\n"], &[]));
    assert_eq!(digest(&[generate::GATHER], &[]), digest(&[], &[]), "nothing of it is code of others");
}

#[test]
fn a_path_without_right_cases_is_not_judged_nor_one_of_other_sources() {
    let a = decode();
    assert_eq!(paths(&a), ["pages", "lengths"]);
    let mut judged = Judged::default();
    judged.add("a GPU", std::iter::repeat_n(&a, 20), false);
    let JudgedSources { sources, right, .. } = &judged.attention;
    assert_eq!(right.get("pages"), Some(&20));
    assert!(!judged.attention.why_not(sources, "pages") && judged.attention.why_not(sources, "sink"));
    assert!(judged.attention.why_not("other", "pages"));
    "other".clone_into(&mut judged.attention.sources);
    judged.add("a GPU", std::iter::once(&a), false);
    assert_eq!(judged.attention.right.get("pages"), Some(&1), "what other sources did counts nothing");
}

#[test]
fn comments_are_no_code_and_code_is() {
    let one = digest(&["int a; // why\n\n  // more\nint b;\n"], &[]);
    assert_eq!(one, digest(&["int a;\nint b;"], &[]));
    assert_ne!(one, digest(&["int a;\nint c;"], &[]));
    let both = "#if INVARIANT\n#if OTHER\nint c;\n#else\nint d;\n#endif\n#else\nint a;\n#endif\nint b;\n";
    assert_eq!(one, digest(&[both], &[]), "what an invariant attention has is no code of others");
    assert_eq!(one, digest(&[both], &[DRAFTS]));
    assert_eq!(digest(&["#if OTHER\nint c;\n#else\nint d;\n#endif\nint b;\n"], &[]), digest(&[both], &[SPANS]));
}

#[test]
fn lists_are_a_path_of_attentions_with_a_predicate() {
    use qkvault_graph::expr::library;
    let plain = Attention::bshd(1, (2, 2), (512, 512), 64, DType::BF16);
    let ids = library::document_mask("q", "k", 1, 512, 512).build_mask_mod().expect("builds");
    let documents = plain.clone().with_mask_mod(ids);
    let path = |a: Attention| list_path(&validate(a).expect("valid"));
    assert_eq!(path(plain), None);
    assert_eq!(path(documents.clone()), Some("predicate, forward"));
    assert_eq!(path(documents.with_stats().backward(Default::default())), Some("predicate, backward"));
}
