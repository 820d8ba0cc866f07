//! RebuildCheck checks: a stored plan compiled again from what is stored with it, and the kernels inside compared.
//!
//! Two builds of one plan differ in pointers that cuDNN leaves in it, and so have different bytes; the compiled kernel, the
//! engine and the workspace are the same.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use qkvault_cache::{Entry, EntryKind};
use qkvault_graph::{Choice, CompileOptions, CudnnVersion, OpGraph, PlanKey, Target, codec, plan_key_of};
use serde::{Deserialize, Serialize};

use crate::compile::{Compiled, Compiler};
use crate::failure::Failure;
use crate::plan::{BadPlan, Plan};

/// Everything that a plan was compiled from. It follows cuDNN's bytes in the entry's payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) graph: OpGraph,
    pub(crate) target: Target,
    pub(crate) policy: CompileOptions,
    pub(crate) choice: Choice,
}

/// What compiling a stored plan again came to.
#[derive(Debug)]
pub enum RebuildCheck {
    /// The same kernels, engine and workspace.
    Same {
        /// Compiled kernels inside.
        kernels: usize,
        /// Their bytes, as they stand in the plan.
        kernel_bytes: usize,
    },
    /// It was not compiled: a refusal, or a plan for another cuDNN than the one that is loaded.
    Skipped {
        /// Why.
        why: String,
    },
    /// It is not what compiling gives.
    Different(Difference),
    /// Compiling does not work here.
    Failed(Failure),
}

/// In what a stored plan is not what compiling gives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// The entry is no plan of this key.
    #[error("{0}")]
    Plan(#[from] BadPlan),
    /// What it was compiled from does not read, or is not there.
    #[error("what it was compiled from does not read: {0}; it was written by another version of qkvault")]
    Origin(#[from] codec::DecodeError),
    /// What it says it was compiled from has another key.
    #[error("what it says it was compiled from has the key {found}: it was put under this key by somebody else")]
    Key {
        /// The key that follows from what is stored.
        found: PlanKey,
    },
    /// The kernels are others.
    #[error("its kernels are not those that cuDNN {cudnn} compiles ({stored} inside, {compiled} compiled)")]
    Kernels {
        /// The version that compiled.
        cudnn: CudnnVersion,
        /// Kernels in the stored plan.
        stored: usize,
        /// Kernels in the one compiled now.
        compiled: usize,
    },
    /// Engine or workspace are others.
    #[error("it has {stored} where compiling gives {compiled}")]
    Facts {
        /// Engine and workspace of the stored plan.
        stored: String,
        /// Those of the one compiled now.
        compiled: String,
    },
}

impl Compiler {
    /// Compiles a stored plan again, for the target and from the op graph that are stored with it, and compares.
    #[must_use]
    pub fn verify_by_rebuild(&self, key: PlanKey, entry: &Entry) -> RebuildCheck {
        match self.deep(key, entry) {
            Ok(deep) => deep,
            Err(difference) => RebuildCheck::Different(difference),
        }
    }

    fn deep(&self, key: PlanKey, entry: &Entry) -> Result<RebuildCheck, Difference> {
        if entry.kind == EntryKind::Refusal {
            return Ok(RebuildCheck::Skipped { why: "a refusal has no kernel".to_owned() });
        }
        let plan = Plan::from_entry(key, entry)?;
        let Origin { graph, target, policy, choice } = codec::decode(&entry.payload[plan.blob.len()..])?;
        let found = plan_key_of(&graph, &target, &policy, choice);
        if found != key {
            return Err(Difference::Key { found });
        }
        let compiled = match self.compile_choice(&graph, &target, &policy, choice) {
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

/// Whether kernels are the same but for which update of NVRTC made them: a number in a note of the file, which is under no key.
fn same(stored: &[&[u8]], now: &[&[u8]]) -> bool {
    let pairs = || stored.iter().zip(now);
    stored.len() == now.len()
        && (stored == now || pairs().all(|(a, b)| without_update(a).is_some_and(|a| Some(a) == without_update(b))))
}

/// How NVRTC names itself in a kernel: `Cuda compilation tools, release 13.0, V13.0.88`.
const RELEASE: &[u8] = b"Cuda compilation tools, release ";

/// The file of a kernel, the number of the compiler's update made zeros; `None` for what is no kernel's text.
fn without_update(text: &[u8]) -> Option<Vec<u8>> {
    let mut file = STANDARD.decode(text).ok()?;
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
    Some(file)
}

/// The compiled kernels in a plan's bytes: the texts that begin as base64 of an ELF file does.
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

    /// 13.0.48 and 13.0.88 were seen to give the same code under one key.
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
