//! Generated attention kernels on a CPU, beside the oracle: the same sources and recipes that a GPU gets.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use qkvault_emulate::HostProgram;
use qkvault_graph::arbitrary::{self, Features, Space, attention};
use qkvault_graph::expr::{self, TensorSpec};
use qkvault_graph::{Attention, Band, DType, PaddedRows, Role, Tensor, Valid, validate};
use qkvault_kernels::recipe;
use qkvault_kernels::tiling::Tiling;
use qkvault_kernels::{Generated, SM, generate, generate_with, takes};
use qkvault_reference::{Buffer, Inputs, LaunchJudge, LengthChoice, POISON, RandomChoice, Unused, forward};
use qkvault_skip::{Need, skip};

/// Random attentions of a run.
const CASES: usize = 16;

/// The operands of a launch on the host: outputs are poisoned.
struct Case<'a> {
    attention: &'a Valid,
    inputs: Inputs,
    buffers: BTreeMap<Role, Vec<u8>>,
    numbers: BTreeMap<Role, Vec<u8>>,
    shared: &'a [(Role, Role)],
}

impl<'a> Case<'a> {
    fn new(attention: &'a Valid, shared: &'a [(Role, Role)], seed: u64) -> Case<'a> {
        Case::over(attention, Inputs::random(attention, seed).expect("random operands"), shared)
    }

    fn over(attention: &'a Valid, mut inputs: Inputs, shared: &'a [(Role, Role)]) -> Case<'a> {
        for &(role, of) in shared {
            let from = inputs.buffer(of).expect("an input").bytes().to_vec();
            let to = inputs.get_mut(role).expect("an input").bytes_mut();
            to.copy_from_slice(&from[..to.len()]);
        }
        let (mut buffers, mut numbers) = (BTreeMap::new(), BTreeMap::new());
        for operand in qkvault_graph::operands(attention) {
            let role = operand.role;
            if operand.output {
                let len = qkvault_graph::buffer_len(attention, role).expect("every operand has a size");
                buffers.insert(role, Buffer::poisoned(operand.tensor.dtype, len).into_bytes());
            } else if !shared.iter().any(|(one, _)| *one == role) {
                let bytes = inputs.buffer(role).expect("every input is there").bytes().to_vec();
                if role.is_scalar() { &mut numbers } else { &mut buffers }.insert(role, bytes);
            }
        }
        Case { attention, inputs, buffers, numbers, shared }
    }

    /// What differs from the oracle, empty if nothing does.
    fn judge(&self) -> String {
        let expected = forward(self.attention, &self.inputs).expect("the oracle computes it");
        let wrong = expected.iter().filter_map(|output| {
            let role = output.role();
            let bytes = self.buffers.get(&role)?.clone();
            let found = Buffer::new(output.buffer().dtype(), bytes).expect("whole elements");
            let fault = LaunchJudge::new(self.attention, &self.inputs).judge(output, &found).fault;
            fault.map(|fault| format!("wrong: {fault}\n"))
        });
        wrong.collect()
    }
}

/// Launches twice, the second time over what the first left in the outputs, with other turns of threads.
fn check(attention: &Valid, made: &Generated, seed: u64) -> Result<(), String> {
    check_shared(attention, made, &[], seed)
}

/// The same with roles that lie in the memory of another.
fn check_shared(attention: &Valid, made: &Generated, shared: &[(Role, Role)], seed: u64) -> Result<(), String> {
    check_case(Case::new(attention, shared, seed), made, seed)
}

fn check_case(mut case: Case<'_>, made: &Generated, seed: u64) -> Result<(), String> {
    let program = HostProgram::compile(&made.source, &made.recipe, true).map_err(|error| error.to_string())?;
    for poison in [POISON, 0] {
        let seed = seed + u64::from(poison);
        let launched = program.launch(&made.recipe, &mut case.buffers, &case.numbers, case.shared, seed, poison);
        launched.map_err(|error| error.to_string())?;
        let wrong = case.judge();
        if !wrong.is_empty() {
            return Err(wrong);
        }
    }
    Ok(())
}

