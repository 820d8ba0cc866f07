//! The metadata of a step on the host, with the ranges of words that changed and must be copied to the device.

use std::ops::Range;

use super::error::{BatchInputError, BatchInputErrors};
use super::layout::{SectionKind, StepLayout, StepSide};
use super::step::{Rows, Step};

/// More keys than the widest tile of a kernel has. A kernel that reads keys in tiles looks up the pages of a whole
/// tile, also beyond the length of a sequence, and multiplies their rows by a probability of zero: NaN stays NaN (seen
/// on an H200 with cuDNN 9.19, pages of 16 to 64 rows). So entries up to this far beyond the length name the sequence's
/// first page. That page stays the same while the sequence grows, so that a sequence with a new page changes one entry.
const TILE: i64 = 256;

/// The metadata of a step in one block on the host. Filling it allocates nothing.
#[derive(Clone, Debug)]
pub struct StepBuffer {
    layout: StepLayout,
    words: Vec<i32>,
    /// Number of sequences of the last step.
    active: usize,
    /// The ranges of words that the last step changed.
    changed: Vec<Range<usize>>,
}

/// Most words between two changes that are copied together: copying this many takes as long as another copy.
const GAP: usize = 1 << 12;

/// Most words between two changes that are noted as one.
const NEAR: usize = 64;

impl StepBuffer {
    /// A block in which every sequence is idle. It takes [`StepLayout::host_bytes`] of memory.
    #[must_use]
    pub fn new(layout: StepLayout) -> StepBuffer {
        let words = vec![0; layout.words()];
        // At most two changes of each sequence are noted in a section.
        let changed = Vec::with_capacity(layout.sections.len() * (2 * layout.batch + 2));
        StepBuffer { layout, words, active: 0, changed }
    }

    /// The layout of the block.
    #[must_use]
    pub fn layout(&self) -> &StepLayout {
        &self.layout
    }

    /// The words of the block.
    #[must_use]
    pub fn words(&self) -> &[i32] {
        &self.words
    }

    /// The ranges of words that the last step changed, in order.
    #[must_use]
    pub fn changed(&self) -> &[Range<usize>] {
        &self.changed
    }

    /// The number of sequences of the last step.
    #[must_use]
    pub const fn sequences(&self) -> usize {
        self.active
    }

    /// Fills the block with a step, and returns the ranges of words that changed, in order. It allocates nothing; a
    /// table that did not change costs a comparison of memory.
    ///
    /// # Errors
    ///
    /// [`BatchInputErrors`] with the errors in the step; the block stays as it was then.
    pub fn fill<T: AsRef<[i32]>>(&mut self, step: &Step<'_, T>) -> Result<&[Range<usize>], BatchInputErrors> {
        self.layout.check(step, Some(&self.words))?;
        let StepBuffer { layout, words, active, changed } = self;
        changed.clear();
        for section in &layout.sections {
            let own = &mut words[section.at..section.at + section.words];
            match section.kind {
                SectionKind::Lengths(side) => {
                    let least = if side == StepSide::Keys { layout.least_keys } else { 0 };
                    lengths(&mut StepWriter { words: own, at: section.at, changed }, rows(step, side), least);
                }
                SectionKind::Offsets { side, row, wide, room: _ } => {
                    let writer = &mut StepWriter { words: own, at: section.at, changed };
                    offsets(writer, rows(step, side), layout.batch, row, wide);
                }
                SectionKind::Table { values, width, pages: _, rows } => {
                    let table = step.value_pages.filter(|_| values).unwrap_or(step.pages);
                    let pages = |keys: i64| ((keys + rows - 1) / rows).unsigned_abs() as usize;
                    let lines = own.chunks_mut(width).zip(table).enumerate();
                    for (sequence, (line, entries)) in lines {
                        let (keys, entries) = (step.keys.length(sequence), entries.as_ref());
                        let (used, reached) = (pages(keys), pages(keys + TILE).min(width));
                        let (Some(&first), true) = (entries.first(), used > 0) else { continue };
                        let at = section.at + sequence * width;
                        put_all(&mut line[..used], &entries[..used], at, changed);
                        let mut other = line[used..reached].iter().map(|&page| page != first);
                        if let Some(skip) = other.position(|other| other) {
                            line[used + skip..reached].fill(first);
                            note(changed, at + used + skip..at + reached);
                        }
                    }
                }
            }
            join(changed, section.at..section.at + section.words);
        }
        *active = step.queries.sequences();
        Ok(changed)
    }

