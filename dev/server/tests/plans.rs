//! cuDNN compiles every plan that a server on a GPU preloads, so that no step is without one. Needs no GPU.

use qkvault::cache::{Vault, VaultOptions};
use qkvault::compile::{Compiler, OnMiss, Planner};
use qkvault::sys::Search;
use qkvault::{CompileOptions, Profile};
use qkvault_server::config::{ModelShape, ServerLimits};
use qkvault_skip::{Need, skip};

#[test]
fn cudnn_compiles_the_whole_set_of_the_large_model() {
    let mut fetched = std::fs::read_dir(qkvault_base::cudnn_dir()).into_iter().flatten().flatten();
    let is_it = |name: &str| name.starts_with("9.19") && name.ends_with("-slim");
    let Some(folder) = fetched.find(|entry| is_it(&entry.file_name().to_string_lossy())) else {
        return skip(Need::Cudnn, "no cuDNN 9.19 (slim); `cargo xtask fetch --cudnn 9.19` gets it");
    };
    let compiler = Compiler::open(&Search::at(folder.path())).expect("a fetched set is whole");
    let target = compiler.target(&Profile::named("h200").expect("it is there"));
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), Some(compiler));
    let shape = ModelShape::named("1b").expect("it is there");
    for attention in ServerLimits::LARGE.attentions(&shape).expect("sound") {
        let plan = planner.plan(&attention, &target, &CompileOptions::cudnn(), OnMiss::Compile);
        plan.unwrap_or_else(|error| panic!("{attention:?}: {error}"));
    }
}
