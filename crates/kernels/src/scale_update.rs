//! From an update of scales to CUDA source and a launch recipe: a block for each tensor.

use std::fmt::Write as _;

use qkvault_graph::{HISTORY_HEAD, Refusal, Role, ScaledTensor, ValidScaleUpdate};

use crate::convert::has_8_bits;
use crate::generate::{Generated, own_recipe};
use crate::params::Params;
use crate::recipe::{Launch, LaunchValue, RecipeStep};

const UPDATE: &str = include_str!("cuda/scales.cu");

/// Threads of a block.
const THREADS: u32 = 128;

/// The source and the recipe of an update for GPUs of a compute capability.
///
/// # Errors
///
/// The reason why no GPU of the capability has tensors in 8 bits: `conversion.gpu`.
pub fn generate_scale_update(update: &ValidScaleUpdate, sm: u32) -> Result<Generated, Refusal> {
    has_8_bits(sm)?;
    let (mut params, mut cells, mut at) = (Params::default(), String::new(), 0);
    for (n, ScaledTensor { of, dtype, history }) in update.tensors.iter().enumerate() {
        params.pointer("const float", &format!("amax{n}"), LaunchValue::Address(Role::Amax(*of)));
        params.pointer("float", &format!("scale{n}"), LaunchValue::Address(Role::ScaleOf(*of)));
        params.pointer("float", &format!("descale{n}"), LaunchValue::Address(Role::Descale(*of)));
        let largest = format!("{}.f", dtype.largest_fp8().unwrap_or(1.0));
        let _ = writeln!(
            cells,
            "  if (n == {n}) return Cell{{p.amax{n}, p.scale{n}, p.descale{n}, p.history + {at}, \
             {history}, {largest}}};"
        );
        at += HISTORY_HEAD + *history as usize;
    }
    params.pointer("float", "history", LaunchValue::Address(Role::AmaxHistory));
    let source = format!(
        "#define THREADS {THREADS}\n#define MARGIN {}\n#define HISTORY_HEAD {HISTORY_HEAD}\n{}\n{CELL}\
         __device__ __forceinline__ Cell cell_of(const Params& p, int n) {{\n{cells}  return Cell{{}};\n}}\n{UPDATE}",
        update.margin,
        params.text()
    );
    let launch = Launch {
        module: 0,
        function: "update_scales".to_owned(),
        grid: [update.tensors.len() as u32, 1, 1],
        block: [THREADS, 1, 1],
        shared: 0,
        cluster: None,
        overlap: false,
        params: vec![params.param()],
    };
    let recipe = own_recipe(sm, 0, vec![RecipeStep::Launch(launch)]);
    Ok(Generated { source, options: vec!["--std=c++17".to_owned()], recipe })
}

/// What a block reads and writes.
const CELL: &str = "struct Cell { const float* amax; float *scale, *descale, *history; int steps; float largest; };\n";
