//! Generated sources on the host: its C++ compiler makes a program of them, in which threads of a block take turns, and
//! every output has the bytes of the oracle.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use qkvault_graph::op::Binding;
use qkvault_graph::{Along, Conversion, ConversionKind, DType, Order, Role, Tensor, ValidConversion, codec};
use qkvault_reference::{Buffer, Inputs, convert};

use super::*;

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
    Buffer::of(dtype, (0..count).map(number))
}

impl Case {
    fn new(conversion: Conversion, seed: u64) -> Case {
        let conversion = conversion.validate().expect("sound");
        let mut noise = Noise(seed);
        let wild = noise.below(3) == 0;
        let mut inputs = Inputs::new();
        for binding in conversion.bindings().iter().filter(|b| !b.output) {
            let buffer = match binding.role {
                Role::NarrowScale => Buffer::of(DType::F32, [[0.0, 1.0, 0.37, 448.0, 3e38, -2.5][seed as usize % 6]]),
                Role::NarrowDescale if binding.dtype == DType::F32 => {
                    Buffer::of(DType::F32, [[1.0, 0.0123, 2f64.powi(-20), 2f64.powi(120)][seed as usize % 4]])
                }
                _ => bytes(&mut noise, binding, wild),
            };
            inputs.insert(binding.role, buffer);
        }
        Case { conversion, inputs }
    }

    fn kernels(&self) -> Vec<Launch> {
        let made = generate_conversion(&self.conversion, 90).expect("is taken");
        let launch = |step: &Step| match step {
            Step::Launch(launch) => Some(launch.clone()),
            Step::Clear { .. } => None,
        };
        made.recipe.steps.iter().filter_map(launch).collect()
    }

    /// The source in a namespace of its own, and a function that runs it over the files of a folder.
    fn text(&self, at: usize) -> String {
        let source = source(&self.conversion, include_str!("by_hand.cu")).replace("extern \"C\" ", "");
        let names: Vec<&str> = source.lines().filter_map(|line| line.strip_prefix("#define ")).collect();
        let undef: String =
            names.iter().filter_map(|rest| rest.split([' ', '(']).next()).map(|n| format!("#undef {n}\n")).collect();
        let (mut open, mut save, mut set) = (String::new(), String::new(), String::new());
        for binding in self.conversion.bindings() {
            let (role, field) = (binding.role.name(), field(&self.conversion, binding.role));
            let _ = writeln!(open, "  Memory {field}(folder + \"/{at}.{role}\");");
            let _ = write!(set, " p.{field} = {field};");
            if binding.output {
                let _ = write!(save, " {field}.save();");
            }
        }
        if source.contains("void* shared;") {
            open.push_str("  std::vector<u64> shared(32);\n");
            set.push_str(" p.shared = shared.data();");
        }
        let launches: String = self
            .kernels()
            .iter()
            .map(|l| format!("  launch({}, {}, [&] {{ {}(p); }});\n", l.grid[0], l.block[0], l.function))
            .collect();
        format!(
            "namespace case{at} {{\n{source}\nstatic void run(const std::string& folder) {{\n{open}  Params p; {set}\n\
             {launches} {save}\n}}\n}}\n{undef}"
        )
    }
}

/// The field of a kernel's parameters for a role.
fn field(conversion: &ValidConversion, role: Role) -> &'static str {
    match role {
        Role::Wide => "wide",
        Role::Narrow => "narrow",
        Role::NarrowScale => "scale",
        Role::NarrowAmax => "amax",
        _ if conversion.kind.along().is_some() => "scales",
        _ => "descale",
    }
}

/// Runs all cases as one program, over outputs of poison, and compares every byte.
fn check(cases: &[Case]) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = include_str!("host.cc").to_owned();
    cases.iter().enumerate().for_each(|(at, case)| text.push_str(&case.text(at)));
    text.push_str("int main(int, char** arguments) {\n");
    (0..cases.len()).for_each(|at| {
        let _ = writeln!(text, "  case{at}::run(arguments[1]);");
    });
    text.push_str("}\n");
    let path = |at: usize, role: Role| folder.path().join(format!("{at}.{}", role.name()));
    for (at, case) in cases.iter().enumerate() {
        for binding in case.conversion.bindings() {
            let poison = || Buffer::poisoned(binding.dtype, binding.bytes as usize / binding.dtype.size());
            let buffer = if binding.output { poison() } else { case.inputs.get(binding.role).expect("bound").clone() };
            std::fs::write(path(at, binding.role), buffer.bytes()).expect("writes");
        }
    }
    run(folder.path(), &text);
    for (at, case) in cases.iter().enumerate() {
        let expected: BTreeMap<Role, Buffer> = convert(&case.conversion, &case.inputs).expect("computes");
        for (role, buffer) in expected {
            let found = std::fs::read(path(at, role)).expect("reads");
            let wrong = (0..found.len()).find(|&i| found[i] != buffer.bytes()[i]);
            if let Some(i) = wrong {
                let (of, size) = (&case.conversion, buffer.dtype().size());
                let found = Buffer::new(buffer.dtype(), found).expect("whole elements");
                let (found, expected) = (found.get(i / size), buffer.get(i / size));
                panic!("case {at}, {of}: element {} of {role} is {found}, {expected} expected", i / size);
            }
        }
    }
}

fn run(folder: &Path, text: &str) {
    let (source, program) = (folder.join("cases.cc"), folder.join("cases"));
    std::fs::write(&source, text).expect("writes");
    let made = Command::new("c++").args(["-std=c++17", "-O1", "-w", "-o"]).arg(&program).arg(&source).output();
    let made = made.expect("a C++ compiler");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let ran = Command::new(&program).arg(folder).status().expect("runs");
    assert!(ran.success(), "{ran}");
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
    let number = |x: f64| Buffer::of(DType::F32, [x]);
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
fn a_recipe_of_a_conversion_refers_to_its_operands_alone() {
    for seed in 0..14 {
        let mut noise = Noise(seed);
        let wide = tensor(&mut noise, [2, 3, 1000, 192], DType::BF16);
        let conversion = Conversion::to(DType::E5M2, wide, kinds(seed)).validate().expect("sound");
        let made = generate_conversion(&conversion, 100).expect("is taken");
        let whole = Recipe { modules: vec![10], ..made.recipe };
        let bindings = conversion.bindings();
        assert_eq!(codec::decode::<Recipe>(&codec::encode(&whole)).expect("reads"), whole);
        let checked = whole.check(&bindings, 10).unwrap_or_else(|bad| panic!("{conversion}: {bad}"));
        let params = checked.steps.iter().filter_map(|step| match step {
            Step::Launch(launch) => Some(&launch.params[0].patches),
            Step::Clear { .. } => None,
        });
        for binding in &bindings {
            let names = |patches: &Vec<crate::recipe::Patch>| {
                patches.iter().any(|patch| patch.value == Value::Address(binding.role))
            };
            assert!(params.clone().all(names), "{conversion}: no kernel gets {}", binding.role);
        }
    }
}

#[test]
fn a_gpu_that_cannot_round_to_8_bits_is_refused() {
    let wide = Tensor::bshd(1, 1, 8, 16, DType::F16);
    let conversion = Conversion::to(DType::E4M3, wide, ConversionKind::Delayed).validate().expect("sound");
    let refusal = generate_conversion(&conversion, 86).expect_err("too old");
    assert!(refusal.has(&codes::CONVERSION_GPU), "{refusal}");
    assert!([89, 90, 100, 120].iter().all(|&sm| generate_conversion(&conversion, sm).is_ok()));
}
