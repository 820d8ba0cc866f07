//! Lists that follow from the description: those of a predicate that reads places and constants alone. A plan has them
//! as data, and no launch makes them.

use qkvault_graph::expr::{NodeId, Program, Ty};
use qkvault_graph::{Band, Corner, Valid};

use super::intervals::{self, Interval, Tile};
use super::layout::{ListsLayout, ScoreTiles};
use super::scores::{self, KEYS, Lanes, Place};
use crate::recipe::Limits;

/// Scores of a part of a tile that are looked at one by one where bounds leave it open what they are.
const LOOK: i64 = 256;

/// The lists of a mask that no launch changes.
#[derive(Clone, Debug)]
pub struct KnownLists {
    predicate: Program,
    band: Option<Band>,
    lengths: (i64, i64),
    tiles: ScoreTiles,
    /// Where the lists lie in [`KnownLists::bytes`].
    pub layout: ListsLayout,
}

impl KnownLists {
    /// The lists of an attention that has [`BlockLists`](super::BlockLists), if its predicate is of integers and reads
    /// no scalar and no tensor, there is no block mask, and the lists are no more than a plan may have as data.
    #[must_use]
    pub fn for_attention(a: &Valid, tiles: ScoreTiles) -> Option<KnownLists> {
        let predicate = a.mask.mask_mod.as_ref()?.program();
        let reads = a.block_mask || !predicate.scalars().is_empty() || !predicate.tensors().is_empty();
        let float = |id: usize| predicate.ty(NodeId(id as u32)) == Ty::Float;
        if reads || (0..predicate.nodes().len()).any(float) {
            return None;
        }
        let layout = ListsLayout::for_attention(a, tiles, 0).filter(|layout| layout.end <= Limits::CONSTANTS)?;
        Some(KnownLists { predicate: predicate.clone(), band: a.mask.band, lengths: a.seq(), tiles, layout })
    }

    /// The tiles that are listed.
    #[must_use]
    pub const fn tiles(&self) -> ScoreTiles {
        self.tiles
    }

