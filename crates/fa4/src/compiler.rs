//! Runs the compiler: a child process of Python that is given kernels and gives back machine code.

use std::time::Duration;

use qkvault_kernels::recipe::CubinKernel;
use serde::Deserialize;

use crate::args::Boxes;
use crate::child::{ChildLimits, ChildRoom, Ended};
use crate::request::{Kernel, KernelRequest};
use crate::told::Told;
use crate::toolchain::{Fa4Toolchain, Installed, NotInstalled, TOOLCHAIN};
use crate::types::{Type, UnknownType};

/// What the child runs and reads: the program; the words of expressions; what makes kernels of FlashAttention-4's for
/// sequences one after another; and for rows that their sums would lose.
pub(crate) const FILES: [(&str, &str); 4] = [
    ("compiler.py", include_str!("compiler.py")),
    ("words.py", include_str!("words.py")),
    ("packed.py", include_str!("packed.py")),
    ("rows.py", include_str!("rows.py")),
];

/// Time that a child may take: to start, and for each kernel. Both are some thirty times what they take.
const TIME: [Duration; 2] = [Duration::from_secs(180), Duration::from_secs(120)];

/// Bytes of address space of a child: some three times what it takes.
const MEMORY: u64 = 12 << 30;

/// Bytes of an answer for each kernel: some hundred times what one has.
const ANSWER: u64 = 16 << 20;

/// Why kernels are not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The toolchain cannot be used here.
    #[error(transparent)]
    NotInstalled(#[from] NotInstalled),
    /// Another version of it is in the folder.
    #[error(
        "{} has {package} {found}, and plans are compiled by {needed}; remove that folder and run `cargo xtask fetch \
         --engine fa4`",
        site.display()
    )]
    Version {
        /// The folder.
        site: std::path::PathBuf,
        /// The package.
        package: &'static str,
        /// Its version.
        found: String,
        /// The version of plans.
        needed: &'static str,
    },
    /// The child failed.
    #[error("FlashAttention-4's compiler failed ({status}): {words}")]
    Failed {
        /// How it ended.
        status: String,
        /// Its last words.
        words: String,
    },
    /// It gave an answer that is not as expected.
    #[error("FlashAttention-4's compiler gave an answer that cannot be read: {why}; report this with the description")]
    Answer {
        /// What is wrong.
        why: String,
    },
    /// A file could not be written or read.
    #[error("cannot {what} a file for FlashAttention-4's compiler: {why}")]
    File {
        /// The operation.
        what: &'static str,
        /// The system's error.
        why: String,
    },
}

/// A compiled kernel, with what the compiler tells about its launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledKernel {
    /// The machine code.
    pub cubin: Vec<u8>,
    /// What the code itself tells.
    pub kernel: CubinKernel,
    /// What the compiler tells about its launch.
    pub told: Told,
    /// The host function in LLVM's dialect of MLIR. Nothing of a launch is taken from it: tests compare launches with
    /// what it computes.
    pub host: String,
}

#[derive(Deserialize)]
struct CompilerAnswer {
    versions: PackageVersions,
    kernels: Vec<Printed>,
}

#[derive(Deserialize)]
struct PackageVersions {
    flash_attn: String,
    cutlass_dsl: String,
    quack: String,
}

#[derive(Deserialize)]
struct Printed {
    cubin: String,
    params: Vec<String>,
    maps: Vec<PrintedMap>,
    block: [u32; 3],
    shared: u32,
    attributes: Attributes,
    host: String,
}

#[derive(Deserialize)]
struct Attributes {
    #[serde(rename = "programmatic_stream_serialization_allowed")]
    overlap: i64,
    cooperative: i64,
}

#[derive(Deserialize)]
struct PrintedMap {
    basis: String,
    swizzle: [u32; 3],
}

impl Installed {
    /// Compiles kernels, in one process: 3 to 5 s to start it, then 1 to 4 s for each.
    ///
    /// # Errors
    ///
    /// [`CompileError`] with the child's last words, or what is not as expected in its answer.
    pub fn compile(&self, kernels: &[Kernel]) -> Result<Vec<CompiledKernel>, CompileError> {
        self.compile_with(&TOOLCHAIN, kernels)
    }

    /// The same by a toolchain of other versions, which are compared with those in the folder. Launches are not written
    /// for it: this only tells what it changes (`examples/upgrade`), and no plan is made of it.
    ///
    /// # Errors
    ///
    /// Those of [`Installed::compile`].
    #[doc(hidden)]
    pub fn compile_with(
        &self,
        toolchain: &Fa4Toolchain,
        kernels: &[Kernel],
    ) -> Result<Vec<CompiledKernel>, CompileError> {
        let request = KernelRequest::for_kernels(kernels).map_err(unreadable)?;
        let _span = tracing::info_span!("fa4.compile").entered();
        let room = ChildRoom::with(&FILES)?;
        let count = u32::try_from(kernels.len()).unwrap_or(u32::MAX);
        let [start, each] = TIME;
        let limits = ChildLimits {
            time: start.saturating_add(each.saturating_mul(count)),
            memory: MEMORY,
            answer: ANSWER.saturating_mul(count.into()),
        };
        let text = room.run(&self.python, "compiler.py", &[&self.site], request.text(), limits)?;
        let CompilerAnswer { versions, kernels: printed } = serde_json::from_str(&text).map_err(unreadable)?;
        self.check(versions, toolchain)?;
        if printed.len() != kernels.len() {
            return Err(CompileError::Answer { why: format!("{} kernels for {}", printed.len(), kernels.len()) });
        }
        printed
            .into_iter()
            .map(|printed| CompiledKernel::from_printed(printed).map_err(|why| CompileError::Answer { why }))
            .collect()
    }

