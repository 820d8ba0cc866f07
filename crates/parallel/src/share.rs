//! From an operand of the whole attention to the parts that ranks hold, and back, as bytes of the host.

use qkvault_graph::{Role, Tensor, operand};

use crate::maker::flat;
use crate::{HeldPart, Schedule};

impl Schedule {
    /// The bytes of a rank's buffer of an operand, from those of the whole operand in its own strides. What the rank
    /// does not hold is zero. `None` if the rank has no such buffer, or the whole is shorter than its description.
    #[must_use]
    pub fn part(&self, rank: u32, role: Role, whole: &[u8]) -> Option<Vec<u8>> {
        let (from, buffer) = self.tensors(rank, role)?;
        let size = buffer.dtype.size();
        let mut part = vec![0; usize::try_from(buffer.span()?).ok()? * size];
        for held in self.held(rank, role) {
            for (there, here) in rows(held, &from, &buffer) {
                let row = held.piece.dims[3] as usize * size;
                part.get_mut(here * size..)?.get_mut(..row)?.copy_from_slice(whole.get(there * size..)?.get(..row)?);
            }
        }
        Some(part)
    }

    /// Puts what a rank holds of an operand into the whole operand. `None` as [`Schedule::part`].
    pub fn collect(&self, rank: u32, role: Role, part: &[u8], whole: &mut [u8]) -> Option<()> {
        let (to, buffer) = self.tensors(rank, role)?;
        let size = buffer.dtype.size();
        for held in self.held(rank, role) {
            for (there, here) in rows(held, &to, &buffer) {
                let row = held.piece.dims[3] as usize * size;
                whole.get_mut(there * size..)?.get_mut(..row)?.copy_from_slice(part.get(here * size..)?.get(..row)?);
            }
        }
        Some(())
    }

    /// The tensor of the whole operand as it lies in memory, and that of the rank's buffer.
    fn tensors(&self, rank: u32, role: Role) -> Option<(Tensor, Tensor)> {
        let whole = operand(self.attention.get(), role)?;
        let buffer = self.ranks.get(rank as usize)?.buffers.iter().find(|b| b.operand == Some(role))?;
        Some((flat(&whole.tensor), buffer.tensor))
    }

    fn held(&self, rank: u32, role: Role) -> impl Iterator<Item = &HeldPart> {
        let rank = &self.ranks[rank as usize];
        rank.held.iter().filter(move |held| rank.buffers[held.piece.buffer as usize].operand == Some(role))
    }
}

/// For each row of a part, the element that it begins with in the whole, and in the rank's buffer.
fn rows(held: &HeldPart, whole: &Tensor, buffer: &Tensor) -> impl Iterator<Item = (usize, usize)> {
    let (start, piece, whole, buffer) = (held.start, held.piece, whole.strides, buffer.strides);
    let [b, h, s, _] = piece.dims;
    (0..b * h * s).map(move |n| {
        let at = [n / s / h, n / s % h, n % s, 0];
        let place = |start: [i64; 4], strides: [i64; 4]| {
            (0..4).map(|dim| (start[dim] + at[dim]) * strides[dim]).sum::<i64>() as usize
        };
        (place(start, whole), place(piece.start, buffer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scheme, Sharding, schedule};
    use qkvault_graph::{Attention, DType};

    #[test]
    fn parts_of_all_ranks_are_the_whole() {
        let attention = Attention::bshd(2, (4, 2), (12, 12), 8, DType::BF16).with_stats().validate().expect("valid");
        let made = schedule(&attention, &Sharding::new(3, Scheme::Gather { groups: 1 })).expect("taken");
        for (role, bytes) in
            [(Role::Q, 2 * 12 * 4 * 8 * 2), (Role::K, 2 * 12 * 2 * 8 * 2), (Role::Stats, 2 * 4 * 12 * 4)]
        {
            let whole: Vec<u8> = (0..bytes).map(|n| (n * 7 % 251) as u8).collect();
            let mut again = vec![0; whole.len()];
            for rank in 0..3 {
                let part = made.part(rank, role, &whole).expect("is held");
                assert_eq!(part.len() * 3, whole.len(), "{role}");
                made.collect(rank, role, &part, &mut again).expect("fits");
            }
            assert_eq!(whole, again, "{role}");
        }
        assert!(made.part(0, Role::Sink, &[]).is_none() && made.part(0, Role::Q, &[0; 8]).is_none());
    }
}
