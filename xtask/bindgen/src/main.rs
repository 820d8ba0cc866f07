//! `xtask-bindgen INCLUDE RELEASE STUBS OUTPUT`: writes the declarations of a cuDNN header to a file. `cargo xtask
//! bindings` runs it with the arguments that it needs.

mod generate;

use std::path::Path;

use anyhow::{Context as _, Result, bail};

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [include, release, stubs, output] = &given[..] else {
        bail!(
            "INCLUDE RELEASE STUBS OUTPUT are needed, and {} arguments are given; run `cargo xtask bindings`",
            given.len()
        )
    };
    let text = generate::generate(Path::new(include), Path::new(stubs), release)?;
    std::fs::write(output, text).with_context(|| format!("cannot write {output}"))
}
