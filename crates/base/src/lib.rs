//! Definitions that several crates of qkvault share and none of them owns: cuDNN versions, sets of cuDNN's libraries,
//! the cache folder, who may write where code is read from, a random number generator, bounds of caches, whether there
//! is room for memory, why a library is not loaded, and how text from elsewhere is shown.

mod bounds;
mod folders;
mod memory;
mod python;
pub mod random;
mod shown;
mod sources;
mod trust;
mod unloaded;
mod version;

pub use bounds::CacheBounds;
pub use folders::{CACHE_DIR_VARIABLE, CacheDir, CacheDirSource, MANIFEST, cache_dir, cudnn_dir, libraries_dir};
pub use memory::{NoMemory, room_for};
pub use python::{python_packages, python_prefixes};
pub use shown::{Shown, in_quotes, is_hidden, on_lines, on_one_line};
pub use sources::with_sources;
#[cfg(unix)]
pub use trust::OnlyOwnerWrites;
pub use trust::{LIBRARIES_ALLOW_SHARED_VARIABLE, distrust, distrust_above, distrust_library, shared_library};
pub use unloaded::{Unloaded, dangling};
pub use version::{BadVersion, CudnnVersion, LibrarySet};
