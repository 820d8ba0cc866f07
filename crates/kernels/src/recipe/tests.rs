//! Every field of a recipe outside of its bounds is refused with one message, and the bytes of a recipe do not change.

use qkvault_graph::Binding;
use qkvault_graph::{DType, Role, codec};

use super::*;

pub(crate) fn operands() -> Vec<Binding> {
    let tensor =
        |role, output, bytes| Binding { role, dtype: DType::BF16, scalar: false, output, bytes, alignment: 16 };
    vec![
        tensor(Role::Q, false, 4096),
        tensor(Role::K, false, 2048),
        tensor(Role::O, true, 4096),
        Binding { role: Role::Scale, dtype: DType::F32, scalar: true, output: false, bytes: 4, alignment: 4 },
    ]
}

/// A recipe that uses everything once: a step that clears, two launches with overlap, a cluster, and each kind of
/// value.
pub(crate) fn sample() -> LaunchRecipe {
    let patch = |at, value| Patch { at, value };
    let map = TensorMap {
        role: Role::K,
        dtype: DType::BF16,
        dims: vec![64, 16],
        strides: vec![128],
        tile: vec![64, 8],
        swizzle: 128,
    };
    let whole = Param {
        bytes: vec![0; 192],
        patches: vec![
            patch(0, LaunchValue::Map(map)),
            patch(128, LaunchValue::Address(Role::Q)),
            patch(136, LaunchValue::Scratch(256)),
            patch(144, LaunchValue::Number(Role::Scale)),
            patch(152, LaunchValue::Constant(8)),
        ],
    };
    let launch = |function: &str, overlap, cluster| Launch {
        module: 0,
        function: function.to_owned(),
        grid: [4, 2, 1],
        block: [160, 1, 1],
        shared: 98_304,
        cluster,
        overlap,
        params: vec![whole.clone(), Param { bytes: vec![7, 0, 0, 0], patches: Vec::new() }],
    };
    LaunchRecipe {
        format: RECIPE_FORMAT,
        sm: 90,
        driver: 13_000,
        scratch: 1024,
        modules: vec![936],
        constants: 64,
        steps: vec![
            RecipeStep::Clear { at: 256, bytes: 768, value: 0 },
            RecipeStep::Launch(launch("attend", false, Some([2, 1, 1]))),
            RecipeStep::Launch(launch("merge", true, None)),
        ],
    }
}

/// The message for a recipe that was changed at one place.
fn refused(change: impl FnOnce(&mut LaunchRecipe)) -> String {
    let mut recipe = sample();
    change(&mut recipe);
    recipe.check(&operands(), 1000).map(|_| "accepted".to_owned()).unwrap_or_else(|error| error.to_string())
}

fn launch(recipe: &mut LaunchRecipe) -> &mut Launch {
    match &mut recipe.steps[1] {
        RecipeStep::Launch(launch) => launch,
        RecipeStep::Clear { .. } => unreachable!("the second step launches"),
    }
}

fn patch(recipe: &mut LaunchRecipe, at: usize) -> &mut Patch {
    &mut launch(recipe).params[0].patches[at]
}

fn map(recipe: &mut LaunchRecipe) -> &mut TensorMap {
    match &mut patch(recipe, 0).value {
        LaunchValue::Map(map) => map,
        _ => unreachable!("the first value is a tensor map"),
    }
}

#[test]
fn the_sample_is_accepted() {
    let checked = sample().check(&operands(), 1000).expect("right");
    assert_eq!(*checked, sample());
    assert_eq!(checked.modules().collect::<Vec<_>>(), [(0, 936)]);
    assert_eq!(checked.constants(), (936, 64));
    assert_eq!(refused(|_| ()), "accepted");
}

type RecipeChange = fn(&mut LaunchRecipe);

