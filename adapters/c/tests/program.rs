//! Programs in C and C++ that use the library: without a cuDNN, and with each that is fetched.

mod kit;

use std::path::Path;
use std::process::{Command, Output};

use qkvault_skip::{Need, skip};

/// Runs a program without variables that name vaults, libraries or GPUs.
fn run(program: &Path, args: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(args).env_clear().env("HOME", folder).env("PATH", "/usr/bin:/bin");
    command.output().expect("it starts")
}

fn succeeded(said: &Output) -> String {
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success(), "{}\n{text}{}", said.status, String::from_utf8_lossy(&said.stderr));
    text
}

#[test]
fn a_program_in_c_describes_asks_and_is_told_of_every_mistake() {
    let folder = kit::installed();
    let program = kit::program("cc", kit::C11, "tests/check.c", folder.path());
    let vault = folder.path().join("vault");
    let said = run(&program, &[vault.to_str().expect("text")], folder.path());
    assert_eq!(succeeded(&said), "all checks passed\n");
}

#[test]
fn two_processes_in_c_compute_one_attention() {
    let folder = kit::installed();
    let program = kit::program("cc", kit::C11, "tests/ranks.c", folder.path());
    let vault = folder.path().join("vault");
    let said = run(&program, &[vault.to_str().expect("text")], folder.path());
    assert_eq!(succeeded(&said), "all checks passed\n");
}

#[test]
fn a_program_in_cpp_describes_and_asks() {
    if !kit::has("c++") {
        return skip(Need::Cxx, "no C++ compiler builds the example");
    }
    let folder = kit::installed();
    let program = kit::program("c++", kit::CXX17, "examples/explain.cpp", folder.path());
    let said = succeeded(&run(&program, &["h200", "b200", "a100"], folder.path()));
    assert!(said.contains("h200: supported") && said.contains("head-dim.multiple-of-8"), "{said}");
}

/// Compiles plans with a real cuDNN, without a GPU.
fn warms(version: &str) {
    let Some(cudnn) = kit::cudnn(version) else { return };
    let folder = kit::installed();
    let program = kit::program("cc", kit::C11, "tests/warm.c", folder.path());
    let vault = folder.path().join("vault");
    let (cudnn, vault) = (cudnn.to_str().expect("text"), vault.to_str().expect("text"));
    let said = run(&program, &[cudnn, vault, version], folder.path());
    assert_eq!(succeeded(&said), "all checks passed\n");
}

#[test]
fn a_program_in_c_compiles_plans_with_cudnn_9_19() {
    warms("9.19.0");
}

#[test]
fn a_program_in_c_compiles_plans_with_cudnn_9_27() {
    warms("9.27.0");
}

/// The program for the card, as far as it goes without one: descriptions of random attentions, and the oracle beside
/// attention in plain C.
#[test]
fn the_oracle_agrees_with_attention_in_plain_c() {
    let folder = kit::installed();
    let (source, into) = (kit::package().join("tests/card.c"), folder.path().join("card"));
    let said = kit::compile("cc", kit::C11, &source, &into, &["-ldl", "-lm", "-lpthread"]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let [library, vault] = ["libqkvault.so", "vault"].map(|name| folder.path().join(name).display().to_string());
    let args = ["--library", &library, "--vault", &vault, "--dry", "--cases", "30", "--seed", "11"];
    let said = succeeded(&run(&into, &args, folder.path()));
    assert!(said.starts_with("dry: 30 cases"), "{said}");
}

/// Loading the library loads no cuDNN and no driver, and needs none.
#[test]
fn the_library_opens_in_a_process_that_has_nothing_of_nvidias() {
    let folder = kit::installed();
    let library = folder.path().join("libqkvault.so");
    let dlopen = kit::package().join("tests/dlopen.c");
    let into = folder.path().join("dlopen");
    let said = kit::compile("cc", kit::C11, &dlopen, &into, &["-ldl"]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said = run(&into, &[library.to_str().expect("text")], folder.path());
    assert_eq!(succeeded(&said), "ok\n");
}
