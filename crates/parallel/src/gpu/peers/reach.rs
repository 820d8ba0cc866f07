//! Whether all ranks reach each other's memory: GPUs of one host between which the driver lets memory be opened.

use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUipcMem_flags, CUresult, cuCtxEnablePeerAccess, cuDeviceCanAccessPeer, cuIpcCloseMemHandle,
    cuIpcOpenMemHandle_v2,
};
use cudarc::driver::{CudaContext, result};
use qkvault_exec::cudarc;

use super::super::arrivals::ArrivalOrder;
use super::routes::{Meeting, Route, most_meetings, routes};
use super::told::{PeerTold, uuid};
use super::{ARRIVED, FLAGS, PeerExchange, PeerMemory, PeerSend};
use crate::Schedule;
use crate::comm::{CommError, Communicator, PeerCopies};

/// Memory of another rank, which this one may write.
pub(super) struct OpenPeer {
    address: CUdeviceptr,
    /// What must be closed: memory of another process.
    opened: bool,
    context: Arc<CudaContext>,
}

impl Drop for OpenPeer {
    fn drop(&mut self) {
        if self.opened {
            self.context.record_err(self.context.bind_to_thread());
            // SAFETY: the address is what the driver opened for this context, and it is closed once.
            self.context.record_err(unsafe { cuIpcCloseMemHandle(self.address) }.result());
        }
    }
}

/// Opens all ranks' memory to each other, if every rank can: one that cannot takes all of them back to the
/// communicator.
pub(in super::super) fn meet(
    communicator: &mut dyn Communicator,
    schedule: &Schedule,
    context: &Arc<CudaContext>,
    block: u64,
    flags: u64,
) -> Result<Option<PeerMemory>, CommError> {
    let Some(wanted) = communicator.peer_copies() else { return Ok(None) };
    let own = (wanted != PeerCopies::Never).then(|| PeerTold::own(context, block, flags)).flatten();
    let heard = communicator.tell_all(&serde_json::to_vec(&own).unwrap_or_default())?;
    let one = |bytes: &Vec<u8>| serde_json::from_slice::<Option<PeerTold>>(bytes).ok().flatten();
    let all: Option<Vec<PeerTold>> = heard.iter().map(one).collect();
    let reached = all.and_then(|all| reach(schedule, communicator.rank() as usize, &all, context, wanted));
    let heard = communicator.tell_all(&[u8::from(reached.is_some())])?;
    Ok(reached.filter(|_| heard.iter().all(|able| able == &[1])))
}

fn reach(
    schedule: &Schedule,
    own: usize,
    all: &[PeerTold],
    context: &Arc<CudaContext>,
    wanted: PeerCopies,
) -> Option<PeerMemory> {
    let routes = routes(schedule, own)?;
    let open = |rank: usize| {
        if rank == own {
            return Some(OpenPeer { address: all[own].address, opened: false, context: Arc::clone(context) });
        }
        all[own].may_open(&all[rank], wanted).then(|| opened(&all[own], &all[rank], context))?
    };
    let open: Vec<OpenPeer> = (0..all.len()).map(open).collect::<Option<_>>()?;
    let most = most_meetings(schedule);
    let flag = |on: usize, other: usize, number: usize| {
        open[on].address + all[on].flags + FLAGS * (other * most + number) as u64
    };
    let exchange = |(route, early): (Route, bool)| PeerExchange {
        early,
        free: route.receives.iter().map(|from| flag(from.peer, own, from.number)).collect(),
        sends: route
            .sends
            .into_iter()
            .map(|(Meeting { peer, number }, places)| PeerSend {
                peer: peer as u32,
                ready: flag(own, peer, number),
                to: places.into_iter().map(|place| open[peer].address + place).collect(),
                arrived: flag(peer, own, number) + ARRIVED,
            })
            .collect(),
        arrivals: route.receives.iter().map(|from| flag(own, from.peer, from.number) + ARRIVED).collect(),
    };
    let exchanges = routes.into_iter().zip(ArrivalOrder::new(schedule, own).early).map(exchange).collect();
    let threads = (0..all.len()).any(|rank| rank != own && all[rank].process == all[own].process);
    Some(PeerMemory { exchanges, threads, open })
}

/// Opens the memory of another rank; `None` where the host, the GPUs or the driver do not let it.
fn opened(own: &PeerTold, other: &PeerTold, context: &Arc<CudaContext>) -> Option<OpenPeer> {
    let count = CudaContext::device_count().ok()?;
    let ordinal = (0..count).find(|n| {
        let device = result::device::get(*n).and_then(uuid);
        device.is_ok_and(|found| found == other.gpu)
    })?;
    let device = result::device::get(ordinal).ok()?;
    let mut can = 0;
    // SAFETY: both are devices, and the function writes one number.
    unsafe { cuDeviceCanAccessPeer(&raw mut can, context.cu_device(), device) }.result().ok()?;
    if can == 0 {
        return None;
    }
    if own.process == other.process {
        let theirs = CudaContext::new(ordinal as usize).ok()?;
        context.bind_to_thread().ok()?;
        // SAFETY: this rank's context is current, and the other is a context of another GPU, which lives as long as
        // the rank that told its address.
        let enabled = unsafe { cuCtxEnablePeerAccess(theirs.cu_ctx(), 0) };
        let open = enabled == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED || enabled.result().is_ok();
        return open.then(|| OpenPeer { address: other.address, opened: false, context: Arc::clone(context) });
    }
    let (handle, mut address) = (other.handle()?, 0);
    context.bind_to_thread().ok()?;
    let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    // SAFETY: this rank's context is current; the handle is of the other's memory, which it keeps until all ranks are
    // done with it.
    unsafe { cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) }.result().ok()?;
    Some(OpenPeer { address, opened: true, context: Arc::clone(context) })
}
