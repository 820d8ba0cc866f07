//! What strangers at the port of a job's store cost the process of rank 0: memory, threads, and no rank's place. The
//! ranks are processes, whose memory and threads the system counts.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "a child process tells its parent what it hears")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use qkvault_parallel::{Communicator as _, Secret, Store, World};

const DEADLINE: Duration = Duration::from_secs(60);

/// The program of a child: rank and port.
const CHILD: &str = "QKVAULT_TEST_CHILD";

/// Not a test of its own: a rank of two, which works until its input ends.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let (rank, port) = text.split_once(' ').expect("two numbers");
    let (rank, port): (u32, u16) = (rank.parse().expect("a number"), port.parse().expect("a number"));
    let get = |name: &str| match name {
        "RANK" => Some(format!("{rank}")),
        "WORLD_SIZE" => Some("2".to_owned()),
        "MASTER_ADDR" => Some("127.0.0.1".to_owned()),
        "QKVAULT_PORT" => Some(format!("{port}")),
        other => std::env::var(other).ok(),
    };
    let world = World::from_variables(get).expect("complete");
    assert!(world.secret.is_some(), "the launcher gives it");
    let mut store = Store::meet(&world, DEADLINE).expect("meets");
    println!("met");
    static DONE: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        DONE.store(true, SeqCst);
    });
    let mut rounds = 0_u32;
    loop {
        let last = rank == 0 && DONE.load(SeqCst);
        let all = store.tell_all(&[rank as u8, u8::from(last)]).expect("the job goes on");
        assert_eq!([all[0][0], all[1][0]], [0, 1]);
        rounds += 1;
        if all[0][1] == 1 {
            break;
        }
    }
    store.leave();
    println!("well after {rounds} rounds");
}

/// A rank in a process.
struct Rank {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn start(rank: u32, port: u16, secret: &Secret) -> Rank {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["child", "--exact", "--nocapture", "--test-threads", "1"]);
        command.env(CHILD, format!("{rank} {port}")).stdin(Stdio::piped()).stdout(Stdio::piped());
        secret.give_to(&mut command);
        let mut child = command.spawn().expect("starts");
        let output = BufReader::new(child.stdout.take().expect("an output"));
        Rank { input: child.stdin.take(), output, child }
    }

    /// Waits until the rank prints a line with a word.
    fn hears(&mut self, word: &str) {
        let mut text = String::new();
        while !text.lines().any(|line| line.contains(word)) {
            assert!(self.output.read_line(&mut text).expect("text") > 0, "no '{word}' in {text}");
        }
    }

    /// A number of `/proc/PID/status`.
    fn counts(&self, what: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = text.lines().find(|line| line.starts_with(what)).expect("it is there");
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
    }

    fn ends_well(mut self) {
        drop(self.input.take());
        self.hears("well");
        assert!(self.child.wait().expect("ends").success());
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Rank 0 of a job that rank 1 has not joined yet.
fn begin() -> (Rank, Secret, u16) {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let secret = Secret::random().expect("random");
    let mut zero = Rank::start(0, port, &secret);
    zero.hears("met");
    (zero, secret, port)
}

fn dial(port: u16) -> TcpStream {
    TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), DEADLINE).expect("the store listens")
}

/// Six connections held 1.5 GB before they joined.
#[test]
fn audit_4_six_connections_of_long_messages_before_a_join_hold_less_than_a_megabyte() {
    let (zero, secret, port) = begin();
    // Allocators keep some memory for each thread: a first stranger makes the store touch what every one does.
    drop(dial(port));
    std::thread::sleep(Duration::from_millis(200));
    let before = zero.counts("VmRSS:");
    let lengths = [&2_u32.to_le_bytes()[..], &(256_u32 << 20).to_le_bytes(), b"{}"].concat();
    let starts = [
        // A length that no join has, one that a join has and that nothing follows, and the messages of before.
        [&b"qkvpar02"[..], &[1; 64], &u16::MAX.to_le_bytes()].concat(),
        [&b"qkvpar02"[..], &[1; 64], &512_u16.to_le_bytes()].concat(),
        [&b"qkvpar01"[..], &lengths].concat(),
        [&b"qkvpar02"[..], &lengths].concat(),
        lengths,
        b"qkvpar02".to_vec(),
    ];
    let mut strangers = Vec::new();
    for start in starts {
        let mut stream = dial(port);
        stream.set_write_timeout(Some(Duration::from_millis(300))).expect("is set");
        // Until the store has closed it or reads no more.
        if stream.write_all(&start).is_ok() && start.len() != 74 {
            let _ = stream.write_all(&vec![0; 8 << 20]);
        }
        strangers.push(stream);
    }
    std::thread::sleep(Duration::from_millis(300));
    let held = zero.counts("VmRSS:").saturating_sub(before);
    assert!(held < 1024, "six strangers hold {held} KiB");
    let mut one = Rank::start(1, port, &secret);
    one.hears("met");
    drop(strangers);
    zero.ends_well();
    one.ends_well();
}

/// 2,000 connections made 2,005 threads, and nothing came in behind them.
#[test]
fn audit_4_two_thousand_connections_make_no_two_thousand_threads_and_ranks_still_join() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("as many as may be");
    let (zero, secret, port) = begin();
    let (mut most, mut strangers, begin) = (0, Vec::new(), Instant::now());
    for number in 0..2_000 {
        // Silent ones, and ones that stop within their join.
        let mut stream = dial(port);
        let _ = stream.write_all(&b"qkvpar02"[..number % 9]);
        strangers.push(stream);
        if number % 50 == 0 {
            most = most.max(zero.counts("Threads:"));
        }
    }
    most = most.max(zero.counts("Threads:"));
    assert!(most < 140, "{most} threads");
    let mut one = Rank::start(1, port, &secret);
    one.hears("met");
    assert!(begin.elapsed() < DEADLINE, "{:?}", begin.elapsed());
    most = most.max(zero.counts("Threads:"));
    assert!((10..140).contains(&most), "{most} threads");
    zero.ends_well();
    one.ends_well();
    drop(strangers);
}
