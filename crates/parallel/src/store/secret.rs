//! The secret of a job: what its ranks have and strangers have not, and where it comes from.

use std::fmt::{self, Write as _};
use std::process::Command;

use super::secret_file;
use crate::comm::CommError;

/// The variable with the secret itself.
pub(super) const VARIABLE: &str = "QKVAULT_RANKS_SECRET";
/// The variable with the name of a file that has the secret.
pub(super) const FILE_VARIABLE: &str = "QKVAULT_RANKS_SECRET_FILE";

/// Bytes of a secret: fewer can be guessed, more than any tool makes.
const LEAST: usize = 16;
/// See [`LEAST`].
pub(super) const MOST: usize = 1024;

// Separates these keys from other uses of the same text.
const CONTEXT: &str = "qkvault secret of ranks that meet, v1";
const CONTEXT_OF_NONE: &str = "qkvault ranks that meet without a secret, v1";

/// What a joining rank says first, in its proof and in that of the store: one cannot be taken for the other.
const RANK_JOINS: &[u8] = b"qkvault: a rank joins";
const STORE_TAKES: &[u8] = b"qkvault: a store takes";

/// The secret of a job, which every rank proves to the store and the store to every rank. It never travels. `Debug`
/// does not print it.
#[derive(Clone)]
pub struct Secret {
    text: String,
    key: [u8; 32],
}

impl Secret {
    /// The variable through which a launcher gives the secret to the ranks that it starts: `QKVAULT_RANKS_SECRET`.
    pub const VARIABLE: &'static str = VARIABLE;

    /// A secret of 16 to 1,024 printable characters of ASCII, such as `openssl rand -hex 32` makes. White space at both
    /// ends is ignored, so that a file with and without a final line end has the same secret.
    ///
    /// # Errors
    ///
    /// [`CommError::Secret`] for a text that is shorter, longer or not printable. The error does not contain it.
    pub fn new(text: &str) -> Result<Secret, CommError> {
        Secret::from_text(text, "the secret of the ranks")
    }

    /// [`Secret::new`], with where the text comes from.
    pub(super) fn from_text(text: &str, source: &str) -> Result<Secret, CommError> {
        let text = text.trim_ascii();
        let wrong = |what: String| Err(CommError::Secret { what: format!("{source} {what}") });
        match text.len() {
            bytes if bytes < LEAST => wrong(format!("has {bytes} bytes, and {LEAST} or more are expected")),
            bytes if bytes > MOST => wrong(format!("has more than {MOST} bytes, which are the most")),
            _ if !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                wrong("has other characters than letters, digits and signs of ASCII".to_owned())
            }
            _ => Ok(Secret { text: text.to_owned(), key: blake3::derive_key(CONTEXT, text.as_bytes()) }),
        }
    }

    /// A new secret of 32 random bytes, for the ranks of one launch.
    ///
    /// # Errors
    ///
    /// [`CommError::Secret`] if the system gives no random bytes.
    pub fn random() -> Result<Secret, CommError> {
        let bytes = nonce().map_err(|e| CommError::Secret { what: format!("no secret can be made ({e})") })?;
        let text = bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a text cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        Secret::new(&text)
    }

    /// The text, for a launcher of another kind than [`Secret::give_to`], which puts it into [`Secret::VARIABLE`] of
    /// each rank's environment. Do not print it, and do not put it among the arguments of a program, which every user
    /// of a machine can read.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Gives the secret to a rank that a launcher starts as a process of this user.
    pub fn give_to(&self, command: &mut Command) {
        command.env(VARIABLE, &self.text).env_remove(FILE_VARIABLE);
    }

    /// What stands in the place of a secret where there is none. Everyone knows it.
    pub(super) fn none() -> Secret {
        Secret { text: String::new(), key: blake3::derive_key(CONTEXT_OF_NONE, b"") }
    }

    /// The secret that the environment gives: the text of one variable, or a file that the other names.
    pub(super) fn from_variables(get: &impl Fn(&str) -> Option<String>) -> Result<Option<Secret>, CommError> {
        match (get(VARIABLE), get(FILE_VARIABLE)) {
            (None, None) => Ok(None),
            (Some(text), None) => Secret::from_text(&text, VARIABLE).map(Some),
            (None, Some(path)) => {
                let source = format!("{FILE_VARIABLE}, the file {path:?},");
                let text = secret_file::read(path.as_ref());
                let text = text.map_err(|what| CommError::Secret { what: format!("{source} {what}") })?;
                Secret::from_text(&text, &source).map(Some)
            }
            (Some(_), Some(_)) => {
                Err(CommError::Secret { what: format!("{VARIABLE} and {FILE_VARIABLE} are both set: unset one") })
            }
        }
    }

    /// What a rank sends to prove that it has the secret: a hash of what it says and of both random numbers, so that it
    /// is worth nothing for another connection.
    pub(super) fn proof_of_rank(&self, nonces: &Nonces, said: &[u8]) -> blake3::Hash {
        self.proof(RANK_JOINS, nonces, said)
    }

    /// The same of the store, for the same connection.
    pub(super) fn proof_of_store(&self, nonces: &Nonces, said: &[u8]) -> blake3::Hash {
        self.proof(STORE_TAKES, nonces, said)
    }

    fn proof(&self, label: &[u8], nonces: &Nonces, said: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        // All but the last part have a fixed length.
        hasher.update(label).update(&nonces.store).update(&nonces.rank).update(said);
        hasher.finalize()
    }
}

/// The random numbers of one connection.
#[derive(Clone, Copy)]
pub(super) struct Nonces {
    pub(super) store: [u8; 32],
    pub(super) rank: [u8; 32],
}

/// Random bytes that nobody can know before.
pub(super) fn nonce() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(bytes)
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        // Hashes are compared in a time that does not depend on them.
        blake3::Hash::from(self.key) == blake3::Hash::from(other.key)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "correct-horse-battery";

    #[test]
    fn secrets_are_checked_and_never_shown() {
        let secret = Secret::new(&format!(" {TEXT}\n")).expect("long enough");
        assert_eq!((secret.expose(), &secret), (TEXT, &Secret::new(TEXT).expect("the same")));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        let (one, two) = (Secret::random().expect("one"), Secret::random().expect("two"));
        assert!(one != two && one.expose().len() == 64 && one != Secret::none());
        for (text, words) in [("hunter2", "7 bytes"), ("pass word pass word", "ASCII"), (&"x".repeat(1025), "1024")] {
            let error = Secret::new(text).expect_err("refused").to_string();
            assert!(error.contains(words) && error.contains("openssl rand"), "{error}");
            assert!(!error.contains(text), "{error}");
        }
    }

    #[test]
    fn proofs_differ_by_secret_side_random_numbers_and_what_is_said() {
        let secret = Secret::new(TEXT).expect("long enough");
        let nonces = Nonces { store: [1; 32], rank: [2; 32] };
        let proof = secret.proof_of_rank(&nonces, b"said");
        assert_eq!(proof, secret.proof_of_rank(&nonces, b"said"));
        let others = [
            secret.proof_of_store(&nonces, b"said"),
            secret.proof_of_rank(&nonces, b"say"),
            secret.proof_of_rank(&Nonces { store: [3; 32], ..nonces }, b"said"),
            secret.proof_of_rank(&Nonces { rank: [3; 32], ..nonces }, b"said"),
            Secret::none().proof_of_rank(&nonces, b"said"),
            Secret::random().expect("random").proof_of_rank(&nonces, b"said"),
        ];
        assert!(others.iter().all(|other| *other != proof));
    }
}
