//! Checks a stored plan by a rebuild: compiles it again from the inputs that are stored with it, and compares the
//! kernels.
//!
//! Two builds of one plan have different bytes, because cuDNN writes pointers into it; the compiled kernels, the engine
//! and the workspace are equal.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind};
use qkvault_graph::{Choice, CompileOptions, CudnnVersion, OpGraph, PlanKey, Target, codec, plan_key_of};
use serde::{Deserialize, Serialize};

use crate::compile::{Compiled, Compiler};
use crate::failure::Failure;
use crate::nvrtc::NvrtcError;
use crate::plan::{BadPlan, Plan};

/// All inputs of a plan's compilation. They follow cuDNN's bytes in the entry's payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) graph: OpGraph,
    pub(crate) target: Target,
    pub(crate) options: CompileOptions,
    pub(crate) choice: Choice,
}

/// The result of a rebuild.
#[derive(Debug)]
pub enum RebuildCheck {
    /// The same kernels, engine and workspace.
    Same {
        /// Number of compiled kernels in the plan.
        kernels: usize,
        /// Their bytes in the plan.
        kernel_bytes: usize,
    },
    /// It was not compiled: it is a refusal, or a plan for another cuDNN than the loaded one.
    Skipped {
        /// The reason.
        why: String,
    },
    /// The rebuild gives another plan.
    Different(Difference),
    /// Compiling does not work here.
    Failed(Failure),
    /// NVRTC does not compile its source.
    Uncompiled(NvrtcError),
    /// FlashAttention-4's toolchain does not compile its kernels.
    UncompiledByFa4(qkvault_fa4::CompileError),
}

