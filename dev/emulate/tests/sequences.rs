//! Lists of where sequences begin on a CPU: the kernel that makes them from lengths and offsets, beside the lengths.

use std::collections::BTreeMap;

use qkvault_emulate::HostProgram;
use qkvault_graph::{
    Attention, BackwardOptions, DType, PaddedRows, Role, Storage, Tensor, Valid, Varlen, buffer_len, operands, validate,
};
use qkvault_kernels::Sequences;
use qkvault_kernels::recipe::{self, Launch, LaunchRecipe, RECIPE_FORMAT, RecipeStep};
use qkvault_reference::POISON;
use qkvault_skip::{Need, skip};

/// Operands that stand for the places of the lists, which a test can read: none of them is bound otherwise.
const PLACES: [Role; 4] = [Role::Max, Role::SumExp, Role::DropoutSeed, Role::DropoutOffset];

/// Stands for the place of Stats of rows, as [`PLACES`] do.
const ROWS_OF_STATS: Role = Role::SoftmaxSum;

/// Stands for the place of the table of pages.
const BOTH_TABLES: Role = Role::DqAccum;

/// No number, in both types of 16 bits.
const NO_NUMBER: [u8; 2] = [0xff, 0x7f];

const BATCH: usize = 5;

/// What a launch reads: first rows and lengths, of queries and of keys.
#[derive(Clone, Debug)]
struct Lengths {
    rows: [[i64; BATCH + 1]; 2],
    used: [[i32; BATCH]; 2],
}

/// Sequences of some rows, one of none, with rows between that belong to no sequence.
fn lengths() -> Lengths {
    let rows = [[0, 9, 9, 30, 61, 99], [0, 40, 55, 55, 90, 120]];
    Lengths { rows, used: [[9, 0, 20, 31, 33], [40, 7, 0, 35, 30]] }
}

