//! NCCL: the library where it is named, and two GPUs where there are two.
#![allow(clippy::print_stdout, reason = "a child process tells its parent what it hears")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
use qkvault_parallel::{CommError, Communicator, Nccl, NcclLibrary, RankMessage, Store, World, wait};
use qkvault_skip::{Need, skip};

/// `QKVAULT_NCCL=…/site-packages/nvidia/nccl/lib cargo test -p qkvault-parallel --test nccl`. It needs no GPU.
#[test]
fn nccl_is_loaded_by_name_and_gives_ids_without_a_gpu() {
    if std::env::var_os("QKVAULT_NCCL").is_none() {
        return skip(Need::Asked, "set QKVAULT_NCCL to the folder of libnccl.so.2");
    }
    let library = NcclLibrary::open().expect("QKVAULT_NCCL names it");
    assert!(library.version().starts_with("2."), "{}", library.version());
    let (one, two) = (library.new_id().expect("an id"), library.new_id().expect("an id"));
    assert!(one != two && one.0.iter().any(|byte| *byte != 0));
}

#[test]
fn ranks_without_a_gpu_hear_from_nccl_why_it_does_not_start() {
    if std::env::var_os("QKVAULT_NCCL").is_none() {
        return skip(Need::Asked, "set QKVAULT_NCCL to the folder of libnccl.so.2");
    }
    if has_two_gpus() {
        return skip(Need::Bare, "NCCL starts here");
    }
    let port = free_port();
    let join = |rank: u32| {
        let store = Store::meet(&World::local(rank, 2, port), Duration::from_secs(20))?;
        Nccl::join(store, None).map(drop)
    };
    let begin = Instant::now();
    let errors: Vec<CommError> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..2).map(|rank| scope.spawn(move || join(rank).expect_err("there is no GPU"))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    // Each rank has NCCL's own words, or those of the other one.
    assert!(errors.iter().all(|e| e.to_string().contains("ncclCommInitRankConfig")), "{errors:?}");
}

/// The program of a child that joins without a GPU: rank, port.
const JOINS: &str = "QKVAULT_TEST_CHILD";

/// Not a test of its own: a rank that has no NCCL.
#[test]
fn joining_child() {
    let Ok(text) = std::env::var(JOINS) else { return };
    let (rank, port) = text.split_once(' ').expect("two numbers");
    let world = World::local(rank.parse().expect("a number"), 2, port.parse().expect("a number"));
    let joined = Store::meet(&world, Duration::from_secs(20)).and_then(|store| Nccl::join(store, None));
    println!("hears {}", joined.map(drop).expect_err("there is no NCCL"));
}

#[test]
fn every_rank_hears_that_nccl_is_missing() {
    let (port, program) = (free_port(), std::env::current_exe().expect("this program"));
    let begin = Instant::now();
    let start = |rank: u32| {
        let mut command = Command::new(&program);
        command.args(["joining_child", "--exact", "--nocapture", "--test-threads", "1"]).stderr(Stdio::null());
        command.env("QKVAULT_NCCL", "/nonexistent/nccl").env(JOINS, format!("{rank} {port}"));
        command.stdout(Stdio::piped()).spawn().expect("starts")
    };
    let texts: Vec<String> = [0, 1].map(start).into_iter().map(heard).collect();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert!(texts.iter().all(|text| text.contains("NCCL cannot be used (/nonexistent/nccl")), "{texts:?}");
}

fn has_two_gpus() -> bool {
    // Without a driver, cudarc panics in place of an error.
    std::panic::catch_unwind(|| CudaContext::device_count().is_ok_and(|n| n >= 2)).unwrap_or(false)
}

/// The program of a child: rank, port, rounds.
const CHILD: &str = "QKVAULT_TEST_CHILD";
/// Numbers of one message.
const COUNT: usize = 1 << 20;

