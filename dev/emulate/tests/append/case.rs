//! Appends with what they read: random lengths, offsets, tables and numbers, and what a launch leaves in the caches.

use std::collections::BTreeMap;

use qkvault_emulate::HostProgram;
use qkvault_graph::{CacheAppend, DType, Role, Storage, Tensor, ValidCacheAppend, Varlen};
use qkvault_kernels::generate_append;
use qkvault_kernels::recipe::LaunchRecipe;
use qkvault_reference::{Buffer, Inputs, POISON, append_to_caches};

use crate::several::{INSTRUCTIONS, in_namespace};

/// Numbers without an order that any kernel knows.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ self.0 >> 29;
        x.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 13
    }

    pub(crate) fn below(&mut self, n: i64) -> i64 {
        (self.next() % n.unsigned_abs()) as i64
    }

    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as i64) as usize]
    }
}

/// An append with what it reads, caches included.
pub(crate) struct Case {
    pub(crate) append: ValidCacheAppend,
    pub(crate) inputs: Inputs,
}

impl Case {
    /// `wild`: lengths, offsets and tables say anything.
    pub(crate) fn new(append: CacheAppend, noise: &mut Noise, wild: bool) -> Case {
        let append = append.validate().expect("sound");
        let mut inputs = Inputs::new();
        let (rows, keys, batch) = (append.new_k.seq(), append.k.seq(), append.k.batch());
        let mut counts: Vec<i32> = (0..batch).map(|_| noise.below(rows.min(keys) + 1) as i32).collect();
        let mut lengths: Vec<i32> = counts.iter().map(|&n| n + noise.below(keys - i64::from(n) + 1) as i32).collect();
        for at in 0..if wild { batch as usize } else { 0 } {
            match noise.below(8) {
                0 => counts[at] = noise.pick(&[-1, i32::MIN, i32::MAX, rows as i32 + 3]),
                1 => lengths[at] = noise.pick(&[-7, i32::MIN, i32::MAX, keys as i32 + 2]),
                // Some positions below 0.
                2 => lengths[at] = (counts[at] - 2).max(0),
                _ => {}
            }
        }
        for binding in append.bindings() {
            let count = binding.bytes as usize / binding.dtype.size();
            let ints = |numbers: &[i32]| {
                Buffer::new(DType::I32, numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()).expect("whole")
            };
            let buffer = match binding.role {
                Role::SeqLenQ => ints(&counts),
                Role::SeqLenKv => ints(&lengths),
                Role::PageTableK => ints(&table(&append.k, count, noise, wild)),
                Role::PageTableV => ints(&table(&append.v, count, noise, wild)),
                Role::Offsets(_) => {
                    let new = if binding.role == Role::Offsets(Varlen::NewK) { append.new_k } else { append.new_v };
                    offsets(&new, &counts, noise, wild)
                }
                Role::Descale(_) => Buffer::from_values(DType::F32, [noise.pick(&[1.0, 0.037, 300.0, -2.0, 1e-30])]),
                Role::NewK | Role::NewV => numbers(binding.dtype, count, noise),
                _ => Buffer::poisoned(binding.dtype, count),
            };
            inputs.insert(binding.role, buffer);
        }
        Case { append, inputs }
    }

    /// The source in a namespace of its own, and the recipe with functions of that namespace.
    pub(crate) fn written(&self, at: usize) -> (String, LaunchRecipe) {
        let made = generate_append(&self.append, 90).expect("is taken");
        let has = made.source.contains(INSTRUCTIONS[0]);
        assert_eq!(has, self.append.narrows(), "the instructions are in the source");
        in_namespace(made, at)
    }

    /// Runs the recipe and compares every byte of both caches: the first difference, or why a launch failed.
    pub(crate) fn differs(&self, at: usize, program: &HostProgram, recipe: &LaunchRecipe) -> Option<String> {
        let of = &self.append;
        let mut buffers: BTreeMap<Role, Vec<u8>> =
            self.inputs.iter().map(|(role, buffer)| (role, buffer.bytes().to_vec())).collect();
        let ran = program.launch(recipe, &mut buffers, &BTreeMap::new(), &[], at as u64, POISON);
        if let Err(error) = ran {
            return Some(format!("case {at}, {of}: {error}"));
        }
        let expected = append_to_caches(of, &self.inputs).expect("computes");
        for (role, found) in buffers {
            let buffer = expected.get(&role).or_else(|| self.inputs.get(role)).expect("bound");
            if let Some(byte) = (0..found.len()).find(|&i| found[i] != buffer.bytes()[i]) {
                let was = Buffer::new(buffer.dtype(), found).expect("whole elements");
                let element = byte / buffer.dtype().size();
                let (was, needed) = (was.get(element), buffer.get(element));
                return Some(format!("case {at}, {of}: element {element} of {role} is {was}, {needed} expected"));
            }
        }
        None
    }
}

/// Pages of a pool in any order, each of one sequence.
fn table(pool: &Tensor, count: usize, noise: &mut Noise, wild: bool) -> Vec<i32> {
    let Storage::Paged { pages, .. } = pool.storage else { panic!("paged") };
    let mut free: Vec<i32> = (0..pages as i32).collect();
    (0..count)
        .map(|_| match noise.below(if wild { 4 } else { i64::MAX }) {
            0 => noise.pick(&[-1, pages as i32, i32::MAX, i32::MIN]),
            _ => free.swap_remove(noise.below(free.len() as i64) as usize),
        })
        .collect()
}

/// Where sequences begin, one behind the other.
fn offsets(new: &Tensor, counts: &[i32], noise: &mut Noise, wild: bool) -> Buffer {
    let Storage::Varlen { tokens } = new.storage else { panic!("varlen") };
    let (mut row, step) = (0, new.strides[2]);
    let mut all: Vec<i64> = vec![0];
    for count in counts {
        row = (row + i64::from(*count).clamp(0, new.seq())).min(tokens);
        all.push(row * step);
    }
    for offset in &mut all {
        if wild && noise.below(6) == 0 {
            *offset = noise.pick(&[
                -step,
                i64::MIN,
                i64::MAX,
                i64::MAX / step * step,
                tokens * step,
                step + 1,
                (tokens - 1) * step,
            ]);
        }
    }
    Buffer::new(DType::I64, all.iter().flat_map(|n| n.to_ne_bytes()).collect()).expect("whole")
}

/// Every kind of number: NaNs, infinities, subnormal ones and those that saturate.
fn numbers(dtype: DType, count: usize, noise: &mut Noise) -> Buffer {
    if noise.below(2) == 0 {
        let bytes = (0..count * 2).map(|_| noise.next() as u8).collect();
        return Buffer::new(dtype, bytes).expect("whole elements");
    }
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e-7, 448.0, -60_000.0];
    let number = |_| match noise.below(6) {
        0 => noise.pick(&special),
        _ => (noise.below(1 << 20) - (1 << 19)) as f64 * 2f64.powi(noise.below(20) as i32 - 22),
    };
    Buffer::from_values(dtype, (0..count).map(number).collect::<Vec<_>>())
}