/// Varlen queries, and keys that are varlen or have room for the longest sequence.
fn attention(varlen_keys: bool, backward: bool) -> Valid {
    let batch = BATCH as i64;
    let q = Tensor::thd(batch, 4, 40, 32, 110, DType::BF16);
    let k = if varlen_keys {
        Tensor::thd(batch, 2, 48, 32, 130, DType::BF16)
    } else {
        Tensor::bshd(batch, 2, 48, 32, DType::BF16)
    };
    // Rows of a wider matrix, of another head dim.
    let o = Tensor { strides: [40 * 4 * 16 * 2, 16, 4 * 16 * 2, 1], ..Tensor::thd(batch, 4, 40, 16, 120, DType::BF16) };
    let v = Tensor { dims: [k.dims[0], k.dims[1], k.dims[2], 16], ..k };
    let a = Attention::forward(q, k, v, o).with_lengths().with_stats();
    let a = if backward { a.backward(BackwardOptions::default()) } else { a };
    validate(a).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn ints(list: &[i32]) -> Vec<u8> {
    list.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// Runs the kernels in front; the lists, and the buffers that a launch writes.
fn made(a: &Valid, given: &Lengths, shift: Option<(Varlen, usize, i64)>) -> ([Vec<i32>; 4], BTreeMap<Role, Vec<u8>>) {
    let lists = Sequences::for_attention(a, 0).expect("sequences one after another");
    let mut buffers = BTreeMap::from([(Role::SeqLenQ, ints(&given.used[0])), (Role::SeqLenKv, ints(&given.used[1]))]);
    for operand in operands(a) {
        if let Some(of) = operand.offsets() {
            let step = operand.tensor.strides[2];
            let side = usize::from([Role::K, Role::V, Role::DK, Role::DV].contains(&operand.role));
            let mut offsets = given.rows[side].map(|row| row * step);
            if let Some((_, at, by)) = shift.filter(|(which, ..)| *which == of) {
                offsets[at] += by;
            }
            buffers.insert(Role::Offsets(of), offsets.iter().flat_map(|n| n.to_le_bytes()).collect());
        }
        if operand.output {
            let bytes = buffer_len(a, operand.role).expect("a size") * operand.tensor.dtype.size();
            buffers.insert(operand.role, vec![POISON; bytes]);
        }
    }
    for (role, count) in PLACES.into_iter().zip([BATCH + 1, BATCH + 1, BATCH, BATCH]) {
        buffers.insert(role, vec![POISON; count * 4]);
    }
    run(&lists, &lists.before, &mut buffers);
    (PLACES.map(|role| numbers(&buffers[&role])), buffers)
}

/// Runs some of the kernels, with the lists in buffers of [`PLACES`], and Stats of rows in one for [`ROWS_OF_STATS`].
fn run(lists: &Sequences, launches: &[Launch], buffers: &mut BTreeMap<Role, Vec<u8>>) {
    let mut launches = launches.to_vec();
    let patches = launches.iter_mut().flat_map(|launch| &mut launch.params).flat_map(|param| &mut param.patches);
    for patch in patches {
        if let recipe::LaunchValue::Scratch(at) = patch.value {
            match lists.at.iter().position(|known| *known == at) {
                Some(place) => patch.value = recipe::LaunchValue::Address(PLACES[place]),
                None if lists.stats == Some(at) => patch.value = recipe::LaunchValue::Address(ROWS_OF_STATS),
                None if lists.tables == Some(at) => patch.value = recipe::LaunchValue::Address(BOTH_TABLES),
                None => {}
            }
        }
    }
    let steps = launches.into_iter().map(RecipeStep::Launch).collect();
    let (scratch, modules, constants) = (lists.end, Vec::new(), 0);
    let recipe = LaunchRecipe { format: RECIPE_FORMAT, sm: 90, driver: 13_000, scratch, modules, constants, steps };
    // Each function is in the table of the program, so all of the source is compiled.
    let program = HostProgram::compile(&lists.source, &recipe, false).expect("compiles");
    program.launch(&recipe, buffers, &BTreeMap::new(), &[], 3, POISON).expect("runs");
}

fn numbers(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks(4).map(|four| i32::from_le_bytes(four.try_into().expect("four"))).collect()
}

/// Which elements of an operand the sequences have.
fn of_sequences(a: &Valid, role: Role, given: &Lengths) -> Vec<bool> {
    let tensor = a.stored(role).expect("an operand");
    let side = usize::from([Role::K, Role::V, Role::DK, Role::DV].contains(&role));
    let mut list = vec![false; buffer_len(a, role).expect("a size")];
    for (batch, used) in given.used[side].into_iter().enumerate() {
        let first = match tensor.storage {
            Storage::Varlen { .. } => given.rows[side][batch] * tensor.strides[2],
            _ => batch as i64 * tensor.strides[0],
        };
        for row in 0..i64::from(used) {
            for (head, column) in (0..tensor.dims[1]).flat_map(|head| (0..tensor.dims[3]).map(move |c| (head, c))) {
                list[(first + row * tensor.strides[2] + head * tensor.strides[1] + column) as usize] = true;
            }
        }
    }
    list
}

fn can_run() -> bool {
    if !HostProgram::can_run() {
        skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    HostProgram::can_run()
}

#[test]
fn lists_are_the_rows_and_lengths_of_the_operands() {
    if !can_run() {
        return;
    }
    let given = lengths();
    for (varlen_keys, backward) in [(true, false), (false, false), (true, true), (false, true)] {
        let a = attention(varlen_keys, backward);
        let (lists, buffers) = made(&a, &given, None);
        let rows = |side: usize, rows: [i64; BATCH + 1], last: i32| -> Vec<i32> {
            let first = |batch: usize| if given.used[side][batch] == 0 { 0 } else { rows[batch] as i32 };
            (0..BATCH).map(first).chain([last]).collect()
        };
        let of_keys = if varlen_keys { given.rows[1] } else { std::array::from_fn(|batch| batch as i64 * 48) };
        let expected = [rows(0, given.rows[0], 110), rows(1, of_keys, if varlen_keys { 130 } else { 240 })];
        let [used_q, used_k] = given.used.map(|list| list.to_vec());
        assert_eq!(lists, [expected[0].clone(), expected[1].clone(), used_q, used_k], "{a}");
        for operand in operands(&a).into_iter().filter(|operand| operand.output) {
            assert!(buffers[&operand.role].iter().all(|byte| *byte == POISON), "{a}: {} is written", operand.role);
        }
    }
}

#[test]
fn what_lists_cannot_say_leaves_no_rows_and_no_numbers() {
    if !can_run() {
        return;
    }
    let good = lengths();
    let with = |change: fn(&mut Lengths)| {
        let mut given = good.clone();
        change(&mut given);
        given
    };
    let faults = [
        // O or V begin elsewhere than Q or K, between two rows, or before the operand.
        (good.clone(), Some((Varlen::O, 2, 128))),
        (good.clone(), Some((Varlen::O, 3, 1))),
        (good.clone(), Some((Varlen::V, 3, 32))),
        (good.clone(), Some((Varlen::K, 0, -64))),
        // More rows than there is room for, or than the longest sequence may have.
        (with(|given| (given.rows[0][4], given.used[0][4]) = (75, 40)), None),
        (with(|given| given.used[1][0] = 49), None),
        (with(|given| given.used[0][2] = -1), None),
    ];
    for (given, shift) in faults {
        for backward in [false, true] {
            let a = attention(true, backward);
            let (lists, buffers) = made(&a, &given, shift);
            let what = format!("{a}, {shift:?}");
            assert!(lists[2..].iter().flatten().all(|used| *used == 0), "{what}: {lists:?}");
            let written = operands(&a).into_iter().filter(|operand| operand.output && operand.role != Role::Stats);
            for operand in written.filter(|_| shift.is_some()) {
                let moved = shift.is_some_and(|(which, ..)| operand.offsets() == Some(which));
                let of = of_sequences(&a, operand.role, &given);
                for (at, bytes) in buffers[&operand.role].chunks(2).enumerate().filter(|_| !moved) {
                    let expected = if of[at] { NO_NUMBER } else { [POISON; 2] };
                    assert_eq!(bytes, expected, "{what}: element {at} of {}", operand.role);
                }
            }
        }
    }
}

#[test]
fn sequences_of_a_backward_whose_rows_overlap_are_noticed() {
    if !can_run() {
        return;
    }
    let mut given = lengths();
    (given.rows[0][2], given.rows[0][0]) = (0, 40);
    let a = attention(true, true);
    assert!(made(&a, &given, None).0[2].iter().all(|used| *used == 0));
    let forward = attention(true, false);
    assert_eq!(made(&forward, &given, None).0[2], given.used[0]);
}

/// Rows of a page, and pages of the pools.
const PAGE: (i64, i64) = (16, 20);

/// Varlen queries over keys and values in pages, and a table for each: pages of the sequences in order.
fn paged() -> (Valid, [Vec<i32>; 2]) {
    let batch = BATCH as i64;
    let q = Tensor::thd(batch, 4, 40, 32, 110, DType::BF16);
    let pool = Tensor::paged_nhd(batch, 2, 48, 32, PAGE.1, PAGE.0, DType::BF16);
    let a = validate(Attention::forward(q, pool, pool, q).with_lengths()).unwrap_or_else(|refusal| panic!("{refusal}"));
    // Entries behind a sequence's pages are not read, so they may be anything.
    let mut next = 0;
    let table = lengths().used[1].into_iter().flat_map(|keys| {
        let pages = (keys + PAGE.0 as i32 - 1) / PAGE.0 as i32;
        let row: [i32; 3] = std::array::from_fn(|n| if (n as i32) < pages { (next + n as i32) * 7 % 20 } else { 99 });
        next += pages;
        row
    });
    let table: Vec<i32> = table.collect();
    (a, [table.clone(), table])
}

/// The lists over pages, the table of both pools, and O.
fn made_of_pages(a: &Valid, given: &Lengths, tables: &[Vec<i32>; 2]) -> ([Vec<i32>; 4], Vec<i32>, Vec<u8>) {
    let lists = Sequences::for_attention(a, 0).expect("sequences one after another");
    let step = a.q.strides[2];
    let offsets: Vec<u8> = given.rows[0].iter().flat_map(|row| (row * step).to_le_bytes()).collect();
    let o = vec![POISON; buffer_len(a, Role::O).expect("a size") * 2];
    let mut buffers = BTreeMap::from([
        (Role::SeqLenQ, ints(&given.used[0])),
        (Role::SeqLenKv, ints(&given.used[1])),
        (Role::Offsets(Varlen::Q), offsets.clone()),
        (Role::Offsets(Varlen::O), offsets),
        (Role::PageTableK, ints(&tables[0])),
        (Role::PageTableV, ints(&tables[1])),
        (Role::O, o),
    ]);
    for (role, count) in PLACES.into_iter().zip([BATCH + 1, BATCH + 1, BATCH, BATCH]) {
        buffers.insert(role, vec![POISON; count * 4]);
    }
    buffers.insert(BOTH_TABLES, vec![POISON; tables[0].len() * 8]);
    run(&lists, &lists.before, &mut buffers);
    let o = buffers.remove(&Role::O).expect("is there");
    (PLACES.map(|role| numbers(&buffers[&role])), numbers(&buffers[&BOTH_TABLES]), o)
}

/// sglang #5505: over pages of one row, whose tables of keys and values differed, FlashAttention-4 gave no numbers.
#[test]
fn tables_of_keys_and_values_that_differ_become_one() {
    if !can_run() {
        return;
    }
    let (a, mut tables) = paged();
    let given = lengths();
    tables[1].iter_mut().for_each(|page| *page = if *page == 99 { 99 } else { 19 - *page });
    let (lists, both, o) = made_of_pages(&a, &given, &tables);
    assert_eq!(lists[2..], given.used.map(|list| list.to_vec()));
    assert!(o.iter().all(|byte| *byte == POISON));
    let named = (0..tables[0].len()).filter(|at| tables[0][*at] != 99).collect::<Vec<_>>();
    assert!(named.len() > 8 && named.iter().any(|at| tables[0][*at] != tables[1][*at]), "{tables:?}");
    for at in named {
        assert_eq!([both[2 * at], both[2 * at + 1]], [tables[0][at], tables[1][at]], "page {at}");
    }
}

#[test]
fn pages_that_a_pool_does_not_have_leave_no_rows_and_no_numbers() {
    if !can_run() {
        return;
    }
    let (a, tables) = paged();
    let given = lengths();
    let lists = made_of_pages(&a, &given, &tables).0;
    // Behind the pool and before it, each in the last page of a sequence.
    for (table, at, page) in [(0, 2, 20), (1, 2, 20), (0, 11, -1), (1, 11, -1), (0, 3, 40)] {
        let mut wrong = tables.clone();
        wrong[table][at] = page;
        let (lists, _, o) = made_of_pages(&a, &given, &wrong);
        assert!(lists[2..].iter().flatten().all(|used| *used == 0), "{table} {at} {page}: {lists:?}");
        let of = of_sequences(&a, Role::O, &given);
        for (bytes, of) in o.chunks(2).zip(of) {
            assert_eq!(bytes, if of { NO_NUMBER } else { [POISON; 2] }, "{table} {at} {page}");
        }
    }
    // Entries that no row needs.
    let mut beyond = tables.clone();
    (beyond[0][6], beyond[1][6]) = (-5, 1 << 20);
    assert_eq!(made_of_pages(&a, &given, &beyond).0, lists);
}

/// An attention with padded rows as zeros: queries and keys varlen, or with room for the longest sequence.
fn zeros(varlen: bool, backward: bool) -> Valid {
    let batch = BATCH as i64;
    let tensor = |heads, rows, tokens| match varlen {
        true => Tensor::thd(batch, heads, rows, 32, tokens, DType::BF16),
        false => Tensor::bshd(batch, heads, rows, 32, DType::BF16),
    };
    let (q, k) = (tensor(4, 40, 110), tensor(2, 48, 130));
    let mut a = Attention::forward(q, k, k, q).with_lengths().with_stats();
    a.padded_rows = PaddedRows::Zero;
    let a = if backward { a.backward(BackwardOptions::default()) } else { a };
    validate(a).unwrap_or_else(|refusal| panic!("{refusal}"))
}

#[test]
fn rows_of_no_sequence_become_zeros_and_all_others_are_left() {
    if !can_run() {
        return;
    }
    let given = lengths();
    for (varlen, backward) in [(true, false), (false, false), (true, true), (false, true)] {
        let a = zeros(varlen, backward);
        let lists = Sequences::for_attention(&a, 0).expect("sequences one after another");
        assert_eq!(lists.before[0].function, "fill_rows");
        let mut written: Vec<Role> = operands(&a).into_iter().filter(|one| one.output).map(|one| one.role).collect();
        written.retain(|role| *role != Role::Stats || varlen);
        let mut given_bytes =
            BTreeMap::from([(Role::SeqLenQ, ints(&given.used[0])), (Role::SeqLenKv, ints(&given.used[1]))]);
        for operand in operands(&a) {
            if let Some(of) = operand.offsets() {
                given_bytes.insert(Role::Offsets(of), vec![0; (BATCH + 1) * 8]);
            }
            if written.contains(&operand.role) || operand.role == Role::Stats {
                let bytes = buffer_len(&a, operand.role).expect("a size") * operand.tensor.dtype.size();
                given_bytes.insert(operand.role, vec![POISON; bytes]);
            }
        }
        for role in PLACES.into_iter().chain([ROWS_OF_STATS]) {
            given_bytes.insert(role, vec![POISON; BATCH * 40 * 4 * 4]);
        }
        run(&lists, &lists.before[..1], &mut given_bytes);
        for role in written {
            let of = of_sequences(&a, role, &given);
            let size = a.stored(role).expect("an operand").dtype.size();
            let zero = if role == Role::Stats { f32::NEG_INFINITY.to_le_bytes().to_vec() } else { vec![0; size] };
            for (at, (bytes, of)) in given_bytes[&role].chunks(size).zip(of).enumerate() {
                // Rows of varlen operands are all filled, since sequences write theirs later.
                let left = of && !varlen;
                assert_eq!(bytes, if left { vec![POISON; size] } else { zero.clone() }, "{a}: element {at} of {role}");
            }
        }
    }
}

#[test]
fn stats_of_dense_queries_are_moved_there_and_back() {
    if !can_run() {
        return;
    }
    let given = lengths();
    let (heads, rows) = (4, 40);
    let dense: Vec<f32> = (0..BATCH * heads * rows).map(|n| n as f32).collect();
    let bytes = |list: &[f32]| list.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let place = |batch: usize, head: usize, row: usize| {
        ((batch * heads + head) * rows + row, (batch * rows + row) * heads + head)
    };
    let buffers = |stats: Vec<u8>, of_rows: Vec<u8>| {
        let lists = PLACES.into_iter().zip([vec![0; 24], vec![0; 24], ints(&given.used[0]), ints(&given.used[1])]);
        let mut all: BTreeMap<Role, Vec<u8>> = lists.collect();
        all.extend([(Role::SeqLenQ, ints(&given.used[0])), (Role::SeqLenKv, ints(&given.used[1]))]);
        all.extend([(Role::Stats, stats), (ROWS_OF_STATS, of_rows)]);
        for role in [Role::O, Role::DQ, Role::DK, Role::DV] {
            all.insert(role, vec![POISON; 1 << 16]);
        }
        all
    };
    let empty = || vec![POISON; dense.len() * 4];

    let a = zeros(false, true);
    let lists = Sequences::for_attention(&a, 0).expect("sequences one after another");
    let gather = lists.before.last().expect("there are some");
    assert_eq!((gather.function.as_str(), lists.after.len()), ("gather_stats", 0));
    let mut of_rows = buffers(bytes(&dense), empty());
    run(&lists, std::slice::from_ref(gather), &mut of_rows);
    let of_rows = of_rows.remove(&ROWS_OF_STATS).expect("is there");

    let a = zeros(false, false);
    let lists = Sequences::for_attention(&a, 0).expect("sequences one after another");
    assert_eq!(lists.after.iter().map(|launch| launch.function.as_str()).collect::<Vec<_>>(), ["spread_stats"]);
    let mut back = buffers(empty(), of_rows.clone());
    run(&lists, &lists.after, &mut back);
    let mut refused = buffers(empty(), of_rows.clone());
    refused.insert(PLACES[2], vec![0; BATCH * 4]);
    run(&lists, &lists.after, &mut refused);

    let number = |of: &[u8], at: usize| f32::from_le_bytes(of[at * 4..at * 4 + 4].try_into().expect("four"));
    for (batch, length) in given.used[0].into_iter().enumerate() {
        for (head, row) in (0..heads).flat_map(|head| (0..rows).map(move |row| (head, row))) {
            let (apart, together) = place(batch, head, row);
            let within = row < length as usize;
            let found = [number(&back[&Role::Stats], apart), number(&refused[&Role::Stats], apart)];
            if within {
                assert_eq!((number(&of_rows, together), found[0]), (dense[apart], dense[apart]));
                assert!(found[1].is_nan(), "sequences that lists cannot say have no numbers");
            } else {
                assert_eq!(of_rows[together * 4..together * 4 + 4], [POISON; 4]);
                assert_eq!(found, [f32::NEG_INFINITY; 2]);
            }
        }
    }
}
