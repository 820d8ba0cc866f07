//! From options and environment to the settings that hold: one pass, no file touched.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::{DiskLimits, Mode, VaultOptions};

pub(crate) type EnvLookup = Arc<dyn Fn(&str) -> Option<OsString> + Send + Sync>;

/// Where the folder came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderSource {
    /// Set in code.
    Code,
    /// `$QKVAULT_CACHE_DIR`.
    CacheDir,
    /// `$XDG_CACHE_HOME/qkvault`.
    XdgCacheHome,
    /// The cache folder of the user, `~/.cache/qkvault`.
    Home,
    /// There is no home folder: a folder under the temporary one, lost at the next restart.
    Temporary,
}

/// What options and environment come to.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// The folder; the vault is `vault/v1` inside it.
    pub folder: PathBuf,
    /// Why this folder.
    pub folder_source: FolderSource,
    /// What may be done with it.
    pub mode: Mode,
    /// Folders that are only read.
    pub layers: Vec<PathBuf>,
    /// Limits of the folder.
    pub limits: DiskLimits,
    /// Whether folders that others can write to are used.
    pub allow_shared_writable: bool,
    /// The remote store, without its secrets.
    pub remote: Option<RemoteSettings>,
}

/// The remote store that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteSettings {
    /// An http address or a folder.
    pub location: String,
    /// Longest time that one look-up waits for it.
    pub deadline: Duration,
    /// The file with the seal's secret; `None` also when the key was set in code.
    pub seal_file: Option<PathBuf>,
}

/// A variable that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is {value:?}, expected {expected}; correct the variable or unset it")]
pub struct OptionError {
    /// The variable.
    pub variable: &'static str,
    /// Its value.
    pub value: OsString,
    /// What it may be.
    pub expected: &'static str,
}

const MODE: &str = "QKVAULT_CACHE";
const MAX_BYTES: &str = "QKVAULT_CACHE_MAX_BYTES";
const MAX_AGE: &str = "QKVAULT_CACHE_MAX_AGE";
const ALLOW_SHARED: &str = "QKVAULT_CACHE_ALLOW_SHARED";
const DEADLINE: &str = "QKVAULT_REMOTE_DEADLINE_MS";

impl Settings {
    pub(crate) fn resolve(options: &VaultOptions) -> Result<Self, OptionError> {
        // An empty variable counts as unset everywhere: that is how people switch one off in a unit file.
        let env = |name: &str| (options.env)(name).filter(|value| !value.is_empty());
        let (folder, folder_source) = match &options.folder {
            Some(folder) => (folder.clone(), FolderSource::Code),
            None => default_folder(&env),
        };
        let mode = match (options.mode, env(MODE)) {
            (Some(mode), _) => mode,
            (None, None) => Mode::ReadWrite,
            (None, Some(value)) => match value.to_str() {
                Some("off") => Mode::Off,
                Some("ro") => Mode::ReadOnly,
                Some("rw") => Mode::ReadWrite,
                _ => return Err(bad(MODE, value, "off, ro or rw")),
            },
        };
        let layers = match (&options.layers, env("QKVAULT_CACHE_LAYERS")) {
            (Some(layers), _) => layers.clone(),
            (None, Some(value)) => std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect(),
            (None, None) => Vec::new(),
        };
        let limits = match options.limits {
            Some(limits) => limits,
            None => limits_from(&env)?,
        };
        let allow_shared_writable = match (options.allow_shared, env(ALLOW_SHARED)) {
            (Some(allow), _) => allow,
            (None, None) => false,
            (None, Some(value)) => match value.to_str() {
                Some("1") => true,
                Some("0") => false,
                _ => return Err(bad(ALLOW_SHARED, value, "1 or 0")),
            },
        };
        let remote = match &options.remote {
            Some(remote) => {
                Some(RemoteSettings { location: remote.remote.location(), deadline: remote.deadline, seal_file: None })
            }
            None => remote_from(&env)?,
        };
        Ok(Settings { folder, folder_source, mode, layers, limits, allow_shared_writable, remote })
    }
}

fn default_folder(env: &dyn Fn(&str) -> Option<OsString>) -> (PathBuf, FolderSource) {
    if let Some(folder) = env("QKVAULT_CACHE_DIR") {
        return (PathBuf::from(folder), FolderSource::CacheDir);
    }
    // The XDG rule: a relative path there is invalid and ignored.
    if let Some(base) = env("XDG_CACHE_HOME").map(PathBuf::from)
        && base.is_absolute()
    {
        return (base.join("qkvault"), FolderSource::XdgCacheHome);
    }
    if let Some(home) = env("HOME").map(PathBuf::from)
        && home.is_absolute()
    {
        return (home.join(".cache/qkvault"), FolderSource::Home);
    }
    if let Ok(base) = etcetera::choose_base_strategy() {
        let cache = etcetera::BaseStrategy::cache_dir(&base);
        return (cache.join("qkvault"), FolderSource::Home);
    }
    let folder = std::env::temp_dir().join(crate::trust::private_name("qkvault"));
    tracing::warn!(folder = %folder.display(), "no home folder: the vault is in the temporary folder; set QKVAULT_CACHE_DIR");
    (folder, FolderSource::Temporary)
}

