//! Recipes of appends, and who takes them. What the kernel writes is tried on a CPU in `emulate`.

use qkvault_graph::{Storage, codec};

use super::*;
use crate::recipe::LaunchRecipe;

fn paged() -> CacheAppend {
    let new = |d| Tensor::thd(3, 2, 5, d, 11, DType::BF16);
    let pool = |d| Tensor::paged_nhd(3, 2, 100, d, 40, 16, DType::E4M3);
    CacheAppend { new_k: new(128), new_v: new(64), k: pool(128), v: pool(64) }
}

fn dense() -> CacheAppend {
    let (new, cache) = (Tensor::bshd(3, 2, 5, 80, DType::F16), Tensor::bhsd(3, 2, 100, 80, DType::F16));
    CacheAppend { new_k: new, new_v: new, k: cache, v: cache }
}

fn made(append: CacheAppend, sm: u32) -> Result<Generated, Refusal> {
    generate_append(&append.validate().expect("sound"), sm)
}

#[test]
fn a_recipe_of_an_append_refers_to_its_operands_alone() {
    for append in [paged(), dense()] {
        let valid = append.validate().expect("sound");
        let recipe = LaunchRecipe { modules: vec![10], ..made(append, 100).expect("is taken").recipe };
        assert_eq!(codec::decode::<LaunchRecipe>(&codec::encode(&recipe)).expect("reads"), recipe);
        let checked = recipe.check(&valid.bindings(), 10).unwrap_or_else(|bad| panic!("{valid}: {bad}"));
        let [RecipeStep::Launch(launch)] = &checked.steps[..] else { panic!("one launch") };
        for binding in valid.bindings() {
            let value = LaunchValue::Address(binding.role);
            assert!(launch.params[0].patches.iter().any(|patch| patch.value == value), "{valid}: {}", binding.role);
        }
    }
}

/// Batches, tokens, rows and pages of a layer's steps.
#[test]
fn one_source_serves_every_step() {
    let source = |change: &dyn Fn(&mut CacheAppend)| {
        let mut append = paged();
        change(&mut append);
        made(append, 90).expect("is taken").source
    };
    let all = |append: &mut CacheAppend, set: &dyn Fn(&mut Tensor)| {
        let CacheAppend { new_k, new_v, k, v } = append;
        [new_k, new_v, k, v].into_iter().for_each(set);
    };
    let one = source(&|_| ());
    assert_eq!(source(&|a| all(a, &|t| t.dims[0] = 7)), one);
    assert_eq!(source(&|a| (a.new_k.dims[2], a.new_v.dims[2]) = (1, 1)), one);
    assert_eq!(source(&|a| (a.k.dims[2], a.v.dims[2]) = (999, 999)), one);
    assert_eq!(source(&|a| a.k.storage = Storage::Paged { pages: 4, page_size: 16 }), one);
    assert_eq!(source(&|a| a.new_v.storage = Storage::Varlen { tokens: 100 }), one);
    assert_ne!(source(&|a| a.v.storage = Storage::Paged { pages: 40, page_size: 8 }), one);
}

/// A captured graph keeps the grid.
#[test]
fn the_grid_follows_from_the_description_alone() {
    let grid = |append: CacheAppend| {
        let recipe = made(append, 90).expect("is taken").recipe;
        let [RecipeStep::Launch(launch)] = &recipe.steps[..] else { panic!("one launch") };
        launch.grid[0]
    };
    // 11 tokens of 48 chunks, and 15 of 40: a warp for each.
    assert_eq!([grid(paged()), grid(dense())], [2, 2]);
    let mut prompt = paged();
    for new in [&mut prompt.new_k, &mut prompt.new_v] {
        (new.dims[2], new.storage) = (1 << 20, Storage::Varlen { tokens: 1 << 20 });
    }
    assert_eq!(grid(prompt), MOST_BLOCKS as u32);
}

#[test]
fn what_the_kernel_cannot_count_is_refused_with_its_place() {
    let refused = |append: CacheAppend| {
        let refusal = made(append, 90).expect_err("refused");
        assert!(refusal.has(&codes::APPEND_SIZE), "{refusal}");
        refusal.reasons().iter().map(|reason| reason.field.to_string()).collect::<Vec<_>>()
    };
    let mut odd = paged();
    odd.k.strides[0] += 8;
    assert_eq!(refused(odd), ["k.strides"]);
    let mut far = paged();
    far.v.strides[0] = 1 << 40;
    assert_eq!(refused(far), ["v.strides"]);
    let mut wide = dense();
    for tensor in [&mut wide.new_k, &mut wide.k] {
        *tensor = Tensor { dims: [3, 1, tensor.dims[2], 1 << 30], strides: [1 << 40, 1 << 31, 1 << 31, 1], ..*tensor };
    }
    assert_eq!(refused(wide), ["k.dims"]);
}

#[test]
fn a_gpu_without_8_bits_copies() {
    let refusal = made(paged(), 80).expect_err("too old");
    assert!(refusal.has(&codes::CONVERSION_GPU), "{refusal}");
    let copies = made(dense(), 80).expect("is taken");
    assert!(!copies.source.contains("cvt.rn.satfinite"));
}
