//! Conversions to 8 bits and back on a CPU: every output has the bytes of the oracle. The instructions that round are
//! the GPU's, so functions that round by hand take their place.

use std::collections::BTreeMap;

use qkvault_emulate::HostProgram;
use qkvault_graph::Binding;
use qkvault_graph::{Along, Conversion, ConversionKind, DType, Order, Role, Tensor, ValidConversion};
use qkvault_kernels::generate_conversion;
use qkvault_kernels::recipe::LaunchRecipe;
use qkvault_reference::{Buffer, Inputs, POISON, convert};
use qkvault_skip::{Need, skip};

#[path = "../several/mod.rs"]
mod several;

use several::{INSTRUCTIONS, in_namespace, one_program};

/// A conversion with what it reads.
struct Case {
    conversion: ValidConversion,
    inputs: Inputs,
}

/// Numbers without an order that any kernel knows.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ self.0 >> 29;
        x.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 13
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The bytes of a tensor: of every kind of number (`wild`), or of usual ones with sizes that differ by block.
fn bytes(noise: &mut Noise, binding: &Binding, wild: bool) -> Buffer {
    let (dtype, count) = (binding.dtype, binding.bytes as usize / binding.dtype.size());
    if wild || dtype.is_fp8() || dtype == DType::E8M0 {
        let bytes = (0..binding.bytes).map(|_| noise.next() as u8).collect();
        return Buffer::new(dtype, bytes).expect("whole elements");
    }
    let number = |at: usize| {
        let unit = noise.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0;
        unit * 2f64.powi((at / 32 % 7) as i32 * 3 - 9)
    };
    Buffer::from_values(dtype, (0..count).map(number))
}

impl Case {
    fn new(conversion: Conversion, seed: u64) -> Case {
        let conversion = conversion.validate().expect("sound");
        let mut noise = Noise(seed);
        let wild = noise.below(3) == 0;
        let mut inputs = Inputs::new();
        for binding in conversion.bindings().iter().filter(|b| !b.output) {
            let buffer = match binding.role {
                Role::NarrowScale => {
                    Buffer::from_values(DType::F32, [[0.0, 1.0, 0.37, 448.0, 3e38, -2.5][seed as usize % 6]])
                }
                Role::NarrowDescale if binding.dtype == DType::F32 => {
                    Buffer::from_values(DType::F32, [[1.0, 0.0123, 2f64.powi(-20), 2f64.powi(120)][seed as usize % 4]])
                }
                _ => bytes(&mut noise, binding, wild),
            };
            inputs.insert(binding.role, buffer);
        }
        Case { conversion, inputs }
    }

    /// The source in a namespace of its own, and the recipe with functions of that namespace.
    fn written(&self, at: usize) -> (String, LaunchRecipe) {
        let made = generate_conversion(&self.conversion, 90).expect("is taken");
        assert!(made.source.contains(INSTRUCTIONS[0]), "the instructions are in the source");
        in_namespace(made, at)
    }

    /// Runs the recipe over outputs of poison, and compares every byte: the first difference of an output.
    fn differs(&self, at: usize, program: &HostProgram, recipe: &LaunchRecipe) -> Option<String> {
        let buffer = |binding: &Binding| match binding.output {
            true => vec![POISON; binding.bytes as usize],
            false => self.inputs.get(binding.role).expect("bound").bytes().to_vec(),
        };
        let mut buffers: BTreeMap<Role, Vec<u8>> =
            self.conversion.bindings().iter().map(|binding| (binding.role, buffer(binding))).collect();
        program.launch(recipe, &mut buffers, &BTreeMap::new(), &[], at as u64, POISON).expect("runs");
        let expected = convert(&self.conversion, &self.inputs).expect("computes");
        expected.into_iter().find_map(|(role, buffer)| {
            let found = &buffers[&role];
            let i = (0..found.len()).find(|&i| found[i] != buffer.bytes()[i])?;
            let (of, size) = (&self.conversion, buffer.dtype().size());
            let found = Buffer::new(buffer.dtype(), found.clone()).expect("whole elements");
            let (found, expected) = (found.get(i / size), buffer.get(i / size));
            Some(format!("case {at}, {of}: element {} of {role} is {found}, {expected} expected", i / size))
        })
    }
}

/// Compiles all cases as one program, with one text of the sources in place of another, and compares each with the
/// oracle.
fn differences(cases: &[Case], fault: Option<[&str; 2]>) -> Vec<String> {
    if !HostProgram::can_run() {
        skip(Need::Cxx, "no C++ compiler of x86-64");
        return Vec::new();
    }
    let (program, recipes) = one_program(cases.iter().enumerate().map(|(at, case)| case.written(at)), fault);
    let of = |(at, (case, recipe)): (usize, (&Case, &LaunchRecipe))| case.differs(at, &program, recipe);
    cases.iter().zip(&recipes).enumerate().filter_map(of).collect()
}

