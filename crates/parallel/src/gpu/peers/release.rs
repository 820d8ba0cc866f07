//! The end of waits for a rank that is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, result};
use qkvault_exec::cudarc;

use super::super::block::RankBlock;

/// How long a rank's streams are freed from waits, at most.
const LONGEST: Duration = Duration::from_secs(5);

/// What frees a rank's streams from waits, from another thread: NCCL's end waits until the GPU is idle.
pub(in super::super) struct PeerWaits {
    context: Arc<CudaContext>,
    block: Arc<RankBlock>,
    /// This rank's flags: their address, and their number.
    flags: (u64, usize),
    /// Places of the block where numbers of other ranks lie, and their bytes.
    numbers: Vec<(u64, usize)>,
    /// The rank's own streams.
    own: [Arc<CudaStream>; 2],
    /// The stream of the last run.
    last: Mutex<Option<Arc<CudaStream>>>,
    ended: AtomicBool,
}

impl PeerWaits {
    pub(in super::super) const fn new(
        context: Arc<CudaContext>,
        block: Arc<RankBlock>,
        flags: (u64, usize),
        numbers: Vec<(u64, usize)>,
        own: [Arc<CudaStream>; 2],
    ) -> PeerWaits {
        PeerWaits { context, block, flags, numbers, own, last: Mutex::new(None), ended: AtomicBool::new(false) }
    }

    /// Names the stream of a run.
    pub(in super::super) fn runs_on(&self, stream: &Arc<CudaStream>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(stream));
    }

    /// Whether the waits were ended: the flags say nothing any more.
    pub(in super::super) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Begins to end all waits, in a thread that goes on until the rank's streams are idle. What they compute is of
    /// NaN: a caller that waits for its stream alone sees that it is nothing. Others may still write this rank's
    /// memory, so it stays to the end of the process.
    pub(in super::super) fn end(self: &Arc<PeerWaits>) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        self.block.keep();
        let waits = Arc::clone(self);
        std::thread::spawn(move || waits.end_all());
    }

    fn end_all(&self) {
        self.context.record_err(self.context.bind_to_thread());
        let begin = Instant::now();
        let ones = vec![1_u32; self.flags.1];
        while begin.elapsed() < LONGEST && !self.idle() {
            // Streams share the queues of a GPU, and one behind a stream that waits would wait too: another each time.
            if let Ok(stream) = self.context.new_stream() {
                for (place, bytes) in &self.numbers {
                    let at = self.block.address + place;
                    // SAFETY: the context is current, and the block is memory that stays.
                    let set = unsafe { result::memset_d8_async(at, 0xff, *bytes, stream.cu_stream()) };
                    self.context.record_err(set);
                }
                // SAFETY: as above, and so do the flags.
                let set = unsafe { result::memcpy_htod_async(self.flags.0, &ones, stream.cu_stream()) };
                self.context.record_err(set);
                // Its own end would wait for it.
                std::mem::forget(stream);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn idle(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let one = |stream: &Arc<CudaStream>| {
            stream.record_event(None).and_then(|event| event.try_is_complete()).unwrap_or(true)
        };
        last.iter().chain(&self.own).all(one)
    }
}
