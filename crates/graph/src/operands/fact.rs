//! The operand list of a valid attention: what a launch of it binds, without a plan, a target or a GPU.

use super::{ALIGNMENT, bytes_bound, operands};
use crate::{DType, Gradients, Pass, Role, Valid};

/// The facts about one operand of an attention that need no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperandFact<'a> {
    /// Its role.
    pub role: Role,
    /// Its name in the description, for scalars and tensors of expressions and for gradients of such tensors.
    pub name: Option<&'a str>,
    /// Element type.
    pub dtype: DType,
    /// Extents over (batch, head, sequence, head dim), or over (batch, head, query, key) for operands of expressions
    /// and dropout.
    pub dims: [i64; 4],
    /// Elements between neighbours along each dim.
    pub strides: [i64; 4],
    /// Bytes of its buffer; for a varlen operand and a pool of pages, of the capacity in the description.
    pub bytes: u64,
    /// Alignment in bytes of its address.
    pub alignment: u32,
    /// Whether a launch writes it.
    pub output: bool,
    /// Whether it is one number on the host.
    pub scalar: bool,
}

impl Valid {
    /// The operands that a launch of this attention binds, in the order in which every plan of it lists its bindings.
    ///
    /// A plan has these bindings, and buffers that the launcher provides ([`Role::is_internal`]) and that depend on the
    /// cuDNN version. One more thing depends on it: before `qkvault_cudnn::WIDE_OFFSETS`, offsets are `i32` and
    /// half as long; here they are `i64`.
    ///
    /// ```
    /// use qkvault_graph::{Attention, DType, Role, validate};
    ///
    /// let attention = validate(Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).with_stats())?;
    /// let outputs: Vec<Role> = attention.operand_facts().iter().filter(|o| o.output).map(|o| o.role).collect();
    /// assert_eq!(outputs, [Role::O, Role::Stats]);
    /// # Ok::<(), qkvault_graph::Refusal>(())
    /// ```
    #[must_use]
    pub fn operand_facts(&self) -> Vec<OperandFact<'_>> {
        let fact = |o: &super::Operand| {
            let (role, dtype, scalar) = (o.role, o.tensor.dtype, o.role.is_scalar());
            let elements = o.tensor.span().map_or(u64::MAX, i64::unsigned_abs);
            OperandFact {
                role,
                name: self.name_of(role),
                dtype,
                dims: o.tensor.dims,
                strides: o.tensor.strides,
                bytes: bytes_bound(role, dtype, elements, o.output),
                alignment: if scalar { dtype.size() } else { ALIGNMENT } as u32,
                output: o.output,
                scalar,
            }
        };
        let mut list: Vec<OperandFact<'_>> =
            operands(self).iter().filter(|o| self.is_launched_with(o.role)).map(fact).collect();
        list.sort_unstable_by_key(|o| o.role.uid());
        list
    }

    fn name_of(&self, role: Role) -> Option<&str> {
        let tensor = || self.score_tensors().find(|t| t.role == role || t.gradient == Some(role)).map(|t| t.name);
        match role {
            Role::Scalar(_) => self.scalars().find(|s| s.role == role).map(|s| s.name),
            Role::ScoreTensor(_) | Role::DScoreTensor(_) => tensor(),
            _ => None,
        }
    }

    /// The log-sum-exp already contains the sink: a backward reads the sink only for the sink's own gradient.
    fn is_launched_with(&self, role: Role) -> bool {
        match self.pass {
            Pass::Backward(Gradients { d_sink, .. }) => role != Role::Sink || d_sink,
            Pass::Forward => true,
        }
    }
}
