//! What a launch writes into parameters, without a GPU: every value at its place, and nothing beside it.

use qkvault_cudnn::Profile;
use qkvault_graph::Binding;
use qkvault_graph::{CudnnVersion, LibrarySet, Role};

use super::*;
use crate::bindings::Number;

fn table() -> LaunchTable {
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
    let tensor =
        |role, output| Binding { role, dtype: DType::BF16, scalar: false, output, bytes: 1 << 20, alignment: 16 };
    let scalar = |role, dtype: DType| {
        let (bytes, alignment) = (dtype.size() as u64, dtype.size() as u32);
        Binding { role, dtype, scalar: true, output: false, bytes, alignment }
    };
    let bindings = vec![
        tensor(Role::Q, false),
        tensor(Role::K, false),
        tensor(Role::O, true),
        scalar(Role::Scale, DType::F32),
        scalar(Role::DropoutSeed, DType::I64),
    ];
    let facts = qkvault_compile::PlanFacts { bindings, ..crate::common::forward(&target) };
    LaunchTable::new(&facts, &facts.scratch())
}

fn map(role: Role) -> TensorMap {
    let (dims, strides) = (vec![64, 4, 1024], vec![128, 512]);
    TensorMap { role, dtype: DType::BF16, dims, strides, tile: vec![64, 1, 32], swizzle: 128 }
}

/// Pages of 256 bytes.
fn open(role: Role) -> TensorMap {
    let (dims, strides) = (vec![64, 2, 0], vec![128, 256]);
    TensorMap { role, dtype: DType::BF16, dims, strides, tile: vec![64, 1, 1], swizzle: 128 }
}

fn param(bytes: usize, patches: Vec<(u32, LaunchValue)>) -> Param {
    let patches = patches.into_iter().map(|(at, value)| Patch { at, value }).collect();
    Param { bytes: vec![0xaa; bytes], patches }
}

#[test]
fn every_value_is_at_its_place_and_other_bytes_stay() {
    let params = [
        param(4, vec![]),
        param(
            172,
            vec![
                (0, LaunchValue::Map(map(Role::K))),
                (128, LaunchValue::Address(Role::O)),
                (136, LaunchValue::Scratch(512)),
                (144, LaunchValue::Number(Role::Scale)),
                (148, LaunchValue::product(Role::Scale, 3.0)),
                (152, LaunchValue::Number(Role::DropoutSeed)),
                (160, LaunchValue::Constant(24)),
                (168, LaunchValue::Fitting(open(Role::Q))),
            ],
        ),
    ];
    let filled = Filled::new(&params, &table(), 0x20_0000).expect("operands exist");
    let buffer = |address| DeviceBuffer { address, bytes: 1 << 20 };
    let numbers = [Number::F32(0.125).cell(), Number::I64(-9).cell()];
    let encode = |map: &FilledMap, operand: DeviceBuffer, at: *mut u8| {
        assert_eq!((map.dtype, map.rank, map.swizzle), (9, 3, 3));
        assert_eq!((map.dims, map.strides, map.tile), ([64, 4, 1024, 0, 0], [128, 512, 0, 0, 0], [64, 1, 32, 0, 0]));
        assert!((at as usize).is_multiple_of(64));
        // SAFETY: a tensor map has 128 bytes.
        unsafe { at.write_bytes((operand.address >> 8) as u8, TENSOR_MAP_BYTES) };
        Ok(())
    };
    let mut ready = ReadyParams::default();
    let small = [DeviceBuffer { address: 0x1000, bytes: 255 }, buffer(0x2200), buffer(0x3000)];
    let refused = filled.prepare(&mut ready, &small, 0x10_0000, encode);
    assert_eq!(refused, Err("an operand has no room for a page".to_owned()));
    let tensors = [buffer(0x1000), buffer(0x2200), buffer(0x3000)];
    filled.prepare(&mut ready, &tensors, 0x10_0000, encode).expect("prepared");
    let places = filled.number(&mut ready, |at| numbers[at]);
    // SAFETY: parameters of 4 and of 172 bytes.
    let (first, second) = unsafe {
        let (first, second) = ((*places).cast::<u8>(), (*places.add(1)).cast::<u8>());
        (std::slice::from_raw_parts(first, 4), std::slice::from_raw_parts(second, 172))
    };
    assert_eq!(first, [0xaa; 4]);
    let eight = |at: usize| u64::from_ne_bytes(second[at..at + 8].try_into().expect("eight"));
    assert_eq!(second[..128], [0x22; 128]);
    assert_eq!((eight(128), eight(136), eight(152).cast_signed()), (0x3000, 0x10_0200, -9));
    assert_eq!(eight(160), 0x20_0018);
    assert_eq!(second[168..], (1_i32 << 12).to_ne_bytes());
    assert_eq!((&second[144..148], &second[148..152]), (&0.125_f32.to_ne_bytes()[..], &0.375_f32.to_ne_bytes()[..]));
}

/// Heads of 64 in 8 bits lie side by side: lines of 128 bytes would bring those of two heads, twice the bytes.
#[test]
fn a_map_over_rows_of_64_bytes_brings_no_other_bytes() {
    let promotion = |dtype, columns, tile| {
        let of = TensorMap { dtype, dims: vec![columns, 4, 1024], tile: vec![tile, 1, 32], ..map(Role::K) };
        FilledMap::from_recipe(&of, 0).expect("a map").promotion
    };
    assert_eq!(promotion(DType::E4M3, 64, 64), 1);
    assert_eq!(promotion(DType::E4M3, 64, 128), 1);
    assert_eq!(promotion(DType::BF16, 32, 64), 1);
    assert_eq!(promotion(DType::BF16, 64, 64), 2);
    assert_eq!(promotion(DType::E4M3, 128, 128), 2);
}

#[test]
fn what_no_check_let_through_is_not_written_either() {
    for wrong in [
        param(8, vec![(0, LaunchValue::Address(Role::DK))]),
        param(8, vec![(1, LaunchValue::Address(Role::Q))]),
        param(8, vec![(u32::MAX, LaunchValue::Scratch(0))]),
        param(127, vec![(0, LaunchValue::Map(map(Role::K)))]),
        param(4, vec![(0, LaunchValue::Number(Role::Q))]),
        param(3, vec![(0, LaunchValue::Fitting(open(Role::Q)))]),
        param(4, vec![(0, LaunchValue::Fitting(open(Role::DK)))]),
        param(MOST + 1, vec![]),
    ] {
        assert!(Filled::new(&[wrong], &table(), 0).is_none());
    }
}

#[test]
fn the_largest_parameters_that_a_check_accepts_have_room() {
    let most = Limits::PARAMS - (Limits::COUNT - 1);
    let params: Vec<Param> = (0..Limits::COUNT).map(|i| param(if i == 0 { most } else { 1 }, vec![])).collect();
    assert!(Filled::new(&params, &table(), 0).is_some());
}
