//! One GPU that computes all of an attention, with plans of its own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaSlice, CudaStream};
use qkvault_base::random::Rng;
use qkvault_compile::{OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{Args as Operands, LoadedPlan, Session, cudarc};
use qkvault_graph::{Role, Valid};

/// Bytes of the numbers that operands are filled with, again and again.
const PATTERN: usize = 1 << 20;

/// 16-bit numbers of either sign between 2^-3 and 2 in bf16. Zeros would need less power.
pub(super) fn pattern(bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(5);
    let block: Vec<u8> = (0..PATTERN / 2).flat_map(|_| ((rng.bits() as u16 & 0x81ff) | 0x3e00).to_ne_bytes()).collect();
    let mut all = Vec::with_capacity(bytes + PATTERN);
    while all.len() < bytes {
        all.extend_from_slice(&block);
    }
    all.truncate(bytes);
    all
}

/// One attention and its backward, on one stream.
pub(super) struct Single {
    stream: Arc<CudaStream>,
    forward: LoadedPlan,
    backward: Option<LoadedPlan>,
    memory: BTreeMap<Role, CudaSlice<u8>>,
    scale: f32,
}

impl Single {
    pub(super) fn new(
        session: &Session,
        planner: &Planner,
        forward: &Valid,
        backward: Option<&Valid>,
    ) -> anyhow::Result<Single> {
        let stream = session.device().context().new_stream()?;
        let plan = |of: &Valid| {
            session.prepare(planner, of, &CompileOptions::default(), OnMiss::Compile).map(|prepared| prepared.plan)
        };
        let scale = forward.default_scale();
        let (forward, backward) = (plan(forward)?, backward.map(plan).transpose()?);
        let mut memory = BTreeMap::new();
        for binding in [Some(&forward), backward.as_ref()].into_iter().flatten().flat_map(|plan| plan.raw().tensors()) {
            if let Entry::Vacant(free) = memory.entry(binding.role) {
                free.insert(stream.clone_htod(&pattern(usize::try_from(binding.bytes)?))?);
            }
        }
        Ok(Single { stream, forward, backward, memory, scale })
    }

    /// Queues the forward, and the backward.
    fn step(&mut self, both: bool) -> anyhow::Result<()> {
        let Single { stream, forward, backward, memory, scale } = self;
        for plan in [Some(&*forward), backward.as_ref().filter(|_| both)].into_iter().flatten() {
            let mut args = Operands::new().scale(*scale);
            for (role, slice) in memory.iter_mut() {
                match plan.raw().tensors().iter().find(|binding| binding.role == *role) {
                    Some(binding) if binding.output => args = args.tensor_mut(*role, slice),
                    Some(_) => args = args.tensor(*role, &*slice),
                    None => {}
                }
            }
            plan.launch(stream, args)?;
        }
        Ok(())
    }

    /// What [`Single::time`] gives for each of some GPUs that work at the same time.
    pub(super) fn time_all(all: &mut [Single], both: bool, calls: u32) -> anyhow::Result<Vec<f64>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = all.iter_mut().map(|one| scope.spawn(move || one.time(both, calls))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        })
    }

    /// Milliseconds of the GPU for a step, of so many after each other.
    fn time(&mut self, both: bool, calls: u32) -> anyhow::Result<f64> {
        let event = || self.stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let (start, end) = (event()?, event()?);
        start.record(&self.stream)?;
        for _ in 0..calls {
            self.step(both)?;
        }
        end.record(&self.stream)?;
        Ok(f64::from(start.elapsed_ms(&end)?) / f64::from(calls))
    }
}
