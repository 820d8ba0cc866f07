//! The address of a remote, which may hold a password or a token, and the one way to show it.

use std::fmt;

/// The address of a remote as it was given: an HTTP address or a folder. `Display` and `Debug` leave out what may be
/// secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// An address as a user gave it.
    pub fn new(given: impl Into<String>) -> Self {
        Address(given.into())
    }

    /// The whole address, secrets included: to connect with, never to show.
    pub(crate) fn given(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_secrets(&self.0))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&without_secrets(&self.0), f)
    }
}

/// A text, such as an address or the error of a client, with every address in it cut to scheme, host and path: without
/// user, password, query and fragment, each of which may be a secret. `user:password@host` without a scheme is cut too.
///
/// A character that an address should have escaped makes it ambiguous. Then more is left out, never less.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>' | '|');
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        shown.push_str(&cut(word));
        let gap = after.find(|c| !ends(c)).unwrap_or(after.len());
        shown.push_str(&after[..gap]);
        rest = &after[gap..];
    }
    shown
}

/// One word without secrets.
fn cut(word: &str) -> String {
    // The first of these: a later one may belong to what is secret.
    let scheme = ["://", "http:", "https:"].iter().filter_map(|mark| Some((word.find(mark)?, mark.len()))).min();
    let Some((at, len)) = scheme else {
        // No scheme: a path or another word, unless it begins like a user with a password.
        let host = word.split('/').next().unwrap_or_default();
        let user = host.split_once('@').is_some_and(|(user, _)| user.contains(':'));
        return if user { word.rsplit('@').next().unwrap_or_default().to_owned() } else { word.to_owned() };
    };
    let rest = word[at + len..].trim_start_matches('/');
    let scheme = &word[..word.len() - rest.len()];
    // A password may contain any of `/?#`, so what stands before the last `@` goes first.
    let rest = rest.rsplit('@').next().unwrap_or_default();
    let path = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
    // A query in parentheses, as clients print addresses.
    let closes = word.ends_with(')') && word.contains('(') && !path.ends_with(')');
    format!("{scheme}{path}{}", if closes { ")" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_9_an_address_is_shown_without_user_password_query_and_fragment() {
        for (given, shown) in [
            ("http://user:secret@host/", "http://host/"),
            ("http://user:secret@host:8080/a/b?token=secret#secret", "http://host:8080/a/b"),
            ("https://secret@host", "https://host"),
            ("https://host?sig=secret", "https://host"),
            ("HTTPS://u:secret@host/x", "HTTPS://host/x"),
            ("s3://key:secret@bucket/prefix", "s3://bucket/prefix"),
            ("https:/u:secret@host/", "https:/host/"),
            ("u:secret@host/path", "host/path"),
            // A password that should have been escaped.
            ("http://user:pa/secret@host/", "http://host/"),
            ("http://user:pa?secret#secret@host/?token=secret", "http://host/"),
            ("http://u:secret@host/https:x", "http://host/https:x"),
            ("http:u:secret@host/://x", "http:host/://x"),
            ("http://host/?mail=secret@secret.example&x=1", "http://secret.example&x=1"),
            ("/mnt/plans@v2", "/mnt/plans@v2"),
            ("file:///mnt/plans", "file:///mnt/plans"),
            ("plans/of:today@noon", "plans/of:today@noon"),
            ("https://cache.example/a/b", "https://cache.example/a/b"),
        ] {
            let address = Address::new(given);
            assert_eq!(address.to_string(), shown);
            assert_eq!(format!("{address:?}"), format!("{shown:?}"));
            assert_eq!(address.given(), given);
        }
    }

    #[test]
    fn audit_9_addresses_inside_of_errors_are_cut_too() {
        let text = "could not GET \"https://u:secret@h/p?sig=secret\": no route (http://h/q?token=secret) at all";
        assert_eq!(without_secrets(text), "could not GET \"https://h/p\": no route (http://h/q) at all");
        assert_eq!(without_secrets("no address: 3 of 4"), "no address: 3 of 4");
    }
}
