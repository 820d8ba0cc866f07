//! Compiles the stand-in's headers ahead, which every emulated program begins with: a quarter of the time that a small
//! program takes to compile.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=src/machine");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names it"));
    // As `HostProgram` compiles programs: a header that was compiled otherwise is passed over.
    for level in ["-O0", "-O1"] {
        let folder = out.join(level);
        std::fs::create_dir_all(&folder)?;
        for entry in std::fs::read_dir("src/machine")? {
            let path = entry?.path();
            std::fs::copy(&path, folder.join(path.file_name().expect("a file")))?;
        }
        // Without a compiler tests skip themselves.
        let _ = compile(&folder, level);
    }
    Ok(())
}

fn compile(folder: &Path, level: &str) -> std::io::Result<std::process::ExitStatus> {
    Command::new("c++")
        .args(["-std=c++17", "-march=native", "-w", "-DEMULATED=\"machine.h\"", level, "-x", "c++-header", "-o"])
        .args([folder.join("job.h.gch"), folder.join("job.h")])
        .status()
}