fn check_all(attentions: &[Valid]) {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let one = |(seed, attention): (usize, &Valid)| {
        let made = generate(attention, SM).expect("is taken");
        check(attention, &made, seed as u64).err().map(|error| format!("{seed}: {attention}: {error}"))
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let half = attentions.len().div_ceil(2);
        let part = |from: usize| {
            let end = attentions.len().min(from + half);
            scope.spawn(move || (from..end).filter_map(|at| one((at, &attentions[at]))).collect::<Vec<_>>())
        };
        let running = [part(0), part(half.min(attentions.len()))];
        running.into_iter().flat_map(|thread| thread.join().expect("ends")).collect()
    });
    assert!(wrong.is_empty(), "{} of {} are wrong: {wrong:#?}", wrong.len(), attentions.len());
}

#[test]
fn random_attentions_compute_what_the_oracle_computes() {
    let features = Features { storage: true, sink: true, padded_rows: true, ..Features::NONE };
    let space = Space { batch: 3, heads: 2, seq: 400, head_dim: 256, features };
    let (mut runner, strategy) = (TestRunner::deterministic(), attention(space));
    let list: Vec<Valid> = std::iter::repeat_with(|| strategy.new_tree(&mut runner).expect("a value").current())
        .enumerate()
        .filter_map(|(n, a)| validate(arbitrary::modified(arbitrary::aligned(a), n)).ok())
        .filter(|a| takes(a, SM).is_ok())
        .take(CASES)
        .collect();
    check_all(&list);
}

/// One query and several, over pages, in every way that a kernel divides its work.
#[test]
fn long_caches_are_cut_into_pieces_and_merged() {
    let sizes = [(1, 8, 1, 128), (1, 8, 3, 64), (2, 2, 16, 128), (1, 1, 40, 256), (3, 4, 1, 80)];
    let of = |(batch, group, queries, d): (i64, i64, i64, i64)| {
        let mut a = Attention::bshd(batch, (2 * group, 2), (queries, 1500), d, DType::BF16);
        a.k = Tensor::paged_nhd(batch, 2, 1500, d, 75, 64, DType::BF16);
        a.v = a.k;
        validate(a.with_band(Band::CAUSAL_BOTTOM_RIGHT).with_lengths().with_stats()).expect("is valid")
    };
    check_all(&sizes.map(of));
}

