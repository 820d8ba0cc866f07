//! The parameters of a kernel: one struct in CUDA C, and the bytes of it that a launch writes.

use std::fmt::Write as _;

use crate::recipe::{LaunchValue, Param, Patch, TENSOR_MAP_BYTES};

/// Fields in the order of their places.
#[derive(Debug, Default)]
pub(crate) struct Params {
    text: String,
    patches: Vec<Patch>,
    bytes: u32,
}

impl Params {
    /// A pointer to `ty`.
    pub(crate) fn pointer(&mut self, ty: &str, name: &str, value: LaunchValue) {
        self.field(&format!("{ty}*"), name, 8, 8, value);
    }

    /// A number of four bytes.
    pub(crate) fn number(&mut self, ty: &str, name: &str, value: LaunchValue) {
        self.field(ty, name, 4, 4, value);
    }

    /// A tensor map.
    pub(crate) fn map(&mut self, name: &str, value: LaunchValue) {
        self.field("TensorMap", name, TENSOR_MAP_BYTES as u32, 64, value);
    }

    fn field(&mut self, ty: &str, name: &str, size: u32, alignment: u32, value: LaunchValue) {
        let at = self.bytes.next_multiple_of(alignment);
        let _ = writeln!(self.text, "  {ty} {name};");
        self.patches.push(Patch { at, value });
        self.bytes = at + size;
    }

    /// The struct in CUDA C, aligned as maps need it.
    pub(crate) fn text(&self) -> String {
        format!("struct __align__(64) Params {{\n{}}};\n", self.text)
    }

    /// The parameter of a recipe.
    pub(crate) fn param(self) -> Param {
        Param { bytes: vec![0; self.bytes.next_multiple_of(64) as usize], patches: self.patches }
    }
}
