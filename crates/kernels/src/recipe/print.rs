//! Recipes as text, for people: one line for a step, one for a parameter that a launch writes into.

use std::fmt;

use super::{Launch, LaunchRecipe, LaunchValue, Param, Patch, RecipeStep, TensorMap};

impl fmt::Display for LaunchRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaunchRecipe { format, sm, driver, scratch, modules, constants, steps } = self;
        let sizes = modules.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(
            f,
            "recipe of format {format} for sm_{sm}, driver of CUDA {}.{} or newer, {scratch} bytes of scratch memory, \
             cubins of {sizes} bytes",
            driver / 1000,
            driver % 1000 / 10
        )?;
        if *constants > 0 {
            write!(f, ", {constants} bytes of constant data")?;
        }
        for (i, step) in steps.iter().enumerate() {
            match step {
                RecipeStep::Clear { at, bytes, value } => {
                    write!(f, "\n{i}: set {bytes} bytes at scratch + {at} to {value}")?
                }
                RecipeStep::Launch(launch) => write!(f, "\n{i}: {launch}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Launch { module, function, grid, block, shared, cluster, overlap, params } = self;
        write!(f, "launch {function} of cubin {module}, grid {}, block {}, shared {shared}", x(grid), x(block))?;
        if let Some(cluster) = cluster {
            write!(f, ", clusters of {}", x(cluster))?;
        }
        if *overlap {
            f.write_str(", may begin before the step before it ends")?;
        }
        params.iter().enumerate().try_for_each(|(i, Param { bytes, patches })| {
            write!(f, "\n   parameter {i}: {} bytes", bytes.len())?;
            patches.iter().try_for_each(|Patch { at, value }| write!(f, "\n     {at}: {value}"))
        })
    }
}

impl fmt::Display for LaunchValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaunchValue::Address(role) => write!(f, "address of {role}"),
            LaunchValue::Scratch(at) => write!(f, "address of scratch + {at}"),
            LaunchValue::Number(role) => write!(f, "number {role}"),
            LaunchValue::Product(role, by) => write!(f, "number {role} times {}", f32::from_bits(*by)),
            LaunchValue::Constant(at) => write!(f, "address of constant data + {at}"),
            LaunchValue::Map(map) => write!(f, "tensor map {map}"),
            LaunchValue::Fitting(map) => write!(f, "last extent of tensor map {map}"),
        }
    }
}

impl fmt::Display for TensorMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorMap { role, dtype, dims, strides, tile, swizzle } = self;
        write!(f, "of {role}: {dtype} {dims:?}, strides {strides:?} bytes, box {tile:?}, swizzle {swizzle}")
    }
}

/// Extents as `2048x1x1`.
fn x([a, b, c]: &[u32; 3]) -> String {
    format!("{a}x{b}x{c}")
}