fn limits_from(env: &dyn Fn(&str) -> Option<OsString>) -> Result<DiskLimits, OptionError> {
    let mut limits = DiskLimits::default();
    if let Some(value) = env(MAX_BYTES) {
        let bytes = value.to_str().and_then(parse_bytes);
        let expected = "a number of bytes such as 500M or 8G, or 0 for no limit";
        let bytes = bytes.ok_or_else(|| bad(MAX_BYTES, value, expected))?;
        limits.max_bytes = (bytes != 0).then_some(bytes);
    }
    if let Some(value) = env(MAX_AGE) {
        let days = value.to_str().and_then(|text| text.trim().parse::<u32>().ok());
        let expected = "a number of days, or 0 for no limit";
        let days = days.ok_or_else(|| bad(MAX_AGE, value, expected))?;
        limits.max_age = (days != 0).then(|| Duration::from_secs(u64::from(days) * 86_400));
    }
    Ok(limits)
}

fn remote_from(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<RemoteSettings>, OptionError> {
    let Some(location) = env("QKVAULT_REMOTE") else {
        return Ok(None);
    };
    let expected = "an http address, or the path of a folder, in UTF-8";
    let location = location.into_string().map_err(|value| bad("QKVAULT_REMOTE", value, expected))?;
    let deadline = match env(DEADLINE) {
        None => Duration::from_secs(1),
        Some(value) => {
            let millis = value.to_str().and_then(|text| text.trim().parse().ok());
            let millis = millis.filter(|millis| (1..=600_000).contains(millis));
            let expected = "milliseconds from 1 to 600000";
            Duration::from_millis(millis.ok_or_else(|| bad(DEADLINE, value, expected))?)
        }
    };
    let seal_file = env("QKVAULT_REMOTE_SEAL_FILE").map(PathBuf::from);
    Ok(Some(RemoteSettings { location, deadline, seal_file }))
}

/// Reads a number of bytes: digits, then nothing or one of `K`, `M`, `G`, `T` (powers of 1024), in either case.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    digits.trim_end().parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn bad(variable: &'static str, value: OsString, expected: &'static str) -> OptionError {
    OptionError { variable, value, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &'static [(&'static str, &'static str)]) -> VaultOptions {
        VaultOptions::new().environment(move |name| {
            let found = vars.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn folder_rule_in_its_order() {
        let all = with(&[("QKVAULT_CACHE_DIR", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")]);
        let code = all.clone().folder("/code").resolve().unwrap();
        assert_eq!(code.folder, PathBuf::from("/code"));
        assert_eq!(code.folder_source, FolderSource::Code);
        assert_eq!(all.resolve().unwrap().folder, PathBuf::from("/a"));
        let xdg = with(&[("XDG_CACHE_HOME", "/b"), ("HOME", "/c")]);
        assert_eq!(xdg.resolve().unwrap().folder, PathBuf::from("/b/qkvault"));
        let relative = with(&[("XDG_CACHE_HOME", "b"), ("HOME", "/c")]);
        let relative = relative.resolve().unwrap();
        assert_eq!(relative.folder, PathBuf::from("/c/.cache/qkvault"));
        assert_eq!(relative.folder_source, FolderSource::Home);
    }

    #[test]
    fn code_beats_environment_beats_default() {
        let env = with(&[
            ("QKVAULT_CACHE_DIR", "/a"),
            ("QKVAULT_CACHE", "ro"),
            ("QKVAULT_CACHE_MAX_BYTES", "2G"),
            ("QKVAULT_CACHE_MAX_AGE", "30"),
            ("QKVAULT_CACHE_LAYERS", "/x:/y"),
            ("QKVAULT_CACHE_ALLOW_SHARED", "1"),
        ]);
        let settings = env.resolve().unwrap();
        assert_eq!(settings.mode, Mode::ReadOnly);
        assert_eq!(settings.limits.max_bytes, Some(2 << 30));
        let days = Duration::from_secs(30 * 86_400);
        assert_eq!(settings.limits.max_age, Some(days));
        assert_eq!(settings.layers.len(), 2);
        assert!(settings.allow_shared_writable);

        let code = env
            .mode(Mode::ReadWrite)
            .limits(DiskLimits::default())
            .layers([])
            .allow_shared_writable(false)
            .resolve()
            .unwrap();
        assert_eq!(code.mode, Mode::ReadWrite);
        assert_eq!(code.limits, DiskLimits::default());
        assert!(code.layers.is_empty() && !code.allow_shared_writable);

        let none = with(&[("QKVAULT_CACHE_DIR", "/a"), ("QKVAULT_CACHE", "")]);
        assert_eq!(none.resolve().unwrap().mode, Mode::ReadWrite);
    }

    #[test]
    fn a_variable_that_cannot_be_understood_is_named() {
        for vars in [
            &[("QKVAULT_CACHE_DIR", "/a"), ("QKVAULT_CACHE", "yes")],
            &[("QKVAULT_CACHE_DIR", "/a"), ("QKVAULT_CACHE_MAX_BYTES", "4X")],
            &[("QKVAULT_CACHE_DIR", "/a"), ("QKVAULT_CACHE_MAX_AGE", "-1")],
            &[("QKVAULT_CACHE_DIR", "/a"), ("QKVAULT_CACHE_ALLOW_SHARED", "y")],
        ] {
            let error = with(vars).resolve().unwrap_err();
            assert_eq!(error.variable, vars[1].0);
            let text = error.to_string();
            assert!(text.contains(vars[1].1) && text.contains("expected"), "{text}");
        }
    }

    #[test]
    fn bytes_with_and_without_unit() {
        for (text, bytes) in [("0", 0), ("17", 17), ("1k", 1024), ("500M", 500 << 20), ("8 GiB", 8 << 30)] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "1Q", "99999999999999999T", "1 2"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
