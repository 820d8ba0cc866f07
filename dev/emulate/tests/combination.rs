//! Generated merges, sums, copies and fills on a CPU, beside the oracle: sums, copies and fills byte by byte.

use std::collections::BTreeMap;

use qkvault_emulate::HostProgram;
use qkvault_graph::{Combination, DType, MOST_PARTS, Order, Partial, Role, Tensor, ValidCombination};
use qkvault_kernels::generate_combination;
use qkvault_reference::{Buffer, Inputs, combine};
use qkvault_skip::{Need, skip};

/// Random combinations of a run.
const CASES: u64 = 16;

struct Noise(u64);

impl Noise {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 ^ self.0 >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 13) % n
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    /// A tensor in a random order: contiguous, or with room behind rows or heads.
    fn tensor(&mut self, [b, h, s, d]: [i64; 4], dtype: DType) -> Tensor {
        let (more, behind) = (self.pick(&[0, 0, 1, 3]), self.pick(&[0, 0, 8, 3]));
        Tensor { dims: [b, h, s, d], ..Tensor::dense(self.pick(&Order::ALL), [b, h + more, s, d + behind], dtype) }
    }

    fn number(&mut self) -> f64 {
        (self.below(4001) as f64 - 2000.0) / 700.0
    }
}

fn random(noise: &mut Noise) -> Combination {
    let wide = [DType::BF16, DType::F16, DType::F32];
    let dims = [noise.pick(&[1, 2]), noise.pick(&[1, 2, 3]), noise.pick(&[1, 7, 33]), noise.pick(&[1, 8, 20, 64, 72])];
    let rows = [dims[0], dims[1], dims[2], 1];
    let parts = noise.pick(&[1, 2, 3, 4, 8, 17]);
    let (from, to) = (noise.pick(&wide), noise.pick(&wide));
    match noise.below(7) {
        0..=2 => {
            let part =
                |noise: &mut Noise| Partial { o: noise.tensor(dims, from), stats: noise.tensor(rows, DType::F32) };
            Combination::Merge {
                parts: (0..parts).map(|_| part(noise)).collect(),
                rows: noise.below(2) == 0,
                sink: noise.below(2) == 0,
                o: noise.tensor(dims, to),
                stats: (noise.below(3) > 0).then(|| noise.tensor(rows, DType::F32)),
            }
        }
        3 => {
            let same = noise.tensor(dims, from);
            let part = |noise: &mut Noise| if noise.below(2) == 0 { same } else { noise.tensor(dims, from) };
            let parts = (0..parts).map(|_| part(noise)).collect();
            Combination::Sum { parts, rows: noise.below(2) == 0, into: noise.tensor(dims, to) }
        }
        4 => {
            let dtype = noise.pick(&[DType::U8, DType::BF16, DType::F32, DType::I64, DType::I32]);
            Combination::Copy { from: noise.tensor(dims, dtype), to: noise.tensor(dims, dtype) }
        }
        5 => {
            let heads = dims[1] as u32 + noise.below(3) as u32;
            Combination::Keep { to: noise.tensor(dims, to), heads, below: noise.below(1 << 32) as u32 }
        }
        _ => {
            let hidden = noise.below(2) == 0;
            let dtype = if hidden { DType::F32 } else { noise.pick(&[DType::U8, DType::F16, DType::F32]) };
            Combination::Fill { to: noise.tensor(dims, dtype), hidden }
        }
    }
}

