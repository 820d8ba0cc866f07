//! Strangers at the store, and ranks that do what no rank does.

mod fuzz;
mod kit;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use kit::{DEADLINE, dial, fake, job_goes_on, job_of, join_as, rest, said, secret, worlds};

use super::join::{self, Join, JoinUntil, MAGIC, MOST, Unjoined};
use super::wire::{self, Ask, MOST_HEAD, MOST_VALUE, StoreAnswer, StoreFault};
use super::{Secret, Store, World};
use crate::comm::{CommError, Communicator as _};

#[test]
fn audit_4_a_stranger_without_the_secret_takes_no_rank() {
    job_goes_on(|world| {
        for other in [secret("another"), Secret::none(), Secret::random().expect("random")] {
            for rank in [0, 1] {
                let (stream, _, joined) = join_as(world, &other, &said(rank, 2));
                assert!(matches!(joined, Err(Unjoined::Unproven)), "{joined:?}");
                assert_eq!(rest(&stream), b"", "nothing follows");
            }
            let begin = Instant::now();
            let error = Store::meet(&world.clone().with_secret(other), DEADLINE).err().expect("refused");
            assert!(matches!(error, CommError::Secret { .. }), "{error}");
            assert!(error.to_string().contains("different secrets") && begin.elapsed() < DEADLINE / 2, "{error}");
        }
        // Not even a rank of the job takes the place of rank 0.
        let (_, _, joined) = join_as(world, &secret("job"), &said(0, 2));
        assert!(matches!(joined, Err(Unjoined::Unproven)), "{joined:?}");
    });
}

/// One of these ended the job, on every rank.
#[test]
fn audit_4_joins_that_do_not_fit_close_only_themselves() {
    job_goes_on(|world| {
        let refused = |world: &World, version: &str, words: &str| {
            let error = Store::meet_as(world, DEADLINE, version).err().expect("refused");
            assert!(matches!(error, CommError::Differs { .. }) && error.to_string().contains(words), "{error}");
        };
        let version = env!("CARGO_PKG_VERSION");
        refused(world, "0.0.1", "version 0.0.1");
        refused(&World { size: 3, ..world.clone() }, version, "a world of 3 ranks");
        refused(&World { rank: 99, ..world.clone() }, version, "the rank 99, the others have 0 to 1");
        refused(&World { rank: u32::MAX, size: 2, ..world.clone() }, version, "the others have 0 to 1");
        for version in ["", "\u{1b}[31m", "v v", &"9".repeat(65)] {
            let (stream, ..) = join_as(world, &secret("job"), &Join { version: version.to_owned(), ..said(1, 3) });
            assert!(rest(&stream).len() < 1024);
        }
    });
}

#[test]
fn audit_4_a_second_rank_of_a_number_closes_only_itself() {
    let worlds = worlds(2, &secret("job"));
    let zero = Store::meet(&worlds[0], DEADLINE).expect("meets");
    let one = Store::meet(&worlds[1], DEADLINE).expect("meets");
    for _ in 0..3 {
        let error = Store::meet(&worlds[1], DEADLINE).err().expect("refused").to_string();
        assert!(error.contains("rank 1 has the rank 1, the others have it already"), "{error}");
    }
    well([zero, one]);
}

