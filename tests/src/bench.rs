//! A compiler, a target and a folder for a vault: what tests of planners begin with.

use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{Compiler, OnMiss, PlanError, Planner, Resolution};
use qkvault_graph::{CompileOptions, Target, Valid};

use crate::cudnn;

/// Compiler, target and a folder for a vault.
pub struct Bench {
    /// cuDNN 9.27 as a compiler.
    pub compiler: Compiler,
    /// An H200 under it.
    pub target: Target,
    /// The folder, which goes with the bench.
    pub folder: tempfile::TempDir,
}

impl Bench {
    /// A bench with an empty folder, or `None`, with the reason printed, where there is no cuDNN 9.27.
    ///
    /// # Panics
    ///
    /// When cuDNN is required and not there, and when there is no folder for temporary files.
    #[must_use]
    pub fn new() -> Option<Bench> {
        let compiler = cudnn::compiler("9.27.0")?;
        let target = cudnn::target(&compiler, "h200");
        Some(Bench { compiler, target, folder: tempfile::tempdir().unwrap() })
    }

    /// A vault as a process that has just started sees it: nothing in memory.
    ///
    /// # Panics
    ///
    /// When it cannot be opened.
    #[must_use]
    pub fn vault(&self) -> Vault {
        Vault::open(VaultOptions::in_folder(self.folder.path()).without_environment()).unwrap()
    }

    /// A planner over such a vault.
    #[must_use]
    pub fn planner(&self) -> Planner {
        Planner::new(self.vault(), Some(self.compiler.clone()))
    }

    /// Asks for a plan for the target.
    ///
    /// # Errors
    ///
    /// Those of [`Planner::plan`].
    pub fn ask(&self, planner: &Planner, attention: &Valid, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        planner.plan(attention, &self.target, &CompileOptions::default(), on_miss)
    }
}
