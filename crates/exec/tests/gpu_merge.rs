//! Merges, sums, copies and fills on a real GPU: copies, fills and sums have the bytes of the oracle, merges its
//! numbers; gaps between elements stay as they are, and a second launch writes the same bytes.
//!
//! The tests need a driver, a cuDNN, a vault folder `QKVAULT_TEST_VAULT` (it may be empty) and NVRTC. Without them they
//! are skipped, or fail with `QKVAULT_REQUIRE=gpu`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::collections::BTreeMap;

use cudarc::driver::CudaSlice;
use kit::Gpu;
use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{OnMiss, Planner};
use qkvault_exec::{Args, cudarc};
use qkvault_graph::{Combination, DType, Order, Partial, Role, Tensor};
use qkvault_reference::{Buffer, Inputs, POISON, combine};

fn open() -> Option<(Gpu, Planner)> {
    let gpu = Gpu::with_nvrtc()?;
    Some((gpu, Planner::new(Vault::in_memory(VaultOptions::new()), None)))
}

/// Numbers of an operand. A third of the rows of a part is empty, and a third of those that are told does not count.
fn numbers(role: Role, dtype: DType, count: usize, seed: u64) -> Buffer {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let number = |_| {
        let x = (next() % 4001) as f64 / 700.0 - 2.8;
        match role {
            Role::PartStats(_) if next().is_multiple_of(3) => f64::NEG_INFINITY,
            Role::PartStats(_) | Role::Sink => x * 20.0,
            Role::PartRows(_) => f64::from(u8::from(!next().is_multiple_of(3))),
            _ => x,
        }
    };
    Buffer::from_values(dtype, (0..count).map(number))
}

/// How far the result may be from the oracle's: the last place of its type, and the steps in f32 of a merge.
fn near(dtype: DType, x: f64, y: f64) -> bool {
    let last = match dtype {
        DType::BF16 => 2f64.powi(-7),
        DType::F16 => 2f64.powi(-10),
        _ => 0.0,
    };
    x == y || (x - y).abs() <= (last + 4e-6) * y.abs() + 4e-6
}

/// Launches twice over poisoned outputs, and compares with the oracle.
fn check(gpu: &Gpu, planner: &Planner, combination: Combination, seed: u64) {
    let of = combination.validate().expect("sound");
    let plan = gpu.engine.session().prepare_combination(planner, &of, OnMiss::Compile);
    let plan = plan.unwrap_or_else(|error| panic!("{of}: {error}"));
    let bindings = of.bindings();
    let mut inputs = Inputs::new();
    let mut memory: BTreeMap<Role, CudaSlice<u8>> = BTreeMap::new();
    for (n, binding) in (1..).zip(&bindings) {
        let bytes = if binding.output {
            vec![POISON; binding.bytes as usize]
        } else {
            let count = binding.bytes as usize / binding.dtype.size();
            let buffer = numbers(binding.role, binding.dtype, count, seed * 100 + n);
            let bytes = buffer.bytes().to_vec();
            inputs.insert(binding.role, buffer);
            bytes
        };
        memory.insert(binding.role, gpu.stream.clone_htod(&bytes).expect("copies"));
    }
    let expected = combine(&of, &inputs).expect("computes");
    let exact = !matches!(*of, Combination::Merge { .. });
    let mut first: BTreeMap<Role, Vec<u8>> = BTreeMap::new();
    for turn in 0..2 {
        let mut args = Args::new();
        for (role, slice) in &mut memory {
            let output = bindings.iter().any(|b| b.role == *role && b.output);
            args = if output { args.tensor_mut(*role, slice) } else { args.tensor(*role, &*slice) };
        }
        plan.launch(&gpu.stream, args).unwrap_or_else(|error| panic!("{of}: {error}"));
        for (role, wanted) in &expected {
            let found = gpu.stream.clone_dtoh(&memory[role]).expect("copies");
            if let Some(before) = first.insert(*role, found.clone()) {
                assert!(before == found, "{of}: launch {turn} writes other bytes of {role}");
            }
            let found = Buffer::new(wanted.dtype(), found).expect("whole elements");
            let size = wanted.dtype().size();
            let wrong = (0..found.len()).find(|&at| {
                let same = found.bytes()[at * size..][..size] == wanted.bytes()[at * size..][..size];
                !same && (exact || wanted.is_poison(at) || !near(wanted.dtype(), found.get(at), wanted.get(at)))
            });
            if let Some(at) = wrong {
                panic!("{of}: element {at} of {role} is {}, {} expected", found.get(at), wanted.get(at));
            }
        }
    }
}

