//! The variables of the environment; `docs/vault.md` lists them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use qkvault_base::{CacheDir, CacheDirSource};

use crate::{Address, DiskLimits, Mode, without_secrets};

/// How the folder of a vault was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderSource {
    /// The program set it.
    Code,
    /// `$QKVAULT_CACHE_DIR`.
    CacheDir,
    /// `$XDG_CACHE_HOME/qkvault`.
    XdgCacheHome,
    /// The user's cache folder, `~/.cache/qkvault`.
    Home,
    /// The user has no home folder, so the vault is in the temporary folder, which the next restart may empty.
    Temporary,
}

/// The remote store that options and environment name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteSettings {
    /// An HTTP address or a folder. It prints without what may be secret.
    pub location: Address,
    /// Longest time that one look-up waits for the remote.
    pub deadline: Duration,
    /// The file with the secret of the seal; `None` when there is no seal, or when the program set its key.
    pub seal_file: Option<PathBuf>,
}

/// A variable of the environment has a value that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is {value:?}, expected {expected}; correct the variable or unset it")]
pub struct OptionError {
    /// Name of the variable.
    pub variable: &'static str,
    /// Its value.
    pub value: OsString,
    /// Description of the values that are accepted.
    pub expected: &'static str,
}

/// Reads a variable of the environment; see [`VaultOptions::environment`](crate::VaultOptions::environment).
pub(crate) type EnvLookup = Arc<dyn Fn(&str) -> Option<OsString> + Send + Sync>;

/// Reads a variable; an empty one counts as unset.
type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

const MODE: &str = "QKVAULT_CACHE";
const MAX_BYTES: &str = "QKVAULT_CACHE_MAX_BYTES";
const MAX_AGE: &str = "QKVAULT_CACHE_MAX_AGE";
const ALLOW_SHARED: &str = "QKVAULT_CACHE_ALLOW_SHARED";
const REQUIRE_SEAL: &str = "QKVAULT_CACHE_REQUIRE_SEAL";
const DEADLINE: &str = "QKVAULT_REMOTE_DEADLINE_MS";

/// The folder that [`CacheDir`] finds, and the part of its rule that applied.
pub(crate) fn folder(env: Env<'_>) -> (PathBuf, FolderSource) {
    let CacheDir { path, source } = CacheDir::find(env);
    let source = match source {
        CacheDirSource::Variable => FolderSource::CacheDir,
        CacheDirSource::XdgCacheHome => FolderSource::XdgCacheHome,
        CacheDirSource::Home => FolderSource::Home,
        CacheDirSource::Temporary => {
            let folder = path.display();
            tracing::warn!(%folder, "no home folder: the vault is in the temporary folder; set QKVAULT_CACHE_DIR");
            FolderSource::Temporary
        }
    };
    (path, source)
}

pub(crate) fn mode(env: Env<'_>) -> Result<Mode, OptionError> {
    let Some(value) = env(MODE) else {
        return Ok(Mode::ReadWrite);
    };
    match value.to_str() {
        Some("off") => Ok(Mode::Off),
        Some("ro") => Ok(Mode::ReadOnly),
        Some("rw") => Ok(Mode::ReadWrite),
        _ => Err(bad(MODE, value, "off, ro or rw")),
    }
}

pub(crate) fn layers(env: Env<'_>) -> Vec<PathBuf> {
    let value = env("QKVAULT_CACHE_LAYERS").unwrap_or_default();
    std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect()
}

pub(crate) fn allow_shared(env: Env<'_>) -> Result<bool, OptionError> {
    yes_or_no(env, ALLOW_SHARED)
}

pub(crate) fn require_seal(env: Env<'_>) -> Result<bool, OptionError> {
    yes_or_no(env, REQUIRE_SEAL)
}

fn yes_or_no(env: Env<'_>, name: &'static str) -> Result<bool, OptionError> {
    let Some(value) = env(name) else {
        return Ok(false);
    };
    match value.to_str() {
        Some("1") => Ok(true),
        Some("0") => Ok(false),
        _ => Err(bad(name, value, "1 or 0")),
    }
}

pub(crate) fn limits(env: Env<'_>) -> Result<DiskLimits, OptionError> {
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

/// The remote without its token, which is read when the remote is set up.
pub(crate) fn remote(env: Env<'_>) -> Result<Option<RemoteSettings>, OptionError> {
    let Some(location) = env("QKVAULT_REMOTE") else {
        return Ok(None);
    };
    let expected = "an http address, or the path of a folder, in UTF-8";
    let shown = |value: OsString| without_secrets(&value.to_string_lossy()).into();
    let location = location.into_string().map_err(|value| bad("QKVAULT_REMOTE", shown(value), expected))?;
    let location = Address::new(location);
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

/// Parses a number of bytes: digits, then nothing or one of `K`, `M`, `G`, `T` (powers of 1024), in either case.
/// Returns `None` for any other text and for numbers over [`u64::MAX`].
#[must_use]
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