fn check(cases: &[Case]) {
    let found = differences(cases, None);
    assert!(found.is_empty(), "{found:#?}");
}

fn kinds(seed: u64) -> ConversionKind {
    let along = if seed & 1 == 0 { Along::HeadDim } else { Along::Sequence };
    match seed % 7 {
        0 => ConversionKind::Delayed,
        1 => ConversionKind::Current { power_of_two: false },
        2 => ConversionKind::Current { power_of_two: true },
        3 | 4 => ConversionKind::Blocks(along),
        5 => ConversionKind::Dequantize,
        _ => ConversionKind::DequantizeBlocks(along),
    }
}

/// A tensor of these dims in a random order: contiguous, or with room behind each row.
fn tensor(noise: &mut Noise, dims: [i64; 4], dtype: DType) -> Tensor {
    let order = Order::ALL[noise.below(3) as usize];
    let gap = [0, 0, 8, 3][noise.below(4) as usize];
    let [b, h, s, d] = dims;
    Tensor { dims, ..Tensor::dense(order, [b, h, s, d + gap], dtype) }
}

#[test]
fn random_conversions_write_what_the_oracle_writes() {
    let mut noise = Noise(19);
    let cases = (0..63).map(|seed| {
        let mut pick = |list: &[i64]| list[noise.below(list.len() as u64) as usize];
        let dims = [pick(&[1, 2, 3]), pick(&[1, 2, 4]), pick(&[1, 7, 33, 130]), pick(&[1, 16, 20, 64, 128, 192])];
        let wide = [DType::F16, DType::BF16, DType::F32][noise.below(3) as usize];
        let narrow = [DType::E4M3, DType::E5M2][noise.below(2) as usize];
        let (wide, narrow) = (tensor(&mut noise, dims, wide), tensor(&mut noise, dims, narrow));
        Case::new(Conversion { wide, narrow, kind: kinds(seed) }, seed)
    });
    check(&cases.collect::<Vec<_>>());
}

/// Every number of 16 bits to both formats of 8, with scales that reach subnormal and largest numbers, and every number
/// of 8 bits back to each type.
#[test]
fn every_number_of_16_bits_and_of_8_bits_is_converted_as_by_the_oracle() {
    let mut cases = Vec::new();
    let all = |dtype: DType, count: u32| {
        let bytes = (0..count).flat_map(|bits| bits.to_ne_bytes()[..dtype.size()].to_vec()).collect();
        Buffer::new(dtype, bytes).expect("whole elements")
    };
    let number = |x: f64| Buffer::from_values(DType::F32, [x]);
    for narrow in [DType::E4M3, DType::E5M2] {
        for wide in [DType::F16, DType::BF16] {
            for scale in [1.0, 0.0371, 2f64.powi(20), 2f64.powi(-12)] {
                let kind = ConversionKind::Delayed;
                let conversion = Conversion::to(narrow, Tensor::bshd(1, 1, 512, 128, wide), kind);
                let inputs = [(Role::Wide, all(wide, 1 << 16)), (Role::NarrowScale, number(scale))];
                let conversion = conversion.validate().expect("sound");
                cases.push(Case { conversion, inputs: inputs.into_iter().collect() });
            }
        }
        for wide in [DType::F16, DType::BF16, DType::F32] {
            for descale in [1.0, 0.3, 2f64.powi(-20), 2f64.powi(115)] {
                let conversion = Conversion::from(Tensor::bshd(1, 1, 2, 128, narrow), wide, ConversionKind::Dequantize);
                let inputs = [(Role::Narrow, all(narrow, 1 << 8)), (Role::NarrowDescale, number(descale))];
                let conversion = conversion.validate().expect("sound");
                cases.push(Case { conversion, inputs: inputs.into_iter().collect() });
            }
        }
    }
    check(&cases);
}

#[test]
fn faults_of_a_conversion_are_noticed() {
    if !HostProgram::can_run() {
        return;
    }
    let wide = Tensor::bshd(2, 2, 40, 64, DType::BF16);
    let cases = || -> Vec<Case> {
        let one = |seed| Case::new(Conversion::to(DType::E4M3, wide, kinds(seed)), seed);
        [0, 1, 3].into_iter().map(one).collect()
    };
    for fault in [
        // Subnormal numbers one step too large; magnitudes without the sign's neighbour.
        ["8388608.f", "8388609.f"],
        ["& 0x7fffffffu", "& 0x3fffffffu"],
    ] {
        assert!(!differences(&cases(), Some(fault)).is_empty(), "{fault:?}");
    }
    check(&cases());
}
