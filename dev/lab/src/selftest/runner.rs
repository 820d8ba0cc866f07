//! The compiler of a self-test, and its GPU session if there is one.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{Compiler, Planner};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_exec::{Device, Session, cudarc};
use qkvault_graph::Attention;
use qkvault_sys::Library;
use serde_json::{Value, json};

use super::SelftestArgs;
use super::judge::{self, CaseVerdict, LaunchCase};
use qkvault_cli::Globals;
use qkvault_cli::target::TargetArgs;

/// Prepares and judges cases.
pub(super) struct Runner<'a> {
    args: &'a SelftestArgs,
    planner: Planner,
    target: Target,
    options: CompileOptions,
    /// The GPU session; `None` for a run without a GPU.
    gpu: Option<(Session, Arc<CudaStream>)>,
    /// The description of the machine in records.
    pub(super) place: Value,
}

impl Runner<'_> {
    pub(super) fn open<'a>(globals: &Globals, args: &'a SelftestArgs) -> anyhow::Result<Runner<'a>> {
        let search = args.library.search()?;
        let vault = match &globals.vault {
            Some(folder) => Vault::open(VaultOptions::in_folder(folder))?,
            None => Vault::in_memory(VaultOptions::new()),
        };
        // Launches need the driver. A dry run does not load it, so that it can compile for any GPU.
        let compiler =
            if args.dry.is_some() { Compiler::open_compile_only(&search)? } else { Compiler::open(&search)? };
        let (gpu, target, name) = match &args.dry {
            None => {
                let device = Device::open(args.device)?;
                let session = Session::open(&device, &Library::open(&search)?)?;
                let (target, name) = (session.target()?.clone(), device.name().to_owned());
                (Some((session, device.context().new_stream()?)), target, name)
            }
            Some(dry) => {
                let target = TargetArgs { target: dry.clone() }.target(&compiler)?;
                (None, target, "none: only what needs no GPU is done".to_owned())
            }
        };
        let library = Arc::clone(compiler.library());
        let SelftestArgs { form, without, allow, about, engine, .. } = *args;
        let allowed = allow.with(about);
        let lab = qkvault_cudnn::LabOptions { form, without, ..Default::default() };
        let options = CompileOptions { allowed, engine, lab, ..CompileOptions::default() };
        let place = json!({
            "device": name, "cudnn": library.version().to_string(), "cudnn_set": library.set().to_string(),
            "target": target.label(), "driver": target.device.driver_ver, "form": form, "without": without,
            "allowed": allowed, "engine": engine.name(),
        });
        let planner = Planner::new(vault, Some(compiler));
        Ok(Runner { args, planner, target, options, gpu, place })
    }

    /// Prepares the parts of a case that need no GPU.
    pub(super) fn prepare(&self, attention: Attention, number: u64) -> LaunchCase {
        judge::prepare(self.args, attention, number, &self.planner, &self.target, &self.options)
    }

    /// Judges a case.
    pub(super) fn judge(&self, case: &LaunchCase) -> CaseVerdict {
        match &self.gpu {
            Some((session, stream)) => judge::judge(case, session, stream, self.args.repeat),
            None => judge::dry(case),
        }
    }

    /// Plans compiled so far.
    pub(super) fn builds(&self) -> u64 {
        self.planner.vault().stats().builds
    }
}
