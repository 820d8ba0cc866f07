//! The CUDA kernels compile with the NVRTC that comes with a fetched cuDNN, without a GPU.

use std::path::PathBuf;

use qkvault_server::gpu::compile;
use qkvault_skip::{Need, skip};

/// NVRTC and its builtins, of a fetched cuDNN. All versions have the same.
fn nvrtc() -> Option<[PathBuf; 2]> {
    let fetched = std::fs::read_dir(qkvault_base::cudnn_dir()).ok()?.filter_map(Result::ok);
    let files = |folder: PathBuf| -> Option<[PathBuf; 2]> {
        let files = std::fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|entry| entry.path());
        let files: Vec<PathBuf> = files.collect();
        let named = |name: &str| files.iter().find(|path| path.to_string_lossy().contains(name)).cloned();
        Some([named("/libnvrtc-builtins.so")?, named("/libnvrtc.so")?])
    };
    fetched.map(|folder| folder.path().join("nvidia/cu13/lib")).find_map(files)
}

#[test]
fn kernels_compile_for_every_gpu_that_the_server_is_for() {
    let Some(paths) = nvrtc() else {
        skip(Need::Cudnn, &format!("no libnvrtc in {}", qkvault_base::cudnn_dir().display()));
        return;
    };
    // SAFETY: these are NVIDIA's libraries. Loaded by their paths, they are then found by their names.
    let libraries = paths.map(|path| unsafe { libloading::Library::new(&path) }.unwrap_or_else(|e| panic!("{e}")));
    for capability in [(8, 0), (9, 0), (10, 0), (12, 0)] {
        let ptx = compile(capability).unwrap_or_else(|error| panic!("{capability:?}: {error}")).to_src();
        for name in ["fill", "embed", "rms_norm", "rotate", "silu", "pick"] {
            assert!(ptx.contains(&format!(".entry {name}(")), "{name}");
        }
    }
    drop(libraries);
}
