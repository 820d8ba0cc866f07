//! Searches that fail, and searches that must not succeed, each in a process of its own.

#[allow(dead_code, reason = "each test program uses its part")]
mod common;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{alone, fetched};
use qkvault_skip::{Need, skip};
use qkvault_sys::{CudnnLoadError, CudnnVersion, Library, LibrarySet, Search, SearchStep, UnusableReason};

/// A folder with text files under the names of cuDNN's libraries.
fn junk(root: &Path) -> PathBuf {
    let dir = root.join("junk");
    std::fs::create_dir_all(&dir).expect("a temporary folder can be written");
    for name in ["libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9"] {
        std::fs::write(dir.join(name), "this is no library, whatever its name says\n".repeat(20))
            .expect("it can be written");
    }
    dir
}

/// A real shared library under the names of cuDNN's, with `cudnnGetVersion` and no other function.
fn other_library(root: &Path, version: u32) -> PathBuf {
    let dir = root.join("other");
    std::fs::create_dir_all(&dir).expect("a temporary folder can be written");
    let source = dir.join("other.rs");
    let text = format!(
        "#![no_std]\n#[panic_handler] fn panic(_: &core::panic::PanicInfo<'_>) -> ! {{ loop {{}} }}\n\
         #[unsafe(no_mangle)] pub extern \"C\" fn cudnnGetVersion() -> usize {{ {version} }}\n"
    );
    std::fs::write(&source, text).expect("it can be written");
    for name in ["libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9"] {
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc
            .args(["--edition=2024", "--crate-type=cdylib", "-Cpanic=abort", "-Copt-level=s", "-o"])
            .arg(dir.join(name))
            .arg(&source);
        let done = rustc.output().expect("the compiler that compiled this test");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    dir
}

fn tried(error: CudnnLoadError) -> Vec<(String, UnusableReason)> {
    let CudnnLoadError::NotFound { tried } = error else { panic!("{error:?}") };
    tried.into_iter().map(|tried| (tried.origin.to_string(), tried.reason)).collect()
}

#[test]
fn every_place_is_listed_with_its_reason() {
    alone("every_place_is_listed_with_its_reason", || {
        let root = tempfile::tempdir().expect("a temporary folder");
        let junk = junk(root.path());
        let empty = root.path().join("empty");
        std::fs::create_dir_all(&empty).expect("a temporary folder can be written");
        let system = root.path().join("system");
        std::fs::create_dir_all(&system).expect("a temporary folder can be written");
        std::fs::write(system.join("libcudnn.so.8.9.7"), "old").expect("it can be written");
        std::os::unix::fs::symlink("libcudnn.so.8.9.7", system.join("libcudnn.so.9")).expect("a link can be made");
        let variables =
            [("CUDNN_PATH", &junk), ("CUDNN_HOME", &empty), ("CUDA_HOME", &system), ("QKVAULT_CACHE_DIR", &empty)];
        let variables = variables.map(|(name, value)| (name.to_owned(), OsString::from(value)));
        let result = Library::open(&Search::default().environment(variables));
        let Err(error) = result else {
            return skip(
                Need::Bare,
                "a machine whose dynamic loader finds no cuDNN; this one's does, and so there is no list",
            );
        };
        let text = error.to_string();
        let tried = tried(error);
        let reason = |origin: &str| {
            &tried.iter().find(|(name, _)| name == origin).unwrap_or_else(|| panic!("no {origin} in {text}")).1
        };
        assert_eq!(reason("QKVAULT_CUDNN_PATH"), &UnusableReason::NotSet);
        assert!(
            matches!(reason("CUDNN_PATH"), UnusableReason::NotOpened { detail } if detail.contains("invalid ELF header")),
            "{text}"
        );
        assert_eq!(reason("CUDNN_HOME"), &UnusableReason::NoLibrary);
        assert_eq!(reason("loaded in this process"), &UnusableReason::NotLoaded);
        assert_eq!(reason("site-packages of VIRTUAL_ENV"), &UnusableReason::NotSet);
        assert_eq!(reason("fetched"), &UnusableReason::Absent);
        assert_eq!(reason("CUDA_HOME"), &UnusableReason::WrongMajor { found: "8.9.7".to_owned() });
        assert!(
            matches!(reason("dynamic loader"), UnusableReason::NotOpened { detail } if detail.contains("libcudnn.so.9")),
            "{text}"
        );
        for part in ["cargo xtask fetch", "QKVAULT_CUDNN_PATH", &junk.display().to_string()] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    });
}

#[test]
fn audit_13_a_library_that_others_can_change_is_passed_over_with_reason_and_fix() {
    alone("audit_13_a_library_that_others_can_change_is_passed_over_with_reason_and_fix", || {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().expect("a temporary folder");
        let dir = other_library(root.path(), 92_700);
        let chmod = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its owner may");
        };
        let named = |allowed: Option<&str>| {
            let mut variables = vec![("QKVAULT_CUDNN_PATH".to_owned(), dir.clone().into_os_string())];
            variables.extend(allowed.map(|value| ("QKVAULT_LIBRARIES_ALLOW_SHARED".to_owned(), value.into())));
            Library::open(&Search::default().environment(variables)).expect_err("it has one function")
        };
        let graph = dir.join("libcudnn_graph.so.9");
        for (place, open, closed) in [(&dir, 0o777, 0o755), (&graph, 0o666, 0o644)] {
            chmod(place, open);
            for error in [named(None), Library::open(&Search::at(&dir)).expect_err("named by code")] {
                let text = error.to_string();
                assert!(matches!(&tried(error)[..], [(_, UnusableReason::Untrusted { .. })]), "{text}");
                for words in ["everyone can write", "chmod -R go-w", "QKVAULT_LIBRARIES_ALLOW_SHARED=1"] {
                    assert!(text.contains(words), "'{words}' is not in: {text}");
                }
            }
            let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
            assert!(!maps.contains("libcudnn"), "it was loaded all the same");
            chmod(place, closed);
        }
        chmod(&dir, 0o777);
        // Allowed, it is loaded, and found to be no cuDNN.
        assert!(matches!(named(Some("1")), CudnnLoadError::Foreign { .. }));
    });
}

