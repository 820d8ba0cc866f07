//! Batches: the metadata of a step in one block of memory, filled from lengths and pages.

use qkvault::exec::serving::{Rows, Step, StepBuffer, StepLayout};
use qkvault::graph::Role;
use qkvault_base::room_for;

use crate::context::put_handle;
use crate::handle::{Opaque, borrow, borrow_mut, free};
use crate::operand::id;
use crate::plan::qkv_plan;
use crate::sized::{Grows, list, one, put, read, write};
use crate::status::{CallFailure, guarded, guarded_with_memory};

/// Lengths, offsets and page tables of a plan's steps in one block of host memory.
///
/// One thread at a time may use it. Free it with `qkv_batch_free`.
pub struct qkv_batch {
    _opaque: [u8; 0],
}

/// What a batch's handle holds.
#[derive(Debug)]
pub struct Batch {
    buffer: StepBuffer,
    operands: Vec<(Role, usize, usize)>,
}

impl Opaque for qkv_batch {
    type Inside = Batch;
    const TAG: u64 = 0x0006_6863_7461_6276;
    const NAME: &'static str = "qkv_batch";
}

/// The place of an operand in the block of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_batch_operand {
    /// Set this to `sizeof(qkv_batch_operand)`.
    pub struct_size: usize,
    /// The number of its role, as in `qkv_operand`.
    pub role_id: i32,
    /// Must be ignored.
    pub reserved: i32,
    /// Its first byte in the block, a multiple of 256.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

// SAFETY: numbers.
unsafe impl Grows for qkv_batch_operand {
    const LEAST: usize = size_of::<qkv_batch_operand>();
    const NAME: &'static str = "qkv_batch_operand";
}

/// A part of the block of a batch. It never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_range {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// The input of one launch: its sequences in the order of the batch, at most as many as the plan has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_step {
    /// Set this to `sizeof(qkv_step)`.
    pub struct_size: usize,
    /// The number of sequences.
    pub sequences: usize,
    /// New tokens of each sequence; null: one of each.
    pub query_lengths: *const i32,
    /// Keys of each sequence, those of the new tokens included.
    pub key_lengths: *const i32,
    /// Pages of each sequence's keys, as indices into the pool: `page_width` entries for each sequence, of which as
    /// many are read as its keys fill. Null if keys are not paged.
    pub pages: *const i32,
    /// Entries for each sequence.
    pub page_width: usize,
    /// Pages of each sequence's values, if they differ from those of the keys; else null.
    pub value_pages: *const i32,
    /// Must be 0.
    pub reserved: i64,
}

// SAFETY: numbers and pointers.
unsafe impl Grows for qkv_step {
    const LEAST: usize = std::mem::offset_of!(qkv_step, value_pages);
    const NAME: &'static str = "qkv_step";
}

/// The metadata of a plan's steps, of which every sequence is idle. The plan may be compiled ahead, and may be freed.
///
/// Allocate `qkv_batch_data`'s bytes on the GPU, at a multiple of 256, bind each operand of the block at its offset,
/// and copy what changed there before each launch, on the launch's stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_batch_new(plan: *const qkv_plan, batch: *mut *mut qkv_batch) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a plan.
        let plan = unsafe { borrow(plan) }?;
        let layout = StepLayout::for_plan(&plan.attention, &plan.facts)?;
        room_for(layout.host_bytes())?;
        let operands = layout.operands().collect();
        // SAFETY: the caller's place.
        unsafe { put_handle(batch, Batch { buffer: StepBuffer::new(layout), operands }) }
    })
}

/// The number of operands in the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_batch_operand_count(batch: *const qkv_batch, count: *mut usize) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a batch and a place.
        unsafe { put(count, borrow(batch)?.operands.len(), "the count") }
    })
}

/// An operand of the block, by its place from 0. Operands with equal offsets in every step share a part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_batch_operand_at(
    batch: *const qkv_batch,
    place: usize,
    operand: *mut qkv_batch_operand,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a batch.
        let operands = &unsafe { borrow(batch) }?.operands;
        let outside = || CallFailure::argument(format!("place {place} of {}; places begin at 0", operands.len()));
        let &(role, at, words) = operands.get(place).ok_or_else(outside)?;
        let (offset, bytes) = (at as u64 * 4, words as u64 * 4);
        let own = qkv_batch_operand { struct_size: 0, role_id: id(role), reserved: 0, offset, bytes };
        // SAFETY: the caller's pointer is null or to a `qkv_batch_operand` with its size.
        unsafe { write(operand, own) }
    })
}

