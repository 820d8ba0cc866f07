//! Plans of kernels on a real GPU: a small kernel with everything that a recipe has goes through the whole path, from
//! CUDA C to launches, captures and other operands.
//!
//! The tests need a driver, a cuDNN that the usual search finds, and the plan in the vault folder `QKVAULT_TEST_VAULT`.
//! Without them they are skipped, or fail with `QKVAULT_REQUIRE=gpu`. The test `fill` makes the plan on any machine
//! with NVRTC, as that of `gpu.rs` does.
#![cfg(feature = "cudarc")]

mod common;

use std::sync::Arc;
use std::time::Instant;

use common::say;
use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{KernelPlan, OnMiss, OwnFacts, Plan, Planner};
use qkvault_exec::raw::{DeviceBuffer, RawArgs};
use qkvault_exec::{Args, Device, LoadError, LoadedPlan, Number, Session, cudarc};
use qkvault_graph::{Attention, DType, Role, Valid, validate};
use qkvault_kernels::Generated;
use qkvault_kernels::recipe::{Launch, LaunchRecipe, LaunchValue, Param, Patch, RECIPE_FORMAT, RecipeStep, TensorMap};
use qkvault_skip::{Need, skip};
use qkvault_sys::{Library, Search};

/// Keys times a number into the scratch memory, by tensor maps and in clusters; then their sum with the queries, in a
/// second kernel that begins before the first has ended.
const SOURCE: &str = r#"
typedef unsigned int u32; typedef unsigned long long u64; typedef unsigned short u16;
struct alignas(64) Map { u64 words[16]; };
__device__ float wide(u16 x) { return __uint_as_float((u32)x << 16); }
extern "C" __global__ void first(const __grid_constant__ Map map, float* scratch, float by) {
  extern __shared__ __align__(1024) unsigned char box[];
  __shared__ __align__(8) u64 arrived;
  u32 bar = (u32)__cvta_generic_to_shared(&arrived), to = (u32)__cvta_generic_to_shared(box);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
      :: "r"(to), "l"(&map), "r"(0), "r"((int)blockIdx.x * 8), "r"(bar) : "memory");
  }
  __syncthreads();
  asm volatile("{\n.reg .pred p;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@!p bra wait;\n}" :: "r"(bar) : "memory");
  for (int i = threadIdx.x; i < 512; i += blockDim.x) {
    int row = i / 64, part = (i % 64) / 8, at = row * 128 + ((part ^ row) * 16) + (i % 8) * 2;
    scratch[blockIdx.x * 512 + i] += wide(*(u16*)(box + at)) * by;
  }
  asm volatile("griddepcontrol.launch_dependents;");
}
extern "C" __global__ void second(const float* scratch, const u16* q, u16* o, float* stats, u64 constant) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  int i = threadIdx.x;
  o[i] = (u16)(__float_as_uint(scratch[i] + wide(q[i])) >> 16);
  if (i < 8) stats[i] = scratch[4095 - i] + (float)constant;
}
"#;

fn attention() -> Valid {
    validate(Attention::bshd(1, (2, 1), (4, 64), 64, DType::BF16).with_stats()).expect("valid")
}

fn recipe() -> LaunchRecipe {
    let param = |bytes: usize, value| Param { bytes: vec![0; bytes], patches: vec![Patch { at: 0, value }] };
    let map = TensorMap {
        role: Role::K,
        dtype: DType::BF16,
        dims: vec![64, 64],
        strides: vec![128],
        tile: vec![64, 8],
        swizzle: 128,
    };
    let launch = |function: &str, grid, block, shared, cluster, overlap, params| {
        let (module, function) = (0, function.to_owned());
        RecipeStep::Launch(Launch { module, function, grid, block, shared, cluster, overlap, params })
    };
    let first = vec![
        param(128, LaunchValue::Map(map)),
        param(8, LaunchValue::Scratch(256)),
        param(4, LaunchValue::Number(Role::Scale)),
    ];
    let second = vec![
        param(8, LaunchValue::Scratch(256)),
        param(8, LaunchValue::Address(Role::Q)),
        param(8, LaunchValue::Address(Role::O)),
        param(8, LaunchValue::Address(Role::Stats)),
        Param { bytes: 3_u64.to_le_bytes().to_vec(), patches: Vec::new() },
    ];
    let steps = vec![
        RecipeStep::Clear { at: 256, bytes: 16_384, value: 0 },
        launch("first", [8, 1, 1], [128, 1, 1], 100_000, Some([2, 1, 1]), false, first),
        launch("second", [1, 1, 1], [512, 1, 1], 0, None, true, second),
    ];
    LaunchRecipe {
        format: RECIPE_FORMAT,
        sm: 90,
        driver: 13_000,
        scratch: 16_640,
        modules: Vec::new(),
        constants: 0,
        steps,
    }
}

