//! The pinned packages that compile the kernels, and where a fetch puts them.

/// Versions of the packages that decide what is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// `flash-attn-4`: the kernels, in Python.
    pub flash_attn: &'static str,
    /// `nvidia-cutlass-dsl`: their compiler, with `ptxas` inside.
    pub cutlass_dsl: &'static str,
    /// `quack-kernels`: functions that the kernels use.
    pub quack: &'static str,
}

/// The one toolchain whose kernels are launched: the host's side of a launch is written for it.
pub const TOOLCHAIN: Toolchain = Toolchain { flash_attn: "4.0.0b36", cutlass_dsl: "4.8.1", quack: "0.6.5" };

/// Versions of Python that the packages are for.
pub const PYTHONS: [&str; 4] = ["3.11", "3.12", "3.13", "3.14"];

/// The folder of an engine's packages for a version of Python (`3.12`), below `engines` of the fetched libraries.
#[must_use]
pub fn folder(name: &str, version: &str, python: &str) -> String {
    format!("{name}-{version}-cp{}", python.replace('.', ""))
}
