//! Definitions that several crates of qkvault share and none of them owns: cuDNN versions, sets of cuDNN's libraries,
//! the cache folder, and a random number generator.

mod folders;
pub mod random;
mod sources;
mod version;

pub use folders::{CACHE_DIR_VARIABLE, CacheDir, CacheDirSource, MANIFEST, cache_dir, cudnn_dir, libraries_dir};
pub use sources::with_sources;
pub use version::{BadVersion, CudnnVersion, LibrarySet};
