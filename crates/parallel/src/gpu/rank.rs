//! One rank of a schedule on its GPU.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUstreamCaptureStatus;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use qkvault_exec::raw::{DeviceBuffer, constant_values};
use qkvault_exec::{Number, cudarc};
use qkvault_graph::{Lengths, Role, Storage, Tensor, operand};

use super::RunError;
use super::block::RankBlock;
use super::bound::{Addresses, Arguments};
use super::memory::OperandBuffer;
use super::peers::{FLAGS, PeerMemory, PeerWaits, meet, most_meetings};
use super::plans::Plans;
use super::prepare::{Act, Acts, acts};
use super::queue::{RankStreams, rehearse};
use super::replay::{Replays, RunTurn};
use crate::comm::{CommError, Communicator, Hello, agree, wait};
use crate::{RankBuffer, Schedule};

/// One rank of a schedule on a GPU: plans are loaded, memory and events are there, and a run only queues.
///
/// Prepare it with every rank's communicator, bind memory, then run as often as you like; [`GpuRank::wait`] tells
/// within a deadline whether all went well. The guide's chapter on several GPUs has a program.
pub struct GpuRank {
    number: u32,
    ranks: u32,
    pub(super) acts: Acts,
    pub(super) buffers: Vec<RankBuffer>,
    pub(super) outputs: Vec<bool>,
    /// Most queries and keys of a sequence, and of all together.
    pub(super) most: [(i64, i64); 2],
    pub(super) batch: usize,
    /// Whether the lengths of sequences are known.
    pub(super) has_lengths: bool,
    pub(super) numbers: HashMap<Role, Number>,
    pub(super) bound: Vec<DeviceBuffer>,
    /// Addresses and numbers of every act; empty after a change.
    pub(super) arguments: Vec<Arguments>,
    /// Operands that the rank has allocated itself.
    pub(super) own: HashMap<Role, CudaSlice<u8>>,
    /// ALiBi's slopes of this rank.
    pub(super) slopes: Vec<(Role, Vec<u8>)>,
    // Before the memory that they hold.
    replays: Replays,
    peers: Option<(PeerMemory, Arc<PeerWaits>)>,
    /// Whether every launch has been queued once.
    rehearsed: bool,
    block: Arc<RankBlock>,
    pub(super) address: u64,
    pub(super) streams: RankStreams,
    pub(super) context: Arc<CudaContext>,
    /// The stream of the last run, whose work the memory outlives.
    pub(super) last: Option<Arc<CudaStream>>,
}

impl GpuRank {
    /// Compares the schedule with that of the other ranks, loads the plans, compares them too (engine, version of
    /// cuDNN, key) and takes the memory of the communicator's rank, poisoned: a number that nobody writes is seen.
    ///
    /// # Errors
    ///
    /// [`RunError::Ranks`] for ranks that differ or do not come; [`RunError`] for a plan that is not to be had, which
    /// ends the communicator, so that the other ranks hear of it.
    pub fn prepare(
        schedule: &Schedule,
        communicator: &mut dyn Communicator,
        plans: &dyn Plans,
        context: &Arc<CudaContext>,
    ) -> Result<GpuRank, RunError> {
        if !communicator.on_gpu() {
            return Err(RunError::HostCommunicator);
        }
        let hello = Hello::for_schedule(schedule);
        agree(communicator, &hello)?;
        let made = GpuRank::new(schedule, communicator.rank(), plans, context);
        let mut made = made.inspect_err(|_| communicator.abort())?;
        agree(communicator, &Hello { plans: made.acts.plans.clone(), ..hello })?;
        let flags = made.acts.layout.flags;
        made.peers = meet(communicator, schedule, context, made.address, flags)?.map(|peers| {
            let flags = (made.address + flags, (made.acts.layout.flag_bytes / 4) as usize);
            let streams = [&made.streams.exchange, &made.streams.arrivals].map(Arc::clone);
            let (block, numbers) = (Arc::clone(&made.block), made.numbers_in_block());
            let waits = Arc::new(PeerWaits::new(Arc::clone(context), block, flags, numbers, streams));
            let ended = Arc::downgrade(&waits);
            communicator.before_end(Box::new(move || {
                if let Some(waits) = ended.upgrade() {
                    waits.end();
                }
            }));
            (peers, waits)
        });
        Ok(made)
    }

