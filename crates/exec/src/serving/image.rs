//! The block of a step's numbers on the host, and which of it changed: what has to be copied to the device.

use std::ops::Range;

use super::error::{StepError, StepErrors};
use super::layout::{Kind, Side, StepLayout};
use super::step::{Rows, Step};

/// Keys of the widest tile of a kernel, with room to spare. A kernel that reads keys in tiles looks up the pages of a whole one,
/// those beyond a sequence's length too, and multiplies what lies there by a probability of zero: NaN stays NaN (seen on an H200
/// with cuDNN 9.19, pages of 16 to 64 rows). So entries that far beyond the length name the sequence's own last page.
const TILE: i64 = 256;

/// A copy of the block on the host. It is filled without allocating.
#[derive(Clone, Debug)]
pub struct StepImage {
    layout: StepLayout,
    words: Vec<i32>,
    /// Sequences of the last step.
    active: usize,
    page_checks: bool,
}

/// Words that changed: of lengths and offsets, which are few, and of each table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Lengths and offsets.
    pub small: Range<usize>,
    /// Tables of keys and of values.
    pub tables: [Range<usize>; 2],
}

impl Dirty {
    /// The ranges that hold anything.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let Dirty { small, tables: [keys, values] } = self;
        [small, keys, values].into_iter().filter(|range| !range.is_empty()).cloned()
    }

    /// Words of all ranges.
    #[must_use]
    pub fn words(&self) -> usize {
        self.ranges().map(|range| range.len()).sum()
    }
}

impl StepImage {
    /// A block in which every sequence is idle. Entries of page tables are looked at in debug builds only, until
    /// [`StepImage::check_pages`] says otherwise.
    #[must_use]
    pub fn new(layout: StepLayout) -> StepImage {
        let words = vec![0; layout.words()];
        StepImage { layout, words, active: 0, page_checks: cfg!(debug_assertions) }
    }

    /// Whether every entry of the tables is looked at with each step: some microseconds for a hundred thousand of them.
    pub fn check_pages(&mut self, always: bool) {
        self.page_checks = always;
    }

    /// The layout.
    #[must_use]
    pub fn layout(&self) -> &StepLayout {
        &self.layout
    }

    /// The block.
    #[must_use]
    pub fn words(&self) -> &[i32] {
        &self.words
    }

    /// Sequences of the last step.
    #[must_use]
    pub const fn sequences(&self) -> usize {
        self.active
    }

    /// Fills the block with a step and says what changed. Nothing is allocated.
    ///
    /// # Errors
    ///
    /// [`StepErrors`]; then the block is as it was.
    pub fn fill<T: AsRef<[i32]>>(&mut self, step: &Step<'_, T>) -> Result<Dirty, StepErrors> {
        self.layout.check(step, self.page_checks)?;
        let StepImage { layout, words, active, page_checks: _ } = self;
        let mut dirty = Dirty::default();
        for section in &layout.sections {
            let mut writer = Writer { words: &mut words[section.at..section.at + section.words], changed: 0..0 };
            match section.kind {
                Kind::Lengths(side) => lengths(&mut writer, rows(step, side)),
                Kind::Offsets { side, row, wide, room: _ } => {
                    offsets(&mut writer, rows(step, side), layout.batch, row, wide);
                }
                Kind::Table { values, width, pages: _, rows } => {
                    let table = step.value_pages.filter(|_| values).unwrap_or(step.pages);
                    let pages = |keys: i64| ((keys + rows - 1) / rows).unsigned_abs() as usize;
                    for (sequence, entries) in table.iter().enumerate() {
                        let (keys, entries) = (step.keys.length(sequence), entries.as_ref());
                        let (used, reached) = (pages(keys), pages(keys + TILE).min(width));
                        let Some(&last) = entries.get(used.saturating_sub(1)) else { continue };
                        let own = entries.iter().take(used).copied().chain(std::iter::repeat(last));
                        for (i, page) in own.take(reached).enumerate() {
                            writer.put(sequence * width + i, page);
                        }
                    }
                }
            }
            let changed = writer.changed;
            if changed.is_empty() {
                continue;
            }
            let changed = changed.start + section.at..changed.end + section.at;
            let range = match section.kind {
                Kind::Table { values, .. } => &mut dirty.tables[usize::from(values)],
                Kind::Lengths(_) | Kind::Offsets { .. } => &mut dirty.small,
            };
            *range = if range.start == range.end {
                changed
            } else {
                range.start.min(changed.start)..range.end.max(changed.end)
            };
        }
        *active = step.queries.sequences();
        Ok(dirty)
    }

    /// Compares a copy of the block from the device with this one, and checks it as a kernel would read it.
    ///
    /// # Errors
    ///
    /// [`StepErrors`].
    pub fn verify(&self, device: &[i32]) -> Result<(), StepErrors> {
        self.layout.check_words(device)?;
        for section in &self.layout.sections {
            for word in 0..section.words {
                let (expected, found) = (self.words[section.at + word], device.get(section.at + word));
                let found = found.copied().unwrap_or(i32::MIN);
                if found != expected {
                    return Err(StepError::Overwritten { operand: section.role, word, found, expected }.into());
                }
            }
        }
        Ok(())
    }
}

const fn rows<'a, T>(step: &Step<'a, T>, side: Side) -> Rows<'a> {
    match side {
        Side::Queries => step.queries,
        Side::Keys => step.keys,
    }
}

/// Lengths, zero beyond the sequences there are.
fn lengths(writer: &mut Writer<'_>, rows: Rows<'_>) {
    for at in 0..writer.words.len() {
        let length = if at < rows.sequences() { rows.length(at) } else { 0 };
        // Checked: no longer than the plan takes, which is 32 bits.
        writer.put(at, length as i32);
    }
}

/// Elements before each sequence; sequences that are not there begin where the last one ends.
fn offsets(writer: &mut Writer<'_>, rows: Rows<'_>, batch: usize, row: i64, wide: bool) {
    let mut total = 0_i64;
    for at in 0..=batch {
        let element = total * row;
        if wide {
            let bytes = element.to_ne_bytes();
            writer.put(2 * at, i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            writer.put(2 * at + 1, i32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]));
        } else {
            // Checked: it fits.
            writer.put(at, element as i32);
        }
        if at < rows.sequences() {
            total += rows.length(at);
        }
    }
}

struct Writer<'a> {
    words: &'a mut [i32],
    changed: Range<usize>,
}

impl Writer<'_> {
    fn put(&mut self, at: usize, word: i32) {
        if self.words[at] != word {
            self.words[at] = word;
            let Range { start, end } = self.changed;
            self.changed = if start == end { at..at + 1 } else { start.min(at)..end.max(at + 1) };
        }
    }
}
