//! Appends to caches on a CPU: every byte of both pools is that of the oracle, whatever lengths and tables say.
//! Functions that round by hand take the place of the GPU's instructions.

mod case;
#[path = "../several/mod.rs"]
mod several;

use case::{Case, Noise};
use qkvault_emulate::HostProgram;
use qkvault_graph::{CacheAppend, DType, Role, Scaled, Tensor, Varlen};
use qkvault_kernels::recipe::LaunchRecipe;
use qkvault_reference::{Buffer, Inputs};
use qkvault_skip::{Need, skip};
use several::one_program;

/// Compiles all cases as one program, with one text of the sources in place of another, and compares each with the
/// oracle.
fn differences(cases: &[Case], fault: Option<[&str; 2]>) -> Vec<String> {
    let (program, recipes) = one_program(cases.iter().enumerate().map(|(at, case)| case.written(at)), fault);
    let of = |(at, (case, recipe)): (usize, (&Case, &LaunchRecipe))| case.differs(at, &program, recipe);
    cases.iter().zip(&recipes).enumerate().filter_map(of).collect()
}

/// Sequences with some new tokens, over pages of a size or, for 0, dense caches. `gap` is room behind rows.
fn append(
    noise: &mut Noise,
    types: [DType; 2],
    [heads, k, v]: [i64; 3],
    page: i64,
    varlen: bool,
    gap: i64,
) -> CacheAppend {
    let [new, cache] = types;
    let (batch, rows, keys) = (noise.pick(&[1, 3, 5]), noise.pick(&[1, 4, 9]), noise.pick(&[7, 40, 70]));
    let laid = |tensor: Tensor, d: i64| Tensor { dims: [tensor.dims[0], tensor.dims[1], tensor.dims[2], d], ..tensor };
    let new = |d: i64| match varlen {
        true => laid(Tensor::thd(batch, heads, rows, d + gap, batch * rows - rows / 2, new), d),
        false => laid(Tensor::bshd(batch, heads, rows, d + gap, new), d),
    };
    let head_first = noise.below(2) == 0;
    // An alignment of whole rows of 16 bytes, which pools need, is kept by any gap.
    let cache = |d: i64| {
        let room = (d + gap + 15) / 16 * 16;
        let pages = batch * ((keys - 1) / page.max(1) + 1) + 2;
        let tensor = match (page, head_first) {
            (0, true) => Tensor::bhsd(batch, heads, keys, room, cache),
            (0, false) => Tensor::bshd(batch, heads, keys, d + gap, cache),
            (page, true) => Tensor::paged_hnd(batch, heads, keys, room, pages, page, cache),
            (page, false) => Tensor::paged_nhd(batch, heads, keys, room, pages, page, cache),
        };
        laid(tensor, d)
    };
    CacheAppend { new_k: new(k), new_v: new(v), k: cache(k), v: cache(v) }
}

/// Types of what is new and of the cache.
const TYPES: [[DType; 2]; 6] = [
    [DType::F16, DType::E4M3],
    [DType::BF16, DType::E4M3],
    [DType::F16, DType::E5M2],
    [DType::BF16, DType::E5M2],
    [DType::F16, DType::F16],
    [DType::BF16, DType::BF16],
];

fn check(cases: &[Case]) {
    let found = differences(cases, None);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn appends_of_every_layout_write_what_the_oracle_writes_and_nothing_else() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let mut noise = Noise(23);
    let mut cases = Vec::new();
    for seed in 0..48_usize {
        let shape = noise.pick(&[
            [1, 64, 64],
            [2, 80, 80],
            [8, 128, 128],
            [2, 256, 256],
            [4, 128, 64],
            [3, 20, 12],
            [1, 576, 512],
        ]);
        let (page, varlen) = ([1, 16, 64, 0][seed % 4], seed / 4 % 2 == 0);
        let gap = noise.pick(&[0, 0, 8, 3]);
        let of = append(&mut noise, TYPES[seed / 8 % 6], shape, page, varlen, gap);
        cases.push(Case::new(of, &mut noise, seed % 3 > 0));
    }
    check(&cases);
}

/// Sequences are looked through some hundred at a time.
#[test]
fn batches_of_more_sequences_than_a_block_has_threads_are_appended() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let mut noise = Noise(5);
    let cases: Vec<Case> = [255, 256, 257, 600]
        .into_iter()
        .map(|batch| {
            let new = Tensor::thd(batch, 1, 3, 16, batch * 2, DType::BF16);
            let cache = Tensor::paged_nhd(batch, 1, 8, 16, batch * 2 + 1, 4, DType::E4M3);
            Case::new(CacheAppend { new_k: new, new_v: new, k: cache, v: cache }, &mut noise, batch == 600)
        })
        .collect();
    check(&cases);
}

