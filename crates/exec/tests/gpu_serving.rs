//! Serving steps on a real GPU, compared with the oracle: batches updated in place, and captured graphs that read them.
//! `gpu.rs` describes what the tests need and how the plans are made.
#![cfg(feature = "cudarc")]

mod common;
mod kit;
mod steps;

use std::time::{Duration, Instant};

use common::{h200, say};
use cudarc::driver::result;
use kit::{Gpu, servings};
use qkvault_cudnn::{CompileOptions, lower};
use qkvault_exec::serving::{BatchInputError, Rows, Step, StepBuffer, StepLayout};
use qkvault_exec::{Args, BatchError, BatchMetadata, BindError, BindFailure, cudarc};
use qkvault_graph::{CudnnVersion, Role, Varlen};
use qkvault_reference::forward;
use steps::{Drawn, Stage, drawn, inputs, steps_of};

/// The number of [`servings`] that are small enough for the oracle; the one after them is for times alone.
const JUDGED: std::ops::Range<usize> = 0..3;

/// The batch of an attention's plan, with the attention's memory.
fn stage(gpu: &Gpu, which: usize) -> (Stage, BatchMetadata) {
    let attention = servings()[which].clone();
    let plan = gpu.load(&attention);
    let batch = BatchMetadata::new(&plan, &attention, &gpu.stream).expect("the plan has steps");
    (Stage::new(gpu, attention, plan), batch)
}

/// Without a GPU: the random steps of the tests below are valid and of every kind.
#[test]
fn drawn_steps_are_sound_and_the_oracle_takes_them() {
    let (mut empty, mut short, mut shared) = (0, 0, 0);
    for attention in &servings()[JUDGED] {
        let target = h200(CudnnVersion::v9(19, 0));
        let graph = lower(attention, &target, &CompileOptions::default()).expect("lowers");
        let mut image = StepBuffer::new(StepLayout::of_graph(attention, &graph).expect("it has steps"));
        for (n, drawn) in steps_of(attention, 12).iter().enumerate() {
            image.fill(&drawn.step()).unwrap_or_else(|e| panic!("{e}: {drawn:?}"));
            image.verify(image.words()).expect("as it was put there");
            let inputs = inputs(attention, drawn, n as u64);
            forward(attention, &inputs).expect("the oracle can do it");
            for (role, at, words) in image.layout().operands() {
                // The oracle and the kernels read the same values within the lengths.
                let expected = inputs.get(role).expect("every operand of a step");
                let wide = usize::from(words > expected.len()) + 1;
                for entry in 0..expected.len() {
                    let low = i64::from(image.words()[at + wide * entry] as u32);
                    let tables = matches!(role, Role::PageTableK | Role::PageTableV);
                    assert!(tables || low == expected.int(entry) & 0xffff_ffff, "{role}: {entry}: {drawn:?}");
                }
            }
            empty += drawn.queries.iter().filter(|n| **n == 0).count();
            short += drawn.keys.iter().filter(|n| (1..16).contains(*n)).count();
            let first = drawn.tables.iter().filter_map(|pages| pages.first()).collect::<Vec<_>>();
            shared += first.windows(2).filter(|pair| pair[0] == pair[1]).count();
        }
    }
    assert!(empty > 5 && short > 5 && shared > 5, "{empty} empty, {short} shorter than a page, {shared} shared");
}

#[test]
fn every_step_of_a_batch_that_is_updated_in_place_is_the_oracles() {
    let Some(gpu) = Gpu::open() else { return };
    for which in JUDGED {
        let (mut stage, mut batch) = stage(&gpu, which);
        let mut bound = stage.bind(&gpu, &batch);
        for (n, drawn) in steps_of(stage.attention(), 12).iter().enumerate() {
            let expected = stage.prepare(&gpu, drawn, n as u64);
            batch.update(&drawn.step(), &gpu.stream).expect("sound");
            bound.launch(&gpu.stream).expect("it is queued");
            stage.check(&gpu, &expected, drawn);
            batch.verify(&gpu.stream).expect("a launch changes none of it");
            // Another update with the same step copies nothing.
            assert_eq!(batch.update(&drawn.step(), &gpu.stream).expect("sound").copies, 0);
        }
    }
    assert_eq!(gpu.engine.planner().vault().stats().builds, 0);
}