/// Batches of a serving step whose padding holds NaN: rows of Q behind lengths, rows of a page behind its last in use,
/// and pages not in use. No row within lengths may become NaN, and no sequence without queries or keys makes one of its
/// neighbours so.
#[test]
fn padding_without_numbers_is_not_read() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let one = |heads, keys, d, window| {
        let a = Attention::bshd(12, heads, (1, keys), d, DType::BF16).with_lengths();
        a.with_band(Band { left: Some(window), ..Band::CAUSAL_BOTTOM_RIGHT })
    };
    let decode = vec![1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1];
    let lengths = |most| vec![15, 1, 13, 129, 65, most, 17, 0, 64, most - 1, 63, 128];
    let mut of_16 = one((6, 3), 130, 128, 16);
    of_16.k = Tensor::paged_nhd(12, 3, 130, 128, 109, 16, DType::BF16);
    let mut of_64 = one((4, 4), 130, 128, 1).with_stats();
    of_64.k = Tensor::paged_hnd(12, 4, 130, 128, 37, 64, DType::BF16);
    of_64.sink = true;
    let mut of_eight = one((8, 1), 200, 64, 128).with_stats();
    of_eight.k = Tensor::paged_hnd(12, 1, 200, 64, 49, 64, DType::BF16);
    for a in [&mut of_16, &mut of_64, &mut of_eight] {
        a.v = a.k;
    }
    // Prompts and single queries in turn, over pages with room between heads.
    let q = Tensor::thd(6, 4, 300, 96, 303, DType::BF16);
    let pool = |rows| Tensor {
        strides: [rows * 16 * 4 + 24, rows * 16, rows, 1],
        ..Tensor::paged_hnd(6, 4, 896, 96, 100, 16, DType::BF16)
    };
    let prompts = Attention::forward(q, pool(120), pool(160), q).with_lengths().with_stats();
    let prompts = prompts.with_band(Band::CAUSAL_BOTTOM_RIGHT);
    // A latent cache, in copies for keys and for values.
    let mut latent = one((16, 1), 130, 576, 128).with_stats();
    latent.k = Tensor::paged_nhd(12, 1, 130, 576, 25, 128, DType::BF16);
    latent.v = Tensor { dims: [latent.k.dims[0], 1, latent.k.dims[2], 512], ..latent.k };
    latent.o = Tensor::bshd(12, 16, 1, 512, DType::BF16);
    for (seed, (a, q, kv)) in (0..).zip([
        (of_16, decode.clone(), lengths(130)),
        (of_64, decode.clone(), lengths(130)),
        (of_eight, decode.clone(), lengths(200)),
        (prompts, vec![1, 17, 12, 65, 0, 1], vec![1, 128, 63, 65, 0, 895]),
        (latent, decode, lengths(130)),
    ]) {
        let a = validate(a).unwrap_or_else(|refusal| panic!("{refusal}"));
        let choice =
            RandomChoice { lengths: LengthChoice::Exact { q, kv }, unused: Unused::Poison, ..RandomChoice::default() };
        let inputs = Inputs::random_with(&a, seed, &choice).expect("random operands");
        let expected = forward(&a, &inputs).expect("the oracle computes it");
        assert!(expected.iter().all(|output| output.values().iter().all(|x| !x.is_nan())), "{a}");
        let made = generate(&a, SM).expect("is taken");
        assert_eq!(check_case(Case::over(&a, inputs.clone(), &[]), &made, seed), Ok(()), "{a}");
        // Cases of both kinds of products notice kernels that read it.
        if !matches!(seed, 0 | 3) {
            continue;
        }
        let hides = "key_from + WARP_KEYS > item.end";
        assert!(made.source.contains(hides), "{hides}");
        let reads = Generated { source: made.source.replace(hides, "false"), ..made };
        let found = check_case(Case::over(&a, inputs, &[]), &reads, seed).expect_err("padding is read");
        assert!(found.contains("O: wrong"), "{a}: {found}");
    }
}

/// pytorch #109517: padding masks are biases of the lowest float. A row that has nothing else was one of infinities in
/// the unit of the base-2 logarithm: O was 0 in the place of the mean of V.
#[test]
fn rows_of_the_lowest_float_weigh_all_their_keys_alike() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    for (queries, keys, dtype, sink) in
        [(5, 70, DType::F32, false), (1, 1500, DType::BF16, false), (40, 300, DType::F32, true)]
    {
        let spec = TensorSpec::new(dtype, [1, 1, queries, keys]);
        let biased = (expr::score() + expr::tensor("padding", spec)).build_score_mod().expect("a score");
        let mut a = Attention::bshd(2, (4, 2), (queries, keys), 64, DType::BF16).with_stats().with_score_mod(biased);
        a.sink = sink;
        let a = validate(a).expect("is valid");
        let mut inputs = Inputs::random(&a, 7).expect("random operands");
        let bias = inputs.get_mut(Role::ScoreTensor(0)).expect("a bias");
        let lowest = if dtype == DType::BF16 { -3.389_531_4e38 } else { f64::from(f32::MIN) };
        // Whole rows, and parts of others.
        for row in (0..queries).filter(|row| row % 2 == 0) {
            (0..keys).for_each(|key| bias.set((row * keys + key) as usize, lowest));
        }
        (0..queries).for_each(|row| bias.set((row * keys) as usize, lowest));
        let made = generate(&a, SM).expect("is taken");
        let wrong = check_case(Case::over(&a, inputs, &[]), &made, 3);
        assert_eq!(wrong, Ok(()), "{queries} x {keys} {dtype}");
    }
}

