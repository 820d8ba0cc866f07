//! Recipes for tests and fuzzing: a sample, and what a checked recipe is, said once more from the definition. Not part
//! of the interface.

use qkvault_graph::Binding;
use qkvault_graph::{Attention, DType, Role, codec, validate};

use super::{
    Launch, LaunchRecipe, LaunchValue, Param, Patch, RECIPE_FORMAT, RecipeStep, TENSOR_MAP_BYTES, TensorMap, bindings,
};

/// Bytes of the cubins and of the constant data that [`sample`] names.
pub const CODE: u64 = 364;

/// What a launch of [`sample`] binds.
///
/// # Panics
///
/// Never: the attention is sound.
#[must_use]
pub fn operands() -> Vec<Binding> {
    let attention = validate(Attention::bshd(1, (2, 1), (1, 64), 64, DType::BF16).with_stats()).expect("valid");
    bindings(&attention)
}

/// A recipe with each kind of step and of value.
#[must_use]
pub fn sample() -> LaunchRecipe {
    let map = TensorMap {
        role: Role::K,
        dtype: DType::BF16,
        dims: vec![64, 64],
        strides: vec![128],
        tile: vec![64, 8],
        swizzle: 128,
    };
    let open = TensorMap { dims: vec![64, 8, 0], strides: vec![128, 1024], tile: vec![64, 8, 1], ..map.clone() };
    let values = [
        (0, LaunchValue::Map(map)),
        (128, LaunchValue::Address(Role::Q)),
        (136, LaunchValue::Address(Role::O)),
        (144, LaunchValue::Scratch(64)),
        (152, LaunchValue::Number(Role::Scale)),
        (160, LaunchValue::Constant(56)),
        (168, LaunchValue::Fitting(open)),
    ];
    let patches = values.into_iter().map(|(at, value)| Patch { at, value }).collect();
    let launch = |overlap, cluster, params| {
        let (function, grid, block) = ("attend".to_owned(), [2, 2, 1], [64, 2, 1]);
        RecipeStep::Launch(Launch { module: 1, function, grid, block, shared: 1024, cluster, overlap, params })
    };
    let params = vec![Param { bytes: vec![0; 172], patches }, Param { bytes: vec![3; 4], patches: Vec::new() }];
    LaunchRecipe {
        format: RECIPE_FORMAT,
        sm: 90,
        driver: 13_000,
        scratch: 512,
        modules: vec![100, 200],
        constants: 64,
        steps: vec![
            RecipeStep::Clear { at: 0, bytes: 512, value: 255 },
            launch(false, Some([2, 1, 1]), params.clone()),
            launch(true, None, params),
        ],
    }
}

/// Whether nothing in a recipe refers outside. It is written from the definition, and uses nothing of the check.
#[must_use]
pub fn inside(recipe: &LaunchRecipe, operands: &[Binding]) -> bool {
    let reaches = |map: &TensorMap, operand: &Binding| {
        let steps = std::iter::once(map.dtype.size() as u128).chain(map.strides.iter().map(|s| u128::from(*s)));
        // A last extent of 0 is open: what a launch makes of it ends within the operand, from one on.
        let rank = map.dims.len();
        let extent = |at: usize, n: u64| if rank > 1 && at + 1 == rank { n.max(1) } else { n };
        let extents = map.dims.iter().enumerate().map(|(at, n)| u128::from(extent(at, *n)));
        let last: u128 = extents.zip(steps).map(|(n, step)| (n - 1) * step).sum();
        last + map.dtype.size() as u128 <= u128::from(operand.bytes)
    };
    let modules: u128 = recipe.modules.iter().map(|bytes| u128::from(*bytes)).sum();
    let value = |of: &Patch, room: usize| {
        let tensor = |role: &Role| operands.iter().find(|b| b.role == *role && !b.scalar);
        let size = match &of.value {
            LaunchValue::Address(role) => tensor(role).map(|_| 8),
            LaunchValue::Scratch(at) => (*at <= recipe.scratch).then_some(8),
            LaunchValue::Constant(at) => (*at < recipe.constants).then_some(8),
            LaunchValue::Number(role) => operands.iter().find(|b| b.role == *role && b.scalar).map(|b| b.dtype.size()),
            LaunchValue::Product(role, _) => {
                operands.iter().any(|b| b.role == *role && b.scalar && b.dtype == DType::F32).then_some(4)
            }
            LaunchValue::Map(map) => {
                tensor(&map.role).filter(|b| reaches(map, b) && of.at.is_multiple_of(64)).map(|_| TENSOR_MAP_BYTES)
            }
            LaunchValue::Fitting(map) => {
                tensor(&map.role).filter(|b| reaches(map, b) && map.dims.last() == Some(&0)).map(|_| 4)
            }
        };
        size.is_some_and(|size| of.at as usize + size <= room)
    };
    let step = |step: &RecipeStep| match step {
        RecipeStep::Clear { at, bytes, .. } => u128::from(*at) + u128::from(*bytes) <= u128::from(recipe.scratch),
        RecipeStep::Launch(launch) => {
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
    let bytes = modules + u128::from(recipe.constants);
    recipe.format == RECIPE_FORMAT && bytes == u128::from(CODE) && recipe.steps.iter().all(step)
}

/// The bytes of [`sample`].
#[must_use]
pub fn encoded() -> Vec<u8> {
    codec::encode(&sample())
}

/// Reads and checks a recipe of the operands and cubins of [`sample`].
///
/// # Errors
///
/// Why it is refused, in words.
///
/// # Panics
///
/// If it is accepted and refers to something outside, or changes when it is written and read again.
pub fn read(bytes: &[u8]) -> Result<(), String> {
    let recipe: LaunchRecipe = codec::decode(bytes).map_err(|error| error.to_string())?;
    let written = codec::encode(&recipe);
    let again: LaunchRecipe = codec::decode(&written).map_err(|error| error.to_string())?;
    assert_eq!(again, recipe, "what was written reads the same");
    let checked = recipe.check(&operands(), CODE).map_err(|error| error.to_string())?;
    assert!(inside(&checked, &operands()), "an accepted recipe refers outside: {checked:?}");
    let (at, constants) = checked.constants();
    let end = checked.modules().map(|(at, bytes)| at + bytes).max();
    assert_eq!((end.unwrap_or(0), at + constants), (at, CODE), "cubins and constant data fill the plan");
    Ok(())
}