/// The plan: compiled, or from the vault.
fn plan(planner: &Planner, on_miss: OnMiss) -> Arc<Plan> {
    let (attention, options) = (attention(), vec!["--std=c++17".to_owned()]);
    let made = Generated { source: SOURCE.to_owned(), options, recipe: recipe() };
    let of = KernelPlan { of: &attention, made };
    planner.kernels(&of, on_miss).expect("the plan").outcome.expect("no refusal")
}

fn planner() -> Option<Planner> {
    let folder = std::env::var_os("QKVAULT_TEST_VAULT")?;
    Some(Planner::new(Vault::open(VaultOptions::new().folder(folder)).expect("opens"), None))
}

/// Without a GPU: makes the plan where `QKVAULT_TEST_FILL` asks for it; else the source compiles.
#[test]
fn fill() {
    match planner() {
        Some(planner) if std::env::var_os("QKVAULT_TEST_FILL").is_some() => {
            plan(&planner, OnMiss::Compile);
        }
        // Without a folder to fill, at least the source compiles.
        _ => match qkvault_compile::Nvrtc::open(None) {
            Ok(nvrtc) => {
                nvrtc.compile("recipe.cu", SOURCE, &["--std=c++17".to_owned()], 90).expect("compiles");
            }
            Err(error) => skip(Need::Cudnn, &error.to_string()),
        },
    }
}

struct Gpu {
    stream: Arc<CudaStream>,
    session: Session,
    plan: Arc<Plan>,
}

impl Gpu {
    fn open() -> Option<Gpu> {
        let open = || -> Result<Gpu, String> {
            let device = Device::open(0).map_err(|error| error.to_string())?;
            let planner = planner().ok_or("QKVAULT_TEST_VAULT names no folder")?;
            let library = Library::open(&Search::default()).map_err(|error| error.to_string())?;
            let session = Session::open(&device, &library).map_err(|error| error.to_string())?;
            let stream = device.context().new_stream().map_err(|error| error.to_string())?;
            Ok(Gpu { stream, session, plan: plan(&planner, OnMiss::Load) })
        };
        open().map_err(|error| skip(Need::Gpu, &error)).ok()
    }

    fn load(&self) -> LoadedPlan {
        self.session.load(&self.plan).expect("loads")
    }
}

/// Operands on the GPU, with what a launch must write.
struct Case {
    q: CudaSlice<bf16>,
    k: CudaSlice<bf16>,
    v: CudaSlice<bf16>,
    o: CudaSlice<bf16>,
    stats: CudaSlice<f32>,
    host: (Vec<f32>, Vec<f32>),
}

impl Case {
    /// Small whole numbers, whose products and sums bf16 has exactly.
    fn new(gpu: &Gpu, seed: usize) -> Case {
        let list = |count: usize, factor: usize| -> Vec<f32> {
            (0..count).map(|i| (((i + seed) * factor) % 33) as f32 - 16.0).collect()
        };
        let (q, k) = (list(512, 7), list(4096, 5));
        let give = |values: &[f32]| {
            let values: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
            gpu.stream.clone_htod(&values).expect("copied")
        };
        Case {
            q: give(&q),
            k: give(&k),
            v: give(&k),
            o: give(&[f32::NAN; 512]),
            stats: gpu.stream.clone_htod(&[f32::NAN; 8]).expect("copied"),
            host: (q, k),
        }
    }