/// Trees of drafts: random bits, over keys of every storage and queries of one row tile and of several, with bands,
/// windows and predicates beside them.
#[test]
fn trees_of_drafts_hide_what_their_bits_say() {
    let of = |(batch, heads, queries): (i64, (i64, i64), i64), keys: i64, d: i64| {
        Attention::bshd(batch, heads, (queries, keys), d, DType::BF16).with_draft_tree()
    };
    let pages = |mut a: Attention, rows: i64| {
        let [batch, heads, keys, d] = a.k.dims;
        a.k = Tensor::paged_nhd(batch, heads, keys, d, batch * ((keys + rows - 1) / rows), rows, DType::BF16);
        a.v = a.k;
        a.with_lengths()
    };
    let mut packed = pages(of((3, (8, 2), 24), 290, 64), 16);
    packed.q = Tensor::thd(3, 8, 24, 64, 60, DType::BF16);
    packed.o = packed.q;
    let window = Band { left: Some(40), ..Band::CAUSAL_BOTTOM_RIGHT };
    let predicate = (expr::key() % 7).ne(3).build_mask_mod().expect("a predicate");
    let mut zeros = of((3, (4, 4), 20), 150, 96).with_lengths();
    zeros.padded_rows = PaddedRows::Zero;
    let list = [
        of((1, (2, 2), 2), 130, 128),
        pages(of((3, (8, 2), 4), 700, 128), 64),
        packed.with_stats(),
        pages(of((2, (8, 1), 64), 400, 128), 16).with_band(Band::CAUSAL_BOTTOM_RIGHT),
        pages(of((2, (4, 2), 33), 500, 256), 64).with_band(window).with_stats(),
        of((2, (6, 2), 16), 64, 64).with_lengths().with_mask_mod(predicate),
        // More drafts than keys: what a query does not see before them is not there.
        of((2, (2, 1), 40), 17, 64),
        zeros,
    ];
    check_all(&list.map(|a| validate(a).expect("is valid")));
}

/// Every division of the work that a measurement compares is right.
#[test]
fn other_divisions_of_the_work_compute_the_same() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let latent = |heads| {
        let mut a = Attention::bshd(1, (heads, 1), (1, 300), 576, DType::BF16);
        a.v = Tensor { dims: [1, 1, 300, 512], ..a.k };
        a.o = Tensor::bshd(1, heads, 1, 512, DType::BF16);
        a
    };
    let plain = |queries, d| Attention::bshd(1, (8, 2), (queries, 900), d, DType::BF16);
    for a in [plain(1, 128), plain(5, 128), plain(16, 64), latent(16)] {
        let a = validate(a.with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats()).expect("is valid");
        let mut all = Vec::new();
        generate_with(&a, SM, |sizes| {
            all = Tiling::others(sizes);
            Tiling::for_sizes(sizes)
        })
        .expect("is taken");
        for (name, tiling) in all {
            let made = generate_with(&a, SM, |_| tiling).expect("is taken");
            assert_eq!(check(&a, &made, 5), Ok(()), "{a}, {name}: {tiling:?}");
        }
    }
}

/// One item that all blocks share: several warps put a row together.
#[test]
fn an_item_in_as_many_pieces_as_there_are_blocks_is_merged() {
    let mut latent = Attention::bshd(1, (16, 1), (1, 4200), 576, DType::BF16).with_stats();
    latent.v = Tensor { dims: [1, 1, 4200, 512], ..latent.k };
    latent.o = Tensor::bshd(1, 16, 1, 512, DType::BF16);
    let of = |heads, queries, keys, d| {
        let mut a = Attention::bshd(1, heads, (queries, keys), d, DType::BF16).with_stats();
        a.sink = true;
        a.with_band(Band::CAUSAL_BOTTOM_RIGHT)
    };
    let list = [latent, of((3, 1), 1, 17_000, 128), of((2, 1), 70, 4400, 64), of((8, 2), 3, 5000, 80)];
    let list = list.map(|a| validate(a).expect("is valid"));
    check_all(&list);
    if HostProgram::can_run() {
        let made = generate(&list[1], SM).expect("is taken");
        assert_noticed(&list[1], &made, &FAULTS_OF_MANY_PIECES, 1..2);
    }
}

