//! HTTP as a remote: `GET` and `PUT` of one object per key, with a bearer token if there is one.

use std::fmt;
use std::time::Duration;

use ureq::Agent;
use ureq::http::StatusCode;

use super::{Address, MAX_REMOTE_BYTES, Remote, RemoteError, remote_name};
use crate::Key;

/// A remote on a server that keeps objects under `BASE/v4/ab/<key>.qkv`.
///
/// `GET` answers 200 with the bytes, or 404 (or 410) for none; `PUT` answers any 2xx. Redirects are not followed, so
/// that no other server gets the token.
#[derive(Clone)]
pub struct HttpRemote {
    base: String,
    authorization: Option<String>,
    agent: Agent,
}

/// Why a location or token cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadLocation {
    /// The location is not an HTTP address.
    #[error(
        "`{base}` is not the address of a remote store; give one like https://host/path, without user, query and \
         fragment, and a token in QKVAULT_REMOTE_TOKEN"
    )]
    Base {
        /// The location.
        base: Address,
    },
    /// The token has characters that no header can hold. The error does not contain it.
    #[error("the token of the remote store has characters other than visible ASCII (a line end, perhaps)")]
    Token,
}

impl HttpRemote {
    /// A remote on the server at `base`, with the bearer token that it requires, if any.
    ///
    /// # Errors
    ///
    /// [`BadLocation`] if `base` is not a plain HTTP address or no header can hold the token.
    pub fn new(base: &str, token: Option<&str>) -> Result<Self, BadLocation> {
        let trimmed = base.trim_end_matches('/');
        let host = trimmed.strip_prefix("https://").or_else(|| trimmed.strip_prefix("http://"));
        let good = host.is_some_and(|host| {
            let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '@');
            !host.is_empty() && !host.starts_with('/') && host.chars().all(plain)
        });
        if !good {
            return Err(BadLocation::Base { base: Address::new(base) });
        }
        let authorization = match token.map(str::trim).filter(|token| !token.is_empty()) {
            None => None,
            Some(token) if token.chars().all(|c| c.is_ascii_graphic()) => Some(format!("Bearer {token}")),
            Some(_) => return Err(BadLocation::Token),
        };
        if authorization.is_some() && trimmed.starts_with("http://") && !is_loopback(trimmed) {
            tracing::warn!(location = trimmed, "the token is sent in the clear: use https");
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("qkvault/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(HttpRemote { base: trimmed.to_owned(), authorization, agent: config.new_agent() })
    }

    fn url(&self, key: &Key) -> String {
        format!("{}/{}", self.base, remote_name(key))
    }
}

impl Remote for HttpRemote {
    fn location(&self) -> String {
        self.base.clone()
    }

    fn fetch(&self, key: &Key, within: Duration) -> Result<Option<Vec<u8>>, RemoteError> {
        let mut request = self.agent.get(self.url(key));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.config().timeout_global(Some(within)).build();
        let mut response = request.call().map_err(|error| failure(error, within))?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::GONE => return Ok(None),
            status => return Err(RemoteError::Refused { status: status.as_u16() }),
        }
        let body = response.body_mut().with_config().limit(MAX_REMOTE_BYTES);
        body.read_to_vec().map(Some).map_err(|error| failure(error, within))
    }

    fn store(&self, key: &Key, bytes: &[u8], within: Duration) -> Result<(), RemoteError> {
        let mut request = self.agent.put(self.url(key)).header("content-type", "application/octet-stream");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.config().timeout_global(Some(within)).build();
        let response = request.send(bytes).map_err(|error| failure(error, within))?;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(RemoteError::Refused { status: status.as_u16() }),
        }
    }
}

fn failure(error: ureq::Error, within: Duration) -> RemoteError {
    match error {
        ureq::Error::Timeout(_) => RemoteError::Timeout { within },
        ureq::Error::BodyExceedsLimit(limit) => RemoteError::TooLarge { limit },
        ureq::Error::StatusCode(status) => RemoteError::Refused { status },
        other => RemoteError::Unreachable { detail: other.to_string() },
    }
}

fn is_loopback(base: &str) -> bool {
    let host = base.trim_start_matches("http://").split(['/', ':']).next();
    matches!(host, Some("localhost" | "127.0.0.1")) || base.starts_with("http://[::1]")
}

impl fmt::Debug for HttpRemote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authorized = self.authorization.is_some();
        f.debug_struct("HttpRemote").field("base", &self.base).field("authorized", &authorized).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_tokens_are_checked_and_tokens_never_shown() {
        for base in ["https://cache.example/a/b", "http://127.0.0.1:8000/", "http://[::1]:9"] {
            let remote = HttpRemote::new(base, Some("s3cret\n")).unwrap();
            assert!(!format!("{remote:?}").contains("s3cret"));
        }
        for base in ["", "ftp://x", "https://", "https:///x", "cache.example", "https://h/?q", "https://h/a b"] {
            assert!(HttpRemote::new(base, None).is_err(), "{base}");
        }
        let error = HttpRemote::new("https://user:password@host/", None).unwrap_err();
        assert!(!error.to_string().contains("password"), "{error}");
        assert_eq!(HttpRemote::new("https://h", Some("a\r\nx: y")).unwrap_err(), BadLocation::Token);
    }
}
