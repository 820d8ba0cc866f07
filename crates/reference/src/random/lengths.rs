//! Random lengths that fit an attention, and the offsets and page tables for them.

use qkvault_base::random::Rng;
use qkvault_graph::{Attention, Corner, DType, Lengths, Role, Storage, Tensor};

use super::{LengthChoice, RandomChoice};
use crate::{Buffer, Inputs, Operand};

/// Query and KV lengths of every sequence.
pub(super) struct DrawnLengths {
    pub(super) q: Vec<usize>,
    pub(super) kv: Vec<usize>,
}

/// Draws lengths for this choice. Exact lengths are not checked here, but when they are used.
pub(super) fn draw(a: &Attention, operands: &[Operand], choice: &RandomChoice, rng: &mut Rng) -> DrawnLengths {
    let batch = a.batch() as usize;
    let (s_q, s_kv) = (a.q.dims[2] as usize, a.k.dims[2] as usize);
    let full = DrawnLengths { q: vec![s_q; batch], kv: vec![s_kv; batch] };
    if a.mask.lengths == Lengths::Full {
        return full;
    }
    let least = match &choice.lengths {
        LengthChoice::Exact { q, kv } => return DrawnLengths { q: q.clone(), kv: kv.clone() },
        LengthChoice::Full => None,
        LengthChoice::Varied => Some(1),
        LengthChoice::Any => Some(0),
    };
    let mut drawn = match least {
        None => full,
        Some(least) => DrawnLengths {
            q: (0..batch).map(|_| rng.within(least, s_q)).collect(),
            kv: (0..batch).map(|_| rng.within(least, s_kv)).collect(),
        },
    };
    let room = |kv: bool| {
        let tokens = |o: &Operand| match o.tensor.storage {
            Storage::Varlen { tokens } if is_kv(o.role) == kv => Some(tokens as usize),
            _ => None,
        };
        operands.iter().filter_map(tokens).min().unwrap_or(usize::MAX)
    };
    // Only `LengthChoice::Any` includes queries that see no key.
    if least == Some(1) && a.mask.band.is_some_and(|band| band.corner == Corner::BottomRight) {
        for (q, kv) in drawn.q.iter_mut().zip(&mut drawn.kv) {
            *kv = (*kv).max(*q).min(s_kv);
            *q = (*q).min(*kv);
        }
    }
    shrink(&mut drawn.q, room(false));
    shrink(&mut drawn.kv, room(true));
    if a.mask.band.is_some_and(|band| band.corner == Corner::BottomRight) && least != Some(0) {
        drawn.q.iter_mut().zip(&drawn.kv).for_each(|(q, kv)| *q = (*q).min(*kv));
    }
    drawn
}

fn is_kv(role: Role) -> bool {
    matches!(role, Role::K | Role::KT | Role::V | Role::DK | Role::DV)
}

/// Shortens the longest sequences until all fit: always the longest by one, of equal ones the last.
fn shrink(lens: &mut [usize], room: usize) {
    let at_most = |level: usize| lens.iter().map(|&n| n.min(level)).sum::<usize>();
    let longest = lens.iter().copied().max().unwrap_or(0);
    if at_most(longest) <= room {
        return;
    }
    // The highest level to which all that are longer can be cut. They have one more each as long as there is room.
    let (mut level, mut above) = (0, longest);
    while above - level > 1 {
        let middle = level + (above - level) / 2;
        *(if at_most(middle) <= room { &mut level } else { &mut above }) = middle;
    }
    let mut spare = room.saturating_sub(at_most(level));
    for n in lens.iter_mut().filter(|n| **n > level) {
        *n = level + usize::from(spare > 0);
        spare = spare.saturating_sub(1);
    }
}

/// Binds the offsets of every varlen operand. Sequences are in order; unused room lies between them if `spread`, else
/// at the end.
pub(super) fn offsets(
    operands: &[Operand],
    drawn: &DrawnLengths,
    choice: &RandomChoice,
    rng: &mut Rng,
    inputs: &mut Inputs,
) {
    for operand in operands {
        let (Storage::Varlen { tokens }, Some(varlen)) = (operand.tensor.storage, operand.role.offsets()) else {
            continue;
        };
        let role = Role::Offsets(varlen);
        if inputs.get(role).is_some() {
            continue;
        }
        let kv = is_kv(operand.role);
        let lens = if kv { &drawn.kv } else { &drawn.q };
        let mut spare = (tokens as usize).saturating_sub(lens.iter().sum());
        let (mut start, mut starts) = (0, vec![0]);
        for &len in lens {
            let gap = if choice.spread { rng.within(0, spare) } else { 0 };
            spare -= gap;
            // The gap follows the sequence, because offsets begin at the first row.
            start += len + gap;
            starts.push(start);
        }
        let step = operand.tensor.strides[2] as f64;
        inputs.insert(role, Buffer::from_values(DType::I64, starts.iter().map(|&token| token as f64 * step)));
    }
}

/// A page table with pages in random order. Pages repeat only if the pool has too few.
pub(super) fn page_table(t: &Tensor, drawn: &DrawnLengths, rng: &mut Rng) -> Option<Buffer> {
    let Storage::Paged { pages, page_size } = t.storage else { return None };
    let per_sequence = t.pages_per_sequence()? as usize;
    let mut pool: Vec<usize> = (0..pages as usize).collect();
    rng.shuffle(&mut pool);
    let mut next = pool.iter().copied().cycle();
    let mut table = Vec::with_capacity(drawn.kv.len() * per_sequence);
    for &len in &drawn.kv {
        let used = len.div_ceil(page_size as usize);
        for entry in 0..per_sequence {
            // Entries beyond the length name a valid page, because a kernel may fetch it.
            table.push(if entry < used { next.next().unwrap_or(0) } else { pool[0] } as f64);
        }
    }
    Some(Buffer::from_values(DType::I32, table))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row at a time: what it was, and what seeds of records stand for.
    fn one_by_one(lens: &mut [usize], room: usize) {
        let mut sum: usize = lens.iter().sum();
        while sum > room {
            if let Some(longest) = lens.iter_mut().max_by_key(|n| **n) {
                *longest -= 1;
            }
            sum -= 1;
        }
    }

    #[test]
    fn audit_6_long_sequences_are_cut_to_their_room_at_once_and_as_before() {
        let mut rng = Rng::new(5);
        for _ in 0..2000 {
            let lens: Vec<usize> = (0..rng.within(1, 7)).map(|_| rng.within(0, 12)).collect();
            let room = rng.within(0, 40);
            let (mut slow, mut fast) = (lens.clone(), lens.clone());
            one_by_one(&mut slow, room);
            shrink(&mut fast, room);
            assert_eq!(fast, slow, "{lens:?} in {room}");
        }
        let mut lens = vec![i32::MAX as usize; 1000];
        shrink(&mut lens, 1500);
        assert_eq!((lens[0], lens[499], lens[500], lens[999]), (2, 2, 1, 1));
    }
}
