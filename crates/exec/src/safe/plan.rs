//! A plan on a device, with the names and constants of its description.

use std::sync::Arc;

use qkvault_compile::PlanFacts;
use qkvault_graph::{Role, Valid};

use crate::raw;
use crate::safe::constants::{BoundConstant, SliceConstants};
use crate::safe::device::Device;

/// A plan on a device. Cheap to clone; clones share one plan, and so may threads: see [`raw::RawPlan`].
///
/// ```no_run
/// # use std::sync::Arc;
/// # use qkvault_exec::{Args, LoadedPlan, cudarc::driver::{CudaSlice, CudaStream}};
/// # type Slice = CudaSlice<half::bf16>;
/// # type Done = Result<(), Box<dyn std::error::Error>>;
/// # fn run(plan: &LoadedPlan, stream: &Arc<CudaStream>, [q, k, v]: [&Slice; 3], o: &mut Slice) -> Done {
/// println!("{} bytes of scratch memory", plan.workspace());
/// plan.launch(stream, Args::new().q(q).k(k).v(v).o(&mut *o))?;
/// // Bound once, a launch costs less still.
/// let mut bound = plan.bind(Args::new().q(q).k(k).v(v).o(o).scale(0.125), stream)?;
/// bound.launch(stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LoadedPlan {
    raw: raw::RawPlan,
    device: Device,
    constants: Arc<[BoundConstant]>,
    /// Keeps the memory of the constants.
    _memory: Arc<SliceConstants>,
    attention: Option<Valid>,
}

impl LoadedPlan {
    pub(crate) fn new(
        raw: raw::RawPlan,
        device: &Device,
        memory: &Arc<SliceConstants>,
        constants: Vec<BoundConstant>,
        attention: Option<Valid>,
    ) -> LoadedPlan {
        let (device, _memory) = (device.clone(), Arc::clone(memory));
        LoadedPlan { raw, device, constants: constants.into(), _memory, attention }
    }

    pub(crate) const fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn constants(&self) -> &[BoundConstant] {
        &self.constants
    }

    /// The attention that the plan computes, with the names of its operands; `None` for a plan of
    /// [`Session::load`](crate::Session::load).
    #[must_use]
    pub const fn attention(&self) -> Option<&Valid> {
        self.attention.as_ref()
    }

    /// Loads the plan's kernels onto the GPU now, so that its first launch takes no longer than later ones: the driver
    /// loads them at the first launch otherwise, which takes about a millisecond. Launches nothing.
    ///
    /// Do not call it on a thread that captures a stream.
    ///
    /// # Errors
    ///
    /// What the driver or cuDNN could not do. The plan can be launched all the same.
    pub fn load_kernels(&self) -> Result<(), String> {
        self.raw.load_kernels()
    }

    /// The facts of the plan.
    #[must_use]
    pub fn facts(&self) -> &PlanFacts {
        self.raw.facts()
    }

    /// Bytes of scratch memory that a launch needs.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        self.raw.workspace()
    }

    /// Bytes of the plan's constant operands on the GPU (ALiBi slopes).
    #[must_use]
    pub fn constant_bytes(&self) -> u64 {
        self.constants.iter().map(|constant| constant.bytes).sum()
    }

    /// Whether this role is a constant operand of the plan, which need not be bound.
    #[must_use]
    pub fn provides(&self, role: Role) -> bool {
        self.constants.iter().any(|constants| constants.role == role)
    }

    /// The plan of the raw layer.
    #[must_use]
    pub fn raw(&self) -> &raw::RawPlan {
        &self.raw
    }
}
