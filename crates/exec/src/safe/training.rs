//! Pairs of loaded plans: a forward that saves what its backward needs, and that backward.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};
use qkvault_compile::{OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_graph::{PlanKey, Role};

use crate::driver::words::of_cudarc;
use crate::find::PrepareError;
use crate::raw::launch_error::LaunchError;
use crate::safe::args::{Args, Which};
use crate::safe::device::ready;
use crate::safe::plan::LoadedPlan;
use crate::safe::saved::{fingerprints, put};
use crate::safe::session::Session;
use crate::safe::train_error::{CHECK, TrainStepError};
use crate::training::{ForwardRun, Training, TrainingError, forward_run};

/// The two loaded plans of a training step. Layers of one shape share a pair; each layer has its own
/// [`SavedForBackward`].
///
/// ```no_run
/// # use qkvault_exec::{Args, Session, TrainStepError, Training, cudarc};
/// # use qkvault_cudnn::CompileOptions;
/// # use qkvault_graph::{Attention, BackwardOptions, DType};
/// # use qkvault_compile::{OnMiss, Planner};
/// # use std::{error::Error, sync::Arc};
/// # fn run(
/// #     session: &Session, planner: &Planner, stream: &Arc<cudarc::driver::CudaStream>,
/// # ) -> Result<(), Box<dyn Error>> {
/// let attention = Attention::bshd(2, (8, 8), (512, 512), 64, DType::BF16).causal();
/// let training = Training::for_attention(&attention, BackwardOptions::default())?;
/// let pair = session.prepare_training(planner, &training, &CompileOptions::default(), OnMiss::Load)?;
/// let zeros = || stream.alloc_zeros::<half::bf16>(2 * 512 * 8 * 64);
/// let (q, k, v, mut o) = (zeros()?, zeros()?, zeros()?, zeros()?);
/// let (d_o, mut d_q, mut d_k, mut d_v) = (zeros()?, zeros()?, zeros()?, zeros()?);
///
/// let mut saved = pair.saved(stream)?;
/// pair.forward(&mut saved, Args::new().q(&q).k(&k).v(&v).o(&mut o), stream)?;
/// // Compute the loss and dO here. Scalars (scale, softcap, dropout's seed) and Stats are those of the forward.
/// let gradients = Args::new().q(&q).k(&k).v(&v).saved_o(&o).d_o(&d_o).d_q(&mut d_q).d_k(&mut d_k).d_v(&mut d_v);
/// pair.backward(&mut saved, gradients, stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TrainingPair {
    forward: LoadedPlan,
    backward: LoadedPlan,
    checked: bool,
}

/// The operands and scalars that a forward saves for its backward: Stats, the seed and offset of dropout, and the
/// scalars.
///
/// The caller owns the other operands (Q, K, V, O and those of the score expression) and must not change them before
/// the backward; [`TrainingPair::checked`] checks that.
#[derive(Debug)]
pub struct SavedForBackward {
    stats: CudaSlice<f32>,
    seed: CudaSlice<i64>,
    offset: CudaSlice<i64>,
    run: Option<ForwardRun>,
    of: PlanKey,
    what: String,
}

impl Session {
    /// Looks up both plans of a training step and loads them, as [`Session::prepare`] does for one plan.
    ///
    /// # Errors
    ///
    /// [`PrepareError`] of the forward, else of the backward.
    pub fn prepare_training(
        &self,
        planner: &Planner,
        training: &Training,
        options: &CompileOptions,
        on_miss: OnMiss,
    ) -> Result<TrainingPair, PrepareError> {
        Ok(TrainingPair::new(
            self.prepare(planner, training.forward(), options, on_miss)?.plan,
            self.prepare(planner, training.backward(), options, on_miss)?.plan,
        ))
    }
}

impl TrainingPair {
    /// The pair of two loaded plans, which must be those of the training.
    ///
    /// # Errors
    ///
    /// [`TrainingError::OtherPlan`] for a plan of another attention.
    pub fn from_plans(
        training: &Training,
        forward: &LoadedPlan,
        backward: &LoadedPlan,
    ) -> Result<TrainingPair, TrainingError> {
        for (plan, attention) in [(forward, training.forward()), (backward, training.backward())] {
            if plan.attention() != Some(attention) {
                return Err(TrainingError::OtherPlan {
                    plan: plan.facts().what.clone(),
                    needed: attention.to_string(),
                });
            }
        }
        Ok(TrainingPair::new(forward.clone(), backward.clone()))
    }