#[test]
fn a_captured_graph_sees_lengths_and_tables_that_are_updated_in_place() {
    let Some(gpu) = Gpu::open() else { return };
    for which in JUDGED {
        let (mut stage, mut batch) = stage(&gpu, which);
        let steps = steps_of(stage.attention(), 12);
        // The capture is before the first step, when every sequence is idle.
        let mut graph = stage.bind(&gpu, &batch).capture(&gpu.stream).expect("it is captured");
        for (n, drawn) in steps.iter().enumerate() {
            let expected = stage.prepare(&gpu, drawn, n as u64);
            batch.update(&drawn.step(), &gpu.stream).expect("sound");
            graph.launch().expect("it is queued");
            stage.check(&gpu, &expected, drawn);
        }
        // Two replays with an update between them and no wait: the first still reads the step before.
        let (first, second) = (&steps[1], &steps[2]);
        let expected = stage.prepare(&gpu, first, 1);
        batch.update(&first.step(), &gpu.stream).expect("sound");
        graph.launch().expect("it is queued");
        batch.update(&second.step(), &gpu.stream).expect("sound");
        stage.check(&gpu, &expected, first);
    }
}

#[test]
fn layers_share_one_batch() {
    let Some(gpu) = Gpu::open() else { return };
    let (first, mut batch) = stage(&gpu, 1);
    let mut layers = vec![first];
    layers.extend((0..3).map(|_| stage(&gpu, 1).0));
    let mut bound: Vec<_> = layers.iter().map(|layer| layer.bind(&gpu, &batch)).collect();
    for drawn in &steps_of(&servings()[1], 4) {
        let expected: Vec<_> =
            layers.iter_mut().enumerate().map(|(n, layer)| layer.prepare(&gpu, drawn, n as u64)).collect();
        batch.update(&drawn.step(), &gpu.stream).expect("sound");
        bound.iter_mut().for_each(|bound| bound.launch(&gpu.stream).expect("it is queued"));
        layers.iter_mut().zip(&expected).for_each(|(layer, expected)| layer.check(&gpu, expected, drawn));
    }
}

#[test]
fn a_refused_step_leaves_the_one_before_on_the_device() {
    let Some(gpu) = Gpu::open() else { return };
    let (mut stage, mut batch) = stage(&gpu, 1);
    let mut bound = stage.bind(&gpu, &batch);
    let sound = drawn(&[5, 1, 0], &[40, 17, 0], &[vec![3, 9, 50], vec![7, 8], vec![]]);
    let expected = stage.prepare(&gpu, &sound, 3);
    batch.update(&sound.step(), &gpu.stream).expect("sound");
    let one = |keys: i32, page: i32| Drawn { queries: vec![1], keys: vec![keys], tables: vec![vec![page; 16]] };
    for (wrong, operand) in [
        (one(257, 0), Role::SeqLenKv),
        (one(20, 60), Role::PageTableK),
        (one(20, -1), Role::PageTableK),
        (Drawn { tables: vec![vec![0]; 2], ..one(9, 0) }, Role::PageTableK),
        (Drawn { queries: vec![71], keys: vec![80], ..one(0, 0) }, Role::SeqLenQ),
    ] {
        let Err(BatchError::Step(errors)) = batch.update(&wrong.step(), &gpu.stream) else { panic!("{wrong:?}") };
        assert!(errors.to_string().contains(&operand.to_string()), "{errors}");
    }
    let fall = Step::paged(Rows::Cumulative(&[0, 4, 2]), Rows::Lengths(&[9, 9]), &sound.tables[..2]);
    let refused = batch.update(&fall, &gpu.stream);
    assert!(
        matches!(&refused, Err(BatchError::Step(e)) if matches!(e[0], BatchInputError::Falls { entry: 2, .. })),
        "{refused:?}"
    );
    batch.verify(&gpu.stream).expect("as it was");
    bound.launch(&gpu.stream).expect("it is queued");
    stage.check(&gpu, &expected, &sound);
}

