//! A run's streams, and how its acts are queued on them.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use qkvault_exec::cudarc;
use qkvault_exec::raw::RawArgs;

use super::RunError;
use super::bound::Arguments;
use super::peers::PeerMemory;
use super::prepare::Act;
use crate::Stream;
use crate::comm::Communicator;

/// The streams of a rank besides the caller's, and the events that order them.
pub(super) struct RankStreams {
    pub(super) exchange: Arc<CudaStream>,
    /// Waits for what other ranks write.
    pub(super) arrivals: Arc<CudaStream>,
    /// Launches beside those of the caller's stream, and before them.
    beside: Arc<CudaStream>,
    /// The marks of a run, each with another one for arrivals.
    marks: Vec<[CudaEvent; 2]>,
    /// Between the stream of exchanges and that of arrivals.
    between: CudaEvent,
    begin: CudaEvent,
    end: CudaEvent,
}

impl RankStreams {
    /// Streams, and so many marks.
    pub(super) fn new(context: &Arc<CudaContext>, marks: usize) -> Result<RankStreams, RunError> {
        let priority = result::stream::get_priority_range().map_or(0, |(_, greatest)| greatest);
        // Messages go before the blocks of attention that are queued behind them, and so does what others wait for.
        let first = || context.new_stream_with_priority(priority).map_err(RunError::driver("create a stream"));
        let event = || context.new_event(None).map_err(RunError::driver("create an event"));
        Ok(RankStreams {
            exchange: first()?,
            arrivals: first()?,
            beside: first()?,
            marks: (0..marks).map(|_| Ok([event()?, event()?])).collect::<Result<_, RunError>>()?,
            between: event()?,
            begin: event()?,
            end: event()?,
        })
    }

    /// Queues a run. The rank's context is current.
    pub(super) fn queue(
        &self,
        acts: &[Act],
        arguments: &[Arguments],
        peers: Option<&PeerMemory>,
        communicator: &mut dyn Communicator,
        stream: &Arc<CudaStream>,
    ) -> Result<(), RunError> {
        let wrong = RunError::driver;
        self.begin.record(stream).map_err(wrong("record an event"))?;
        self.exchange.wait(&self.begin).map_err(wrong("wait for an event"))?;
        let on = |which: Stream| match which {
            Stream::Compute => stream,
            Stream::Exchange => &self.exchange,
            Stream::Beside => &self.beside,
        };
        if let Some(peers) = peers {
            // SAFETY: the rank's context is current, and the stream has just waited for the caller's.
            unsafe { peers.begin(self.exchange.cu_stream()) }.map_err(wrong("tell other ranks"))?;
        }
        let mut exchanges = 0;
        let join = || {
            self.between.record(&self.arrivals).map_err(wrong("record an event"))?;
            self.exchange.wait(&self.between).map_err(wrong("wait for an event"))
        };
        // Whether something arrives that the stream of exchanges has not waited for.
        let mut arriving = false;
        for (act, arguments) in acts.iter().zip(arguments) {
            match (act, arguments) {
                (Act::Record(which, mark, arrivals), _) => {
                    let [all, also] = &self.marks[*mark];
                    all.record(on(*which)).map_err(wrong("record an event"))?;
                    if *arrivals && peers.is_some() {
                        also.record(&self.arrivals).map_err(wrong("record an event"))?;
                    }
                }
                (Act::Wait(which, mark, arrivals), _) => {
                    let [all, also] = &self.marks[*mark];
                    on(*which).wait(all).map_err(wrong("wait for an event"))?;
                    if *arrivals && peers.is_some() {
                        on(*which).wait(also).map_err(wrong("wait for an event"))?;
                    }
                }
                (Act::Join, _) if peers.is_some() => {
                    join()?;
                    arriving = false;
                }
                (Act::Exchange(_), Arguments::Exchange(messages)) if let Some(peers) = peers => {
                    communicator.begin_exchange();
                    // SAFETY: as below; the rank's context is current.
                    let some = unsafe { peers.exchange(exchanges, messages, self.exchange.cu_stream()) };
                    if some.map_err(wrong("copy to another GPU"))? {
                        self.between.record(&self.exchange).map_err(wrong("record an event"))?;
                        self.arrivals.wait(&self.between).map_err(wrong("wait for an event"))?;
                        // SAFETY: as above.
                        unsafe { peers.arrivals(exchanges, self.arrivals.cu_stream()) }
                            .map_err(wrong("wait for another GPU"))?;
                        arriving = true;
                    }
                    exchanges += 1;
                }
                (Act::Exchange(_), Arguments::Exchange(messages)) => {
                    // SAFETY: the addresses are places of the rank's memory or of bound operands, which the caller of
                    // `bind` keeps; two messages never receive at one place, as the schedule's inspection finds.
                    unsafe { communicator.exchange(messages, self.exchange.cu_stream().cast())? };
                }
                (Act::Launch(own), _) => launch(act, arguments, on(own.on))?,
                _ => {}
            }
        }
        if arriving {
            join()?;
        }
        self.end.record(&self.exchange).map_err(wrong("record an event"))?;
        stream.wait(&self.end).map_err(wrong("wait for an event"))
    }
}

/// Queues the launches of a run, one after the other and without exchanges, and waits for them. What they write is
/// written again by the run.
pub(super) fn rehearse(acts: &[Act], arguments: &[Arguments], stream: &CudaStream) -> Result<(), RunError> {
    for (act, arguments) in acts.iter().zip(arguments) {
        launch(act, arguments, stream)?;
    }
    stream.synchronize().map_err(RunError::driver("wait for the GPU"))
}

/// Queues a launch; no other act.
fn launch(act: &Act, arguments: &Arguments, stream: &CudaStream) -> Result<(), RunError> {
    let (Act::Launch(launch), Arguments::Launch { tensors, numbers, workspace }) = (act, arguments) else {
        return Ok(());
    };
    let args = RawArgs { tensors, scalars: numbers, workspace: *workspace, interleaved: &launch.interleaved };
    // SAFETY: the addresses are places of the rank's memory or of bound operands, which the caller of `bind` keeps;
    // launches with scratch memory are all on one stream; lengths and offsets were made for these operands by
    // `set_lengths`, and page tables are the caller's.
    unsafe { launch.plan.raw().launch_with(&args, stream.cu_stream().cast()) }
        .map_err(|source| RunError::Launch { what: launch.plan.facts().what.clone(), source: Box::new(source) })
}