    fn new(forward: LoadedPlan, backward: LoadedPlan) -> TrainingPair {
        let checked = std::env::var_os(CHECK).is_some_and(|value| value == "1");
        TrainingPair { forward, backward, checked }
    }

    /// The plan of the forward, for launches without the pair.
    #[must_use]
    pub fn forward_plan(&self) -> &LoadedPlan {
        &self.forward
    }

    /// The plan of the backward.
    #[must_use]
    pub fn backward_plan(&self) -> &LoadedPlan {
        &self.backward
    }

    /// Bytes of scratch memory that the pair needs: those of the plan that needs more.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        self.forward.workspace().max(self.backward.workspace())
    }

    /// Turns a check on or off: that inputs, O and Stats did not change between the forward and the backward, and that
    /// scales of 8-bit operands are positive finite numbers ([`LoadedPlan::verify_scales`]). An operand that the two
    /// passes have in different types is not compared.
    /// `QKVAULT_CHECK_SAVED=1` turns it on too.
    ///
    /// Use it for debugging. Each pass then waits for the GPU, copies these operands to the host and hashes them, which
    /// takes milliseconds and cannot be captured.
    #[must_use]
    pub fn checked(self, checked: bool) -> TrainingPair {
        TrainingPair { checked, ..self }
    }

    /// Allocates memory for what the forward of one layer saves. Do not call it while a stream is captured.
    ///
    /// # Errors
    ///
    /// [`TrainStepError::Driver`] without memory.
    pub fn saved(&self, stream: &Arc<CudaStream>) -> Result<SavedForBackward, TrainStepError> {
        let driver =
            |error: DriverError| TrainStepError::Driver { step: "memory for what is saved", detail: of_cudarc(&error) };
        let bytes = self.forward.facts().bindings.iter().find(|b| b.role == Role::Stats).map_or(4, |b| b.bytes);
        let length = usize::try_from(bytes / 4).unwrap_or(usize::MAX);
        Ok(SavedForBackward {
            // SAFETY: every bit pattern is a float, and the forward writes them before the backward reads them.
            stats: unsafe { stream.alloc(length) }.map_err(driver)?,
            seed: stream.alloc_zeros(1).map_err(driver)?,
            offset: stream.alloc_zeros(1).map_err(driver)?,
            run: None,
            of: self.forward.facts().key,
            what: self.forward.facts().what.clone(),
        })
    }

    /// Launches the forward, and saves in `saved` what the backward needs.
    ///
    /// Leave out the log-sum-exp (Stats), which `saved` has. With dropout, give seed and offset ([`Args::dropout`]).
    ///
    /// # Errors
    ///
    /// [`TrainStepError`] if `saved` is of another pair, the arguments have errors, or the launch fails.
    pub fn forward<'a>(
        &self,
        saved: &'a mut SavedForBackward,
        args: Args<'a>,
        stream: &'a Arc<CudaStream>,
    ) -> Result<(), TrainStepError> {
        self.run_forward(saved, args, stream, false, |args| self.forward.launch(stream, args))
    }

    /// Records the forward into the capture of a stream.
    ///
    /// # Safety
    ///
    /// As for [`LoadedPlan::launch_captured`], for the operands, `saved` and the plans. The graph has the scalars and
    /// the seed that this call has.
    ///
    /// # Errors
    ///
    /// [`TrainStepError`], as for [`TrainingPair::forward`].
    pub unsafe fn forward_captured<'a>(
        &self,
        saved: &'a mut SavedForBackward,
        args: Args<'a>,
        stream: &'a Arc<CudaStream>,
    ) -> Result<(), TrainStepError> {
        // SAFETY: the caller's promise.
        self.run_forward(saved, args, stream, true, |args| unsafe { self.forward.launch_captured(stream, args) })
    }

    fn run_forward<'a>(
        &self,
        saved: &'a mut SavedForBackward,
        args: Args<'a>,
        stream: &'a Arc<CudaStream>,
        captured: bool,
        launch: impl FnOnce(Args<'a>) -> Result<(), LaunchError>,
    ) -> Result<(), TrainStepError> {
        self.own(saved)?;
        ready(self.forward.device(), stream)?;
        let mut args = args;
        let mut numbers = self.forward.numbers(&args)?;
        let run = forward_run(self.forward.facts(), args.roles(), &mut numbers)?;
        args.scalars = numbers.into_iter().map(|(role, value)| (Which::Role(role), value)).collect();
        // The forward replaces what was saved before.
        saved.run = None;
        let SavedForBackward { stats, seed, offset, run: kept, of: _, what: _ } = saved;
        if let Some((first, second)) = run.dropout() {
            put(seed, first, stream, captured)?;
            put(offset, second, stream, captured)?;
            args = args.tensor(Role::DropoutSeed, &*seed).tensor(Role::DropoutOffset, &*offset);
        }
        args = args.lse(stats);
        let operands = self.checked.then(|| self.forward.bindings_of(&mut args).0);
        if let Some(operands) = &operands {
            self.forward.verify_scales_of(operands, stream)?;
        }
        launch(args)?;
        *kept = Some(match operands {
            Some(operands) => run.with_fingerprints(fingerprints((&self.forward, &self.backward), &operands, stream)?),
            None => run,
        });
        Ok(())
    }

    /// Launches the backward with the saved operands beside those of `args`. `saved` stays valid for another backward.
    ///
    /// Leave out the log-sum-exp (Stats), the scalars and the seed of dropout, which are those of the forward. A scalar
    /// that is given all the same must be equal.
    ///
    /// # Errors
    ///
    /// [`TrainStepError`] if there was no forward, a scalar differs from the forward's, the arguments have errors, or
    /// the launch fails.
    pub fn backward<'a>(
        &self,
        saved: &'a mut SavedForBackward,
        args: Args<'a>,
        stream: &'a Arc<CudaStream>,
    ) -> Result<(), TrainStepError> {
        self.run_backward(saved, args, stream, |args| self.backward.launch(stream, args))
    }

    /// Records the backward into the capture of a stream.
    ///
    /// # Safety
    ///
    /// As for [`TrainingPair::forward_captured`].
    ///
    /// # Errors
    ///
    /// [`TrainStepError`], as for [`TrainingPair::backward`].
    pub unsafe fn backward_captured<'a>(
        &self,
        saved: &'a mut SavedForBackward,
        args: Args<'a>,
        stream: &'a Arc<CudaStream>,
    ) -> Result<(), TrainStepError> {
        // SAFETY: the caller's promise.
        self.run_backward(saved, args, stream, |args| unsafe { self.backward.launch_captured(stream, args) })
    }

    fn run_backward<'a>(
        &self,
        saved: &'a mut SavedForBackward,
        args: Args<'a>,
        stream: &'a Arc<CudaStream>,
        launch: impl FnOnce(Args<'a>) -> Result<(), LaunchError>,
    ) -> Result<(), TrainStepError> {
        self.own(saved)?;
        ready(self.backward.device(), stream)?;
        let mut args = args;
        let SavedForBackward { stats, seed, offset, run, of: _, what: _ } = saved;
        let run = run.as_ref().ok_or(TrainingError::NoForward)?;
        let mut numbers = self.backward.numbers(&args)?;
        run.complete(self.backward.facts(), args.roles(), &mut numbers)?;
        args.scalars = numbers.into_iter().map(|(role, value)| (Which::Role(role), value)).collect();
        if run.dropout().is_some() {
            args = args.tensor(Role::DropoutSeed, &*seed).tensor(Role::DropoutOffset, &*offset);
        }
        args = args.saved_lse(&*stats);
        if self.checked {
            let operands = self.backward.bindings_of(&mut args).0;
            self.backward.verify_scales_of(&operands, stream)?;
            run.check(&fingerprints((&self.backward, &self.forward), &operands, stream)?)?;
        }
        Ok(launch(args)?)
    }

    /// Checks that `saved` is of a pair with the same forward.
    fn own(&self, saved: &SavedForBackward) -> Result<(), TrainingError> {
        let facts = self.forward.facts();
        if saved.of == facts.key {
            return Ok(());
        }
        Err(TrainingError::OtherPair { saved: saved.what.clone(), pair: facts.what.clone() })
    }
}
