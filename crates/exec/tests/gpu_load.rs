//! Loading on a real GPU: cuDNN loads and refuses plans for GPUs that differ in one property as `LOAD_RULES` predict.
//!
//! The test needs a driver and a slim cuDNN that the usual search finds. Without them it is skipped, or fails with
//! `QKVAULT_REQUIRE=gpu`.
#![cfg(feature = "cudarc")]

mod common;

use common::{changes, of_machine, say};
use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{Compiler, Failure, OnMiss, Planner};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_exec::testing::check_fit;
use qkvault_exec::{Device, DeviceError, Machine, Session};
use qkvault_graph::{Attention, Band, DType, validate};
use qkvault_skip::{Need, skip};
use qkvault_sys::Search;

#[test]
fn the_gpu_loads_exactly_the_plans_that_the_rules_allow() {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error @ (DeviceError::NoDriver(_) | DeviceError::NoGpu { .. })) => {
            return skip(Need::Gpu, &error.to_string());
        }
        Err(error) => panic!("{error}"),
    };
    let compiler = Compiler::open(&Search::default()).expect("a cuDNN");
    let session = Session::open(&device, compiler.library()).expect("a session");
    let here = session.target().expect("the GPU's target is known").clone();
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), Some(compiler));
    let attention = Attention::bshd(1, (8, 2), (512, 512), 64, DType::BF16).with_band(Band::CAUSAL).with_stats();
    let attention = validate(attention).expect("valid");
    let mut wrong = Vec::new();
    for (name, change) in changes() {
        let mut there = here.clone();
        change(&mut there);
        // A library compiles only for its own set.
        let there = Target { libraries: here.libraries, ..there };
        let answer = planner.plan(&attention, &there, &CompileOptions::cudnn(), OnMiss::Compile);
        let plan = match answer.map(|answer| answer.outcome) {
            Ok(Ok(plan)) => plan,
            Ok(Err(refusal)) => {
                say(&format!("{name}: not compiled: {refusal}"));
                continue;
            }
            // With a driver in the process, cuDNN compiles kernels only for its GPU.
            Err(error) if there.sm() != here.sm() && matches!(error.failure(), Some(Failure::OtherGpu { .. })) => {
                say(&format!("{name}: not compiled: {error}"));
                continue;
            }
            // The NVRTC of this machine compiles for no driver of an older CUDA.
            Err(error) if matches!(error.failure(), Some(Failure::NewerNvrtc { .. })) => {
                say(&format!("{name}: not compiled: {error}"));
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        let rules = check_fit(&plan.facts, &Machine::from_target(&here));
        let gpu = session.load(&of_machine(&plan, &here)).map(drop);
        let told = |is: bool| if is { "loads" } else { "is refused" };
        say(&format!("{name}: {} by the rules, {} on the GPU", told(rules.is_ok()), told(gpu.is_ok())));
        if rules.is_ok() != gpu.is_ok() {
            wrong.push(format!("{name}: {rules:?} by the rules, {gpu:?} on the GPU"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
