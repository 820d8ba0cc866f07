//! The handler of an attention that the devices of a mesh axis share, in a program that each of them runs: a rank of
//! `qkv_rank` for each call and device.
//!
//! Which rank a device is, the program computes. A device reads it once, when it executes a call for the first time,
//! and Python's side makes the ranks meet. A call is therefore known by its text and by the devices of its mesh, among
//! which a device has one place.
//!
//! Arguments are the description's inputs in its order, less scalars and constants; the sinks of a backward that has
//! their gradient, which a description does not name; and the place of the device: its rank, and the number of the
//! group of ranks, of which a mesh with several axes has some.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

use qkvault::exec::cudarc::driver::result;
use qkvault::exec::raw::DeviceBuffer;
use qkvault::graph::{DType, Role};
use smallvec::SmallVec;

use super::abi;
use super::call::{CallOperand, XlaCall};
use super::cuda::runtime;
use super::frame::{Frame, FrameMemory, code};
use super::handler::handle_with;
use crate::communicator::{CurrentContext, QKV_NO_GPU, driver};
use crate::handle::{borrow, borrow_mut, free};
use crate::rank::{SharedRank, qkv_rank};
use crate::status::{CallFailure, QKV_ERROR_INTERNAL, QKV_OK, guarded};

/// A call and a device, for which a rank is wanted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_xla_meeting {
    /// The description of all ranks together.
    pub text: *const c_char,
    /// The scheme, the order of tokens, and the number of ranks, as words with spaces between them.
    pub sharding: *const c_char,
    /// The mesh and its axis: what ranks that meet have in common.
    pub mesh: *const c_char,
    /// Which of the groups of such a mesh it is.
    pub group: i32,
    /// The rank of the device.
    pub rank: i32,
    /// CUDA's ordinal of the device, or `QKV_NO_GPU`.
    pub device: i32,
    /// The number of the call in its program.
    pub call: i32,
}

/// Makes a rank, which is the handler's from then on; else writes a message of at most so many bytes, with a null
/// character at its end, and returns what is not `QKV_OK`.
pub type MeetRanks =
    unsafe extern "C" fn(*const qkv_xla_meeting, rank: *mut *mut qkv_rank, message: *mut c_char, room: usize) -> i32;

static MEET: RwLock<Option<MeetRanks>> = RwLock::new(None);

/// Most ranks that a GPU keeps of one mesh: each has memory for what it gathers.
const MOST: usize = 64;

/// A device: CUDA's ordinal, or the place of one without a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RankPlace {
    Gpu(i32),
    Host { rank: i32, group: i32 },
}

/// A rank of a call, and where its operands are among arguments and results.
struct MetRank {
    rank: *mut qkv_rank,
    inputs: Vec<(usize, CallOperand)>,
    outputs: Vec<(usize, CallOperand)>,
}

// SAFETY: a rank may be used by one thread after the other.
unsafe impl Send for MetRank {}

impl Drop for MetRank {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's alone.
        let _ = unsafe { free(self.rank) };
    }
}

/// The ranks of a device of one mesh, the last used at the end. All GPUs of a mesh run calls in one order, so all of
/// them forget the same one; CPUs do not, and forget none.
type KeptRanks = Vec<(String, Arc<Mutex<MetRank>>)>;

static RANKS: LazyLock<Mutex<HashMap<(RankPlace, String), KeptRanks>>> = LazyLock::new(Mutex::default);

fn kept() -> MutexGuard<'static, HashMap<(RankPlace, String), KeptRanks>> {
    RANKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(of: &str) -> CString {
    CString::new(of.replace('\0', " ")).unwrap_or_default()
}

