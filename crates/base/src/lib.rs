//! What several crates of qkvault must agree on and none of them owns: cuDNN versions, sets of cuDNN's libraries, and the folder where
//! qkvault keeps things.

mod folders;
pub mod random;
mod sources;
mod version;

pub use folders::{CACHE_DIR_VARIABLE, CacheDir, CacheDirSource, MANIFEST, cache_dir, cudnn_dir, libraries_dir};
pub use sources::with_sources;
pub use version::{BadVersion, CudnnVersion, LibrarySet};