    /// The lists: of some milliseconds where bounds say what most tiles are.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let ListsLayout { batch, heads, rows, columns, at, end } = &self.layout;
        let mut bytes = vec![0; usize::try_from(*end).unwrap_or(0)];
        let mut put = |list: usize, place: i64, number: i64| {
            let at = at[list] as usize + place as usize * 4;
            bytes[at..at + 4].copy_from_slice(&(number as i32).to_le_bytes());
        };
        let mut room = Room::default();
        for line in 0..self.layout.lines() {
            let (batch, head, row) = (line / (heads * rows) % batch, line / rows % heads, line % rows);
            let mut counts = [0; 2];
            for column in 0..*columns {
                let kind = match self.found(batch, head, row, column, &mut room) {
                    Found { seen: false, .. } => continue,
                    Found { hidden, .. } => usize::from(!hidden),
                };
                put(kind * 2 + 1, line * columns + counts[kind], column);
                counts[kind] += 1;
            }
            put(0, line, counts[0]);
            put(2, line, counts[1]);
        }
        bytes
    }

    /// Whether these may be lists of this layout: in each the numbers of tiles rise, and there are no more of them than
    /// there are tiles. A kernel that follows them leaves no memory of its own.
    #[must_use]
    pub fn may_be(&self, bytes: &[u8]) -> bool {
        let ListsLayout { columns, at, end, .. } = &self.layout;
        if bytes.len() as u64 != *end {
            return false;
        }
        let number = |list: usize, place: i64| {
            let at = at[list] as usize + place as usize * 4;
            i64::from(i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
        };
        let rises = |list: usize, line: i64| {
            let count = number(list, line);
            let mut tiles = (0..count.min(*columns)).map(|n| number(list + 1, line * columns + n));
            (0..=*columns).contains(&count)
                && tiles.try_fold(-1, |last, tile| (last < tile && tile < *columns).then_some(tile)).is_some()
        };
        (0..self.layout.lines()).all(|line| rises(0, line) && rises(2, line))
    }

    /// What there is in a tile.
    fn found(&self, batch: i64, head: i64, row: i64, column: i64, room: &mut Room) -> Found {
        let (query, key) = if self.tiles.by_keys { (column, row) } else { (row, column) };
        let range = |at: i64, tile: i64, end: i64| Interval { least: at * tile, most: ((at + 1) * tile).min(end) - 1 };
        let (s_q, s_kv) = self.lengths;
        let (queries, keys) = (range(query, self.tiles.queries, s_q), range(key, self.tiles.keys, s_kv));
        let mut found = Found::default();
        self.look(&Tile { batch, head, queries, keys, lengths: self.lengths }, &mut found, room);
        found
    }

    /// Adds what there is in a part of a tile, until both are found: halves of it where nothing is sure of the whole.
    fn look(&self, tile: &Tile, found: &mut Found, room: &mut Room) {
        let sure = self.ahead(tile).and(intervals::bounds(&self.predicate, tile, &mut room.bounds));
        if sure.is_one() {
            return found.add(sure == Interval::exactly(1));
        }
        let (queries, keys) = (tile.queries, tile.keys);
        if queries.count() * keys.count() <= LOOK {
            return self.each(tile, found, room);
        }
        let halves = |of: Interval| {
            let middle = of.least + of.count() / 2;
            [Interval { most: middle - 1, ..of }, Interval { least: middle, ..of }]
        };
        let parts = if queries.count() > keys.count() {
            halves(queries).map(|queries| Tile { queries, ..*tile })
        } else {
            halves(keys).map(|keys| Tile { keys, ..*tile })
        };
        for part in &parts {
            if !found.both() {
                self.look(part, found, room);
            }
        }
    }

    /// Whether the band may leave out, and let in, something of a tile.
    fn ahead(&self, tile: &Tile) -> Interval {
        let Some(Band { corner, left, right }) = self.band else { return Interval::exactly(1) };
        let shift = if corner == Corner::BottomRight { self.lengths.1 - self.lengths.0 } else { 0 };
        let (queries, keys) = (tile.queries, tile.keys);
        let ahead = Interval { least: keys.least - queries.most - shift, most: keys.most - queries.least - shift };
        let right = right.map_or(Interval::exactly(1), |right| Interval::exactly(right).below(ahead).not());
        left.map_or(right, |left| right.and(Interval::exactly(-left).below(ahead)))
    }

    /// Adds every score of a part of a tile.
    fn each(&self, tile: &Tile, found: &mut Found, room: &mut Room) {
        let (s_q, s_kv) = self.lengths;
        let small = |n: i64| n as i32;
        for query in tile.queries.least..=tile.queries.most {
            for first in (tile.keys.least..=tile.keys.most).step_by(KEYS) {
                let at = [tile.batch, tile.head, query, first].map(small);
                let place = Place { at, lengths: [s_q, s_kv].map(small) };
                let truths = scores::truths(&self.predicate, place, &mut room.lanes);
                for (key, truth) in (first..=tile.keys.most).zip(truths) {
                    let kept = self.band.is_none_or(|band| band.keeps(query, key, s_q, s_kv));
                    found.add(truth == 1 && kept);
                }
                if found.both() {
                    return;
                }
            }
        }
    }
}

/// Whether a key is seen somewhere, and whether one is hidden.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    seen: bool,
    hidden: bool,
}

impl Found {
    const fn both(self) -> bool {
        self.seen && self.hidden
    }

    fn add(&mut self, seen: bool) {
        self.seen |= seen;
        self.hidden |= !seen;
    }
}

/// Memory for values of nodes.
#[derive(Debug, Default)]
struct Room {
    bounds: Vec<Interval>,
    lanes: Vec<Lanes>,
}