    fn check(&self, found: PackageVersions, needed: &Fa4Toolchain) -> Result<(), CompileError> {
        let PackageVersions { flash_attn, cutlass_dsl, quack } = found;
        let found = [flash_attn, cutlass_dsl, quack];
        for ((package, needed), found) in needed.packages().into_iter().zip(found) {
            if found != needed {
                return Err(CompileError::Version { site: self.site.clone(), package, found, needed });
            }
        }
        Ok(())
    }
}

impl CompiledKernel {
    fn from_printed(printed: Printed) -> Result<CompiledKernel, String> {
        let Printed { cubin, params, maps, block, shared, attributes, host } = printed;
        let Attributes { overlap, cooperative } = attributes;
        if cooperative != 0 {
            return Err("a kernel is launched cooperatively".to_owned());
        }
        let cubin = decoded(&cubin).ok_or("a cubin is no base64")?;
        let kernel = CubinKernel::only(&cubin).map_err(|error| error.to_string())?;
        let params: Vec<Type> = params
            .iter()
            .map(|text| Type::read(text))
            .collect::<Result<_, UnknownType>>()
            .map_err(|e| e.to_string())?;
        let boxes = maps.iter().map(|map| Boxes::read(map).ok_or_else(|| format!("a tensor map of '{}'", map.basis)));
        let boxes = boxes.collect::<Result<_, String>>()?;
        let told = Told { params, boxes, block, shared, overlap: overlap != 0 };
        if !told.is_bounded() {
            return Err("a kernel has more parameters than any kernel has".to_owned());
        }
        Ok(CompiledKernel { cubin, kernel, told, host })
    }
}

impl Boxes {
    /// Reads extents and axes as `(64,128,1,1):(1@1,1@0,1@2,1@3)`, a fifth one as `(1)` and `(1@4)`, and a swizzle of
    /// 16-byte parts within 8 rows. Where the first axis has two parts, these are `1@0@0` and `1@1@0`.
    fn read(map: &PrintedMap) -> Option<Boxes> {
        let PrintedMap { basis, swizzle } = map;
        let (extents, axes) = basis.strip_prefix('(')?.strip_suffix(')')?.split_once("):(")?;
        let bare = |list: &str| list.replace(['(', ')'], "");
        let (extents, axes) = (bare(extents), bare(axes));
        let extents: Vec<u32> = extents.split(',').map(|n| n.parse().ok()).collect::<Option<_>>()?;
        let parts = usize::from(axes.contains("@0@0"));
        let axis = |text: &str| {
            let axis = text.strip_prefix("1@")?;
            match axis.strip_suffix("@0") {
                Some(part) => part.parse().ok(),
                None => Some(axis.parse::<usize>().ok()? + parts),
            }
        };
        let axes: Vec<usize> = axes.split(',').map(axis).collect::<Option<_>>()?;
        let [bits, 4, 3] = *swizzle else { return None };
        let swizzle = if bits == 0 { 0 } else { 16_u32.checked_shl(bits)? };
        (extents.len() == axes.len()).then(|| Boxes { dims: extents.into_iter().zip(axes).collect(), swizzle })
    }
}

/// Base64 with padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

fn unreadable(error: serde_json::Error) -> CompileError {
    CompileError::Answer { why: error.to_string() }
}

impl From<Ended> for CompileError {
    fn from(ended: Ended) -> CompileError {
        match ended {
            Ended::File { what, why } => CompileError::File { what, why },
            Ended::Failed { status, words } => CompileError::Failed { status, words },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::Python;

    /// What is told of packages in the folder by a toolchain that is asked for.
    fn told(flash_attn: &str, needed: &Fa4Toolchain) -> Result<(), CompileError> {
        let python = Python::first(&crate::PYTHONS.map(str::to_owned)).expect("a Python, which fetching needs too");
        let [_, cutlass_dsl, quack] = TOOLCHAIN.packages().map(|(_, version)| version.to_owned());
        let found = PackageVersions { flash_attn: flash_attn.to_owned(), cutlass_dsl, quack };
        Installed { python, site: "/cache/fa4".into() }.check(found, needed)
    }

    #[test]
    fn packages_of_another_version_than_is_asked_for_are_named_and_compile_nothing() {
        let tried = Fa4Toolchain { flash_attn: "4.0.0b99", ..TOOLCHAIN };
        assert_eq!(told(TOOLCHAIN.flash_attn, &TOOLCHAIN), Ok(()));
        assert_eq!(told("4.0.0b99", &tried), Ok(()), "where another toolchain is tried");
        let text = told("4.0.0b99", &TOOLCHAIN).expect_err("plans are compiled by the pinned one").to_string();
        assert!(text.contains("/cache/fa4 has flash-attn-4 4.0.0b99") && text.contains(TOOLCHAIN.flash_attn), "{text}");
        assert!(matches!(told(TOOLCHAIN.flash_attn, &tried), Err(CompileError::Version { .. })));
    }
}
