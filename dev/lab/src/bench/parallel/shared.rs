//! Ranks that compute an attention together, timed from a barrier on.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUevent_flags;
use qkvault_exec::cudarc;
use qkvault_graph::Role;
use qkvault_parallel::testing::Member;
use qkvault_parallel::{GpuRank, Schedule};

use super::single::pattern;
use crate::world::DEADLINE;

/// Runs after which a rank has a graph.
const GRAPHED: usize = 2;

/// One rank with its memory.
struct BenchRank<'a, 'b> {
    member: &'a mut Member<'b>,
    forward: GpuRank,
    backward: Option<GpuRank>,
    stream: Arc<CudaStream>,
}

/// All ranks of a world.
pub(super) struct SharedRanks<'a, 'b> {
    ranks: Vec<BenchRank<'a, 'b>>,
}

impl<'a, 'b> SharedRanks<'a, 'b> {
    /// Prepares all ranks, and runs the forward once, whose results the backward reads.
    pub(super) fn new(
        world: &'a mut [Member<'b>],
        (forward, backward): &(Schedule, Option<Schedule>),
    ) -> anyhow::Result<SharedRanks<'a, 'b>> {
        let prepare = |member: &mut Member<'b>, made: &Schedule| {
            let mut rank = GpuRank::prepare(made, &mut *member.communicator, member.plans, &member.context)?;
            rank.allocate()?;
            for of in rank.operands().filter(|o| !o.output).collect::<Vec<_>>() {
                rank.write(of.role, &pattern(of.bytes as usize))?;
            }
            anyhow::Ok(rank)
        };
        let one = |member: &'a mut Member<'b>| {
            let mut rank = prepare(member, forward)?;
            let stream = member.context.new_stream()?;
            rank.run(&mut *member.communicator, &stream)?;
            rank.wait(&mut *member.communicator, &stream, DEADLINE)?;
            let backward = backward.as_ref().map(|made| {
                let mut back = prepare(member, made)?;
                for role in [Role::O, Role::Stats] {
                    back.write(role, &rank.read(role)?)?;
                }
                anyhow::Ok(back)
            });
            let mut backward = backward.transpose()?;
            // Ranks that are threads make a graph only while nothing else runs.
            for _ in 0..GRAPHED {
                for rank in [Some(&mut rank), backward.as_mut()].into_iter().flatten() {
                    rank.run(&mut *member.communicator, &stream)?;
                    rank.wait(&mut *member.communicator, &stream, DEADLINE)?;
                }
            }
            Ok(BenchRank { forward: rank, backward, stream, member })
        };
        let ranks: Vec<anyhow::Result<BenchRank<'a, 'b>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = world.iter_mut().map(|member| scope.spawn(|| one(member))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        });
        Ok(SharedRanks { ranks: ranks.into_iter().collect::<anyhow::Result<_>>()? })
    }

    /// What carries the messages.
    pub(super) fn by(&self) -> &'static str {
        let copies = |rank: &BenchRank<'_, '_>| rank.forward.copies_to_peers();
        if self.ranks.iter().all(copies) { "peer copies" } else { "the communicator" }
    }

    /// Milliseconds of the slowest rank's GPU for a step, of so many after each other; and of its host to queue one.
    pub(super) fn time(&mut self, both: bool, calls: u32) -> anyhow::Result<(f64, f64)> {
        let barrier = Barrier::new(self.ranks.len());
        let one = |rank: &mut BenchRank<'a, 'b>| {
            let event = || rank.stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
            let (start, end) = (event()?, event()?);
            barrier.wait();
            start.record(&rank.stream)?;
            let clock = Instant::now();
            for _ in 0..calls {
                rank.forward.run(&mut *rank.member.communicator, &rank.stream)?;
                if let Some(backward) = rank.backward.as_mut().filter(|_| both) {
                    backward.run(&mut *rank.member.communicator, &rank.stream)?;
                }
            }
            let host = clock.elapsed().as_secs_f64() * 1e3;
            end.record(&rank.stream)?;
            rank.forward.wait(&mut *rank.member.communicator, &rank.stream, DEADLINE)?;
            anyhow::Ok((f64::from(start.elapsed_ms(&end)?) / f64::from(calls), host / f64::from(calls)))
        };
        let times: Vec<anyhow::Result<(f64, f64)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self.ranks.iter_mut().map(|rank| scope.spawn(|| one(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        });
        let mut most = (0.0_f64, 0.0_f64);
        for time in times {
            let (gpu, host) = time?;
            most = (most.0.max(gpu), most.1.max(host));
        }
        Ok(most)
    }
}