/// A latent cache, whose values are the first columns of its keys: in pages or not, brought once or twice.
#[test]
fn values_of_a_latent_cache_are_brought_with_its_keys() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let of = |(batch, heads, queries): (i64, i64, i64), (d, d_v): (i64, i64), pages: bool| {
        let mut a = Attention::bshd(batch, (heads, 1), (queries, 300), d, DType::BF16);
        if pages {
            a.k = Tensor::paged_nhd(batch, 1, 300, d, 30, 16, DType::BF16);
        }
        a.v = Tensor { dims: [a.k.dims[0], 1, a.k.dims[2], d_v], ..a.k };
        a.o = Tensor::bshd(batch, heads, queries, d_v, DType::BF16);
        validate(a.with_band(Band::CAUSAL_BOTTOM_RIGHT).with_lengths().with_stats()).expect("is valid")
    };
    let both = &[(Role::V, Role::K), (Role::PageTableV, Role::PageTableK)][..];
    for (seed, attention, shared) in [
        (1, of((2, 16, 1), (576, 512), true), both),
        (2, of((2, 16, 1), (576, 512), true), &both[..1]), // tables of their own: some pages are the same
        (3, of((1, 70, 1), (576, 512), false), &[]),
        (4, of((1, 5, 3), (288, 272), true), both),
    ] {
        let made = generate(&attention, SM).expect("is taken");
        assert!(made.source.contains("#define MAY_SHARE 1\n"), "{attention}");
        assert_eq!(check_shared(&attention, &made, shared, seed), Ok(()), "{attention}, shared {shared:?}");
    }
}

/// The largest score of a row once had a weight of two to the power of its own rounding, which from 2^28 on is more
/// than float16 holds.
#[test]
fn rows_of_equal_huge_scores_are_the_mean_of_their_values() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    for queries in [1, 70] {
        for (at, huge) in [20_000.0_f32, 21_007.0, 22_011.0, 25_013.0].into_iter().enumerate() {
            let a = Attention::bshd(1, (1, 1), (queries, 40), 128, DType::F16);
            let attention = validate(a).expect("is valid");
            let mut inputs = Inputs::random(&attention, at as u64).expect("random operands");
            for role in [Role::Q, Role::K] {
                let all = inputs.get_mut(role).expect("an input").bytes_mut();
                all.chunks_exact_mut(2).for_each(|x| x.copy_from_slice(&half::f16::from_f32(huge).to_ne_bytes()));
            }
            let made = generate(&attention, SM).expect("is taken");
            let case = Case::over(&attention, inputs, &[]);
            assert_eq!(check_case(case, &made, 1), Ok(()), "{attention}, elements of {huge}");
        }
    }
}

/// Faults where more pieces are put together than a lane looks at.
const FAULTS_OF_MANY_PIECES: [(&str, &str, &str); 3] = [
    ("block_of(first + i), i == 0, row)", "block_of(first + i), false, row)", "wrong"),
    ("(piece + i == 0 ? begins : 0)", "0", "wrong"),
    ("sums += AHEAD * step;", "", "wrong"),
];

/// Each fault is noticed with one of some seeds.
fn assert_noticed(attention: &Valid, made: &Generated, faults: &[(&str, &str, &str)], seeds: Range<u64>) {
    let unnoticed = faults.iter().filter_map(|(right, fault, said)| {
        assert!(made.source.contains(right), "{right}");
        let wrong = Generated { source: made.source.replace(right, fault), ..made.clone() };
        let mut last = String::new();
        let noticed = seeds.clone().any(|seed| {
            last = check(attention, &wrong, seed).err().unwrap_or_else(|| "nothing".to_owned());
            last.contains(said)
        });
        (!noticed).then(|| format!("{right} -> {fault}: {last} instead of {said}"))
    });
    let unnoticed: Vec<String> = unnoticed.collect();
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

/// Faults in the source, each of which must be noticed: what is replaced, by what, and words of what is then said.
const FAULTS: [(&str, &str, &str); 8] = [
    ("barrier_wait(full + 8 * slot, parity);", "", "wrong"),
    ("barrier_wait(empty + 8 * slot, parity);", "", "more arrivals at a barrier than"),
    ("if (lane == 0) barrier_arrive(empty + 8 * slot);", "", "no thread of the block can go on"),
    ("if (lane == 0) barrier_arrive(empty", "barrier_arrive(empty", "can go on"),
    ("top[half] = most[half];", "", "wrong"),
    ("(u32*)(to_row + column) = ", "(u32*)(to_row + ((column + 1) << 20)) = ", "signal"),
    ("i == 0, unit / CHUNKS)", "false, unit / CHUNKS)", "wrong"),
    ("  to = keys;", "  to = keys - 1;", "what roundings explain"),
];

#[test]
fn faults_of_kernels_are_noticed() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    // More tiles for a block than it has room for, and sequences that two blocks share.
    let a = Attention::bshd(8, (8, 8), (1, 1100), 64, DType::BF16);
    let attention = validate(a.with_stats()).expect("is valid");
    let made = generate(&attention, SM).expect("is taken");
    assert_eq!(check(&attention, &made, 1), Ok(()));
    assert_noticed(&attention, &made, &FAULTS, 1..2);
}