/// The operands of a launch: outputs are poisoned; some rows of parts are empty, and have an O that nobody may read;
/// some do not count, and are poisoned in all that they have.
fn operands(of: &ValidCombination, noise: &mut Noise) -> (Inputs, BTreeMap<Role, Vec<u8>>) {
    let (mut inputs, mut buffers) = (Inputs::new(), BTreeMap::new());
    for binding in of.bindings() {
        let len = binding.bytes as usize / binding.dtype.size();
        if binding.output {
            buffers.insert(binding.role, Buffer::poisoned(binding.dtype, len).into_bytes());
            continue;
        }
        if matches!(binding.role, Role::DropoutSeed | Role::DropoutOffset) {
            let bytes = (noise.below(1 << 40) << 20 ^ noise.below(1 << 30)).to_ne_bytes().to_vec();
            inputs.insert(binding.role, Buffer::new(binding.dtype, bytes.clone()).expect("one number"));
            buffers.insert(binding.role, bytes);
            continue;
        }
        let number = |_| match binding.role {
            Role::Scalar(_) => noise.below(70_000) as f64,
            Role::PartStats(_) if noise.below(3) == 0 => f64::NEG_INFINITY,
            Role::PartStats(_) | Role::Sink => noise.number() * 20.0,
            Role::PartRows(_) => f64::from(noise.below(3) > 0),
            _ => noise.number(),
        };
        let buffer = Buffer::from_values(binding.dtype, (0..len).map(number));
        buffers.insert(binding.role, buffer.bytes().to_vec());
        inputs.insert(binding.role, buffer);
    }
    // Each part: its tensor, and its Stats.
    let (told, parts): (bool, Vec<(Tensor, Option<Tensor>)>) = match &**of {
        Combination::Merge { parts, rows, .. } => (*rows, parts.iter().map(|p| (p.o, Some(p.stats))).collect()),
        Combination::Sum { parts, rows, .. } => (*rows, parts.iter().map(|p| (*p, None)).collect()),
        Combination::Copy { .. } | Combination::Fill { .. } | Combination::Keep { .. } => return (inputs, buffers),
    };
    let [b, h, s, d] = parts[0].0.dims.map(|n| n as usize);
    let address = |t: &Tensor, at: [usize; 4]| (0..4).map(|i| at[i] * t.strides[i] as usize).sum::<usize>();
    for (n, part) in (0..).zip(parts) {
        let mut buffer = inputs.get(Role::Part(n)).expect("there").clone();
        let mut stats = inputs.get(Role::PartStats(n)).cloned();
        let rows = inputs.get(Role::PartRows(n));
        for row in 0..b * h * s {
            let at = [row / s / h, row / s % h, row % s, 0];
            let counts = !told || rows.expect("there").int(at[0] * s + at[2]) != 0;
            let mut empty = !counts;
            if let Some((stats, lie)) = stats.as_mut().zip(part.1) {
                let place = address(&lie, at);
                empty |= stats.get(place) == f64::NEG_INFINITY;
                if !counts {
                    // What does not count is no number, or one that is larger than all others.
                    stats.set(place, [f64::NAN, 1e30][row % 2]);
                }
            }
            if empty {
                (0..d).for_each(|i| buffer.set(address(&part.0, [at[0], at[1], at[2], i]), f64::NAN));
            }
        }
        for (role, buffer) in [(Role::Part(n), Some(buffer)), (Role::PartStats(n), stats)] {
            let Some(buffer) = buffer else { continue };
            buffers.insert(role, buffer.bytes().to_vec());
            inputs.insert(role, buffer);
        }
    }
    (inputs, buffers)
}

/// The operands that are numbers of the host.
fn numbers(buffers: &BTreeMap<Role, Vec<u8>>) -> BTreeMap<Role, Vec<u8>> {
    buffers.iter().filter(|(role, _)| role.is_scalar()).map(|(role, bytes)| (*role, bytes.clone())).collect()
}

fn check(of: &ValidCombination, seed: u64) -> Result<(), String> {
    let made = generate_combination(of, 90);
    let program = HostProgram::compile(&made.source, &made.recipe, false).map_err(|error| error.to_string())?;
    let (inputs, mut buffers) = operands(of, &mut Noise(seed));
    let expected = combine(of, &inputs).map_err(|error| error.to_string())?;
    for turn in 0..2 {
        let numbers = numbers(&buffers);
        program.launch(&made.recipe, &mut buffers, &numbers, &[], seed + turn, 0).map_err(|e| e.to_string())?;
        for (role, buffer) in &expected {
            let found = Buffer::new(buffer.dtype(), buffers[role].clone()).expect("whole elements");
            let exact = !matches!(**of, Combination::Merge { .. });
            for at in 0..found.len() {
                let (x, y) = (found.get(at), buffer.get(at));
                let size = buffer.dtype().size();
                let same = found.bytes()[at * size..][..size] == buffer.bytes()[at * size..][..size];
                // f32 is rounded some times on the way, and the last place of the result once.
                let last = match buffer.dtype() {
                    DType::BF16 => 2f64.powi(-7),
                    DType::F16 => 2f64.powi(-10),
                    _ => 0.0,
                };
                let near = !exact && (x - y).abs() <= (last + 2e-6) * y.abs() + 2e-6;
                if !same && !near {
                    return Err(format!("launch {turn}: element {at} of {role} is {x}, {y} expected"));
                }
            }
        }
    }
    Ok(())
}

fn check_all(list: &[ValidCombination]) {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let one = |(seed, of): (u64, &ValidCombination)| check(of, seed).err().map(|e| format!("{seed}: {of}: {e}"));
    let wrong: Vec<String> = (0..).zip(list).filter_map(one).collect();
    assert!(wrong.is_empty(), "{} of {} are wrong: {wrong:#?}", wrong.len(), list.len());
}

#[test]
fn random_combinations_compute_what_the_oracle_computes() {
    let mut noise = Noise(3);
    let list: Vec<_> = (0..CASES).map(|_| random(&mut noise).validate().expect("sound")).collect();
    check_all(&list);
}

