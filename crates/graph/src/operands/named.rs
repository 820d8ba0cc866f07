//! Operands of expressions by name: the role of a scalar or a tensor with the name that its author gave it.
//!
//! Roles are numbered by first use in canonical order, which an author cannot foresee, so programs look them up by
//! name. Lowering (`lower/score.rs`) counts the same way, and tests compare the two.

use super::nearest::nearest;
use crate::expr::{AlibiSlopes, Grad, ScalarSpec, ScoreExpr, TensorSpec};
use crate::{Attention, DType, Role, Valid};

/// The expression of an attention that reads an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadBy {
    /// [`Attention::score_mod`].
    ScoreMod,
    /// [`Mask::mask_mod`](crate::Mask::mask_mod).
    MaskMod,
}

/// A scalar of an expression: one number on the host, which a launch gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamedScalar<'a> {
    /// Its name in the description.
    pub name: &'a str,
    /// Its role in every plan of the attention.
    pub role: Role,
    /// How the number is passed: `f32` or `i32`.
    pub dtype: DType,
    /// The expression that reads it.
    pub read_by: ReadBy,
}

/// A tensor of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamedTensor<'a> {
    /// Its name in the description.
    pub name: &'a str,
    /// Its role in every plan of the attention.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Extents over (batch, head, query, key), row-major; an extent of 1 is broadcast.
    pub dims: [i64; 4],
    /// The role of its gradient, if this is a backward that computes it.
    pub gradient: Option<Role>,
    /// The slopes that it holds, if it does: the code that prepares the plan puts them on the GPU. The caller binds
    /// every other tensor.
    pub alibi: Option<AlibiSlopes>,
    /// The expression that reads it.
    pub read_by: ReadBy,
}

/// The scalars of an attention in canonical form, in the order of their roles.
pub(super) fn scalars(a: &Attention) -> impl Iterator<Item = NamedScalar<'_>> {
    let all = expressions(a).flat_map(|(read_by, e)| {
        e.scalars().iter().zip(e.scalar_names()).map(move |(spec, name)| (read_by, spec, name))
    });
    all.zip(0..).map(|((read_by, ScalarSpec { ty }, name), n)| NamedScalar {
        name,
        role: Role::Scalar(n),
        dtype: ty.dtype(),
        read_by,
    })
}

/// The tensors of an attention in canonical form, in the order of their roles.
pub(super) fn tensors(a: &Attention) -> impl Iterator<Item = NamedTensor<'_>> {
    let backward = a.is_backward();
    let all = expressions(a).flat_map(|(read_by, e)| {
        e.tensors().iter().zip(e.tensor_names()).map(move |(spec, name)| (read_by, *spec, name))
    });
    all.zip(0..).map(move |((read_by, TensorSpec { dims, dtype, grad, alibi }, name), n)| NamedTensor {
        name,
        role: Role::ScoreTensor(n),
        dtype,
        dims,
        gradient: (backward && grad == Grad::Needed).then_some(Role::DScoreTensor(n)),
        alibi,
        read_by,
    })
}

fn expressions(a: &Attention) -> impl Iterator<Item = (ReadBy, &ScoreExpr)> {
    let both = [(ReadBy::ScoreMod, a.score_mod.as_ref()), (ReadBy::MaskMod, a.mask.mask_mod.as_ref())];
    both.into_iter().filter_map(|(read_by, e)| Some((read_by, e?)))
}

/// Operands by name. The score modification and the mask have separate names: if both use one name, it belongs to two
/// operands, and the plural methods return both.
impl Valid {
    /// The scalars that expressions read, in the order of their roles: those of the score modification, then those of
    /// the mask.
    ///
    /// ```
    /// use qkvault_graph::expr::{int_scalar, key, scalar, score};
    /// use qkvault_graph::{Attention, DType, Role, validate};
    ///
    /// let capped = ((score() / scalar("cap")).tanh() * scalar("cap") + scalar("shift")).build_score_mod()?;
    /// let prefix = key().lt(int_scalar("prefix")).build_mask_mod()?;
    /// let attention = Attention::bshd(1, (8, 8), (512, 512), 64, DType::F16);
    /// let attention = validate(attention.with_score_mod(capped).with_mask_mod(prefix))?;
    /// let names: Vec<&str> = attention.scalars().map(|scalar| scalar.name).collect();
    /// assert_eq!(names.len(), 3);
    /// assert_eq!(attention.scalar_role("prefix"), Some(Role::Scalar(2)));
    /// assert_eq!(attention.scalar_role("prefux"), None);
    /// assert_eq!(attention.nearest_name("prefux"), Some("prefix"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scalars(&self) -> impl Iterator<Item = NamedScalar<'_>> {
        scalars(self.get())
    }

    /// The tensors that expressions read, in the order of their roles: those of the score modification, then those of
    /// the mask.
    pub fn score_tensors(&self) -> impl Iterator<Item = NamedTensor<'_>> {
        tensors(self.get())
    }

    /// The role of the scalar with this name; that of the score modification if the mask has one too.
    #[must_use]
    pub fn scalar_role(&self, name: &str) -> Option<Role> {
        self.scalar_roles(name).next()
    }

    /// The role of the tensor with this name; that of the score modification if the mask has one too.
    #[must_use]
    pub fn tensor_role(&self, name: &str) -> Option<Role> {
        self.tensor_roles(name).next()
    }

    /// The role of the gradient of the tensor with this name, if this is a backward that computes it.
    #[must_use]
    pub fn gradient_role(&self, name: &str) -> Option<Role> {
        self.score_tensors().find_map(|tensor| tensor.gradient.filter(|_| tensor.name == name))
    }

    /// The roles of the scalars with this name: one, or two if score modification and mask both use it.
    pub fn scalar_roles(&self, name: &str) -> impl Iterator<Item = Role> {
        self.scalars().filter(move |scalar| scalar.name == name).map(|scalar| scalar.role)
    }

    /// The roles of the tensors with this name: one, or two if score modification and mask both use it.
    pub fn tensor_roles(&self, name: &str) -> impl Iterator<Item = Role> {
        self.score_tensors().filter(move |tensor| tensor.name == name).map(|tensor| tensor.role)
    }

    /// The name of a scalar or a tensor that is most similar to an unknown one, for an error that asks "did you mean
    /// ...?".
    #[must_use]
    pub fn nearest_name(&self, given: &str) -> Option<&str> {
        nearest(given, self.scalars().map(|s| s.name).chain(self.score_tensors().map(|t| t.name)))
    }
}
