//! Where qkvault keeps files on this machine. The fetch commands, the search for cuDNN and the vault all use these
//! rules.

use std::ffi::OsString;
use std::path::PathBuf;

use etcetera::BaseStrategy as _;

/// The variable that names the cache folder.
pub const CACHE_DIR_VARIABLE: &str = "QKVAULT_CACHE_DIR";

/// The file that a fetch writes last into a set of libraries. A folder without it is incomplete and is not used.
pub const MANIFEST: &str = "manifest.toml";

/// Which rule determined the cache folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheDirSource {
    /// `$QKVAULT_CACHE_DIR`.
    Variable,
    /// `$XDG_CACHE_HOME/qkvault`.
    XdgCacheHome,
    /// The user's cache folder, `~/.cache/qkvault`.
    Home,
    /// A folder of this user below the temporary folder, because there is no home folder. A restart may empty it.
    Temporary,
}

/// The cache folder. It need not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDir {
    /// Its path.
    pub path: PathBuf,
    /// Which rule determined it.
    pub source: CacheDirSource,
}

impl CacheDir {
    /// Finds the cache folder: `$QKVAULT_CACHE_DIR`, else `$XDG_CACHE_HOME/qkvault`, else `~/.cache/qkvault`, else
    /// `qkvault-UID` in the temporary folder (a system service, a bare container). An empty variable counts as unset. A
    /// relative path is used only in `QKVAULT_CACHE_DIR`.
    pub fn find(variable: impl Fn(&str) -> Option<OsString>) -> CacheDir {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let dir = |path: PathBuf, source| CacheDir { path, source };
        if let Some(path) = set(CACHE_DIR_VARIABLE) {
            return dir(path, CacheDirSource::Variable);
        }
        // The XDG specification ignores relative paths.
        if let Some(base) = set("XDG_CACHE_HOME").filter(|base| base.is_absolute()) {
            return dir(base.join("qkvault"), CacheDirSource::XdgCacheHome);
        }
        if let Some(home) = set("HOME").filter(|home| home.is_absolute()) {
            return dir(home.join(".cache").join("qkvault"), CacheDirSource::Home);
        }
        match etcetera::choose_base_strategy() {
            Ok(strategy) => dir(strategy.cache_dir().join("qkvault"), CacheDirSource::Home),
            Err(_) => dir(std::env::temp_dir().join(private_name("qkvault")), CacheDirSource::Temporary),
        }
    }
}

/// The cache folder for the environment of this process: see [`CacheDir::find`].
#[must_use]
pub fn cache_dir() -> PathBuf {
    CacheDir::find(|name| std::env::var_os(name)).path
}

/// The folder of fetched NVIDIA libraries: `libraries` in [`cache_dir`].
#[must_use]
pub fn libraries_dir() -> PathBuf {
    cache_dir().join("libraries")
}

/// The folder of fetched cuDNN sets. Each version and set has a folder of its own, such as `9.27.0.42-slim`.
#[must_use]
pub fn cudnn_dir() -> PathBuf {
    libraries_dir().join("cudnn")
}

/// A name for a folder that all users share; it contains the number of this user.
#[cfg(unix)]
fn private_name(name: &str) -> String {
    format!("{name}-{}", rustix::process::geteuid().as_raw())
}

#[cfg(not(unix))]
fn private_name(name: &str) -> String {
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> (PathBuf, CacheDirSource) {
        let found =
            CacheDir::find(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)));
        (found.path, found.source)
    }

    #[test]
    fn own_variable_beats_xdg_beats_home() {
        let all = [("QKVAULT_CACHE_DIR", "/q"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(with(&all), ("/q".into(), CacheDirSource::Variable));
        assert_eq!(with(&all[1..]), ("/x/qkvault".into(), CacheDirSource::XdgCacheHome));
        assert_eq!(with(&all[2..]), ("/h/.cache/qkvault".into(), CacheDirSource::Home));
    }

    #[test]
    fn empty_and_relative_settings_are_ignored_but_in_the_own_variable() {
        let home = ("HOME", "/h");
        let of_home = (PathBuf::from("/h/.cache/qkvault"), CacheDirSource::Home);
        assert_eq!(with(&[("QKVAULT_CACHE_DIR", ""), ("XDG_CACHE_HOME", "rel"), home]), of_home);
        assert_eq!(with(&[("QKVAULT_CACHE_DIR", "rel"), home]), ("rel".into(), CacheDirSource::Variable));
        // Without a usable `HOME` the system's user database decides; a relative path is never used.
        assert!(with(&[("HOME", "rel")]).0.is_absolute());
    }
}
