//! Where kernels look for plans, what they may do, and whom they tell of plans that they built.

use std::ffi::c_char;
use std::sync::{PoisonError, RwLock};

use qkvault::cache::Source;
use qkvault::{RawReady, RawRuntime, Runtime};

use crate::context::qkv_context;
use crate::handle::borrow;
use crate::status::{CallFailure, c_string, guarded};

/// Gets the attention of a plan that a call built, and how many milliseconds that took.
pub type BuildCallback = extern "C" fn(*const c_char, u32);

/// What is done for tensors on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CpuTensors {
    Refused,
    /// The oracle computes.
    Oracle,
    /// Outputs are made and nothing is computed: for measuring what calls cost.
    Nothing,
}

#[derive(Clone)]
pub(super) struct CallContext {
    pub(super) runtime: RawRuntime,
    pub(super) cpu: CpuTensors,
    told: Option<BuildCallback>,
}

static CHOSEN: RwLock<Option<CallContext>> = RwLock::new(None);

impl CallContext {
    pub(super) fn tell(&self, ready: &RawReady) {
        if let (Some(told), Some(Source::Built)) = (self.told, ready.source()) {
            told(c_string(ready.facts().what.clone()).as_ptr(), ready.facts().compile_ms);
        }
    }
}

/// What was chosen last; else the vault of the environment, without building and without the CPU.
pub(super) fn chosen() -> Result<CallContext, CallFailure> {
    if let Some(chosen) = &*CHOSEN.read().unwrap_or_else(PoisonError::into_inner) {
        return Ok(chosen.clone());
    }
    let chosen = CallContext { runtime: Runtime::options().open_raw()?, cpu: CpuTensors::Refused, told: None };
    Ok(CHOSEN.write().unwrap_or_else(PoisonError::into_inner).get_or_insert(chosen).clone())
}

/// Chooses the context that PyTorch's operators use, which stays open for them. `cpu` is 1 if the oracle computes
/// attentions of tensors on the CPU, in float64 and slowly, for tests; 2 if outputs are made and nothing is computed,
/// for measuring what calls cost; else 0. `told` may be null, or a function that is called with every plan that a call
/// builds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_torch_use(context: *const qkv_context, cpu: i32, told: Option<BuildCallback>) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a context.
        let runtime = unsafe { borrow(context) }?.runtime.clone();
        let cpu = match cpu {
            0 => CpuTensors::Refused,
            1 => CpuTensors::Oracle,
            2 => CpuTensors::Nothing,
            _ => return Err(CallFailure::argument(format!("cpu is {cpu}; give 0, 1 or 2"))),
        };
        *CHOSEN.write().unwrap_or_else(PoisonError::into_inner) = Some(CallContext { runtime, cpu, told });
        super::table::forget();
        Ok(())
    })
}
