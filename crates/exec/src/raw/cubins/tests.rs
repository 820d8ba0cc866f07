//! What a launch asks of the driver and what it costs the host, with functions in the driver's place that count.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_uchar};
use std::time::Instant;

use qkvault_compile::PlanFacts;
use qkvault_cudnn::Profile;
use qkvault_graph::{Attention, CudnnVersion, DType, LibrarySet, Tensor, validate};
use qkvault_kernels::recipe::{LaunchValue, RECIPE_FORMAT, bindings};
use qkvault_kernels::{SM, generate};

use super::driver::Any;
use super::*;

thread_local! {
    /// Tensor maps that were made, launches, and buffers that were cleared.
    static CALLS: Cell<[usize; 3]> = const { Cell::new([0; 3]) };
    /// The last extent of the map that was made last, and the first number of four bytes that a launch read.
    static SEEN: Cell<(u64, f32)> = const { Cell::new((0, 0.0)) };
    /// Cubins that were loaded and unloaded, kernels that were found, and bytes of shared memory that were asked for.
    static LOADS: RefCell<(usize, usize, usize, Vec<c_int>)> = const { RefCell::new((0, 0, 0, Vec::new())) };
    /// Bytes that were brought to the GPU, and addresses that were freed.
    static DATA: RefCell<(Vec<Vec<u8>>, Vec<u64>)> = const { RefCell::new((Vec::new(), Vec::new())) };
    /// The size of every kernel's one parameter, and where its number lies.
    static PARAM: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn count(which: usize) -> c_int {
    CALLS.with(|calls| {
        let mut all = calls.get();
        all[which] += 1;
        calls.set(all);
    });
    0
}

fn calls() -> [usize; 3] {
    CALLS.with(Cell::take)
}

/// Where constant data of a plan is, whose last four bytes are those of 0.75.
const CONSTANTS: u64 = 0x3f40_0000_0000_0000;

static COUNTING: DriverFunctions = {
    unsafe extern "C" fn load(module: *mut Any, _: *const c_void) -> c_int {
        // SAFETY: the caller's place for a handle.
        unsafe { *module = std::ptr::without_provenance_mut(1) };
        LOADS.with_borrow_mut(|loads| loads.0 += 1);
        0
    }
    unsafe extern "C" fn unload(_: Any) -> c_int {
        LOADS.with_borrow_mut(|loads| loads.1 += 1);
        0
    }
    unsafe extern "C" fn get(function: *mut Any, _: Any, _: *const c_char) -> c_int {
        // SAFETY: the caller's place for a handle.
        unsafe { *function = std::ptr::without_provenance_mut(2) };
        LOADS.with_borrow_mut(|loads| loads.2 += 1);
        0
    }
    unsafe extern "C" fn param(_: Any, at: usize, _: *mut usize, size: *mut usize) -> c_int {
        // SAFETY: the caller's place for a size.
        unsafe { *size = PARAM.get().0 };
        c_int::from(at > 0)
    }
    unsafe extern "C" fn set_attribute(_: Any, _: c_int, bytes: c_int) -> c_int {
        LOADS.with_borrow_mut(|loads| loads.3.push(bytes));
        0
    }
    unsafe extern "C" fn load_function(_: Any) -> c_int {
        0
    }
    unsafe extern "C" fn launch(_: *const LaunchConfig, _: Any, params: *mut Any, _: *mut Any) -> c_int {
        // SAFETY: one parameter, whose number lies there.
        let number = unsafe { (*params).byte_add(PARAM.get().1).cast::<f32>().read_unaligned() };
        SEEN.with(|seen| seen.set((seen.get().0, number)));
        count(1)
    }
    unsafe extern "C" fn set(_: u64, _: c_uchar, _: usize, _: Any) -> c_int {
        count(2)
    }
    unsafe extern "C" fn encode(
        at: *mut u8,
        _: c_int,
        rank: c_uint,
        _: u64,
        dims: *const u64,
        _: *const u64,
        _: *const c_uint,
        _: *const c_uint,
        _: c_int,
        _: c_int,
        _: c_int,
        _: c_int,
    ) -> c_int {
        // SAFETY: a list of as many dims.
        let last = unsafe { *dims.add(rank as usize - 1) };
        SEEN.with(|seen| seen.set((last, seen.get().1)));
        if at.addr().is_multiple_of(64) { count(0) } else { 1 }
    }
    fn upload(bytes: &[u8]) -> Result<DeviceBuffer, String> {
        DATA.with_borrow_mut(|data| data.0.push(bytes.to_vec()));
        Ok(DeviceBuffer { address: CONSTANTS, bytes: bytes.len() as u64 })
    }
    fn free(buffer: DeviceBuffer) -> Result<(), String> {
        DATA.with_borrow_mut(|data| data.1.push(buffer.address));
        Ok(())
    }
    DriverFunctions { load, unload, get, param, set_attribute, load_function, launch, set, encode, upload, free }
};

/// A plan of decoding over a pool of 16 pages, and the buffers of a launch.
fn decoding() -> (Cubins, Vec<DeviceBuffer>) {
    let mut a = Attention::bshd(4, (32, 8), (1, 1024), 128, DType::BF16).with_lengths();
    a.k = Tensor::paged_nhd(4, 8, 1024, 128, 16, 64, DType::BF16);
    a.v = a.k;
    let a = validate(a).expect("valid");
    let mut recipe = generate(&a, SM).expect("is taken").recipe;
    recipe.modules = vec![4];
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
    let facts = PlanFacts { bindings: bindings(&a), ..crate::common::forward(&target) };
    let table = LaunchTable::new(&facts, &facts.scratch());
    let Some(RecipeStep::Launch(first)) = recipe.steps.first() else { panic!("it launches") };
    let scale = first.params[0].patches.iter().find(|patch| matches!(patch.value, LaunchValue::Number(_)));
    PARAM.set((first.params[0].bytes.len(), scale.expect("the scale").at as usize));
    let recipe = recipe.check(&facts.bindings, 4).expect("right");
    let modules = Modules::default();
    let (cubins, _) = Cubins::load_with(&COUNTING, &recipe, b"\x7fELF", &table, &modules).expect("loads");
    let buffer = |(at, binding): (usize, &qkvault_graph::Binding)| DeviceBuffer {
        address: (at as u64 + 1) << 40,
        bytes: binding.bytes,
    };
    let buffers = table.tensors().iter().enumerate().map(buffer).collect();
    calls();
    (cubins, buffers)
}

fn launch(cubins: &Cubins, buffers: &[DeviceBuffer], scale: f32) {
    // SAFETY: the functions in the driver's place follow no address.
    unsafe { cubins.launch(buffers, |_| u64::from(scale.to_bits()), 1 << 50, std::ptr::null_mut()) }.expect("queued");
}

#[test]
fn a_launch_on_the_buffers_of_an_earlier_one_asks_the_driver_for_its_kernels_alone() {
    let (cubins, buffers) = decoding();
    launch(&cubins, &buffers, 0.5);
    assert_eq!((calls(), SEEN.get()), ([2, 2, 0], (16, 0.5)), "the maps of keys and values, attend and merge");
    launch(&cubins, &buffers, 0.25);
    assert_eq!((calls(), SEEN.get().1), ([0, 2, 0], 0.25), "the numbers are those of this launch");
    // Other layers, and the first one again.
    for layer in 1..40 {
        let moved: Vec<_> = buffers.iter().map(|b| DeviceBuffer { address: b.address + layer * 4096, ..*b }).collect();
        launch(&cubins, &moved, 0.5);
        assert_eq!(calls(), [2, 2, 0]);
    }
    launch(&cubins, &buffers, 0.5);
    assert_eq!(calls(), [0, 2, 0]);
    // A larger pool at the same address.
    let larger: Vec<_> = buffers.iter().map(|b| DeviceBuffer { bytes: 2 * b.bytes, ..*b }).collect();
    launch(&cubins, &larger, 0.5);
    assert_eq!((calls(), SEEN.get().0), ([2, 2, 0], 32));
}

#[test]
fn the_hosts_part_of_a_launch_takes_nanoseconds() {
    let (cubins, buffers) = decoding();
    let once = || {
        let (rounds, started) = (2000_u32, Instant::now());
        (0..rounds).for_each(|_| launch(&cubins, &buffers, 0.5));
        started.elapsed() / rounds
    };
    let best = (0..20).map(|_| once()).min().expect("twenty");
    crate::common::say(&format!("a launch of two kernels takes the host {best:?} beside the driver"));
    // Without optimisation as well, on a machine that does other work.
    assert!(best.as_nanos() < 5_000, "{best:?}");
}

/// A new shape of a known family once loaded the same kernel again.
#[test]
fn plans_of_a_session_share_a_cubin_until_the_last_one_is_dropped() {
    PARAM.set((8, 0));
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
    let facts = crate::common::forward(&target);
    let table = LaunchTable::new(&facts, &facts.scratch());
    let modules = Modules::default();
    let load = |code: &[u8], shared: u32| {
        let launch = Launch {
            module: 0,
            function: "kernel".to_owned(),
            grid: [1; 3],
            block: [1; 3],
            shared,
            cluster: None,
            overlap: false,
            params: vec![qkvault_kernels::recipe::Param { bytes: vec![0; 8], patches: Vec::new() }],
        };
        let (modules_of, steps) = (vec![code.len() as u64], vec![RecipeStep::Launch(launch)]);
        let recipe = LaunchRecipe {
            format: RECIPE_FORMAT,
            sm: 90,
            driver: 13_000,
            scratch: 0,
            modules: modules_of,
            constants: 0,
            steps,
        };
        let recipe = recipe.check(&facts.bindings, code.len() as u64).expect("right");
        Cubins::load_with(&COUNTING, &recipe, code, &table, &modules)
    };
    let loads = || LOADS.with_borrow_mut(std::mem::take);
    let (first, asked) = load(b"\x7fELF one", 1000).expect("loads");
    assert_eq!((loads(), asked.modules.is_zero()), ((1, 0, 1, vec![1000]), false));
    // The shared memory of a kernel only grows, because plans before it launch it too.
    let (second, asked) = load(b"\x7fELF one", 2000).expect("loads");
    let (third, _) = load(b"\x7fELF one", 500).expect("loads");
    assert_eq!((loads(), asked.modules.is_zero()), ((0, 0, 0, vec![2000]), true));
    let (other, _) = load(b"\x7fELF two", 0).expect("loads");
    assert_eq!(loads(), (1, 0, 1, Vec::new()));
    drop((first, second));
    assert_eq!(loads(), (0, 0, 0, Vec::new()), "the third one has it");
    drop(third);
    assert_eq!(loads(), (0, 1, 0, Vec::new()));
    let again = load(b"\x7fELF one", 1000).expect("loads");
    assert_eq!(loads(), (1, 0, 1, vec![1000]));
    // Another plan may not bring other parameters.
    PARAM.set((4, 0));
    let wrong = load(b"\x7fELF three", 0).map(drop).expect_err("another size");
    assert!(wrong.contains("parameter 0 of the kernel kernel 8 bytes, and it has 4"), "{wrong}");
    drop((other, again));
}

/// Lists of tiles that no launch changes are on the GPU before the first launch.
#[test]
fn constant_data_is_brought_with_the_plan_and_freed_with_it() {
    PARAM.set((16, 12));
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
    let facts = crate::common::forward(&target);
    let table = LaunchTable::new(&facts, &facts.scratch());
    let code = b"\x7fELF one, and data";
    let param = qkvault_kernels::recipe::Param {
        bytes: vec![0; 16],
        patches: vec![qkvault_kernels::recipe::Patch { at: 8, value: LaunchValue::Constant(3) }],
    };
    let launch = Launch {
        module: 0,
        function: "kernel".to_owned(),
        grid: [1; 3],
        block: [1; 3],
        shared: 0,
        cluster: None,
        overlap: false,
        params: vec![param],
    };
    let steps = vec![RecipeStep::Launch(launch.clone()), RecipeStep::Launch(launch)];
    let (modules, constants) = (vec![8], code.len() as u64 - 8);
    let recipe = LaunchRecipe { format: RECIPE_FORMAT, sm: 90, driver: 13_000, scratch: 0, modules, constants, steps };
    let recipe = recipe.check(&facts.bindings, code.len() as u64).expect("right");
    let load = |code: &[u8]| Cubins::load_with(&COUNTING, &recipe, code, &table, &Modules::default());
    let (cubins, _) = load(code).expect("loads");
    let data = || DATA.with_borrow_mut(std::mem::take);
    assert_eq!(data(), (vec![b", and data".to_vec()], Vec::new()), "once for both launches");
    for _ in 0..2 {
        launch_of_nothing(&cubins);
        assert_eq!(
            (SEEN.get().1.to_bits(), data()),
            (0x3f40_0000, (Vec::new(), Vec::new())),
            "a launch brings nothing"
        );
    }
    drop(cubins);
    assert_eq!(data(), (Vec::new(), vec![CONSTANTS]));
    let short = load(&code[..12]).map(drop).expect_err("the data is not there");
    assert!(short.contains("constant data"), "{short}");
}

fn launch_of_nothing(cubins: &Cubins) {
    // SAFETY: the functions in the driver's place follow no address.
    unsafe { cubins.launch(&[], |_| 0, 1 << 50, std::ptr::null_mut()) }.expect("queued");
}
