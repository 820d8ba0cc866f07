//! Launches written in Rust are those of the compiler's own host functions: for attentions of every family, the printed
//! function is evaluated for the tensors of random shapes, and every byte of every parameter is compared, the grid, the
//! block, the shared memory and the attributes.
//!
//! This needs the fetched toolchain (`cargo xtask fetch --engine fa4`) and no GPU.

mod families;
mod printed;

use std::collections::BTreeMap;

use families::{Launches, SCALE, SHAPES, chosen, shapes};
use qkvault_fa4::graph::{Attention, DType, Lengths, Role, Valid, validate};
use qkvault_fa4::{CompiledKernel, Fa4Program, Installed, Kernel, SM};
use qkvault_kernels::recipe::{self, LaunchRecipe, LaunchValue, Param, RecipeStep, TensorMap};
use qkvault_skip::{Need, skip};

fn installed() -> Option<Installed> {
    Installed::find().map_err(|error| skip(Need::Fa4, &error.to_string())).ok()
}

#[test]
fn launches_are_those_of_the_printed_host_functions() {
    let Some(toolchain) = installed() else { return };
    let families = chosen(std::env::var("QKVAULT_FA4_FAMILY").ok().as_deref());
    assert!(!families.is_empty(), "QKVAULT_FA4_FAMILY names no family");
    let mut random = families::Random::new(7);
    let mut cases = Vec::new();
    let mut kernels: Vec<Kernel> = Vec::new();
    for (name, write) in &families {
        let list = shapes(&mut random, SHAPES).into_iter().map(|shape| valid(write(shape)));
        for attention in list {
            let program =
                Fa4Program::for_attention(&attention, SM).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
            for kernel in &program.kernels {
                if !kernels.contains(kernel) {
                    kernels.push(kernel.clone());
                }
            }
            cases.push((name, attention, program));
        }
    }
    // All shapes of a family run the same kernels, so a family has a forward, or at most five kernels.
    assert!(kernels.len() <= 5 * families.len(), "{} kernels of {} families", kernels.len(), families.len());
    // A process for some kernels each, so that an error names them.
    let compile =
        |kernels: &[Kernel]| toolchain.compile(kernels).unwrap_or_else(|error| panic!("{kernels:?}: {error}"));
    let code: Vec<CompiledKernel> = kernels.chunks(12).flat_map(compile).collect();
    let (mut launches, mut bytes) = (0, 0);
    for (name, attention, program) in &cases {
        let of = |kernel| code[kernels.iter().position(|known| known == kernel).expect("is compiled")].clone();
        let code: Vec<CompiledKernel> = program.kernels.iter().map(of).collect();
        let what = format!("{name}, {}", **attention);
        // Nothing is compiled of our own kernel, whose launch is tested elsewhere.
        let own = program.own.as_ref().map(|_| &[0_u8; 8][..]);
        let plan = program.plan(&code, own, &recipe::bindings(attention));
        let plan = plan.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (n, b) = compared(&what, attention, &plan.recipe, &code);
        (launches, bytes) = (launches + n, bytes + b);
    }
    println!("{} families, {} kernels, {launches} launches, {bytes} bytes", families.len(), kernels.len());
}