    fn new(
        schedule: &Schedule,
        number: u32,
        plans: &dyn Plans,
        context: &Arc<CudaContext>,
    ) -> Result<GpuRank, RunError> {
        let rank = &schedule.ranks[number as usize];
        let mut acts = acts(schedule, number as usize, plans)?;
        let flags = FLAGS * u64::from(schedule.sharding.ranks) * most_meetings(schedule) as u64;
        acts.layout.flags(flags);
        context.bind_to_thread().map_err(RunError::driver("make the context current"))?;
        let block = Arc::new(RankBlock::new(context, acts.layout.bytes as usize)?);
        let address = block.address;
        block.set(acts.layout.flags, 0, flags as usize)?;
        let a = schedule.attention.get();
        let numbers = HashMap::from([(Role::Scale, Number::F32((1.0 / (a.q.dims[3] as f64).sqrt()) as f32))]);
        let output = |b: &RankBuffer| b.operand.and_then(|role| operand(a, role)).is_some_and(|o| o.output);
        let batch = a.batch() as usize;
        let slopes = constant_values(a).into_iter().filter_map(|(role, values)| {
            let whole: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
            Some((role, schedule.part(number, role, &whole)?))
        });
        let mut made = GpuRank {
            slopes: slopes.collect(),
            number,
            ranks: schedule.sharding.ranks,
            outputs: rank.buffers.iter().map(output).collect(),
            bound: vec![DeviceBuffer::default(); rank.buffers.len()],
            buffers: rank.buffers.clone(),
            most: [a.seq(), (room(&a.q), room(&a.k))],
            batch,
            has_lengths: acts.layout.sequences.is_empty(),
            numbers,
            arguments: Vec::new(),
            own: HashMap::new(),
            replays: Replays::new(context)?,
            peers: None,
            rehearsed: false,
            block,
            address,
            streams: RankStreams::new(context, acts.marks)?,
            context: Arc::clone(context),
            acts,
            last: None,
        };
        // Attentions without lengths of a launch may have parts with lengths: dealt keys.
        if a.mask.lengths == Lengths::Full {
            made.set_lengths(&vec![a.seq().0; batch], &vec![a.seq().1; batch])?;
        }
        Ok(made)
    }

    /// Whether the ranks write each other's memory, as GPUs of one host can, instead of exchanging by the communicator.
    #[must_use]
    pub const fn copies_to_peers(&self) -> bool {
        self.peers.is_some()
    }

    /// Whether one of the ranks whose memory this one writes is a thread of the same process.
    fn writes_to_threads(&self) -> bool {
        self.peers.as_ref().is_some_and(|(peers, _)| peers.threads)
    }

    /// Queues the rank's steps: launches on `stream`, exchanges on a stream of the rank's that begins and ends with it.
    /// While the stream is captured, the run becomes a part of the graph, if the communicator can be captured; graphs
    /// must be dropped before the rank and its communicator.
    ///
    /// Where GPUs of one host write each other's memory, a run with the memory and numbers of an earlier one is the
    /// replay of a graph; and where ranks are threads, the first run waits for what is queued on the stream.
    ///
    /// # Errors
    ///
    /// [`RunError`]. The communicator has ended then, and all ranks get errors.
    pub fn run(&mut self, communicator: &mut dyn Communicator, stream: &Arc<CudaStream>) -> Result<(), RunError> {
        let queued = self.check(communicator, stream).and_then(|captured| match captured {
            false if self.peers.is_some() => self.replayed(communicator, stream),
            _ => self.queue(communicator, stream),
        });
        if queued.is_err() {
            communicator.abort();
        }
        queued
    }

    fn runs_on(&mut self, stream: &Arc<CudaStream>) {
        self.last = Some(Arc::clone(stream));
        if let Some((_, waits)) = &self.peers {
            waits.runs_on(stream);
        }
    }

    /// Queues the steps of a run, or a graph of them from the third run with the same memory on.
    fn replayed(&mut self, communicator: &mut dyn Communicator, stream: &Arc<CudaStream>) -> Result<(), RunError> {
        // The driver may wait for the GPU when it makes a graph, and the GPU for another thread that waits for the
        // driver. Another process has queued all that this GPU waits for, or will.
        let threads = self.writes_to_threads();
        let ready = || {
            let done = |last: &Arc<CudaStream>| last.record_event(None).and_then(|event| event.try_is_complete());
            !threads || self.last.as_ref().is_none_or(|last| done(last).unwrap_or(false))
        };
        match self.replays.turn(&self.bound, &self.numbers, ready) {
            RunTurn::Steps => return self.queue(communicator, stream),
            RunTurn::Replay => {
                // The others count the exchanges of a rank that comes late.
                for _ in self.acts.list.iter().filter(|act| matches!(act, Act::Exchange(_))) {
                    communicator.begin_exchange();
                }
            }
            RunTurn::Capture(own) => {
                self.replays.begin()?;
                let queued = self.queue(communicator, &own);
                if !self.replays.end(queued.is_ok()) {
                    // Not everything can be recorded; what is really wrong is wrong again.
                    return self.queue(communicator, stream);
                }
            }
        }
        self.runs_on(stream);
        self.replays.launch(stream)
    }