impl MetRank {
    /// Meets the other ranks.
    fn meet(frame: Frame<'_>, call: &XlaCall, place: (i32, i32), device: i32) -> Result<MetRank, CallFailure> {
        let meet = *MEET.read().unwrap_or_else(PoisonError::into_inner);
        let meet = meet.ok_or_else(|| CallFailure::argument("ranks meet through qkvault.jax; import it"))?;
        let [whole, sharding, mesh] = ["text", "sharding", "mesh"].map(|name| frame.text(name).map(text));
        let (whole, sharding, mesh) = (whole?, sharding?, mesh?);
        let [text, sharding, mesh] = [&whole, &sharding, &mesh].map(|text| text.as_ptr());
        let call_number = frame.integer("call")?;
        let wanted = qkv_xla_meeting { text, sharding, mesh, group: place.1, rank: place.0, device, call: call_number };
        let (mut rank, mut message) = (std::ptr::null_mut(), vec![0_u8; 4096]);
        // SAFETY: strings and places that live through the call.
        let status = unsafe { meet(&raw const wanted, &raw mut rank, message.as_mut_ptr().cast(), message.len()) };
        if status != QKV_OK {
            message.push(0);
            let told = CStr::from_bytes_until_nul(&message).map(|text| text.to_string_lossy().into_owned());
            return Err(CallFailure::new(status, told.unwrap_or_default()));
        }
        let mut met = MetRank { rank, inputs: Vec::new(), outputs: Vec::new() };
        // SAFETY: a handle that nobody else has.
        let shared = unsafe { borrow(rank) }?;
        for (role, operand) in shared.operands() {
            let Some(output) = operand.given() else { continue };
            let info = operand.info();
            let name = role.name().into_owned();
            let held = CallOperand::new((*role, name), operand.dtype(), info.bytes, info.dims, info.strides);
            if held.held != info.bytes {
                let text = format!("a rank's {role} has {} bytes and strides over {}", held.held, info.bytes);
                return Err(CallFailure::new(QKV_ERROR_INTERNAL, text));
            }
            let list = if output { &call.outputs } else { &call.inputs };
            // What a description does not name comes behind its inputs.
            let unnamed = || (*role == Role::Sink && !output).then_some(list.len());
            let at = list.iter().position(|other| other.role == *role).or_else(unnamed);
            let at = at.ok_or_else(|| CallFailure::new(QKV_ERROR_INTERNAL, format!("the call has no {role}")))?;
            if output { met.outputs.push((at, held)) } else { met.inputs.push((at, held)) }
        }
        Ok(met)
    }

