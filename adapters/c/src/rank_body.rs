//! What a rank runs on: a GPU with its plans, or the oracle on the host.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use qkvault::exec::Number;
use qkvault::exec::cudarc::driver::sys::{CUevent_wait_flags, CUstream, CUstreamCaptureStatus};
use qkvault::exec::cudarc::driver::{CudaEvent, CudaSlice, CudaStream, result};
use qkvault::exec::raw::{DeviceBuffer, constant_values};
use qkvault::graph::{DType, Role, operand};
use qkvault::parallel::{CommError, GpuRank, HostRank, RunError, Schedule, SimulateError};
use qkvault::reference::Buffer;
use qkvault_base::room_for;

use crate::communicator::{CurrentContext, RankLink, driver};
use crate::status::{CallFailure, QKV_ERROR_CAPTURED, QKV_ERROR_DEVICE, QKV_ERROR_INTERNAL, QKV_ERROR_LIBRARY};

/// A rank where it runs.
pub(crate) enum RankBody {
    Gpu(Box<RankOnGpu>),
    Host(Box<RankOnHost>),
}

/// A rank on its GPU. Its runs are on a stream of its own, which waits for that of the caller and which the caller's
/// waits for: so runs follow each other, whatever streams they are given.
pub(crate) struct RankOnGpu {
    rank: GpuRank,
    stream: Arc<CudaStream>,
    begin: Arc<CudaEvent>,
    end: Arc<CudaEvent>,
    numbers: BTreeMap<Role, Number>,
    /// Constants of the description, which live as long as the rank.
    _constants: Vec<CudaSlice<u8>>,
}

/// A rank on the host, with the memory of the last run.
pub(crate) struct RankOnHost {
    rank: HostRank,
    /// Operands that a run reads, and bytes of all of them.
    bytes: BTreeMap<Role, (bool, u64)>,
    memory: BTreeMap<Role, DeviceBuffer>,
    constants: BTreeMap<Role, Vec<u8>>,
}

impl RankBody {
    pub(crate) fn prepare(made: &Schedule, link: &mut RankLink) -> Result<RankBody, CallFailure> {
        let number = link.messages.rank();
        let constants = constant_values(&made.attention).into_iter().filter_map(|(role, values)| {
            let whole: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
            Some((role, made.part(number, role, &whole)?))
        });
        let constants: Vec<(Role, Vec<u8>)> = constants.collect();
        let Some(plans) = &link.gpu else {
            let rank = HostRank::prepare(made.clone(), &mut *link.messages)?;
            let buffers = made.ranks[number as usize].buffers.iter();
            let bytes = buffers.filter_map(|buffer| {
                let (role, bytes) = (buffer.operand?, buffer.tensor.bytes().map_or(0, i64::unsigned_abs));
                Some((role, (!operand(made.attention.get(), role)?.output, bytes)))
            });
            let (bytes, constants) = (bytes.collect(), constants.into_iter().collect());
            return Ok(RankBody::Host(Box::new(RankOnHost { rank, bytes, memory: BTreeMap::new(), constants })));
        };
        let context = Arc::clone(plans.device().context());
        let _current = CurrentContext::enter(&context)?;
        let mut rank = GpuRank::prepare(made, &mut *link.messages, plans, &context)?;
        let stream = context.new_stream().map_err(driver)?;
        let mut kept = Vec::new();
        for (role, bytes) in constants {
            let slice = stream.clone_htod(&bytes).map_err(driver)?;
            stream.synchronize().map_err(driver)?;
            let address = qkvault::exec::cudarc::driver::DevicePtr::device_ptr(&slice, &stream).0;
            // SAFETY: the slice lives as long as the rank, and nothing writes it.
            unsafe { rank.bind(&[(role, DeviceBuffer { address, bytes: bytes.len() as u64 })]) }?;
            kept.push(slice);
        }
        let event = || context.new_event(None).map_err(driver);
        let (begin, end) = (Arc::new(event()?), Arc::new(event()?));
        let numbers = BTreeMap::new();
        Ok(RankBody::Gpu(Box::new(RankOnGpu { rank, stream, begin, end, numbers, _constants: kept })))
    }

    pub(crate) fn set_lengths(&mut self, queries: &[i64], keys: &[i64]) -> Result<(), CallFailure> {
        match self {
            RankBody::Gpu(gpu) => Ok(gpu.rank.set_lengths(queries, keys)?),
            RankBody::Host(host) => {
                for (role, list) in [(Role::SeqLenQ, queries), (Role::SeqLenKv, keys)] {
                    host.rank.set(role, Buffer::from_values(DType::I32, list.iter().map(|n| *n as f64)));
                }
                Ok(())
            }
        }
    }

    pub(crate) fn set_number(&mut self, role: Role, number: Number) {
        match self {
            // What a rank has resolved stays, unless something changes.
            RankBody::Gpu(gpu) => {
                if gpu.numbers.insert(role, number) != Some(number) {
                    gpu.rank.set_number(role, number);
                }
            }
            RankBody::Host(host) => {
                let value = match number {
                    Number::F32(x) => f64::from(x),
                    Number::I32(x) => f64::from(x),
                    Number::I64(x) => x as f64,
                };
                host.rank.set(role, Buffer::from_values(number.dtype(), [value]));
            }
        }
    }

