//! A growing list of nodes in which equal nodes are stored once (hash-consing). Every pass that makes nodes uses it.

use super::hash::Map;
use super::node::{FloatConst, Node, NodeId, Ty};
use super::operand::{ScalarSpec, TensorSpec};
use super::typing;

/// The scalars and tensors that expressions read, with their display names.
#[derive(Clone, Debug, Default)]
pub(super) struct Operands {
    pub(super) scalars: Vec<ScalarSpec>,
    pub(super) tensors: Vec<TensorSpec>,
    pub(super) scalar_names: Vec<String>,
    pub(super) tensor_names: Vec<String>,
}

/// Nodes under construction. Ids increase, so operands always have smaller ids.
#[derive(Clone, Debug, Default)]
pub(super) struct Arena {
    nodes: Vec<Node>,
    types: Vec<Ty>,
    known: Map<Node, NodeId>,
    pub(super) operands: Operands,
}

impl Arena {
    pub(super) fn over(operands: Operands) -> Self {
        Arena { operands, ..Arena::default() }
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn node(&self, id: NodeId) -> Node {
        self.nodes[id.at()]
    }

    pub(super) fn ty(&self, id: NodeId) -> Ty {
        self.types[id.at()]
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The id of this node, which is added if it is new.
    ///
    /// # Errors
    /// The mismatch, if an operand has the wrong type.
    pub(super) fn try_add(&mut self, node: Node) -> Result<NodeId, typing::Mismatch> {
        if let Some(&id) = self.known.get(&node) {
            return Ok(id);
        }
        let ty = typing::node(node, &self.types, &self.operands.scalars, &self.operands.tensors)?;
        let id = NodeId(u32::try_from(self.nodes.len()).expect("passes stop long before 2^32 nodes"));
        self.nodes.push(node);
        self.types.push(ty);
        self.known.insert(node, id);
        Ok(id)
    }

    /// Like [`Arena::try_add`], for passes that make only well-typed nodes.
    pub(super) fn add(&mut self, node: Node) -> NodeId {
        self.try_add(node).expect("this pass joins operands of equal, known types")
    }

    /// An integer as a float; a constant that float32 holds exactly becomes a float constant.
    pub(super) fn float_of(&mut self, id: NodeId) -> NodeId {
        match self.node(id) {
            Node::Int(n) => match exact_float(n) {
                Some(value) => self.add(Node::Float(value)),
                None => self.add(Node::ToFloat(id)),
            },
            _ if self.ty(id) == Ty::Float => id,
            _ => self.add(Node::ToFloat(id)),
        }
    }
}

/// The float32 constant equal to this integer, if there is one.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "the comparison detects a loss")]
pub(super) fn exact_float(n: i32) -> Option<FloatConst> {
    let near = n as f32;
    (f64::from(near) as i64 == i64::from(n)).then(|| FloatConst::new(near).expect("32-bit integers are finite"))
}
