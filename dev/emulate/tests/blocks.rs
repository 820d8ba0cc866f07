//! Lists of tiles of scores on a CPU: the kernels that make them for a mask, beside the mask's definition, and beside
//! lists that follow from the description.

use std::collections::BTreeMap;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use qkvault_emulate::HostProgram;
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::expr::{Expr, PointContext, ScoreExpr, Value, head, key, library, query};
use qkvault_graph::{Attention, Band, Corner, DType, Lengths, Role, Storage, Valid, validate};
use qkvault_kernels::recipe::{self, LaunchRecipe, RECIPE_FORMAT, RecipeStep};
use qkvault_kernels::{BlockLists, KnownLists, ListsLayout, ScoreTiles};
use qkvault_reference::{Buffer, Inputs, POISON};
use qkvault_skip::{Need, skip};

/// Operands that stand for the places of the lists, which a test can read.
const PLACES: [Role; 4] = [Role::O, Role::Stats, Role::Max, Role::SumExp];

/// The lists that the kernel makes: for each sequence, head and row the tiles that the mask cuts, and those it leaves.
fn made(a: &Valid, lists: &BlockLists, inputs: &Inputs, seed: u64) -> Vec<[Vec<i32>; 2]> {
    let BlockLists { launches, layout, .. } = lists;
    let mut launches = launches.clone();
    for patch in launches.iter_mut().flat_map(|launch| &mut launch.params).flat_map(|param| &mut param.patches) {
        if let recipe::LaunchValue::Scratch(at) = patch.value {
            // What kernels leave for each other stays there.
            let Some(place) = layout.at.iter().position(|known| *known == at) else { continue };
            patch.value = recipe::LaunchValue::Address(PLACES[place]);
        }
    }
    let recipe = LaunchRecipe {
        format: RECIPE_FORMAT,
        sm: 90,
        driver: 13_000,
        scratch: lists.end,
        modules: Vec::new(),
        constants: 0,
        steps: launches.into_iter().map(RecipeStep::Launch).collect(),
    };
    let (mut buffers, mut numbers) = (BTreeMap::new(), BTreeMap::new());
    for role in a.scalars().map(|scalar| scalar.role) {
        numbers.insert(role, inputs.buffer(role).expect("is there").bytes().to_vec());
    }
    for role in a.score_tensors().map(|tensor| tensor.role).chain(a.block_mask.then_some(Role::BlockMask)) {
        buffers.insert(role, inputs.buffer(role).expect("is there").bytes().to_vec());
    }
    let lines = (layout.batch * layout.heads * layout.rows) as usize;
    let columns = layout.columns as usize;
    for (role, count) in PLACES.into_iter().zip([lines, lines * columns, lines, lines * columns]) {
        buffers.insert(role, vec![POISON; count * 4]);
    }
    let program = HostProgram::compile(&lists.source, &recipe, false).expect("compiles");
    program.launch(&recipe, &mut buffers, &numbers, &[], seed, POISON).expect("runs");
    let numbers = |role| -> Vec<i32> {
        let bytes: &Vec<u8> = &buffers[&role];
        bytes.chunks(4).map(|four| i32::from_le_bytes(four.try_into().expect("four"))).collect()
    };
    let [cut_counts, cut, whole_counts, whole] = PLACES.map(numbers);
    let list = |counts: &[i32], all: &[i32], line: usize| all[line * columns..][..counts[line] as usize].to_vec();
    (0..lines).map(|line| [list(&cut_counts, &cut, line), list(&whole_counts, &whole, line)]).collect()
}

/// Whole numbers of parts.
trait Parts {
    fn div_ceil_by(self, by: Self) -> Self;
}

impl Parts for i64 {
    fn div_ceil_by(self, by: i64) -> i64 {
        (self + by - 1) / by
    }
}

