//! Varlen and paged operands: both sides of every bound on versions, GPUs and sizes.

use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, Profile, Target, lower, refusals};
use qkvault_graph::{CudnnVersion, LibrarySet, Origin, Reason, text, validate};

fn target(gpu: &str, cudnn: CudnnVersion) -> Target {
    Profile::named(gpu).expect("built in").target(cudnn, LibrarySet::Slim)
}

fn reasons(given: &str, target: &Target) -> Vec<Reason> {
    let valid = validate(text::parse(given).expect("an attention")).expect("sound");
    refusals(&valid, target, &CompileOptions::default())
}

/// Codes of the refusal.
fn codes(given: &str, target: &Target) -> Vec<String> {
    reasons(given, target).into_iter().map(|r| r.code.to_string()).collect()
}

const PACKED: &str = "k: [2,4,64,64] varlen tokens 99\nlengths: per-sequence";

/// The version before a given one: its last patch, or the last of the minor version before.
fn before(CudnnVersion { major, minor, patch }: CudnnVersion) -> CudnnVersion {
    match patch {
        0 => CudnnVersion { major, minor: minor - 1, patch: 99 },
        _ => CudnnVersion { major, minor, patch: patch - 1 },
    }
}

#[test]
fn features_are_refused_up_to_the_version_before_their_first() {
    let paged = "k: [2,4,256,64] paged 16 x 64\nlengths: per-sequence";
    let wide_v = "k: [2,4,256,64] paged 16 x 64\nv: [2,4,256,136] paged 16 x 64\nlengths: per-sequence";
    let cases = [
        ("storage.paged-old", "h200", (5, 0), format!("q: f16 [2,4,8,64]\n{paged}")),
        ("storage.paged-varlen", "h200", (7, 0), format!("q: f16 [2,4,8,64] varlen tokens 9\n{paged}")),
        ("storage.paged-head-dim", "h200", (9, 1), format!("q: f16 [2,4,8,64]\no: [2,4,8,136]\n{wide_v}")),
        ("storage.varlen-sm", "a100", (18, 1), format!("q: f16 [2,4,64,64] varlen tokens 99\n{PACKED}")),
        ("storage.varlen-sink", "h200", (26, 0), format!("pass: backward\nq: f16 [2,4,64,64] varlen tokens 99\nsink: yes\n{PACKED}")),
        (
            "storage.varlen-heads",
            "h200",
            (6, 0),
            "pass: backward\nq: f16 [2,4,64,64] varlen tokens 99\nk: [2,2,64,64] varlen tokens 99\nlengths: per-sequence".to_owned(),
        ),
    ];
    for (code, gpu, (minor, patch), given) in cases {
        let first = CudnnVersion::v9(minor, patch);
        let found = reasons(&given, &target(gpu, before(first)));
        let reason = found.iter().find(|r| r.code.as_str() == code).unwrap_or_else(|| panic!("{code}: {found:?}"));
        assert_eq!((reason.origin, reason.since), (Origin::Rule, Some(first)), "{code}");
        assert!(!codes(&given, &target(gpu, first)).contains(&code.to_owned()), "{code}");
    }
}

#[test]
fn paged_rows_are_wide_by_the_longer_of_keys_and_values() {
    let old = target("h200", CudnnVersion::v9(9, 0));
    let wide = |d_qk: i64, d_v: i64| {
        let given = format!(
            "q: f16 [2,4,8,{d_qk}]\no: [2,4,8,{d_v}]\nk: [2,4,256,{d_qk}] paged 16 x 64\n\
             v: [2,4,256,{d_v}] paged 16 x 64\nlengths: per-sequence"
        );
        codes(&given, &old).contains(&"storage.paged-head-dim".to_owned())
    };
    assert_eq!([(128, 128), (129, 64), (64, 129), (192, 128)].map(|(k, v)| wide(k, v)), [false, true, true, true]);
}

#[test]
fn a_varlen_backward_with_equal_numbers_of_heads_has_no_groups() {
    let old = target("h200", CudnnVersion::v9(5, 0));
    let grouped = |h_k: i64, h_v: i64| {
        let given = format!(
            "pass: backward\nq: f16 [2,4,64,64] varlen tokens 99\nk: [2,{h_k},64,64] varlen tokens 99\n\
             v: [2,{h_v},64,64] varlen tokens 99\nlengths: per-sequence"
        );
        codes(&given, &old).contains(&"storage.varlen-heads".to_owned())
    };
    assert_eq!([(4, 4), (2, 4), (4, 2), (2, 2)].map(|(k, v)| grouped(k, v)), [false, true, true, true]);
}

