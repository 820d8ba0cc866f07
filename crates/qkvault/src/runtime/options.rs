//! What a runtime is opened with.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use qkvault_cache::VaultOptions;
use qkvault_compile::OnMiss;
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{Device, SessionOptions};
use qkvault_sys::Search;

use super::Runtime;
use crate::Error;
use crate::record::Recorder;

/// The variable that names the file of [`RuntimeOptions::record`].
pub(crate) const RECORD_VARIABLE: &str = "QKVAULT_RECORD";

/// Options of a [`Runtime`].
///
/// ```no_run
/// use qkvault::Runtime;
/// use qkvault::cache::VaultOptions;
///
/// // The second GPU, a vault of one's own, and plans that are built where the vault lacks them.
/// let runtime = Runtime::options().gpu(1).vault(VaultOptions::in_folder("/srv/vault")).build_missing(true).open()?;
/// # Ok::<(), qkvault::Error>(())
/// ```
#[derive(Clone)]
pub struct RuntimeOptions {
    pub(crate) gpu: usize,
    pub(crate) device: Option<Device>,
    pub(crate) search: Search,
    pub(crate) vault: VaultOptions,
    pub(crate) session: SessionOptions,
    pub(crate) compile: CompileOptions,
    pub(crate) on_miss: OnMiss,
    pub(crate) plans: usize,
    pub(crate) plan_bytes: u64,
    pub(crate) record: Option<PathBuf>,
}

impl fmt::Debug for RuntimeOptions {
    /// Without the vault's options, which may have secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RuntimeOptions {
            gpu,
            device: _,
            search: _,
            vault: _,
            session,
            compile,
            on_miss,
            plans,
            plan_bytes,
            record,
        } = self;
        let mut shown = f.debug_struct("RuntimeOptions");
        shown.field("gpu", gpu).field("session", session).field("compile", compile).field("on_miss", on_miss);
        shown.field("plans", plans).field("plan_bytes", plan_bytes).field("record", record).finish_non_exhaustive()
    }
}

impl Default for RuntimeOptions {
    fn default() -> RuntimeOptions {
        RuntimeOptions {
            gpu: 0,
            device: None,
            search: Search::default(),
            // Plans are kept loaded, so that keeping their bytes too would only take memory.
            vault: VaultOptions::new().memory(0, 0),
            session: SessionOptions::default(),
            compile: CompileOptions::default(),
            on_miss: OnMiss::Load,
            plans: 1024,
            plan_bytes: 1 << 30,
            record: None,
        }
    }
}

impl RuntimeOptions {
    /// The GPU, by CUDA's ordinal. Default: 0.
    #[must_use]
    pub fn gpu(self, gpu: usize) -> RuntimeOptions {
        RuntimeOptions { gpu, device: None, ..self }
    }

    /// The GPU, as a device that is open already.
    #[must_use]
    pub fn on(self, device: &Device) -> RuntimeOptions {
        RuntimeOptions { gpu: device.ordinal(), device: Some(device.clone()), ..self }
    }

    /// Where cuDNN is looked for. Default: the usual search, which prefers the one that the process has loaded.
    #[must_use]
    pub fn cudnn(self, search: Search) -> RuntimeOptions {
        RuntimeOptions { search, ..self }
    }

    /// The vault. Default: the user's, as the command uses it, but one that keeps no bytes of plans in memory
    /// ([`VaultOptions::memory`] with zeros), because the runtime keeps plans loaded.
    #[must_use]
    pub fn vault(self, vault: VaultOptions) -> RuntimeOptions {
        RuntimeOptions { vault, ..self }
    }

    /// Whether plans that the vault lacks are built, which takes 0.3 to 1 second each. Default: no.
    #[must_use]
    pub fn build_missing(self, build: bool) -> RuntimeOptions {
        RuntimeOptions { on_miss: if build { OnMiss::Compile } else { OnMiss::Load }, ..self }
    }

    /// How plans are compiled, and so which ones are looked for. Default: as `qkvault warm` compiles them.
    #[must_use]
    pub fn compile(self, compile: CompileOptions) -> RuntimeOptions {
        RuntimeOptions { compile, ..self }
    }

    /// Most bytes of scratch memory that a plan may need. Default: no limit.
    #[must_use]
    pub fn workspace_limit(mut self, bytes: u64) -> RuntimeOptions {
        self.session.workspace_limit = Some(bytes);
        self
    }

    /// cuDNN handles that are created at once: as many as threads launch at a time. Default: 1.
    #[must_use]
    pub fn handles(mut self, handles: usize) -> RuntimeOptions {
        self.session.handles = handles;
        self
    }

    /// Plans that stay loaded when nothing else holds them, by number and by the bytes of their kernels. Default: 1,024
    /// plans and 1 GiB. Those that were used longest ago are unloaded first.
    #[must_use]
    pub fn keep(self, plans: usize, bytes: u64) -> RuntimeOptions {
        RuntimeOptions { plans, plan_bytes: bytes, ..self }
    }

    /// A manifest file in which the runtime records every attention that it is asked for and that is not refused, so
    /// that one run of a service says what to compile for the next ([`Recorder`](crate::Recorder)). What the file has
    /// stays. Default: the file that `QKVAULT_RECORD` names, else none.
    #[cfg(feature = "models")]
    #[must_use]
    pub fn record(self, file: impl Into<PathBuf>) -> RuntimeOptions {
        RuntimeOptions { record: Some(file.into()), ..self }
    }

    /// What records, in a program that cannot.
    #[cfg(not(feature = "models"))]
    pub(crate) fn recorder(&self, variable: Option<OsString>) -> Option<Recorder> {
        if variable.is_some_and(|file| !file.is_empty()) {
            tracing::warn!(
                "{RECORD_VARIABLE} is set, and nothing is recorded: qkvault was built without the feature `models`"
            );
        }
        None
    }

    /// The file to record in: the one that was given, else that of the environment.
    #[cfg(feature = "models")]
    pub(crate) fn recorder(&self, variable: Option<OsString>) -> Option<Recorder> {
        let named = variable.filter(|file| !file.is_empty()).map(PathBuf::from);
        self.record.clone().or(named).map(Recorder::new)
    }

    /// Opens the runtime.
    ///
    /// # Errors
    ///
    /// As [`Runtime::open`].
    pub fn open(self) -> Result<Runtime, Error> {
        Runtime::with(self)
    }

    /// Opens a runtime for a GPU that need not be here, by its name or the text of a profile.
    ///
    /// # Errors
    ///
    /// As [`Runtime::for_target`].
    pub fn open_for(self, gpu: &str) -> Result<Runtime, Error> {
        Runtime::elsewhere(self, gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_given_in_code_beats_the_variable_and_an_empty_one_is_none() {
        let file = |options: RuntimeOptions, variable: Option<&str>| {
            options.recorder(variable.map(Into::into)).map(|recorder| recorder.path().to_path_buf())
        };
        let given = || Runtime::options().record("given.toml");
        assert_eq!(file(given(), Some("set.toml")), Some("given.toml".into()));
        assert_eq!(file(Runtime::options(), Some("set.toml")), Some("set.toml".into()));
        assert_eq!((file(Runtime::options(), Some("")), file(Runtime::options(), None)), (None, None));
    }
}
