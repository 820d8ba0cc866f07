//! Kernels as a toolchain compiles them, kept in a folder of the cache so that a second run is quick, and an error for
//! each kernel that does not compile. What is kept is compared and never launched.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use qkvault_fa4::{CompileError, CompiledKernel, Fa4Toolchain, Installed, Kernel, KernelRequest, Told};
use qkvault_kernels::recipe::CubinKernel;
use serde::{Deserialize, Serialize};

/// Kernels of one process: one that fails takes the others with it, and to start one takes as long as a kernel or two.
const TOGETHER: usize = 12;

/// What decides the code beside the toolchain and the kernel.
const PROGRAM: [&str; 4] = [
    include_str!("../../src/compiler.py"),
    include_str!("../../src/words.py"),
    include_str!("../../src/packed.py"),
    include_str!("../../src/rows.py"),
];

/// Which of FlashAttention-4's kernels it is.
pub(crate) fn kind(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Forward(_) => "forward",
        Kernel::Preprocess(_) => "preprocess",
        Kernel::Backward(_) => "backward",
        Kernel::Postprocess(_) => "postprocess",
    }
}

/// A toolchain with the folder of what it has compiled.
pub(crate) struct Compiler<'a> {
    installed: &'a Installed,
    toolchain: Fa4Toolchain,
    folder: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    cubin: String,
    told: Told,
    host: String,
}

impl<'a> Compiler<'a> {
    pub(crate) fn new(installed: &'a Installed, toolchain: Fa4Toolchain) -> std::io::Result<Compiler<'a>> {
        let folder = qkvault_base::cache_dir().join("fa4-tests");
        std::fs::create_dir_all(&folder)?;
        Ok(Compiler { installed, toolchain, folder })
    }

    /// Every kernel, or the compiler's last words about it.
    pub(crate) fn all(&self, kernels: &[Kernel]) -> Vec<Result<CompiledKernel, String>> {
        let mut results: Vec<Option<Result<CompiledKernel, String>>> =
            kernels.iter().map(|kernel| self.kept(kernel).map(Ok)).collect();
        let mut missing: Vec<usize> = (0..kernels.len()).filter(|at| results[*at].is_none()).collect();
        // What makes one kernel fail makes others of its kind fail.
        missing.sort_by_key(|at| kind(&kernels[*at]));
        for (n, places) in missing.chunks(TOGETHER).enumerate() {
            let versions = self.toolchain.packages().map(|(_, version)| version).join(", ");
            eprintln!("{versions}: {} of {} kernels", n * TOGETHER, missing.len());
            let wanted: Vec<Kernel> = places.iter().map(|at| kernels[*at].clone()).collect();
            for (at, result) in places.iter().zip(self.some(&wanted)) {
                results[*at] = Some(result);
            }
        }
        results.into_iter().flatten().collect()
    }

    /// Compiles kernels together, and after an error each alone.
    fn some(&self, kernels: &[Kernel]) -> Vec<Result<CompiledKernel, String>> {
        match self.installed.compile_with(&self.toolchain, kernels) {
            Ok(list) => {
                kernels.iter().zip(&list).for_each(|(kernel, compiled)| self.keep(kernel, compiled));
                list.into_iter().map(Ok).collect()
            }
            Err(error) if kernels.len() < 2 => vec![Err(last_words(&error))],
            Err(_) => kernels.iter().flat_map(|kernel| self.some(std::slice::from_ref(kernel))).collect(),
        }
    }

    fn file(&self, kernel: &Kernel) -> Option<PathBuf> {
        let request = KernelRequest::for_kernels(std::slice::from_ref(kernel)).ok()?;
        let key = format!("{:?} {} {} {PROGRAM:?}", self.toolchain, self.installed.site.display(), request.text());
        Some(self.folder.join(format!("{}.json", blake3::hash(key.as_bytes()).to_hex())))
    }

    fn kept(&self, kernel: &Kernel) -> Option<CompiledKernel> {
        let text = std::fs::read(self.file(kernel)?).ok()?;
        let Kept { cubin, told, host } = serde_json::from_slice(&text).ok()?;
        let cubin = STANDARD.decode(cubin).ok()?;
        Some(CompiledKernel { kernel: CubinKernel::only(&cubin).ok()?, cubin, told, host })
    }

    /// What cannot be kept is compiled again by the next run.
    fn keep(&self, kernel: &Kernel, CompiledKernel { cubin, kernel: _, told, host }: &CompiledKernel) {
        let kept = Kept { cubin: STANDARD.encode(cubin), told: told.clone(), host: host.clone() };
        if let (Some(file), Ok(text)) = (self.file(kernel), serde_json::to_vec(&kept)) {
            let _ = std::fs::write(file, text);
        }
    }
}

/// What an error says at its end: of a program's error the message, without where in the program it is.
fn last_words(error: &CompileError) -> String {
    let CompileError::Failed { status, words } = error else { return error.to_string() };
    let lines: Vec<&str> = words.split(" | ").map(str::trim).collect();
    // `TypeError: what`, perhaps in several lines.
    let names = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        line.contains(':') && !name.contains(' ') && (name.ends_with("Error") || name.ends_with("Exception"))
    };
    let from = lines.iter().rposition(names).unwrap_or(lines.len() - 1);
    let said = lines[from..].join(" ");
    if said.is_empty() { format!("the compiler failed ({status})") } else { said }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_programs_error_its_message_is_told() {
        let told =
            |words: &str| last_words(&CompileError::Failed { status: "exit status: 1".into(), words: words.into() });
        let place = "  File \"compiler.py\", line 4, in postprocess |     made(x=1) |          ^^^ | ";
        assert_eq!(told(&format!("{place}TypeError: made() got 'x'")), "TypeError: made() got 'x'");
        assert_eq!(told(&format!("{place}dsl.DSLError: no | such type")), "dsl.DSLError: no such type");
        assert_eq!(told("one | Segmentation fault"), "Segmentation fault");
        assert_eq!(told(""), "the compiler failed (exit status: 1)");
        let answer = CompileError::Answer { why: "a cubin is no base64".to_owned() };
        assert_eq!(last_words(&answer), answer.to_string());
    }
}
