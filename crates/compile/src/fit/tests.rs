//! Every difference between machines that matters for loading is found, and no other.

use std::sync::Arc;

use qkvault_cudnn::{Profile, Target};
use qkvault_graph::{Attention, DType, LibrarySet, validate};

use super::*;
use crate::{OwnFacts, Plan, Planner};

/// The H200 of the built-in profile under a cuDNN.
fn h200(cudnn: CudnnVersion) -> Target {
    Profile::named("h200").expect("built in").target(cudnn, LibrarySet::Slim)
}

/// The facts of a plan for a target that was never compiled.
fn forward(target: &Target) -> PlanFacts {
    let attention = validate(Attention::bshd(1, (4, 4), (128, 128), 64, DType::BF16)).expect("valid");
    let (key, entry) = Planner::entry_over(&attention, target, &[1, 2, 3]).expect("lowers");
    Plan::from_entry(key, &Arc::new(entry)).expect("a plan").facts
}

const OLD: CudnnVersion = CudnnVersion::v9(19, 0);
const MIDDLE: CudnnVersion = CudnnVersion::v9(25, 1);
const NEW: CudnnVersion = CudnnVersion::v9(27, 0);

/// Whether a plan for a target fits a machine.
fn fit(target: &Target, here: &Target) -> Result<(), OtherMachine> {
    check_fit(&forward(target), &Machine::from_target(here))
}

/// The mismatches of a plan for an H200 on a machine that differs from it.
fn on(cudnn: CudnnVersion, change: impl FnOnce(&mut Target)) -> Vec<Mismatch> {
    let target = h200(cudnn);
    let mut here = target.clone();
    change(&mut here);
    match fit(&target, &here) {
        Ok(()) => Vec::new(),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(&error.key.to_string()) && text.contains("qkvault warm"), "{text}");
            error.mismatches
        }
    }
}

#[test]
fn rules_are_in_order_and_every_version_has_some() {
    assert!(LOAD_RULES.is_sorted_by(|a, b| a.since < b.since));
    assert_eq!(LoadRules::for_version(CudnnVersion::v9(0, 0)), &LOAD_RULES[0]);
    assert_eq!(LoadRules::for_version(CudnnVersion::v9(22, 99)), &LOAD_RULES[0]);
    assert_eq!(LoadRules::for_version(CudnnVersion::v9(23, 0)), &LOAD_RULES[1]);
    assert_eq!(LoadRules::for_version(CudnnVersion::v9(99, 0)), &LOAD_RULES[2]);
}

#[test]
fn a_plan_fits_the_machine_it_is_for_and_what_does_not_matter_does_not() {
    for cudnn in [OLD, MIDDLE, NEW] {
        assert_eq!(on(cudnn, |_| ()), []);
        let same = on(cudnn, |here| {
            here.libraries = LibrarySet::Full;
            here.device.device_name = "another board".into();
            here.device.pci_device_id = 99;
            here.device.cuda_device_id = 3;
            here.device.l2_cache_size = 1;
            here.device.total_global_mem = 1;
        });
        assert_eq!(same, []);
    }
}

#[test]
fn another_cudnn_is_named_with_what_to_do() {
    let error = fit(&h200(OLD), &h200(NEW)).expect_err("another version");
    assert_eq!(error.mismatches, [Mismatch::OtherCudnn { plan: OLD, here: NEW }]);
    let text = error.to_string();
    assert!(text.contains("9.19.0") && text.contains("9.27.0") && text.contains("QKVAULT_CUDNN_PATH"), "{text}");
    // Another patch level is another version.
    let (plan, here) = (CudnnVersion::v9(19, 0), CudnnVersion::v9(19, 1));
    assert_eq!(on(plan, |t| t.cudnn = here), [Mismatch::OtherCudnn { plan, here }]);
}

#[test]
fn another_gpu_is_named() {
    for cudnn in [OLD, MIDDLE, NEW] {
        assert_eq!(on(cudnn, |t| t.device.device_ver = 1000), [Mismatch::OtherSm { plan: 90, here: 100 }]);
        let fewer = on(cudnn, |t| t.device.multi_processor_count = 114);
        assert_eq!(fewer, [Mismatch::OtherSmCount { plan: 132, here: 114 }]);
    }
}

