//! The inputs that fuzzing kept, run through the same checks on a stable compiler.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::path::Path;

#[path = "../fuzz/checks.rs"]
mod checks;

#[test]
fn every_kept_input_is_answered() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (name, check) in checks::CHECKS {
        let mut files: Vec<_> =
            std::fs::read_dir(corpus.join(name)).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "no inputs for {name}");
        for path in files {
            let bytes = std::fs::read(&path).unwrap();
            if let Err(panic) = std::panic::catch_unwind(|| check(&bytes)) {
                eprintln!("failed by {}", path.display());
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Every good file, and each of its bytes changed in turn, through the checks that repair checksums.
#[test]
fn neighbours_of_good_files_are_answered() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in [
        "format/golden-v1.qkv",
        "format/golden-v1-zstd.qkv",
        "format/golden-v1-shared.qkv",
        "format/golden-v1.qkvblob",
        "pack/golden-v1.qkvpack",
    ] {
        let good = std::fs::read(source.join(file)).unwrap();
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                for (_, check) in checks::CHECKS {
                    check(&bytes);
                }
            }
        }
    }
}
