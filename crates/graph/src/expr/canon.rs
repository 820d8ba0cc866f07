//! The canonical form: one list of nodes for all ways to write the same expression, whatever its scalars and tensors
//! are called.
//!
//! Names must not decide the order of operands, so scalars and tensors are distinguished by their uses: colours are
//! refined with the structure around each use until nothing changes. Operands that still have the same colour are
//! exchangeable, so that any choice gives the same nodes, or every order is tried and the least result counts. A choice
//! that gives nodes seen before is not followed again.

use super::arena::{Arena, Operands};
use super::error::ExprError;
use super::items::{Items, items};
use super::limits::{MAX_DEPTH, MAX_NODES};
use super::node::{Node, NodeId};
use super::program::{Program, ScoreExpr};
use super::rank::{Colours, Rank, Written, ranks, write};

/// Most work to distinguish operands, as a number of visited items.
const MAX_WORK: usize = 1 << 22;

/// The canonical closed expression with this root.
pub(super) fn closed(arena: &Arena, root: NodeId) -> Result<ScoreExpr, ExprError> {
    let items = items(arena, root);
    let colours = first_colours(&items, &arena.operands);
    let mut search = Search { items: &items, work: 0, tried: 0 };
    let written = search.best(colours)?;
    check_size(&written.nodes, MAX_NODES)?;
    let height = items.list[items.root as usize].height as usize;
    if height > MAX_DEPTH {
        return Err(ExprError::TooMany { what: "operations in one chain", given: height, limit: MAX_DEPTH });
    }
    let from = &arena.operands;
    let operands = Operands {
        scalars: written.scalars.iter().map(|id| from.scalars[id.at()]).collect(),
        tensors: written.tensors.iter().map(|id| from.tensors[id.at()]).collect(),
        scalar_names: written.scalars.iter().map(|id| from.scalar_names[id.at()].clone()).collect(),
        tensor_names: written.tensors.iter().map(|id| from.tensor_names[id.at()].clone()).collect(),
    };
    Ok(ScoreExpr::from_canonical(Program::from_parts(written.nodes, operands)))
}

/// The nodes with this root in canonical order, scalars and tensors keeping their ids.
pub(super) fn ordered(arena: &Arena, root: NodeId) -> Vec<Node> {
    let items = items(arena, root);
    let ids = |n: usize| (0..n as u32).collect();
    let colours = Colours { scalars: ids(arena.operands.scalars.len()), tensors: ids(arena.operands.tensors.len()) };
    write(&items, &ranks(&items, &colours), false).nodes
}

fn check_size(nodes: &[Node], limit: usize) -> Result<(), ExprError> {
    if nodes.len() > limit { Err(ExprError::TooMany { what: "nodes", given: nodes.len(), limit }) } else { Ok(()) }
}

/// Numbers that are equal for equal values and have the order of the values.
fn dense<T: Ord + Copy>(values: &[T]) -> Vec<u32> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    values.iter().map(|value| sorted.partition_point(|other| other < value) as u32).collect()
}

/// Colours by the kinds of operands; unused operands have separate colours so that they never count as alike.
fn first_colours(items: &Items, operands: &Operands) -> Colours {
    let mut used_scalars = vec![false; operands.scalars.len()];
    let mut used_tensors = vec![false; operands.tensors.len()];
    for item in &items.list {
        match item.node {
            Node::Scalar(id) => used_scalars[id.at()] = true,
            Node::Tensor(id) => used_tensors[id.at()] = true,
            _ => {}
        }
    }
    fn keyed<T: Copy>(specs: &[T], used: &[bool]) -> Vec<(bool, usize, T)> {
        specs
            .iter()
            .zip(used)
            .enumerate()
            .map(|(at, (&spec, &used))| (!used, if used { 0 } else { at }, spec))
            .collect()
    }
    Colours {
        scalars: dense(&keyed(&operands.scalars, &used_scalars)),
        tensors: dense(&keyed(&operands.tensors, &used_tensors)),
    }
}

struct Search<'i> {
    items: &'i Items,
    work: usize,
    tried: usize,
}

