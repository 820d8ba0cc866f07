//! One rank of an attention that several GPUs share: prepared once for a description, run as often as one likes.

use std::ffi::{c_char, c_void};

use qkvault::exec::Number;
use qkvault::exec::raw::DeviceBuffer;
use qkvault::graph::{Role, Valid};
use qkvault::parallel::Schedule;

use crate::communicator::{SharedLink, locked, qkv_communicator};
use crate::context::put_handle;
use crate::describe::{nth, qkv_attention};
use crate::handle::{Opaque, borrow, borrow_mut, free};
use crate::launch::{buffer, number, qkv_named_buffer, qkv_named_number};
use crate::operand::{NamedOperand, qkv_operand};
use crate::rank_body::RankBody;
use crate::sharding::{qkv_sharding, shared};
use crate::sized::{Grows, list, one, put, read, write};
use crate::status::{CallFailure, guarded, guarded_with_memory};
use crate::text::{give_text, name};

/// One rank of a schedule: plans are loaded and memory is there.
///
/// One thread at a time may use it. Free it with `qkv_rank_free`, when its last run has ended.
pub struct qkv_rank {
    _opaque: [u8; 0],
}

/// A part of an operand that a rank has. It never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_part {
    /// Where it begins in the operand of the whole attention.
    pub start: [i64; 4],
    /// Where it begins in the rank's memory of the operand.
    pub at: [i64; 4],
    /// Its extents.
    pub dims: [i64; 4],
}

/// What a run is given, by name and in any order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_rank_args {
    /// Set this to `sizeof(qkv_rank_args)`.
    pub struct_size: usize,
    /// Memory for operands of `qkv_rank_operand`. What is not named keeps its memory.
    pub tensors: *const qkv_named_buffer,
    /// Their number.
    pub tensor_count: usize,
    /// Scalars of the attention. What is not named keeps its number; `scale` begins as one over the square root of the
    /// head dim.
    pub scalars: *const qkv_named_number,
    /// Their number.
    pub scalar_count: usize,
    /// The stream, a `CUstream` or `cudaStream_t`; null is the default stream. Not used without a GPU.
    pub stream: *mut c_void,
}

// SAFETY: numbers and pointers.
unsafe impl Grows for qkv_rank_args {
    const LEAST: usize = size_of::<qkv_rank_args>();
    const NAME: &'static str = "qkv_rank_args";
}

/// What a rank's handle holds.
pub(crate) struct SharedRank {
    attention: Valid,
    schedule: Schedule,
    number: u32,
    operands: Vec<(Role, NamedOperand)>,
    body: RankBody,
    /// After what uses it.
    link: SharedLink,
}

impl Opaque for qkv_rank {
    type Inside = SharedRank;
    const TAG: u64 = 0x0008_6b6e_6172_0000;
    const NAME: &'static str = "qkv_rank";
}

/// Makes the schedule of an attention, compares it with those of the other ranks, and prepares this rank: on a GPU it
/// loads plans as `qkv_prepare` does and allocates what is gathered. All ranks of the communicator call it alike.
///
/// The description is that of all ranks together; an attention that cannot be shared so is `QKV_ERROR_REFUSED` with
/// codes that begin with `shard.`, on every rank and without a word to the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_rank_prepare(
    communicator: *const qkv_communicator,
    attention: *const qkv_attention,
    sharding: *const qkv_sharding,
    rank: *mut *mut qkv_rank,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises handles of these kinds, and a sharding.
        let (link, attention, sharding) =
            unsafe { (borrow(communicator)?, borrow(attention)?.valid.clone(), one(sharding, "the sharding")?) };
        let mut held = locked(link);
        let made = shared(&attention, sharding, held.messages.size())?;
        let number = held.messages.rank();
        let body = RankBody::prepare(&made, &mut held)?;
        drop(held);
        let operands = operands(&attention, &made, number);
        let inside = SharedRank { attention, schedule: made, number, operands, body, link: link.clone() };
        // SAFETY: the caller's place.
        unsafe { put_handle(rank, inside) }
    })
}

impl SharedRank {
    /// The operands of the rank, as they lie in its memory.
    pub(crate) fn operands(&self) -> &[(Role, NamedOperand)] {
        &self.operands
    }

    /// Sets a scalar for the runs that follow.
    pub(crate) fn set_number(&mut self, role: Role, number: Number) {
        self.body.set_number(role, number);
    }

    /// Queues a run.
    ///
    /// # Safety
    ///
    /// As for [`RankBody::run`].
    pub(crate) unsafe fn run(
        &mut self,
        memory: &[(Role, DeviceBuffer)],
        stream: *mut c_void,
    ) -> Result<(), CallFailure> {
        // SAFETY: the caller's promise.
        unsafe { self.body.run(&mut locked(&self.link), memory, stream) }
    }

    /// The one operand that a name stands for, or all of those that share it.
    fn roles(&self, wanted: &str) -> Result<Vec<Role>, CallFailure> {
        let named = self.operands.iter().filter(|(_, operand)| operand.is_named(wanted));
        let roles: Vec<Role> = named.map(|(role, _)| *role).collect();
        if roles.is_empty() { Ok(self.attention.named_roles(wanted)?) } else { Ok(roles) }
    }
}

