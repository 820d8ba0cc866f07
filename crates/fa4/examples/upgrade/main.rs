//! What another FlashAttention-4 changes: the kernels of every family are compiled by the pinned toolchain and by one
//! that is tried, the host functions that both print are evaluated for the same tensors, and every byte that a launch
//! would get is compared. Nothing that the tried one compiles becomes a plan.
//!
//! `cargo xtask fa4-tests --toolchain` installs the toolchain and runs this with its folder and versions:
//! `upgrade SITE FLASH_ATTN CUTLASS_DSL QUACK FAMILIES text|json`. It exits with 0 if everything is the same, with 3 if
//! something has changed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program's output")]

mod changes;
mod compiled;
#[allow(dead_code, reason = "the test of launches uses all of it")]
#[path = "../../tests/families/mod.rs"]
mod families;
#[path = "../../tests/printed/mod.rs"]
mod printed;
mod report;
mod resources;

use std::process::ExitCode;

use changes::Change;
use compiled::{Compiler, kind};
use printed::Launched;
use printed::memory::Value;
use qkvault_fa4::graph::{Valid, validate};
use qkvault_fa4::{CompiledKernel, Fa4Program, Fa4Toolchain, Installed, Kernel, SM, TOOLCHAIN};
use qkvault_kernels::recipe::{self, RecipeStep};
use report::{FamilyReport, Report};

type Failure = Box<dyn std::error::Error>;

/// The exit status where something has changed.
const CHANGED: u8 = 3;

/// An attention of a family, with the kernels of its program.
struct Case {
    family: usize,
    attention: Valid,
    program: Fa4Program,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(CHANGED),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Compares, prints the report, and returns whether everything is the same.
fn run() -> Result<bool, Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [site, flash_attn, cutlass_dsl, quack, parts, form] = &words[..] else {
        return Err("run `cargo xtask fa4-tests --toolchain`".into());
    };
    // Versions are static where they are those of plans.
    let [flash_attn, cutlass_dsl, quack] = [flash_attn, cutlass_dsl, quack].map(|word| &*word.clone().leak());
    let toolchain = Fa4Toolchain { flash_attn, cutlass_dsl, quack };
    let pinned = Installed::find()?;
    let tried = Installed { python: pinned.python.clone(), site: site.into() };
    let families = families::chosen(Some(parts));
    if families.is_empty() {
        return Err(format!("no family's name has one of the parts '{parts}'").into());
    }
    let cases = cases(&families)?;
    let mut kernels: Vec<Kernel> = Vec::new();
    for kernel in cases.iter().flat_map(|case| &case.program.kernels) {
        if !kernels.contains(kernel) {
            kernels.push(kernel.clone());
        }
    }
    let before = Compiler::new(&pinned, TOOLCHAIN)?.all(&kernels);
    let after = Compiler::new(&tried, toolchain)?.all(&kernels);
    let mut list: Vec<FamilyReport> = families.iter().map(|(name, _)| FamilyReport::new(name)).collect();
    for Case { family, attention, program } in &cases {
        let place = |kernel| kernels.iter().position(|known| known == kernel).expect("is compiled");
        let places: Vec<usize> = program.kernels.iter().map(place).collect();
        let before: Vec<CompiledKernel> = places.iter().map(|at| before[*at].clone()).collect::<Result<_, _>>()?;
        for at in &places {
            if let Err(error) = &after[*at] {
                list[*family].fails(kind(&kernels[*at]), error);
            }
        }
        let after: Vec<Option<CompiledKernel>> = places.iter().map(|at| after[*at].clone().ok()).collect();
        list[*family].shape(changed(attention, program, &before, &after)?);
    }
    let report = Report { pinned: TOOLCHAIN, tried: toolchain, kernels: kernels.len(), families: list };
    if form == "json" {
        println!("{}", report.json()?);
    } else {
        print!("{report}");
    }
    Ok(report.is_same())
}

/// Attentions of all families in the shapes of the test of launches.
fn cases(families: &[(String, families::Write)]) -> Result<Vec<Case>, Failure> {
    let mut random = families::Random::new(7);
    let mut cases = Vec::new();
    for (family, (name, write)) in families.iter().enumerate() {
        for shape in families::shapes(&mut random, families::SHAPES) {
            let attention = validate(write(shape))?;
            let program = Fa4Program::for_attention(&attention, SM).map_err(|refusal| format!("{name}: {refusal}"))?;
            cases.push(Case { family, attention, program });
        }
    }
    Ok(cases)
}

/// What is another for an attention: of its launches, and of the code of their kernels, those that compile.
fn changed(
    attention: &Valid,
    program: &Fa4Program,
    before: &[CompiledKernel],
    after: &[Option<CompiledKernel>],
) -> Result<Vec<Change>, Failure> {
    let own = program.own.as_ref().map(|_| &[0_u8; 8][..]);
    let plan = |code: &[CompiledKernel]| program.plan(code, own, &recipe::bindings(attention));
    let launched = plan(before)?.recipe.steps.into_iter().filter_map(|step| match step {
        RecipeStep::Launch(launch) => Some(launch.module as usize).filter(|module| *module < before.len()),
        RecipeStep::Clear { .. } => None,
    });
    let mut found = Vec::new();
    for (module, given) in launched.zip(families::launches(attention).given) {
        let run = |code: &CompiledKernel| {
            let sizes: Vec<usize> = code.kernel.params.iter().map(|(_, size)| *size as usize).collect();
            evaluated(&code.host, given.arguments.clone(), &sizes)
        };
        let (before, Some(after)) = (&before[module], &after[module]) else { continue };
        found.extend(changes::told(given.kernel, &before.told, &after.told));
        found.extend(match run(after) {
            Ok(after) => changes::launches(given.kernel, &run(before)?, &after),
            Err(why) => vec![Change::launch(given.kernel, "host function", "is evaluated", &why.replace('\n', " "))],
        });
        found.extend(resources::changes(given.kernel, before, after));
    }
    let whole: Option<Vec<CompiledKernel>> = after.iter().cloned().collect();
    if let Some(Err(error)) = whole.map(|after| plan(&after)) {
        // What is meant for users is left out: the kernel's name, of hundreds of letters, and whom to tell.
        let why = error.to_string();
        let why = why.rsplit_once(" is not launched: ").map_or(&*why, |(_, why)| why);
        let why = why.trim_end_matches("; report this with the description");
        found.push(Change::launch("all kernels", "launch in Rust", "fits", why));
    }
    Ok(found)
}

/// What a host function launches; the evaluator panics where it does not know what a new compiler prints.
fn evaluated(host: &str, arguments: Vec<Value>, sizes: &[usize]) -> Result<Launched, String> {
    // The report says it.
    std::panic::set_hook(Box::new(|_| {}));
    let ran = std::panic::catch_unwind(|| printed::run(host, arguments, sizes));
    drop(std::panic::take_hook());
    ran.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_function_that_cannot_be_evaluated_is_told_and_ends_nothing() {
        let host =
            |line: &str| format!("llvm.func @cutlass(%arg0: !llvm.ptr) {{\n    llvm.{line}\n    llvm.return\n  }}");
        let error = evaluated(&host("new.word"), Vec::new(), &[]).expect_err("no such operation");
        assert!(error.contains("llvm.new.word"), "{error}");
        let error = evaluated(&host("unreachable"), vec![Value::Poison], &[]).expect_err("one argument too many");
        assert!(error.contains("arguments and the stream"), "{error}");
    }
}