/// Faults between the two groups of wide values.
const FAULTS_OF_GROUPS: [(&str, &str, &str); 5] = [
    ("sync_some(6 + (i & 1), CONSUMERS);", "arrive_some(6 + (i & 1), CONSUMERS);", "no thread of the block can go on"),
    ("      multiply_tile(at);\n      products_wait<1>", "      products_wait<1>", "wrong"),
    ("release(before);", "", "no thread of the block can go on"),
    ("      release(values);\n", "", "no thread of the block can go on"),
    ("sum[half] = halves[row] + halves[ROWS + row];", "", "wrong"),
];

/// Without what orders them, groups that share weights compute something else or wait for ever.
#[test]
fn faults_between_groups_are_noticed() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    // More tiles for a block than it has room for, as of a latent cache.
    let mut a = Attention::bshd(8, (16, 1), (1, 4000), 320, DType::BF16);
    a.v = Tensor { dims: [8, 1, 4000, 272], ..a.k };
    a.o = Tensor::bshd(8, 16, 1, 272, DType::BF16);
    let attention = validate(a.with_stats()).expect("is valid");
    let mut made = generate(&attention, SM).expect("is taken");
    assert!(made.source.contains("#define STAGES 3\n"));
    made.source = made.source.replace("#define STAGES 3\n", "#define STAGES 2\n");
    assert_eq!(check(&attention, &made, 1), Ok(()));
    assert_noticed(&attention, &made, &FAULTS_OF_GROUPS, 1..4);
}

/// Launches a kernel of a test's own, one block for each of `attend`, over a buffer in the place of O.
fn launch_beside(made: &Generated, kernel: &str, numbers: usize, buffers: &mut BTreeMap<Role, Vec<u8>>) -> Vec<i64> {
    let (mut source, mut recipe) = (made.source.clone(), made.recipe.clone());
    source.push_str(kernel);
    let Some(recipe::RecipeStep::Launch(launch)) = recipe.steps.get_mut(1) else { panic!("a launch without maps") };
    (launch.function, launch.grid, launch.block) = ("beside".to_owned(), [launch.grid[0] + 1, 1, 1], [32, 1, 1]);
    recipe.steps.remove(0);
    let program = HostProgram::compile(&source, &recipe, true).unwrap_or_else(|error| panic!("{error}"));
    buffers.extend([(Role::Q, vec![0; 64]), (Role::O, vec![0; numbers * 8])]);
    let scale = BTreeMap::from([(Role::Scale, 1_f32.to_le_bytes().to_vec())]);
    program.launch(&recipe, buffers, &scale, &[], 1, POISON).unwrap_or_else(|error| panic!("{error}"));
    buffers[&Role::O].chunks(8).map(|eight| i64::from_le_bytes(eight.try_into().expect("eight"))).collect()
}

