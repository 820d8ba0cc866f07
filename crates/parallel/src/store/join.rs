//! How a connection begins: the rank and the store prove to each other that they have the secret of the job.
//!
//! | from | bytes |
//! | --- | --- |
//! | store | [`MAGIC`], 32 random bytes |
//! | rank | [`MAGIC`], 32 random bytes, 32 bytes of proof, a length of two bytes, [`Join`] as JSON |
//! | store | [`TAKEN`] or [`UNPROVEN`], 32 bytes of proof (zeros with the latter) |
//!
//! A proof is a keyed hash of both random numbers and of the join, so one that was heard before is worth nothing. What
//! is read of a stranger is at most [`MOST`] bytes. After the proofs come the messages of `wire.rs`.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::secret::{Nonces, Secret, nonce};

/// The first bytes of a connection: what speaks here, and in which version.
pub(super) const MAGIC: [u8; 8] = *b"qkvpar02";
/// How long a connection may take to join.
pub(super) const JOIN_TIME: Duration = Duration::from_secs(10);
/// The longest [`Join`], as JSON.
pub(super) const MOST_JOIN: usize = 512;
/// All bytes of a rank before the store has its proof.
#[cfg(test)]
pub(super) const MOST: usize = FIXED + MOST_JOIN;
const FIXED: usize = 8 + 32 + 32 + 2;
/// The longest version.
const MOST_VERSION: usize = 64;
/// The store has taken the proof; what it answers to the join follows.
const TAKEN: u8 = 0;
/// The store has another secret.
const UNPROVEN: u8 = 1;

/// What a rank says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Join {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) version: String,
}

/// Why a connection has not joined.
#[derive(Debug)]
pub(super) enum Unjoined {
    /// It has closed, is late, or is nothing that speaks as a rank or a store does.
    Stranger(io::Error),
    /// The other side has another secret.
    Unproven,
}

impl From<io::Error> for Unjoined {
    fn from(error: io::Error) -> Unjoined {
        Unjoined::Stranger(error)
    }
}

fn stranger(what: &str) -> Unjoined {
    Unjoined::Stranger(io::Error::new(io::ErrorKind::InvalidData, what))
}

/// The store's side: what a rank says of itself, if it proves that it has the secret for that rank.
pub(super) fn admit<'s>(
    stream: &mut (impl Read + Write),
    secret: impl FnOnce(u32) -> &'s Secret,
) -> Result<Join, Unjoined> {
    let store = nonce()?;
    stream.write_all(&[&MAGIC[..], &store].concat())?;
    // The bytes of a fixed number, whatever comes: a stranger's length takes no memory.
    let mut fixed = [0; FIXED];
    stream.read_exact(&mut fixed[..MAGIC.len()])?;
    if fixed[..MAGIC.len()] != MAGIC {
        return Err(stranger("it is no rank of this version"));
    }
    stream.read_exact(&mut fixed[MAGIC.len()..])?;
    let length = usize::from(u16::from_le_bytes([fixed[72], fixed[73]]));
    if length > MOST_JOIN {
        return Err(stranger("its join is longer than any"));
    }
    let mut said = [0; MOST_JOIN];
    let said = &mut said[..length];
    stream.read_exact(said)?;
    let join: Join = serde_json::from_slice(said).map_err(|_| stranger("its join is not one"))?;
    if join.version.len() > MOST_VERSION || !join.version.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(stranger("its version is not one"));
    }
    let (mut rank, mut proof) = ([0; 32], [0; 32]);
    rank.copy_from_slice(&fixed[8..40]);
    proof.copy_from_slice(&fixed[40..72]);
    let (nonces, secret) = (Nonces { store, rank }, secret(join.rank));
    // Hashes are compared in a time that does not depend on them.
    if secret.proof_of_rank(&nonces, said) != blake3::Hash::from(proof) {
        stream.write_all(&[&[UNPROVEN][..], &[0; 32]].concat())?;
        return Err(Unjoined::Unproven);
    }
    let proof = secret.proof_of_store(&nonces, said);
    stream.write_all(&[&[TAKEN][..], proof.as_bytes()].concat())?;
    Ok(join)
}

/// The rank's side: joins, and takes the proof of the store.
pub(super) fn join(stream: &mut (impl Read + Write), secret: &Secret, join: &Join) -> Result<(), Unjoined> {
    let mut hello = [0; 40];
    stream.read_exact(&mut hello)?;
    if hello[..MAGIC.len()] != MAGIC {
        return Err(stranger("it is no store of this version"));
    }
    let mut store = [0; 32];
    store.copy_from_slice(&hello[MAGIC.len()..]);
    let (nonces, said) = (Nonces { store, rank: nonce()? }, serde_json::to_vec(join).map_err(io::Error::other)?);
    let length = u16::try_from(said.len()).ok().filter(|length| usize::from(*length) <= MOST_JOIN);
    let length = length.ok_or_else(|| stranger("this rank's version is too long"))?;
    let proof = secret.proof_of_rank(&nonces, &said);
    stream.write_all(&[&MAGIC[..], &nonces.rank, proof.as_bytes(), &length.to_le_bytes(), &said].concat())?;
    let mut verdict = [0; 33];
    stream.read_exact(&mut verdict)?;
    let mut proof = [0; 32];
    proof.copy_from_slice(&verdict[1..]);
    match verdict[0] {
        TAKEN if secret.proof_of_store(&nonces, &said) == blake3::Hash::from(proof) => Ok(()),
        TAKEN | UNPROVEN => Err(Unjoined::Unproven),
        _ => Err(stranger("its verdict is none")),
    }
}

/// A stream whose reads and writes together end at one moment, however slowly bytes come.
pub(super) struct JoinUntil<'s> {
    stream: &'s TcpStream,
    end: Instant,
}

impl<'s> JoinUntil<'s> {
    /// From now on for so long.
    pub(super) fn new(stream: &'s TcpStream, time: Duration) -> JoinUntil<'s> {
        JoinUntil { stream, end: Instant::now() + time }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for JoinUntil<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(into)
    }
}

impl Write for JoinUntil<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
