//! Compiles an attention without a GPU or a driver, once per cuDNN version, each in a process of its own.

#[allow(dead_code, reason = "each test program uses its part")]
mod common;

use std::path::PathBuf;

use common::{alone, attention, fetched, fetched_full};
use qkvault_sys::{AttributeName as A, CudnnHandle, CudnnVersion, Error, HeurMode, Kind, Library, LibrarySet, Search};

const OLDER: &str = include_str!("../../../profiles/h200-sxm.driver-13.0.cudnn-9.19.json");
const NEWER: &str = include_str!("../../../profiles/h200-sxm.driver-13.0.cudnn-9.27.json");

fn compiles(version: &str, set: Option<PathBuf>, kind: LibrarySet, profile: &str) {
    let Some(set) = set else { return };
    qkvault_sys::headless::ensure().expect("a driver or the stand-in");
    let library = Library::open(&Search::at(&set)).expect("a fetched set is whole");
    assert_eq!(Ok(library.version()), version.parse());
    assert_eq!(library.set(), kind);

    let graph = attention::attention(&library).expect("a plain attention");
    let device = attention::device(&library, profile).expect("a profile for this version");
    let engines = attention::engines(&graph, &device, HeurMode::A).expect("heuristics answer without a GPU");
    assert!(!engines.is_empty(), "no engine for a plain attention");
    let chosen = engines[0].get_descriptors(A::ENGINECFG_ENGINE, Kind::ENGINE).expect("a configuration has an engine");
    assert_eq!(chosen.len(), 1);
    chosen[0].get_one::<i64>(A::ENGINE_GLOBAL_INDEX).expect("an engine has a number");
    // The descriptors that a plan refers to may be dropped; those that refer to them keep cuDNN's objects alive.
    drop((graph, device));

    let plan = attention::plan(&engines).expect("a plan for a plain attention");
    let json = plan.get_bytes(A::EXECUTION_PLAN_JSON_REPRESENTATION).expect("a plan can be written");
    let text = String::from_utf8(json).expect("JSON is UTF-8");
    assert!(text.starts_with('{') && text.ends_with('}'), "not JSON: {} bytes", text.len());
    assert!(text.len() > 20_000, "a plan holds a compiled kernel, {} bytes are too few", text.len());
    let workspace = plan.get_one::<i64>(A::EXECUTION_PLAN_WORKSPACE_SIZE).expect("a plan knows its workspace");
    assert!((0..1 << 30).contains(&workspace), "workspace of {workspace} bytes");

    let names = library
        .files()
        .into_iter()
        .map(|file| (file.path.file_name().map(ToOwned::to_owned), file.bytes))
        .collect::<Vec<_>>();
    for name in ["libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9"] {
        assert!(
            names.iter().any(|(found, bytes)| found.as_deref() == Some(name.as_ref()) && *bytes > 0),
            "{name} not in {names:?}"
        );
    }
    let own_compiler =
        names.iter().any(|(name, _)| name.as_ref().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc")));
    assert_eq!(
        own_compiler,
        library.version() < CudnnVersion::new(9, 21, 0),
        "NVRTC is inside from 9.21 on: {names:?}"
    );

    if qkvault_sys::headless::is_stand_in_loaded() {
        let error = CudnnHandle::create(&library).expect_err("there is no GPU");
        assert!(matches!(error, Error::NoDevice { .. }), "{error:?}");
        assert!(error.to_string().contains("1001"), "{error}");
    }
}

#[test]
fn with_9_27() {
    alone("with_9_27", || compiles("9.27.0", fetched("9.27.0"), LibrarySet::Slim, NEWER));
}

#[test]
fn with_9_19() {
    alone("with_9_19", || compiles("9.19.0", fetched("9.19.0"), LibrarySet::Slim, OLDER));
}

#[test]
fn with_9_14() {
    alone("with_9_14", || compiles("9.14.0", fetched("9.14.0"), LibrarySet::Slim, OLDER));
}

#[test]
fn with_full_9_28() {
    alone("with_full_9_28", || compiles("9.28.1", fetched_full("9.28.1"), LibrarySet::Full, NEWER));
}

#[test]
fn with_full_9_27() {
    alone("with_full_9_27", || compiles("9.27.0", fetched_full("9.27.0"), LibrarySet::Full, NEWER));
}

#[test]
fn with_full_9_19() {
    alone("with_full_9_19", || compiles("9.19.0", fetched_full("9.19.0"), LibrarySet::Full, OLDER));
}

#[test]
fn with_full_9_14() {
    alone("with_full_9_14", || compiles("9.14.0", fetched_full("9.14.0"), LibrarySet::Full, OLDER));
}

/// A descriptor may move: one thread creates it, another finalizes and compiles it, as a warm-up on all cores does.
#[test]
fn on_two_threads_at_once() {
    alone("on_two_threads_at_once", || {
        let Some(set) = fetched("9.27.0") else { return };
        qkvault_sys::headless::ensure().expect("a driver or the stand-in");
        let library = Library::open(&Search::at(&set)).expect("a fetched set is whole");
        let graphs = [(); 2].map(|()| attention::attention(&library).expect("a plain attention"));
        let threads = graphs.map(|graph| {
            std::thread::spawn(move || {
                let device = attention::device(graph.library(), NEWER).expect("a profile for this version");
                let engines = attention::engines(&graph, &device, HeurMode::A).expect("heuristics answer");
                let plan = attention::plan(&engines).expect("a plan");
                plan.get_bytes(A::EXECUTION_PLAN_JSON_REPRESENTATION).expect("a plan can be written").len()
            })
        });
        for thread in threads {
            assert!(thread.join().expect("no panic") > 20_000);
        }
    });
}
