//! The real NVRTC compiles without a GPU, and tells what is wrong: in a source, and when it is missing.

use std::path::PathBuf;

use qkvault_graph::{Attention, Band, DType, Tensor, validate};
use qkvault_skip::{Need, skip};

use super::*;

const KERNEL: &str = "extern \"C\" __global__ void scale(float* x, float by, int n) {\n\
                      \x20 int i = blockIdx.x * blockDim.x + threadIdx.x;\n\
                      \x20 if (i < n) x[i] *= by;\n}\n";

/// The fetched NVRTC. With `QKVAULT_REQUIRE=cudnn`, which `cargo xtask test` sets after fetching, it must be there.
fn nvrtc() -> Option<Nvrtc> {
    Nvrtc::open(None).map_err(|error| skip(Need::Cudnn, &error.to_string())).ok()
}

fn variables(pairs: &[(&str, PathBuf)]) -> impl Fn(&str) -> Option<std::ffi::OsString> {
    move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone().into())
}

#[test]
fn a_small_kernel_compiles_without_a_gpu_to_the_same_bytes_in_every_thread() {
    let Some(nvrtc) = nvrtc() else { return };
    let options = ["--std=c++17".to_owned()];
    let compile = || nvrtc.compile("scale.cu", KERNEL, &options, 90).expect("compiles");
    let first = compile();
    assert!(first.starts_with(b"\x7fELF") && first.windows(5).any(|w| w == b"scale"), "{} bytes", first.len());
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..3).map(|_| scope.spawn(compile)).collect();
        others.into_iter().for_each(|other| assert_eq!(other.join().expect("ends"), first));
    });
    let other = nvrtc.compile("scale.cu", KERNEL, &options, 100).expect("compiles for another GPU");
    assert_ne!(other, first);
}

#[test]
fn a_faulty_kernel_gives_the_compilers_log_with_the_line() {
    let Some(nvrtc) = nvrtc() else { return };
    let faulty = KERNEL.replace("x[i] *= by", "x[i] *= unknown");
    let error = nvrtc.compile("scale.cu", &faulty, &[], 90).expect_err("it has a name that does not exist");
    let text = error.to_string();
    for words in ["scale.cu does not compile for sm_90", "scale.cu(3)", "\"unknown\" is undefined"] {
        assert!(text.contains(words), "'{words}' is not in: {text}");
    }
    let text = nvrtc.compile("a.cu", KERNEL, &["--no-such-option".to_owned()], 90).expect_err("refused").to_string();
    assert!(text.contains("no-such-option"), "{text}");
    // The audit's second fault: this one overwrote a file.
    for option in ["--create-pch=/tmp/file", "--time=/tmp/file", "-I/etc", "--pre-include=/etc/passwd"] {
        let given = [option.to_owned()];
        assert_eq!(nvrtc.compile("a.cu", KERNEL, &given, 90), Err(NvrtcError::Option { option: option.to_owned() }));
    }
    assert_eq!(nvrtc.compile("a.cu", "\0", &[], 90), Err(NvrtcError::Zero { what: "the source" }));
}

/// ptxas lets matrix products run one after the other where it cannot follow which have ended, and says so. A branch
/// between two of them was enough.
#[test]
fn products_of_own_kernels_run_beside_other_work() {
    let Some(nvrtc) = nvrtc() else { return };
    let chunk = |d: i64, page: i64| {
        let mut a = Attention::bshd(2, (16, 4), (64, 1024), d, DType::BF16).with_lengths();
        a.k = Tensor::paged_nhd(2, 4, 1024, d, 2 * 1024 / page, page, DType::BF16);
        a.v = a.k;
        a.with_band(Band::CAUSAL_BOTTOM_RIGHT)
    };
    let latent = |queries: i64, page: i64| {
        let mut a = Attention::bshd(2, (16, 1), (queries, 1024), 576, DType::BF16).with_lengths();
        a.k = Tensor::paged_nhd(2, 1, 1024, 576, 2 * 1024 / page, page, DType::BF16);
        a.v = Tensor { dims: [a.k.dims[0], 1, a.k.dims[2], 512], ..a.k };
        a.o = Tensor::bshd(2, 16, queries, 512, DType::BF16);
        a.with_band(Band::CAUSAL_BOTTOM_RIGHT)
    };
    let mut drafts = chunk(128, 64);
    drafts.draft_tree = true;
    let latents = [latent(1, 64), latent(8, 16), latent(1, 1)];
    let all = [chunk(64, 64), chunk(128, 64), chunk(256, 64), chunk(128, 1), chunk(128, 64).invariant(), drafts];
    for attention in all.into_iter().chain(latents) {
        let made = qkvault_kernels::generate(&validate(attention.clone()).expect("is valid"), 90).expect("is taken");
        let program = nvrtc.program("attention.cu", &made.source, &made.options, 90).expect("compiles");
        let log = program.log();
        assert!(!log.contains("serialized"), "{attention}: {log}");
    }
    // The log says so of a kernel whose groups part at a number of the thread.
    let made = qkvault_kernels::generate(&validate(latent(1, 64)).expect("is valid"), 90).expect("is taken");
    let (uniform, apart) = ("warp = __shfl_sync(~0u, thread >> 5, 0)", "warp = thread >> 5");
    assert!(made.source.contains(uniform));
    let source = made.source.replace(uniform, apart);
    let log = nvrtc.program("attention.cu", &source, &made.options, 90).expect("compiles").log();
    assert!(log.contains("serialized"), "{log}");
}