#[test]
fn as_many_parts_as_a_launch_combines() {
    let t = Tensor::bshd(1, 2, 3, 16, DType::BF16);
    let part = Partial { o: t, stats: Tensor::bhsd(1, 2, 3, 1, DType::F32) };
    let merge =
        Combination::Merge { parts: vec![part; MOST_PARTS], rows: true, sink: true, o: t, stats: Some(part.stats) };
    let sum = Combination::Sum { parts: vec![t; MOST_PARTS], rows: true, into: Tensor { dtype: DType::F32, ..t } };
    check_all(&[merge.validate().expect("sound"), sum.validate().expect("sound")]);
}

/// Parts of a mask that begin anywhere, in every order of dims: four keys have one counter, wherever a chunk begins.
#[test]
fn parts_of_dropout_masks_begin_anywhere() {
    let list = Order::ALL.into_iter().flat_map(|order| [DType::F16, DType::BF16].map(|dtype| (order, dtype)));
    let of = |(order, dtype)| {
        let to = Tensor::dense(order, [2, 3, 5, 37], dtype);
        Combination::Keep { to, heads: 7, below: 1 << 30 }.validate().expect("sound")
    };
    check_all(&list.map(of).collect::<Vec<_>>());
}

/// Faults of a mask, each of which must be noticed.
const FAULTS_OF_MASKS: [(&str, &str); 8] = [
    ("key / 4, query", "key / 4 + 1, query"),
    ("i > 0 && key % 4 == 0", "i > 0 && i % 4 == 0"),
    (" ^ (u32)(offset >> 32)", ""),
    ("(u32)(seed >> 32)", "0"),
    ("+ (u32)p.first_query", ""),
    ("+ (u32)p.first_head", ""),
    ("round < 10", "round < 9"),
    (">= BELOW", "> BELOW + (1u << 26)"),
];

#[test]
fn faults_of_a_dropout_mask_are_noticed() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let to = Tensor::bshd(2, 3, 9, 37, DType::BF16);
    let of = Combination::Keep { to, heads: 7, below: 1 << 30 }.validate().expect("sound");
    let made = generate_combination(&of, 90);
    for (right, fault) in FAULTS_OF_MASKS {
        assert!(made.source.contains(right), "{right}");
        let program = HostProgram::compile(&made.source.replace(right, fault), &made.recipe, false).expect("compiles");
        let noticed = (1..4).any(|seed| {
            let (inputs, mut buffers) = operands(&of, &mut Noise(seed));
            let expected = combine(&of, &inputs).expect("computes");
            let numbers = numbers(&buffers);
            let ran = program.launch(&made.recipe, &mut buffers, &numbers, &[], seed, 0);
            ran.is_err() || buffers[&Role::Into] != expected[&Role::Into].bytes()
        });
        assert!(noticed, "{right} -> {fault}");
    }
}

/// Faults in the source, each of which must be noticed.
const FAULTS: [(&str, &str); 7] = [
    ("if (log != -INFINITE)", "if (true)"),
    ("hidden ? 0.f : ", ""),
    ("if (sink != -INFINITE) total", "total"),
    ("weight * x[i]", "x[i]"),
    ("(counts) ? (stats)[at_stats] : -INFINITE", "(stats)[at_stats]"),
    ("if (counts) most", "most"),
    ("ALL_CHUNKS) return", "ALL_CHUNKS - 1) return"),
];

#[test]
fn faults_of_a_merge_are_noticed() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let o = Tensor::bshd(1, 2, 33, 20, DType::BF16);
    let part = Partial { o, stats: Tensor::bhsd(1, 2, 33, 1, DType::F32) };
    let of = |sink| {
        let merge = Combination::Merge { parts: vec![part; 2], rows: true, sink, o, stats: Some(part.stats) };
        merge.validate().expect("sound")
    };
    for (right, fault) in FAULTS {
        let noticed = [false, true].into_iter().any(|sink| {
            let (of, seed) = (of(sink), 5);
            let made = generate_combination(&of, 90);
            assert!(made.source.contains(right), "{right}");
            let program =
                HostProgram::compile(&made.source.replace(right, fault), &made.recipe, false).expect("compiles");
            let (inputs, mut buffers) = operands(&of, &mut Noise(seed));
            let expected = combine(&of, &inputs).expect("computes");
            let ran = program.launch(&made.recipe, &mut buffers, &BTreeMap::new(), &[], seed, 0);
            ran.is_err()
                || expected.iter().any(|(role, buffer)| {
                    let found = Buffer::new(buffer.dtype(), buffers[role].clone()).expect("whole elements");
                    (0..found.len()).any(|at| {
                        let (x, y) = (found.get(at), buffer.get(at));
                        x != y && (!(x - y).is_finite() || (x - y).abs() > 0.02 * y.abs() + 0.01)
                    })
                })
        });
        assert!(noticed, "{right} -> {fault}");
    }
}
