//! Builds a closed, canonical expression from handles: it checks types, promotes integers, shares equal parts and
//! collects every problem.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::arena::{Arena, Operands};
use super::canon;
use super::error::{ExprError, ExprErrors, OperandKind};
use super::handle::{Expr, Inner, Op};
use super::limits::{MAX_NAME, MAX_NODES, MAX_SLOTS, MAX_TENSORS};
use super::node::{FloatConst, Node, NodeId, ScalarId, TensorId, Ty};
use super::operand::ScalarSpec;
use super::operand_check::{divisor, is_name, tensor_problems};
use super::ops::Logic;
use super::place::{Path, place};
use super::program::ScoreExpr;
use super::typing::Mismatch;

impl Expr {
    /// Checks the expression and brings it into canonical form.
    ///
    /// # Errors
    /// Every problem, each with its place.
    pub fn build(&self) -> Result<ScoreExpr, ExprErrors> {
        let mut builder = Builder::default();
        let operands = builder.operand_tables(self);
        let mut arena = Arena::over(operands);
        let root = builder.nodes(self, &mut arena);
        match (root, ExprErrors::from_list(builder.problems)) {
            (_, Some(problems)) => Err(problems),
            (Some(root), None) => Ok(canon::closed(&arena, root)?),
            (None, None) => unreachable!("a node without a type reported a problem"),
        }
    }

    /// Like [`Expr::build`], for a score modification: the result is a float.
    ///
    /// # Errors
    /// Every problem; [`ExprError::RootType`] if the expression is not a float.
    pub fn build_score_mod(&self) -> Result<ScoreExpr, ExprErrors> {
        rooted(self.build()?, Ty::Float, "convert an integer with to_float(); a truth value is a mask, not a score")
    }

    /// Like [`Expr::build`], for a mask predicate: the result is a truth value.
    ///
    /// # Errors
    /// Every problem; [`ExprError::RootType`] if the expression is not a truth value.
    pub fn build_mask_mod(&self) -> Result<ScoreExpr, ExprErrors> {
        rooted(self.build()?, Ty::Bool, "compare it with something to get a truth value")
    }
}

/// The expression in canonical form, if its result has this type.
pub(super) fn rooted_like(expr: &Expr, needed: Ty) -> Result<ScoreExpr, ExprErrors> {
    rooted(expr.build()?, needed, "replace each place by an expression of its type")
}

fn rooted(expr: ScoreExpr, needed: Ty, fix: &'static str) -> Result<ScoreExpr, ExprErrors> {
    let given = expr.root_ty();
    if given == needed { Ok(expr) } else { Err(ExprError::RootType { given, needed, fix }.into()) }
}

#[derive(Default)]
struct Builder {
    problems: Vec<ExprError>,
    scalars: HashMap<Arc<str>, ScalarId>,
    tensors: HashMap<Arc<str>, TensorId>,
}

impl Builder {
    /// Collects scalars and tensors in the order of their names, so that the order of writing does not matter.
    fn operand_tables(&mut self, root: &Expr) -> Operands {
        let mut found: BTreeMap<Arc<str>, OperandKind> = BTreeMap::new();
        let mut seen: HashMap<*const Inner, ()> = HashMap::new();
        let mut rest = vec![root];
        while let Some(expr) = rest.pop() {
            if seen.insert(Arc::as_ptr(&expr.0), ()).is_some() {
                continue;
            }
            let (name, kind) = match &expr.0.op {
                Op::Scalar(name, ty) => (name, OperandKind::Scalar(*ty)),
                Op::Tensor(name, spec) => (name, OperandKind::Tensor(*spec)),
                _ => {
                    rest.extend(expr.operands());
                    continue;
                }
            };
            match found.get(name) {
                None => {
                    self.check_operand(name, kind);
                    found.insert(Arc::clone(name), kind);
                }
                Some(&first) if first != kind => {
                    let (first, second) = (first.into(), kind.into());
                    self.problems.push(ExprError::NameConflict { name: name.to_string(), first, second });
                }
                Some(_) => {}
            }
        }
        self.tables(found)
    }

    fn tables(&mut self, found: BTreeMap<Arc<str>, OperandKind>) -> Operands {
        let mut tables = Operands::default();
        for (name, kind) in found {
            match kind {
                OperandKind::Scalar(ty) => {
                    self.scalars.insert(Arc::clone(&name), ScalarId(tables.scalars.len() as u32));
                    tables.scalars.push(ScalarSpec { ty });
                    tables.scalar_names.push(name.to_string());
                }
                OperandKind::Tensor(spec) => {
                    self.tensors.insert(Arc::clone(&name), TensorId(tables.tensors.len() as u32));
                    tables.tensors.push(spec);
                    tables.tensor_names.push(name.to_string());
                }
            }
        }
        for (what, given, limit) in
            [("scalars", tables.scalars.len(), MAX_SLOTS), ("tensors", tables.tensors.len(), MAX_TENSORS)]
        {
            if given > limit {
                self.problems.push(ExprError::TooMany { what, given, limit });
            }
        }
        tables
    }

    fn check_operand(&mut self, name: &str, kind: OperandKind) {
        if !is_name(name) {
            self.problems.push(ExprError::BadName { name: name.chars().take(MAX_NAME).collect() });
        }
        if let OperandKind::Tensor(spec) = kind {
            self.problems.extend(tensor_problems(name, spec));
        }
    }

