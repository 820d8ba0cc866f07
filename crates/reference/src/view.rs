//! The addresses of an operand's rows in its buffer: dense, varlen with offsets, or paged with a table.

use qkvault_graph::{Attention, Lengths, Role, Storage, Tensor, operand};

use crate::{Inputs, Operand, ReferenceError};

/// The lengths of every sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeqLens {
    pub(crate) q: Vec<usize>,
    pub(crate) kv: Vec<usize>,
}

impl SeqLens {
    /// The bound lengths, or the dims if the attention has no lengths.
    pub(crate) fn for_attention(a: &Attention, inputs: &Inputs) -> Result<SeqLens, ReferenceError> {
        let batch = a.batch() as usize;
        let (s_q, s_kv) = (a.q.dims[2] as usize, a.k.dims[2] as usize);
        let side = |role, most: usize| {
            if a.mask.lengths == Lengths::Full {
                return Ok(vec![most; batch]);
            }
            let buffer = inputs.checked(&operand(a, role).ok_or(ReferenceError::Missing { role })?)?;
            let length = |sequence| {
                let given = buffer.int(sequence);
                let length = usize::try_from(given).ok().filter(|&n| n <= most);
                length.ok_or(ReferenceError::Length { role, sequence, given, most })
            };
            (0..batch).map(length).collect()
        };
        Ok(SeqLens { q: side(Role::SeqLenQ, s_q)?, kv: side(Role::SeqLenKv, s_kv)? })
    }

    /// The lengths for an operand: those of the queries, or those of the keys.
    pub(crate) fn side(&self, role: Role) -> &[usize] {
        match role {
            Role::K | Role::KT | Role::V | Role::DK | Role::DV => &self.kv,
            _ => &self.q,
        }
    }
}

/// Addresses of an operand's elements, in elements from the start of its buffer.
#[derive(Clone, Debug)]
pub struct View {
    /// Batch, head, sequence, head dim.
    pub(crate) dims: [usize; 4],
    strides: [usize; 4],
    base: Base,
}

#[derive(Clone, Debug)]
enum Base {
    Dense,
    /// The first element of each sequence.
    Varlen(Vec<usize>),
    /// The page of each (sequence, page of the sequence). Only entries for rows within the length are checked.
    Paged {
        table: Vec<usize>,
        per_sequence: usize,
        page_size: usize,
    },
}

impl View {
    /// The addresses of an attention's operand, with the lengths, offsets and page tables of `inputs`.
    ///
    /// # Errors
    ///
    /// [`ReferenceError::Missing`] for a role that the attention does not have; an error for invalid lengths, offsets
    /// or page tables.
    pub fn new(attention: &Attention, role: Role, inputs: &Inputs) -> Result<View, ReferenceError> {
        let operand = operand(attention, role).ok_or(ReferenceError::Missing { role })?;
        View::for_operand(&operand, inputs, &SeqLens::for_attention(attention, inputs)?)
    }

    /// The addresses of an operand. Every row within its sequence's length is checked to lie inside the buffer.
    pub(crate) fn for_operand(operand: &Operand, inputs: &Inputs, lens: &SeqLens) -> Result<View, ReferenceError> {
        let Tensor { dims, strides, dtype: _, storage } = operand.tensor;
        let lens = lens.side(operand.role);
        let base = match storage {
            Storage::Dense => Base::Dense,
            Storage::Varlen { tokens: _ } => Base::Varlen(varlen(operand, inputs, lens)?),
            Storage::Paged { pages, page_size } => {
                let role = if operand.role == Role::V { Role::PageTableV } else { Role::PageTableK };
                let per_sequence = (dims[2] + page_size - 1) / page_size;
                let page_size = page_size as usize;
                let table = paged(role, inputs, lens, [per_sequence as usize, page_size], pages)?;
                Base::Paged { table, per_sequence: per_sequence as usize, page_size }
            }
        };
        Ok(View { dims: dims.map(|n| n as usize), strides: strides.map(|n| n as usize), base })
    }

    /// Address of the first element of a row.
    pub(crate) fn row(&self, b: usize, h: usize, s: usize) -> usize {
        let [sb, sh, ss, _] = self.strides;
        match &self.base {
            Base::Dense => b * sb + h * sh + s * ss,
            Base::Varlen(starts) => starts[b] + h * sh + s * ss,
            Base::Paged { table, per_sequence, page_size } => {
                table[b * per_sequence + s / page_size] * sb + h * sh + s % page_size * ss
            }
        }
    }

    /// Address of an element (batch, head, sequence, head dim), in elements from the start of the buffer.
    ///
    /// # Panics
    ///
    /// If the batch, or the page of a row beyond its sequence's length, is out of range.
    #[must_use]
    pub fn at(&self, b: usize, h: usize, s: usize, d: usize) -> usize {
        self.row(b, h, s) + d * self.strides[3]
    }
}

/// The first element of each sequence, from the offsets of this operand.
fn varlen(operand: &Operand, inputs: &Inputs, lens: &[usize]) -> Result<Vec<usize>, ReferenceError> {
    let missing = ReferenceError::Missing { role: operand.role };
    let role = Role::Offsets(operand.role.offsets().ok_or(missing)?);
    let buffer = inputs.buffer(role)?;
    let needed = lens.len() + 1;
    if buffer.len() < needed {
        return Err(ReferenceError::TooShort { role, given: buffer.len(), needed });
    }
    let room = crate::inputs::elements(operand)? as i64;
    let Tensor { dims: [_, heads, _, head_dim], strides: [_, sh, ss, sd], .. } = operand.tensor;
    let start = |sequence: usize| {
        let (given, next) = (buffer.int(sequence), buffer.int(sequence + 1));
        let end = match lens[sequence] {
            // The start of a sequence without rows is not used; it may lie past the buffer.
            0 => 0,
            rows => given.saturating_add((rows as i64 - 1) * ss + (heads - 1) * sh + (head_dim - 1) * sd + 1),
        };
        match usize::try_from(given) {
            Ok(start) if given <= next && end <= room => Ok(start),
            _ => Err(ReferenceError::Offset { role, sequence, given, end, room }),
        }
    };
    (0..lens.len()).map(start).collect()
}

/// The page table. Entries for rows within the length are checked; the others are not used.
fn paged(
    role: Role,
    inputs: &Inputs,
    lens: &[usize],
    [per_sequence, page_size]: [usize; 2],
    pages: i64,
) -> Result<Vec<usize>, ReferenceError> {
    let buffer = inputs.buffer(role)?;
    let needed = lens.len() * per_sequence;
    if buffer.len() < needed {
        return Err(ReferenceError::TooShort { role, given: buffer.len(), needed });
    }
    let mut table = vec![usize::MAX; needed];
    for (sequence, &len) in lens.iter().enumerate() {
        for entry in 0..len.div_ceil(page_size) {
            let given = buffer.int(sequence * per_sequence + entry);
            table[sequence * per_sequence + entry] = usize::try_from(given)
                .ok()
                .filter(|_| given < pages)
                .ok_or(ReferenceError::Page { role, sequence, entry, given, pages })?;
        }
    }
    Ok(table)
}