/// Whether a key is seen, by definition.
fn seen(a: &Valid, inputs: &Inputs, at: [i32; 4]) -> bool {
    let (s_q, s_kv) = a.seq();
    let in_band = a.mask.band.is_none_or(|Band { corner, left, right }| {
        let shift = if corner == Corner::BottomRight { s_kv - s_q } else { 0 };
        let ahead = i64::from(at[3]) - i64::from(at[2]) - shift;
        right.is_none_or(|right| ahead <= right) && left.is_none_or(|left| ahead > -left)
    });
    let in_blocks = !a.block_mask || {
        let (rows, columns) = (s_q.div_ceil_by(128), s_kv.div_ceil_by(128).div_ceil_by(8));
        let [b, h, q, k] = at.map(i64::from);
        let byte = ((b * a.q.heads() + h) * rows + q / 128) * columns + k / 1024;
        inputs.buffer(Role::BlockMask).expect("is there").bytes()[byte as usize] >> (k / 128 % 8) & 1 == 1
    };
    let Some(mask) = a.mask.mask_mod.as_ref().map(|e| e.program()) else { return in_band && in_blocks };
    let (scalars, tensors) = a.score_mod.as_ref().map_or((0, 0), |e| (e.scalars().len(), e.tensors().len()));
    let number = |role: Role, i: usize| {
        let buffer: &Buffer = inputs.buffer(role).expect("is there");
        if buffer.dtype() == DType::I32 { Value::Int(buffer.get(i) as i32) } else { Value::Float(buffer.get(i)) }
    };
    let scalars: Vec<Value> = a.scalars().skip(scalars).map(|scalar| number(scalar.role, 0)).collect();
    let element = |tensor: qkvault_graph::NamedTensor<'_>| {
        let index = |i: i64, (n, at): (&i64, i32)| i * n + if *n > 1 { i64::from(at) } else { 0 };
        number(tensor.role, tensor.dims.iter().zip(at).fold(0, index) as usize)
    };
    let tensors: Vec<Value> = a.score_tensors().skip(tensors).map(element).collect();
    let lengths = [s_q as i32, s_kv as i32];
    let context = PointContext { score: 0.0, upstream: 0.0, at, lengths, scalars: &scalars, tensors: &tensors };
    in_band && in_blocks && mask.eval(&context).expect("everything is given") == Value::Bool(true)
}

/// The lists by definition.
fn expected(a: &Valid, lists: &ListsLayout, inputs: &Inputs, tiles: ScoreTiles) -> Vec<[Vec<i32>; 2]> {
    let (s_q, s_kv) = a.seq();
    let kind = |batch: i64, head: i64, row: i64, column: i64| {
        let (q, k) = if tiles.by_keys { (column, row) } else { (row, column) };
        let queries = q * tiles.queries..((q + 1) * tiles.queries).min(s_q);
        let keys = k * tiles.keys..((k + 1) * tiles.keys).min(s_kv);
        let points = queries.flat_map(|q| keys.clone().map(move |k| [batch, head, q, k].map(|n| n as i32)));
        let found: Vec<bool> = points.map(|at| seen(a, inputs, at)).collect();
        (found.contains(&true), found.contains(&false))
    };
    let mut all = Vec::new();
    for batch in 0..lists.batch {
        for head in 0..lists.heads {
            for row in 0..lists.rows {
                let kinds: Vec<_> = (0..lists.columns).map(|column| kind(batch, head, row, column)).collect();
                let of = |wanted| (0..).zip(&kinds).filter(|(_, kind)| **kind == wanted).map(|(n, _)| n).collect();
                all.push([of((true, true)), of((true, false))]);
            }
        }
    }
    all
}

/// Lists that follow from the description.
fn read(known: &KnownLists) -> Vec<[Vec<i32>; 2]> {
    let (bytes, ListsLayout { batch, heads, rows, columns, at, .. }) = (known.bytes(), &known.layout);
    let number = |list: usize, place: i64| {
        let four = &bytes[at[list] as usize + place as usize * 4..][..4];
        i32::from_le_bytes(four.try_into().expect("four"))
    };
    let list = |list: usize, line: i64| {
        (0..i64::from(number(list, line))).map(|n| number(list + 1, line * columns + n)).collect()
    };
    (0..batch * heads * rows).map(|line| [list(0, line), list(2, line)]).collect()
}

/// Compares the lists; how many tiles are cut, and whole, and how many there are.
fn check(a: &Valid, tiles: ScoreTiles, seed: u64) -> [i64; 3] {
    let inputs = Inputs::random(a, seed).expect("random operands");
    let lists = BlockLists::for_attention(a, tiles, 0).unwrap_or_else(|| panic!("{a}: no lists"));
    let (found, expected) = (made(a, &lists, &inputs, seed), expected(a, &lists.layout, &inputs, tiles));
    assert_eq!(found, expected, "{a}, {tiles:?}");
    if let Some(known) = KnownLists::for_attention(a, tiles) {
        assert_eq!(read(&known), found, "{a}, {tiles:?}: lists in a plan");
    }
    let count = |kind: usize| found.iter().map(|lists| lists[kind].len() as i64).sum();
    [count(0), count(1), found.len() as i64 * lists.layout.columns]
}

fn plain(lengths: (i64, i64), e: Expr) -> Attention {
    Attention::bshd(2, (3, 3), lengths, 16, DType::BF16).with_mask_mod(e.build_mask_mod().expect("a predicate"))
}

fn blocks(mut a: Attention) -> Attention {
    a.block_mask = true;
    a
}

