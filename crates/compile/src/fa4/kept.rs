//! FlashAttention-4's toolchain in a process: looked for once, and each kernel compiled once. One kernel serves every
//! shape of its family, and compiling it takes seconds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use qkvault_fa4::{CompileError, CompiledKernel, Installed, Kernel, KernelRequest, NotInstalled};

/// The most kernels that are kept: some 50 KB each.
const KEPT: usize = 256;

type Slot = Arc<Mutex<Option<CompiledKernel>>>;

/// The toolchain and the kernels that it compiled.
#[derive(Debug, Default)]
pub(crate) struct Fa4Compiler {
    found: OnceLock<Result<Installed, NotInstalled>>,
    /// By their requests.
    kernels: Mutex<BTreeMap<String, Slot>>,
}

impl Fa4Compiler {
    /// Kernels, compiled in one child process, less those that are known. Threads that ask for the same one wait for
    /// the first.
    pub(crate) fn compile(&self, kernels: &[Kernel]) -> Result<Vec<CompiledKernel>, CompileError> {
        let installed = self.found.get_or_init(Installed::find).as_ref().map_err(Clone::clone)?;
        self.compile_by(kernels, |missing| installed.compile(missing))
    }

    /// The same by another compiler.
    pub(crate) fn compile_by(
        &self,
        kernels: &[Kernel],
        compile: impl FnOnce(&[Kernel]) -> Result<Vec<CompiledKernel>, CompileError>,
    ) -> Result<Vec<CompiledKernel>, CompileError> {
        let name = |kernel: &Kernel| {
            let request = KernelRequest::for_kernels(std::slice::from_ref(kernel));
            let request = request.map_err(|error| CompileError::Answer { why: error.to_string() })?;
            Ok(request.text().to_owned())
        };
        let names: Vec<String> = kernels.iter().map(name).collect::<Result<_, CompileError>>()?;
        let slots: BTreeMap<&String, Slot> = {
            let mut known = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() > KEPT {
                known.clear();
            }
            names.iter().map(|name| (name, Arc::clone(known.entry(name.clone()).or_default()))).collect()
        };
        // In the order of names, which all threads keep, so that none waits for one that waits for it.
        let mut held: BTreeMap<&String, MutexGuard<'_, Option<CompiledKernel>>> = BTreeMap::new();
        for (&name, slot) in &slots {
            held.insert(name, slot.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let mut missing: Vec<(&String, Kernel)> = Vec::new();
        for (name, kernel) in names.iter().zip(kernels) {
            if held[name].is_none() && missing.iter().all(|(other, _)| *other != name) {
                missing.push((name, kernel.clone()));
            }
        }
        if !missing.is_empty() {
            let (of, list): (Vec<&String>, Vec<Kernel>) = missing.into_iter().unzip();
            for (name, compiled) in of.into_iter().zip(compile(&list)?) {
                // The host function is for tests, and larger than the rest.
                let compiled = CompiledKernel { host: String::new(), ..compiled };
                held.get_mut(name).expect("every name has a slot").replace(compiled);
            }
        }
        let of = |name: &String| {
            let compiled = held[name].clone();
            compiled.ok_or_else(|| CompileError::Answer { why: "a kernel is missing".to_owned() })
        };
        names.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use qkvault_fa4::Fa4Program;
    use qkvault_graph::{Attention, DType};

    use super::*;

    fn kernels(seq: i64, causal: bool) -> Vec<Kernel> {
        let plain = Attention::bshd(1, (4, 4), (seq, seq), 64, DType::BF16);
        let a = if causal { plain.causal() } else { plain };
        let a = a.with_stats().backward(Default::default()).validate().expect("valid");
        Fa4Program::for_attention(&a, qkvault_fa4::SM).expect("taken").kernels
    }

    /// A stand-in for the child process, which cannot run without its packages.
    fn fake(kernels: &[Kernel]) -> Result<Vec<CompiledKernel>, CompileError> {
        let none = || qkvault_kernels::recipe::CubinKernel {
            name: String::new(),
            sm: 90,
            abi: 8,
            params: Vec::new(),
            bytes: 0,
            base: 0,
            block: None,
        };
        let told =
            || qkvault_fa4::Told { params: Vec::new(), boxes: Vec::new(), block: [1; 3], shared: 0, overlap: false };
        let one = |kernel: &Kernel| CompiledKernel {
            cubin: format!("{kernel:?}").into_bytes(),
            kernel: none(),
            told: told(),
            host: "a long text".to_owned(),
        };
        Ok(kernels.iter().map(one).collect())
    }

    #[test]
    fn a_kernel_is_compiled_once_for_all_shapes_of_its_family() {
        let toolchain = Fa4Compiler::default();
        let first = kernels(256, true);
        let made = toolchain.compile_by(&first, fake).expect("compiles");
        assert_eq!(made.len(), first.len());
        assert!(made.iter().zip(&first).all(|(one, kernel)| one.cubin == format!("{kernel:?}").into_bytes()));
        let nothing = |_: &[Kernel]| -> Result<Vec<CompiledKernel>, CompileError> { panic!("all are known") };
        assert_eq!(toolchain.compile_by(&kernels(4096, true), nothing).expect("known"), made);
        // Another mask has another main kernel, and shares the others.
        let other = kernels(256, false);
        let mut asked = 0;
        let count = |list: &[Kernel]| {
            asked = list.len();
            fake(list)
        };
        toolchain.compile_by(&other, count).expect("compiles");
        assert!(asked > 0 && asked <= other.len(), "{asked} of {}", other.len());
    }

    #[test]
    fn what_failed_is_tried_again() {
        let toolchain = Fa4Compiler::default();
        let failed = |_: &[Kernel]| Err(CompileError::Answer { why: "no".to_owned() });
        assert!(toolchain.compile_by(&kernels(256, true), failed).is_err());
        assert!(toolchain.compile_by(&kernels(256, true), fake).is_ok());
    }
}
