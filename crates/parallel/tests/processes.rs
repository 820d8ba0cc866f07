//! What processes hear when one of them is killed, stops or starts again, over TCP.
#![allow(clippy::print_stdout, reason = "a child process tells its parent what it hears")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use qkvault_base::random::Rng;
use qkvault_parallel::{CommError, Communicator, Store, World, wait};

mod rounds;

use rounds::{free_port, rounds};

/// The program of a child: rank, ranks, port, deadline in milliseconds, what it does, and a number.
const CHILD: &str = "QKVAULT_TEST_CHILD";

/// What a child does.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// So many rounds of messages over the store.
    Messages(u64),
    /// Waits as for a GPU: rounds that end when every rank has begun them, which files in memory tell.
    Waits,
    /// Messages until an error, then a few rounds with a new communicator.
    Again,
    /// The few rounds alone: a rank that was started again.
    Joins,
}

impl Work {
    const fn numbers(self) -> (u64, u64) {
        match self {
            Work::Messages(count) => (0, count),
            Work::Waits => (1, 0),
            Work::Again => (2, 0),
            Work::Joins => (3, 0),
        }
    }

    fn run(self, world: &World, deadline: Duration) -> Result<(), CommError> {
        let meet = || {
            let mut store = Store::meet(world, deadline)?;
            store.tell_all(b"here")?;
            Ok(store)
        };
        let begin = Instant::now();
        let few = |mut store: Store| rounds(&mut store, 20).map(|()| store.leave());
        match self {
            Work::Messages(count) => {
                let mut store = meet()?;
                println!("met");
                rounds(&mut store, count).map(|()| store.leave())
            }
            Work::Waits => waits(&mut meet()?, deadline, &folder(world.port)),
            Work::Again | Work::Joins => {
                if matches!(self, Work::Again) {
                    let first = meet().and_then(|mut store| rounds(&mut store, u64::MAX));
                    println!("{}", blamed(&first.expect_err("they go on for ever")));
                }
                // The store of the job before may still tell late ranks of its fault.
                loop {
                    match meet().and_then(few) {
                        Err(_) if begin.elapsed() < Duration::from_secs(30) => {
                            std::thread::sleep(Duration::from_millis(50));
                        }
                        other => return other,
                    }
                }
            }
        }
    }
}

/// Where the ranks of a job tell which round they have begun.
fn folder(port: u16) -> PathBuf {
    std::env::temp_dir().join(format!("qkvault-ranks-{port}"))
}

fn waits(store: &mut Store, deadline: Duration, folder: &Path) -> Result<(), CommError> {
    let told =
        |rank: u32| File::options().read(true).write(true).open(folder.join(rank.to_string())).expect("is there");
    let all: Vec<File> = (0..store.size()).map(told).collect();
    for round in 1_u64.. {
        store.begin_exchange();
        all[store.rank() as usize].write_all_at(&round.to_le_bytes(), 0).expect("is written");
        let begun = |file: &File| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 0).map(|()| u64::from_le_bytes(bytes) >= round)
        };
        wait(store, deadline, || {
            all.iter()
                .try_fold(true, |so_far, file| Ok::<_, std::io::Error>(so_far & begun(file)?))
                .map_err(|e| e.to_string())
        })?;
    }
    Ok(())
}

/// Whom an error blames: all of the ranks that it names.
fn blamed(error: &CommError) -> String {
    let ranks: Vec<String> = match error {
        CommError::Late { ranks, .. } => ranks.iter().map(u32::to_string).collect(),
        other => other.rank().iter().map(u32::to_string).collect(),
    };
    format!("blames {} | {error}", ranks.join(", "))
}

/// Not a test of its own: a child process of the tests below runs it. It prints what it hears.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let list: Vec<u64> = text.split(' ').map(|n| n.parse().expect("a number")).collect();
    let [rank, size, port, deadline, what, count] = list[..] else { panic!("six numbers") };
    let world = World::local(rank as u32, size as u32, port as u16);
    let work = [Work::Messages(count), Work::Waits, Work::Again, Work::Joins][what as usize];
    match work.run(&world, Duration::from_millis(deadline)) {
        Ok(()) => println!("well"),
        Err(error) => println!("{}", blamed(&error)),
    }
}