/// Every number of 16 bits to a format of 8, with a descale of the keys.
fn every_number([wide, narrow]: [DType; 2], descale: f32) -> Case {
    let (new, cache) = (Tensor::bshd(1, 1, 512, 128, wide), Tensor::bshd(1, 1, 512, 128, narrow));
    let append = CacheAppend { new_k: new, new_v: new, k: cache, v: cache }.validate().expect("sound");
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    let mut inputs = Inputs::new();
    for (new, cache, of) in [(Role::NewK, Role::K, Scaled::K), (Role::NewV, Role::V, Scaled::V)] {
        inputs.insert(new, Buffer::new(wide, bytes.clone()).expect("whole"));
        inputs.insert(cache, Buffer::poisoned(narrow, 1 << 16));
        inputs.set_f32(Role::Descale(of), if of == Scaled::K { descale } else { -3.0 });
    }
    inputs.set_i32(Role::SeqLenQ, &[512]);
    inputs.set_i32(Role::SeqLenKv, &[512]);
    Case { append, inputs }
}

#[test]
fn every_number_of_16_bits_is_quantized_as_by_the_oracle() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let descales = [1.0, 0.0371, 41.0, 2f32.powi(20), 2f32.powi(-12), 0.0];
    let of = |types: &[DType; 2]| descales.map(|descale| every_number(*types, descale));
    check(&TYPES[..4].iter().flat_map(of).collect::<Vec<_>>());
}

/// Offsets at which no row of the new tensor begins, each of a sequence with four new tokens.
fn astray(noise: &mut Noise) -> Case {
    let new = Tensor::thd(8, 1, 4, 16, 32, DType::BF16);
    let cache = Tensor::bshd(8, 1, 4, 16, DType::E5M2);
    let mut case = Case::new(CacheAppend { new_k: new, new_v: new, k: cache, v: cache }, noise, false);
    for role in [Role::SeqLenQ, Role::SeqLenKv] {
        case.inputs.set_i32(role, &[4; 8]);
    }
    let offsets = [-16, 16 * 30, i64::MIN, 8, i64::MAX - 15, 16, 24, 0, 0_i64];
    for of in [Varlen::NewK, Varlen::NewV] {
        let bytes = offsets.iter().flat_map(|n| n.to_ne_bytes()).collect();
        case.inputs.insert(Role::Offsets(of), Buffer::new(DType::I64, bytes).expect("whole"));
    }
    case
}

/// More new tokens than rows: those that have a row go where the lengths say.
fn beyond(noise: &mut Noise) -> Case {
    let (new, cache) = (Tensor::bshd(4, 1, 2, 16, DType::F16), Tensor::bshd(4, 1, 20, 16, DType::E4M3));
    let mut case = Case::new(CacheAppend { new_k: new, new_v: new, k: cache, v: cache }, noise, false);
    case.inputs.set_i32(Role::SeqLenQ, &[5, 5, 2, 0]);
    case.inputs.set_i32(Role::SeqLenKv, &[7, 9, 4, 3]);
    case
}

#[test]
fn faults_of_an_append_are_noticed() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let mut noise = Noise(71);
    let mut cases = Vec::new();
    for (seed, page) in [16, 1, 0, 64, 16, 1].into_iter().enumerate() {
        let of =
            append(&mut noise, TYPES[[1, 2, 3, 4, 5, 0][seed]], [3, 80, 64], page, seed % 2 == 0, [0, 3][seed % 2]);
        cases.extend([true, true, false].map(|wild| Case::new(of, &mut noise, wild)));
    }
    cases.extend([astray(&mut noise), beyond(&mut noise), every_number(TYPES[0], 41.0)]);
    let odd = append(&mut noise, TYPES[1], [3, 20, 12], 16, false, 3);
    cases.push(Case::new(odd, &mut noise, false));
    let many = Tensor::thd(300, 1, 2, 16, 400, DType::BF16);
    let pool = Tensor::paged_nhd(300, 1, 8, 16, 601, 4, DType::E4M3);
    cases.push(Case::new(CacheAppend { new_k: many, new_v: many, k: pool, v: pool }, &mut noise, false));
    check(&cases);
    let faults = [
        ["offset < 0 || ", ""],
        ["offset % Of::FROM_ROW != 0 || ", ""],
        ["row >= side.tokens - offset / Of::FROM_ROW", "false"],
        ["position < 0 || ", ""],
        ["position >= keys", "false"],
        ["if ((u32)page >= (u32)side.pages) return -1;", ""],
        ["at % Of::PAGE * Of::TO_ROW", "at * Of::TO_ROW"],
        ["min(8, Of::COLUMNS - column)", "8"],
        ["__fdiv_rn(of.x[i], descale)", "__fmul_rn(of.x[i], __fdiv_rn(1.f, descale))"],
        ["? of_keys : of_values", "? of_values : of_keys"],
        ["(i64)p.len_kv[mine] - count", "(i64)p.len_kv[mine]"],
        ["(i64)p.len_kv[mine] - count", "p.len_kv[mine] - min(count, p.rows)"],
        ["min(count, p.rows)", "min(count, p.rows + 1)"],
        ["max(0, min(", "(i64)(min("],
        ["if (lane >= step) sum += other;", "sum += other;"],
        ["for (int i = 0; i < warp; i++) sum += of_warps[i];", ""],
        ["at > 0 ? token - ends[at - 1] : token", "token"],
        ["<= token) at += step", "< token) at += step"],
        ["first + at;", "at;"],
        ["next -= parts;", ""],
        ["n - Keys::ALL)", "n)"],
    ];
    let missed: Vec<_> = faults.into_iter().filter(|fault| differences(&cases, Some(*fault)).is_empty()).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}
