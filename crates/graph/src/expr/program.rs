//! Closed expressions: the canonical one of a score modification or predicate, and those derived from it.

use std::hash::{Hash, Hasher};
use std::ops::Deref;

use super::arena::Operands;
use super::node::{Node, NodeId, ScalarId, TensorId, Ty};
use super::operand::{ScalarSpec, TensorSpec};
use super::ops::{Binary, Unary};
use super::typing;

/// A well-typed list of nodes, with the tables of its operands: operands first, the root last, equal nodes stored once.
///
/// Passes are loops over [`Program::nodes`]: an operand always comes before the node that uses it, so recursion is not
/// needed. Every node except the root is an operand of another one.
#[derive(Clone, Debug)]
pub struct Program {
    nodes: Vec<Node>,
    types: Vec<Ty>,
    operands: Operands,
}

impl Program {
    /// A program of nodes that a pass of this module made.
    pub(super) fn from_parts(nodes: Vec<Node>, operands: Operands) -> Self {
        let mut types: Vec<Ty> = Vec::with_capacity(nodes.len());
        for &node in &nodes {
            types.push(
                typing::node(node, &types, &operands.scalars, &operands.tensors)
                    .expect("nodes were type-checked when they were made"),
            );
        }
        Program { nodes, types, operands }
    }

    pub(super) fn operands(&self) -> &Operands {
        &self.operands
    }

    /// The nodes, operands first.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The last node, which is the result.
    #[must_use]
    pub fn root(&self) -> NodeId {
        NodeId((self.nodes.len() - 1) as u32)
    }

    /// One node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Node {
        self.nodes[id.at()]
    }

    /// Type of a node's value.
    #[must_use]
    pub fn ty(&self, id: NodeId) -> Ty {
        self.types[id.at()]
    }

    /// Type of the result.
    #[must_use]
    pub fn root_ty(&self) -> Ty {
        self.ty(self.root())
    }

    /// The host scalars, which a launch gets.
    #[must_use]
    pub fn scalars(&self) -> &[ScalarSpec] {
        &self.operands.scalars
    }

    /// The device tensors.
    #[must_use]
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.operands.tensors
    }

    /// Display name of a scalar.
    #[must_use]
    pub fn scalar_name(&self, id: ScalarId) -> &str {
        &self.operands.scalar_names[id.at()]
    }

    /// Display name of a tensor.
    #[must_use]
    pub fn tensor_name(&self, id: TensorId) -> &str {
        &self.operands.tensor_names[id.at()]
    }

    /// Display names of the scalars, in the order of [`Program::scalars`].
    #[must_use]
    pub fn scalar_names(&self) -> &[String] {
        &self.operands.scalar_names
    }

    /// Display names of the tensors, in the order of [`Program::tensors`].
    #[must_use]
    pub fn tensor_names(&self) -> &[String] {
        &self.operands.tensor_names
    }

    /// The scalar with this display name.
    #[must_use]
    pub fn scalar_named(&self, name: &str) -> Option<ScalarId> {
        self.operands.scalar_names.iter().position(|n| n == name).map(|at| ScalarId(at as u32))
    }

    /// The tensor with this display name.
    #[must_use]
    pub fn tensor_named(&self, name: &str) -> Option<TensorId> {
        self.operands.tensor_names.iter().position(|n| n == name).map(|at| TensorId(at as u32))
    }

    /// Whether an integer is known not to be 0 for all inputs: a constant, one that a constant bounds above or below 0,
    /// as `max(x, 1)` does, or the negative of such an integer.
    #[must_use]
    pub fn is_never_zero(&self, id: NodeId) -> bool {
        let bound = |id: NodeId| if let Node::Int(n) = self.node(id) { n } else { 0 };
        match self.node(id) {
            Node::Int(n) => n != 0,
            Node::Binary(Binary::Max, a, b) => bound(a) > 0 || bound(b) > 0,
            Node::Binary(Binary::Min, a, b) => bound(a) < 0 || bound(b) < 0,
            Node::Unary(Unary::Neg | Unary::Abs, a) => self.is_never_zero(a),
            _ => false,
        }
    }

    /// Whether the program has this node.
    #[must_use]
    pub fn contains(&self, node: Node) -> bool {
        self.nodes.contains(&node)
    }
}

/// A closed score expression or predicate in canonical form.
///
/// Equality and hash compare nodes, scalar types and tensor specifications, not display names. The order of operands of
/// commutative operations, the direction of comparisons (`a < b` or `b > a`), the grouping of chains of `&` and `|`,
/// repeated sub-expressions and names do not matter. Float arithmetic is not rearranged: `(a + b) + c` and `a + (b +
/// c)` round differently and are different expressions.
///
/// Scalars and tensors are numbered by their first use in the nodes, and all of them are used.
///
/// ```
/// use qkvault_graph::expr::{constant, key, position, scalar, score};
///
/// let fading = score() - scalar("slope") * (position() - key()).to_float();
/// let built = fading.build_score_mod()?;
/// assert_eq!(built.scalar_names(), ["slope"]);
///
/// // Equal meaning is equal data, whatever the operands are called.
/// let other = (score() - scalar("rate") * (position() - key()).to_float()).build_score_mod()?;
/// assert_eq!(built, other);
/// assert_ne!(built, (score() * constant(2.0)).build_score_mod()?);
/// # Ok::<(), qkvault_graph::expr::ExprErrors>(())
/// ```
#[derive(Clone, Debug)]
pub struct ScoreExpr(Program);

impl ScoreExpr {
    /// An expression of a program that is in canonical form.
    pub(super) fn from_canonical(program: Program) -> Self {
        ScoreExpr(program)
    }

    /// The nodes and their operands.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.0
    }
}

impl Deref for ScoreExpr {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

impl PartialEq for ScoreExpr {
    fn eq(&self, other: &Self) -> bool {
        same(&self.0, &other.0)
    }
}

impl Eq for ScoreExpr {}

impl Hash for ScoreExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(&self.0, state);
    }
}

/// An expression derived from a [`ScoreExpr`], over the same scalars and tensors: ids, tables and names are those of
/// the forward expression, used or not. It may read [`Node::Upstream`].
#[derive(Clone, Debug)]
pub struct Derived(Program);

impl Derived {
    /// An expression of a program over the tables of its forward expression.
    pub(super) fn from_program(program: Program) -> Self {
        Derived(program)
    }

    /// The nodes and their operands.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.0
    }

    /// Whether this is the constant 0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        matches!(self.0.nodes(), [Node::Float(value)] if value.value() == 0.0)
    }
}

impl Deref for Derived {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

impl PartialEq for Derived {
    fn eq(&self, other: &Self) -> bool {
        same(&self.0, &other.0)
    }
}

impl Eq for Derived {}

/// Ignores names.
fn same(a: &Program, b: &Program) -> bool {
    a.nodes == b.nodes && a.operands.scalars == b.operands.scalars && a.operands.tensors == b.operands.tensors
}

fn hash<H: Hasher>(program: &Program, state: &mut H) {
    program.nodes.hash(state);
    program.operands.scalars.hash(state);
    program.operands.tensors.hash(state);
}