    /// Compares a copy of the block from the device with this one, and checks it as a kernel reads it.
    ///
    /// # Errors
    ///
    /// [`BatchInputErrors`] for the first difference, or with the errors in the copy.
    pub fn verify(&self, device: &[i32]) -> Result<(), BatchInputErrors> {
        self.layout.check_words(device)?;
        for section in &self.layout.sections {
            for word in 0..section.words {
                let (expected, found) = (self.words[section.at + word], device.get(section.at + word));
                let found = found.copied().unwrap_or(i32::MIN);
                if found != expected {
                    return Err(BatchInputError::Overwritten { operand: section.role, word, found, expected }.into());
                }
            }
        }
        Ok(())
    }
}

const fn rows<'a, T>(step: &Step<'a, T>, side: StepSide) -> Rows<'a> {
    match side {
        StepSide::Queries => step.queries,
        StepSide::Keys => step.keys,
    }
}

/// Writes lengths; the least for idle sequences.
fn lengths(writer: &mut StepWriter<'_>, rows: Rows<'_>, least: i64) {
    for at in 0..writer.words.len() {
        let length = if at < rows.sequences() { rows.length(at) } else { 0 };
        // `check` found it within the plan's maximum, which has 32 bits.
        writer.put(at, length.max(least) as i32);
    }
}

/// Writes the elements before each sequence; idle sequences begin where the last one ends.
fn offsets(writer: &mut StepWriter<'_>, rows: Rows<'_>, batch: usize, row: i64, wide: bool) {
    let mut total = 0_i64;
    for at in 0..=batch {
        let element = total * row;
        if wide {
            let bytes = element.to_ne_bytes();
            writer.put(2 * at, i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            writer.put(2 * at + 1, i32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]));
        } else {
            // `check` found that it fits.
            writer.put(at, element as i32);
        }
        if at < rows.sequences() {
            total += rows.length(at);
        }
    }
}

/// Replaces entries, and notes the range in which they differ.
fn put_all(line: &mut [i32], entries: &[i32], at: usize, changed: &mut Vec<Range<usize>>) {
    // Most tables are equal at most steps, so compare the whole first.
    if *line == *entries {
        return;
    }
    let mut differ = line.iter().zip(entries).map(|(a, b)| a != b);
    let first = differ.position(|d| d).unwrap_or(0);
    let end = first + 1 + differ.rposition(|d| d).map_or(0, |last| last + 1);
    line[first..end].copy_from_slice(&entries[first..end]);
    note(changed, at + first..at + end);
}

/// Notes a change, and joins it with the last one if they are near each other.
fn note(changed: &mut Vec<Range<usize>>, range: Range<usize>) {
    match changed.last_mut() {
        Some(last) if range.start >= last.start && range.start <= last.end + NEAR => last.end = last.end.max(range.end),
        _ => changed.push(range),
    }
}

/// Joins the changes of a section that are near each other.
fn join(changed: &mut Vec<Range<usize>>, section: Range<usize>) {
    let first = changed.partition_point(|range| range.end <= section.start);
    let mut kept = first;
    for at in first + 1..changed.len() {
        let (kept_end, next) = (changed[kept].end, changed[at].clone());
        if next.start - kept_end <= GAP {
            changed[kept].end = next.end;
        } else {
            kept += 1;
            changed.swap(kept, at);
        }
    }
    changed.truncate(kept + 1);
}

struct StepWriter<'a> {
    words: &'a mut [i32],
    /// Index of the first word in the block.
    at: usize,
    changed: &'a mut Vec<Range<usize>>,
}

impl StepWriter<'_> {
    fn put(&mut self, at: usize, word: i32) {
        if self.words[at] != word {
            self.words[at] = word;
            note(self.changed, self.at + at..self.at + at + 1);
        }
    }
}
