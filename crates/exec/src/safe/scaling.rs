//! The scales and largest magnitudes of an 8-bit training on the GPU, for its launches and its conversions.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};
use qkvault_graph::{Fp8, Role, Scaled, Valid, operands};

use crate::driver::words::of_cudarc;
use crate::safe::args::Args;
use crate::safe::train_error::TrainStepError;
use crate::training::{ScaleRecipe, Scales, Training};

/// One number on the GPU for each tensor.
type Cells = BTreeMap<Scaled, CudaSlice<f32>>;

/// What a layer in 8 bits keeps beside its [`SavedForBackward`](crate::SavedForBackward): scales, descales and largest
/// magnitudes on the GPU, and the history from which the next scales follow.
///
/// A step quantizes Q, K and V ([`Fp8Training::quantize`] gives a conversion its scales), launches the forward with
/// [`Fp8Training::forward`], quantizes dO, launches the backward with [`Fp8Training::backward`], and then calls
/// [`Fp8Training::update`]. Both passes of a step have the same scales.
///
/// ```no_run
/// # use qkvault_exec::{Args, Fp8Training, LoadedPlan, SavedForBackward, ScaleRecipe, Training, TrainingPair, cudarc};
/// # use qkvault_graph::{Attention, DType, Fp8, Role, Scaled};
/// # use cudarc::driver::{CudaSlice, CudaStream};
/// # type Bytes = CudaSlice<u8>;
/// # fn run(
/// #     pair: &TrainingPair, saved: &mut SavedForBackward, stream: &std::sync::Arc<CudaStream>,
/// #     to_8_bits: &LoadedPlan,
/// #     wide: &CudaSlice<half::bf16>, [q, k, v, o]: [&mut Bytes; 4],
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let attention = Attention::bshd(2, (8, 8), (512, 512), 128, DType::BF16).causal();
/// let training = Training::fp8(&attention, Fp8::Delayed)?;
/// let mut scales = Fp8Training::new(&training, ScaleRecipe::default(), stream)?;
///
/// let args = Args::new().tensor(Role::Wide, wide).tensor_mut(Role::Narrow, &mut *q);
/// to_8_bits.launch(stream, scales.quantize(Scaled::Q, args))?;
/// // K and V likewise.
/// pair.forward(saved, scales.forward(Args::new().q(&*q).k(&*k).v(&*v).o(o)), stream)?;
/// // dO, and the backward; then:
/// scales.update(stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Fp8Training {
    scales: Scales,
    /// Whether conversions compute the scales of Q, K, V and dO.
    current: bool,
    /// Scales and amaxes that the forward and the backward bind.
    roles: [Vec<Role>; 2],
    scale: Cells,
    descale: Cells,
    amax: Cells,
}

impl Fp8Training {
    /// Allocates one number for each scale, descale and amax of a training, with the scales before the first step. Do
    /// not call it while a stream is captured.
    ///
    /// # Errors
    ///
    /// [`TrainStepError::Driver`] without memory.
    pub fn new(
        training: &Training,
        recipe: ScaleRecipe,
        stream: &Arc<CudaStream>,
    ) -> Result<Fp8Training, TrainStepError> {
        let scales = Scales::new(training, recipe);
        let roles = |of: &Valid| {
            let all = operands(of).into_iter().map(|operand| operand.role);
            all.filter(|role| matches!(role, Role::ScaleOf(_) | Role::Descale(_) | Role::Amax(_))).collect()
        };
        let numbers = |of: &dyn Fn(Scaled) -> f32| {
            let one = |which| Ok((which, stream.clone_htod(&[of(which)])?));
            scales.tensors().map(one).collect::<Result<Cells, DriverError>>().map_err(driver)
        };
        Ok(Fp8Training {
            current: training.forward().fp8 == Some(Fp8::Current),
            roles: [roles(training.forward()), roles(training.backward())],
            scale: numbers(&|which| scales.number(Role::ScaleOf(which)).unwrap_or(1.0))?,
            descale: numbers(&|which| scales.number(Role::Descale(which)).unwrap_or(1.0))?,
            amax: numbers(&|_| 0.0)?,
            scales,
        })
    }