pub(crate) fn valid(attention: Attention) -> Valid {
    validate(attention).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Compares all launches of a recipe, and returns how many, with how many bytes.
fn compared(what: &str, attention: &Valid, recipe: &LaunchRecipe, code: &[CompiledKernel]) -> (usize, usize) {
    let mut addresses = Addresses::default();
    let Launches { given, zeros } = families::launches(attention);
    let launches = recipe.steps.iter().filter_map(|step| match step {
        RecipeStep::Launch(launch) if (launch.module as usize) < code.len() => Some(launch),
        RecipeStep::Launch(_) | RecipeStep::Clear { .. } => None,
    });
    let launches: Vec<_> = launches.collect();
    assert_eq!(launches.len(), given.len(), "{what}: launches");
    let mut bytes = 0;
    for (launch, given) in launches.into_iter().zip(given) {
        let what = format!("{what}, {}", given.kernel);
        let compiled = &code[launch.module as usize];
        let sizes: Vec<usize> = launch.params.iter().map(|param| param.bytes.len()).collect();
        let ran = printed::run(&compiled.host, given.arguments, &sizes);
        assert_eq!(launch.grid.map(u64::from), ran.grid, "{what}: grid");
        assert_eq!(launch.block.map(u64::from), ran.block, "{what}: block");
        assert_eq!(u64::from(launch.shared), ran.shared, "{what}: shared memory");
        const OVERLAP: u64 = 6;
        let overlap = ran.attributes.iter().any(|&(id, value)| id == OVERLAP && value != 0);
        assert!(ran.attributes.iter().all(|&(id, value)| id == OVERLAP || value == 0), "{what}: {:?}", ran.attributes);
        // What lists sequences is a kernel of our own, for which this one does not wait before it reads them.
        let waits = attention.mask.lengths == Lengths::PerSequence && given.kernel == "preprocess";
        assert_eq!(launch.overlap, overlap && !waits, "{what}: may begin early");
        for (at, (param, printed)) in launch.params.iter().zip(&ran.params).enumerate() {
            addresses.same(&format!("{what}, parameter {at}"), param, printed);
            bytes += printed.len();
        }
        assert_eq!(launch.cluster, None, "{what}: clusters");
    }
    addresses.scratch(what, recipe, &zeros);
    (recipe.steps.len(), bytes)
}

/// Which buffer is at which offset of the scratch memory, and of the constant data, as found in parameters.
#[derive(Default)]
struct Addresses {
    scratch: BTreeMap<u64, u64>,
    constants: BTreeMap<u64, u64>,
}

impl Addresses {
    /// Compares a parameter with what the printed function stores.
    fn same(&mut self, what: &str, param: &Param, printed: &[Option<u8>]) {
        let mut explained: Vec<Option<u8>> = param.bytes.iter().map(|byte| Some(*byte)).collect();
        let mut place = |at: usize, bytes: &[u8]| {
            for (n, byte) in bytes.iter().enumerate() {
                explained[at + n] = Some(*byte);
            }
        };
        for recipe::Patch { at, value } in &param.patches {
            let at = *at as usize;
            let stored = |from: usize| {
                let bytes: Option<Vec<u8>> = printed[from..from + 8].iter().copied().collect();
                u64::from_le_bytes(bytes.expect("eight bytes are stored").try_into().expect("eight"))
            };
            match value {
                LaunchValue::Address(role) => place(at, &families::address(*role).to_le_bytes()),
                LaunchValue::Number(Role::Scale) => place(at, &SCALE.to_le_bytes()),
                LaunchValue::Product(Role::Scale, by) => place(at, &(SCALE * f32::from_bits(*by)).to_le_bytes()),
                LaunchValue::Number(role) => place(at, &families::number(*role).to_le_bytes()),
                LaunchValue::Product(..) => panic!("{what}: a multiple of another number than the scale"),
                LaunchValue::Scratch(offset) => {
                    let buffer = stored(at);
                    let known = *self.scratch.entry(buffer).or_insert(*offset);
                    assert_eq!(known, *offset, "{what}: the same buffer at two offsets");
                    place(at, &buffer.to_le_bytes());
                }
                LaunchValue::Constant(offset) => {
                    let buffer = stored(at);
                    let known = *self.constants.entry(buffer).or_insert(*offset);
                    assert_eq!(known, *offset, "{what}: the same list at two offsets");
                    place(at, &buffer.to_le_bytes());
                }
                LaunchValue::Fitting(map) => panic!("{what}: the extent of {map}"),
                LaunchValue::Map(map) => {
                    let words: Vec<u64> = (0..16).map(|n| if n < 8 { stored(at + n * 8) } else { 0 }).collect();
                    same_map(what, map, &words);
                    place(at, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
                }
            }
        }
        for (n, (ours, theirs)) in explained.iter().zip(printed).enumerate() {
            // What the function does not store is padding, which is zero.
            let theirs = theirs.or(Some(0));
            assert_eq!(*ours, theirs, "{what}, byte {n}: {explained:?} and {printed:?}");
        }
    }

    /// Every buffer has room, and those that must begin at zero are cleared.
    fn scratch(&self, what: &str, recipe: &LaunchRecipe, zeros: &[u64]) {
        for (at, end) in Addresses::apart(what, &self.scratch, recipe.scratch) {
            let cleared = recipe.steps.iter().any(|step| match step {
                RecipeStep::Clear { at: from, bytes, value } => *from <= at && from + bytes >= end && *value == 0,
                RecipeStep::Launch(_) => false,
            });
            let buffer = self.scratch.iter().find(|(_, known)| **known == at).map(|(buffer, _)| buffer);
            assert_eq!(
                cleared,
                zeros.contains(buffer.expect("is there")),
                "{what}: whether a buffer at {at} is cleared"
            );
        }
        let lists = Addresses::apart(what, &self.constants, recipe.constants);
        assert!(lists.is_empty() == (recipe.constants == 0), "{what}: {lists:?} of {} bytes", recipe.constants);
    }

    /// The begin and end of each buffer of some memory, which do not meet.
    fn apart(what: &str, of: &BTreeMap<u64, u64>, bytes: u64) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = of.iter().map(|(buffer, at)| (*at, at + families::buffer_bytes(*buffer))).collect();
        all.sort_unstable();
        let mut last = 0;
        for &(at, end) in &all {
            assert!(at >= last && at % 256 == 0, "{what}: a buffer begins at {at} within another");
            assert!(end <= bytes, "{what}: a buffer ends at {end}, behind {bytes} bytes");
            last = end;
        }
        all
    }
}

/// Compares a tensor map with the words that the printed function makes of it: address, steps by 16 bytes, last indices
/// of extents and of the box. The first word after the address also says type, number of dims and swizzle.
fn same_map(what: &str, map: &TensorMap, words: &[u64]) {
    let TensorMap { role, dtype, dims, strides, tile, swizzle } = map;
    let low = |n: usize| words[n] & 0xffff_ffff;
    let high = |n: usize| words[n] >> 32;
    assert_eq!(words[0], families::address(*role), "{what}: the address");
    let last = [low(4), high(4), low(5), high(5), low(6)];
    assert_eq!(dims.iter().map(|n| n - 1).collect::<Vec<_>>(), last[..dims.len()], "{what}: extents");
    let step = [high(1), low(2), high(2), low(3)].into_iter().enumerate().map(|(n, low)| {
        let upper = words[3] >> (32 + 4 * n) & 0xf;
        (low | upper << 32) * 16
    });
    for ((ours, theirs), n) in strides.iter().zip(step).zip(&dims[1..]) {
        assert!(*n == 1 || *ours == theirs, "{what}: steps {strides:?}, and {theirs}");
    }
    let boxes = [words[6] >> 56, words[7] & 0xff, words[7] >> 8 & 0xff, words[7] >> 16 & 0xff, words[7] >> 24 & 0xff];
    assert_eq!(tile.iter().map(|n| u64::from(n - 1)).collect::<Vec<_>>(), boxes[..tile.len()], "{what}: the box");
    let fifth = if dims.len() == 5 { low(6) } else { 0 };
    assert_eq!((words[6] & !(0xff << 56), words[7] >> 32), (fifth, 0), "{what}: steps within the box");
    // The word also has type, number of dims and swizzle. Tensors from 128 KiB on have one more bit, a hint.
    const LARGE: u64 = 1 << 21;
    let kinds = [(DType::BF16, 128, 0x4_6532), (DType::F16, 128, 0x4_6332), (DType::BF16, 64, 0x4_4532)];
    let kinds =
        kinds.into_iter().chain([(DType::F16, 64, 0x4_4332), (DType::BF16, 32, 0x4_2532), (DType::F16, 32, 0x4_2332)]);
    let known = kinds.into_iter().find(|(kind, bytes, _)| kind == dtype && bytes == swizzle);
    // One more for each dim.
    let of_four = (low(1) & !LARGE) - (dims.len() as u64 - 4) * 0x10;
    assert_eq!(known.map(|(.., word)| word), Some(of_four), "{what}: type and swizzle {swizzle} of {dtype}");
}