/// Both ranks tell each other a word and leave.
fn well(stores: [Store; 2]) {
    std::thread::scope(|scope| {
        let threads = stores.map(|mut store| {
            scope.spawn(move || {
                let all = store.tell_all(&[store.rank() as u8]).expect("the job goes on");
                assert_eq!(all, [[0], [1]]);
                store.leave();
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn audit_4_a_join_that_was_heard_before_is_worth_nothing() {
    // Of an earlier job with the same secret, and of this one.
    let yesterday = worlds(2, &secret("job"));
    let zero = Store::meet(&yesterday[0], DEADLINE).expect("meets");
    let (_one, heard, joined) = join_as(&yesterday[1], &secret("job"), &said(1, 2));
    assert!(joined.is_ok(), "{joined:?}");
    drop(zero);
    job_goes_on(|world| {
        let (_, refused, joined) = join_as(world, &secret("job"), &said(1, 3));
        assert!(joined.is_ok(), "its proof is right, its world is not: {joined:?}");
        for written in [&heard, &refused] {
            let mut stream = dial(world);
            let mut hello = [0; 40];
            stream.read_exact(&mut hello).expect("the store begins");
            stream.write_all(written).expect("is written");
            assert_eq!(rest(&stream), [&[1_u8][..], &[0; 32]].concat(), "the verdict, and nothing else");
        }
    });
}

#[test]
fn audit_4_garbage_and_connections_cut_at_each_byte_close_only_themselves() {
    let worlds = worlds(2, &secret("job"));
    job_of(&worlds, |world| {
        let (_, whole, _) = join_as(world, &secret("another"), &said(1, 2));
        assert!(whole.len() <= MOST && MOST <= 1024, "{} of {MOST}", whole.len());
        for cut in 0..whole.len() {
            let mut stream = dial(world);
            stream.write_all(&whole[..cut]).expect("is written");
            stream.shutdown(Shutdown::Write).expect("is cut");
            assert_eq!(rest(&stream).len(), 40, "no more than the store's first words");
        }
        let oversize = [&MAGIC[..], &[0; 64], &[0xff; 2], &[b'x'; 600]].concat();
        let no_join = [&MAGIC[..], &[0; 64], &2_u16.to_le_bytes(), b"{}"].concat();
        for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), b"qkvpar01".to_vec(), vec![0xff; 4_000], oversize, no_join] {
            let mut stream = dial(world);
            // The store closes as soon as it knows, so the rest may find no reader.
            let _ = stream.write_all(&bytes);
            assert!(rest(&stream).len() <= 40);
        }
    });
}

#[test]
fn audit_4_a_store_without_the_secret_is_not_believed() {
    let refused = |world: &World, words: &str| {
        let error = Store::meet(world, Duration::from_secs(2)).err().expect("refused").to_string();
        assert!(error.contains(words), "{error}");
    };
    for verdict in [0_u8, 1] {
        let (world, thread) = fake(move |stream| {
            stream.write_all(&[&MAGIC[..], &[7; 32]].concat()).expect("is written");
            let mut heard = [0; 72];
            stream.read_exact(&mut heard).expect("the rank's proof");
            // The rank's own proof, as the store's.
            stream.write_all(&[&[verdict][..], &heard[40..]].concat()).expect("is written");
        });
        refused(&world, "different secrets");
        thread.join().expect("no panic");
    }
    let (world, thread) = fake(|stream| stream.write_all(&[b'x'; 40]).expect("is written"));
    refused(&world, "has not come");
    thread.join().expect("no panic");
}

#[test]
fn audit_leftover_ranks_check_the_lengths_of_the_store_before_they_take_memory() {
    for lengths in [[u32::MAX, 0], [0, u32::MAX], [MOST_HEAD as u32 + 1, 0], [2, MOST_VALUE as u32 + 1]] {
        let (world, thread) = fake(move |stream| {
            let secret = secret("job");
            join::admit(stream, |_| &secret).expect("it is the rank");
            let bytes = lengths.map(u32::to_le_bytes).concat();
            stream.write_all(&bytes).expect("is written");
        });
        let error = Store::meet(&world, DEADLINE).err().expect("refused").to_string();
        assert!(error.contains(&format!("a message of {} and {} bytes", lengths[0], lengths[1])), "{error}");
        thread.join().expect("no panic");
    }
}

#[test]
fn audit_leftover_a_message_that_is_too_long_is_refused_where_it_is_sent_and_all_ranks_hear() {
    let long_name = |store: &mut Store| store.give_all(&"n".repeat(MOST_HEAD), b"");
    // Memory that nothing has written takes none.
    let long_value = |store: &mut Store| store.give_all("value", &vec![0; MOST_VALUE + 1]);
    for (send, words) in [
        (long_name as fn(&mut Store) -> Result<(), CommError>, "65536 at most"),
        (long_value, "value for rank 0 has 268435457 bytes, and the store carries 268435456 at most"),
    ] {
        let worlds = worlds(2, &secret("job"));
        let mut zero = Store::meet(&worlds[0], DEADLINE).expect("meets");
        let mut one = Store::meet(&worlds[1], DEADLINE).expect("meets");
        let error = send(&mut one).expect_err("too long");
        assert!(matches!(error, CommError::Long { .. }) && error.to_string().contains(words), "{error}");
        assert_eq!(one.check(), Err(error), "the communicator has ended");
        let heard = zero.take_all("value", 1).expect_err("the other rank hears");
        assert!(heard.rank() == Some(1) && heard.to_string().contains("at most"), "{heard}");
    }
}

/// What rank 0 hears of a rank 1 that speaks for itself, in a job in which the others have not come.
fn forger(size: u32, forged: &[u8]) -> CommError {
    let worlds = worlds(size, &secret("job"));
    let mut zero = Store::meet(&worlds[0], Duration::from_secs(10)).expect("meets");
    let (mut one, _, joined) = join_as(&worlds[1], &secret("job"), &said(1, size));
    assert!(joined.is_ok(), "{joined:?}");
    assert_eq!(wire::read::<StoreAnswer>(&mut one).expect("an answer").0, StoreAnswer::Done);
    one.write_all(forged).expect("is written");
    // It may be closed already.
    let _ = one.shutdown(Shutdown::Write);
    let error = zero.take_all("word", 1).expect_err("a fault");
    let _ = rest(&one);
    error
}

fn frame(ask: &Ask) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::write(&mut bytes, ask, b"value").expect("writes").expect("is short");
    bytes
}

#[test]
fn audit_4_faults_count_of_ranks_that_have_joined_about_what_they_can_have_seen() {
    let gone = |rank: u32| Ask::Fault { fault: StoreFault::Gone { rank, how: "forged".to_owned() } };
    // Nobody who has not joined tells a fault.
    job_goes_on(|world| {
        for rank in [0, 1, 7] {
            let mut stream = dial(world);
            let _ = stream.write_all(&frame(&gone(rank)));
            let _ = rest(&stream);
        }
    });
    let cases = [
        // About itself, and about a rank that is there.
        (gone(1), 1, "rank 1 is gone: forged"),
        (gone(0), 0, "rank 0 is gone: forged"),
        // About one that has not come, and about one that cannot come: the forger is named.
        (gone(2), 1, "it reports a fault of rank 2, which has not joined"),
        (gone(3), 1, "it has asked what no rank asks"),
        (gone(u32::MAX), 1, "it has asked what no rank asks"),
        (Ask::Put { name: "word".to_owned(), to: 3 }, 1, "it has asked what no rank asks"),
        (Ask::Put { name: "word".to_owned(), to: 1 }, 1, "it has asked what no rank asks"),
        (Ask::Take { name: "word".to_owned(), from: 3, wait: 1 }, 1, "it has asked what no rank asks"),
        (Ask::Take { name: "word".to_owned(), from: 1, wait: 1 }, 1, "it has asked what no rank asks"),
    ];
    // Each rank 0 waits a moment for rank 2, to tell it why.
    std::thread::scope(|scope| {
        for (forged, rank, words) in cases {
            scope.spawn(move || {
                let error = forger(3, &frame(&forged));
                assert!(error.rank() == Some(rank) && error.to_string().contains(words), "{forged:?}: {error}");
            });
        }
    });
    let error =
        forger(2, &frame(&Ask::Fault { fault: StoreFault::Gone { rank: 1, how: "\u{1b}[2Jclean".to_owned() } }));
    assert!(!error.to_string().contains('\u{1b}'), "{error:?}");
}

#[test]
fn audit_4_messages_of_a_rank_cut_at_each_byte_or_too_long_name_that_rank() {
    let whole = frame(&Ask::Put { name: "other".to_owned(), to: 0 });
    for cut in 0..whole.len() {
        let error = forger(2, &whole[..cut]);
        assert!(matches!(error, CommError::Gone { rank: 1, .. }), "{cut}: {error}");
    }
    for lengths in [[u32::MAX, 0], [0, u32::MAX], [MOST_HEAD as u32 + 1, 0], [2, MOST_VALUE as u32 + 1], [2, 1 << 28]] {
        let error = forger(2, &[&lengths.map(u32::to_le_bytes).concat()[..], b"{}"].concat());
        assert!(matches!(error, CommError::Gone { rank: 1, .. }), "{lengths:?}: {error}");
    }
}

#[test]
fn a_rank_that_is_late_is_named_with_what_is_known_of_why() {
    let worlds = worlds(2, &secret("job"));
    let deadline = Duration::from_millis(600);
    let late = |strange: &dyn Fn()| {
        let mut zero = Store::meet(&worlds[0], deadline).expect("meets");
        strange();
        let error = zero.take_all("word", 1).expect_err("nobody comes");
        drop(zero);
        error
    };
    let error = late(&|| {
        let refused = Store::meet_as(&worlds[1], DEADLINE, "0.0.1").err().expect("refused");
        assert!(matches!(refused, CommError::Differs { .. }), "{refused}");
    });
    assert!(matches!(&error, CommError::Differs { rank: 1, theirs, .. } if theirs == "0.0.1"), "{error}");
    let error = late(&|| {
        let refused = Store::meet(&worlds[1].clone().with_secret(secret("another")), DEADLINE).err().expect("refused");
        assert!(matches!(refused, CommError::Secret { .. }), "{refused}");
    });
    assert!(matches!(&error, CommError::Late { ranks, .. } if *ranks == [1]), "{error}");
    assert!(error.to_string().contains("has closed 1 connections of another secret"), "{error}");
}

/// Bytes that came one by one, each in time, did not end.
#[test]
fn audit_4_a_connection_has_a_time_to_join_however_slowly_its_bytes_come() {
    let (world, thread) = fake(|stream| {
        let (begin, time) = (Instant::now(), Duration::from_millis(500));
        let joined = join::admit(&mut JoinUntil::new(stream, time), |_| unreachable!("no join is complete"));
        let Err(Unjoined::Stranger(error)) = joined else { panic!("{joined:?}") };
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
        assert!((time..time * 6).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    });
    let mut slow = dial(&world);
    let mut bytes = MAGIC.iter().chain(std::iter::repeat(&0));
    while !thread.is_finished() {
        let _ = slow.write_all(&[*bytes.next().expect("no end")]);
        std::thread::sleep(Duration::from_millis(50));
    }
    thread.join().expect("no panic");
}

/// Rank 0 waited for its deadline to tell the others of an end that they, next in the same thread, could not hear.
#[test]
fn audit_ranks_of_one_thread_that_are_dropped_one_after_the_other_do_not_wait_for_each_other() {
    let worlds = worlds(3, &secret("job"));
    let ranks: Vec<Store> = std::thread::scope(|scope| {
        let meet = |world| scope.spawn(move || Store::meet(world, DEADLINE).expect("meets"));
        let all: Vec<_> = worlds.iter().map(meet).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let begin = Instant::now();
    drop(ranks);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    // Ranks that have all reported a fault, as of a plan that none has, know of it.
    let begin = Instant::now();
    let two = self::worlds(2, &secret("job"));
    let mut ranks: Vec<Store> = two.iter().map(|world| Store::meet(world, DEADLINE).expect("meets")).collect();
    ranks.iter_mut().rev().for_each(crate::Communicator::abort);
    drop(ranks);
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    // The address is free for another job at once, also while the store lingers.
    let begin = Instant::now();
    let zero = Store::meet(&worlds[0], DEADLINE).expect("meets");
    drop(zero);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let zero = Store::meet(&worlds[0], DEADLINE).expect("meets again");
    let one = Store::meet(&worlds[1], DEADLINE).expect("meets");
    drop(one);
    drop(zero);
}
