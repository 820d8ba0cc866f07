//! What a launch or a binding is given, as the check reads it: in the plan's order, or by role.

use std::ops::ControlFlow;

use qkvault_graph::Binding;
use qkvault_graph::Role;

use super::{FaultSink, Needs, check_number, check_tensor, missing};
use crate::bind_error::BindError;
use crate::bindings::{Number, RawBindings, RawOperand};
use crate::driver::MemoryKind;
use crate::raw::{DeviceBuffer, RawArgs};

/// Operands and scalars that are given to a plan.
pub(crate) trait Supplied {
    /// Whether addresses are known. Without them only roles, types and who may write are checked.
    const PLACED: bool;

    /// Checks that each of the plan's operands is given once, and each alone.
    fn check_each<S: FaultSink>(&self, needs: Needs<'_>, sink: &mut S) -> ControlFlow<()>;

    /// The number of a role, which is at this place among the plan's scalars.
    fn number(&self, role: Role, place: usize) -> Option<Number>;

    /// The operands, each with its tensor among the plan's operands.
    fn tensors<'a>(&'a self, bindings: &'a [Binding]) -> impl Iterator<Item = (&'a Binding, DeviceBuffer)>;

    /// Pairs of operands whose ranges may overlap.
    fn interleaved(&self) -> &[(Role, Role)];

    /// The kind of memory at an address, and the ordinal of the plan's GPU.
    fn memory(&self, address: u64) -> (MemoryKind, i32);
}

/// Arguments in the plan's order: as many tensors and scalars as it has. The driver is not asked where they lie.
pub(crate) struct ByPlace<'a> {
    pub(crate) tensors: &'a [Binding],
    pub(crate) scalars: &'a [Binding],
    pub(crate) args: RawArgs<'a>,
}

impl Supplied for ByPlace<'_> {
    const PLACED: bool = true;

    #[inline]
    fn check_each<S: FaultSink>(&self, _: Needs<'_>, sink: &mut S) -> ControlFlow<()> {
        for (binding, &DeviceBuffer { address, bytes }) in self.tensors.iter().zip(self.args.tensors) {
            let operand = RawOperand { role: binding.role, address, bytes, dtype: None, writable: true };
            check_tensor(binding, &operand, self, sink)?;
        }
        for (binding, number) in self.scalars.iter().zip(self.args.scalars) {
            check_number(binding, number.dtype(), sink)?;
        }
        ControlFlow::Continue(())
    }

    #[inline]
    fn number(&self, _: Role, place: usize) -> Option<Number> {
        self.args.scalars.get(place).copied()
    }

    #[inline]
    fn tensors<'a>(&'a self, _: &'a [Binding]) -> impl Iterator<Item = (&'a Binding, DeviceBuffer)> {
        self.tensors.iter().zip(self.args.tensors.iter().copied())
    }

    #[inline]
    fn interleaved(&self) -> &[(Role, Role)] {
        self.args.interleaved
    }

    #[inline]
    fn memory(&self, _: u64) -> (MemoryKind, i32) {
        (MemoryKind::Unknown, 0)
    }
}

/// Bindings by role, and who knows the kind of memory at an address.
pub(crate) struct ByRole<'a, M, const PLACED: bool> {
    bindings: &'a RawBindings,
    ordinal: i32,
    memory: M,
}

impl<'a, M: Fn(u64) -> MemoryKind> ByRole<'a, M, true> {
    /// Bindings to a plan on the GPU of this ordinal.
    pub(crate) const fn new(bindings: &'a RawBindings, ordinal: i32, memory: M) -> ByRole<'a, M, true> {
        ByRole { bindings, ordinal, memory }
    }
}

#[cfg(any(feature = "cudarc", test))]
impl<'a> ByRole<'a, fn(u64) -> MemoryKind, false> {
    /// Bindings whose addresses are not known yet.
    pub(crate) const fn unplaced(bindings: &'a RawBindings) -> Self {
        ByRole { bindings, ordinal: 0, memory: |_| MemoryKind::Unknown }
    }
}

impl<M: Fn(u64) -> MemoryKind, const PLACED: bool> Supplied for ByRole<'_, M, PLACED> {
    const PLACED: bool = PLACED;

    #[inline]
    fn check_each<S: FaultSink>(&self, needs: Needs<'_>, sink: &mut S) -> ControlFlow<()> {
        let RawBindings { operands, scalars, interleaved: _ } = self.bindings;
        // As many as the plan has, of which each of the plan's is one, are one for each. A check that stops at what is
        // missing need not count more.
        let count = S::TELLS || operands.len() + scalars.len() != needs.count;
        let mut found = 0;
        for binding in needs.bindings.iter().filter(|binding| !binding.role.is_internal()) {
            let role = binding.role;
            let operand = operands.iter().find(|given| given.role == role);
            if count {
                let times = operands.iter().filter(|given| given.role == role).count()
                    + scalars.iter().filter(|(other, _)| *other == role).count();
                found += times;
                if times > 1 {
                    sink.fault(|| BindError::Duplicate { role, times })?;
                    continue;
                }
            }
            match operand {
                Some(_) if binding.scalar => sink.fault(|| BindError::NotATensor { role, dtype: binding.dtype })?,
                Some(operand) => check_tensor(binding, operand, self, sink)?,
                None => match scalars.iter().find(|(other, _)| *other == role) {
                    Some((_, number)) => check_number(binding, number.dtype(), sink)?,
                    None => sink.fault(|| missing(binding))?,
                },
            }
        }
        if count && found != operands.len() + scalars.len() {
            self.check_extra(needs, sink)
        } else {
            ControlFlow::Continue(())
        }
    }

    fn number(&self, role: Role, _: usize) -> Option<Number> {
        self.bindings.number(role)
    }

    fn tensors<'a>(&'a self, bindings: &'a [Binding]) -> impl Iterator<Item = (&'a Binding, DeviceBuffer)> {
        self.bindings.operands.iter().filter_map(move |&RawOperand { role, address, bytes, .. }| {
            let tensor = bindings.iter().find(|binding| binding.role == role && !binding.scalar)?;
            Some((tensor, DeviceBuffer { address, bytes }))
        })
    }

    fn interleaved(&self) -> &[(Role, Role)] {
        &self.bindings.interleaved
    }

    fn memory(&self, address: u64) -> (MemoryKind, i32) {
        ((self.memory)(address), self.ordinal)
    }
}

impl<M, const PLACED: bool> ByRole<'_, M, PLACED> {
    /// Tells each role once, in the order of roles, that is given and is none of the plan's, or not the caller's to
    /// give.
    #[cold]
    fn check_extra(&self, needs: Needs<'_>, sink: &mut impl FaultSink) -> ControlFlow<()> {
        let RawBindings { operands, scalars, interleaved: _ } = self.bindings;
        let roles = || operands.iter().map(|given| given.role).chain(scalars.iter().map(|(role, _)| *role));
        let find = |role: Role| needs.bindings.iter().find(|binding| binding.role == role);
        let right = |role: Role| find(role).is_some_and(|binding| !binding.role.is_internal());
        let mut last = None;
        while let Some(role) = roles().filter(|role| Some(*role) > last && !right(*role)).min() {
            last = Some(role);
            sink.fault(|| match find(role) {
                Some(_) => BindError::Internal { role },
                None => {
                    let plan_has = needs.bindings.iter().map(|b| b.role).filter(|r| !r.is_internal()).collect();
                    BindError::Extra { role, plan_has }
                }
            })?;
        }
        ControlFlow::Continue(())
    }
}
