//! Conversions to and from 8 bits on a real GPU: every output has the bytes of the oracle, gaps between elements stay
//! as they are, and a second launch writes the same.
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
use qkvault_graph::{Conversion, ConversionKind, DType, Order, Role, Tensor};
use qkvault_reference::{Buffer, Inputs, POISON, convert};
use qkvault_skip::{Need, skip};

/// A GPU of at least compute capability 8.9 with a planner, or a skip.
fn open() -> Option<(Gpu, Planner)> {
    let gpu = Gpu::with_nvrtc()?;
    if gpu.engine.session().target().expect("known").sm() < 89 {
        skip(Need::Gpu, "the GPU has no 8 bits");
        return None;
    }
    Some((gpu, Planner::new(Vault::in_memory(VaultOptions::new()), None)))
}

/// Converts twice over poisoned outputs, and compares every byte with the oracle's.
fn check(gpu: &Gpu, planner: &Planner, conversion: Conversion, inputs: &Inputs) {
    let conversion = conversion.validate().expect("sound");
    let plan = gpu.engine.session().prepare_conversion(planner, &conversion, OnMiss::Compile);
    let plan = plan.unwrap_or_else(|error| panic!("{conversion}: {error}"));
    let bindings = conversion.bindings();
    let bytes = |role: Role, bytes: u64| match inputs.get(role) {
        Some(buffer) => buffer.bytes().to_vec(),
        None => vec![POISON; bytes as usize],
    };
    let mut memory: BTreeMap<Role, CudaSlice<u8>> = BTreeMap::new();
    for binding in &bindings {
        let slice = gpu.stream.clone_htod(&bytes(binding.role, binding.bytes)).expect("copies");
        memory.insert(binding.role, slice);
    }
    let expected = convert(&conversion, inputs).expect("computes");
    for turn in 0..2 {
        let mut args = Args::new();
        for (role, slice) in &mut memory {
            let output = bindings.iter().any(|b| b.role == *role && b.output);
            args = if output { args.tensor_mut(*role, slice) } else { args.tensor(*role, &*slice) };
        }
        plan.launch(&gpu.stream, args).unwrap_or_else(|error| panic!("{conversion}: {error}"));
        for (role, buffer) in &expected {
            let found = gpu.stream.clone_dtoh(&memory[role]).expect("copies");
            let wrong = (0..found.len()).filter(|&i| found[i] != buffer.bytes()[i]).count();
            let first = (0..found.len()).find(|&i| found[i] != buffer.bytes()[i]).unwrap_or(0) / buffer.dtype().size();
            let found = Buffer::new(buffer.dtype(), found).expect("whole elements");
            let (was, wanted) = (found.get(first), buffer.get(first));
            assert!(
                wrong == 0,
                "{conversion}, launch {turn}: {wrong} bytes of {role} differ, the first in element {first}: {was}, \
                 {wanted} expected"
            );
        }
    }
}

fn numbers(dtype: DType, count: usize, seed: u64) -> Buffer {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let number = |at: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state % 4001) as f64 / 2000.0 - 1.0) * 2f64.powi((at / 32 % 7) as i32 * 3 - 9)
    };
    Buffer::from_values(dtype, (0..count).map(number))
}

fn all(dtype: DType, count: u32) -> Buffer {
    let bytes = (0..count).flat_map(|bits| bits.to_ne_bytes()[..dtype.size()].to_vec()).collect();
    Buffer::new(dtype, bytes).expect("whole elements")
}

fn one(x: f64) -> Buffer {
    Buffer::from_values(DType::F32, [x])
}

#[test]
fn every_number_of_16_bits_and_of_8_bits_is_converted_on_the_gpu_as_by_the_oracle() {
    let Some((gpu, planner)) = open() else { return };
    for narrow in [DType::E4M3, DType::E5M2] {
        for wide in [DType::F16, DType::BF16] {
            let to = Conversion::to(narrow, Tensor::bshd(1, 1, 512, 128, wide), ConversionKind::Delayed);
            for scale in [1.0, 0.0371, 2f64.powi(20), 2f64.powi(-12)] {
                let inputs = [(Role::Wide, all(wide, 1 << 16)), (Role::NarrowScale, one(scale))];
                check(&gpu, &planner, to, &inputs.into_iter().collect());
            }
        }
        for wide in [DType::F16, DType::BF16, DType::F32] {
            let from = Conversion::from(Tensor::bshd(1, 1, 2, 128, narrow), wide, ConversionKind::Dequantize);
            for descale in [1.0, 0.3, 2f64.powi(-20), 2f64.powi(115)] {
                let inputs = [(Role::Narrow, all(narrow, 1 << 8)), (Role::NarrowDescale, one(descale))];
                check(&gpu, &planner, from, &inputs.into_iter().collect());
            }
        }
    }
}

#[test]
fn conversions_of_every_kind_and_layout_write_on_the_gpu_what_the_oracle_writes() {
    let Some((gpu, planner)) = open() else { return };
    let dims = [[2, 3, 333, 192], [1, 2, 1, 64], [3, 4, 1000, 128], [1, 1, 77, 20], [4, 8, 2048, 128]];
    let gaps = [0, 8, 3, 0];
    for (n, kind) in ConversionKind::ALL.into_iter().cycle().take(40).enumerate() {
        let dtype = [DType::BF16, DType::F16, DType::F32][n % 3];
        let dims = dims[n % 5];
        let [b, h, s, d] = dims;
        let laid =
            |n: usize, dtype| Tensor { dims, ..Tensor::dense(Order::ALL[n % 3], [b, h, s, d + gaps[n % 4]], dtype) };
        let narrow = laid(n / 7, [DType::E4M3, DType::E5M2][n / 5 % 2]);
        let conversion = Conversion { wide: laid(n / 3, dtype), narrow, kind };
        let mut inputs = Inputs::new();
        for binding in conversion.validate().expect("sound").bindings().iter().filter(|b| !b.output) {
            let count = binding.bytes as usize / binding.dtype.size();
            let buffer = match binding.dtype {
                DType::E8M0 => Buffer::from_values(DType::E8M0, (0..count).map(|at| 2f64.powi((at % 11) as i32 - 5))),
                _ if count == 1 => one(0.75),
                dtype => numbers(dtype, count, n as u64 + 1),
            };
            inputs.insert(binding.role, buffer);
        }
        check(&gpu, &planner, conversion, &inputs);
    }
}