/// Ampere, Ada and consumer Blackwell, since the version that supports varlen forwards there.
#[test]
fn varlen_backwards_before_hopper_and_on_consumer_gpus_are_refused() {
    let given = |q: &str| format!("pass: backward\nq: f16 [2,4,64,64]{q}\ndeterministic: yes\n{PACKED}");
    let (varlen, first) = (given(" varlen tokens 99"), CudnnVersion::v9(18, 1));
    let both = ["storage.varlen-stats", "storage.varlen-deterministic"];
    let on = |gpu: &str, sm: i64, cudnn, given: &str| {
        let mut target = target(gpu, cudnn);
        target.device.device_ver = sm * 10;
        codes(given, &target).into_iter().filter(|c| both.contains(&c.as_str())).collect::<Vec<_>>()
    };
    for (gpu, sm) in [("a100", 80), ("l40s", 89), ("rtx-pro-6000", 120), ("rtx-pro-6000", 121)] {
        assert_eq!(on(gpu, sm, first, &varlen), both, "{sm}");
        assert_eq!(on(gpu, sm, first, &given("")), both[1..], "{sm}: dense queries have dense Stats");
        assert_eq!(on(gpu, sm, before(first), &varlen), [""; 0], "{sm}");
    }
    for (gpu, sm) in [("h200", 90), ("b200", 100), ("b200", 103), ("rtx-pro-6000", 119)] {
        assert_eq!(on(gpu, sm, first, &varlen), [""; 0], "{sm}");
    }
    let found = reasons(&varlen, &target("a100", first));
    assert!(found.iter().filter(|r| both.contains(&r.code.as_str())).all(|r| r.origin == Origin::Rule));
}

/// With grouped heads, cuDNN writes Stats only for the first head of each group.
#[test]
fn varlen_stats_of_one_query_are_refused_only_if_they_are_wrong() {
    let refused = |q: &str, k: &str, more: &str, minor: u16, patch: u16| {
        let given = format!("{more}q: f16 {q}\nk: {k}\nlengths: per-sequence");
        let cudnn = CudnnVersion { patch, ..CudnnVersion::v9(minor, 0) };
        codes(&given, &target("h200", cudnn)).contains(&"storage.varlen-one-query-stats".to_owned())
    };
    let (q, k, stats) = ("[2,4,1,64] varlen tokens 2", "[2,2,64,64] varlen tokens 99", "outputs: stats\n");
    assert!(refused(q, k, stats, 26, 0) && refused(q, k, stats, 27, 0));
    // Reported of 9.26 and 9.27; an H100 showed it under 9.19.
    assert!(refused(q, k, stats, 19, 0) && refused(q, k, stats, 14, 0));
    assert!(!refused(q, k, "", 27, 0), "no Stats");
    assert!(!refused(q, "[2,4,64,64] varlen tokens 99", stats, 27, 0), "no groups");
    assert!(!refused("[2,4,2,64] varlen tokens 4", k, stats, 27, 0), "two queries");
    assert!(!refused("[2,4,1,64]", k, stats, 27, 0), "dense queries");
    assert!(!refused(q, k, "pass: backward\n", 27, 0), "a backward reads them");
}

/// Kernels for several queries look up the pages of whole tiles.
#[test]
fn tables_of_pages_end_at_whole_tiles_for_several_queries() {
    let refused = |q: i64, keys: i64, page: i64| {
        let given = format!("q: f16 [2,4,{q},64]\nk: [2,4,{keys},64] paged 99 x {page}\nlengths: per-sequence");
        let found = reasons(&given, &target("h200", CudnnVersion::v9(19, 0)));
        let given = found.iter().filter(|r| r.code == codes::STORAGE_PAGED_TILE).map(|r| r.given.clone());
        let of = |given: String| ["K", "V"].map(|name| given.contains(&format!(" of {name} in ")));
        given.map(of).collect::<Vec<_>>()
    };
    // Reported once, for keys and values.
    let both = [[true, true]];
    assert_eq!(refused(8, 192, 64), both);
    assert_eq!(refused(2, 129, 1), both);
    assert_eq!(refused(8, 100, 64), [[true; 2]; 0], "two pages are a tile");
    for (q, keys, page) in [(1, 192, 64), (8, 256, 64), (8, 128, 1), (8, 300, 128)] {
        assert_eq!(refused(q, keys, page), [[true; 2]; 0], "{q} {keys} {page}");
    }
}

/// The engine for one query counts keys wrongly beyond 256, and over pages for any number.
#[test]
fn one_query_excludes_the_engine_that_counts_wrongly_from_257_keys_on() {
    let avoided = |k: &str, more: &str| {
        let given = format!("q: f16 [1,2,1,64]\nk: {k}\n{more}");
        let valid = validate(text::parse(&given).expect("an attention")).expect("sound");
        let target = target("h200", CudnnVersion::v9(19, 0));
        !lower(&valid, &target, &CompileOptions::default()).expect("it is lowered").excluded_engines.is_empty()
    };
    for more in ["mask_mod: key % 2 == 0", "dropout: philox 0.5"] {
        assert_eq!([256, 257].map(|keys| avoided(&format!("[1,2,{keys},64]"), more)), [false, true], "{more}");
        assert!(avoided("[1,2,128,64] paged 9 x 128", &format!("{more}\nlengths: per-sequence")), "{more}");
    }
    assert!(!avoided("[1,2,257,64]", "mask_mod: query < 5"), "9.19 counts the query rightly");
    // Heads that share keys have the same index.
    let head = "score_mod: score + float(head)";
    assert_eq!(["[1,2,64,64]", "[1,1,64,64]"].map(|k| avoided(k, head)), [false, true]);
}