fn child_of(rank: u32, size: u32, port: u16, deadline: u64, work: Work) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["child", "--exact", "--nocapture", "--test-threads", "1"]).stderr(Stdio::null());
    let (what, count) = work.numbers();
    command.stdout(Stdio::piped()).env(CHILD, format!("{rank} {size} {port} {deadline} {what} {count}"));
    command.spawn().expect("starts")
}

fn children(size: u32, deadline: u64, work: Work) -> (Vec<Child>, u16) {
    let port = free_port();
    fs::create_dir_all(folder(port)).expect("a folder");
    for rank in 0..size {
        fs::write(folder(port).join(rank.to_string()), [0; 8]).expect("is written");
    }
    ((0..size).map(|rank| child_of(rank, size, port, deadline, work)).collect(), port)
}

/// What each child printed.
fn heard(children: Vec<Child>) -> Vec<String> {
    let text = |child: Child| String::from_utf8_lossy(&child.wait_with_output().expect("ends").stdout).into_owned();
    children.into_iter().map(text).collect()
}

#[test]
fn processes_meet_over_tcp_and_leave() {
    let (all, _) = children(3, 10_000, Work::Messages(50));
    let texts = heard(all);
    assert!(texts.iter().all(|text| text.contains("well")), "{texts:?}");
}

/// How a rank ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Killed,
    /// It hangs: all of its threads stop, and its connections stay.
    Stopped,
}

/// A rank of some ends at a random moment, and every other one names it and no other, in time.
fn ends(how: End, sizes: (usize, usize), seed: u64) {
    let deadline = 2_500;
    let mut rng = Rng::new(seed);
    let size = rng.within(sizes.0, sizes.1) as u32;
    let faulty = rng.within(0, size as usize - 1) as u32;
    let work = if rng.within(0, 1) == 0 { Work::Waits } else { Work::Messages(u64::MAX) };
    let (mut all, port) = children(size, deadline, work);
    // From before they meet to the middle of their exchanges.
    std::thread::sleep(Duration::from_millis(rng.within(0, 400) as u64));
    let mut faulty_one = all.remove(faulty as usize);
    let case = format!("seed {seed}, rank {faulty} of {size}, {how:?}, {work:?}");
    match how {
        End::Killed => faulty_one.kill().expect("is killed"),
        End::Stopped => {
            let stop = format!("kill -STOP {}", faulty_one.id());
            assert!(Command::new("sh").args(["-c", &stop]).status().expect("runs").success(), "{case}");
        }
    }
    let begin = Instant::now();
    let texts = heard(all);
    let waited = begin.elapsed();
    let _ = faulty_one.kill();
    faulty_one.wait().expect("has ended");
    let _ = fs::remove_dir_all(folder(port));
    // A quarter more, for the rank that waits for an answer of the store; and what a busy machine takes.
    assert!(waited < Duration::from_millis(deadline * 5 / 4 + 2_500), "{case}: {waited:?}");
    for text in texts {
        assert!(text.contains(&format!("blames {faulty} |")), "{case}: a rank says: {text}");
    }
}

#[test]
fn a_process_that_is_killed_is_named_by_the_others() {
    (1..=6).for_each(|seed| ends(End::Killed, (2, 4), seed));
}

/// Of three and more ranks an innocent one was named: the first of all others.
#[test]
fn audit_a_process_that_hangs_is_named_by_the_others_and_no_other_is() {
    (1..=6).for_each(|seed| ends(End::Stopped, (3, 4), seed));
}

/// `cargo test -p qkvault-parallel --all-features --test processes -- --ignored`
#[test]
#[ignore = "some minutes: a hundred killed processes, and as many that hang"]
fn processes_that_end_are_named_by_the_others_a_hundred_times() {
    for seed in 1_000..1_100 {
        ends(End::Killed, (2, 4), seed);
        ends(End::Stopped, (3, 4), seed);
    }
}

#[test]
fn ranks_go_on_with_a_new_communicator_after_one_was_killed_and_started_again() {
    for faulty in [1, 0] {
        let (mut all, port) = children(3, 3_000, Work::Again);
        std::thread::sleep(Duration::from_millis(300));
        all[faulty].kill().expect("is killed");
        all[faulty].wait().expect("has ended");
        all[faulty] = child_of(faulty as u32, 3, port, 3_000, Work::Joins);
        let texts = heard(all);
        let _ = fs::remove_dir_all(folder(port));
        assert!(texts.iter().all(|text| text.contains("well")), "{texts:?}");
    }
}