/// Not a test of its own: a rank that the tests below start. It prints what it hears.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let list: Vec<u64> = text.split(' ').map(|n| n.parse().expect("a number")).collect();
    let [rank, port, rounds] = list[..] else { panic!("three numbers") };
    match exchange(rank as u32, port as u16, rounds) {
        Ok(()) => println!("well"),
        Err(error) => println!("blames {} | {error}", error.rank().map_or("nobody".to_owned(), |r| r.to_string())),
    }
}

/// Rounds in which two ranks send each other what they have, each a number of its own in every round.
fn exchange(rank: u32, port: u16, rounds: u64) -> Result<(), CommError> {
    let deadline = Duration::from_secs(5);
    let context = CudaContext::new(rank as usize).expect("a GPU");
    let stream = context.new_stream().expect("a stream");
    let store = Store::meet(&World::local(rank, 2, port), Duration::from_secs(30))?;
    let mut nccl = Nccl::join(store, Some(8))?;
    println!("met");
    let peer = 1 - rank;
    let mut received = stream.alloc_zeros::<u32>(COUNT).expect("memory");
    for round in 0..rounds {
        let sent = stream.clone_htod(&vec![(round * 2) as u32 + rank; COUNT]).expect("memory");
        {
            let (from, _from) = sent.device_ptr(&stream);
            let (to, _to) = received.device_ptr_mut(&stream);
            let bytes = (COUNT * 4) as u64;
            let list = [
                RankMessage { peer, send: true, address: from, bytes },
                RankMessage { peer, send: false, address: to, bytes },
            ];
            // SAFETY: both addresses are memory of this GPU of so many bytes, which lives until the wait below ends;
            // the stream is one of this GPU.
            unsafe { nccl.exchange(&list, stream.cu_stream().cast())? };
        }
        let event = stream.record_event(None).expect("an event");
        wait(&mut nccl, deadline, || Ok(event.is_complete()))?;
        let got = stream.clone_dtoh(&received).expect("a copy");
        assert!(got.iter().all(|x| *x == (round * 2) as u32 + peer), "round {round}");
    }
    nccl.finish()
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn start(rounds: u64) -> Vec<std::process::Child> {
    let port = free_port();
    let program = std::env::current_exe().expect("this program");
    (0..2)
        .map(|rank| {
            let mut command = Command::new(&program);
            command.args(["child", "--exact", "--nocapture", "--test-threads", "1"]).stderr(Stdio::null());
            // Multicast over NVLink is not needed by sends and receives.
            command.env("NCCL_NVLS_ENABLE", "0").stdout(Stdio::piped());
            command.env(CHILD, format!("{rank} {port} {rounds}")).spawn().expect("starts")
        })
        .collect()
}

fn heard(child: std::process::Child) -> String {
    String::from_utf8_lossy(&child.wait_with_output().expect("ends").stdout).into_owned()
}

#[test]
fn two_gpus_exchange_a_thousand_times() {
    if !has_two_gpus() {
        return skip(Need::TwoGpus, "this machine has fewer");
    }
    let texts: Vec<String> = start(1_000).into_iter().map(heard).collect();
    assert!(texts.iter().all(|text| text.contains("well")), "{texts:?}");
}

#[test]
fn a_gpu_process_that_is_killed_is_named_by_the_other_a_hundred_times() {
    if !has_two_gpus() {
        return skip(Need::TwoGpus, "this machine has fewer");
    }
    for time in 0..100_u64 {
        let mut all = start(u64::MAX);
        // From the start of NCCL to the middle of the exchanges.
        std::thread::sleep(Duration::from_millis(time * 40 % 4_000));
        let faulty = (time % 2) as usize;
        let mut dead = all.remove(faulty);
        dead.kill().expect("is killed");
        let begin = Instant::now();
        dead.wait().expect("has ended");
        let text = heard(all.remove(0));
        assert!(begin.elapsed() < Duration::from_secs(40), "time {time}: {:?}", begin.elapsed());
        assert!(text.contains(&format!("blames {faulty} ")), "time {time}: rank {faulty} was killed: {text}");
    }
}
