//! The update of scales on a CPU, step after step: scales, descales and the history have the bits that follow from its
//! definition.

use std::collections::BTreeMap;

use qkvault_emulate::HostProgram;
use qkvault_graph::{DType, HISTORY_HEAD, Role, ScaleUpdate, Scaled, ScaledTensor, ValidScaleUpdate};
use qkvault_kernels::{Generated, generate_scale_update};
use qkvault_reference::POISON;
use qkvault_skip::{Need, skip};

const SM: u32 = 90;

/// What a step may have been told: usual magnitudes, a tensor of zeros, the smallest and largest floats, and none.
const SPECIAL: [f32; 8] = [0.0, f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45, 448.0, -0.0];

/// One tensor by its definition.
struct One {
    of: ScaledTensor,
    seen: Vec<f32>,
    lost: f32,
    scale: f32,
}

impl One {
    fn observe(&mut self, amax: f32, margin: u8) {
        self.lost += f32::from(u8::from(!amax.is_finite()));
        self.seen.push(if amax.is_finite() && amax > 0.0 { amax } else { 0.0 });
        let last = self.seen.iter().rev().take(self.of.history as usize);
        let largest = last.copied().fold(0.0, f32::max);
        if largest > 0.0 {
            let most = if self.of.dtype == DType::E5M2 { 57_344.0 } else { 448.0 };
            let scale: f32 = most / largest * 2f32.powi(-i32::from(margin));
            self.scale = scale.clamp(1.0 / f32::MAX, 2f32.powi(126));
        }
    }

    /// The numbers of its history on the GPU.
    fn history(&self) -> Vec<f32> {
        let steps = self.of.history as usize;
        let mut all = vec![0.0; HISTORY_HEAD + steps];
        all[0] = (self.seen.len() % steps) as f32;
        all[1] = self.lost;
        self.seen.iter().enumerate().for_each(|(at, amax)| all[HISTORY_HEAD + at % steps] = *amax);
        all
    }
}

fn update(histories: [u32; 3], margin: u8) -> ValidScaleUpdate {
    let of = |of, dtype, history| ScaledTensor { of, dtype, history };
    let tensors = vec![
        of(Scaled::K, DType::E4M3, histories[0]),
        of(Scaled::DP, DType::E5M2, histories[1]),
        of(Scaled::DQ, DType::E4M3, histories[2]),
    ];
    ScaleUpdate { tensors, margin }.validate().expect("sound")
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

fn compiled(made: &Generated) -> HostProgram {
    let source = format!("#define HALF_TYPE \"bf16\"\n#include \"machine.h\"\n{}", made.source);
    HostProgram::compile(&source, &made.recipe, false).unwrap_or_else(|error| panic!("{error}"))
}

/// The first difference in so many steps.
fn differs(update: &ValidScaleUpdate, made: &Generated, steps: u64) -> Result<(), String> {
    let program = compiled(made);
    let new = |of: &ScaledTensor| One { of: *of, seen: Vec::new(), lost: 0.0, scale: 1.0 };
    let mut all: Vec<One> = update.tensors.iter().map(new).collect();
    let mut buffers: BTreeMap<Role, Vec<u8>> = BTreeMap::new();
    for binding in update.bindings() {
        let first = if binding.role == Role::AmaxHistory { 0.0 } else { 1.0 };
        buffers.insert(binding.role, bytes(&vec![first; binding.bytes as usize / 4]));
    }
    let mut noise = 88_172_645_463_325_252_u64;
    for step in 0..steps {
        for one in &mut all {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            let amax = match noise % 8 {
                0 => SPECIAL[(noise >> 8) as usize % SPECIAL.len()],
                _ => ((noise >> 8) % 1000) as f32 / 8.0 * 2f32.powi((noise >> 20) as i32 % 60 - 30),
            };
            buffers.insert(Role::Amax(one.of.of), bytes(&[amax]));
            one.observe(amax, update.margin);
        }
        let launched = program.launch(&made.recipe, &mut buffers, &BTreeMap::new(), &[], step, POISON);
        launched.map_err(|error| error.to_string())?;
        for One { of, scale, .. } in &all {
            for (role, number) in [(Role::ScaleOf(of.of), *scale), (Role::Descale(of.of), 1.0 / *scale)] {
                if buffers[&role] != bytes(&[number]) {
                    return Err(format!("step {step}: {role}, {number} expected"));
                }
            }
        }
        let history: Vec<f32> = all.iter().flat_map(One::history).collect();
        if buffers[&Role::AmaxHistory] != bytes(&history) {
            return Err(format!("step {step}: the history"));
        }
    }
    Ok(())
}

#[test]
fn scales_follow_from_the_largest_magnitudes_of_the_steps_before() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    for (histories, margin) in [([1, 4, 5], 0), ([16, 1, 300], 2), ([1024, 128, 129], 0)] {
        let update = update(histories, margin);
        let made = generate_scale_update(&update, SM).expect("is taken");
        assert_eq!(differs(&update, &made, 40), Ok(()), "{histories:?}");
    }
}

/// A launch writes nothing outside whatever its memory holds.
#[test]
fn a_place_outside_the_history_is_the_first() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let update = update([2, 4, 3], 0);
    let made = generate_scale_update(&update, SM).expect("is taken");
    let program = compiled(&made);
    for place in [1e6, -1.0, f32::NAN, f32::INFINITY, 4.0, -0.0] {
        let mut history = vec![0.0; update.history_len()];
        // Those of the three tensors.
        [0, 4, 10].into_iter().for_each(|at| history[at] = place);
        let mut buffers: BTreeMap<Role, Vec<u8>> = BTreeMap::new();
        update.bindings().iter().for_each(|b| drop(buffers.insert(b.role, bytes(&vec![2.0; b.bytes as usize / 4]))));
        buffers.insert(Role::AmaxHistory, bytes(&history));
        let launched = program.launch(&made.recipe, &mut buffers, &BTreeMap::new(), &[], 1, POISON);
        launched.unwrap_or_else(|error| panic!("{place}: {error}"));
        let expected = [[1.0, 0.0, 2.0, 0.0].as_slice(), &[1.0, 0.0, 2.0, 0.0, 0.0, 0.0], &[1.0, 0.0, 2.0, 0.0, 0.0]];
        assert_eq!(buffers[&Role::AmaxHistory], bytes(&expected.concat()), "{place}");
    }
}

#[test]
fn faults_of_an_update_are_noticed() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let update = update([2, 4, 40], 1);
    let made = generate_scale_update(&update, SM).expect("is taken");
    for (right, wrong) in [
        ("next + 1 < cell.steps ? next + 1 : 0", "0"),
        ("if (i != next) ", ""),
        ("finite && amax > 0.f ? amax : 0.f", "amax"),
        ("float largest = seen;", "float largest = 0.f;"),
        ("if (largest == 0.f) return;", ""),
        ("57344.f", "448.f"),
        ("-MARGIN", "MARGIN"),
        ("fmaxf(largest, of_warps[warp])", "largest"),
        ("8.5070592e37f", "3e38f"),
        ("if (!finite) ", ""),
        ("fabsf(amax) <=", "1.f <="),
    ] {
        assert!(made.source.contains(right), "{right}");
        let fault = Generated { source: made.source.replace(right, wrong), ..made.clone() };
        assert!(differs(&update, &fault, 600).is_err(), "{right} -> {wrong}");
    }
}

#[test]
fn a_gpu_without_8_bits_has_no_scales() {
    let refusal = generate_scale_update(&update([1, 1, 1], 0), 80).expect_err("no e4m3");
    assert!(refusal.to_string().contains("conversion.gpu"), "{refusal}");
}
