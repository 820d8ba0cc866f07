//! Where qkvault keeps things on this machine; what fetches and what searches must agree, so both ask here.

use std::ffi::OsString;
use std::path::PathBuf;

use etcetera::BaseStrategy as _;

/// Names the folder that everything below is relative to, when set.
pub const CACHE_DIR_VARIABLE: &str = "QKVAULT_CACHE_DIR";

/// The user's cache folder for qkvault: `$QKVAULT_CACHE_DIR`, else `$XDG_CACHE_HOME/qkvault`, else `~/.cache/qkvault`.
///
/// Without a home folder (a system service, a bare container) it is a folder in the system's temporary one. It need not exist yet.
pub fn cache_dir() -> PathBuf {
    cache_dir_from(|name| std::env::var_os(name))
}

/// [`cache_dir`] with the environment given, for callers that have their own and for tests.
pub fn cache_dir_from(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set(CACHE_DIR_VARIABLE) {
        return dir;
    }
    // XDG says that a relative path in its variables is to be ignored.
    if let Some(dir) = set("XDG_CACHE_HOME").filter(|dir| dir.is_absolute()) {
        return dir.join("qkvault");
    }
    if let Some(home) = set("HOME") {
        return home.join(".cache").join("qkvault");
    }
    match etcetera::choose_base_strategy() {
        Ok(strategy) => strategy.cache_dir().join("qkvault"),
        Err(_) => std::env::temp_dir().join("qkvault"),
    }
}

/// Where fetched NVIDIA libraries are: `libraries` below [`cache_dir`].
pub fn libraries_dir() -> PathBuf {
    cache_dir().join("libraries")
}

/// Where fetched cuDNN sets are: one folder per version and set, named like `9.27.0.42-slim`.
pub fn cudnn_dir() -> PathBuf {
    libraries_dir().join("cudnn")
}

/// The file that is written last into a fetched set: a folder without it is not complete and is not used.
pub const MANIFEST: &str = "manifest.toml";

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> PathBuf {
        cache_dir_from(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn own_variable_beats_xdg_beats_home() {
        let all = [("QKVAULT_CACHE_DIR", "/q"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(with(&all), PathBuf::from("/q"));
        assert_eq!(with(&all[1..]), PathBuf::from("/x/qkvault"));
        assert_eq!(with(&all[2..]), PathBuf::from("/h/.cache/qkvault"));
    }

    #[test]
    fn empty_and_relative_settings_are_ignored() {
        assert_eq!(
            with(&[("QKVAULT_CACHE_DIR", ""), ("XDG_CACHE_HOME", "rel"), ("HOME", "/h")]),
            PathBuf::from("/h/.cache/qkvault")
        );
    }
}
