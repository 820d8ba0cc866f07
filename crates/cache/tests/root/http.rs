//! The HTTP remote against servers in processes of their own.

use std::convert::Infallible;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use qkvault_cache::{HttpRemote, Lookup, RejectionCause, Remote, RemoteError, RemoteOptions, Source, Vault};
use qkvault_skip::{Need, skip};

use super::kit::*;
use super::server::{self, TOKEN};

fn remote(port: u16, token: Option<&str>) -> HttpRemote {
    HttpRemote::new(&format!("http://127.0.0.1:{port}/store/"), token).unwrap()
}

#[test]
fn put_here_and_get_there_with_a_token() {
    let store = tempfile::tempdir().unwrap();
    let server = server::start(store.path(), "");
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let with =
        || RemoteOptions { deadline: Duration::from_secs(10), ..RemoteOptions::new(remote(server.port, Some(TOKEN))) };
    let first = Vault::open(options(here.path()).remote(with())).unwrap();
    for n in 0..20 {
        first.get_or_build(&key(n), || Ok::<_, Infallible>(plan_of(n, 60_000))).unwrap();
    }
    assert!(first.flush_remote(Duration::from_secs(30)));
    assert_eq!((first.stats().uploads, first.stats().remote_misses), (20, 20));

    let second = Vault::open(options(there.path()).remote(with())).unwrap();
    for n in 0..20 {
        let got = second.get_or_build(&key(n), || -> Result<_, Infallible> { panic!("not built") }).unwrap();
        assert_eq!((got.source, &*got.entry), (Source::Remote, &plan_of(n, 60_000)));
    }
    assert_eq!(second.usage().entries, 20);
}

#[test]
fn a_wrong_token_is_told_and_harmless() {
    let store = tempfile::tempdir().unwrap();
    let server = server::start(store.path(), "");
    for token in [None, Some("wrong")] {
        let remote = remote(server.port, token);
        let within = Duration::from_secs(10);
        let refused = RemoteError::Refused { status: 401 };
        assert_eq!(remote.fetch(&key(1), within), Err(refused.clone()));
        assert_eq!(remote.store(&key(1), b"x", within), Err(refused.clone()));
        assert!(refused.to_string().contains("QKVAULT_REMOTE_TOKEN"));
    }
}

#[test]
fn servers_that_misbehave_cost_one_deadline_at_most() {
    let deadline = Duration::from_millis(400);
    for behave in ["hang", "dribble", "close", "rubbish", "error", "redirect", "short", "huge"] {
        let store = tempfile::tempdir().unwrap();
        let server = server::start(store.path(), behave);
        let folder = tempfile::tempdir().unwrap();
        let remote = RemoteOptions { deadline, ..RemoteOptions::new(remote(server.port, Some(TOKEN))) };
        let vault = Vault::open(options(folder.path()).remote(remote)).unwrap();
        let start = Instant::now();
        let got = vault.get_or_build(&key(1), || Ok::<_, Infallible>(plan(1))).unwrap();
        let took = start.elapsed();
        assert_eq!(got.source, Source::Built, "{behave}");
        assert!(took < deadline + Duration::from_secs(1), "{behave}: {took:?}");
        let start = Instant::now();
        for n in 2..30 {
            vault.get_or_build(&key(n), || Ok::<_, Infallible>(plan(n))).unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(1), "{behave}: {:?}", start.elapsed());
        assert_eq!(vault.stats().remote_failures, 1, "{behave}: {:?}", vault.stats());
    }
}

#[test]
fn a_server_that_lies_is_checked() {
    let store = tempfile::tempdir().unwrap();
    let server = server::start(store.path(), "lies");
    let folder = tempfile::tempdir().unwrap();
    let with = RemoteOptions { deadline: Duration::from_secs(10), ..RemoteOptions::new(remote(server.port, None)) };
    let vault = Vault::open(options(folder.path()).remote(with)).unwrap();
    assert!(matches!(vault.get(&key(1)), Lookup::Rejected(rejection) if rejection.cause() == RejectionCause::Magic));
    assert_eq!(vault.usage().entries, 0);
}

#[test]
fn a_dead_server_is_told_at_once() {
    let port = {
        let store = tempfile::tempdir().unwrap();
        server::start(store.path(), "").port
    };
    let folder = tempfile::tempdir().unwrap();
    let vault = Vault::open(options(folder.path()).remote(RemoteOptions::new(remote(port, None)))).unwrap();
    let start = Instant::now();
    for n in 0..30 {
        vault.get_or_build(&key(n), || Ok::<_, Infallible>(plan(n))).unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(vault.stats().remote_failures, 1);
}

#[test]
fn a_plain_file_server_is_enough_to_read_from() {
    let files = tempfile::tempdir().unwrap();
    let filler = tempfile::tempdir().unwrap();
    let folder = qkvault_cache::FolderRemote::new(files.path(), false);
    let vault = Vault::open(options(filler.path()).remote(RemoteOptions::new(folder))).unwrap();
    vault.put(&key(1), plan(1)).unwrap();
    assert!(vault.flush_remote(Duration::from_secs(20)));

    let python = Command::new("python3")
        .args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"])
        .arg(files.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(python) = python else { return skip(Need::Faults, "python3 is there") };
    let server = server::from_output(python, " port ");
    let base = format!("http://127.0.0.1:{}", server.port);
    let with = RemoteOptions {
        deadline: Duration::from_secs(10),
        ..RemoteOptions::new(HttpRemote::new(&base, None).unwrap())
    };
    let here = tempfile::tempdir().unwrap();
    let vault = Vault::open(options(here.path()).remote(with)).unwrap();
    assert!(matches!(vault.get(&key(1)), Lookup::Hit(entry) if *entry == plan(1)));
    assert!(matches!(vault.get(&key(2)), Lookup::Absent));
    // It takes no entries; that costs nothing but the entry.
    vault.get_or_build(&key(3), || Ok::<_, Infallible>(plan(3))).unwrap();
    assert!(vault.flush_remote(Duration::from_secs(20)));
    let stats = vault.stats();
    assert_eq!((stats.upload_failures, stats.remote_misses, stats.hits_remote), (1, 2, 1), "{stats:?}");
}
