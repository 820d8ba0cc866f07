//! Settings: what options and environment resolve to, in one pass that touches no file.

use std::path::PathBuf;

use crate::env::{self, FolderSource, OptionError, RemoteSettings};
use crate::{Address, DiskLimits, Mode, VaultOptions};

/// What the options of a vault and the environment resolve to.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// The folder; the vault is `vault/v3` inside it.
    pub folder: PathBuf,
    /// How the folder was chosen.
    pub folder_source: FolderSource,
    /// What the vault may do with the folder.
    pub mode: Mode,
    /// Folders that the vault only reads.
    pub layers: Vec<PathBuf>,
    /// Limits of the folder.
    pub limits: DiskLimits,
    /// Whether the vault uses folders that others can write to.
    pub allow_shared_writable: bool,
    /// Whether packs and the remote store need a seal.
    pub require_seal: bool,
    /// The remote store, without its secrets.
    pub remote: Option<RemoteSettings>,
}

impl VaultOptions {
    /// Resolves these options in their environment, and opens nothing: what `cache dir` and `doctor` show.
    ///
    /// # Errors
    ///
    /// [`OptionError`] for the first variable that cannot be understood.
    pub fn resolve(&self) -> Result<Settings, OptionError> {
        let options = self;
        // An empty variable counts as unset: that is how a unit file switches one off.
        let get = |name: &str| (options.env)(name).filter(|value| !value.is_empty());
        let (folder, folder_source) = match &options.folder {
            Some(folder) => (folder.clone(), FolderSource::Code),
            None => env::folder(&get),
        };
        let mode = options.mode.map_or_else(|| env::mode(&get), Ok)?;
        let layers = options.layers.clone().unwrap_or_else(|| env::layers(&get));
        let limits = options.limits.map_or_else(|| env::limits(&get), Ok)?;
        let allow_shared_writable = options.allow_shared.map_or_else(|| env::allow_shared(&get), Ok)?;
        let require_seal = options.require_seal.map_or_else(|| env::require_seal(&get), Ok)?;
        let remote = match &options.remote {
            Some(remote) => {
                let location = Address::new(remote.remote.location());
                Some(RemoteSettings { location, deadline: remote.deadline, seal_file: None })
            }
            None => env::remote(&get)?,
        };
        Ok(Settings { folder, folder_source, mode, layers, limits, allow_shared_writable, require_seal, remote })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::time::Duration;

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
}
