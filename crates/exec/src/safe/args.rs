//! The arguments of a launch: operands by name or role, and scalars, in any order, on the stack.

use std::fmt;
use std::sync::Arc;

use qkvault_graph::Role;
use smallvec::SmallVec;

use crate::bindings::Number;
use crate::safe::list::StackList;
use crate::safe::operands::{HeldOperand, Input, Output};
use crate::safe::tracked::BatchArgs;
use crate::safe::workspace::Workspace;

/// Which operand or scalar of a plan: by role, or by its name in the description's expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which<'a> {
    /// A role.
    Role(Role),
    /// The name of a scalar or tensor in the `score_mod` or `mask_mod`.
    Named(&'a str),
}

impl From<Role> for Which<'_> {
    fn from(role: Role) -> Self {
        Which::Role(role)
    }
}

impl<'a> From<&'a str> for Which<'a> {
    fn from(name: &'a str) -> Self {
        Which::Named(name)
    }
}

impl fmt::Display for Which<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Which::Role(role) => write!(f, "{role}"),
            Which::Named(name) => write!(f, "'{name}'"),
        }
    }
}

/// An operand of the arguments.
pub(crate) struct GivenOperand<'a> {
    pub(crate) which: Which<'a>,
    /// Whether it is the gradient of the named tensor.
    pub(crate) gradient: bool,
    /// Whether the caller promises that its numbers lead nowhere else.
    pub(crate) trusted: bool,
    pub(crate) held: HeldOperand<'a>,
}

/// Operands and scalars of a launch, in any order.
///
/// Inputs are borrowed shared and outputs exclusively, for the launch or for the life of a bound plan. An owned operand
/// (an `Arc<CudaSlice>` or a `CudaSlice`) lives as long as what it is given to: so a struct can keep a bound plan or a
/// captured graph beside its memory.
///
/// What may be left out: the softmax scale (one over the square root of the head dim, for plans of
/// `Session::prepare`), ALiBi slopes, and the scratch memory.
///
/// ```no_run
/// # use qkvault_exec::{Args, LoadedPlan, cudarc};
/// # fn run(
/// #     plan: &LoadedPlan, stream: &std::sync::Arc<cudarc::driver::CudaStream>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let zeros = || stream.alloc_zeros::<half::bf16>(8 * 512 * 128);
/// let (q, k, v, mut o) = (zeros()?, zeros()?, zeros()?, zeros()?);
/// // All errors at once, each with the name of its operand.
/// plan.launch(stream, Args::new().q(&q).k(&k).v(&v).o(&mut o).scalar("softcap", 50.0_f32))?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Args<'a> {
    pub(crate) operands: StackList<GivenOperand<'a>, 10>,
    pub(crate) scalars: StackList<(Which<'a>, Number), 4>,
    pub(crate) interleaved: SmallVec<[(Role, Role); 3]>,
    pub(crate) workspace: Option<Arc<Workspace>>,
    pub(crate) batch: Option<BatchArgs>,
}

