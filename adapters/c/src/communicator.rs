//! Communicators: how the ranks of one attention meet, over NCCL between GPUs or over the store in which they meet.

use std::ffi::c_char;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use qkvault::RawRankPlans;
use qkvault::exec::cudarc::driver::sys::{CUcontext, CUstreamCaptureMode, cuThreadExchangeStreamCaptureMode};
use qkvault::exec::cudarc::driver::{CudaContext, CudaEvent, result};
use qkvault::parallel::{CommError, Communicator, Nccl, PeerCopies, Secret, Store, World};

use crate::context::{put_handle, qkv_context};
use crate::handle::{Opaque, borrow, free};
use crate::sized::{Grows, read};
use crate::status::{CallFailure, QKV_ERROR_DEVICE, guarded, guarded_with_memory};
use crate::text::{name, optional};

/// One rank among those that compute an attention together.
///
/// Threads may share it: its calls and those of its ranks take turns. After an error of ranks it is of no more use, on
/// any rank: make a new one on all of them. Free it with `qkv_communicator_free`; its ranks stay valid.
pub struct qkv_communicator {
    _opaque: [u8; 0],
}

/// Ranks have no GPU: their memory is on the host, and the oracle computes, slowly, for tests.
pub const QKV_NO_GPU: i32 = -1;

/// A rank, and where all of them meet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_world {
    /// Set this to `sizeof(qkv_world)`.
    pub struct_size: usize,
    /// This rank, from 0 on.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// CUDA's ordinal of the rank's GPU, or `QKV_NO_GPU`.
    pub device: i32,
    /// The port at which rank 0 listens.
    pub port: u32,
    /// The name or address of the machine of rank 0.
    pub address: *const c_char,
    /// What the ranks prove to each other: 16 to 1,024 printable characters, the same for all. Null: none, at an
    /// address of the loopback alone.
    pub secret: *const c_char,
    /// How long a rank waits for another one, and how long a run may take before the rank that hangs is named. 0: five
    /// minutes.
    pub deadline_ms: u32,
    /// 0: ranks of other processes of this host copy from GPU to GPU. 1: ranks that are threads of this process too;
    /// the first run of each of their ranks waits for its GPU.
    pub threads: u32,
}

// SAFETY: numbers and pointers.
unsafe impl Grows for qkv_world {
    const LEAST: usize = size_of::<qkv_world>();
    const NAME: &'static str = "qkv_world";
}

/// What ranks exchange over, and where their plans run.
pub(crate) struct RankLink {
    pub(crate) messages: Box<dyn Communicator>,
    /// None: the host.
    pub(crate) gpu: Option<RawRankPlans>,
    /// How long a run may take.
    deadline: Duration,
    /// The last run on a GPU.
    last: Option<LastRun>,
    /// Why the communicator ended while nobody called.
    fault: Option<CommError>,
}

/// A run that was queued: what is before it on its stream, its end, and when it was seen to have begun.
struct LastRun {
    begin: Arc<CudaEvent>,
    end: Arc<CudaEvent>,
    since: Option<Instant>,
}

impl RankLink {
    /// Notes a run that was queued, with the events before and behind it; none for a part of a graph, whose events
    /// nobody may ask.
    pub(crate) fn queued(&mut self, run: Option<(&Arc<CudaEvent>, &Arc<CudaEvent>)>) {
        self.last = run.map(|(begin, end)| LastRun { begin: Arc::clone(begin), end: Arc::clone(end), since: None });
    }

    /// Why the communicator ended while nobody called, as an error.
    pub(crate) fn fault(&self) -> Result<(), CommError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// Whether all ranks are well, as far as is known.
    fn check(&mut self) -> Result<(), CommError> {
        self.fault()?;
        self.messages.check()
    }

    /// Ends the communicator if its last run takes longer than the deadline: a host that waits for its stream would
    /// wait for a rank that hangs as long as that does.
    fn end_if_overdue(&mut self) {
        let (Some(run), Some(plans)) = (&mut self.last, &self.gpu) else { return };
        let current = CurrentContext::enter(plans.device().context());
        if current.is_err() || run.end.try_is_complete().unwrap_or(true) {
            self.last = None;
            return;
        }
        if run.since.is_none() && run.begin.try_is_complete().unwrap_or(true) {
            run.since = Some(Instant::now());
        }
        let waited = run.since.map_or(Duration::ZERO, |since| since.elapsed());
        if waited > self.deadline {
            self.fault = Some(self.messages.late("the end of its exchanges", waited));
            self.messages.abort();
        }
    }
}

/// A link that a communicator and its ranks share.
pub(crate) type SharedLink = Arc<Mutex<RankLink>>;

impl Opaque for qkv_communicator {
    type Inside = SharedLink;
    const TAG: u64 = 0x0007_696e_756d_6d6f;
    const NAME: &'static str = "qkv_communicator";
}

pub(crate) fn locked(link: &SharedLink) -> MutexGuard<'_, RankLink> {
    link.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a GPU's context current on this thread, and the former one again when it is dropped.
pub(crate) struct CurrentContext(Option<CUcontext>);