impl Search<'_> {
    /// The least list of nodes over all orders of equal-coloured operands.
    fn best(&mut self, colours: Colours) -> Result<Written, ExprError> {
        let (colours, ranks) = self.refined(colours)?;
        let Some(tied) = first_tie(&colours) else {
            return Ok(write(self.items, &ranks, true));
        };
        let mut best: Option<Written> = None;
        let mut seen: Vec<Vec<Node>> = Vec::new();
        for &choice in &tied {
            let chosen = individual(&colours, choice);
            let sample = self.any(chosen.clone())?;
            // The same nodes as after an earlier choice: the two operands are exchangeable, so this choice gives
            // nothing new.
            if seen.contains(&sample.nodes) {
                continue;
            }
            seen.push(sample.nodes);
            let found = self.best(chosen)?;
            if best.as_ref().is_none_or(|best| found.nodes < best.nodes) {
                best = Some(found);
            }
        }
        Ok(best.expect("a tie has members"))
    }

    /// The nodes if the first operand of equal colours is always chosen.
    fn any(&mut self, mut colours: Colours) -> Result<Written, ExprError> {
        self.tried += 1;
        loop {
            let (refined, ranks) = self.refined(colours)?;
            match first_tie(&refined) {
                None => return Ok(write(self.items, &ranks, true)),
                Some(tied) => colours = individual(&refined, tied[0]),
            }
        }
    }

    /// Refines colours with the structure around each use until nothing changes.
    fn refined(&mut self, mut colours: Colours) -> Result<(Colours, Vec<Rank>), ExprError> {
        loop {
            self.work += self.items.list.len();
            if self.work > MAX_WORK {
                return Err(ExprError::TooSymmetric {
                    operands: colours.scalars.len() + colours.tensors.len(),
                    tried: self.tried,
                });
            }
            let ranks = ranks(self.items, &colours);
            if first_tie(&colours).is_none() {
                return Ok((colours, ranks));
            }
            let next = recoloured(self.items, &ranks, &colours);
            if next == colours {
                return Ok((colours, ranks));
            }
            colours = next;
        }
    }
}

/// One operand that shares its colour.
#[derive(Clone, Copy)]
enum Operand {
    Scalar(usize),
    Tensor(usize),
}

/// The members of the first colour that several operands share.
fn first_tie(colours: &Colours) -> Option<Vec<Operand>> {
    fn tie(colours: &[u32]) -> Option<Vec<usize>> {
        let least = (0..colours.len())
            .filter(|&i| colours.iter().filter(|&&c| c == colours[i]).count() > 1)
            .map(|i| colours[i])
            .min()?;
        Some((0..colours.len()).filter(|&i| colours[i] == least).collect())
    }
    let scalars = tie(&colours.scalars).map(|tied| tied.into_iter().map(Operand::Scalar).collect());
    scalars.or_else(|| tie(&colours.tensors).map(|tied| tied.into_iter().map(Operand::Tensor).collect()))
}

/// The colours, with one operand before the others of its colour.
fn individual(colours: &Colours, choice: Operand) -> Colours {
    let mark = |colours: &[u32], chosen: Option<usize>| -> Vec<u32> {
        let pairs: Vec<(u32, bool)> = colours.iter().enumerate().map(|(i, &c)| (c, Some(i) != chosen)).collect();
        dense(&pairs)
    };
    match choice {
        Operand::Scalar(i) => Colours { scalars: mark(&colours.scalars, Some(i)), tensors: colours.tensors.clone() },
        Operand::Tensor(i) => Colours { scalars: colours.scalars.clone(), tensors: mark(&colours.tensors, Some(i)) },
    }
}

/// Colours, refined by the operations above each operand.
fn recoloured(items: &Items, ranks: &[Rank], colours: &Colours) -> Colours {
    let mut above: Vec<u64> = vec![0; items.list.len()];
    above[items.root as usize] = 1;
    let mut scalars: Vec<(u32, u64)> = colours.scalars.iter().map(|&c| (c, 0)).collect();
    let mut tensors: Vec<(u32, u64)> = colours.tensors.iter().map(|&c| (c, 0)).collect();
    for (at, item) in items.list.iter().enumerate().rev() {
        let context = above[at];
        match item.node {
            Node::Scalar(id) => scalars[id.at()].1 = context,
            Node::Tensor(id) => tensors[id.at()].1 = context,
            _ => {}
        }
        let Rank { class, height, place } = ranks[at];
        let own = mixed(mixed(mixed(context, class as u64), u64::from(height)), u64::from(place));
        for (position, &kid) in item.kids.iter().enumerate() {
            let position = if item.unordered { 0 } else { position as u64 + 1 };
            above[kid as usize] = above[kid as usize].wrapping_add(mixed(own, position));
        }
    }
    Colours { scalars: dense(&scalars), tensors: dense(&tensors) }
}

/// A fixed mixing step (the finaliser of SplitMix64); its constants are part of the canonical form and must never
/// change.
fn mixed(state: u64, value: u64) -> u64 {
    let mut z = state.rotate_left(7).wrapping_add(value).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
