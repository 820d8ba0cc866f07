//! The scales and largest magnitudes of an 8-bit training on the GPU, for its launches and its conversions.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};
use qkvault_graph::{Fp8, HISTORY_HEAD, Role, Scaled, Valid, ValidScaleUpdate, operands};

use crate::driver::words::of_cudarc;
use crate::raw::launch_error::LaunchError;
use crate::safe::args::Args;
use crate::safe::plan::LoadedPlan;
use crate::safe::train_error::TrainStepError;
use crate::training::{ScaleRecipe, Scales, Training};

/// One number on the GPU for each tensor.
type Cells = BTreeMap<Scaled, CudaSlice<f32>>;

/// What a layer in 8 bits keeps beside its [`SavedForBackward`](crate::SavedForBackward): scales, descales, largest
/// magnitudes and their history, all on the GPU, and the kernel by which the next scales follow from them.
///
/// A step quantizes Q, K and V ([`Fp8Training::quantize`] gives a conversion its scales), launches the forward with
/// [`Fp8Training::forward`], quantizes dO, launches the backward with [`Fp8Training::backward`], and then calls
/// [`Fp8Training::update`]. Both passes of a step have the same scales. Nothing of it waits for the host, so a captured
/// step holds all of it.
///
/// ```no_run
/// # use qkvault_exec::{Args, Fp8Training, LoadedPlan, SavedForBackward, ScaleRecipe, Scales, Training, TrainingPair};
/// # use qkvault_exec::cudarc::driver::{CudaSlice, CudaStream};
/// # use qkvault_graph::{Attention, DType, Fp8, Role, Scaled};
/// # type Bytes = CudaSlice<u8>;
/// # fn run(
/// #     session: &qkvault_exec::Session, planner: &qkvault_compile::Planner, on_miss: qkvault_compile::OnMiss,
/// #     pair: &TrainingPair, saved: &mut SavedForBackward, stream: &std::sync::Arc<CudaStream>,
/// #     to_8_bits: &LoadedPlan,
/// #     wide: &CudaSlice<half::bf16>, [q, k, v, o]: [&mut Bytes; 4],
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let attention = Attention::bshd(2, (8, 8), (512, 512), 128, DType::BF16).causal();
/// let training = Training::fp8(&attention, Fp8::Delayed)?;
/// let recipe = ScaleRecipe::default();
/// let update = Scales::new(&training, recipe).update().expect("8 bits");
/// let update = session.prepare_scale_update(planner, &update, on_miss)?;
/// let mut scales = Fp8Training::new(&training, recipe, Some(&update), stream)?;
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
    /// What updates the scales that no conversion writes, if there are any.
    updater: Option<Updater>,
    /// Whether conversions compute the scales of Q, K, V and dO.
    current: bool,
    /// Scales and amaxes that the forward and the backward bind.
    roles: [Vec<Role>; 2],
    scale: Cells,
    descale: Cells,
    amax: Cells,
}

#[derive(Debug)]
struct Updater {
    plan: LoadedPlan,
    of: ValidScaleUpdate,
    history: CudaSlice<f32>,
}

impl Fp8Training {
    /// Allocates one number for each scale, descale and amax of a training, with the scales before the first step, and
    /// an empty history. `plan` is that of [`Scales::update`] with the same recipe, or `None` where that is. Do not
    /// call it while a stream is captured.
    ///
    /// # Errors
    ///
    /// [`TrainStepError::OtherUpdate`] for another plan; [`TrainStepError::Driver`] without memory.
    pub fn new(
        training: &Training,
        recipe: ScaleRecipe,
        plan: Option<&LoadedPlan>,
        stream: &Arc<CudaStream>,
    ) -> Result<Fp8Training, TrainStepError> {
        let scales = Scales::new(training, recipe);
        let update = scales.update();
        if update.as_ref().map(ValidScaleUpdate::key) != plan.map(|plan| plan.facts().graph_key) {
            let given = plan.map_or_else(|| "no plan".to_owned(), |plan| plan.facts().what.clone());
            return Err(TrainStepError::OtherUpdate { given });
        }
        let updater = |(plan, of): (&LoadedPlan, ValidScaleUpdate)| {
            let history = stream.alloc_zeros(of.history_len())?;
            Ok(Updater { plan: plan.clone(), of, history })
        };
        let roles = |of: &Valid| {
            let all = operands(of).into_iter().map(|operand| operand.role);
            all.filter(|role| matches!(role, Role::ScaleOf(_) | Role::Descale(_) | Role::Amax(_))).collect()
        };
        let numbers = |of: &dyn Fn(Scaled) -> f32| {
            let one = |which| Ok((which, stream.clone_htod(&[of(which)])?));
            scales.tensors().map(one).collect::<Result<Cells, DriverError>>().map_err(driver)
        };
        Ok(Fp8Training {
            updater: plan.zip(update).map(updater).transpose().map_err(driver)?,
            current: training.forward().fp8 == Some(Fp8::Current),
            roles: [roles(training.forward()), roles(training.backward())],
            scale: numbers(&|which| scales.number(Role::ScaleOf(which)).unwrap_or(1.0))?,
            descale: numbers(&|which| scales.number(Role::Descale(which)).unwrap_or(1.0))?,
            amax: numbers(&|_| 0.0)?,
        })
    }

