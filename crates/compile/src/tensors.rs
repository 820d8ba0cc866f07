//! Plans of what is no attention and that kernels compute: conversions to and from 8 bits, updates of their scales,
//! appends to caches, and combinations of tensors.

use qkvault_graph::{ValidCacheAppend, ValidCombination, ValidConversion, ValidScaleUpdate};
use qkvault_kernels::{generate_append, generate_combination, generate_conversion, generate_scale_update};

use crate::kernels::{KERNELS, KernelPlan};
use crate::planner::{OnMiss, PlanError, Planner, Resolution};

impl Planner {
    /// The plan of a conversion for GPUs of a compute capability (major * 10 + minor): from the vault, or compiled by
    /// NVRTC and stored there, as [`Planner::kernels`] does. It needs no GPU and no cuDNN.
    ///
    /// A GPU without instructions for 8 bits is a refusal in the [`Resolution`], with the reason.
    ///
    /// # Errors
    ///
    /// As [`Planner::kernels`].
    pub fn conversion(&self, of: &ValidConversion, sm: u32, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        match generate_conversion(of, sm) {
            Ok(made) => self.kernels(&KernelPlan { of, made }, on_miss),
            Err(refusal) => Ok(Resolution::refused(of.key(), KERNELS, refusal)),
        }
    }

    /// The plan of an update of scales for GPUs of a compute capability (major * 10 + minor): from the vault, or
    /// compiled by NVRTC and stored there, as [`Planner::kernels`] does. It needs no GPU and no cuDNN.
    ///
    /// A GPU without instructions for 8 bits is a refusal in the [`Resolution`], with the reason.
    ///
    /// # Errors
    ///
    /// As [`Planner::kernels`].
    pub fn scale_update(&self, of: &ValidScaleUpdate, sm: u32, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        match generate_scale_update(of, sm) {
            Ok(made) => self.kernels(&KernelPlan { of, made }, on_miss),
            Err(refusal) => Ok(Resolution::refused(of.key(), KERNELS, refusal)),
        }
    }

    /// The plan of an append to caches for GPUs of a compute capability (major * 10 + minor): from the vault, or
    /// compiled by NVRTC and stored there, as [`Planner::kernels`] does. It needs no GPU and no cuDNN. One plan serves
    /// pools of all sizes.
    ///
    /// A GPU without instructions for 8 bits, or an append that the kernel does not take, is a refusal in the
    /// [`Resolution`], with the reason.
    ///
    /// # Errors
    ///
    /// As [`Planner::kernels`].
    pub fn append(&self, of: &ValidCacheAppend, sm: u32, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        match generate_append(of, sm) {
            Ok(made) => self.kernels(&KernelPlan { of, made }, on_miss),
            Err(refusal) => Ok(Resolution::refused(of.key(), KERNELS, refusal)),
        }
    }

    /// The plan of a combination for GPUs of a compute capability (major * 10 + minor): from the vault, or compiled by
    /// NVRTC and stored there, as [`Planner::kernels`] does. It needs no GPU and no cuDNN.
    ///
    /// # Errors
    ///
    /// As [`Planner::kernels`].
    pub fn combination(&self, of: &ValidCombination, sm: u32, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        self.kernels(&KernelPlan { of, made: generate_combination(of, sm) }, on_miss)
    }
}
