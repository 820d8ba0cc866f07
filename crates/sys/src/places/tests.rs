//! The places for given environments and folders.

use std::ffi::OsString;
use std::fs;

use super::*;

/// Creates a file with this name in a folder below `root`, and the folder.
fn put(root: &Path, dir: &str, name: &str) -> PathBuf {
    let dir = root.join(dir);
    fs::create_dir_all(&dir).expect("a temporary folder can be written");
    fs::write(dir.join(name), "junk").expect("a temporary folder can be written");
    dir
}

fn search(variables: &[(&str, &Path)]) -> Search {
    Search::default().environment(variables.iter().map(|(name, value)| ((*name).to_owned(), OsString::from(value))))
}

fn files(search: &Search) -> Vec<(String, PathBuf)> {
    let with_file = in_order(search).into_iter().filter_map(|place| match place.at {
        At::File(file) => Some((place.origin.to_string(), file)),
        At::Process | At::Name(_) | At::Nothing(..) => None,
    });
    with_file.collect()
}

#[test]
fn the_order_is_the_documented_one() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let root = root.path();
    let prefix = put(root, "prefix/lib", SONAME);
    let venv = put(root, "venv/lib/python3.12/site-packages/nvidia/cudnn/lib", SONAME);
    let venv_jit = put(root, "venv/lib/python3.12/site-packages/nvidia/cudnn_jit/lib", SONAME);
    let python = put(root, "python/lib/python3.11/site-packages/nvidia/cudnn/lib", SONAME);
    let bin = put(root, "python/bin", "python3");
    let fetched = put(root, "cache/libraries/cudnn/9.27.0.42-slim/nvidia/cudnn_jit/lib", SONAME);
    put(root, "cache/libraries/cudnn/9.27.0.42-slim", MANIFEST);
    let toolkit = put(root, "cuda/lib64", SONAME);
    let search = search(&[
        ("CUDA_HOME", &root.join("cuda")),
        ("QKVAULT_CACHE_DIR", &root.join("cache")),
        ("PATH", &bin),
        ("VIRTUAL_ENV", &root.join("venv")),
        ("CUDNN_PATH", &root.join("prefix")),
    ]);

    let expected = [
        ("CUDNN_PATH", prefix),
        ("site-packages of VIRTUAL_ENV", venv),
        ("site-packages of VIRTUAL_ENV", venv_jit),
        ("site-packages of python3", python.canonicalize().expect("it exists")),
        ("fetched", fetched),
        ("CUDA_HOME", toolkit),
    ];
    assert_eq!(files(&search), expected.map(|(origin, dir)| (origin.to_owned(), dir.join(SONAME))));

    let origins = in_order(&search).into_iter().map(|place| place.origin).collect::<Vec<_>>();
    let at = |origin: &SearchStep| origins.iter().position(|other| other == origin).expect("every origin is listed");
    assert!(
        at(&SearchStep::Variable("CUDNN_HOME")) < at(&SearchStep::Process),
        "what the user names beats what is loaded"
    );
    assert!(
        at(&SearchStep::Process) < at(&SearchStep::Environment("VIRTUAL_ENV")),
        "what is loaded beats what is installed"
    );
    assert_eq!(origins.last(), Some(&SearchStep::Loader));
}

#[test]
fn a_path_given_and_the_own_variable_are_exact() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let here = put(root.path(), "here", SONAME);
    let there = put(root.path(), "there", SONAME);
    let given =
        Search { path: Some(here.clone()), ..search(&[("QKVAULT_CUDNN_PATH", &there), ("CUDNN_PATH", &there)]) };
    assert_eq!(files(&given), [("path given".to_owned(), here.join(SONAME))]);
    assert_eq!(in_order(&given).len(), 1);
    let named = search(&[("QKVAULT_CUDNN_PATH", &there.join(SONAME)), ("CUDNN_PATH", &here)]);
    assert_eq!(files(&named), [("QKVAULT_CUDNN_PATH".to_owned(), there.join(SONAME))]);
    let wrong = search(&[("QKVAULT_CUDNN_PATH", &root.path().join("nowhere")), ("CUDNN_PATH", &here)]);
    assert!(
        matches!(in_order(&wrong)[..], [SearchPlace { at: At::Nothing(_, UnusableReason::Absent), .. }]),
        "no fall-back behind the user's back"
    );
}

#[test]
fn fetched_sets_come_slim_and_new_first_and_only_when_complete() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let root = root.path();
    for name in [
        "9.9.0.1-slim",
        "9.27.0.42-slim",
        "9.28.0.42-full",
        "9.19.0.56-slim",
        "notes-slim",
        ".unfinished-x",
        "9.14.0.64-odd",
    ] {
        put(root, &format!("libraries/cudnn/{name}/nvidia/cudnn_jit/lib"), SONAME);
        if name != "9.19.0.56-slim" {
            put(root, &format!("libraries/cudnn/{name}"), MANIFEST);
        }
    }
    let places = in_order(&search(&[("QKVAULT_CACHE_DIR", root)]));
    let names = places.iter().filter(|place| place.origin == SearchStep::Fetched).map(|place| match &place.at {
        At::File(file) => file.iter().rev().nth(4).expect("five folders deep").to_string_lossy().into_owned(),
        At::Nothing(Some(dir), UnusableReason::Incomplete) => {
            format!("{} incomplete", dir.file_name().expect("it has one").to_string_lossy())
        }
        other => panic!("{other:?}"),
    });
    let expected = ["9.27.0.42-slim", "9.19.0.56-slim incomplete", "9.9.0.1-slim", "9.28.0.42-full"];
    assert_eq!(names.collect::<Vec<_>>(), expected);
}

#[test]
fn a_version_is_told_by_header_or_by_link() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let lib = put(root.path(), "wheel/lib", SONAME);
    let file = lib.join(SONAME);
    assert_eq!(version_beside(&file), None);
    let include = put(root.path(), "wheel/include", "cudnn_version.h");
    let header = "#ifndef X\n#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 19\n#define CUDNN_PATCHLEVEL 1\n#define CUDNN_VERSION (CUDNN_MAJOR * 10000)\n";
    fs::write(include.join("cudnn_version.h"), header).expect("a temporary folder can be written");
    assert_eq!(version_beside(&file), Some(CudnnVersion::new(9, 19, 1)));

    let system = put(root.path(), "system", "libcudnn.so.8.9.7");
    std::os::unix::fs::symlink("libcudnn.so.8.9.7", system.join(SONAME)).expect("a link can be made");
    assert_eq!(version_beside(&system.join(SONAME)), Some(CudnnVersion::new(8, 9, 7)));
    assert_eq!(foreign_major(&system.join(SONAME)).as_deref(), Some("8.9.7"));
    assert_eq!(foreign_major(&file), None);
}

#[test]
fn a_set_is_told_by_its_neighbours() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let lib = put(root.path(), "lib", SONAME);
    assert_eq!(set_beside(&lib.join(SONAME)), LibrarySet::Slim);
    put(root.path(), "lib", ONLY_IN_FULL);
    assert_eq!(set_beside(&lib.join(SONAME)), LibrarySet::Full);
}