/// 2^20 queries over as many keys in 32 heads are 2^31 tiles, which counters of 32 bits made a negative number of.
#[test]
fn shares_of_more_tiles_than_31_bits_count_are_whole() {
    /// Tiles of 128 queries by 128 keys.
    const TILE: i64 = 128;
    const BLOCKS: i64 = 132;
    const SHARES: &str = "
extern \"C\" __global__ void beside(const __grid_constant__ Params p) {
  __shared__ i64 memory[40];
  const Share share = share_of(p, blockIdx.x, 32, memory);
  if (threadIdx.x == 0) {
    i64* const to = (i64*)p.o + blockIdx.x * 8;
    to[0] = share.from, to[1] = share.to, to[2] = share.all, to[3] = share.at;
    to[4] = share.item.batch, to[5] = share.item.head, to[6] = share.item.rows_from, to[7] = share.item.tiles;
  }
}
";
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let (batch, heads, rows) = (2_i64, 32_i64, 1_i64 << 20);
    let attention = Attention::bshd(batch, (heads, heads), (rows, rows), 128, DType::BF16);
    let attention = validate(attention).expect("is valid");
    for side_by_side in [1, 2, 4] {
        let tiling = |sizes| Tiling { row_blocks: side_by_side as u32, ..Tiling::for_sizes(sizes) };
        let made = generate_with(&attention, SM, tiling).expect("is taken");
        let found = launch_beside(&made, SHARES, BLOCKS as usize * 8, &mut BTreeMap::new());
        let (of_item, items) = (rows / TILE, rows / TILE / side_by_side);
        let all = batch * heads * items * of_item;
        assert!(all * side_by_side > i64::from(i32::MAX));
        let mut next = vec![0; side_by_side as usize];
        for (block, share) in (0..).zip(found.chunks(8)) {
            let rank = block % side_by_side;
            let place = &mut next[rank as usize];
            assert_eq!((share[0], share[2], share[7]), (*place, all, of_item), "block {block}: {share:?}");
            let item = (share[6] / TILE - rank) / side_by_side;
            let begins = ((share[4] * heads + share[5]) * items + item) * of_item + share[3];
            assert_eq!(begins, share[0], "block {block}: {share:?}");
            *place = share[1];
        }
        assert!(next.iter().all(|end| *end == all));
    }
}

/// Several tiles of rows, of which blocks compute two or four over the same keys: with ragged lengths, among which are
/// sequences with too few rows for that and without any.
#[test]
fn tiles_of_rows_side_by_side_compute_what_the_oracle_computes() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let lengths = |q: &[usize], kv: &[usize]| LengthChoice::Exact { q: q.to_vec(), kv: kv.to_vec() };
    let of = |batch, heads, (queries, keys), d| {
        Attention::bshd(batch, heads, (queries, keys), d, DType::BF16).with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats()
    };
    let mut packed = of(6, (8, 2), (130, 300), 64).with_lengths();
    packed.q = Tensor::thd(6, 8, 130, 64, 400, DType::BF16);
    packed.o = packed.q;
    packed.k = Tensor::paged_nhd(6, 2, 300, 64, 120, 16, DType::BF16);
    packed.v = packed.k;
    let ragged = lengths(&[130, 1, 0, 65, 33, 97], &[290, 300, 17, 65, 0, 250]);
    let window = Band { left: Some(50), ..Band::CAUSAL_BOTTOM_RIGHT };
    let mut windows = of(3, (4, 1), (70, 260), 256).with_lengths().with_band(window);
    windows.sink = true;
    let mut zeros = of(3, (4, 1), (100, 200), 128).with_lengths();
    zeros.padded_rows = PaddedRows::Zero;
    let mut latent = of(2, (128, 1), (3, 200), 576);
    latent.v = Tensor { dims: [2, 1, 200, 512], ..latent.k };
    latent.o = Tensor::bshd(2, 128, 3, 512, DType::BF16);
    let drafts = of(2, (16, 2), (60, 300), 64).with_draft_tree().with_lengths();
    let cases = [
        (packed, Some(ragged)),
        (windows, Some(lengths(&[70, 20, 64], &[260, 130, 64]))),
        (zeros, Some(lengths(&[100, 0, 33], &[200, 5, 70]))),
        (Attention::bshd(1, (1, 1), (600, 140), 128, DType::F16), None),
        (latent, None),
        (drafts, None),
    ];
    let check_one = |seed: usize, a: &Attention, choice: Option<LengthChoice>, row_blocks| {
        let a = validate(a.clone()).unwrap_or_else(|refusal| panic!("{refusal}"));
        let seed = seed as u64;
        let inputs = match choice {
            Some(lengths) => {
                let choice = RandomChoice { lengths, unused: Unused::Poison, ..RandomChoice::default() };
                Inputs::random_with(&a, seed, &choice).expect("random operands")
            }
            None => Inputs::random(&a, seed).expect("random operands"),
        };
        let made = generate_with(&a, SM, |sizes| Tiling { row_blocks, ..Tiling::for_sizes(sizes) }).expect("is taken");
        assert_eq!(check_case(Case::over(&a, inputs, &[]), &made, seed), Ok(()), "{a}, {row_blocks} row tiles");
    };
    std::thread::scope(|scope| {
        for row_blocks in [2, 4] {
            let (cases, check_one) = (&cases, &check_one);
            scope.spawn(move || {
                for (seed, (a, choice)) in cases.iter().enumerate() {
                    check_one(seed, a, choice.clone(), row_blocks);
                }
            });
        }
    });
}

