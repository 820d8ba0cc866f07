//! A missing library must be an error value, and never an abort or a refusal without a reason.

#[allow(dead_code, reason = "each test program uses its part")]
mod common;

use common::{alone, copy_without, fetched};
use qkvault_sys::{CudnnLoadError, Descriptor, Error, Kind, Library, LibrarySet, Search};

/// 9.19 opens NVRTC by itself; without it, it returns no engines.
#[test]
fn a_missing_compiler_is_an_error_value() {
    alone("a_missing_compiler_is_an_error_value", || {
        let Some(set) = fetched("9.19.0") else { return };
        let copy = copy_without(&set, |name| name.starts_with("libnvrtc"));
        missing(Library::open(&Search::at(copy.path())), "libnvrtc.so.13", "../../cu13/lib");
    });
}

/// NVRTC does not search its own folder for its builtins; without them cuDNN fails with an internal error.
#[test]
fn missing_builtins_of_the_compiler_are_an_error_value() {
    alone("missing_builtins_of_the_compiler_are_an_error_value", || {
        let Some(set) = fetched("9.19.0") else { return };
        let copy = copy_without(&set, |name| name.starts_with("libnvrtc-builtins"));
        missing(Library::open(&Search::at(copy.path())), "libnvrtc-builtins.so.13.0", "cu13/lib");
    });
}

/// The full set ends the process without cuBLASLt. A slim set with the names of the other libraries beside it counts as
/// full, which is all that this test needs.
#[test]
fn the_full_set_aborted_the_process_without_cublas() {
    alone("the_full_set_aborted_the_process_without_cublas", || {
        let Some(set) = fetched("9.19.0") else { return };
        let copy = copy_without(&set, |_| false);
        for name in ["ops", "cnn", "adv", "heuristic", "engines_precompiled"] {
            let file = copy.path().join(format!("nvidia/cudnn_jit/lib/libcudnn_{name}.so.9"));
            std::fs::write(file, "").expect("the copy can be written");
        }
        missing(Library::open(&Search::at(copy.path()).set(LibrarySet::Full)), "libcublasLt.so.13", "../../cublas/lib");
    });
}

/// Checks for the error that names the missing library, a place searched, and the remedy.
fn missing(opened: Result<std::sync::Arc<Library>, CudnnLoadError>, name: &str, place: &str) {
    let error = match opened {
        Err(error) => error,
        // The library is installed on this machine.
        Ok(library) if library.files().iter().any(|file| file.path.ends_with(name)) => return,
        Ok(library) => panic!("opened without {name}: {library:?}"),
    };
    let CudnnLoadError::Missing { library, looked_in, remedy, .. } = &error else { panic!("{error:?}") };
    assert_eq!(library, name);
    assert!(looked_in.iter().any(|dir| dir.contains(place)), "{looked_in:?}");
    assert!(remedy.contains("cargo xtask fetch --cudnn 9.19.0"), "{remedy}");
}

/// A copy of a set in which one library is another file.
fn with(set: &std::path::Path, name: &str, put: impl FnOnce(&std::path::Path)) -> tempfile::TempDir {
    let copy = copy_without(set, |other| other == name);
    put(&copy.path().join("nvidia/cudnn_jit/lib").join(name));
    copy
}

/// koharu #694: a folder with cuDNN libraries of two versions. The library is there, and was said not to be found.
#[test]
fn libraries_of_two_versions_in_one_folder_are_told_as_such_and_not_as_missing() {
    alone("libraries_of_two_versions_in_one_folder_are_told_as_such_and_not_as_missing", || {
        let (Some(old), Some(new)) = (fetched("9.19.0"), fetched("9.27.0")) else { return };
        let graph = "libcudnn_graph.so.9";
        let copy = with(&old, graph, |file| {
            let other = new.join("nvidia/cudnn_jit/lib").join(graph);
            std::fs::hard_link(other, file).expect("the same file system");
        });
        qkvault_sys::headless::ensure().expect("the stand-in");
        let library = Library::open(&Search::at(copy.path())).expect("the loader takes it at first");
        let error = Descriptor::create(&library, Kind::TENSOR).expect_err("its engines do not fit");
        let Error::Load(CudnnLoadError::NotLoaded { library: name, .. }) = &error else { panic!("{error:?}") };
        assert_eq!(name, "libcudnn_engines_runtime_compiled.so.9");
        let text = error.to_string();
        for words in ["is there and does not load", "undefined symbol", "different versions", "which is 9.27.0"] {
            assert!(text.contains(words), "'{words}' is not in: {text}");
        }
        assert!(!text.contains("not found"), "{text}");
    });
}

