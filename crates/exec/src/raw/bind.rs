//! Binding: checked operands and scalars become a variant pack.

use std::ffi::c_void;

use qkvault_graph::Role;
use qkvault_sys::{AttributeName as A, Descriptor, Error, Kind};

use crate::bind_error::BindErrors;
use crate::bindings::Bindings;
use crate::check::{check_bindings, check_workspace};
use crate::driver::memory_kind;
use crate::raw::bound::{Bound, Scalar};
use crate::raw::cells::Cells;
use crate::raw::load::LoadedPlan;

/// Why a plan was not bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindFailure {
    /// What was bound is wrong.
    #[error(transparent)]
    Wrong(#[from] BindErrors),
    /// cuDNN does not take the variant pack.
    #[error(
        "cuDNN does not take what was bound to the plan of '{what}': {source}; report this with what `qkvault doctor` prints"
    )]
    Cudnn {
        /// What the plan computes.
        what: String,
        /// What cuDNN answered.
        source: Error,
    },
}

impl LoadedPlan {
    /// Binds operands, scalars and `workspace` (address and bytes; zeros if the plan needs none) by role, after checking them all.
    ///
    /// # Errors
    ///
    /// [`BindFailure::Wrong`] with everything that is wrong.
    pub fn bind(&self, bindings: &Bindings, workspace: (u64, u64)) -> Result<Bound, BindFailure> {
        self.check(bindings, workspace)?;
        let mut values: Vec<u64> = self.facts().fixed.iter().map(|fixed| cell(fixed.value.bytes())).collect();
        let mut scalars = Vec::new();
        for binding in self.facts().bindings.iter().filter(|b| b.scalar) {
            scalars.push(Scalar { role: binding.role, dtype: binding.dtype, cell: values.len() });
            let given = bindings.scalars.iter().find(|(role, _)| *role == binding.role);
            values.push(given.map_or(0, |(_, value)| value.cell()));
        }
        let cells = Cells::new(values);
        let pack = self.pack(bindings, workspace.0, &cells, &scalars)?;
        Ok(Bound { pack, cells, scalars, plan: self.clone(), workspace })
    }

    pub(crate) fn check(&self, bindings: &Bindings, workspace: (u64, u64)) -> Result<(), BindErrors> {
        let ordinal = self.session().machine().ordinal;
        check_bindings(self.facts(), bindings, ordinal, &memory_kind)?;
        check_workspace(self.facts(), bindings, self.workspace(), workspace.0, workspace.1)
    }

    /// The variant pack of checked bindings.
    pub(crate) fn pack(
        &self,
        bindings: &Bindings,
        workspace: u64,
        cells: &Cells,
        scalars: &[Scalar],
    ) -> Result<Descriptor, BindFailure> {
        let at = |address: u64| address as usize as *mut c_void;
        let fixed = self.facts().fixed.iter().enumerate().map(|(i, fixed)| (fixed.uid, cells.address(i)));
        let scalars = scalars.iter().map(|scalar| (scalar.role.uid(), cells.address(scalar.cell)));
        let operands = bindings.operands.iter().map(|operand| (operand.role.uid(), at(operand.address)));
        let given = |role: Role| bindings.operands.iter().find(|operand| operand.role == role);
        let again = self.facts().again.iter().filter_map(|role| Some((role.uid(), at(given(role.memory())?.address))));
        let buffers = self.scratch().buffers.iter().map(|(role, offset, _)| (role.uid(), at(workspace + offset)));
        let (uids, pointers): (Vec<i64>, Vec<*mut c_void>) =
            fixed.chain(scalars).chain(operands).chain(again).chain(buffers).unzip();
        let make = || {
            let mut pack = Descriptor::create(&self.session().inner.library, Kind::VARIANT_PACK)?;
            pack.set(A::VARIANT_PACK_UNIQUE_IDS, &uids)?;
            // SAFETY: host addresses are those of cells that live as long as the pack; that operands and workspace stay valid is what the
            // caller promises with each launch, the only thing that follows them.
            unsafe {
                pack.set_pointers(A::VARIANT_PACK_DATA_POINTERS, &pointers)?;
                pack.set_pointers(A::VARIANT_PACK_WORKSPACE, &[at(workspace)])?;
            }
            pack.finalized()
        };
        make().map_err(|source| BindFailure::Cudnn { what: self.facts().what.clone(), source })
    }
}

fn cell(bytes: [u8; 4]) -> u64 {
    let mut cell = [0; 8];
    cell[..4].copy_from_slice(&bytes);
    u64::from_ne_bytes(cell)
}