#[test]
fn every_field_outside_of_its_bounds_is_refused_with_one_message() {
    let changes: &[(&str, RecipeChange)] = &[
        ("has format 2", |r| r.format = 2),
        ("scratch memory in bytes is 1099511627777", |r| r.scratch = (1 << 40) + 1),
        ("the number of steps is 0", |r| r.steps.clear()),
        ("the number of steps is 65", |r| r.steps = vec![r.steps[0].clone(); 65]),
        ("the number of cubins is 65", |r| r.modules = vec![0; 65]),
        ("the length of all cubins and constants is 999 bytes", |r| r.modules = vec![935]),
        ("constant data in bytes is 1048577", |r| r.constants = (1 << 20) + 1),
        ("the length of all cubins and constants is 1001 bytes", |r| r.constants = 65),
        ("the length of all cubins and constants is more than 64 bits", |r| r.modules = vec![u64::MAX, 1001]),
        ("the end of what step 0 clears is 1025", |r| r.steps[0] = RecipeStep::Clear { at: 1, bytes: 1024, value: 0 }),
        ("the end of what step 0 clears", |r| r.steps[0] = RecipeStep::Clear { at: u64::MAX, bytes: 2, value: 0 }),
        ("the cubin of step 1 is 1", |r| launch(r).module = 1),
        ("the kernel's name of step 1 is 0 bytes", |r| launch(r).function.clear()),
        ("the kernel's name of step 1 is 256 bytes", |r| launch(r).function = "a".repeat(256)),
        ("the kernel's name of step 1", |r| launch(r).function.push('\0')),
        ("the grid of step 1 is [0, 2, 1]", |r| launch(r).grid[0] = 0),
        ("the grid of step 1 is [2147483648, 2, 1]", |r| launch(r).grid[0] = 1 << 31),
        ("the grid of step 1 is [4, 65536, 1]", |r| launch(r).grid[1] = 65_536),
        ("the grid of step 1 is [4, 2, 65536]", |r| launch(r).grid[2] = 65_536),
        ("the grid of step 1 is [5, 2, 1], and clusters", |r| launch(r).grid[0] = 5),
        ("the block of step 1 is [0, 1, 1]", |r| launch(r).block[0] = 0),
        ("the block of step 1 is [1025, 1, 1]", |r| launch(r).block[0] = 1025),
        ("the block of step 1 is [1, 1, 65]", |r| launch(r).block = [1, 1, 65]),
        ("the number of threads of step 1 is 1280", |r| launch(r).block[1] = 8),
        ("shared memory of step 1 is 232449", |r| launch(r).shared = 227 * 1024 + 1),
        ("the cluster of step 1 is [2, 0, 1]", |r| launch(r).cluster = Some([2, 0, 1])),
        ("the cluster of step 1 is [2, 1, 2]", |r| launch(r).cluster = Some([2, 1, 2])),
        ("the number of blocks of the cluster of step 1 is 16", |r| {
            launch(r).grid = [16, 1, 1];
            launch(r).cluster = Some([16, 1, 1]);
        }),
        ("the number of parameters of step 1 is 65", |r| {
            launch(r).params = vec![Param { bytes: vec![0], patches: Vec::new() }; 65];
        }),
        ("the number of bytes of the parameters of step 1 is 4097", |r| launch(r).params[1].bytes = vec![0; 3905]),
        ("parameter 1 of step 1 is empty", |r| launch(r).params[1].bytes.clear()),
        ("the end of what is written at byte 186 of parameter 0 of step 1 is 194", |r| patch(r, 1).at = 186),
        ("the end of what is written at byte 4294967295", |r| patch(r, 2).at = u32::MAX),
        ("the end of what is written at byte 189 of parameter 0 of step 1 is 193", |r| patch(r, 3).at = 189),
        ("the end of what is written at byte 0 of parameter 0 of step 1 is 128, and at most 127", |r| {
            launch(r).params[0].bytes.truncate(127);
        }),
        ("no two values share a byte", |r| patch(r, 2).at = 135),
        ("is d_k, and the plan binds no such tensor", |r| patch(r, 1).value = LaunchValue::Address(Role::DK)),
        ("is scale, and the plan binds no such tensor", |r| patch(r, 1).value = LaunchValue::Address(Role::Scale)),
        ("is q, and the plan binds no such number", |r| patch(r, 3).value = LaunchValue::Number(Role::Q)),
        ("the offset in the constant data at byte 152", |r| patch(r, 4).value = LaunchValue::Constant(64)),
        ("the offset in the constant data at byte 152", |r| patch(r, 4).value = LaunchValue::Constant(u64::MAX)),
        ("the offset in the scratch memory at byte 136", |r| patch(r, 2).value = LaunchValue::Scratch(1025)),
        ("must be a multiple of 64", |r| {
            let params = &mut launch(r).params[0];
            params.patches.truncate(1);
            params.patches[0].at = 32;
        }),
        ("is v, and the plan binds no such tensor", |r| map(r).role = Role::V),
        ("is f16, and the operand is bf16", |r| map(r).dtype = DType::F16),
        ("is of 0 dims", |r| map(r).dims.clear()),
        ("is of 6 dims", |r| {
            (map(r).dims, map(r).strides, map(r).tile) = (vec![1; 6], vec![16; 5], vec![8; 6]);
        }),
        ("is of 2 dims, 2 strides", |r| map(r).strides.push(16)),
        ("a box of 1", |r| map(r).tile.truncate(1)),
        ("is over dims [0, 16]", |r| map(r).dims[0] = 0),
        ("is over dims [4294967297, 16]", |r| map(r).dims[0] = (1 << 32) + 1),
        ("strides of [120] bytes", |r| map(r).strides[0] = 120),
        ("strides of [0] bytes", |r| map(r).strides[0] = 0),
        ("strides of [1099511627776] bytes", |r| map(r).strides[0] = 1 << 40),
        ("a box of [64, 0]", |r| map(r).tile[1] = 0),
        ("is over dims [0]", |r| {
            (map(r).dims, map(r).strides, map(r).tile) = (vec![0], Vec::new(), vec![64]);
        }),
        ("is over dims [64, 0, 16]", |r| {
            (map(r).dims, map(r).strides, map(r).tile) = (vec![64, 0, 16], vec![128; 2], vec![64, 1, 1]);
        }),
        ("is over 2176 bytes, and the operand has 2048", |r| {
            (map(r).dims, map(r).strides, map(r).tile) = (vec![64, 17, 0], vec![128, 4096], vec![64, 8, 1]);
        }),
        ("a box of [64, 257]", |r| map(r).tile[1] = 257),
        ("rows of 8 bytes", |r| map(r).tile[0] = 4),
        ("rows of 256 bytes and a swizzle of 128", |r| map(r).tile[0] = 128),
        ("a swizzle of 48", |r| map(r).swizzle = 48),
        ("is over 2176 bytes, and the operand has 2048", |r| map(r).dims[1] = 17),
        ("over more than 64 bits", |r| {
            (map(r).dims, map(r).strides) = (vec![64, 1 << 32, 1 << 32], vec![1 << 39, 1 << 39]);
            map(r).tile.push(1);
        }),
    ];
    for (words, change) in changes {
        let message = refused(change);
        assert!(message.contains(words), "'{words}' is not in: {message}");
        assert!(message.lines().count() == 1 && message.contains("compile"), "{message}");
    }
}

