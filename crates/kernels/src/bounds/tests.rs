//! Bounds over tiles against every score of the tile, by the host's C++ compiler.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::expr::{PointContext, ScoreExpr, Value, library};

use super::*;
use crate::expression::{FUNCTIONS, element_type};

const DIMS: [i64; 4] = [2, 3, 40, 48];

/// Queries and keys of a tile: the first, and one behind the last.
type TileRange = [(i32, i32); 2];

fn whole(seed: usize) -> i32 {
    ((seed * 31 + seed / 7) % 17) as i32 - 8
}

/// An element of the n-th tensor: numbers that rise, as ids of documents do, or that jump.
fn element(n: usize, i: usize) -> i32 {
    if n < 3 { (i / 13) as i32 } else { whole(i + n) }
}

/// A program whose tensors are of integers, in a namespace of its own, with a function that prints a tile's truth.
fn namespace(at: usize, program: &Program) -> String {
    let (mut fields, mut arrays, mut set) = (String::new(), String::new(), String::new());
    for (n, spec) in program.tensors().iter().enumerate() {
        let ty = element_type(spec.dtype);
        let count = spec.dims.iter().product::<i64>() as usize;
        let list: Vec<String> = (0..count).map(|i| element(n, i).to_string()).collect();
        let _ = writeln!(fields, "  {ty}* tensor{n};");
        let _ = writeln!(arrays, "static {ty} array{n}[] = {{{}}};", list.join(", "));
        let _ = write!(set, "p.tensor{n} = array{n}; ");
    }
    for (n, spec) in program.scalars().iter().enumerate() {
        let ty = if spec.ty == ScalarTy::Int { "int" } else { "float" };
        let _ = writeln!(fields, "  {ty} scalar{n};");
        let _ = write!(set, "p.scalar{n} = {}; ", whole(n + 5));
    }
    let (body, root) = statements(program, 0, 0, "n");
    format!(
        "namespace program{at} {{\nstruct Params {{\n{fields}  int unused;\n}};\n{arrays}\
         static void print(const Tile& tile) {{\n  const int lane = 0; Params p; p.unused = lane; {set}\n{body}  \
         printf(\"%d %d\\n\", {root}.no, {root}.yes);\n}}\n}}\n"
    )
}

/// Whether a predicate is false, and is true, somewhere in a tile.
fn expected(program: &Program, [batch, head]: [i32; 2], [queries, keys]: TileRange) -> [bool; 2] {
    let scalars: Vec<Value> = (program.scalars().iter().enumerate())
        .map(|(n, spec)| match spec.ty {
            ScalarTy::Float => Value::Float(whole(n + 5).into()),
            ScalarTy::Int => Value::Int(whole(n + 5)),
        })
        .collect();
    let mut found = [false; 2];
    for at in (queries.0..queries.1).flat_map(|q| (keys.0..keys.1).map(move |k| [batch, head, q, k])) {
        let tensors: Vec<Value> = (program.tensors().iter().enumerate())
            .map(|(n, spec)| {
                let step = |i: i64, (&dim, at): (&i64, i32)| i * dim + if dim > 1 { i64::from(at) } else { 0 };
                let number = element(n, spec.dims.iter().zip(at).fold(0, step) as usize);
                if spec.dtype == DType::I32 { Value::Int(number) } else { Value::Float(number.into()) }
            })
            .collect();
        let lengths = [DIMS[2] as i32, DIMS[3] as i32];
        let context = PointContext { score: 0.0, upstream: 0.0, at, lengths, scalars: &scalars, tensors: &tensors };
        let truth = program.eval(&context).expect("everything is given") == Value::Bool(true);
        found[usize::from(truth)] = true;
    }
    found
}

/// For each program and tile, what is said and what is so.
fn run(programs: &[&Program]) -> Vec<Vec<([bool; 2], [bool; 2])>> {
    let steps = |n: i64, by: usize| (0..n as i32).step_by(by).map(move |at| (at, (at + by as i32).min(n as i32)));
    let tiles: Vec<([i32; 2], TileRange)> = [(8, 16), (16, 8), (1, 48)]
        .into_iter()
        .flat_map(|(q, k)| steps(DIMS[2], q).flat_map(move |q| steps(DIMS[3], k).map(move |k| [q, k])))
        .enumerate()
        .map(|(n, tile)| ([n as i32 % DIMS[0] as i32, n as i32 % DIMS[1] as i32], tile))
        .collect();
    let mut text = format!(
        "{FUNCTIONS}{BOUNDS}#define QUERIES {}\n#define KEYS {}\n\
         static Bounds bounds_of(const int* at, int first, int last, int) {{\n  Bounds found = exactly(at[first]);\n  \
         for (int i = first; i <= last; i++) found = Bounds{{min(found.least, at[i]), max(found.greatest, at[i])}};\n  \
         return found;\n}}\n",
        DIMS[2], DIMS[3]
    );
    programs.iter().enumerate().for_each(|(at, program)| text.push_str(&namespace(at, program)));
    text.push_str("int main() {\n");
    for at in 0..programs.len() {
        for ([b, h], [q, k]) in &tiles {
            let [q, k] = [q, k].map(|(from, to)| format!("{{{from}, {}}}", to - 1));
            let _ = writeln!(text, "  program{at}::print(Tile{{{b}, {h}, {q}, {k}}});");
        }
    }
    text.push_str("}\n");
    let printed = qkvault_emulate::printed(&text).unwrap_or_else(|error| panic!("{error}"));
    let mut lines = printed.lines().map(|line| [line.starts_with('1'), line.ends_with('1')]);
    let of = |program: &&Program| {
        let one =
            |(at, tile): &([i32; 2], TileRange)| (lines.next().expect("a line each"), expected(program, *at, *tile));
        tiles.iter().map(one).collect()
    };
    programs.iter().map(of).collect()
}

