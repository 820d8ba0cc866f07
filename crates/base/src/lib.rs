//! Definitions that several crates of qkvault share and none of them owns: cuDNN versions, sets of cuDNN's libraries,
//! the cache folder, a random number generator, and bounds of caches.

mod bounds;
mod folders;
pub mod random;
mod sources;
mod version;

pub use bounds::Bounds;
pub use folders::{CACHE_DIR_VARIABLE, CacheDir, CacheDirSource, MANIFEST, cache_dir, cudnn_dir, libraries_dir};
pub use sources::with_sources;
pub use version::{BadVersion, CudnnVersion, LibrarySet};
