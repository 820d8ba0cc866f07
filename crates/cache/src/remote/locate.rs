//! Making a remote from the settings of the environment.

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
    let seal = seal_file.as_deref().map(SealKey::from_file).transpose().map_err(|error| wrong(error.to_string()))?;
    let given = location.given();
    let options = match given.split_once("://").map(|(scheme, _)| scheme) {
        Some("http" | "https") => http(given, token).map_err(wrong)?,
        None | Some("file") => {
            let folder = given.strip_prefix("file://").unwrap_or(given);
            // A sealed folder may be open to others: they cannot make the seal.
            RemoteOptions::new(FolderRemote::new(folder, allow_shared || seal.is_some()))
        }
        Some(scheme) => {
            return Err(wrong(format!("`{scheme}` is none of http, https and file; a folder needs no scheme")));
        }
    };
    Ok(RemoteOptions { deadline: *deadline, seal, ..options })
}

#[cfg(feature = "http")]
fn http(location: &str, token: Option<&str>) -> Result<RemoteOptions, String> {
    super::HttpRemote::new(location, token).map(RemoteOptions::new).map_err(|error| error.to_string())
}

#[cfg(not(feature = "http"))]
fn http(_: &str, _: Option<&str>) -> Result<RemoteOptions, String> {
    Err("this program was built without http: use a folder, or build qkvault-cache with the feature `http`".to_owned())
}