/// A tensor of one of several layouts: contiguous in any order, or with room behind rows and heads.
fn laid(n: usize, [b, h, s, d]: [i64; 4], dtype: DType) -> Tensor {
    let (heads, behind) = ([0, 2, 0][n % 3], [0, 8, 3, 0][n % 4]);
    Tensor { dims: [b, h, s, d], ..Tensor::dense(Order::ALL[n / 2 % 3], [b, h + heads, s, d + behind], dtype) }
}

const DIMS: [[i64; 4]; 5] = [[2, 3, 33, 192], [16, 8, 1, 128], [3, 4, 100, 128], [1, 1, 77, 20], [1, 3, 45, 256]];

/// Merges of every type and layout, each with the seed of its numbers.
fn merges() -> Vec<(Combination, u64)> {
    let types = [DType::BF16, DType::F16, DType::F32];
    let merge = |n: usize| {
        let dims = DIMS[n % 5];
        let rows = [dims[0], dims[1], dims[2], 1];
        let part = |i: usize| Partial { o: laid(n + i, dims, types[n % 3]), stats: laid(n / 2 + i, rows, DType::F32) };
        let merge = Combination::Merge {
            parts: (0..[2, 1, 4, 8, 3][n / 2 % 5]).map(part).collect(),
            rows: n % 3 == 1,
            sink: n % 4 == 1,
            o: laid(n / 3, dims, types[n / 3 % 3]),
            stats: (n % 5 != 3).then(|| laid(n, rows, DType::F32)),
        };
        (merge, n as u64 + 1)
    };
    (0..24).map(merge).collect()
}

/// Sums, copies and fills of every type and layout.
fn others() -> Vec<(Combination, u64)> {
    let types = [DType::BF16, DType::F16, DType::F32];
    let mut list = Vec::new();
    for n in 0..24 {
        let dims = DIMS[n % 5];
        let sum = Combination::Sum {
            parts: (0..[2, 1, 4, 16, 64][n % 5]).map(|i| laid(n + i % 2, dims, types[n % 3])).collect(),
            rows: n % 2 == 1,
            into: laid(n / 3, dims, types[n / 3 % 3]),
        };
        list.push((sum, n as u64 + 50));
        let dtype = [DType::F32, DType::U8, DType::BF16, DType::I64][n % 4];
        list.push((Combination::Copy { from: laid(n, dims, dtype), to: laid(n / 2, dims, dtype) }, n as u64));
        let (hidden, dtype) = (n % 4 == 0, if n % 4 == 2 { DType::BF16 } else { DType::F32 });
        list.push((Combination::Fill { to: laid(n, dims, dtype), hidden }, n as u64));
    }
    list
}

#[test]
fn merges_of_every_type_and_layout_have_the_numbers_of_the_oracle() {
    let Some((gpu, planner)) = open() else { return };
    merges().into_iter().for_each(|(merge, seed)| check(&gpu, &planner, merge, seed));
}

#[test]
fn sums_copies_and_fills_have_the_bytes_of_the_oracle() {
    let Some((gpu, planner)) = open() else { return };
    others().into_iter().for_each(|(of, seed)| check(&gpu, &planner, of, seed));
}

/// Without a GPU: the oracle computes all of them, unoptimised, in seconds.
#[test]
fn the_oracle_is_asked_for_few_numbers() {
    let mut all = 0;
    for (of, _) in merges().into_iter().chain(others()) {
        let of = of.validate().expect("sound");
        let read = |b: &qkvault_graph::Binding| b.bytes / b.dtype.size() as u64;
        all += of.bindings().iter().map(read).sum::<u64>();
    }
    assert!((4_000_000..40_000_000).contains(&all), "{all}");
}