#[test]
fn lists_of_documents_windows_and_heads_are_those_of_their_definition() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let documents = library::document_mask("of_query", "of_key", 2, 150, 230);
    let of_heads = ((key() + head() * 7) % 5).ne(0) | key().le(query());
    let square = query().floor_div(64).eq(key().floor_div(64));
    let list = [
        plain((150, 230), documents.clone()),
        plain((150, 230), documents).with_band(Band::CAUSAL_BOTTOM_RIGHT),
        plain((100, 129), of_heads),
        plain((300, 300), square).with_band(Band { corner: Corner::BottomRight, left: Some(90), right: Some(0) }),
        plain((64, 1), library::dilated_window(4, 2)),
        blocks(Attention::bshd(1, (2, 2), (130, 1100), 16, DType::BF16).with_band(Band::CAUSAL_BOTTOM_RIGHT)),
    ];
    for (n, a) in list.into_iter().enumerate() {
        let a = validate(a).unwrap_or_else(|refusal| panic!("{refusal}"));
        for by_keys in [false, true] {
            check(&a, ScoreTiles { queries: 64, keys: 32, by_keys }, n as u64);
        }
    }
}

#[test]
fn lists_of_random_masks_are_those_of_their_definition() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let features = Features { mask_mod: true, score_mod: true, ..Features::NONE };
    let space = Space { batch: 2, heads: 2, seq: 90, head_dim: 16, features };
    let (mut runner, strategy) = (TestRunner::deterministic(), attention(space));
    let drawn = std::iter::repeat_with(|| strategy.new_tree(&mut runner).expect("a value").current());
    let dense =
        |a: &Valid| a.mask.mask_mod.is_some() && a.mask.lengths == Lengths::Full && a.q.storage == Storage::Dense;
    let list: Vec<Valid> = drawn.take(400).filter_map(|a| validate(a).ok()).filter(dense).take(6).collect();
    assert!(list.len() == 6, "{} attentions", list.len());
    for (n, a) in list.iter().enumerate() {
        check(a, ScoreTiles { queries: 24, keys: 16, by_keys: n % 2 == 0 }, n as u64);
    }
}

fn masked(lengths: (i64, i64), mask: &str, band: Option<Band>) -> Valid {
    let mask: ScoreExpr = mask.parse().unwrap_or_else(|error| panic!("{mask}: {error}"));
    let mut a = Attention::bshd(2, (2, 2), lengths, 16, DType::BF16).with_mask_mod(mask);
    a.mask.band = band;
    validate(a).unwrap_or_else(|refusal| panic!("{refusal}"))
}

#[test]
fn lists_in_a_plan_are_those_that_the_kernel_makes() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let window = Band { corner: Corner::BottomRight, left: Some(70), right: Some(0) };
    let list = [
        ((150, 230), "key < 100 | key <= query", None),
        ((150, 230), "(query - key) % 3 == 0 & abs(query - key) < 60", None),
        ((300, 300), "query // 64 >= key // 64", Some(window)),
        ((129, 64), "(key + head * 7) % 5 != 0 | key <= query", Some(Band::CAUSAL_BOTTOM_RIGHT)),
        ((97, 200), "select(batch == 1, key * key % 7 != 3, query - key < 9)", None),
    ];
    for (n, (lengths, mask, band)) in list.into_iter().enumerate() {
        let a = masked(lengths, mask, band);
        for by_keys in [false, true] {
            let tiles = ScoreTiles { queries: 64, keys: 48, by_keys };
            assert!(KnownLists::for_attention(&a, tiles).is_some(), "{mask}");
            check(&a, tiles, n as u64);
        }
    }
}

/// Masks with an element for each score: several elements at once, one by one where rows begin anywhere, in 16 bits,
/// beside a band, and whole or hidden over many tiles.
#[test]
fn lists_of_masks_with_an_element_for_each_score_are_those_of_their_definition() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let list = [
        ((150, 232), "tensor @m: i32[2, 1, 150, 232]; @m % 9 != 0", None),
        ((150, 231), "tensor @m: i32[1, 2, 150, 231]; @m % 9 != 0", None),
        ((130, 200), "tensor @m: bf16[1, 1, 130, 200]; @m < 1.5", Some(Band::CAUSAL_BOTTOM_RIGHT)),
        ((130, 200), "tensor @m: i32[1, 1, 130, 200]; tensor @n: f32[1, 1, 130, 200]; @m < 900 | @n > 3.5", None),
        ((130, 200), "tensor @m: i32[1, 1, 130, 200]; @m > 1000000 & key > 150 | query < 64", None),
    ];
    let mut all = [0; 3];
    for (n, (lengths, mask, band)) in list.into_iter().enumerate() {
        let a = masked(lengths, mask, band);
        for by_keys in [false, true] {
            let found = check(&a, ScoreTiles { queries: 64, keys: 32, by_keys }, n as u64);
            all.iter_mut().zip(found).for_each(|(sum, n)| *sum += n);
        }
    }
    let [cut, whole, tiles] = all;
    assert!(cut >= 20 && whole >= 20 && tiles - cut - whole >= 20, "{cut} cut, {whole} whole, of {tiles}");
}
