//! What cuDNN opens by itself, looked for before it does.

use std::path::{Path, PathBuf};

use crate::error::LoadError;
use crate::process;
use crate::version::{LibrarySet, Version};

const GRAPH: &str = "libcudnn_graph.so.9";
const RUNTIME_COMPILED: &str = "libcudnn_engines_runtime_compiled.so.9";

/// Opens the graph library that lies beside this `libcudnn.so.9`; even `cudnnGetVersion` needs it.
pub(crate) fn graph(library: &Path) -> Result<(), LoadError> {
    let dir = library.parent().unwrap_or(Path::new(""));
    let file = dir.join(GRAPH);
    process::open(file.as_os_str())
        .map(drop)
        .map_err(|error| LoadError::Missing {
            library: GRAPH.to_owned(),
            needed_by: library.display().to_string(),
            looked_in: vec![process::with_sources(&error)],
            remedy: "it belongs beside libcudnn.so.9: install the package again".to_owned(),
        })
}

/// first version
pub(crate) fn at_open(
    library: &Path,
    _version: Version,
    _set: LibrarySet,
) -> Result<(), LoadError> {
    let dir = library.parent().unwrap_or(Path::new(""));
    for name in [GRAPH, RUNTIME_COMPILED] {
        let file: PathBuf = dir.join(name);
        if !file.exists() {
            return Err(LoadError::Missing {
                library: name.to_owned(),
                needed_by: library.display().to_string(),
                looked_in: vec![dir.display().to_string()],
                remedy: "it belongs beside libcudnn.so.9: install the package again".to_owned(),
            });
        }
    }
    Ok(())
}

/// first version
pub(crate) fn engines(
    _library: &Path,
    _version: Version,
    _set: LibrarySet,
) -> Result<(), LoadError> {
    Ok(())
}
