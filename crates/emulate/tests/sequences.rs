//! Lists of where sequences begin on a CPU: the kernel that makes them from lengths and offsets, beside the lengths.

use std::collections::BTreeMap;

use qkvault_emulate::Program;
use qkvault_graph::{
    Attention, BackwardOptions, DType, Role, Storage, Tensor, Valid, Varlen, buffer_len, operands, validate,
};
use qkvault_kernels::Sequences;
use qkvault_kernels::recipe::{self, RECIPE_FORMAT, Recipe, Step};
use qkvault_reference::POISON;
use qkvault_skip::{Need, skip};

/// Operands that stand for the places of the lists, which a test can read: none of them is bound otherwise.
const PLACES: [Role; 4] = [Role::Max, Role::SumExp, Role::DropoutSeed, Role::DropoutOffset];

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

/// Runs the kernel; the lists, and the buffers that a launch writes.
fn made(a: &Valid, given: &Lengths, shift: Option<(Varlen, usize, i64)>) -> ([Vec<i32>; 4], BTreeMap<Role, Vec<u8>>) {
    let lists = Sequences::of(a, 0).expect("sequences one after another");
    let mut launch = lists.launch.clone();
    for patch in launch.params.iter_mut().flat_map(|param| &mut param.patches) {
        if let recipe::Value::Scratch(at) = patch.value {
            let place = lists.at.iter().position(|known| *known == at).expect("one of the lists");
            patch.value = recipe::Value::Address(PLACES[place]);
        }
    }
    let steps = vec![Step::Launch(launch)];
    let recipe = Recipe { format: RECIPE_FORMAT, sm: 90, driver: 13_000, scratch: 0, modules: Vec::new(), steps };
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
    let program = Program::compile(&lists.source, &recipe).expect("compiles");
    program.launch(&recipe, &mut buffers, &BTreeMap::new(), &[], 3, POISON).expect("runs");
    let numbers = |role| -> Vec<i32> {
        let bytes: &Vec<u8> = &buffers[&role];
        bytes.chunks(4).map(|four| i32::from_le_bytes(four.try_into().expect("four"))).collect()
    };
    (PLACES.map(numbers), buffers)
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
    if !Program::can_run() {
        skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    Program::can_run()
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
