//! Kernels of our own on a CPU, for tests on machines without a GPU.
//!
//! A [`HostProgram`] is the CUDA C of a plan, compiled by the host's C++ compiler with a stand-in for the few
//! instructions of `machine.cu`: `src/machine`. [`HostProgram::launch`] runs it as a recipe says: the same parameters,
//! the same grid, every thread of a block with a stack of its own. Blocks, warps and copies take turns in an order that
//! is drawn from a seed. What it catches: wrong results of any cause but timing and rounding of the real machine, reads
//! and writes beyond a buffer or beyond shared memory, reads of tiles that have not come, barriers that do not match,
//! lanes that meet in different instructions, blocks that hang. What it does not see: the order in which writes of one
//! thread are seen by another on a GPU, and whatever the compiler for the GPU makes of the source.
//!
//! Functions that need no other thread are tried without all this: [`printed`] runs a program of them.

mod job;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::process::Command;

use qkvault_graph::Role;
use qkvault_kernels::recipe::{LaunchRecipe, RecipeStep};

/// The stand-in, by how it is compiled: `build.rs` puts it there.
const MACHINE: &str = env!("OUT_DIR");

/// Why a source was not compiled or a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum EmulateError {
    /// The host's compiler refuses the source.
    #[error("the C++ compiler refuses the kernels' source:\n{0}")]
    Refused(String),
    /// The launch ended before its end: what it printed, or the signal that ended it.
    #[error("the launch failed: {0}")]
    Failed(String),
    /// The recipe names an operand that was not given.
    #[error("the recipe names {0}, and no buffer of that role is given")]
    Missing(Role),
    /// The recipe has constant data, which no kernel of our own reads.
    #[error("the recipe has constant data, and kernels are emulated without")]
    Constants,
    /// Files or programs of the host.
    #[error("{0}")]
    Host(#[from] io::Error),
}

/// Kernels that were compiled for the host.
#[derive(Debug)]
pub struct HostProgram {
    folder: tempfile::TempDir,
}

impl HostProgram {
    /// Whether this machine can run such programs: switching between threads is written for x86-64.
    #[must_use]
    pub fn can_run() -> bool {
        cfg!(target_arch = "x86_64") && Command::new("c++").arg("--version").output().is_ok_and(|o| o.status.success())
    }

    /// Compiles the source of a recipe's kernels. `optimised` is worth it where launches take longer than compiling.
    ///
    /// # Errors
    ///
    /// [`EmulateError::Refused`] with what the compiler said; [`EmulateError::Host`] if there is none, or no room for
    /// files.
    pub fn compile(source: &str, recipe: &LaunchRecipe, optimised: bool) -> Result<HostProgram, EmulateError> {
        let functions: BTreeSet<&str> = (recipe.steps.iter())
            .filter_map(
                |step| if let RecipeStep::Launch(launch) = step { Some(launch.function.as_str()) } else { None },
            )
            .collect();
        let table: String = (functions.iter())
            .map(|name| format!("    {{\"{name}\", [](unsigned char* const* p) {{ emulated::call({name}, p); }}}},\n"))
            .collect();
        // The stand-in comes first: macros of the kernels would replace words in it.
        let text = format!(
            "#include \"job.h\"\n{source}\nint main(int, char** arguments) {{\n  return emulated::run_job(arguments, {{\n{table}  }});\n}}\n"
        );
        HostProgram::built(&text, if optimised { "-O1" } else { "-O0" })
    }

    /// The program of a text, which finds the stand-in by its name alone.
    fn built(text: &str, level: &str) -> Result<HostProgram, EmulateError> {
        let program = HostProgram { folder: tempfile::tempdir()? };
        std::fs::write(program.path("program.cc"), text)?;
        let made = Command::new("c++")
            .args(["-std=c++17", "-march=native", "-w", "-DEMULATED=\"machine.h\"", level])
            .arg(format!("-I{MACHINE}/{level}"))
            .arg("-o")
            .args([program.path("program"), program.path("program.cc")])
            .output()?;
        match made.status.success() {
            true => Ok(program),
            false => Err(EmulateError::Refused(said(&made.stderr))),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the steps of a recipe over buffers of the host, which then hold what a launch leaves in them. `numbers`
    /// are the bytes of scalars; the first role of each pair of `shared` lies in the buffer of the second. Scratch
    /// memory holds `poison` in every byte before; a buffer begins at a multiple of 256 bytes.
    ///
    /// # Errors
    ///
    /// [`EmulateError::Missing`] for an operand; [`EmulateError::Failed`] if a thread leaves its memory, waits for
    /// ever, or does what no GPU allows; [`EmulateError::Host`] for files.
    pub fn launch(
        &self,
        recipe: &LaunchRecipe,
        buffers: &mut BTreeMap<Role, Vec<u8>>,
        numbers: &BTreeMap<Role, Vec<u8>>,
        shared: &[(Role, Role)],
        seed: u64,
        poison: u8,
    ) -> Result<(), EmulateError> {
        std::fs::write(self.path("job"), job::write(recipe, buffers, numbers, shared, seed, poison)?)?;
        let run = Command::new(self.path("program")).arg(self.path("job")).arg(self.path("result")).output()?;
        if !run.status.success() {
            return Err(EmulateError::Failed(format!("{}\n{}", run.status, said(&run.stderr))));
        }
        let result = std::fs::read(self.path("result"))?;
        let mut rest = result.as_slice();
        for buffer in buffers.values_mut() {
            let (mine, others) = rest.split_at(buffer.len());
            buffer.copy_from_slice(mine);
            rest = others;
        }
        Ok(())
    }
}

/// What a program prints that has a `main` and functions of CUDA C which need no other thread: it begins with the words
/// of `machine/words.h`.
///
/// # Errors
///
/// [`EmulateError::Refused`] with what the compiler said, [`EmulateError::Failed`] if the program ends with another
/// status than 0 or prints what is no text, [`EmulateError::Host`] if there is no compiler or no room for files.
pub fn printed(text: &str) -> Result<String, EmulateError> {
    let program = HostProgram::built(&format!("#include \"words.h\"\n{text}"), "-O0")?;
    let run = Command::new(program.path("program")).output()?;
    if !run.status.success() {
        return Err(EmulateError::Failed(format!("{}\n{}", run.status, said(&run.stderr))));
    }
    String::from_utf8(run.stdout).map_err(|error| EmulateError::Failed(error.to_string()))
}

/// The first lines of what a program printed.
fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).lines().take(20).collect::<Vec<_>>().join("\n")
}