#[test]
fn the_driver_must_be_the_same_before_9_23_and_no_older_from_then_on() {
    for (driver, here) in [(12_080, "12.8"), (13_010, "13.1")] {
        let mismatches = on(OLD, |t| t.device.driver_ver = driver);
        assert_eq!(mismatches, [Mismatch::OtherDriver { plan: 13_000, here: driver }]);
        let text = mismatches[0].to_string();
        assert!(text.contains("CUDA 13.0") && text.contains(here), "{text}");
    }
    for cudnn in [MIDDLE, NEW] {
        assert_eq!(on(cudnn, |t| t.device.driver_ver = 13_010), []);
        let older = on(cudnn, |t| t.device.driver_ver = 12_080);
        assert_eq!(older, [Mismatch::OlderDriver { plan: 13_000, here: 12_080 }]);
    }
}

#[test]
fn the_memory_bus_matters_from_9_27_on() {
    let h100 = |t: &mut Target| t.device.memory_bus_width = Some(5120);
    assert_eq!(on(OLD, h100), []);
    assert_eq!(on(MIDDLE, h100), []);
    assert_eq!(on(NEW, h100), [Mismatch::OtherMemoryBus { plan: Some(6016), here: Some(5120) }]);
}

#[test]
fn all_differences_are_told_at_once() {
    let mismatches = on(NEW, |t| {
        t.device.device_ver = 890;
        t.device.multi_processor_count = 142;
        t.device.driver_ver = 12_080;
        t.device.memory_bus_width = Some(384);
    });
    assert_eq!(mismatches.len(), 4, "{mismatches:?}");
}

/// The mismatches of a plan of kernels for sm_90 and a driver of CUDA 13.0, on a machine that differs from an H200.
fn kernels_on(profile: &str, change: impl FnOnce(&mut Target)) -> Result<(), String> {
    use qkvault_kernels::recipe::{LaunchRecipe, RECIPE_FORMAT};
    let mut facts = forward(&h200(NEW));
    let recipe = LaunchRecipe {
        format: RECIPE_FORMAT,
        sm: 90,
        driver: 13_000,
        scratch: 0,
        modules: Vec::new(),
        constants: 0,
        steps: Vec::new(),
    };
    facts.driver = 13_000;
    facts.own = OwnFacts::Kernels(Box::new(crate::KernelFacts { by: crate::KernelCompiler::Nvrtc(13, 0), recipe }));
    let mut here = Profile::named(profile).expect("built in").target(OLD, LibrarySet::Full);
    change(&mut here);
    let Machine { sm, driver, .. } = Machine::from_target(&here);
    check_fit_of_kernels(&facts, sm, driver).map_err(|error| error.to_string())
}

#[test]
fn one_plan_of_kernels_fits_every_hopper_whatever_its_size_driver_and_cudnn() {
    for profile in ["h100", "h100-pcie", "h200"] {
        assert_eq!(kernels_on(profile, |here| here.device.driver_ver = 13_000), Ok(()));
    }
    // A GH200: another host, another memory.
    let grace = |here: &mut Target| {
        here.toolchain.host = HostArch::Aarch64;
        (here.device.memory_bus_width, here.device.driver_ver) = (Some(6144), 13_020);
    };
    assert_eq!(kernels_on("h200", grace), Ok(()));
}

#[test]
fn an_older_driver_and_another_architecture_refuse_a_cubin_with_both_numbers() {
    let text = kernels_on("h200", |here| here.device.driver_ver = 12_080).expect_err("older");
    assert!(
        text.contains("this driver is too old for the cubin: it is that of CUDA 12.8, and the cubin needs"),
        "{text}"
    );
    assert!(text.contains("CUDA 13.0 or newer. Install a newer driver"), "{text}");
    let text = kernels_on("b200", |here| here.device.driver_ver = 13_000).expect_err("another GPU");
    assert!(text.contains("it is for sm_90, and this GPU is sm_100"), "{text}");
}