/// A driver without functions, such as a stand-in of another program, is no fault of cuDNN's package.
#[test]
fn a_driver_that_lacks_a_function_is_named_and_not_a_version_of_cudnn() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, driver) = (folder.path().join("driver.c"), folder.path().join("libcuda.so.1"));
    std::fs::write(&source, "int cuInit(unsigned flags) { return 34; }\n").expect("it can be written");
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"];
    let made = std::process::Command::new("cc").args(flags).args([&driver, &source]).status();
    if !made.is_ok_and(|status| status.success()) {
        return qkvault_skip::skip(qkvault_skip::Need::Cxx, "cc does not run");
    }
    alone("a_driver_that_lacks_a_function_is_named_and_not_a_version_of_cudnn", || {
        let Some(set) = fetched("9.27.0") else { return };
        // SAFETY: the library has no initialisers.
        let loaded = unsafe { libloading::Library::new(&driver) }.expect("it was made above");
        let library = Library::open(&Search::at(set)).expect("a fetched set is whole");
        let error = Descriptor::create(&library, Kind::TENSOR).expect_err("the driver lacks what engines need");
        let text = error.to_string();
        assert!(text.contains("undefined symbol: cu") && text.contains("libcuda.so.1 lacks it"), "{text}");
        assert!(!text.contains("different versions"), "{text}");
        std::mem::forget(loaded);
    });
}

/// A package that was updated in part: links tell the versions.
#[test]
fn files_named_after_two_versions_are_refused_before_one_is_loaded() {
    alone("files_named_after_two_versions_are_refused_before_one_is_loaded", || {
        let folder = tempfile::tempdir().expect("a folder");
        let link = |name: &str, version: &str| {
            let file = format!("{name}.{version}");
            std::fs::write(folder.path().join(&file), "no library").expect("it can be written");
            std::os::unix::fs::symlink(file, folder.path().join(format!("{name}.9"))).expect("a link");
        };
        link("libcudnn.so", "9.19.0");
        link("libcudnn_graph.so", "9.19.0");
        link("libcudnn_engines_runtime_compiled.so", "9.20.0");
        let text = Library::open(&Search::at(folder.path())).expect_err("two versions").to_string();
        for words in ["is not whole", "libcudnn_graph.so.9 is 9.19.0", "runtime_compiled.so.9 is 9.20.0"] {
            assert!(text.contains(words), "'{words}' is not in: {text}");
        }
    });
}

#[test]
fn a_library_that_does_not_load_is_named_with_the_loaders_words() {
    alone("a_library_that_does_not_load_is_named_with_the_loaders_words", || {
        let Some(set) = fetched("9.19.0") else { return };
        let graph = "libcudnn_graph.so.9";
        let copy = with(&set, graph, |file| std::fs::write(file, "no library").expect("it can be written"));
        let text = Library::open(&Search::at(copy.path())).expect_err("its graph is junk").to_string();
        assert!(text.contains(&format!("{graph}, which does not load")), "{text}");
        assert!(text.contains("file too short") && !text.contains("was not found"), "{text}");
        // It stays in the process, and asking it for its version would end that.
        let text = Library::open(&Search::at(&set)).expect_err("another one is loaded").to_string();
        assert!(text.contains("this process has cuDNN 9.19.0 loaded"), "{text}");
    });
}

#[test]
fn a_link_that_leads_to_nothing_is_named_as_such() {
    alone("a_link_that_leads_to_nothing_is_named_as_such", || {
        let Some(set) = fetched("9.19.0") else { return };
        let graph = "libcudnn_graph.so.9";
        let copy = with(&set, graph, |file| std::os::unix::fs::symlink("gone.so", file).expect("a link"));
        let text = Library::open(&Search::at(copy.path())).expect_err("a link to nothing").to_string();
        assert!(text.contains(&format!("{graph}: a symbolic link to gone.so, which does not exist")), "{text}");

        let copy = with(&set, "libcudnn.so.9", |file| std::os::unix::fs::symlink("gone.so", file).expect("a link"));
        let text = Library::open(&Search::at(copy.path())).expect_err("a link to nothing").to_string();
        assert!(text.contains("libcudnn.so.9: a symbolic link to gone.so, which does not exist"), "{text}");
    });
}