#[test]
fn what_others_write_into_the_tables_on_the_device_is_found_there() {
    let Some(gpu) = Gpu::open() else { return };
    let (_, mut batch) = stage(&gpu, 1);
    let sound = drawn(&[5, 1], &[40, 17], &[vec![3, 9, 50], vec![7, 8]]);
    batch.update(&sound.step(), &gpu.stream).expect("sound");
    batch.verify(&gpu.stream).expect("sound");
    let write = |batch: &BatchMetadata, role: Role, word: usize, value: i32| {
        let address = batch.address(role).expect("the plan has it") + 4 * word as u64;
        gpu.engine.session().device().context().bind_to_thread().expect("current");
        // SAFETY: a word of the batch's own memory, and nothing that reads it is queued.
        unsafe { result::memcpy_htod_async(address, &[value], gpu.stream.cu_stream()) }.expect("written");
        gpu.stream.synchronize().expect("written");
    };
    type Is = fn(&BatchInputError) -> bool;
    let cases: [(Role, usize, i32, i32, Is); 4] = [
        (Role::PageTableK, 1, 60, 9, |e| {
            matches!(e, BatchInputError::Page { sequence: 0, entry: 1, page: 60, last: 59, .. })
        }),
        (Role::SeqLenKv, 1, 300, 17, |e| {
            matches!(e, BatchInputError::Length { sequence: 1, given: 300, most: 256, .. })
        }),
        (Role::PageTableV, 2, 51, 50, |e| {
            matches!(e, BatchInputError::Overwritten { word: 2, found: 51, expected: 50, .. })
        }),
        (Role::Offsets(Varlen::Q), 2, 1, 5 * 8 * 64, |e| {
            matches!(e, BatchInputError::Falls { entry: 1, given: 1, .. })
        }),
    ];
    for (role, word, wrong, right, is) in cases {
        write(&batch, role, word, wrong);
        let found = batch.verify(&gpu.stream);
        let Err(BatchError::Step(errors)) = &found else { panic!("{role}: {found:?}") };
        assert!(errors.iter().any(is), "{role}: {errors}");
        write(&batch, role, word, right);
        batch.verify(&gpu.stream).expect("as it was");
    }
}

#[test]
fn misaligned_pools_and_pools_of_fewer_pages_are_refused_by_name() {
    let Some(gpu) = Gpu::open() else { return };
    let (stage, batch) = stage(&gpu, 0);
    let (k, v) = (stage.memory(Role::K), stage.memory(Role::V));
    let address = |role| stage.address(&gpu, role);
    let rest = || {
        let bindings = Args::new().scalar(Role::Scale, 0.125_f32).batch(&batch);
        [Role::Q, Role::O, Role::Stats].into_iter().fold(bindings, |all, role| {
            // SAFETY: refused, and so never launched.
            unsafe { all.address(role, address(role), stage.memory(role)) }
        })
    };
    // SAFETY: as above.
    let wrong =
        unsafe { rest().address(Role::K, address(Role::K) + 2, k - 2).address(Role::V, address(Role::V), v - 2) };
    let Err(BindFailure::Wrong(errors)) = stage.plan().bind(wrong, &gpu.stream) else { panic!("bound") };
    assert!(errors.iter().any(|e| matches!(e, BindError::Misaligned { role: Role::K, .. })), "{errors}");
    assert!(errors.iter().any(|e| matches!(e, BindError::TooSmall { role: Role::V, .. })), "{errors}");
}

