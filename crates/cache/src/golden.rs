//! Where the golden files of the formats are. Each has its format in its name, so that a new format gets new files
//! beside the old ones, which must be refused.

use std::path::{Path, PathBuf};

use crate::format::{Codec, FORMAT_VERSION};
use crate::pack::PACK_VERSION;

fn source(name: String) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name)
}

/// The golden file of an entry with this codec.
pub(crate) fn entry(codec: Codec) -> PathBuf {
    let ending = match codec {
        Codec::None => "",
        Codec::Zstd => "-zstd",
    };
    source(format!("format/golden-v{FORMAT_VERSION}{ending}.qkv"))
}

/// The golden file of a pack.
pub(crate) fn pack() -> PathBuf {
    source(format!("pack/golden-v{PACK_VERSION}.qkvpack"))
}

/// The bytes of a golden file.
pub(crate) fn read(path: &Path) -> Vec<u8> {
    let advice = "`cargo test -p qkvault-cache write_golden -- --ignored` writes the files of a new format";
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}; {advice}", path.display()))
}