/// The share of tiles of one truth that are known to be so; no tile is said to be what it is not.
fn known(program: &Program, tiles: &[([bool; 2], [bool; 2])]) -> f64 {
    let (mut uniform, mut found) = (0, 0);
    for (said, so) in tiles {
        assert!((0..2).all(|truth| said[truth] || !so[truth]), "{program:?}: {said:?} is said, {so:?} is so");
        uniform += usize::from(so[0] != so[1]);
        found += usize::from(said[0] != said[1]);
    }
    found as f64 / uniform.max(1) as f64
}

fn read(text: &str) -> ScoreExpr {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn tiles_of_usual_masks_are_known_without_a_look_at_their_scores() {
    let [b, _, q, k] = DIMS;
    let document = "tensor @q: i32[2, 1, 40, 1]; tensor @k: i32[2, 1, 1, 48];";
    let list = [
        (library::document_mask("of_query", "of_key", b, q, k).build_mask_mod().expect("a predicate"), 0.9),
        (read(&format!("{document} @q == @k & key <= query")), 0.9),
        (library::prefix_lm("prefix", b).build_mask_mod().expect("a predicate"), 0.9),
        (read("key <= query & query - key < 12"), 0.99),
        (read("abs(query - key) > 9 | key < 4"), 0.99),
        (read("query // 16 == key // 16"), 0.99),
        (read("query // 16 >= key // 16 & floor_rem(key, 48) < 30"), 0.99),
        (read("min(key, 20) + max(query, 3) * 2 > 60"), 0.99),
        (read("key_len - key > 8 & head != 2"), 0.99),
    ];
    let programs: Vec<&Program> = list.iter().map(|(e, _)| e.program()).collect();
    for ((e, least), tiles) in list.iter().zip(run(&programs)) {
        let share = known(e.program(), &tiles);
        assert!(share >= *least, "{e}: {share} of the tiles of one truth are known, {least} expected");
    }
}

#[test]
fn bounds_of_random_predicates_hold_at_every_score() {
    let features = Features { mask_mod: true, ..Features::NONE };
    let space = Space { batch: 2, heads: 3, seq: 48, head_dim: 16, features };
    let (mut runner, strategy) = (TestRunner::deterministic(), attention(space));
    let drawn = std::iter::repeat_with(|| strategy.new_tree(&mut runner).expect("a value").current());
    let fits = |e: &ScoreExpr| {
        let sizes = |spec: &TensorSpec| spec.dims.iter().zip(DIMS).all(|(&n, most)| n == 1 || n == most);
        let integers = |spec: &TensorSpec| matches!(spec.dtype, DType::I32 | DType::F32);
        e.program().tensors().iter().all(|spec| sizes(spec) && integers(spec))
    };
    let mut list: Vec<ScoreExpr> = drawn.take(3000).filter_map(|a| a.mask.mask_mod).filter(fits).take(60).collect();
    assert!(list.len() >= 30, "{} predicates", list.len());
    // Every operation on integers, with divisors of each sign and 0.
    let numbers = ["key", "query - 20", "3", "-4", "key - query", "0", "2147483647"];
    for op in ["+", "-", "*", "//", "%"] {
        let pairs = numbers.iter().flat_map(|a| numbers.map(|b| format!("({a}) {op} ({b}) < key - 9")));
        list.extend(pairs.filter_map(|text| text.parse().ok()));
    }
    for (a, b) in numbers.iter().flat_map(|a| numbers.map(|b| (*a, b))) {
        list.extend(format!("floor_rem({a}, {b}) == max({a}, {b}) | abs({b}) > -({a})").parse().ok());
    }
    let programs: Vec<&Program> = list.iter().map(ScoreExpr::program).collect();
    for (program, tiles) in programs.iter().zip(run(&programs)) {
        known(program, &tiles);
    }
}