/// The pages of a pool are no part of a recipe: one plan serves every pool.
#[test]
fn an_open_map_reaches_as_far_as_its_operand_and_no_further() {
    let mut recipe = sample();
    *map(&mut recipe) =
        TensorMap { dims: vec![64, 4, 0], strides: vec![128, 640], tile: vec![64, 4, 1], ..map(&mut recipe).clone() };
    let open = map(&mut recipe).clone();
    recipe.check(&operands(), 1000).expect("one page fits");
    assert_eq!(open.reach(), Some(512));
    let pages = [0, 511, 512, 1151, 1152, 1792, u64::MAX].map(|bytes| open.fitting(bytes));
    assert_eq!(pages, [None, None, Some(1), Some(1), Some(2), Some(3), Some(1 << 32)]);
    let whole = TensorMap { dims: vec![64, 4, 3], ..open };
    assert!(!whole.is_open() && whole.reach() == Some(1792));
}

/// A kernel that reads a pool by its address is told how many pages there are, by the same rules as a map over them.
#[test]
fn what_fits_an_operand_is_told_of_open_maps_within_it_alone() {
    let open = |dims: [u64; 3], page| TensorMap {
        dims: dims.to_vec(),
        strides: vec![128, page],
        tile: vec![64, 1, 1],
        ..map(&mut sample()).clone()
    };
    let put = |map: TensorMap| refused(|r| patch(r, 3).value = LaunchValue::Fitting(map));
    assert_eq!(put(open([64, 4, 0], 640)), "accepted");
    assert!(put(open([64, 4, 3], 640)).contains("over dims [64, 4, 3], and its last extent must be open"));
    assert!(put(open([64, 17, 0], 4096)).contains("is over 2176 bytes, and the operand has 2048"));
    assert!(put(open([64, 4, 0], 648)).contains("must be multiples of 16"));
    let other = TensorMap { role: Role::V, ..open([64, 4, 0], 640) };
    assert!(put(other).contains("is v, and the plan binds no such tensor"));
    let counts = [511, 512, 1152, u64::MAX].map(|bytes| open([64, 4, 0], 640).fitting_count(bytes));
    assert_eq!(counts, [None, Some(1), Some(2), Some(i32::MAX)]);
    let late = refused(|r| *patch(r, 3) = Patch { at: 189, value: LaunchValue::Fitting(open([64, 4, 0], 640)) });
    assert!(late.contains("the end of what is written at byte 189 of parameter 0 of step 1 is 193"), "{late}");
    let mut recipe = sample();
    patch(&mut recipe, 3).value = LaunchValue::Fitting(open([64, 4, 0], 640));
    let words = "144: last extent of tensor map of K: bf16 [64, 4, 0], strides [128, 640] bytes";
    assert!(recipe.to_string().contains(words), "{recipe}");
    assert_eq!(codec::decode::<LaunchRecipe>(&codec::encode(&recipe)).expect("reads"), recipe);
}

