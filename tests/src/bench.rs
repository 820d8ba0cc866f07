//! A compiler, a target and a vault folder, for tests of planners.

use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{Compiler, OnMiss, PlanError, Planner, Resolution};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::Valid;

use crate::cudnn;

/// A compiler, a target and a vault folder.
pub struct Bench {
    /// A compiler with cuDNN 9.27.
    pub compiler: Compiler,
    /// An H200 with this cuDNN.
    pub target: Target,
    /// The vault's folder, deleted on drop.
    pub folder: tempfile::TempDir,
}

impl Bench {
    /// A bench with an empty folder, or `None` if there is no cuDNN 9.27; the test is then skipped.
    ///
    /// # Panics
    ///
    /// Panics if cuDNN is required and missing, or if no temporary folder can be made.
    #[must_use]
    pub fn new() -> Option<Bench> {
        let compiler = cudnn::compiler("9.27.0")?;
        let target = cudnn::target(&compiler, "h200");
        Some(Bench { compiler, target, folder: tempfile::tempdir().unwrap() })
    }

    /// Opens the vault with an empty memory, as a new process does.
    ///
    /// # Panics
    ///
    /// Panics if the vault cannot be opened.
    #[must_use]
    pub fn vault(&self) -> Vault {
        Vault::open(VaultOptions::in_folder(self.folder.path()).without_environment()).unwrap()
    }

    /// A planner with a newly opened vault.
    #[must_use]
    pub fn planner(&self) -> Planner {
        Planner::new(self.vault(), Some(self.compiler.clone()))
    }

    /// Plans an attention for the target.
    ///
    /// # Errors
    ///
    /// Those of [`Planner::plan`].
    pub fn ask(&self, planner: &Planner, attention: &Valid, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        planner.plan(attention, &self.target, &CompileOptions::cudnn(), on_miss)
    }
}
