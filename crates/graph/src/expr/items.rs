//! The expression without meaningless order: operands of commutative operations as sets, chains of `&` and of `|`
//! flattened, and each comparison as "less". Two expressions that differ only in such order have the same items.

use super::arena::Arena;
use super::hash::Map;
use super::node::{Node, NodeId};
use super::ops::{Compare, Logic};

/// One operation over items. The operand ids inside `node` have no meaning; `kids` holds the operands.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) node: Node,
    pub(super) kids: Vec<u32>,
    /// Whether the kids are a set.
    pub(super) unordered: bool,
    pub(super) class: Class,
    /// Longest path to a leaf.
    pub(super) height: u32,
}

/// The kind of input of an item, most variable first: the order of operands of commutative operations.
///
/// In a backward, cuDNN refuses a pointwise operation whose first operand is a scalar or an input tensor, and it skips
/// masked blocks only if the operations on the score come first. So operands that read the score come first and
/// constants last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Class {
    Score,
    Index,
    Computed,
    Tensor,
    Length,
    Scalar,
    Constant,
}

/// Items in an order with operands first.
#[derive(Debug)]
pub(super) struct Items {
    pub(super) list: Vec<Item>,
    pub(super) root: u32,
}

/// The items that `root` reads, directly or not.
pub(super) fn items(arena: &Arena, root: NodeId) -> Items {
    let reached = reached(arena, root);
    let mut list: Vec<Item> = Vec::new();
    let mut known: Map<(Node, Vec<u32>), u32> = Map::default();
    let mut item_of: Vec<u32> = vec![u32::MAX; arena.len()];
    for (at, &node) in arena.nodes().iter().enumerate().filter(|&(at, _)| reached[at]) {
        let kids: Vec<u32> = node.operands().map(|id| item_of[id.at()]).collect();
        let (node, kids, unordered) = unordered_form(node, kids, &list);
        // `x & x` is `x`.
        if let (Node::Logic(..), &[only]) = (node, kids.as_slice()) {
            item_of[at] = only;
            continue;
        }
        item_of[at] = *known.entry((node, kids.clone())).or_insert_with(|| {
            let class = class(node, &kids, &list);
            let height = kids.iter().map(|&kid| list[kid as usize].height + 1).max().unwrap_or(0);
            list.push(Item { node, kids, unordered, class, height });
            (list.len() - 1) as u32
        });
    }
    without_leftovers(list, item_of[root.at()])
}

/// Removes items that flattening left without a use: otherwise the grouping of chains would affect the form.
fn without_leftovers(list: Vec<Item>, root: u32) -> Items {
    let mut used = vec![false; list.len()];
    used[root as usize] = true;
    for at in (0..list.len()).rev() {
        if used[at] {
            list[at].kids.iter().for_each(|&kid| used[kid as usize] = true);
        }
    }
    let mut new_place = vec![u32::MAX; list.len()];
    let mut kept: Vec<Item> = Vec::with_capacity(list.len());
    for (at, mut item) in list.into_iter().enumerate().filter(|&(at, _)| used[at]) {
        item.kids.iter_mut().for_each(|kid| *kid = new_place[*kid as usize]);
        new_place[at] = kept.len() as u32;
        kept.push(item);
    }
    Items { root: new_place[root as usize], list: kept }
}

fn reached(arena: &Arena, root: NodeId) -> Vec<bool> {
    let mut reached = vec![false; arena.len()];
    reached[root.at()] = true;
    for at in (0..=root.at()).rev() {
        if reached[at] {
            for operand in arena.nodes()[at].operands() {
                reached[operand.at()] = true;
            }
        }
    }
    reached
}

fn unordered_form(node: Node, mut kids: Vec<u32>, list: &[Item]) -> (Node, Vec<u32>, bool) {
    let blank = NodeId(0);
    match node {
        Node::Logic(op, ..) => {
            let template = Node::Logic(op, blank, blank);
            let mut flat: Vec<u32> = Vec::with_capacity(kids.len());
            for kid in kids {
                match &list[kid as usize] {
                    Item { node, kids, .. } if *node == template => flat.extend(kids),
                    _ => flat.push(kid),
                }
            }
            flat.sort_unstable();
            flat.dedup();
            (template, flat, true)
        }
        Node::Compare(op, ..) => {
            let (op, swap) = match op {
                Compare::Gt | Compare::Ge => (op.flipped(), true),
                Compare::Eq | Compare::Ne => (op, kids[0] > kids[1]),
                Compare::Lt | Compare::Le => (op, false),
            };
            if swap {
                kids.swap(0, 1);
            }
            (Node::Compare(op, blank, blank), kids, matches!(op, Compare::Eq | Compare::Ne))
        }
        Node::Binary(op, ..) => {
            if op.is_commutative() {
                kids.sort_unstable();
            }
            (Node::Binary(op, blank, blank), kids, op.is_commutative())
        }
        other => (other.map_operands(|_| blank), kids, false),
    }
}

fn class(node: Node, kids: &[u32], list: &[Item]) -> Class {
    match node {
        Node::Score | Node::Upstream => Class::Score,
        Node::Index(_) => Class::Index,
        Node::Length(_) => Class::Length,
        Node::Float(_) | Node::Int(_) | Node::Bool(_) => Class::Constant,
        Node::Scalar(_) => Class::Scalar,
        Node::Tensor(_) => Class::Tensor,
        Node::ToFloat(_)
        | Node::Unary(..)
        | Node::Binary(..)
        | Node::Compare(..)
        | Node::Not(_)
        | Node::Logic(Logic::And | Logic::Or, ..)
        | Node::Select { .. } => {
            kids.iter().map(|&kid| list[kid as usize].class).min().unwrap_or(Class::Computed).min(Class::Computed)
        }
    }
}
