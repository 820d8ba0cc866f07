//! Checking a step against a plan.

use qkvault_graph::Role;

use super::error::{BatchInputError, BatchInputErrors};
use super::layout::{SectionKind, StepLayout, StepSection, StepSide};
use super::step::{Rows, Step};

/// Most errors that are returned for one step, because an error in one sequence is often in all.
pub(super) const MOST: usize = 16;

impl StepLayout {
    /// Checks a step against the plan. Entries of page tables that a block of words has already were checked when they
    /// came there, so only others are; without words all are.
    ///
    /// # Errors
    ///
    /// The first 16 errors, each with the name of its operand.
    pub fn check<T: AsRef<[i32]>>(&self, step: &Step<'_, T>, words: Option<&[i32]>) -> Result<(), BatchInputErrors> {
        let mut errors = Vec::new();
        let sequences = step.queries.sequences();
        if sequences > self.batch {
            return Err(
                BatchInputError::Sequences { operand: Role::SeqLenQ, given: sequences, most: self.batch }.into()
            );
        }
        let given = step.keys.sequences();
        if given != sequences {
            return Err(BatchInputError::OtherBatch { operand: Role::SeqLenKv, given, needed: sequences }.into());
        }
        self.rows(Role::SeqLenQ, step.queries, self.longest[0], &mut errors);
        self.rows(Role::SeqLenKv, step.keys, self.longest[1], &mut errors);
        if self.aligned {
            for sequence in 0..sequences {
                let (queries, keys) = (step.queries.length(sequence), step.keys.length(sequence));
                if queries > keys && queries > 0 {
                    errors.push(BatchInputError::NoKey { operand: Role::SeqLenKv, sequence, queries, keys });
                }
            }
        }
        if errors.is_empty() {
            for section in &self.sections {
                section_of(section, step, words, &mut errors);
            }
        }
        errors.truncate(MOST);
        BatchInputErrors::check(errors)
    }

    fn rows(&self, operand: Role, rows: Rows<'_>, most: i64, errors: &mut Vec<BatchInputError>) {
        if let Rows::Cumulative(list) = rows {
            let before = std::iter::once(0).chain(list.iter().copied());
            for (entry, (&given, before)) in list.iter().zip(before).enumerate() {
                if given < before || (entry == 0 && given != 0) {
                    errors.push(BatchInputError::Falls { operand, entry, given, before });
                }
            }
            if !errors.is_empty() {
                return;
            }
        }
        for sequence in 0..rows.sequences() {
            let given = rows.length(sequence);
            if !(0..=most).contains(&given) {
                errors.push(BatchInputError::Length { operand, sequence, given, most });
            }
        }
    }
}

/// The 64-bit number of two words in memory.
pub(super) fn joined([a, b]: [i32; 2]) -> i64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&a.to_ne_bytes());
    bytes[4..].copy_from_slice(&b.to_ne_bytes());
    i64::from_ne_bytes(bytes)
}

fn section_of<T: AsRef<[i32]>>(
    section: &StepSection,
    step: &Step<'_, T>,
    words: Option<&[i32]>,
    errors: &mut Vec<BatchInputError>,
) {
    let operand = section.role;
    match section.kind {
        SectionKind::Lengths(_) => {}
        SectionKind::Offsets { side, row, wide, room } => {
            let rows = if side == StepSide::Queries { step.queries } else { step.keys };
            let mut total = 0_i64;
            for sequence in 0..rows.sequences() {
                let given = total.saturating_mul(row);
                if !wide && given > i64::from(i32::MAX) {
                    errors.push(BatchInputError::Overflow { operand, sequence, given });
                    return;
                }
                total = total.saturating_add(rows.length(sequence));
            }
            if total > room {
                errors.push(BatchInputError::Tokens { operand, given: total, room });
            } else if !wide && total.saturating_mul(row) > i64::from(i32::MAX) {
                let sequence = rows.sequences();
                errors.push(BatchInputError::Overflow { operand, sequence, given: total.saturating_mul(row) });
            }
        }
        SectionKind::Table { values, width, pages: pool, rows } => {
            let table = step.value_pages.filter(|_| values).unwrap_or(step.pages);
            let needed = step.keys.sequences();
            if table.len() != needed {
                errors.push(BatchInputError::OtherBatch { operand, given: table.len(), needed });
                return;
            }
            for (sequence, entries) in table.iter().enumerate() {
                let (entries, length) = (entries.as_ref(), step.keys.length(sequence));
                let given = entries.len();
                let needed = ((length + rows - 1) / rows).unsigned_abs() as usize;
                if given < needed {
                    errors.push(BatchInputError::Short { operand, sequence, given, rows: length, needed });
                    continue;
                }
                let used = &entries[..needed];
                let line = words.map(|words| &words[section.at + sequence * width..][..needed]);
                let outside = |page: i32| !(0..pool).contains(&i64::from(page));
                if line == Some(used) || !used.iter().any(|&page| outside(page)) {
                    continue;
                }
                let bad = used.iter().enumerate().filter(|(_, page)| outside(**page));
                errors.extend(bad.map(|(entry, &page)| {
                    let last = pool - 1;
                    BatchInputError::Page { operand, sequence, entry, page, last }
                }));
            }
        }
    }
}
