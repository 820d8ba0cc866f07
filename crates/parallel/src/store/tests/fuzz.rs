//! Random bytes, and true ones that are changed: read in memory, and sent to stores that go on.
//!
//! `QKVAULT_FUZZ_SECONDS=600 cargo test -p qkvault-parallel --lib fuzz` searches for longer.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use qkvault_base::random::Rng;

use super::super::join::{self, MOST};
use super::super::wire::{self, Ask, StoreAnswer, StoreFault};
use super::super::{Secret, Store};
use super::frame;
use super::kit::{DEADLINE, dial, job_goes_on, join_as, said, secret, worlds};
use crate::comm::Communicator as _;

/// How long each test searches.
fn time() -> Duration {
    let seconds = std::env::var("QKVAULT_FUZZ_SECONDS").ok().and_then(|text| text.parse::<f64>().ok());
    Duration::from_secs_f64(seconds.unwrap_or(1.0))
}

/// The seed of a case, from the same start each time.
fn cases(first: u64) -> impl Iterator<Item = (u64, Rng)> {
    let (begin, time) = (Instant::now(), time());
    (first..).take_while(move |_| begin.elapsed() < time).map(|seed| (seed, Rng::new(seed)))
}

/// Bytes with some changes: others in their place, some left out, some doubled, an end cut off, lengths that are large.
fn changed(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..rng.within(1, 4) {
        let at = rng.within(0, bytes.len().max(1) - 1);
        match rng.within(0, 6) {
            _ if bytes.is_empty() => bytes.push(rng.bits() as u8),
            0 => bytes[at] = rng.bits() as u8,
            1 => bytes[at] ^= 1 << rng.within(0, 7),
            2 => bytes.truncate(at),
            3 => drop(bytes.remove(at)),
            4 => {
                let part = bytes[at..].to_vec();
                bytes.splice(at..at, part);
            }
            5 => bytes.extend((0..rng.within(1, 40)).map(|_| rng.bits() as u8)),
            _ => {
                let end = (at + 4).min(bytes.len());
                bytes[at..end].fill(0xff);
            }
        }
    }
    bytes
}

fn asks() -> Vec<Ask> {
    let name = || "word 1".to_owned();
    let text = "something \"quoted\" \\ and ü".to_owned();
    let faults = [
        StoreFault::Gone { rank: 1, how: text.clone() },
        StoreFault::Late { ranks: vec![2], waited: u64::MAX, what: text.clone() },
        StoreFault::Differs { rank: 0, what: name(), theirs: text.clone(), ours: text },
    ];
    let asks = [
        Ask::Put { name: name(), to: 0 },
        Ask::Take { name: name(), from: 0, wait: 1 },
        Ask::Check { begun: 1 },
        Ask::Leave,
    ];
    asks.into_iter().chain(faults.map(|fault| Ask::Fault { fault })).collect()
}

#[test]
fn audit_4_fuzz_messages_in_memory() {
    let frames: Vec<_> = asks().iter().map(frame).collect();
    let mut read = 0;
    for (seed, mut rng) in cases(1_000) {
        let bytes = changed(&frames[rng.within(0, frames.len() - 1)], &mut rng);
        if let Ok((ask, value)) = wire::read::<Ask>(&mut bytes.as_slice()) {
            read += 1;
            assert!(value.len() + 8 <= bytes.len(), "seed {seed}");
            let again = frame(&ask);
            assert_eq!(wire::read::<Ask>(&mut again.as_slice()).expect("reads").0, ask, "seed {seed}");
        }
        let _ = wire::read::<StoreAnswer>(&mut bytes.as_slice());
    }
    assert!(read > 0, "every message was broken: the changes are too many");
}

/// Gives bytes, and keeps count of what is taken.
struct Script<'b>(&'b [u8], usize);

impl Read for Script<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(into)?;
        self.1 += count;
        Ok(count)
    }
}

impl Write for Script<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn audit_4_fuzz_joins_in_memory() {
    // A true conversation, of both sides.
    let secret = secret("job");
    let all = worlds(2, &secret);
    let zero = Store::meet(&all[0], DEADLINE).expect("meets");
    let (_stream, of_rank, joined) = join_as(&all[1], &secret, &said(1, 2));
    assert!(joined.is_ok(), "{joined:?}");
    drop(zero);
    let of_store = [&join::MAGIC[..], &[7; 32], &[0], &[9; 32]].concat();
    for (seed, mut rng) in cases(2_000) {
        let bytes = if rng.within(0, 9) == 0 { of_rank.clone() } else { changed(&of_rank, &mut rng) };
        let mut script = Script(&bytes, 0);
        let joined = join::admit(&mut script, |_| &secret);
        assert!(joined.is_err(), "seed {seed}: a join of another connection is taken");
        assert!(script.1 <= MOST, "seed {seed}: {} bytes are read of a stranger", script.1);
        let bytes = changed(&of_store, &mut rng);
        assert!(join::join(&mut Script(&bytes, 0), &secret, &said(1, 2)).is_err(), "seed {seed}: no store's proof");
    }
}

#[test]
fn audit_4_fuzz_strangers_at_a_store_that_works() {
    job_goes_on(|world| {
        let (_, of_rank, _) = join_as(world, &secret("another"), &said(1, 2));
        let frames: Vec<_> = asks().iter().map(frame).collect();
        for (_, mut rng) in cases(3_000) {
            let mut bytes = changed(&of_rank, &mut rng);
            bytes.extend(&frames[rng.within(0, frames.len() - 1)]);
            let mut stream = dial(world);
            // It may be closed before all is written.
            let _ = stream.write_all(&bytes);
            if rng.within(0, 3) == 0 {
                let mut hello = [0; 40];
                let _ = stream.read_exact(&mut hello);
            }
        }
    });
}

/// A rank with the secret that sends anything: the job may end, but only by naming a rank of the world, and in time.
#[test]
fn audit_4_fuzz_a_rank_that_sends_anything() {
    let secret = Secret::random().expect("random");
    let frames: Vec<_> = asks().iter().map(frame).collect();
    for (seed, mut rng) in cases(4_000) {
        let all = worlds(2, &secret);
        let mut zero = Store::meet(&all[0], Duration::from_secs(5)).expect("meets");
        let (mut one, _, joined) = join_as(&all[1], &secret, &said(1, 2));
        assert!(joined.is_ok(), "seed {seed}: {joined:?}");
        for _ in 0..rng.within(1, 5) {
            let bytes = changed(&frames[rng.within(0, frames.len() - 1)], &mut rng);
            let _ = one.write_all(&bytes);
        }
        drop(one);
        let begin = Instant::now();
        // What it put for rank 0 may be there.
        for _ in 0..8 {
            match zero.take_all("word 1", 1) {
                Ok(_) => {}
                Err(error) => {
                    assert!(error.rank().is_some_and(|rank| rank < 2), "seed {seed}: {error}");
                    break;
                }
            }
        }
        assert!(zero.check().is_err(), "seed {seed}: the rank is gone");
        assert!(begin.elapsed() < Duration::from_secs(10), "seed {seed}: {:?}", begin.elapsed());
    }
}