    /// Whether the stream is captured, if a run is possible.
    fn check(&mut self, communicator: &dyn Communicator, stream: &Arc<CudaStream>) -> Result<bool, RunError> {
        if !communicator.on_gpu() {
            return Err(RunError::HostCommunicator);
        }
        for (what, given, expected) in [
            ("ranks of the communicator", communicator.size(), self.ranks),
            ("the communicator's rank", communicator.rank(), self.number),
        ] {
            if given != expected {
                let (given, expected) = (given.into(), expected.into());
                return Err(CommError::Size { rank: None, what: what.to_owned(), given, expected }.into());
            }
        }
        if !self.has_lengths {
            let what = "the lengths of the sequences are not known; give them to `set_lengths`".to_owned();
            return Err(RunError::Lengths { what });
        }
        if self.peers.as_ref().is_some_and(|(_, waits)| waits.ended()) {
            let how = "its communicator has ended; prepare the rank again with a new one".to_owned();
            return Err(CommError::Gone { rank: self.number, how }.into());
        }
        let captured = stream.capture_status().map_err(RunError::driver("tell whether a stream is captured"))?;
        let captured = captured != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let exchanges = self.acts.list.iter().any(|act| matches!(act, Act::Exchange(_)));
        if captured && exchanges && !communicator.capturable() && self.peers.is_none() {
            return Err(RunError::Capture);
        }
        if captured && !self.rehearsed && self.writes_to_threads() {
            return Err(RunError::FirstRun);
        }
        Ok(captured)
    }

    /// Where numbers of operands lie in the block, and their bytes: nothing that a kernel follows to other memory.
    fn numbers_in_block(&self) -> Vec<(u64, usize)> {
        let places = self.acts.layout.buffers.iter().zip(&self.buffers);
        let numbers = places.filter(|(_, buffer)| buffer.tensor.dtype.is_float());
        numbers
            .filter_map(|(at, b)| Some(((*at)?, b.tensor.bytes().map_or(0, |n| n.unsigned_abs() as usize))))
            .collect()
    }

    fn resolved(&self) -> Result<Vec<Arguments>, RunError> {
        let missing = self.operands().find(|o| self.memory(o.role).is_none_or(|m| m.address == 0));
        if let Some(OperandBuffer { role, bytes, .. }) = missing {
            return Err(RunError::Operand { role, given: 0, needed: bytes });
        }
        let Acts { list, layout, .. } = &self.acts;
        let mut buffers = self.bound.clone();
        for (memory, (at, buffer)) in buffers.iter_mut().zip(layout.buffers.iter().zip(&self.buffers)) {
            if let Some(at) = at {
                // Behind every buffer of the block are the bytes that a kernel may read besides.
                let bytes = buffer.tensor.bytes().map_or(0, i64::unsigned_abs) + 4;
                *memory = DeviceBuffer { address: self.address + at, bytes };
            }
        }
        let addresses = Addresses { buffers, block: self.address };
        addresses.arguments(list, layout, &self.numbers, |at| self.buffers[at].operand)
    }

    fn queue(&mut self, communicator: &mut dyn Communicator, stream: &Arc<CudaStream>) -> Result<(), RunError> {
        if self.arguments.is_empty() {
            self.arguments = self.resolved()?;
        }
        self.runs_on(stream);
        if !self.rehearsed && self.writes_to_threads() {
            // cuDNN's kernels load at their first launch: the driver holds a lock then, and waits for the GPU, which
            // must not wait for a thread that needs the lock.
            rehearse(&self.acts.list, &self.arguments, stream)?;
        }
        self.rehearsed = true;
        let peers = self.peers.as_ref().map(|(peers, _)| peers);
        self.streams.queue(&self.acts.list, &self.arguments, peers, communicator, stream)
    }

    /// Waits until everything that was queued on the stream is done, on a host thread that asks the communicator
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// [`RunError::Ranks`] with the rank that is lost, or after the deadline; the communicator has ended then.
    pub fn wait(
        &self,
        communicator: &mut dyn Communicator,
        stream: &Arc<CudaStream>,
        deadline: Duration,
    ) -> Result<(), RunError> {
        let event = stream.record_event(None).map_err(RunError::driver("record an event"))?;
        let done = || event.try_is_complete().map_err(|error| error.to_string());
        Ok(wait(communicator, deadline, done)?)
    }
}

/// Tokens of all sequences that a tensor has room for.
fn room(t: &Tensor) -> i64 {
    match t.storage {
        Storage::Varlen { tokens } => tokens,
        Storage::Dense | Storage::Paged { .. } => t.dims[0] * t.dims[2],
    }
}

impl Drop for GpuRank {
    fn drop(&mut self) {
        // The memory is freed behind the last launch, and behind what other ranks have written to it for that launch.
        if !self.block.kept() {
            for stream in self.last.iter().chain([&self.streams.exchange, &self.streams.arrivals]) {
                self.context.record_err(stream.synchronize());
            }
        }
    }
}
