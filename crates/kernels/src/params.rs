//! The parameters of a kernel: one struct in CUDA C, and the bytes of it that a launch writes.

use std::fmt::Write as _;

use crate::recipe::{LaunchValue, Param, Patch, TENSOR_MAP_BYTES};

/// Fields in the order of their places.
#[derive(Debug, Default)]
pub(crate) struct Params {
    text: String,
    patches: Vec<Patch>,
    bytes: Vec<u8>,
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
        self.field("TensorMap", name, TENSOR_MAP_BYTES, 64, value);
    }

    /// A number that the plan has and the code has not, so that plans share code: 64 bits.
    pub(crate) fn step(&mut self, name: &str, value: i64) {
        let at = self.place("i64", name, 8, 8);
        self.bytes[at..].copy_from_slice(&value.to_le_bytes());
    }

    /// The same in 32 bits, for counts that the rules hold below 2^31.
    pub(crate) fn count(&mut self, name: &str, value: i64) {
        let at = self.place("int", name, 4, 4);
        self.bytes[at..].copy_from_slice(&i32::try_from(value).unwrap_or(i32::MAX).to_le_bytes());
    }

    fn field(&mut self, ty: &str, name: &str, size: usize, alignment: usize, value: LaunchValue) {
        let at = self.place(ty, name, size, alignment) as u32;
        self.patches.push(Patch { at, value });
    }

    /// Makes room for a field and tells where it begins.
    fn place(&mut self, ty: &str, name: &str, size: usize, alignment: usize) -> usize {
        let at = self.bytes.len().next_multiple_of(alignment);
        let _ = writeln!(self.text, "  {ty} {name};");
        self.bytes.resize(at + size, 0);
        at
    }

    /// The struct in CUDA C, aligned as maps need it.
    pub(crate) fn text(&self) -> String {
        format!("struct __align__(64) Params {{\n{}}};\n", self.text)
    }

    /// The parameter of a recipe.
    pub(crate) fn param(self) -> Param {
        let mut bytes = self.bytes;
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        Param { bytes, patches: self.patches }
    }
}