    /// # Safety
    ///
    /// The addresses must have so many bytes until the run has ended; the stream must be one of the rank's GPU.
    pub(crate) unsafe fn run(
        &mut self,
        link: &mut RankLink,
        memory: &[(Role, DeviceBuffer)],
        stream: *mut c_void,
    ) -> Result<(), CallFailure> {
        match self {
            RankBody::Gpu(gpu) => {
                link.fault()?;
                let _current = CurrentContext::enter(gpu.stream.context())?;
                // SAFETY: the caller's promise.
                unsafe { gpu.run(link, memory, stream.cast()) }
            }
            // SAFETY: as above.
            RankBody::Host(host) => unsafe { host.run(link, memory) },
        }
    }

    pub(crate) fn wait(&mut self, link: &mut RankLink, deadline: Duration) -> Result<(), CallFailure> {
        match self {
            RankBody::Gpu(gpu) => {
                let _current = CurrentContext::enter(gpu.stream.context())?;
                Ok(gpu.rank.wait(&mut *link.messages, &gpu.stream, deadline)?)
            }
            RankBody::Host(_) => Ok(()),
        }
    }
}

impl RankOnGpu {
    /// # Safety
    ///
    /// As [`RankBody::run`].
    unsafe fn run(
        &mut self,
        link: &mut RankLink,
        memory: &[(Role, DeviceBuffer)],
        stream: CUstream,
    ) -> Result<(), CallFailure> {
        let new: Vec<(Role, DeviceBuffer)> = memory
            .iter()
            .copied()
            .filter(|(role, given)| {
                let same = |has: DeviceBuffer| has.address == given.address && has.bytes == given.bytes;
                !self.rank.memory(*role).is_some_and(same)
            })
            .collect();
        if !new.is_empty() {
            // SAFETY: the caller keeps the memory until the run has ended.
            unsafe { self.rank.bind(&new) }?;
        }
        let wait = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event is this rank's, and the stream is one of its GPU, as the caller promises.
        unsafe { result::event::record(self.begin.cu_event(), stream) }.map_err(driver)?;
        self.stream.wait(&self.begin).map_err(driver)?;
        self.rank.run(&mut *link.messages, &self.stream)?;
        self.end.record(&self.stream).map_err(driver)?;
        let captured = self.stream.capture_status().map_err(driver)?;
        let alone = captured == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        link.queued(alone.then_some((&self.begin, &self.end)));
        // SAFETY: as above.
        unsafe { result::stream::wait_event(stream, self.end.cu_event(), wait) }.map_err(driver)
    }
}

impl RankOnHost {
    /// # Safety
    ///
    /// As [`RankBody::run`].
    unsafe fn run(&mut self, link: &mut RankLink, memory: &[(Role, DeviceBuffer)]) -> Result<(), CallFailure> {
        self.memory.extend(memory.iter().copied());
        let mut parts = self.constants.clone();
        for (role, (read, bytes)) in self.bytes.iter().filter(|(role, _)| !self.constants.contains_key(role)) {
            let has = self.memory.get(role).copied().unwrap_or_default();
            if has.address == 0 || has.bytes < *bytes {
                let given = has.bytes;
                return Err(RunError::Operand { role: *role, given, needed: *bytes }.into());
            }
            if *read {
                room_for(*bytes)?;
                // SAFETY: the caller promises so many bytes at the address.
                let own = unsafe { std::slice::from_raw_parts(has.address as *const u8, *bytes as usize) };
                parts.insert(*role, own.to_vec());
            }
        }
        for (role, bytes) in self.rank.run(&mut *link.messages, &parts)? {
            let place = self.memory.get(&role).copied().unwrap_or_default();
            // SAFETY: as above; the output has as many bytes as were compared.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.address as *mut u8, bytes.len()) };
        }
        Ok(())
    }
}

impl From<RunError> for CallFailure {
    fn from(error: RunError) -> CallFailure {
        let status = match error {
            RunError::Ranks(error) => return error.into(),
            RunError::Refused(refusal) => return refusal.into(),
            RunError::Launch { source, .. } => return (*source).into(),
            RunError::Plan { what, source } => {
                return match source.downcast::<qkvault::Error>() {
                    Ok(error) => (*error).into(),
                    Err(other) => CallFailure::new(QKV_ERROR_LIBRARY, format!("{what}: {other}")),
                };
            }
            RunError::Operand { .. } | RunError::Number { .. } | RunError::Lengths { .. } => {
                return CallFailure::argument(error.to_string());
            }
            RunError::Driver { .. } => QKV_ERROR_DEVICE,
            RunError::Capture | RunError::FirstRun => QKV_ERROR_CAPTURED,
            _ => QKV_ERROR_INTERNAL,
        };
        CallFailure::new(status, error.to_string())
    }
}

impl From<SimulateError> for CallFailure {
    fn from(error: SimulateError) -> CallFailure {
        match error {
            SimulateError::Oracle(error) => error.into(),
            SimulateError::Exchange(error) => CommError::into(error),
            SimulateError::Forward(refusal) => refusal.into(),
            other => CallFailure::argument(other.to_string()),
        }
    }
}