#[test]
fn a_missing_nvrtc_names_the_places_and_the_command() {
    let empty = tempfile::tempdir().expect("is made");
    let exact = empty.path().to_owned();
    for (path, variable) in [(Some(exact.as_path()), None), (None, Some(exact.clone()))] {
        let pairs: Vec<_> = variable.into_iter().map(|value| ("QKVAULT_NVRTC_PATH", value)).collect();
        let error = Nvrtc::find(path, &variables(&pairs)).expect_err("nothing there");
        let text = error.to_string();
        assert!(matches!(&error, NvrtcError::NotFound { tried } if tried.len() == 1), "{text}");
        for words in ["NVRTC 13.0", "cargo xtask fetch --accept-nvidia-license", "libnvrtc.so.13: no such file"] {
            assert!(text.contains(words), "'{words}' is not in: {text}");
        }
    }
}

#[cfg(unix)]
#[test]
fn an_nvrtc_that_does_not_load_and_a_link_to_nothing_are_not_absent() {
    let folder = tempfile::tempdir().expect("is made");
    let lib = folder.path().join("lib64");
    std::fs::create_dir(&lib).expect("is made");
    let file = lib.join("libnvrtc.so.13");
    let text = || Nvrtc::find(Some(folder.path()), &variables(&[])).expect_err("unusable").to_string();
    std::fs::write(&file, "no library").expect("is written");
    assert!(text().contains("libnvrtc.so.13: it is there and does not load"), "{}", text());
    assert!(text().contains("file too short"), "the loader's words: {}", text());
    std::fs::remove_file(&file).expect("is removed");
    std::os::unix::fs::symlink("gone.so", &file).expect("a link");
    assert!(text().contains("libnvrtc.so.13: a symbolic link to gone.so, which does not exist"), "{}", text());
}

#[test]
fn another_version_of_nvrtc_is_refused_by_its_number() {
    let folder = tempfile::tempdir().expect("is made");
    let Some(library) = other_nvrtc(folder.path()) else { return };
    let text = Nvrtc::find(Some(&library), &variables(&[])).expect_err("another version").to_string();
    assert!(text.contains("it is version 12.8, and plans are compiled by 13.0"), "{text}");
    assert!(text.contains("cargo xtask fetch"), "{text}");
}

/// A library with NVRTC's functions that tells another version. It stands for an installed NVRTC that is not ours.
fn other_nvrtc(folder: &Path) -> Option<PathBuf> {
    let others = ["GetErrorString", "CreateProgram", "CompileProgram", "DestroyProgram", "GetProgramLogSize"];
    let others = others.into_iter().chain(["GetProgramLog", "GetCUBINSize", "GetCUBIN"]);
    let others: String = others.map(|name| format!("int nvrtc{name}(void) {{ return 7; }}\n")).collect();
    let source = format!("int nvrtcVersion(int* a, int* b) {{ *a = 12; *b = 8; return 0; }}\n{others}");
    let (file, library) = (folder.join("other.c"), folder.join("libnvrtc.so.13"));
    std::fs::write(&file, source).expect("is written");
    let done = std::process::Command::new("cc").arg("-shared").arg("-o").arg(&library).arg(&file).status();
    match done {
        Ok(status) if status.success() => Some(library),
        other => {
            skip(Need::Cxx, &format!("cc does not run: {other:?}"));
            None
        }
    }
}

#[test]
fn fetched_folders_come_before_toolkits_and_only_if_they_are_complete() {
    let root = tempfile::tempdir().expect("is made");
    let library = |folder: &str| {
        let folder = root.path().join(folder);
        std::fs::create_dir_all(&folder).expect("is made");
        std::fs::write(folder.join("libnvrtc.so.13"), "").expect("is written");
        folder.join("libnvrtc.so.13")
    };
    let own = library("libraries/nvrtc/13.0.88/nvidia/cu13/lib");
    let cudnns = library("libraries/cudnn/9.19.0.56-slim/nvidia/cu13/lib");
    let toolkit = library("cuda/lib64");
    let pairs = [("QKVAULT_CACHE_DIR", root.path().to_owned()), ("CUDA_HOME", root.path().join("cuda"))];
    let system = PathBuf::from("libnvrtc.so.13");
    assert_eq!(places::to_try(None, &variables(&pairs)), [toolkit.clone(), system.clone()]);
    for set in ["nvrtc/13.0.88", "cudnn/9.19.0.56-slim"] {
        std::fs::write(root.path().join("libraries").join(set).join("manifest.toml"), "").expect("is written");
    }
    assert_eq!(places::to_try(None, &variables(&pairs)), [own, cudnns, toolkit, system]);
}

#[cfg(unix)]
#[test]
fn audit_13_a_compiler_that_others_can_change_is_passed_over_with_the_reason() {
    use std::os::unix::fs::PermissionsExt as _;
    let root = tempfile::tempdir().expect("is made");
    let lib = root.path().join("lib64");
    std::fs::create_dir(&lib).expect("is made");
    std::fs::write(lib.join("libnvrtc.so.13"), "junk").expect("is written");
    let open = |mode| std::fs::set_permissions(&lib, std::fs::Permissions::from_mode(mode)).expect("is set");
    let reason = |pairs: &[(&str, PathBuf)]| match Nvrtc::find(None, &variables(pairs)) {
        Err(NvrtcError::NotFound { tried }) => tried[0].reason.clone(),
        other => panic!("{other:?}"),
    };
    let named = ("QKVAULT_NVRTC_PATH", root.path().to_owned());
    open(0o777);
    let why = reason(std::slice::from_ref(&named));
    assert!(why.contains("everyone can write") && why.contains("QKVAULT_LIBRARIES_ALLOW_SHARED=1"), "{why}");
    let allowed = [named.clone(), ("QKVAULT_LIBRARIES_ALLOW_SHARED", "1".into())];
    assert!(!reason(&allowed).contains("not trusted"), "then the loader is asked, who finds junk");
    open(0o755);
    assert!(!reason(&[named]).contains("not trusted"));
}