/// The operands of a rank, as they lie in its memory.
fn operands(attention: &Valid, made: &Schedule, number: u32) -> Vec<(Role, NamedOperand)> {
    let constants = qkvault::exec::raw::constant_values(attention);
    let facts = attention.operand_facts();
    let buffers = made.ranks[number as usize].buffers.iter();
    let known = buffers.filter_map(|buffer| {
        let role = buffer.operand?;
        let constant = constants.iter().any(|(other, _)| *other == role);
        let named = match facts.iter().find(|fact| fact.role == role) {
            Some(fact) => NamedOperand::new(fact, constant),
            // The sinks of a backward, which no launch on a GPU reads.
            None => NamedOperand::input(role, buffer.tensor.dtype),
        };
        Some((role, named.with_tensor(&buffer.tensor)))
    });
    known.collect()
}

/// The number of a rank's operands: tensors that its runs read and write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_rank_operand_count(rank: *const qkv_rank, count: *mut usize) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a rank and a place.
        unsafe { put(count, borrow(rank)?.operands.len(), "the count") }
    })
}

/// An operand of a rank, by its place from 0: extents and strides are those of the rank's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_rank_operand(rank: *const qkv_rank, place: usize, operand: *mut qkv_operand) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a rank.
        let operands = &unsafe { borrow(rank) }?.operands;
        // SAFETY: the caller's pointer is null or to a `qkv_operand` with its size.
        unsafe { write(operand, nth(operands, place)?.1.info()) }
    })
}

/// Which parts of the whole operand lie in a rank's memory of it. `count` has the room of `parts` and gets their
/// number; with null `parts` it gets the number alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_rank_parts(
    rank: *const qkv_rank,
    place: usize,
    parts: *mut qkv_part,
    count: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a rank, and a place with the room.
        let (rank, room) = unsafe { (borrow(rank)?, one(count, "the count")?) };
        let (role, _) = *nth_role(rank, place)?;
        let own = &rank.schedule.ranks[rank.number as usize];
        let held = own.held.iter().filter(|held| own.buffers[held.piece.buffer as usize].operand == Some(role));
        let held = held.map(|held| qkv_part { start: held.start, at: held.piece.start, dims: held.piece.dims });
        let held: Vec<qkv_part> = held.collect();
        // SAFETY: the caller's place.
        unsafe { put(count, held.len(), "the count") }?;
        if parts.is_null() {
            return Ok(());
        }
        if room < held.len() {
            return Err(CallFailure::argument(format!("{} parts are given, and there is room for {room}", held.len())));
        }
        for (at, part) in held.into_iter().enumerate() {
            // SAFETY: the caller promises room for so many.
            unsafe { put(parts.wrapping_add(at), part, "the parts") }?;
        }
        Ok(())
    })
}

fn nth_role(rank: &SharedRank, place: usize) -> Result<&(Role, NamedOperand), CallFailure> {
    nth(&rank.operands, place)
}

/// Sets the lengths of the whole sequences, queries and keys of each, for the runs that follow. It waits for the last
/// run. An attention without lengths of a launch needs none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_rank_set_lengths(
    rank: *mut qkv_rank,
    queries: *const i64,
    keys: *const i64,
    count: usize,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a rank that nothing else uses, and lists of this length.
        let (rank, queries, keys) =
            unsafe { (borrow_mut(rank)?, list(queries, count, "lengths")?, list(keys, count, "lengths")?) };
        rank.body.set_lengths(queries, keys)
    })
}

/// Queues a run: on a GPU it returns before the run ends, and work that is queued on the stream later follows it;
/// without a GPU it returns when all outputs are there. All ranks of the communicator run alike, in the same order.
///
/// Every address is memory of the rank's GPU (without one, of the host) of at least the operand's bytes, until the run
/// has ended. While the stream is captured, a run becomes a part of the graph, which must end before the rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_rank_run(rank: *mut qkv_rank, args: *const qkv_rank_args) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a rank that nothing else uses, and arguments with their size whose lists are as
        // long as they say.
        unsafe {
            let rank = borrow_mut(rank)?;
            let args = read(args)?;
            let tensors = list(args.tensors, args.tensor_count, "tensors")?;
            let scalars = list(args.scalars, args.scalar_count, "scalars")?;
            let mut memory: Vec<(Role, DeviceBuffer)> = Vec::with_capacity(tensors.len());
            for given in tensors {
                let wanted = name(given.name, "a tensor's name")?;
                memory.extend(rank.roles(wanted)?.into_iter().map(|role| (role, buffer(&given.buffer))));
            }
            for given in scalars {
                let number = number(&given.number)?;
                for role in rank.attention.named_roles(name(given.name, "a scalar's name")?)? {
                    rank.set_number(role, number);
                }
            }
            rank.run(&memory, args.stream)
        }
    })
}

/// Waits until the rank's last run has ended, and for a rank that is lost no longer than the deadline.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_rank_wait(rank: *mut qkv_rank, deadline_ms: u32) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a rank that nothing else uses.
        let SharedRank { body, link, .. } = unsafe { borrow_mut(rank) }?;
        body.wait(&mut locked(link), std::time::Duration::from_millis(deadline_ms.into()))
    })
}

/// What the ranks do, in words: the sharding, and the bytes, launches and memory of each. Free it with
/// `qkv_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_rank_explain(rank: *const qkv_rank, text_form: *mut *mut c_char) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a rank.
        let told = unsafe { borrow(rank) }?.schedule.explain();
        // SAFETY: the caller's place.
        unsafe { give_text(text_form, told.to_string()) }
    })
}

/// Frees a rank. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_rank_free(rank: *mut qkv_rank) -> i32 {
    // SAFETY: the caller promises a rank that no call uses any more, or null.
    guarded(|| unsafe { free(rank) })
}
