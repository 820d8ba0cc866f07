//! Several launches of kernels that round to 8 bits as one program, because each compiles in a second by itself.

use qkvault_emulate::HostProgram;
use qkvault_kernels::Generated;
use qkvault_kernels::recipe::{LaunchRecipe, RecipeStep};

/// Functions with instructions of a GPU, and those by hand that take their place.
pub(crate) const INSTRUCTIONS: [&str; 2] = [
    include_str!("../../../../crates/kernels/src/cuda/convert/instructions.cu"),
    include_str!("../conversion/by_hand.cu"),
];

/// The source in a namespace of its own, with functions by hand, and the recipe with functions of that namespace.
pub(crate) fn in_namespace(made: Generated, at: usize) -> (String, LaunchRecipe) {
    let Generated { source, mut recipe, .. } = made;
    let [of_gpu, by_hand] = INSTRUCTIONS;
    let source = source.replace(of_gpu, by_hand).replace("extern \"C\" ", "");
    let names = source.lines().filter_map(|line| line.strip_prefix("#define ")?.split([' ', '(']).next());
    let undefined: String = names.map(|name| format!("#undef {name}\n")).collect();
    for step in &mut recipe.steps {
        if let RecipeStep::Launch(launch) = step {
            launch.function = format!("case{at}::{}", launch.function);
        }
    }
    (format!("namespace case{at} {{\n{source}\n}}\n{undefined}"), recipe)
}

/// One program of all, with one text of the sources in place of another, and the recipe of each.
pub(crate) fn one_program(
    written: impl Iterator<Item = (String, LaunchRecipe)>,
    fault: Option<[&str; 2]>,
) -> (HostProgram, Vec<LaunchRecipe>) {
    let (sources, recipes): (String, Vec<LaunchRecipe>) = written.unzip();
    let mut all = recipes[0].clone();
    all.steps = recipes.iter().flat_map(|recipe| recipe.steps.clone()).collect();
    let sources = match fault {
        None => sources,
        Some([right, wrong]) => {
            assert!(sources.contains(right), "{right}");
            sources.replace(right, wrong)
        }
    };
    // The type of products of matrices, which these sources have none of.
    let source = format!("#define HALF_TYPE \"bf16\"\n#include \"machine.h\"\n{sources}");
    (HostProgram::compile(&source, &all, false).unwrap_or_else(|error| panic!("{error}")), recipes)
}
