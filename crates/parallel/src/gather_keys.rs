//! How the keys and values of a gather reach a rank's memory: its own are copied, those of others are sent, what the
//! first chunk of queries sees before the rest.

use std::ops::Range;

use qkvault_graph::Role;

use crate::gather::{Gather, by_peer};
use crate::rows::RowRuns;
use crate::step::{BufferBox, Stream, Transfer};
use crate::work::ScheduleWork;

impl Gather<'_> {
    /// The first local token of keys that lie in one chunk of this rank.
    pub(crate) fn own_tokens(&self, work: &ScheduleWork<'_>, keys: (i64, i64)) -> Option<i64> {
        let size = work.tokens().1 / work.sharding.chunks();
        let chunks = (0..).zip(work.sharding.chunks_of(self.m.rank));
        let mut within = chunks.filter(|(_, chunk)| chunk * size <= keys.0 && keys.1 <= (chunk + 1) * size);
        within.next().map(|(place, chunk)| place * size + keys.0 - chunk * size)
    }

    /// The keys that some chunks of this rank see, less those of chunks that see its own alone.
    pub(crate) fn seen(&self, work: &ScheduleWork<'_>, places: &Range<usize>) -> RowRuns {
        let keys = self.chunks()[places.clone()].iter().filter_map(|(_, t)| Some(t.as_ref()?.block.keys));
        RowRuns::from_runs(keys.filter(|keys| self.own_tokens(work, *keys).is_none()))
    }

    /// The caller's keys or values, of the heads of a group.
    pub(crate) fn mine(&self, role: Role, group: i64, gathered: BufferBox) -> Option<BufferBox> {
        let heads = gathered.dims[1];
        self.m.piece(role).map(|mine| mine.heads(group * heads, heads))
    }

    /// Launches beside others come after what is queued so far. They are those of the first chunk.
    pub(crate) fn fork(&mut self) {
        if self.beside {
            let mark = self.m.record(Stream::Compute);
            self.m.wait(Stream::Beside, mark);
        }
    }

    /// What follows comes after the launches of all chunks.
    pub(crate) fn join(&mut self) {
        if self.beside {
            let mark = self.m.record(Stream::Beside);
            self.m.wait(Stream::Compute, mark);
        }
    }

    /// Goes on to a chunk: its launch waits for its keys. Marks are in the order of chunks.
    pub(crate) fn go_on(&mut self, work: &ScheduleWork<'_>, marks: &[u32], place: usize) {
        self.m.launches = if self.beside && place == 0 { Stream::Beside } else { Stream::Compute };
        let own = self.chunks()[place].1.is_none_or(|tile| self.own_tokens(work, tile.block.keys).is_some());
        if !own {
            self.m.wait(self.m.launches, marks[place]);
        }
    }

    /// Moves the keys and values of a group of heads into a slot; the marks tell when those of each chunk are there.
    pub(crate) fn fetch(&mut self, work: &ScheduleWork<'_>, group: i64) -> Vec<u32> {
        let places = self.chunks().len();
        // Launches of the group before hide all of another one.
        let cuts: Vec<usize> = if group == 0 { (0..=places).collect() } else { vec![0, places] };
        let mut copied = RowRuns::default();
        if !self.direct {
            let all = self.kept.clone();
            self.keep(work, group, &all, Stream::Exchange);
            copied = all;
        }
        let mut marks = Vec::new();
        for round in cuts.windows(2).map(|cut| cut[0]..cut[1]) {
            let list = self.messages(work, group, &round);
            // The first chunk's own keys are copied while those of others move.
            let on = if round == (0..1) && places > 1 { Stream::Compute } else { Stream::Exchange };
            let new = self.seen(work, &round).without(&copied);
            self.keep(work, group, &new, on);
            copied = copied.with(&new);
            self.m.exchange(list);
            let mark = self.m.record(Stream::Exchange);
            marks.extend(round.map(|_| mark));
        }
        marks
    }

    /// Copies the rank's own among some keys to the buffers of a group.
    fn keep(&mut self, work: &ScheduleWork<'_>, group: i64, keys: &RowRuns, on: Stream) {
        let size = work.tokens().1 / work.sharding.chunks();
        for (role, gathered) in [Role::K, Role::V].into_iter().zip(self.slots[(group % 2) as usize]) {
            let Some(mine) = self.mine(role, group, gathered) else { continue };
            for (place, chunk) in (0..).zip(work.sharding.chunks_of(self.m.rank)) {
                for (first, end) in keys.within((chunk * size, (chunk + 1) * size)) {
                    let from = mine.tokens(place * size + first - chunk * size, end - first);
                    self.m.copy(on, from, gathered.tokens(self.kept.at(first), end - first));
                }
            }
        }
    }

    /// The messages of what some chunks of every rank see that earlier ones do not.
    fn messages(&self, work: &ScheduleWork<'_>, group: i64, places: &Range<usize>) -> Vec<Transfer> {
        let (rank, size) = (self.m.rank, work.tokens().1 / work.sharding.chunks());
        let mut list = Vec::new();
        for (role, gathered) in [Role::K, Role::V].into_iter().zip(self.slots[(group % 2) as usize]) {
            let Some(mine) = self.mine(role, group, gathered) else { continue };
            for peer in (0..work.sharding.ranks).filter(|peer| *peer != rank) {
                for (from, to, send) in [(rank, peer, true), (peer, rank, false)] {
                    for (place, chunk) in (0..).zip(work.sharding.chunks_of(from)) {
                        let run = (chunk * size, (chunk + 1) * size);
                        let needs = self.plan.needs[to as usize][places.clone()].iter();
                        for (first, end) in needs.flat_map(|needs| needs.within(run)) {
                            let piece = match send && self.direct {
                                true => mine.tokens(place * size + first - run.0, end - first),
                                false => gathered.tokens(self.kept.at(first), end - first),
                            };
                            list.push(Transfer { peer, send, piece });
                        }
                    }
                }
            }
        }
        by_peer(&mut list);
        list
    }
}