/// Which rows are copied follows from numbers of the launch: the steps of the two last dims cancel each other.
#[test]
fn a_ragged_map_begins_at_any_row_and_has_no_rows_behind_a_sequence() {
    let mut recipe = sample();
    let ragged = |heads, row| {
        let (dims, strides) = TensorMap::ragged_dims(64, heads, [row, 128]);
        let (dims, strides, tile) = (dims.to_vec(), strides.to_vec(), vec![64, 4, 1, 1, 1]);
        TensorMap { dims, strides, tile, ..map(&mut sample()).clone() }
    };
    let good = ragged(4, 512);
    let [first, length] = [1000_u64, 77];
    for row in [0, 1, 76] {
        let at = [RAGGED_ROWS - length + row, 0, RAGGED_ROWS, first + length];
        let steps = at.iter().zip(&good.strides).map(|(n, step)| n.wrapping_mul(*step));
        assert_eq!(steps.fold(0_u64, u64::wrapping_add), (first + row) * 512);
        assert!(at[0] < good.dims[1] && at[2] < good.dims[3] && at[3] < good.dims[4]);
    }
    // Heads may be in front of the rows.
    let heads_first = |mut of: TensorMap| {
        of.dims.swap(1, 2);
        of.strides.swap(0, 1);
        of
    };
    let many = ragged(1 << 20, 512);
    for (good, many, rows) in [(good.clone(), many.clone(), 1), (heads_first(good.clone()), heads_first(many), 2)] {
        assert_eq!((good.ragged(), good.reach()), (Some(rows), Some(512)));
        *map(&mut recipe) = good;
        recipe.clone().check(&operands(), 1000).expect("a row fits");
        *map(&mut recipe) = many;
        assert!(recipe.clone().check(&operands(), 1000).is_err(), "a row of more heads than the operand has");
    }
    // Other steps reach as far as they say.
    let mut other = good;
    other.strides[2] += 16;
    assert_eq!(other.ragged(), None);
    *map(&mut recipe) = other;
    assert!(recipe.check(&operands(), 1000).is_err());
}

#[test]
fn a_tensor_map_needs_an_operand_at_multiples_of_16() {
    let mut operands = operands();
    operands[1].alignment = 8;
    let error = sample().check(&operands, 1000).expect_err("refused").to_string();
    assert!(error.contains("multiples of 8 bytes, and it needs an operand at multiples of 16"), "{error}");
}

