//! Recipes from an untrusted disk: random bytes and random changes of a valid recipe never panic, and what the check
//! accepts refers to nothing outside. The expectation is written again here, from the definition.

use proptest::prelude::*;
use qkvault_graph::op::Binding;
use qkvault_graph::{Attention, DType, codec, validate};
use qkvault_kernels::graph::Role;
use qkvault_kernels::recipe::{
    Launch, Param, Patch, RECIPE_FORMAT, Recipe, Step, TENSOR_MAP_BYTES, TensorMap, Value, bindings,
};

const CODE: u64 = 300;

fn operands() -> Vec<Binding> {
    let attention = validate(Attention::bshd(1, (2, 1), (1, 64), 64, DType::BF16).with_stats()).expect("valid");
    bindings(&attention)
}

/// A recipe with each kind of step and of value.
fn sample() -> Recipe {
    let map = TensorMap {
        role: Role::K,
        dtype: DType::BF16,
        dims: vec![64, 64],
        strides: vec![128],
        tile: vec![64, 8],
        swizzle: 128,
    };
    let values = [
        (0, Value::Map(map)),
        (128, Value::Address(Role::Q)),
        (136, Value::Address(Role::O)),
        (144, Value::Scratch(64)),
        (152, Value::Number(Role::Scale)),
    ];
    let patches = values.into_iter().map(|(at, value)| Patch { at, value }).collect();
    let launch = |overlap, cluster, params| {
        let (function, grid, block) = ("attend".to_owned(), [2, 2, 1], [64, 2, 1]);
        Step::Launch(Launch { module: 1, function, grid, block, shared: 1024, cluster, overlap, params })
    };
    let params = vec![Param { bytes: vec![0; 160], patches }, Param { bytes: vec![3; 4], patches: Vec::new() }];
    Recipe {
        format: RECIPE_FORMAT,
        sm: 90,
        driver: 13_000,
        scratch: 512,
        modules: vec![100, 200],
        steps: vec![
            Step::Clear { at: 0, bytes: 512, value: 255 },
            launch(false, Some([2, 1, 1]), params.clone()),
            launch(true, None, params),
        ],
    }
}

/// Whether nothing in a recipe refers outside.
fn inside(recipe: &Recipe, operands: &[Binding]) -> bool {
    let modules: u128 = recipe.modules.iter().map(|bytes| u128::from(*bytes)).sum();
    let value = |of: &Patch, room: usize| {
        let tensor = |role: &Role| operands.iter().find(|b| b.role == *role && !b.scalar);
        let size = match &of.value {
            Value::Address(role) => tensor(role).map(|_| 8),
            Value::Scratch(at) => (*at <= recipe.scratch).then_some(8),
            Value::Number(role) => operands.iter().find(|b| b.role == *role && b.scalar).map(|b| b.dtype.size()),
            Value::Product(role, _) => {
                operands.iter().any(|b| b.role == *role && b.scalar && b.dtype == DType::F32).then_some(4)
            }
            Value::Map(map) => tensor(&map.role).and_then(|operand| {
                let steps = std::iter::once(map.dtype.size() as u128).chain(map.strides.iter().map(|s| u128::from(*s)));
                // A last extent of 0 is open: what a launch makes of it ends within the operand, from one on.
                let rank = map.dims.len();
                let extent = |at: usize, n: u64| if rank > 1 && at + 1 == rank { n.max(1) } else { n };
                let extents = map.dims.iter().enumerate().map(|(at, n)| u128::from(extent(at, *n)));
                let last: u128 = extents.zip(steps).map(|(n, step)| (n - 1) * step).sum();
                let end = last + map.dtype.size() as u128;
                (end <= u128::from(operand.bytes) && of.at.is_multiple_of(64)).then_some(TENSOR_MAP_BYTES)
            }),
        };
        size.is_some_and(|size| of.at as usize + size <= room)
    };
    let step = |step: &Step| match step {
        Step::Clear { at, bytes, .. } => u128::from(*at) + u128::from(*bytes) <= u128::from(recipe.scratch),
        Step::Launch(launch) => {
            let threads: u64 = launch.block.iter().map(|n| u64::from(*n)).product();
            (launch.module as usize) < recipe.modules.len()
                && (1..=1024).contains(&threads)
                && launch.grid.iter().all(|n| *n > 0)
                && launch.shared <= 232_448
                && launch.cluster.is_none_or(|c| c.iter().zip(launch.grid).all(|(c, n)| *c > 0 && n % c == 0))
                && launch.params.iter().map(|p| p.bytes.len()).sum::<usize>() <= 4096
                && launch.params.iter().all(|p| p.patches.iter().all(|patch| value(patch, p.bytes.len())))
        }
    };
    recipe.format == RECIPE_FORMAT && modules == u128::from(CODE) && recipe.steps.iter().all(step)
}

/// Reads and checks bytes; whether what is accepted is inside.
fn sound(bytes: &[u8]) -> bool {
    let operands = operands();
    match codec::decode::<Recipe>(bytes) {
        Ok(recipe) => recipe.check(&operands, CODE).is_ok_and(|checked| inside(&checked, &operands)) || rejected(bytes),
        Err(_) => true,
    }
}

/// Whether the check refuses these bytes.
fn rejected(bytes: &[u8]) -> bool {
    codec::decode::<Recipe>(bytes).is_ok_and(|recipe| recipe.check(&operands(), CODE).is_err())
}

#[test]
fn the_sample_is_accepted_and_inside() {
    let bytes = codec::encode(&sample());
    assert!(!rejected(&bytes) && sound(&bytes));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(sound(&bytes));
    }

    /// One to three bytes of a valid recipe changed, and perhaps its end lost.
    #[test]
    fn changed_bytes_never_refer_outside(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        lost in 0_usize..3,
    ) {
        let mut bytes = codec::encode(&sample());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len() - lost);
        prop_assert!(sound(&bytes));
    }

    /// A recipe whose numbers are drawn near their bounds.
    #[test]
    fn changed_numbers_never_refer_outside(
        (scratch, clear) in (number(512), (number(0), number(512))),
        (grid, cluster) in (near(2), prop::option::of(near(2))),
        (block, shared) in (near(512), near(232_448)),
        (module, at, offset) in (near(1), near(128), number(512)),
        (dims, stride, tile) in ((number(64), number(64)), number(128), near(64)),
        modules in number(200),
    ) {
        let mut recipe = sample();
        (recipe.scratch, recipe.modules[1]) = (scratch, modules);
        recipe.steps[0] = Step::Clear { at: clear.0, bytes: clear.1, value: 0 };
        if let Step::Launch(launch) = &mut recipe.steps[1] {
            (launch.module, launch.shared) = (module, shared);
            (launch.grid[0], launch.block[0], launch.cluster) = (grid, block, cluster.map(|n| [n, 1, 1]));
            let patches = &mut launch.params[0].patches;
            patches[1].at = at;
            patches[3].value = Value::Scratch(offset);
            if let Value::Map(map) = &mut patches[0].value {
                (map.dims, map.strides[0], map.tile[0]) = (vec![dims.0, dims.1], stride, tile);
            }
        }
        prop_assert!(sound(&codec::encode(&recipe)));
    }
}

/// The right value most of the time, else one beside it, or an extreme one.
fn number(right: u64) -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(right), 1 => Just(right + 1), 1 => Just(right.saturating_sub(1)), 1 => Just(u64::MAX), 1 => Just(0)]
}

fn near(right: u32) -> impl Strategy<Value = u32> {
    number(u64::from(right)).prop_map(|n| u32::try_from(n).unwrap_or(u32::MAX))
}