/// Fills the block with a step, after a check of it: lengths within the plan's, offsets within the buffers, enough
/// pages. If something is wrong, everything is told and the block stays as it was. It allocates little and looks up
/// nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_batch_fill(batch: *mut qkv_batch, step: *const qkv_step) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a batch that nothing else uses, and a step with its size whose lists are as long
        // as it says.
        unsafe {
            let Batch { buffer, .. } = borrow_mut(batch)?;
            let step = read(step)?;
            let most = buffer.layout().batch();
            if step.sequences > most {
                let given = step.sequences;
                let text =
                    format!("a step has {given} sequences, and the plan at most {most}; use a plan for a larger batch");
                return Err(CallFailure::argument(text));
            }
            let qkv_step { sequences, query_lengths, key_lengths, pages, page_width, value_pages, .. } = step;
            let queries = match query_lengths.is_null() {
                true => Rows::One(sequences),
                false => Rows::Lengths(list(query_lengths, sequences, "query_lengths")?),
            };
            let keys = Rows::Lengths(list(key_lengths, sequences, "key_lengths")?);
            let (pages, value_pages) =
                (table(pages, sequences, page_width)?, table(value_pages, sequences, page_width)?);
            let value_pages = (!value_pages.is_empty()).then_some(&value_pages[..]);
            buffer.fill(&Step { queries, keys, pages: &pages, value_pages })?;
            Ok(())
        }
    })
}

/// The lines of a table.
///
/// # Safety
///
/// As for `list`.
unsafe fn table<'a>(at: *const i32, sequences: usize, width: usize) -> Result<Vec<&'a [i32]>, CallFailure> {
    if at.is_null() {
        return Ok(Vec::new());
    }
    let entries = sequences.checked_mul(width).filter(|_| width > 0);
    let entries =
        entries.ok_or_else(|| CallFailure::argument(format!("page_width is {width}; give the entries of a line")))?;
    room_for((sequences * size_of::<&[i32]>()) as u64)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { list(at, entries, "pages") }?.chunks(width).collect())
}

/// The block: its first byte, valid until the batch is freed, and its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_batch_data(batch: *const qkv_batch, data: *mut *const u8, bytes: *mut usize) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a batch and places.
        unsafe {
            let words = borrow(batch)?.buffer.words();
            crate::sized::place(bytes, "its size")?;
            put(data, words.as_ptr().cast(), "the block")?;
            put(bytes, size_of_val(words), "its size")
        }
    })
}

/// The parts of the block that the last `qkv_batch_fill` changed, in order. `count` has the room of `ranges` and gets
/// the number of parts; with a null `ranges` it gets the number alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_batch_changed(batch: *const qkv_batch, ranges: *mut qkv_range, count: *mut usize) -> i32 {
    guarded(|| {
        // SAFETY: the caller promises a batch and a place.
        let (changed, room) = unsafe { (borrow(batch)?.buffer.changed(), one(count, "the number of parts")?) };
        // SAFETY: the caller's place.
        unsafe { put(count, changed.len(), "the number of parts") }?;
        if ranges.is_null() {
            return Ok(());
        }
        if room < changed.len() {
            return Err(CallFailure::argument(format!(
                "{} parts changed, and there is room for {room}",
                changed.len()
            )));
        }
        for (at, range) in changed.iter().enumerate() {
            let part = qkv_range { offset: range.start as u64 * 4, bytes: range.len() as u64 * 4 };
            // SAFETY: the caller promises room for `room` parts.
            unsafe { put(ranges.add(at), part, "the parts") }?;
        }
        Ok(())
    })
}

/// Frees a batch. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_batch_free(batch: *mut qkv_batch) -> i32 {
    // SAFETY: the caller promises a batch that no call uses any more, or null.
    guarded(|| unsafe { free(batch) })
}