/// Each tile of rows meets each tile of keys in one block, whatever lengths are and however blocks are divided between
/// items of several tiles of rows and of one.
#[test]
fn every_tile_of_rows_meets_every_tile_of_keys_once() {
    const VISITS: &str = "
extern \"C\" __global__ void beside(const __grid_constant__ Params p) {
  __shared__ i64 memory[40];
  const Share share = share_of(p, blockIdx.x, 32, memory);
  i64* const to = (i64*)p.o;
  if (threadIdx.x == 0 && share.from < share.to) {
    Item item = share.item;
    int at = share.at;
    for (i64 left = share.to - share.from; left > 0; left--) {
      to[((item.batch * p.key_heads + item.head) * 16 + item.rows_from / ROWS) * 16 + item.first + at]++;
      to[p.batch * p.key_heads * 256 + blockIdx.x]++;
      if (++at == item.tiles && left > 1) {
        advance(p, item);
        at = 0;
      }
    }
  }
}
";
    const BLOCKS: usize = 132;
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let mut state = 3_u64;
    let mut below = |n: i64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as i64 % n
    };
    let (batch, heads) = (7_i64, 2_i64);
    for round in 0..10 {
        let a = Attention::bshd(batch, (heads, heads), (2048, 2048), 64, DType::BF16).with_lengths();
        let a = validate(a).expect("is valid");
        // All sequences have many rows, few, or some of both; some have none.
        let lengths = |most: &mut dyn FnMut() -> i64| (0..batch).map(|_| most()).collect::<Vec<i64>>();
        let queries = lengths(&mut || match (round % 3, below(4)) {
            (0, _) | (2, 0) => below(2049),
            (1, _) | (2, 1) => below(300),
            _ => below(2),
        });
        let keys = lengths(&mut || below(2049));
        let row_blocks = [1, 2, 4][round / 2 % 3];
        let tiling = |sizes| Tiling { row_blocks, ..Tiling::for_sizes(sizes) };
        let made = generate_with(&a, SM, tiling).expect("is taken");
        let bytes = |list: &[i64]| list.iter().flat_map(|n| (*n as i32).to_le_bytes()).collect::<Vec<u8>>();
        let mut buffers = BTreeMap::from([(Role::SeqLenQ, bytes(&queries)), (Role::SeqLenKv, bytes(&keys))]);
        let places = (batch * heads * 256) as usize;
        let found = launch_beside(&made, VISITS, places + BLOCKS, &mut buffers);
        for (place, count) in (0_i64..).zip(&found[..places]) {
            let (sequence, rows, tile) = ((place / 256 / heads) as usize, place / 16 % 16, place % 16);
            let there = rows * 128 < queries[sequence] && (tile * 128 < keys[sequence] || tile == 0);
            assert_eq!(*count, i64::from(there), "{row_blocks} row tiles, queries {queries:?}, keys {keys:?}, {place}");
        }
        // No block has much more than an equal share.
        let (most, all) = (found[places..].iter().max().expect("blocks"), found[places..].iter().sum::<i64>());
        assert!(*most <= all / BLOCKS as i64 * 5 / 4 + 4, "{most} of {all} tiles, {queries:?}, {keys:?}");
    }
}
