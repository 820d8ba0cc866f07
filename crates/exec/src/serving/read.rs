//! Checking metadata that was copied back from a device, as a kernel reads it, for debugging.

use std::collections::BTreeMap;

use qkvault_graph::{Role, Varlen};

use super::check::{MOST, joined};
use super::error::{BatchInputError, BatchInputErrors};
use super::layout::{SectionKind, StepLayout, StepSection, StepSide};
use super::step::{Rows, Step};

impl StepLayout {
    /// Checks a copy of the block from the device as a kernel reads it, for debugging kernels that write tables or
    /// lengths there. Page tables are checked as far as the lengths in the block reach.
    ///
    /// # Errors
    ///
    /// [`BatchInputErrors`], as for [`StepLayout::check`].
    pub fn check_words(&self, words: &[i32]) -> Result<(), BatchInputErrors> {
        let of = |role| {
            let (_, at, n) = self.operands().find(|(operand, ..)| *operand == role)?;
            words.get(at..at + n)
        };
        self.check_read(&of)
    }

    /// Checks operands that are not in one block, as 32-bit words, for callers who bind their own lengths, offsets and
    /// tables. For a backward, it also checks that the sequences of dQ lie at the places of those of Q, because cuDNN
    /// writes a wrong dQ otherwise.
    ///
    /// # Errors
    ///
    /// [`BatchInputErrors`], as for [`StepLayout::check`], and [`BatchInputError::NoStep`] for a missing operand.
    pub fn check_operands(&self, operands: &BTreeMap<Role, Vec<i32>>) -> Result<(), BatchInputErrors> {
        self.check_read(&|role| operands.get(&role).map(Vec::as_slice))
    }

    fn check_read<'w>(&self, of: &impl Fn(Role) -> Option<&'w [i32]>) -> Result<(), BatchInputErrors> {
        for (role, _, words) in self.operands() {
            let given = of(role).map_or(0, <[i32]>::len);
            if given < words {
                let what = format!("{role} has {given} words of 32 bits, and a step's has {words}");
                return Err(BatchInputError::NoStep { what }.into());
            }
        }
        let list = |role| of(role).unwrap_or(&[]);
        let (queries, keys) = (list(Role::SeqLenQ), list(Role::SeqLenKv));
        let table = |values| {
            let role = if values { Role::PageTableV } else { Role::PageTableK };
            match self.sections.iter().find(|s| s.role == role).map(|s| s.kind) {
                Some(SectionKind::Table { width, .. }) => list(role).chunks(width).take(self.batch).collect::<Vec<_>>(),
                _ => Vec::new(),
            }
        };
        let (queries, keys) = (&queries[..self.batch], &keys[..self.batch]);
        let (k, v) = (table(false), table(true));
        let step =
            Step { queries: Rows::Lengths(queries), keys: Rows::Lengths(keys), pages: &k, value_pages: Some(&v) };
        self.check(&step, None)?;
        let mut errors = Vec::new();
        let mut begins = BTreeMap::new();
        for (role, section) in self.roles() {
            let StepSection { role: _, kind: SectionKind::Offsets { side, row, wide, room }, at: _, words } = *section
            else {
                continue;
            };
            let rows = if side == StepSide::Queries { queries } else { keys };
            let found = &list(role)[..words];
            let entries: Vec<i64> = match wide {
                true => found.chunks_exact(2).map(|pair| joined([pair[0], pair[1]])).collect(),
                false => found.iter().map(|&word| i64::from(word)).collect(),
            };
            let pairs = entries.windows(2).zip(rows).enumerate();
            for (sequence, (pair, &length)) in pairs.filter(|(_, (_, n))| **n > 0) {
                let (begin, end) = (pair[0], pair[0].saturating_add(i64::from(length) * row));
                if begin < 0 || end > pair[1] {
                    let (entry, before) = (sequence + 1, end);
                    errors.push(BatchInputError::Falls { operand: role, entry, given: pair[1], before });
                } else if end > room.saturating_mul(row) {
                    let given = end / row.max(1);
                    errors.push(BatchInputError::Tokens { operand: role, given, room });
                }
            }
            begins.insert(role, entries.into_iter().map(|entry| entry / row.max(1)).collect::<Vec<_>>());
        }
        let [q, d_q] = [Varlen::Q, Varlen::DQ].map(|varlen| begins.get(&Role::Offsets(varlen)));
        if let (Some(q), Some(d_q)) = (q, d_q) {
            for (sequence, ((&needed, &given), _)) in
                q.iter().zip(d_q).zip(queries).enumerate().filter(|(_, (pair, n))| **n > 0 && pair.0 != pair.1)
            {
                errors.push(BatchInputError::Gaps { operand: Role::Offsets(Varlen::DQ), sequence, given, needed });
            }
        }
        errors.truncate(MOST);
        BatchInputErrors::check(errors)
    }
}
