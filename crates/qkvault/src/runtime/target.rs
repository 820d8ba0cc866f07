//! What a runtime answers of its GPU or target without launching anything.

use qkvault_compile::Resolution;
use qkvault_cudnn::Target;
use qkvault_graph::Valid;

use super::{Place, Runtime};
use crate::Error;
#[cfg(doc)]
use crate::ErrorKind;
use crate::check::Checked;
use crate::offline::{Offline, rules_target};

impl Runtime {
    /// What this GPU, or the target that the runtime was opened for, says of an attention: the engine, the expected
    /// time and what bounds it; or the reasons and the nearest change. A target needs no cuDNN; on a GPU the first call
    /// looks for it.
    ///
    /// # Errors
    ///
    /// As [`Runtime::target`], on a GPU.
    pub fn check(&self, attention: &Valid) -> Result<Checked, Error> {
        let Offline { planner, compile, .. } = &self.inner.offline;
        let by_rules;
        let target = match &self.inner.place {
            Place::Here(gpu) => gpu.session.target()?,
            Place::Elsewhere(gpu, _) => {
                by_rules = rules_target(gpu, None)?;
                &by_rules
            }
        };
        Ok(Checked::on(planner.engines(), attention, target, *compile))
    }

    /// The plan of an attention for this runtime's GPU or target, if the vault has it: nothing is compiled or loaded.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Missing`] if the vault lacks it; [`ErrorKind::Refused`] with the reasons; as [`Runtime::target`].
    pub fn look(&self, attention: &Valid) -> Result<Resolution, Error> {
        self.inner.offline.look(attention, self.target()?)
    }

    /// The target of cuDNN's plans for this GPU, or for the one that the runtime was opened for. The first call looks
    /// for cuDNN.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Library`] without a cuDNN, [`ErrorKind::Build`] if none compiles here; [`ErrorKind::Device`] if it
    /// does not work on this GPU.
    pub fn target(&self) -> Result<&Target, Error> {
        match &self.inner.place {
            Place::Here(gpu) => Ok(gpu.session.target()?),
            Place::Elsewhere(gpu, target) => match target.get() {
                Some(target) => Ok(target),
                None => self.inner.offline.compile_target(gpu).map(|made| target.get_or_init(|| made)),
            },
        }
    }
}
