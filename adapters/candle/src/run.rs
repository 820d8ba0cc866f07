//! One computation: a description, tensors by role, numbers; new tensors come out, on the device of the inputs.

#[cfg(feature = "cuda")]
use candle_core::backend::BackendStorage as _;
use candle_core::{Device, Shape, Storage, Tensor};
use qkvault::RawRuntime;
use qkvault::exec::Number;
use qkvault::graph::{DType, Role};
use smallvec::SmallVec;

use crate::known::{Entry, Scalar};
use crate::{Error, Options, Sequences, cpu};

/// Inputs of a computation.
pub(crate) type Inputs<'a> = SmallVec<[(Role, &'a Tensor); 12]>;

/// An output of a computation.
#[derive(Clone, Debug)]
pub(crate) struct Out {
    pub(crate) role: Role,
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
}

/// Memory of a new output, with its shape.
pub(crate) type Made = (Storage, Shape);

/// A computation.
pub(crate) struct Run<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) options: &'a Options,
    pub(crate) inputs: Inputs<'a>,
    pub(crate) sequences: Option<&'a Sequences>,
    pub(crate) outputs: Vec<Out>,
}

impl<'a> Run<'a> {
    /// The tensors that the options have are added to the inputs.
    pub(crate) fn new(
        entry: &'a Entry,
        options: &'a Options,
        mut inputs: Inputs<'a>,
        sequences: Option<&'a Sequences>,
        outputs: Vec<Out>,
    ) -> Result<Run<'a>, Error> {
        for read in &entry.tensors {
            inputs.push((read.role, read.of(options)?));
        }
        inputs.extend(options.sink.as_ref().map(|sink| (Role::Sink, sink)));
        Ok(Run { entry, options, inputs, sequences, outputs })
    }

    /// Computes the outputs, in their order.
    pub(crate) fn compute(&self, device: &Device) -> candle_core::Result<Vec<Made>> {
        match device {
            Device::Cpu if self.options.oracle => Ok(cpu::compute(self)?),
            Device::Cpu => Err(Error::Tensor(
                "the tensors are on the CPU, where cuDNN computes nothing: move them to a GPU, or allow the slow oracle \
                 for tests with Options::cpu_oracle(true)"
                    .to_owned(),
            )
            .into()),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let made = crate::cuda::launch(self, device)?;
                if self.options.judge {
                    self.judge(&made)?;
                }
                Ok(made)
            }
            other => Err(Error::Tensor(format!(
                "the tensors are on {:?}; cuDNN computes on NVIDIA GPUs, for which this crate is built with the feature \
                 `cuda`",
                other.location()
            ))
            .into()),
        }
    }

    /// Fails unless the oracle finds what a launch wrote right. Everything is copied to the host.
    #[cfg(feature = "cuda")]
    fn judge(&self, made: &[Made]) -> candle_core::Result<()> {
        let here: Vec<(Role, Tensor)> = self
            .inputs
            .iter()
            .map(|(role, tensor)| Ok((*role, tensor.to_device(&Device::Cpu)?)))
            .collect::<candle_core::Result<_>>()?;
        let inputs = here.iter().map(|(role, tensor)| (*role, tensor)).collect();
        let run = Run { inputs, outputs: self.outputs.clone(), ..*self };
        let written = made.iter().map(|(storage, _)| match storage {
            Storage::Cuda(storage) => storage.to_cpu_storage(),
            _ => Err(Error::Tensor("an output is not on the GPU".to_owned()).into()),
        });
        Ok(cpu::judge(&run, &written.collect::<candle_core::Result<Vec<_>>>()?)?)
    }

    /// The value of a scalar.
    pub(crate) fn number(&self, scalar: &Scalar) -> Number {
        match scalar {
            Scalar::Scale => Number::F32(self.options.scale.unwrap_or_else(|| self.entry.valid.default_scale())),
            // Larger ones are refused before (`Options::check_origins`).
            Scalar::Origin(at) => {
                let position = self.options.origins.map_or(0, |origins| origins[*at]);
                Number::I32(i32::try_from(position).unwrap_or(i32::MAX))
            }
            Scalar::Named(name) => {
                let given = self.options.scalars.iter().find(|(own, _)| own == name);
                given.map_or(Number::F32(f32::NAN), |(_, value)| *value)
            }
        }
    }
}

/// Where plans come from if the options do not say it: the user's vault.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "there is no GPU"))]
pub(crate) fn runtime(options: &Options) -> Result<RawRuntime, Error> {
    static USUAL: std::sync::OnceLock<RawRuntime> = std::sync::OnceLock::new();
    if let Some(own) = &options.runtime {
        return Ok(own.clone());
    }
    match USUAL.get() {
        Some(usual) => Ok(usual.clone()),
        None => {
            let opened = qkvault::Runtime::options().open_raw()?;
            Ok(USUAL.get_or_init(|| opened).clone())
        }
    }
}
