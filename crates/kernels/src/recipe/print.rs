//! Recipes as text, for people: one line for a step, one for a parameter that a launch writes into.

use std::fmt;

use super::{Launch, Param, Patch, Recipe, Step, TensorMap, Value};

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recipe { format, sm, driver, scratch, modules, steps } = self;
        let sizes = modules.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(
            f,
            "recipe of format {format} for sm_{sm}, driver of CUDA {}.{} or newer, {scratch} bytes of scratch memory, \
             cubins of {sizes} bytes",
            driver / 1000,
            driver % 1000 / 10
        )?;
        for (i, step) in steps.iter().enumerate() {
            match step {
                Step::Clear { at, bytes, value } => write!(f, "\n{i}: set {bytes} bytes at scratch + {at} to {value}")?,
                Step::Launch(launch) => write!(f, "\n{i}: {launch}")?,
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

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Address(role) => write!(f, "address of {role}"),
            Value::Scratch(at) => write!(f, "address of scratch + {at}"),
            Value::Number(role) => write!(f, "number {role}"),
            Value::Product(role, by) => write!(f, "number {role} times {}", f32::from_bits(*by)),
            Value::Map(map) => write!(f, "tensor map {map}"),
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