macro_rules! inputs {
    ($($name:ident: $role:ident, $what:literal;)+) => {$(
        #[doc = $what]
        #[inline]
        #[must_use]
        pub fn $name(self, slice: impl Input<'a>) -> Args<'a> {
            self.tensor(Role::$role, slice)
        }
    )+};
}

macro_rules! outputs {
    ($($name:ident: $role:ident, $what:literal;)+) => {$(
        #[doc = $what]
        #[inline]
        #[must_use]
        pub fn $name(self, slice: impl Output<'a>) -> Args<'a> {
            self.tensor_mut(Role::$role, slice)
        }
    )+};
}

impl<'a> Args<'a> {
    /// No arguments.
    #[inline]
    #[must_use]
    pub fn new() -> Args<'a> {
        Args::default()
    }

    inputs! {
        q: Q, "Queries.";
        k: K, "Keys, or the pool of key pages.";
        v: V, "Values, or the pool of value pages.";
        sink: Sink, "The sink of each head, f32.";
        d_o: DO, "The gradient of the output.";
        saved_o: O, "The output of the forward, in a backward.";
        saved_lse: Stats, "The log-sum-exp of each row that the forward wrote, f32, in a backward. cuDNN calls it Stats.";
    }

    outputs! {
        o: O, "The output.";
        lse: Stats, "The log-sum-exp of each row, natural logarithm, f32. cuDNN calls it Stats.";
        d_q: DQ, "The gradient of the queries.";
        d_k: DK, "The gradient of the keys.";
        d_v: DV, "The gradient of the values.";
        d_sink: DSink, "The gradient of the sinks, f32.";
    }

    /// An input, by role or by its name in the description's expressions.
    #[inline]
    #[must_use]
    pub fn tensor(self, which: impl Into<Which<'a>>, slice: impl Input<'a>) -> Args<'a> {
        self.given(which.into(), slice.held().0)
    }

    /// An output, by role.
    #[inline]
    #[must_use]
    pub fn tensor_mut(self, which: impl Into<Which<'a>>, slice: impl Output<'a>) -> Args<'a> {
        self.given(which.into(), slice.held().0)
    }

    /// The gradient of a tensor of the description's expressions, by the tensor's name.
    #[inline]
    #[must_use]
    pub fn gradient(mut self, name: &'a str, slice: impl Output<'a>) -> Args<'a> {
        let which = Which::Named(name);
        self.operands.push(GivenOperand { which, gradient: true, trusted: false, held: slice.held().0 });
        self
    }

    /// A scalar, by role or by its name in the description's expressions: an [`f32`], [`i32`] or [`i64`].
    #[inline]
    #[must_use]
    pub fn scalar(mut self, which: impl Into<Which<'a>>, value: impl Into<Number>) -> Args<'a> {
        self.scalars.push((which.into(), value.into()));
        self
    }

    /// The softmax scale. Left out, it is one over the square root of the head dim.
    #[inline]
    #[must_use]
    pub fn scale(self, scale: f32) -> Args<'a> {
        self.scalar(Role::Scale, scale)
    }

    /// Seed and offset of dropout, of a forward in a training pair.
    #[inline]
    #[must_use]
    pub fn dropout(self, seed: i64, offset: i64) -> Args<'a> {
        self.scalar(Role::DropoutSeed, seed).scalar(Role::DropoutOffset, offset)
    }

    /// An operand at an address.
    ///
    /// # Safety
    ///
    /// Until every launch with these arguments is finished, the memory must be valid for what the plan does with the
    /// operand, and nothing that conflicts with a launch may use it.
    #[inline]
    #[must_use]
    pub unsafe fn address(mut self, which: impl Into<Which<'a>>, address: u64, bytes: u64) -> Args<'a> {
        let held = HeldOperand::Address { address, bytes };
        self.operands.push(GivenOperand { which: which.into(), gradient: false, trusted: true, held });
        self
    }

    /// Lengths, offsets or a page table of the caller's own.
    /// [`LoadedPlan::verify_step`](crate::LoadedPlan::verify_step) checks what they hold.
    ///
    /// # Safety
    ///
    /// A kernel follows these numbers: until every launch is finished they must lead nowhere outside the operands, as
    /// `docs/serving.md` says for each of them.
    #[inline]
    #[must_use]
    pub unsafe fn indices(mut self, role: Role, slice: impl Input<'a>) -> Args<'a> {
        let which = Which::Role(role);
        self.operands.push(GivenOperand { which, gradient: false, trusted: true, held: slice.held().0 });
        self
    }

    /// Declares that two operands lie interleaved in one buffer, as the gradients of an interleaved QKV do: their
    /// ranges overlap, their elements do not.
    #[inline]
    #[must_use]
    pub fn interleaved(mut self, a: Role, b: Role) -> Args<'a> {
        self.interleaved.push((a, b));
        self
    }

    /// Scratch memory that several plans share. Without it a launch uses that of its stream, and a bound plan has its
    /// own.
    #[inline]
    #[must_use]
    pub fn workspace(mut self, workspace: &Arc<Workspace>) -> Args<'a> {
        self.workspace = Some(Arc::clone(workspace));
        self
    }

    /// The roles of the operands that are given by role.
    pub(crate) fn roles(&self) -> impl Iterator<Item = Role> + '_ {
        self.operands.iter().filter_map(|given| match given.which {
            Which::Role(role) => Some(role),
            Which::Named(_) => None,
        })
    }

    #[inline]
    fn given(mut self, which: Which<'a>, held: HeldOperand<'a>) -> Args<'a> {
        self.operands.push(GivenOperand { which, gradient: false, trusted: false, held });
        self
    }
}

impl fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operands: Vec<String> = self.operands.iter().map(|given| given.which.to_string()).collect();
        f.debug_struct("Args").field("operands", &operands).field("scalars", &self.scalars).finish_non_exhaustive()
    }
}