    /// Visits every handle once, operands first, and returns the node of the root (`None` if a problem was found below
    /// it).
    fn nodes(&mut self, root: &Expr, arena: &mut Arena) -> Option<NodeId> {
        let mut done: HashMap<*const Inner, Option<NodeId>> = HashMap::new();
        let mut path: Path<'_> = vec![(root, 0)];
        while let Some((expr, visited)) = path.last_mut() {
            let expr: &Expr = expr;
            if let Some(next) = expr.operands().nth(*visited) {
                *visited += 1;
                if !done.contains_key(&Arc::as_ptr(&next.0)) {
                    path.push((next, 0));
                }
                continue;
            }
            let operands: Vec<Option<NodeId>> = expr.operands().map(|o| done[&Arc::as_ptr(&o.0)]).collect();
            let node = match operands.into_iter().collect::<Option<Vec<NodeId>>>() {
                None => None,
                Some(operands) => self.node(&expr.0.op, &operands, arena, &path),
            };
            if arena.len() > MAX_NODES {
                self.problems.push(ExprError::TooMany { what: "nodes", given: arena.len(), limit: MAX_NODES });
                return None;
            }
            done.insert(Arc::as_ptr(&expr.0), node);
            path.pop();
        }
        done[&Arc::as_ptr(&root.0)]
    }

    fn node(&mut self, op: &Op, operands: &[NodeId], arena: &mut Arena, path: &Path<'_>) -> Option<NodeId> {
        let made = match (op, operands) {
            (Op::Score, _) => arena.try_add(Node::Score),
            (Op::Index(axis), _) => arena.try_add(Node::Index(*axis)),
            (Op::Length(side), _) => arena.try_add(Node::Length(*side)),
            (Op::Float(value), _) => match FloatConst::new(*value) {
                Ok(value) => arena.try_add(Node::Float(value)),
                Err(_) => {
                    self.problems.push(ExprError::NotFinite { place: place(path), given: value.to_string() });
                    return None;
                }
            },
            (Op::Int(value), _) => arena.try_add(Node::Int(*value)),
            (Op::Bool(value), _) => arena.try_add(Node::Bool(*value)),
            (Op::Scalar(name, ty), _) => {
                let id = *self.scalars.get(name)?;
                // The conflict of a name with two meanings was reported; this node needs the other meaning.
                (arena.operands.scalars[id.at()].ty == *ty).then_some(())?;
                arena.try_add(Node::Scalar(id))
            }
            (Op::Tensor(name, spec), _) => {
                let id = *self.tensors.get(name)?;
                (arena.operands.tensors[id.at()] == *spec && spec.ty().is_some()).then_some(())?;
                arena.try_add(Node::Tensor(id))
            }
            (Op::ToFloat, &[a]) if arena.ty(a) == Ty::Bool => arena.try_add(Node::ToFloat(a)),
            (Op::ToFloat, &[a]) => Ok(arena.float_of(a)),
            (Op::Unary(op), &[a]) => arena.try_add(Node::Unary(*op, a)),
            (Op::Binary(op), &[a, b]) => {
                let [a, b] = promoted(arena, [a, b]);
                if let Err(problem) = divisor(*op, arena.node(b), || place(path)) {
                    self.problems.push(problem);
                    return None;
                }
                arena.try_add(Node::Binary(*op, a, b))
            }
            (Op::Compare(op), &[a, b]) => {
                let [a, b] = promoted(arena, [a, b]);
                arena.try_add(Node::Compare(*op, a, b))
            }
            (Op::Not, &[a]) => arena.try_add(Node::Not(a)),
            (Op::Logic(op), &[a, b]) => arena.try_add(Node::Logic(*op, a, b)),
            (Op::Select, &[keep, yes, no]) => select(arena, keep, yes, no),
            _ => unreachable!("every operation is made with its number of operands"),
        };
        made.map_err(|Mismatch { op, operand, given, needed, fix }| {
            self.problems.push(ExprError::WrongType { place: place(path), op, operand, given, needed, fix });
        })
        .ok()
    }
}

/// Converts an integer to a float if the other operand is a float.
fn promoted(arena: &mut Arena, [a, b]: [NodeId; 2]) -> [NodeId; 2] {
    match (arena.ty(a), arena.ty(b)) {
        (Ty::Int, Ty::Float) => [arena.float_of(a), b],
        (Ty::Float, Ty::Int) => [a, arena.float_of(b)],
        _ => [a, b],
    }
}

/// Writes a selection between truth values with logic operations, so that there is only one form.
fn select(arena: &mut Arena, keep: NodeId, yes: NodeId, no: NodeId) -> Result<NodeId, Mismatch> {
    if [keep, yes, no].map(|id| arena.ty(id)) == [Ty::Bool; 3] {
        let taken = arena.add(Node::Logic(Logic::And, keep, yes));
        let other = arena.add(Node::Not(keep));
        let other = arena.add(Node::Logic(Logic::And, other, no));
        return arena.try_add(Node::Logic(Logic::Or, taken, other));
    }
    let [yes, no] = promoted(arena, [yes, no]);
    arena.try_add(Node::Select { keep, yes, no })
}