    /// The scales of the next launches, read from the GPU, for which it waits.
    ///
    /// # Errors
    ///
    /// [`TrainStepError::Driver`], as while the stream is captured.
    pub fn scales(&self, stream: &Arc<CudaStream>) -> Result<BTreeMap<Scaled, f32>, TrainStepError> {
        let one = |(which, number): (&Scaled, &CudaSlice<f32>)| {
            let read = stream.clone_dtoh(number).map_err(driver)?;
            stream.synchronize().map_err(driver)?;
            Ok((*which, read.first().copied().unwrap_or(f32::NAN)))
        };
        self.scale.iter().map(one).collect()
    }

    /// How many steps had a largest magnitude that was infinite or NaN, for each tensor that had some, read from the
    /// GPU, for which it waits. Such a magnitude counts as none; more than a few are a training that diverges.
    ///
    /// # Errors
    ///
    /// [`TrainStepError::Driver`], as while the stream is captured.
    pub fn without_magnitude(&self, stream: &Arc<CudaStream>) -> Result<BTreeMap<Scaled, u32>, TrainStepError> {
        let Some(Updater { of, history, .. }) = &self.updater else { return Ok(BTreeMap::new()) };
        let history = stream.clone_dtoh(history).map_err(driver)?;
        stream.synchronize().map_err(driver)?;
        let mut at = 1;
        let counts = of.tensors.iter().map(|tensor| {
            let count = history.get(at).copied().unwrap_or(0.0) as u32;
            at += HISTORY_HEAD + tensor.history as usize;
            (tensor.of, count)
        });
        Ok(counts.filter(|(_, count)| *count > 0).collect())
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
        let Fp8Training { roles, scale, descale, amax, .. } = self;
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

    /// Adds the largest magnitudes of a step to the history, and writes the scales of the next one: one launch, for
    /// which nothing waits. Call it once, after the backward.
    ///
    /// # Errors
    ///
    /// [`TrainStepError::Launch`].
    pub fn update(&mut self, stream: &Arc<CudaStream>) -> Result<(), TrainStepError> {
        self.run(|plan, args| plan.launch(stream, args))
    }

    /// Records [`Fp8Training::update`] into the capture of a stream.
    ///
    /// # Safety
    ///
    /// This value lives as long as the graph is launched.
    ///
    /// # Errors
    ///
    /// [`TrainStepError::Launch`].
    pub unsafe fn update_captured(&mut self, stream: &Arc<CudaStream>) -> Result<(), TrainStepError> {
        // SAFETY: the caller's promise; the memory is this value's own.
        self.run(|plan, args| unsafe { plan.launch_captured(stream, args) })
    }

    fn run<'a>(
        &'a mut self,
        launch: impl FnOnce(&'a LoadedPlan, Args<'a>) -> Result<(), LaunchError>,
    ) -> Result<(), TrainStepError> {
        let Fp8Training { updater, scale, descale, amax, .. } = self;
        let Some(Updater { plan, of, history }) = updater else { return Ok(()) };
        let follows = |which: &Scaled| of.tensors.iter().any(|tensor| tensor.of == *which);
        let of_amax = amax.iter().filter(|(which, _)| follows(which));
        let args = of_amax.fold(Args::new(), |args, (which, number)| args.tensor(Role::Amax(*which), number));
        let of_scale = scale.iter_mut().filter(|(which, _)| follows(which));
        let args = of_scale.fold(args, |args, (which, number)| args.tensor_mut(Role::ScaleOf(*which), number));
        let of_descale = descale.iter_mut().filter(|(which, _)| follows(which));
        let args = of_descale.fold(args, |args, (which, number)| args.tensor_mut(Role::Descale(*which), number));
        Ok(launch(plan, args.tensor_mut(Role::AmaxHistory, history))?)
    }
}

fn driver(error: DriverError) -> TrainStepError {
    TrainStepError::Driver { step: "the scales of a training", detail: of_cudarc(&error) }
}