/// The difference between a stored plan and its rebuild.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// The entry is not a plan with this key.
    #[error("{0}")]
    Plan(#[from] BadPlan),
    /// The stored inputs are missing or cannot be read.
    #[error("its inputs cannot be read: {0}; another version of qkvault wrote it")]
    Origin(#[from] codec::DecodeError),
    /// The stored inputs have another key.
    #[error("its inputs have the key {found}: somebody else stored it under this key")]
    Key {
        /// The key of the stored inputs.
        found: PlanKey,
    },
    /// The kernels differ.
    #[error("its kernels are not those that cuDNN {cudnn} compiles ({stored} inside, {compiled} compiled)")]
    Kernels {
        /// The version that compiled.
        cudnn: CudnnVersion,
        /// Kernels in the stored plan.
        stored: usize,
        /// Kernels in the rebuild.
        compiled: usize,
    },
    /// The cubins or the recipe differ.
    #[error("its code is not what its source compiles to ({stored} bytes inside, {compiled} compiled)")]
    Cubins {
        /// Bytes of the stored cubins.
        stored: usize,
        /// Bytes of the compiled ones.
        compiled: usize,
    },
    /// Engine or workspace differ.
    #[error("it has {stored}, and the rebuild has {compiled}")]
    Facts {
        /// Engine and workspace of the stored plan.
        stored: String,
        /// Those of the rebuild.
        compiled: String,
    },
}

impl Compiler {
    /// Compiles a stored plan again, from the op graph and for the target that are stored with it, and compares.
    #[must_use]
    pub fn verify_by_rebuild(&self, key: PlanKey, entry: &Entry) -> RebuildCheck {
        match self.deep(key, entry) {
            Ok(deep) => deep,
            Err(difference) => RebuildCheck::Different(difference),
        }
    }

    fn deep(&self, key: PlanKey, entry: &Entry) -> Result<RebuildCheck, Difference> {
        match entry.kind {
            EntryKind::Plan => {}
            EntryKind::Refusal => return Ok(RebuildCheck::Skipped { why: "a refusal has no kernels".to_owned() }),
            EntryKind::Times => return Ok(RebuildCheck::Skipped { why: "measured times have no kernels".to_owned() }),
        }
        let plan = Plan::from_entry(key, &Arc::new(entry.clone()))?;
        let Origin { graph, target, options, choice } = codec::decode(&entry.payload[plan.blob.len()..])?;
        let found = plan_key_of(&graph, &target, &options, choice);
        if found != key {
            return Err(Difference::Key { found });
        }
        let compiled = match self.compile_choice(&graph, &target, &options, choice) {
            Ok(compiled) => compiled,
            Err(failure @ Failure::OtherLibrary { .. }) => {
                return Ok(RebuildCheck::Skipped { why: failure.to_string() });
            }
            Err(failure) => return Ok(RebuildCheck::Failed(failure)),
        };
        let (stored, now) = (kernels(&plan.blob), kernels(&compiled.blob));
        if !same(&stored, &now) || stored.is_empty() {
            return Err(Difference::Kernels { cudnn: target.cudnn, stored: stored.len(), compiled: now.len() });
        }
        let Compiled { engine, workspace, passed_over: _, blob: _, milliseconds: _ } = &compiled;
        let facts = |engine: &str, workspace: u64| format!("{engine} with {workspace} bytes of workspace");
        if (&plan.facts.engine, plan.facts.workspace) != (engine, *workspace) {
            let stored = facts(&plan.facts.engine, plan.facts.workspace);
            return Err(Difference::Facts { stored, compiled: facts(engine, *workspace) });
        }
        Ok(RebuildCheck::Same { kernels: stored.len(), kernel_bytes: stored.iter().map(|kernel| kernel.len()).sum() })
    }
}

/// Whether kernels are equal except for the update of NVRTC that made them: a number in a note of the file, which no
/// key contains.
fn same(stored: &[&[u8]], now: &[&[u8]]) -> bool {
    let pairs = || stored.iter().zip(now);
    stored.len() == now.len()
        && (stored == now || pairs().all(|(a, b)| without_update(a).is_some_and(|a| Some(a) == without_update(b))))
}

/// The name of NVRTC in a kernel, as in `Cuda compilation tools, release 13.0, V13.0.88`.
const RELEASE: &[u8] = b"Cuda compilation tools, release ";

/// Whether cubins are equal except for the update of NVRTC that made them.
pub(crate) fn same_code(stored: &[u8], now: &[u8]) -> bool {
    stored == now || code_without_update(stored.to_vec()) == code_without_update(now.to_vec())
}

/// The file of a kernel with zeros for the number of the compiler's update; `None` if it is not a kernel.
fn without_update(text: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok().map(code_without_update)
}

fn code_without_update(mut file: Vec<u8>) -> Vec<u8> {
    let places: Vec<usize> =
        file.windows(RELEASE.len()).enumerate().filter(|(_, bytes)| *bytes == RELEASE).map(|(at, _)| at).collect();
    for at in places {
        let line = &mut file[at..];
        let end = line.iter().position(|byte| *byte == 0).unwrap_or(line.len());
        let line = &mut line[..end];
        if let Some(update) = line.windows(3).position(|bytes| bytes == b", V") {
            line[update + 3..].fill(0);
        }
    }
    file
}

/// The compiled kernels in a plan's bytes: the texts that begin like base64 of an ELF file.
fn kernels(blob: &[u8]) -> Vec<&[u8]> {
    blob.split(|byte| *byte == b'"').filter(|text| text.starts_with(b"f0VMR")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(release: &str, code: u8) -> String {
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.extend(b"Cuda compilation tools, release ");
        file.extend(release.as_bytes());
        file.extend([0, code, b',', b' ', b'V', code]);
        STANDARD.encode(file)
    }

    /// 13.0.48 and 13.0.88 gave the same code under one key.
    #[test]
    fn b3_kernels_of_two_updates_of_one_nvrtc_are_the_same_and_others_are_not() {
        let like = |a: &str, b: &str| same(&[a.as_bytes()], &[b.as_bytes()]);
        let base = kernel("13.0, V13.0.88", 1);
        assert!(base.starts_with("f0VMR"));
        assert!(like(&base, &base) && like(&base, &kernel("13.0, V13.0.48", 1)));
        assert!(!like(&base, &kernel("13.0, V13.0.88", 2)), "other code");
        assert!(!like(&base, &kernel("13.2, V13.2.51", 1)), "another NVRTC");
        assert!(!same(&[base.as_bytes()], &[]) && !like(&base, "f0VMR!"));
    }
}