impl CurrentContext {
    pub(crate) fn enter(context: &CudaContext) -> Result<CurrentContext, CallFailure> {
        let before = result::ctx::get_current().map_err(driver)?;
        context.bind_to_thread().map_err(driver)?;
        Ok(CurrentContext(before))
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: it was current on this thread. It could be set then, so it can be now.
            let _ = unsafe { result::ctx::set_current(before) };
        }
    }
}

pub(crate) fn driver(error: impl std::fmt::Display) -> CallFailure {
    CallFailure::new(QKV_ERROR_DEVICE, format!("the NVIDIA driver: {error}"))
}

/// Joins the other ranks: rank 0 listens at the address. On GPUs the call returns when all of them are there, and they
/// exchange over NCCL (`libnccl.so.2`, that of the process if it has one), which starts blocks on the GPU; without
/// GPUs, when rank 0 is there, and they exchange over the connection in which they meet. `context` is where ranks find
/// their plans.
///
/// What goes wrong between ranks is `QKV_ERROR_REFUSED` with a code that begins with `ranks.` or `nccl.`, and the rank
/// that is the cause.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_communicator_join(
    context: *const qkv_context,
    world: *const qkv_world,
    communicator: *mut *mut qkv_communicator,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a context, and a world with its size, whose strings are null or valid.
        let (context, world, given) = unsafe {
            let given = read(world)?;
            (borrow(context)?, place(&given)?, given)
        };
        let (deadline, device) = (given.deadline_ms, given.device);
        let copies = if given.threads == 1 { PeerCopies::Threads } else { PeerCopies::Processes };
        let deadline = Duration::from_millis(if deadline == 0 { 300_000 } else { deadline.into() });
        let gpu = if device == QKV_NO_GPU { None } else { Some(context.runtime.rank_plans(device)?) };
        let messages: Box<dyn Communicator> = match &gpu {
            None => Box::new(Store::meet(&world, deadline)?),
            Some(plans) => {
                let _current = CurrentContext::enter(plans.device().context())?;
                Box::new(Nccl::join(Store::meet(&world, deadline)?, None)?.with_peer_copies(copies))
            }
        };
        let link = Arc::new(Mutex::new(RankLink { messages, gpu, deadline, last: None, fault: None }));
        watch(&link);
        // SAFETY: the caller's place.
        unsafe { put_handle(communicator, link) }
    })
}

/// # Safety
///
/// The strings must be null or valid.
unsafe fn place(given: &qkv_world) -> Result<World, CallFailure> {
    let qkv_world { struct_size: _, rank, ranks, device, port, address, secret, deadline_ms: _, threads } = *given;
    if threads > 1 || ranks == 0 || rank >= ranks {
        return Err(CallFailure::argument(format!(
            "qkv_world has rank {rank} of {ranks} and threads {threads}; count ranks from 0, and set threads to 0 or 1"
        )));
    }
    // SAFETY: the caller's promise.
    let (address, secret) = unsafe { (name(address, "qkv_world.address")?, optional(secret, "qkv_world.secret")?) };
    let port = u16::try_from(port).ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| CallFailure::argument("qkv_world.port is no port; give one of 1 to 65535"))?;
    let world = World { address: address.to_owned(), ..World::local(rank, ranks, port) };
    let world = World { local_rank: u32::try_from(device).unwrap_or(0), ..world };
    Ok(match secret {
        Some(secret) => world.with_secret(Secret::new(secret)?),
        None => world,
    })
}

/// How often the ranks of GPUs are asked whether all of them live.
const ASKED: Duration = Duration::from_millis(500);

/// Asks for as long as the link is used: a host that waits for a stream asks nothing, and exchanges on a GPU wait for a
/// rank that is lost or hangs until the communicator ends.
fn watch(link: &SharedLink) {
    if locked(link).gpu.is_none() {
        return;
    }
    let link: Weak<Mutex<RankLink>> = Arc::downgrade(link);
    let ask = move || {
        // Streams may be captured meanwhile, in a mode in which another thread's question would end the capture.
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: it exchanges the mode of this thread with that of the place.
        let _ = unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        loop {
            std::thread::sleep(ASKED);
            let Some(link) = link.upgrade() else { return };
            match link.try_lock() {
                Ok(mut link) => {
                    link.end_if_overdue();
                    if link.check().is_err() {
                        return;
                    }
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Poisoned(_)) => return,
            }
        }
    };
    // Without the thread, the calls of this rank ask alone.
    let _ = std::thread::Builder::new().name("qkvault-ranks".to_owned()).spawn(ask);
}

/// Whether all ranks are well, without waiting for them: `QKV_OK`, or what is known of the rank that is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_communicator_check(communicator: *const qkv_communicator) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a communicator.
        let link = unsafe { borrow(communicator) }?;
        Ok(locked(link).check()?)
    })
}

/// Frees a communicator. It ends with the last of its ranks; the others hear of it. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_communicator_free(communicator: *mut qkv_communicator) -> i32 {
    // SAFETY: the caller promises a communicator that no call uses any more, or null.
    guarded(|| unsafe { free(communicator) })
}

impl From<CommError> for CallFailure {
    fn from(error: CommError) -> CallFailure {
        qkvault::graph::Refusal::from(error.reason()).into()
    }
}
