//! A total order over items that depends only on their structure, and writing of items as nodes in that order.

use super::hash::Map;
use super::items::{Class, Item, Items};
use super::node::{FloatConst, Node, NodeId, ScalarId, TensorId};
use super::ops::Compare;

/// Colours of scalars and tensors: equal colours cannot be distinguished so far. Numbers of colours, not ids, decide
/// the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Colours {
    pub(super) scalars: Vec<u32>,
    pub(super) tensors: Vec<u32>,
}

/// Place of an item in the order: class, then height, then place among those. Equal for items that differ only in
/// leaves of equal colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Rank {
    pub(super) class: Class,
    pub(super) height: u32,
    pub(super) place: u32,
}

/// Ranks of all items, lowest height first.
pub(super) fn ranks(items: &Items, colours: &Colours) -> Vec<Rank> {
    let list = &items.list;
    let mut ranks: Vec<Rank> =
        list.iter().map(|item| Rank { class: item.class, height: item.height, place: 0 }).collect();
    let mut order: Vec<u32> = (0..list.len() as u32).collect();
    order.sort_by_key(|&at| list[at as usize].height);
    let mut rest = order.as_slice();
    while let Some(&first) = rest.first() {
        let height = list[first as usize].height;
        let (level, after) = rest.split_at(rest.partition_point(|&at| list[at as usize].height == height));
        let mut keyed: Vec<_> = level.iter().map(|&at| (key(&list[at as usize], colours, &ranks), at)).collect();
        keyed.sort_unstable();
        let mut place = 0;
        for i in 0..keyed.len() {
            if i > 0 && keyed[i].0 != keyed[i - 1].0 {
                place += 1;
            }
            ranks[keyed[i].1 as usize].place = place;
        }
        rest = after;
    }
    ranks
}

type Key = (Class, u8, u32, Vec<Rank>);

fn key(item: &Item, colours: &Colours, ranks: &[Rank]) -> Key {
    let detail = match item.node {
        Node::Score | Node::Upstream | Node::ToFloat(_) | Node::Not(_) | Node::Select { .. } => 0,
        Node::Index(axis) => axis.dim() as u32,
        Node::Length(side) => u32::from(side.code()),
        Node::Float(value) => ordered_bits(value),
        Node::Int(value) => value.cast_unsigned() ^ (1 << 31),
        Node::Bool(value) => u32::from(value),
        Node::Scalar(id) => colours.scalars[id.at()],
        Node::Tensor(id) => colours.tensors[id.at()],
        Node::Unary(op, _) => u32::from(op.code()),
        Node::Binary(op, ..) => u32::from(op.code()),
        Node::Compare(op, ..) => u32::from(op.code()),
        Node::Logic(op, ..) => u32::from(op.code()),
    };
    let mut kids: Vec<Rank> = item.kids.iter().map(|&kid| ranks[kid as usize]).collect();
    if item.unordered {
        kids.sort_unstable();
    }
    (item.class, item.node.code(), detail, kids)
}

/// Bits whose unsigned order is the order of the numbers.
fn ordered_bits(value: FloatConst) -> u32 {
    let bits = value.bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// Nodes in post-order, with the old ids of scalars and tensors in the order of their first use.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    pub(super) nodes: Vec<Node>,
    pub(super) scalars: Vec<ScalarId>,
    pub(super) tensors: Vec<TensorId>,
}

/// Writes the items as nodes. With `renumber`, scalars and tensors get new ids in the order of their first use.
///
/// The arms of a selection are written before its condition, so that a mask's indices and comparison are next to its
/// selection.
pub(super) fn write(items: &Items, ranks: &[Rank], renumber: bool) -> Written {
    let mut out = Writer { written: Written::default(), known: Map::default(), renumber };
    let mut done: Vec<Option<NodeId>> = vec![None; items.list.len()];
    let mut path: Vec<(u32, Vec<u32>, usize)> = vec![visit(items, ranks, items.root)];
    while let Some((at, kids, visited)) = path.last_mut() {
        if let Some(&next) = kids.get(*visited) {
            *visited += 1;
            if done[next as usize].is_none() {
                path.push(visit(items, ranks, next));
            }
            continue;
        }
        let at = *at as usize;
        let node = |kid: u32| done[kid as usize].expect("kids are written first");
        done[at] = Some(out.item(&items.list[at], kids, ranks, node));
        path.pop();
    }
    out.written
}

/// The kids of an item in the order in which they are written.
fn visit(items: &Items, ranks: &[Rank], at: u32) -> (u32, Vec<u32>, usize) {
    let item = &items.list[at as usize];
    let mut kids = item.kids.clone();
    match item.node {
        Node::Select { .. } => kids.rotate_left(1),
        Node::Compare(..) => kids.sort_by_key(|&kid| ranks[kid as usize]),
        _ if item.unordered => kids.sort_by_key(|&kid| ranks[kid as usize]),
        _ => {}
    }
    (at, kids, 0)
}

struct Writer {
    written: Written,
    known: Map<Node, NodeId>,
    renumber: bool,
}

impl Writer {
    fn add(&mut self, node: Node) -> NodeId {
        let nodes = &mut self.written.nodes;
        *self.known.entry(node).or_insert_with(|| {
            nodes.push(node);
            NodeId((nodes.len() - 1) as u32)
        })
    }

    /// `kids` in the order of [`visit`].
    fn item(&mut self, item: &Item, kids: &[u32], ranks: &[Rank], node: impl Fn(u32) -> NodeId) -> NodeId {
        match item.node {
            Node::Scalar(id) if self.renumber => {
                self.written.scalars.push(id);
                self.add(Node::Scalar(ScalarId((self.written.scalars.len() - 1) as u32)))
            }
            Node::Tensor(id) if self.renumber => {
                self.written.tensors.push(id);
                self.add(Node::Tensor(TensorId((self.written.tensors.len() - 1) as u32)))
            }
            Node::Logic(op, ..) => {
                let first = node(kids[0]);
                kids[1..].iter().fold(first, |chain, &kid| self.add(Node::Logic(op, chain, node(kid))))
            }
            Node::Compare(op, ..) => {
                let straight = ranks[item.kids[0] as usize] <= ranks[item.kids[1] as usize];
                let op: Compare = if straight { op } else { op.flipped() };
                self.add(Node::Compare(op, node(kids[0]), node(kids[1])))
            }
            Node::Select { .. } => {
                self.add(Node::Select { yes: node(kids[0]), no: node(kids[1]), keep: node(kids[2]) })
            }
            other => {
                let mut next = kids.iter();
                self.add(other.map_operands(|_| node(*next.next().expect("an item has the operands of its node"))))
            }
        }
    }
}