#[test]
fn tables_and_offsets_of_the_callers_own_are_checked_on_the_device() {
    let Some(gpu) = Gpu::open() else { return };
    let (stage, _) = stage(&gpu, 1);
    let sound = drawn(&[5, 1], &[40, 17], &[vec![3, 9, 50], vec![7, 8]]);
    let inputs = inputs(stage.attention_of(), &sound, 1);
    let of_step = |role: &Role| {
        matches!(role, Role::SeqLenQ | Role::SeqLenKv | Role::PageTableK | Role::PageTableV | Role::Offsets(_))
    };
    let check = |change: Option<(Role, usize, u8)>| {
        let own = inputs.iter().filter(|(role, _)| of_step(role)).map(|(role, buffer)| {
            let mut bytes = buffer.bytes().to_vec();
            if let Some((_, at, value)) = change.filter(|(changed, ..)| *changed == role) {
                bytes[at] = value;
            }
            (role, gpu.stream.clone_htod(&bytes).expect("memory"))
        });
        let own: Vec<_> = own.collect();
        let bindings = own.iter().fold(Args::new(), |all, (role, slice)| all.tensor(*role, slice));
        stage.plan().verify_step(stage.attention_of(), bindings, &gpu.stream)
    };
    check(None).expect("sound");
    for (change, operand) in [
        ((Role::PageTableV, 4, 60), Role::PageTableV),
        ((Role::SeqLenQ, 0, 71), Role::SeqLenQ),
        ((Role::Offsets(Varlen::O), 9, 1), Role::Offsets(Varlen::O)),
    ] {
        let Err(BatchError::Step(errors)) = check(Some(change)) else { panic!("{change:?} is not found") };
        assert!(errors.to_string().contains(&operand.to_string()), "{errors}");
    }
}

/// Prints the host time of an update while the GPU has work queued: its copies must not wait for that work.
#[test]
fn updates_do_not_wait_for_what_is_queued() {
    let Some(gpu) = Gpu::open() else { return };
    let (stage, mut batch) = stage(&gpu, JUDGED.end);
    let mut bound = stage.bind(&gpu, &batch);
    // Every entry of the tables changes: 256 KB in each.
    let tables = |n: i32| (0..256).map(|i| (0..256).map(|entry| (n + i + entry) % 60).collect()).collect();
    let steps: Vec<Drawn> =
        (0..8).map(|n| drawn(&[1; 256], &[4096; 256], &Vec::<Vec<i32>>::clone(&tables(n)))).collect();
    let copied = batch.update(&steps[7].step(), &gpu.stream).expect("sound").bytes;
    assert!(copied > 2 * 256 * 255 * 4, "{copied} bytes");
    // The first launch of a kernel loads it, for which CUDA waits for the GPU.
    bound.launch(&gpu.stream).expect("it is queued");
    // Work for about 80 ms: copies of 1 GiB on the device. They are few, because the host waits when a stream has about
    // a thousand entries.
    let from = gpu.stream.alloc_zeros::<u8>(1 << 30).expect("memory");
    let mut to = gpu.stream.alloc_zeros::<u8>(1 << 30).expect("memory");
    gpu.stream.synchronize().expect("idle");
    let started = Instant::now();
    for _ in 0..160 {
        gpu.stream.memcpy_dtod(&from, &mut to).expect("queued");
    }
    let mut times = Vec::new();
    // 12 MB of tables, for which the ring has room.
    for n in 0..24 {
        let clock = Instant::now();
        batch.update(&steps[n % steps.len()].step(), &gpu.stream).expect("sound");
        bound.launch(&gpu.stream).expect("it is queued");
        times.push(clock.elapsed());
    }
    let queued = started.elapsed();
    gpu.stream.synchronize().expect("all end well");
    let done = started.elapsed();
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    say(&format!(
        "update and launch: median {median:?}, longest {worst:?}; all queued after {queued:?}, done after {done:?}"
    ));
    assert!(worst < Duration::from_millis(20) && queued < done, "an update waited for the GPU");
}
