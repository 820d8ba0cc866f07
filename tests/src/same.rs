//! Checks that some things do not change a kernel: compiling again, board properties that keys leave out, and the size
//! of a page pool.

use qkvault_compile::{Compiled, Compiler};
use qkvault_cudnn::{CompileOptions, DeviceProps, Target, Variant, VariantSet, lower};
use qkvault_graph::{Attention, Band, DType, Valid, validate};
use qkvault_serving::{Bucket, ServeLayer, StepKind};

use crate::cudnn::{compiler, target};
use crate::golden::{RECENT, VERSIONS, turn};
use crate::kernel::cubins;

/// A prefill and a decode: their kernels and heuristics differ most.
fn attentions() -> [Valid; 2] {
    let prefill = Attention::bshd(2, (8, 2), (512, 512), 128, DType::BF16).with_band(Band::CAUSAL);
    let decode = Attention::bshd(2, (8, 2), (1, 4096), 128, DType::BF16).with_lengths();
    [prefill, decode].map(|a| validate(a).unwrap())
}

/// Compiles an attention.
///
/// # Panics
///
/// Panics if it does not compile.
#[must_use]
pub fn compiled(compiler: &Compiler, attention: &Valid, target: &Target) -> Compiled {
    compiled_with(compiler, attention, target, &CompileOptions::cudnn())
}

fn compiled_with(compiler: &Compiler, attention: &Valid, target: &Target, policy: &CompileOptions) -> Compiled {
    let graph = lower(attention, target, policy).unwrap_or_else(|e| panic!("{attention}: {e}"));
    compiler.compile(&graph, target, policy).unwrap_or_else(|e| panic!("{attention} for {target}: {e}"))
}

/// Checks that the number of pages in a pool changes neither engine nor kernel nor workspace. Therefore plans are
/// compiled for the next power of two of pages (`round-pool`).
///
/// # Panics
///
/// Panics if it changes one of them.
pub fn check_pools(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let exact = CompileOptions {
        lab: qkvault_cudnn::LabOptions::without(VariantSet::NONE.with(Variant::RoundPool)),
        ..CompileOptions::cudnn()
    };
    let steps = [(StepKind::Decode, 1), (StepKind::Mixed, 256)];
    let gpus = ["h200", "a100", "b200", "rtx-pro-6000"];
    let rows: Vec<_> = gpus.into_iter().flat_map(|gpu| steps.map(|step| (gpu, step))).collect();
    for (gpu, (kind, queries)) in turn(rows, version, RECENT) {
        let target = target(&compiler, gpu);
        let bucket = Bucket { kind, batch: 8, queries, keys: 4096, tokens: 512 };
        let [few, many] = [1000, 100_000].map(|pages| {
            let layer = ServeLayer::new((32, 8), (128, 128), DType::BF16, pages, 64);
            compiled_with(&compiler, &layer.attention(&bucket).unwrap_or_else(|e| panic!("{e}")), &target, &exact)
        });
        assert_eq!((&few.engine, few.workspace), (&many.engine, many.workspace), "{kind:?} for {target}");
        let kernels = cubins(&few.blob);
        assert!(!kernels.is_empty() && kernels == cubins(&many.blob), "{kind:?} for {target}: another kernel");
    }
}

/// Checks that compiling an attention twice gives the same kernel, engine, workspace and number of bytes.
///
/// # Panics
///
/// Panics if they differ.
pub fn check_twice(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let target = target(&compiler, "h200");
    for attention in attentions() {
        let [a, b] = [(); 2].map(|()| compiled(&compiler, &attention, &target));
        let kernels = cubins(&a.blob);
        assert!(!kernels.is_empty() && kernels.iter().all(|k| k.len() > 10_000), "{attention}: no kernel inside");
        assert!(kernels == cubins(&b.blob), "{attention}: two kernels");
        assert_eq!((&a.engine, a.workspace, a.blob.len()), (&b.engine, b.workspace, b.blob.len()), "{attention}");
    }
}

/// A property of a board, and a change of it.
type Change = (&'static str, fn(&mut DeviceProps));

/// The properties that keys leave out.
const BOARD: [Change; 8] = [
    ("pciDeviceId", |p| p.pci_device_id += 1),
    ("isTccDriver", |p| p.is_tcc_driver = 1 - p.is_tcc_driver),
    ("totalGlobalMem", |p| p.total_global_mem /= 4),
    ("smClockRateKHz", |p| p.sm_clock_rate_khz /= 2),
    ("memClockRateKHz", |p| p.mem_clock_rate_khz /= 2),
    ("l2CacheSize", |p| p.l2_cache_size /= 4),
    ("cudaDeviceId", |p| p.cuda_device_id += 1),
    ("deviceName", |p| p.device_name = "Another GPU".to_owned()),
];

/// Checks that the properties that keys leave out change neither engine nor kernel nor workspace: one at a time for an
/// H200 (those of its turn), all together for an A100 and a B200.
///
/// # Panics
///
/// Panics if a property changes one of them. Then keys must include it.
pub fn check_board(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    for attention in attentions() {
        for gpu in ["h200", "a100", "b200"] {
            let target = target(&compiler, gpu);
            let base = compiled(&compiler, &attention, &target);
            let alone: Vec<_> = BOARD.chunks(if gpu == "h200" { 1 } else { BOARD.len() }).collect();
            let alone = if alone.len() > 1 { turn(alone, version, &VERSIONS) } else { alone };
            for changes in alone {
                let mut other = target.clone();
                changes.iter().for_each(|(_, change)| change(&mut other.device));
                assert_ne!(other.device, target.device, "a change changes something");
                let plan = compiled(&compiler, &attention, &other);
                let names: Vec<&str> = changes.iter().map(|(name, _)| *name).collect();
                let what = format!("{attention} for {target} with another {}", names.join(", "));
                assert_eq!((&plan.engine, plan.workspace), (&base.engine, base.workspace), "{what}");
                assert!(cubins(&plan.blob) == cubins(&base.blob), "{what}: another kernel");
            }
        }
    }
}
