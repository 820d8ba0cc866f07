//! Lists that follow from a description beside their definition, and which masks have them.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::expr::{PointContext, ScoreExpr, Value, library};
use qkvault_graph::{Attention, Band, Corner, DType, Valid, validate};

use super::*;

fn masked(lengths: (i64, i64), mask: &str, band: Option<Band>) -> Valid {
    let mask: ScoreExpr = mask.parse().unwrap_or_else(|error| panic!("{mask}: {error}"));
    let mut a = Attention::bshd(2, (3, 3), lengths, 16, DType::BF16).with_mask_mod(mask);
    a.mask.band = band;
    validate(a).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Tiles that are cut, and tiles that are whole, of each line, by definition.
fn expected(a: &Valid, layout: &ListsLayout, tiles: ScoreTiles) -> Vec<[Vec<i32>; 2]> {
    let (s_q, s_kv) = a.seq();
    let mask = a.mask.mask_mod.as_ref().expect("a predicate").program();
    let seen = |at: [i64; 4]| {
        let lengths = [s_q as i32, s_kv as i32];
        let at_point = PointContext { at: at.map(|n| n as i32), lengths, ..PointContext::default() };
        let kept = a.mask.band.is_none_or(|band| band.keeps(at[2], at[3], s_q, s_kv));
        kept && mask.eval(&at_point).expect("it reads nothing") == Value::Bool(true)
    };
    let line = |line: i64| {
        let (batch, head, row) =
            (line / (layout.heads * layout.rows), line / layout.rows % layout.heads, line % layout.rows);
        let mut lists = [Vec::new(), Vec::new()];
        for column in 0..layout.columns {
            let (q, k) = if tiles.by_keys { (column, row) } else { (row, column) };
            let queries = q * tiles.queries..((q + 1) * tiles.queries).min(s_q);
            let keys = k * tiles.keys..((k + 1) * tiles.keys).min(s_kv);
            let truths: Vec<bool> =
                queries.flat_map(|q| keys.clone().map(move |k| [batch, head, q, k])).map(seen).collect();
            if truths.contains(&true) {
                lists[usize::from(!truths.contains(&false))].push(column as i32);
            }
        }
        lists
    };
    (0..layout.lines()).map(line).collect()
}

/// The lists in some bytes.
fn read(layout: &ListsLayout, bytes: &[u8]) -> Vec<[Vec<i32>; 2]> {
    let number = |list: usize, place: i64| {
        let at = layout.at[list] as usize + place as usize * 4;
        i32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"))
    };
    let list = |list: usize, line: i64| {
        (0..i64::from(number(list, line))).map(|n| number(list + 1, line * layout.columns + n)).collect()
    };
    (0..layout.lines()).map(|line| [list(0, line), list(2, line)]).collect()
}

fn check(a: &Valid, tiles: ScoreTiles) {
    let known = KnownLists::for_attention(a, tiles).unwrap_or_else(|| panic!("{a}: not known"));
    let bytes = known.bytes();
    assert_eq!(read(&known.layout, &bytes), expected(a, &known.layout, tiles), "{a}, {tiles:?}");
    assert!(known.may_be(&bytes), "{a}");
    let made = BlockLists::for_attention(a, tiles, 0).expect("lists of a launch");
    assert_eq!(made.layout, known.layout, "both have one layout");
}

#[test]
fn lists_in_a_plan_are_those_of_their_definition() {
    let window = Band { corner: Corner::BottomRight, left: Some(50), right: Some(3) };
    for mask in [
        "key < 40 | key <= query",
        "(query - key) % 3 == 0 & abs(query - key) < 60",
        "query - key < 30 | key < 4",
        "query // 32 == key // 32",
        "query // 16 >= key // 16 & floor_rem(key, 48) < 30",
        "(key + head * 7) % 5 != 0 | key <= query",
        "select(batch == 1, key <= query, query - key < 9)",
        "key_len - key > 8 & query_len - query != 5",
        "key * key % 7 != 3",
    ] {
        for (lengths, by_keys, band) in [
            ((150, 230), false, None),
            ((150, 230), true, Some(Band::CAUSAL_BOTTOM_RIGHT)),
            ((97, 64), true, None),
            ((1, 130), false, None),
            ((130, 130), false, Some(window)),
        ] {
            check(&masked(lengths, mask, band), ScoreTiles { queries: 64, keys: 32, by_keys });
        }
    }
}

#[test]
fn lists_of_random_predicates_of_places_are_those_of_their_definition() {
    let numbers = ["key", "query - 20", "3", "-4", "key - query", "0", "2147483647"];
    let mut list: Vec<ScoreExpr> = Vec::new();
    for op in ["+", "-", "*", "//", "%"] {
        let pairs = numbers.iter().flat_map(|a| numbers.map(|b| format!("({a}) {op} ({b}) < key - 9")));
        list.extend(pairs.filter_map(|text| text.parse().ok()));
    }
    for (a, b) in numbers.iter().flat_map(|a| numbers.map(|b| (*a, b))) {
        list.extend(format!("floor_rem({a}, {b}) == max({a}, {b}) | abs({b}) > -({a})").parse().ok());
    }
    let features = Features { mask_mod: true, ..Features::NONE };
    let space = Space { batch: 2, heads: 3, seq: 48, head_dim: 16, features };
    let (mut runner, strategy) = (TestRunner::deterministic(), attention(space));
    let drawn = std::iter::repeat_with(|| strategy.new_tree(&mut runner).expect("a value").current());
    let masks = drawn.take(3000).filter_map(|a| a.mask.mask_mod);
    list.extend(masks.filter(|e| e.scalars().is_empty() && e.tensors().is_empty()));
    let mut tried = 0;
    for (n, mask) in list.into_iter().enumerate() {
        let mut a = Attention::bshd(2, (3, 3), (40, 48), 16, DType::BF16).with_mask_mod(mask);
        if n % 3 == 0 {
            a.mask.band = Some(Band::CAUSAL_BOTTOM_RIGHT);
        }
        let Ok(a) = validate(a) else { continue };
        let tiles = ScoreTiles { queries: 16, keys: 24, by_keys: n % 2 == 0 };
        if KnownLists::for_attention(&a, tiles).is_some() {
            check(&a, tiles);
            tried += 1;
        }
    }
    assert!(tried >= 100, "{tried} predicates");
}

#[test]
fn masks_that_read_something_of_a_launch_have_no_lists_in_a_plan() {
    let tiles = ScoreTiles { queries: 128, keys: 128, by_keys: false };
    let known = |a: &Valid| KnownLists::for_attention(a, tiles).is_some();
    assert!(known(&masked((300, 300), "key < 40 | key <= query", None)));
    for mask in [
        "scalar $n: int; key < $n | key <= query",
        "tensor @k: i32[1, 1, 1, 300]; @k == 1 | key <= query",
        // What a GPU rounds is for a GPU to say.
        "float(key) * 0.3 < float(query)",
    ] {
        assert!(!known(&masked((300, 300), mask, None)), "{mask}");
    }
    let mut blocks = masked((300, 300), "key < 40 | key <= query", None).into_inner();
    blocks.block_mask = true;
    assert!(!known(&validate(blocks).expect("valid")));
    let plain = validate(Attention::bshd(2, (3, 3), (300, 300), 16, DType::BF16).causal()).expect("valid");
    assert!(!known(&plain) && BlockLists::for_attention(&plain, tiles, 0).is_none(), "a band needs none");
}

#[test]
fn lists_beyond_a_mebibyte_are_made_at_each_launch() {
    let tiles = ScoreTiles { queries: 128, keys: 128, by_keys: false };
    let lists = |seq: i64, mask: &str| {
        let a = masked((seq, seq), mask, None);
        (KnownLists::for_attention(&a, tiles).map(|known| known.layout.end), BlockLists::for_attention(&a, tiles, 0))
    };
    let (known, _) = lists(32 << 10, "query - key < 1000 & query >= key | key < 4");
    assert_eq!(known, Some(2 * (256 * 4 + 256 * 256 * 4)));
    for (seq, mask) in [(64 << 10, "query - key < 1000 | key < 4"), (32 << 10, "query - key < 1000 + head | key < 4")] {
        let (known, made) = lists(seq, mask);
        assert!(known.is_none() && made.is_some(), "{mask}");
    }
}

#[test]
fn bytes_that_are_no_lists_are_refused() {
    let a = masked((300, 300), "query - key < 140 & query >= key | key < 4", None);
    let tiles = ScoreTiles { queries: 64, keys: 64, by_keys: false };
    let known = KnownLists::for_attention(&a, tiles).expect("known");
    let good = known.bytes();
    let with = |list: usize, place: usize, number: i32| {
        let (mut bytes, at) = (good.clone(), known.layout.at[list] as usize + place * 4);
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        known.may_be(&bytes)
    };
    assert!(known.may_be(&good) && !known.may_be(&good[1..]) && !known.may_be(&[]));
    assert!(!with(0, 0, 6) && !with(0, 0, -1) && !with(2, 4, i32::MAX), "more tiles than there are");
    assert!(!with(1, 0, 5) && !with(1, 0, -1), "a tile beyond the last");
    assert!(!with(3, 4 * 5, i32::MIN) || !with(1, 4 * 5 + 1, 0), "numbers rise");
}

#[test]
fn a_mask_of_an_element_for_each_score_is_looked_at_by_a_block_for_each_tile() {
    let tiles = ScoreTiles { queries: 128, keys: 128, by_keys: false };
    let lists = |mask: &str| BlockLists::for_attention(&masked((300, 500), mask, None), tiles, 0).expect("lists");
    let names = |lists: &BlockLists| -> Vec<(String, [u32; 3], bool)> {
        lists.launches.iter().map(|launch| (launch.function.clone(), launch.grid, launch.overlap)).collect()
    };
    let dense = lists("tensor @m: i32[2, 1, 300, 500]; @m == 1");
    assert_eq!(names(&dense), [("look".to_owned(), [12, 1, 2], false), ("blocks".to_owned(), [3, 1, 2], true)]);
    assert!(dense.source.contains("#define KEYS_AT_ONCE 4") && dense.source.contains("const uint4 x = __ldg("));
    assert_eq!(dense.end, dense.layout.end.next_multiple_of(SCRATCH_ALIGNMENT) + 2 * 3 * 4);
    let rows = lists("tensor @m: i32[2, 1, 300, 1]; @m == 1 | key <= query");
    assert_eq!(names(&rows), [("blocks".to_owned(), [3, 1, 2], false)]);
    let odd = masked((300, 501), "tensor @m: i32[1, 1, 300, 501]; @m == 1", None);
    let odd = BlockLists::for_attention(&odd, tiles, 0).expect("lists");
    assert!(odd.source.contains("#define KEYS_AT_ONCE 1"), "rows that begin anywhere are read one by one");
    let documents = library::document_mask("of_query", "of_key", 2, 300, 500).build_mask_mod().expect("a predicate");
    let documents = Attention::bshd(2, (3, 3), (300, 500), 16, DType::BF16).with_mask_mod(documents);
    let documents = BlockLists::for_attention(&validate(documents).expect("valid"), tiles, 0).expect("lists");
    assert_eq!(documents.launches.len(), 1);
}
