//! Making a remote from the settings of the environment.

use std::path::Path;

use super::{FolderRemote, RemoteOptions};
use crate::env::RemoteSettings;
use crate::{OpenError, SealKey};

/// Makes the remote that the environment names.
pub(crate) fn locate(
    settings: &RemoteSettings,
    token: Option<&str>,
    allow_shared: bool,
) -> Result<RemoteOptions, OpenError> {
    let RemoteSettings { location, deadline, seal_file } = settings;
    let wrong = |detail: String| OpenError::Remote { location: location.clone(), detail };
    let seal = seal_file.as_deref().map(|path| read_secret(path).map_err(wrong)).transpose()?;
    let options = match location.starts_with("http://") || location.starts_with("https://") {
        true => http(location, token).map_err(wrong)?,
        // A sealed folder may be open to others: they cannot make the seal.
        false => RemoteOptions::new(FolderRemote::new(
            location.strip_prefix("file://").unwrap_or(location),
            allow_shared || seal.is_some(),
        )),
    };
    Ok(RemoteOptions { deadline: *deadline, seal, ..options })
}

fn read_secret(path: &Path) -> Result<SealKey, String> {
    let told = |error: &dyn std::fmt::Display| format!("the seal's secret in {}: {error}", path.display());
    let secret = std::fs::read(path).map_err(|error| told(&error))?;
    SealKey::from_secret(&secret).map_err(|error| told(&error))
}

#[cfg(feature = "http")]
fn http(location: &str, token: Option<&str>) -> Result<RemoteOptions, String> {
    super::HttpRemote::new(location, token).map(RemoteOptions::new).map_err(|error| error.to_string())
}

#[cfg(not(feature = "http"))]
fn http(_: &str, _: Option<&str>) -> Result<RemoteOptions, String> {
    Err("this program was built without http: use a folder, or build qkvault-cache with the feature `http`".to_owned())
}