#[test]
fn a_product_is_of_a_number_in_f32_and_a_finite_one() {
    let product = |role, by| refused(|r| patch(r, 3).value = LaunchValue::product(role, by));
    assert_eq!(product(Role::Scale, 1.5), "accepted");
    assert!(product(Role::Q, 1.5).contains("is q, and the plan binds no such number"));
    assert!(product(Role::Scale, f32::NAN).contains("is scale in f32 times NaN, and it is a number in f32"));
    let mut operands = operands();
    operands[3].dtype = DType::I32;
    let mut recipe = sample();
    patch(&mut recipe, 3).value = LaunchValue::product(Role::Scale, 2.0);
    let error = recipe.clone().check(&operands, 1000).expect_err("an integer").to_string();
    assert!(error.contains("is scale in i32 times 2"), "{error}");
    assert!(recipe.to_string().contains("144: number Scale times 2"), "{recipe}");
    assert_eq!(codec::decode::<LaunchRecipe>(&codec::encode(&recipe)).expect("reads"), recipe);
}

/// Plans on disks have these bytes. Other bytes need another [`RECIPE_FORMAT`].
#[test]
fn the_bytes_of_a_recipe_do_not_change() {
    let bytes = codec::encode(&sample());
    assert_eq!(codec::decode::<LaunchRecipe>(&bytes).expect("reads"), sample());
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let lines: Vec<&str> = hex.as_bytes().chunks(100).map(|line| std::str::from_utf8(line).expect("ascii")).collect();
    let (golden, path) = (lines.join("\n") + "\n", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/recipe.txt"));
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        std::fs::write(path, &golden).expect("writes");
    }
    assert_eq!(golden, std::fs::read_to_string(path).expect("reads"));
}

#[test]
fn a_recipe_prints_steps_grids_parameters_and_what_is_written() {
    let text = sample().to_string();
    for words in [
        "recipe of format 3 for sm_90, driver of CUDA 13.0 or newer, 1024 bytes of scratch memory, cubins of 936 bytes, \
         64 bytes of constant data",
        "\n0: set 768 bytes at scratch + 256 to 0",
        "\n1: launch attend of cubin 0, grid 4x2x1, block 160x1x1, shared 98304, clusters of 2x1x1\n",
        "\n2: launch merge of cubin 0, grid 4x2x1, block 160x1x1, shared 98304, may begin before the step before it ends",
        "\n   parameter 0: 192 bytes\n     0: tensor map of K: bf16 [64, 16], strides [128] bytes, box [64, 8], swizzle 128",
        "\n     128: address of Q\n     136: address of scratch + 256\n     144: number Scale\n     152: address of constant data + 8\n   parameter 1",
    ] {
        assert!(text.contains(words), "'{words}' is not in: {text}");
    }
}

#[test]
fn a_plans_key_has_what_changes_the_code_and_nothing_of_the_gpu_but_its_architecture() {
    let (recipe, options) = (sample(), vec!["--std=c++17".to_owned()]);
    let base = CodeOrigin { source: "kernel", options: &options, recipe: &recipe, nvrtc: (13, 0) };
    let (other_sm, other_grid) = {
        let (mut sm, mut grid) = (sample(), sample());
        sm.sm = 100;
        launch(&mut grid).grid[0] = 8;
        (sm, grid)
    };
    let others = [
        CodeOrigin { source: "kernel ", ..base },
        CodeOrigin { options: &[], ..base },
        CodeOrigin { recipe: &other_sm, ..base },
        CodeOrigin { recipe: &other_grid, ..base },
        CodeOrigin { nvrtc: (13, 1), ..base },
    ];
    let keys: std::collections::BTreeSet<_> = others.iter().map(CodeOrigin::key).chain([base.key()]).collect();
    assert_eq!(keys.len(), others.len() + 1);
    assert_eq!((architecture(90), architecture(100)), ("sm_90a".to_owned(), "sm_100".to_owned()));
}
