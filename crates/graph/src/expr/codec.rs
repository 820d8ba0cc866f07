//! Serde forms of score expressions. Reading is total: every input gives an error or a well-formed canonical
//! expression.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::alibi::AlibiSlopes;
use super::arena::{Arena, Operands};
use super::canon;
use super::error::{ExprError, ExprErrors, OperandKind};
use super::limits::{MAX_NAME, MAX_NODES, MAX_SLOTS, MAX_TENSORS};
use super::node::{Node, NodeId};
use super::operand::{Grad, ScalarSpec, ScalarTy, TensorSpec};
use super::operand_check::{divisor, is_name, tensor_problems};
use super::program::ScoreExpr;
use crate::DType;

/// The serialised form: the nodes, and the tables with their display names.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    nodes: Vec<Node>,
    scalars: Vec<ScalarForm>,
    tensors: Vec<TensorForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScalarForm {
    name: String,
    ty: ScalarTy,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorForm {
    name: String,
    dims: [i64; 4],
    dtype: DType,
    grad: Grad,
    // Left out if the caller binds the tensor, so that older forms, from before tensors could hold slopes, stay valid.
    #[serde(default)]
    alibi: Option<AlibiSlopes>,
}

impl Serialize for ScoreExpr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let scalars = self.scalars().iter().zip(self.scalar_names());
        let tensors = self.tensors().iter().zip(self.tensor_names());
        Form {
            nodes: self.nodes().to_vec(),
            scalars: scalars.map(|(&ScalarSpec { ty }, name)| ScalarForm { name: name.clone(), ty }).collect(),
            tensors: tensors
                .map(|(&TensorSpec { dims, dtype, grad, alibi }, name)| {
                    let name = name.clone();
                    TensorForm { name, dims, dtype, grad, alibi }
                })
                .collect(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ScoreExpr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        checked(Form::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

fn checked(form: Form) -> Result<ScoreExpr, ExprErrors> {
    let Form { nodes, scalars, tensors } = form;
    let operands = operands(scalars, tensors)?;
    if nodes.len() > MAX_NODES {
        return Err(ExprError::TooMany { what: "nodes", given: nodes.len(), limit: MAX_NODES }.into());
    }
    let mut arena = Arena::over(operands);
    let mut ids: Vec<NodeId> = Vec::with_capacity(nodes.len());
    for (at, &node) in nodes.iter().enumerate() {
        ids.push(checked_node(at, node, &ids, &mut arena)?);
    }
    let &root = ids.last().ok_or(ExprError::BadArena { node: 0, why: "there are no nodes" })?;
    Ok(canon::closed(&arena, root)?)
}

fn operands(scalars: Vec<ScalarForm>, tensors: Vec<TensorForm>) -> Result<Operands, ExprErrors> {
    let mut problems = Vec::new();
    for (what, given, limit) in [("scalars", scalars.len(), MAX_SLOTS), ("tensors", tensors.len(), MAX_TENSORS)] {
        if given > limit {
            return Err(ExprError::TooMany { what, given, limit }.into());
        }
    }
    let mut kinds: Vec<(String, OperandKind)> = Vec::new();
    kinds.extend(scalars.into_iter().map(|ScalarForm { name, ty }| (name, OperandKind::Scalar(ty))));
    kinds.extend(tensors.into_iter().map(|TensorForm { name, dims, dtype, grad, alibi }| {
        let spec = TensorSpec { dims, dtype, grad, alibi };
        (name, OperandKind::Tensor(spec))
    }));
    let mut tables = Operands::default();
    for (at, (name, kind)) in kinds.iter().enumerate() {
        if !is_name(name) {
            problems.push(ExprError::BadName { name: name.chars().take(MAX_NAME).collect() });
        }
        if let Some((_, first)) = kinds[..at].iter().find(|(other, _)| other == name) {
            problems.push(ExprError::NameConflict {
                name: name.clone(),
                first: (*first).into(),
                second: (*kind).into(),
            });
        }
        match *kind {
            OperandKind::Scalar(ty) => {
                tables.scalars.push(ScalarSpec { ty });
                tables.scalar_names.push(name.clone());
            }
            OperandKind::Tensor(spec) => {
                problems.extend(tensor_problems(name, spec));
                tables.tensors.push(spec);
                tables.tensor_names.push(name.clone());
            }
        }
    }
    ExprErrors::from_list(problems).map_or(Ok(tables), Err)
}

fn checked_node(at: usize, node: Node, ids: &[NodeId], arena: &mut Arena) -> Result<NodeId, ExprError> {
    let bad = |why| ExprError::BadArena { node: at, why };
    if node.operands().any(|id| id.at() >= at) {
        return Err(bad("it refers to itself or to a later node"));
    }
    match node {
        Node::Upstream => return Err(bad("the upstream gradient belongs to derivatives only")),
        Node::Scalar(id) if id.at() >= arena.operands.scalars.len() => {
            return Err(bad("it reads a scalar that is not in the table"));
        }
        Node::Tensor(id) if id.at() >= arena.operands.tensors.len() => {
            return Err(bad("it reads a tensor that is not in the table"));
        }
        _ => {}
    }
    let node = node.map_operands(|id| ids[id.at()]);
    if let Node::Binary(op, _, b) = node {
        divisor(op, arena.node(b), || format!("node {at}"))?;
    }
    let id = arena.try_add(node).map_err(|mismatch| ExprError::WrongType {
        place: format!("node {at}"),
        op: mismatch.op,
        operand: mismatch.operand,
        given: mismatch.given,
        needed: mismatch.needed,
        fix: mismatch.fix,
    })?;
    // A converted constant has only one form.
    Ok(if let Node::ToFloat(of) = node { arena.float_of(of) } else { id })
}