    fn check(&self, gpu: &Gpu, scale: f32, of: &(Vec<f32>, Vec<f32>)) {
        let o: Vec<f32> = gpu.stream.clone_dtoh(&self.o).expect("copied").iter().map(|value| value.to_f32()).collect();
        let stats = gpu.stream.clone_dtoh(&self.stats).expect("copied");
        let expected: Vec<f32> = of.0.iter().zip(&of.1).map(|(q, k)| k * scale + q).collect();
        assert_eq!(o, expected);
        assert_eq!(stats, (0..8).map(|i| of.1[4095 - i] * scale + 3.0).collect::<Vec<f32>>());
    }

    fn args(&mut self, scale: f32) -> Args<'_> {
        Args::new()
            .q(&self.q)
            .k(&self.k)
            .v(&self.v)
            .o(&mut self.o)
            .tensor_mut(Role::Stats, &mut self.stats)
            .scale(scale)
    }
}

#[test]
fn kernels_with_maps_numbers_scratch_and_overlap_launch_with_arguments() {
    let Some(gpu) = Gpu::open() else { return };
    let plan = gpu.load();
    plan.load_kernels().expect("they are loaded");
    assert_eq!(plan.workspace(), 16_640);
    for (seed, scale) in [(0, 0.5), (3, 0.5), (3, 2.0), (9, -1.0)] {
        let mut case = Case::new(&gpu, seed);
        for _ in 0..3 {
            plan.launch(&gpu.stream, case.args(scale)).expect("queued");
        }
        case.check(&gpu, scale, &case.host);
    }
    // The checks are those of every plan.
    let mut case = Case::new(&gpu, 1);
    let short = case.k.slice(..100);
    let args = Args::new().q(&case.q).k(&short).v(&case.v).o(&mut case.o).tensor_mut(Role::Stats, &mut case.stats);
    let text = plan.launch(&gpu.stream, args.scale(1.0)).expect_err("too short").to_string();
    assert!(text.contains('K'), "{text}");
}

#[test]
fn kernels_are_captured_replayed_and_updated_with_other_operands() {
    let Some(gpu) = Gpu::open() else { return };
    let plan = gpu.load();
    let (first, second) = (Case::new(&gpu, 2), Case::new(&gpu, 5));
    let owned = |case: Case, scale: f32| {
        Args::new().q(case.q).k(case.k).v(case.v).o(case.o).tensor_mut(Role::Stats, case.stats).scale(scale)
    };
    let (host, other) = (first.host.clone(), second.host.clone());
    let mut graph = plan.bind(owned(first, 0.5), &gpu.stream).expect("binds").capture(&gpu.stream).expect("captured");
    let read = |graph: &mut qkvault_exec::Captured<'_>| {
        let o = graph.slice::<bf16>(Role::O).expect("owned").clone();
        gpu.stream.clone_dtoh(&o).expect("copied").iter().map(|value| value.to_f32()).collect::<Vec<f32>>()
    };
    let expected = |host: &(Vec<f32>, Vec<f32>), scale: f32| {
        host.0.iter().zip(&host.1).map(|(q, k)| k * scale + q).collect::<Vec<f32>>()
    };
    for _ in 0..5 {
        graph.launch().expect("replayed");
    }
    gpu.stream.synchronize().expect("done");
    assert_eq!(read(&mut graph), expected(&host, 0.5));
    graph.update(owned(second, 2.0)).expect("updated");
    graph.launch().expect("replayed");
    gpu.stream.synchronize().expect("done");
    assert_eq!(read(&mut graph), expected(&other, 2.0));
}