/// The compiler of 9.19 lies in another folder, and the loader's own search has none.
#[test]
fn a_compiler_that_does_not_load_is_not_said_to_be_missing() {
    alone("a_compiler_that_does_not_load_is_not_said_to_be_missing", || {
        let Some(set) = fetched("9.19.0") else { return };
        let copy = copy_without(&set, |name| name.starts_with("libnvrtc.so"));
        let file = copy.path().join("nvidia/cu13/lib/libnvrtc.so.13");
        std::fs::write(file, "no library").expect("it can be written");
        let error = match Library::open(&Search::at(copy.path())) {
            Err(error) => error,
            // The library is installed on this machine.
            Ok(_) => return,
        };
        assert!(
            matches!(&error, CudnnLoadError::NotLoaded { library, .. } if library == "libnvrtc.so.13"),
            "{error:?}"
        );
        assert!(error.to_string().contains("libnvrtc.so.13: it is there and does not load"), "{error}");
    });
}

#[test]
fn without_a_driver_the_first_descriptor_says_so() {
    alone("without_a_driver_the_first_descriptor_says_so", || {
        let Some(set) = fetched("9.27.0") else { return };
        let library = Library::open(&Search::at(set)).expect("a fetched set is whole");
        let error = match Descriptor::create(&library, Kind::TENSOR) {
            Err(error) => error,
            // This machine has a driver.
            Ok(_) => return,
        };
        let Error::Load(CudnnLoadError::Missing { library: name, remedy, .. }) = &error else { panic!("{error:?}") };
        assert_eq!(name, "libcuda.so.1");
        assert!(remedy.contains("qkvault_sys::headless::ensure()"), "{remedy}");
        // The failure is not cached: with the stand-in the check passes.
        qkvault_sys::headless::ensure().expect("the stand-in");
        Descriptor::create(&library, Kind::TENSOR).expect("there is a libcuda.so.1 now");
    });
}

/// cuDNN asks the loader for NVRTC by name, and gets the one that the process has already loaded, not the one beside
/// cuDNN.
#[test]
fn b3_the_nvrtc_that_is_loaded_already_is_the_one_that_compiles() {
    alone("b3_the_nvrtc_that_is_loaded_already_is_the_one_that_compiles", || {
        let (Some(set), Some(other)) = (fetched("9.19.0"), fetched("9.14.0")) else { return };
        let nvrtc = |set: &std::path::Path| set.join("nvidia/cu13/lib/libnvrtc.so.13");
        // SAFETY: runs NVRTC's initialisers, as cuDNN would when it opens it.
        let loaded = unsafe { libloading::Library::new(nvrtc(&other)) }.expect("a fetched set is whole");
        let library = Library::open(&Search::at(&set)).expect("a fetched set is whole");
        let found = library.nvrtc().expect("9.19 has its NVRTC outside");
        assert_eq!((found.was_loaded, found.version), (true, (13, 0)));
        assert_eq!(found.path.canonicalize().expect("it is there"), nvrtc(&other).canonicalize().expect("it is there"));
        let others: Vec<_> = found.others.iter().map(|path| path.canonicalize().expect("it is there")).collect();
        assert_eq!(
            others,
            [nvrtc(&set).canonicalize().expect("it is there")],
            "the one beside cuDNN is named as not used"
        );
        std::mem::forget(loaded);
    });
}

#[test]
fn b3_the_nvrtc_beside_cudnn_is_taken_before_one_of_a_toolkit() {
    alone("b3_the_nvrtc_beside_cudnn_is_taken_before_one_of_a_toolkit", || {
        let (Some(set), Some(other)) = (fetched("9.19.0"), fetched("9.14.0")) else { return };
        let toolkit = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(other.join("nvidia/cu13/lib"), toolkit.path().join("lib64")).expect("a link");
        let variables = [("CUDA_HOME".to_owned(), toolkit.path().into())];
        let library = Library::open(&Search::at(&set).environment(variables)).expect("a fetched set is whole");
        let found = library.nvrtc().expect("9.19 has its NVRTC outside");
        assert!(!found.was_loaded && found.path.starts_with(set.canonicalize().expect("it is there")), "{found:?}");
        assert_eq!(found.others, [toolkit.path().join("lib64/libnvrtc.so.13")]);
        assert_eq!(library.cuda_major(), 13);
    });
}

#[test]
fn from_9_21_on_there_is_no_nvrtc_to_name() {
    alone("from_9_21_on_there_is_no_nvrtc_to_name", || {
        let Some(set) = fetched("9.27.0") else { return };
        assert_eq!(Library::open(&Search::at(set)).expect("a fetched set is whole").nvrtc(), None);
    });
}