    fn run(&mut self, frame: Frame<'_>, call: &XlaCall, stream: *mut c_void) -> Result<(), CallFailure> {
        let arguments: SmallVec<[FrameMemory<'_>; 16]> = frame.arguments().collect();
        let results: SmallVec<[FrameMemory<'_>; 8]> = frame.results().collect();
        let (own, given) = (self.inputs.len(), arguments.len().saturating_sub(1));
        if own != given || self.outputs.len() != results.len() {
            return Err(CallFailure::argument(format!(
                "the call has {given} arguments and {} results, and its ranks {own} inputs and {} outputs",
                results.len(),
                self.outputs.len()
            )));
        }
        let inputs = self.inputs.iter().map(|(at, operand)| (arguments.get(*at), operand));
        let memory = inputs.chain(self.outputs.iter().map(|(at, operand)| (results.get(*at), operand)));
        let memory: SmallVec<[_; 16]> = memory
            .map(|(memory, operand)| {
                let memory = *memory.ok_or_else(|| CallFailure::argument("the call has too few arguments"))?;
                operand.check(memory)?;
                Ok((operand.role, DeviceBuffer { address: memory.at as u64, bytes: operand.bytes }))
            })
            .collect::<Result<_, CallFailure>>()?;
        // SAFETY: the handle is this value's alone.
        let rank: &mut SharedRank = unsafe { borrow_mut(self.rank) }?;
        for ((role, _), number) in call.scalars.iter().zip(call.numbers(frame)?) {
            rank.set_number(*role, number);
        }
        // SAFETY: XLA's memory of the sizes that were checked, alive until the run has ended on its stream.
        unsafe { rank.run(&memory, stream) }
    }
}

/// The last argument: a device's rank and group, two 32-bit integers.
fn place(
    frame: Frame<'_>,
    read: impl FnOnce(*const c_void) -> Result<[i32; 2], CallFailure>,
) -> Result<(i32, i32), CallFailure> {
    let last = frame.arguments().last().filter(|memory| memory.dtype == code(DType::I32) && memory.dims == [2]);
    let last =
        last.ok_or_else(|| CallFailure::argument("the call's last argument is no place; make it with qkvault.jax"))?;
    read(last.at).map(|[rank, group]| (rank, group))
}

fn execute(frame: Frame<'_>, gpu: bool) -> Result<(), CallFailure> {
    let call = XlaCall::from_frame(frame)?;
    let on_host = |at: *const c_void| {
        // SAFETY: XLA's array of two integers.
        Ok(unsafe { at.cast::<[i32; 2]>().read_unaligned() })
    };
    let (stream, at) = match gpu {
        true => (frame.stream()?, RankPlace::Gpu(frame.ordinal()?)),
        false => {
            let (rank, group) = place(frame, on_host)?;
            (std::ptr::null_mut(), RankPlace::Host { rank, group })
        }
    };
    let mesh = (at, frame.text("mesh")?.to_owned());
    // On a CPU calls meet apart, whatever their text.
    let number = if gpu { String::new() } else { frame.integer("call")?.to_string() };
    let name = [number.as_str(), frame.text("sharding")?, frame.text("text")?].join("\n");
    let known = {
        let mut all = kept();
        let list = all.entry(mesh.clone()).or_default();
        list.iter().position(|(other, _)| *other == name).map(|at| {
            list[at..].rotate_left(1);
            list[list.len() - 1].1.clone()
        })
    };
    let rank = match known {
        Some(rank) => rank,
        None => {
            let (place, device) = match at {
                RankPlace::Gpu(gpu) => (place(frame, |at| on_device(at, gpu, stream))?, gpu),
                RankPlace::Host { rank, group } => ((rank, group), QKV_NO_GPU),
            };
            let met = Arc::new(Mutex::new(MetRank::meet(frame, &call, place, device)?));
            let mut all = kept();
            let list = all.entry(mesh.clone()).or_default();
            list.push((name.clone(), met.clone()));
            let forgotten = (gpu && list.len() > MOST).then(|| list.remove(0));
            drop(all);
            drop(forgotten);
            met
        }
    };
    let ran = rank.lock().unwrap_or_else(PoisonError::into_inner).run(frame, &call, stream);
    if ran.is_err() {
        // Its communicator may be of no more use; the next run meets anew.
        kept().entry(mesh).or_default().retain(|(other, _)| *other != name);
    }
    ran
}

/// Two integers in a GPU's memory, behind what is queued on the stream.
fn on_device(at: *const c_void, gpu: i32, stream: *mut c_void) -> Result<[i32; 2], CallFailure> {
    let plans = runtime()?.rank_plans(gpu)?;
    let _current = CurrentContext::enter(plans.device().context())?;
    let mut found = [0_i32; 2];
    // SAFETY: XLA's array of two integers, and its stream of this GPU. Nothing that waits for another GPU is before the
    // copy, for which the driver may hold a lock.
    unsafe {
        result::stream::synchronize(stream.cast()).map_err(driver)?;
        result::memcpy_dtoh_async(&mut found, at as u64, stream.cast()).map_err(driver)?;
        result::stream::synchronize(stream.cast()).map_err(driver)?;
    }
    Ok(found)
}

/// XLA's handler on GPUs for an attention that several of them share.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_xla_ranks(frame: *mut abi::CallFrame) -> *mut c_void {
    // SAFETY: XLA's frame. A first execution waits for other ranks, which no capture can.
    unsafe { handle_with(frame, 0, |frame| execute(frame, true)).cast() }
}

/// The same on CPUs, by the oracle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_xla_ranks_reference(frame: *mut abi::CallFrame) -> *mut c_void {
    // SAFETY: XLA's frame.
    unsafe { handle_with(frame, 0, |frame| execute(frame, false)).cast() }
}

/// Says how ranks meet.
#[unsafe(no_mangle)]
pub extern "C" fn qkv_xla_meet(meet: Option<MeetRanks>) -> i32 {
    guarded(|| {
        *MEET.write().unwrap_or_else(PoisonError::into_inner) = meet;
        Ok(())
    })
}