    /// The scales of the next launches, and their history.
    #[must_use]
    pub const fn scales(&self) -> &Scales {
        &self.scales
    }

    /// Adds the scale, descale and amax of a tensor to the arguments of the conversion to 8 bits: of
    /// `ConversionKind::Delayed` for a training with delayed scaling, of `ConversionKind::Current` for current scaling.
    /// A tensor without scales adds nothing.
    #[must_use]
    pub fn quantize<'a>(&'a mut self, which: Scaled, args: Args<'a>) -> Args<'a> {
        let numbers = (self.scale.get_mut(&which), self.descale.get_mut(&which), self.amax.get_mut(&which));
        let (Some(scale), Some(descale), Some(amax)) = numbers else { return args };
        let args = if self.current {
            args.tensor_mut(Role::NarrowScale, scale)
        } else {
            args.tensor(Role::NarrowScale, &*scale)
        };
        args.tensor_mut(Role::NarrowDescale, descale).tensor_mut(Role::NarrowAmax, amax)
    }

    /// Adds the descale of an output in 8 bits (O, dQ, dK or dV) to the arguments of the conversion from 8 bits.
    #[must_use]
    pub fn dequantize<'a>(&'a self, which: Scaled, args: Args<'a>) -> Args<'a> {
        match self.descale.get(&which) {
            Some(descale) => args.tensor(Role::NarrowDescale, descale),
            None => args,
        }
    }

    /// Adds the scales and amaxes of the forward to its arguments.
    #[must_use]
    pub fn forward<'a>(&'a mut self, args: Args<'a>) -> Args<'a> {
        self.bind(0, args)
    }

    /// Adds the scales and amaxes of the backward to its arguments.
    #[must_use]
    pub fn backward<'a>(&'a mut self, args: Args<'a>) -> Args<'a> {
        self.bind(1, args)
    }

    fn bind<'a>(&'a mut self, pass: usize, args: Args<'a>) -> Args<'a> {
        let Fp8Training { scales: _, current: _, roles, scale, descale, amax } = self;
        let (scale, descale, roles) = (&*scale, &*descale, &roles[pass]);
        let inputs = roles.iter().filter_map(|role| match role {
            Role::ScaleOf(which) => Some((*role, scale.get(which)?)),
            Role::Descale(which) => Some((*role, descale.get(which)?)),
            _ => None,
        });
        let args = inputs.fold(args, |args, (role, number)| args.tensor(role, number));
        let outputs = amax.iter_mut().filter(|(which, _)| roles.contains(&Role::Amax(**which)));
        outputs.fold(args, |args, (which, number)| args.tensor_mut(Role::Amax(*which), number))
    }

    /// Reads the largest magnitudes of a step, and writes the scales of the next one. Call it once, after the backward.
    ///
    /// It waits for the stream and copies some numbers one by one, which takes about 0.2 ms a layer. Call it less often
    /// where that is too much: scales then change less often.
    ///
    /// # Errors
    ///
    /// [`TrainStepError::Driver`]. The scales on the GPU may then be those of both steps.
    pub fn update(&mut self, stream: &Arc<CudaStream>) -> Result<(), TrainStepError> {
        for (which, number) in &self.amax {
            let seen = stream.clone_dtoh(number).map_err(driver)?;
            stream.synchronize().map_err(driver)?;
            if let [amax] = seen[..] {
                self.scales.observe(*which, amax);
            }
        }
        for (numbers, role) in
            [(&mut self.scale, Role::ScaleOf as fn(Scaled) -> Role), (&mut self.descale, Role::Descale)]
        {
            for (which, number) in numbers {
                let Some(next) = self.scales.number(role(*which)) else { continue };
                stream.memcpy_htod(&[next], number).map_err(driver)?;
            }
        }
        // The host's numbers are copied.
        stream.synchronize().map_err(driver)
    }
}

fn driver(error: DriverError) -> TrainStepError {
    TrainStepError::Driver { step: "the scales of a training", detail: of_cudarc(&error) }
}