#[test]
fn a_recipe_whose_parameters_are_not_the_cubins_is_refused_before_a_launch() {
    let Some(gpu) = Gpu::open() else { return };
    let refused = |change: fn(&mut Launch)| {
        let mut plan = Plan::clone(&gpu.plan);
        let OwnFacts::Kernels(kernels) = &mut plan.facts.own else { panic!("of kernels") };
        match &mut kernels.recipe.steps[2] {
            RecipeStep::Launch(launch) => change(launch),
            RecipeStep::Clear { .. } => unreachable!("the third step launches"),
        }
        let error = gpu.session.load(&plan).expect_err("refused");
        assert!(matches!(error, LoadError::Kernels { .. }), "{error}");
        error.to_string()
    };
    let text = refused(|launch| launch.params[4].bytes = vec![0; 4]);
    assert!(text.contains("parameter 4 of the kernel second 4 bytes, and it has 8"), "{text}");
    let text = refused(|launch| launch.params.truncate(4));
    assert!(text.contains("4 parameters, and it has more"), "{text}");
    let text = refused(|launch| launch.params.push(Param { bytes: vec![0; 8], patches: Vec::new() }));
    assert!(text.contains("parameter 5 of the kernel second 8 bytes, and there is none"), "{text}");
    let text = refused(|launch| launch.function = "third".to_owned());
    assert!(text.contains("find the kernel third"), "{text}");
    // Damaged code is refused by its first bytes, and the session goes on.
    let mut plan = Plan::clone(&gpu.plan);
    let mut bytes = plan.blob.to_vec();
    bytes[0] = 0;
    plan.blob = bytes.into();
    let text = gpu.session.load(&plan).expect_err("damaged").to_string();
    assert!(text.contains("no ELF file"), "{text}");
    let mut case = Case::new(&gpu, 4);
    gpu.load().launch(&gpu.stream, case.args(1.0)).expect("queued");
    case.check(&gpu, 1.0, &case.host);
}

#[test]
fn costs_of_a_load_and_of_a_launch_of_kernels() {
    let Some(gpu) = Gpu::open() else { return };
    let started = Instant::now();
    let plan = gpu.load();
    say(&format!("load: {:.0} us", started.elapsed().as_secs_f64() * 1e6));
    let mut case = Case::new(&gpu, 0);
    let (stream, raw) = (gpu.stream.cu_stream().cast(), plan.raw());
    let workspace = gpu.stream.alloc_zeros::<u8>(32_768).expect("memory");
    {
        use cudarc::driver::{DevicePtr as _, DevicePtrMut as _};
        let buffer = |address, bytes| DeviceBuffer { address, bytes };
        let of = |role| -> DeviceBuffer {
            match role {
                Role::Q => buffer(case.q.device_ptr(&gpu.stream).0, 1024),
                Role::K => buffer(case.k.device_ptr(&gpu.stream).0, 8192),
                Role::V => buffer(case.v.device_ptr(&gpu.stream).0, 8192),
                Role::O => buffer(case.o.device_ptr(&gpu.stream).0, 1024),
                _ => buffer(case.stats.device_ptr(&gpu.stream).0, 32),
            }
        };
        let tensors: Vec<DeviceBuffer> = raw.tensors().iter().map(|tensor| of(tensor.role)).collect();
        let workspace = buffer(workspace.device_ptr(&gpu.stream).0.next_multiple_of(256), 20_000);
        let scalars = [Number::F32(0.5)];
        let args = RawArgs { tensors: &tensors, scalars: &scalars, workspace, interleaved: &[] };
        let launch = |count: u32| {
            let started = Instant::now();
            for _ in 0..count {
                // SAFETY: all memory lives until the stream is waited for below.
                unsafe { raw.launch_with(&args, stream) }.expect("queued");
            }
            started.elapsed().as_secs_f64() * 1e6 / f64::from(count)
        };
        launch(50);
        gpu.stream.synchronize().expect("done");
        let mut times: Vec<f64> = (0..21)
            .map(|_| {
                let time = launch(50);
                gpu.stream.synchronize().expect("done");
                time
            })
            .collect();
        times.sort_by(f64::total_cmp);
        say(&format!("launch of three steps with a tensor map: {:.2} us of host time", times[10]));
        let _ = case.o.device_ptr_mut(&gpu.stream);
    }
    case.check(&gpu, 0.5, &case.host);
}