#[test]
fn an_older_major_is_refused_by_what_it_answers() {
    alone("an_older_major_is_refused_by_what_it_answers", || {
        let root = tempfile::tempdir().expect("a temporary folder");
        let error = Library::open(&Search::at(other_library(root.path(), 8907))).expect_err("major 8");
        assert_eq!(tried(error), [("path given".to_owned(), UnusableReason::WrongMajor { found: "8.9.7".to_owned() })]);
    });
}

#[test]
fn a_library_without_the_functions_is_named() {
    alone("a_library_without_the_functions_is_named", || {
        let root = tempfile::tempdir().expect("a temporary folder");
        let error = Library::open(&Search::at(other_library(root.path(), 92_700))).expect_err("it has one function");
        assert!(matches!(error, CudnnLoadError::Foreign { function: "cudnnGetLastErrorString", .. }), "{error:?}");
    });
}

#[test]
fn a_missing_neighbour_is_named_before_anything_is_loaded() {
    alone("a_missing_neighbour_is_named_before_anything_is_loaded", || {
        let root = tempfile::tempdir().expect("a temporary folder");
        let dir = other_library(root.path(), 92_700);
        std::fs::remove_file(dir.join("libcudnn_engines_runtime_compiled.so.9")).expect("it was written above");
        let error = Library::open(&Search::at(&dir)).expect_err("it is not whole");
        let text = error.to_string();
        assert!(matches!(&tried(error)[..], [(_, UnusableReason::Unusable { .. })]), "{text}");
        assert!(text.contains("libcudnn_engines_runtime_compiled.so.9"), "{text}");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        assert!(!maps.contains("libcudnn"), "it was loaded all the same");
    });
}

#[test]
fn a_second_cudnn_is_refused() {
    alone("a_second_cudnn_is_refused", || {
        let (Some(newer), Some(older)) = (fetched("9.27.0"), fetched("9.19.0")) else { return };
        let open = Library::open(&Search::at(&newer)).expect("a fetched set is whole");
        for again in [
            Search::default(),
            Search::at(&newer),
            Search::default().version(CudnnVersion::new(9, 27, 0)).set(LibrarySet::Slim),
        ] {
            let same = Library::open(&again).expect("the open one is what is wanted");
            assert!(std::sync::Arc::ptr_eq(&open, &same));
        }
        for other in [
            Search::at(&older),
            Search::default().version(CudnnVersion::new(9, 19, 0)),
            Search::default().set(LibrarySet::Full),
        ] {
            let error = Library::open(&other).expect_err("another one is open");
            let CudnnLoadError::Clash { loaded, loaded_version, .. } = &error else { panic!("{error:?}") };
            assert_eq!((loaded.as_path(), *loaded_version), (open.path(), CudnnVersion::new(9, 27, 0)));
        }
        let nowhere = Library::open(&Search::at("/nonexistent/cudnn")).expect_err("what is named is not there");
        assert_eq!(tried(nowhere), [("path given".to_owned(), UnusableReason::Absent)]);
    });
}

#[test]
fn a_cudnn_that_others_loaded_is_used_and_guarded() {
    alone("a_cudnn_that_others_loaded_is_used_and_guarded", || {
        let (Some(theirs), Some(ours)) = (fetched("9.27.0"), fetched("9.19.0")) else { return };
        let file = theirs.join("nvidia/cudnn_jit/lib/libcudnn.so.9");
        // SAFETY: loads the library as `Library::open` would.
        let library = unsafe { libloading::Library::new(&file) }.expect("a fetched set is whole");
        std::mem::forget(library);
        let error = Library::open(&Search::at(&ours)).expect_err("two would share one process");
        let text = error.to_string();
        assert!(
            matches!(error, CudnnLoadError::Clash { loaded_version, .. } if loaded_version == CudnnVersion::new(9, 27, 0)),
            "{text}"
        );
        assert!(text.contains(&file.display().to_string()), "{text}");
        let error =
            Library::open(&Search::default().version(CudnnVersion::new(9, 19, 0))).expect_err("the loaded one is 9.27");
        assert!(matches!(error, CudnnLoadError::Clash { .. }), "{error:?}");
        let variables = [("CUDNN_PATH".to_owned(), OsString::from(&ours))];
        let open = Library::open(&Search::default().environment(variables)).expect("the loaded one serves");
        assert_eq!((open.origin(), open.path()), (&SearchStep::Process, file.as_path()));
    });
}

#[test]
fn a_version_is_found_among_several_fetched() {
    alone("a_version_is_found_among_several_fetched", || {
        let Some(set) = fetched("9.14.0") else { return };
        let cache = set.ancestors().nth(3).expect("three folders below the cache");
        let search = Search::default().environment([("QKVAULT_CACHE_DIR".to_owned(), OsString::from(cache))]);
        let library =
            Library::open(&search.version(CudnnVersion::new(9, 14, 0)).set(LibrarySet::Slim)).expect("it is fetched");
        assert_eq!((library.version(), library.origin()), (CudnnVersion::new(9, 14, 0), &SearchStep::Fetched));
        assert!(library.path().starts_with(&set));
    });
}
