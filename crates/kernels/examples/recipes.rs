//! Writes source, options and recipe of attentions in text form as JSON: one attention per paragraph of the input.
#![allow(clippy::print_stdout, reason = "its output is for programs")]

use std::io::Read as _;

use qkvault_graph::{text, validate};
use qkvault_kernels::generate_with;
use qkvault_kernels::tiling::Tiling;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let mut list = Vec::new();
    for paragraph in input.split("\n\n").filter(|p| !p.trim().is_empty()) {
        let (tiling, written) = match paragraph.trim_start().strip_prefix("tiling: ") {
            Some(rest) => {
                let (line, rest) = rest.split_once('\n').ok_or("a text")?;
                (Some(line.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>()?), rest)
            }
            None => (None, paragraph),
        };
        let attention = validate(text::parse(written)?)?;
        let made = generate_with(&attention, 90, |sizes| match &tiling {
            None => Tiling::of(sizes),
            Some(t) => Tiling {
                tile: t[0],
                warps_rows: t[1],
                warps_keys: t[2],
                stages: t[3],
                warpgroups: t[4] == 1,
                blocks_per_sm: t[5],
                warps_columns: sizes.value_dim.div_ceil(256),
                merge_columns: t.get(6).copied().unwrap_or_else(|| Tiling::of(sizes).merge_columns),
            },
        })?;
        let bindings: Vec<_> = attention.operand_facts().iter().map(|f| serde_json::json!({
            "role": f.role.name(), "id": f.role, "name": f.name, "dtype": f.dtype, "dims": f.dims, "strides": f.strides, "bytes": f.bytes, "output": f.output, "scalar": f.scalar,
        })).collect();
        list.push(serde_json::json!({"text": written, "tiling": tiling, "source": made.source, "options": made.options, "recipe": made.recipe, "bindings": bindings}));
    }
    println!("{}", serde_json::to_string(&list)?);
    Ok(())
}
