//! Remote stores: a folder, and stores that fail in every way.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use qkvault_cache::{
    FolderRemote, Key, Lookup, Mode, OpenError, PackError, PackOptions, RejectionCause, Remote, RemoteError,
    RemoteOptions, SealKey, Source, UnpackOptions, Vault, VaultOptions, remote_name,
};

use super::kit::*;

fn remote_folder(path: &std::path::Path) -> RemoteOptions {
    RemoteOptions::new(FolderRemote::new(path, false))
}

#[test]
fn what_one_host_builds_another_fetches() {
    let (remote, here, there) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = Vault::open(options(here.path()).remote(remote_folder(remote.path()))).unwrap();
    first.get_or_build(&key(1), || Ok::<_, Infallible>(plan(1))).unwrap();
    first.put(&key(2), refusal("9.27.0")).unwrap();
    assert!(first.flush_remote(Duration::from_secs(20)));
    assert_eq!((first.stats().uploads, first.stats().remote_misses), (2, 1));
    assert!(remote.path().join(remote_name(&key(1))).exists());

    let second = Vault::open(options(there.path()).remote(remote_folder(remote.path()))).unwrap();
    let never = || -> Result<_, Infallible> { panic!("not built") };
    let got = second.get_or_build(&key(1), never).unwrap();
    assert_eq!((got.source, &*got.entry), (Source::Remote, &plan(1)));
    assert!(matches!(second.get(&key(2)), Lookup::Hit(_)));
    assert_eq!(second.stats().hits_remote, 2);
    assert!(file_of(there.path(), &key(1)).exists(), "back-filled into the folder");
    assert_eq!(open(there.path()).get_or_build(&key(1), never).unwrap().source, Source::Disk);
    // A refusal of another library does not answer from a remote either.
    assert!(matches!(second.for_library("9.99").get(&key(2)), Lookup::Absent));
}

#[test]
fn read_only_fetches_and_keeps_nothing_and_off_asks_nothing() {
    let (remote, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let filler = Vault::open(options(here.path()).remote(remote_folder(remote.path()))).unwrap();
    filler.put(&key(1), plan(1)).unwrap();
    assert!(filler.flush_remote(Duration::from_secs(20)));

    let empty = tempfile::tempdir().unwrap();
    let ro = options(empty.path()).mode(Mode::ReadOnly).remote(remote_folder(remote.path()));
    let ro = Vault::open(ro).unwrap();
    assert!(matches!(ro.get(&key(1)), Lookup::Hit(_)));
    ro.get_or_build(&key(2), || Ok::<_, Infallible>(plan(2))).unwrap();
    assert!(ro.flush_remote(Duration::ZERO) && ro.stats().uploads == 0);
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
    let off = options(empty.path()).mode(Mode::Off).remote(remote_folder(remote.path()));
    assert!(matches!(Vault::open(off).unwrap().get(&key(1)), Lookup::Absent));
}

#[test]
fn what_a_remote_sends_is_checked_like_a_file() {
    let (remote, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let filler = Vault::open(options(here.path()).remote(remote_folder(remote.path()))).unwrap();
    filler.put(&key(1), plan(1)).unwrap();
    assert!(filler.flush_remote(Duration::from_secs(20)));
    let good = std::fs::read(remote.path().join(remote_name(&key(1)))).unwrap();
    let cut = file(&key(3), plan(3));
    // Under another key, cut off, and empty.
    for (n, bytes) in [(2, &good[..]), (3, &cut[..cut.len() - 1]), (4, &[])] {
        let path = remote.path().join(remote_name(&key(n)));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let fresh = tempfile::tempdir().unwrap();
    let vault = Vault::open(options(fresh.path()).remote(remote_folder(remote.path()))).unwrap();
    for n in 2..5 {
        assert!(matches!(vault.get(&key(n)), Lookup::Rejected(_)), "{n}");
        assert_eq!(vault.get_or_build(&key(n), || Ok::<_, Infallible>(plan(n))).unwrap().source, Source::Built);
    }
    let causes: Vec<RejectionCause> = vault.stats().rejections.iter().map(|(cause, _)| *cause).collect();
    assert_eq!(causes, [RejectionCause::Magic, RejectionCause::KeyMismatch, RejectionCause::FileLength]);
}

#[test]
fn a_sealed_remote_cannot_plant_a_plan() {
    let (remote, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sealed = |byte| RemoteOptions { seal: Some(SealKey::new([byte; 32])), ..remote_folder(remote.path()) };
    let filler = Vault::open(options(here.path()).remote(sealed(1))).unwrap();
    filler.put(&key(1), plan(1)).unwrap();
    assert!(filler.flush_remote(Duration::from_secs(20)));
    let open_with = |remote| {
        let folder = tempfile::tempdir().unwrap();
        Vault::open(options(folder.path()).remote(remote)).unwrap().get(&key(1))
    };
    assert!(matches!(open_with(sealed(1)), Lookup::Hit(_)));
    assert!(matches!(open_with(sealed(2)), Lookup::Rejected(rejection) if rejection.cause() == RejectionCause::Seal));
    // A good entry without a seal, as someone without the secret would plant it.
    let bytes = file(&key(1), plan(1));
    std::fs::write(remote.path().join(remote_name(&key(1))), bytes).unwrap();
    assert!(matches!(open_with(sealed(1)), Lookup::Rejected(rejection) if rejection.cause() == RejectionCause::Seal));
}

#[test]
#[cfg(unix)]
fn a_remote_folder_open_to_others_is_not_used_unless_asked() {
    use std::os::unix::fs::PermissionsExt;
    let (remote, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let vault = Vault::open(options(here.path()).remote(remote_folder(remote.path()))).unwrap();
    vault.put(&key(1), plan(1)).unwrap();
    assert!(vault.flush_remote(Duration::from_secs(20)));
    std::fs::set_permissions(remote.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    for (allow, hit) in [(false, false), (true, true)] {
        let fresh = tempfile::tempdir().unwrap();
        let remote = RemoteOptions::new(FolderRemote::new(remote.path(), allow));
        let vault = Vault::open(options(fresh.path()).remote(remote)).unwrap();
        assert_eq!(matches!(vault.get(&key(1)), Lookup::Hit(_)), hit);
    }
}

/// A remote that does whatever a test wants.
struct Odd<F>(F, Arc<AtomicUsize>);

impl<F> Remote for Odd<F>
where
    F: Fn(Duration) -> Result<Option<Vec<u8>>, RemoteError> + Send + Sync + 'static,
{
    fn location(&self) -> String {
        "odd".into()
    }

    fn fetch(&self, _: &Key, within: Duration) -> Result<Option<Vec<u8>>, RemoteError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        (self.0)(within)
    }

    fn store(&self, _: &Key, _: &[u8], within: Duration) -> Result<(), RemoteError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        (self.0)(within).map(drop)
    }
}

fn odd<F>(behave: F) -> (RemoteOptions, Arc<AtomicUsize>)
where
    F: Fn(Duration) -> Result<Option<Vec<u8>>, RemoteError> + Send + Sync + 'static,
{
    let asked = Arc::new(AtomicUsize::new(0));
    (RemoteOptions::new(Odd(behave, Arc::clone(&asked))), asked)
}

#[test]
fn a_remote_that_never_answers_costs_one_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let (remote, asked) = odd(|_| {
        std::thread::sleep(Duration::from_secs(3600));
        Ok(None)
    });
    let remote = RemoteOptions { deadline: Duration::from_millis(150), ..remote };
    let vault = Vault::open(options(folder.path()).remote(remote)).unwrap();
    let start = Instant::now();
    assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    let first = start.elapsed();
    assert!(first >= Duration::from_millis(150) && first < Duration::from_millis(1500), "{first:?}");
    let start = Instant::now();
    for n in 0..100 {
        vault.get_or_build(&key(n), || Ok::<_, Infallible>(plan(n))).unwrap();
    }
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
    let stats = vault.stats();
    assert_eq!((stats.remote_failures, stats.remote_skipped), (1, 100));
    assert!(!vault.flush_remote(Duration::from_millis(10)), "uploads hang, and nobody waits for them");
    assert!(asked.load(Ordering::SeqCst) <= 2, "one question, one upload");
    // Dropping the vault does not wait either.
    let start = Instant::now();
    drop(vault);
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_remote_that_fails_is_asked_again_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let works = Arc::new(AtomicUsize::new(0));
    let switch = Arc::clone(&works);
    let (remote, asked) = odd(move |_| match switch.load(Ordering::SeqCst) {
        0 => Err(RemoteError::Refused { status: 503 }),
        _ => Ok(None),
    });
    let remote = RemoteOptions { retry_after: Duration::from_millis(80), upload: false, ..remote };
    let vault = Vault::open(options(folder.path()).remote(remote)).unwrap();
    for _ in 0..20 {
        assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    works.store(1, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..20 {
        assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 21);
    assert_eq!((vault.stats().remote_failures, vault.stats().remote_misses), (1, 20));
}

#[test]
fn a_remote_that_panics_is_one_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let (remote, _) = odd(|_| std::panic::resume_unwind(Box::new("quietly")));
    let vault = Vault::open(options(folder.path()).remote(remote)).unwrap();
    let got = vault.get_or_build(&key(1), || Ok::<_, Infallible>(plan(1))).unwrap();
    assert_eq!((got.source, vault.stats().remote_failures), (Source::Built, 1));
}

#[test]
fn uploads_that_are_refused_do_not_stop_reading() {
    let folder = tempfile::tempdir().unwrap();
    let (remote, asked) = odd(|within| match within > Duration::from_secs(5) {
        true => Err(RemoteError::Refused { status: 405 }), // uploads have the longer time
        false => Ok(None),
    });
    let vault = Vault::open(options(folder.path()).remote(remote)).unwrap();
    for n in 0..10 {
        vault.get_or_build(&key(n), || Ok::<_, Infallible>(plan(n))).unwrap();
        assert!(vault.flush_remote(Duration::from_secs(10)));
    }
    let stats = vault.stats();
    assert_eq!((stats.remote_misses, stats.upload_failures, stats.uploads_dropped), (10, 1, 9));
    assert_eq!(asked.load(Ordering::SeqCst), 11);
}

#[test]
fn the_environment_names_a_remote() {
    let (remote, here, secret) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(secret.path(), b"0123456789abcdef0123\n").unwrap();
    let vars = |extra: Vec<(&'static str, std::ffi::OsString)>| {
        let location = remote.path().as_os_str().to_owned();
        VaultOptions::in_folder(here.path()).durable(false).environment(move |name| match name {
            "QKVAULT_REMOTE" => Some(location.clone()),
            _ => extra.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone()),
        })
    };
    let sealed =
        vars(vec![("QKVAULT_REMOTE_SEAL_FILE", secret.path().into()), ("QKVAULT_REMOTE_DEADLINE_MS", "700".into())]);
    assert_eq!(sealed.resolve().unwrap().remote.unwrap().deadline, Duration::from_millis(700));
    let vault = Vault::open(sealed).unwrap();
    vault.put(&key(1), plan(1)).unwrap();
    assert!(vault.flush_remote(Duration::from_secs(20)) && vault.stats().uploads == 1);
    for bad in [
        ("QKVAULT_REMOTE_SEAL_FILE", "/no/such/file"),
        ("QKVAULT_REMOTE_DEADLINE_MS", "soon"),
        ("QKVAULT_REMOTE", "https://user:password@host/"),
    ] {
        let options = VaultOptions::in_folder(here.path()).environment(move |name| match name {
            _ if name == bad.0 => Some(bad.1.into()),
            "QKVAULT_REMOTE" => Some("/remote".into()),
            _ => None,
        });
        let error = Vault::open(options).unwrap_err();
        assert!(matches!(error, OpenError::Remote { .. } | OpenError::Option(_)), "{error}");
    }
}

/// A store that takes a while for every key, and counts.
struct Slow {
    asked: Arc<AtomicUsize>,
    takes: Duration,
    has: Vec<Key>,
}

impl Remote for Slow {
    fn location(&self) -> String {
        "slow".to_owned()
    }

    fn fetch(&self, key: &Key, _: Duration) -> Result<Option<Vec<u8>>, RemoteError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.takes);
        Ok(self.has.contains(key).then(|| file(key, plan(1))))
    }

    fn store(&self, _: &Key, _: &[u8], _: Duration) -> Result<(), RemoteError> {
        Ok(())
    }
}

/// Sixteen keys, one after the other, once cost sixteen times the wait.
#[test]
fn many_keys_cost_one_wait_for_a_slow_remote() {
    let takes = Duration::from_millis(300);
    let asked = Arc::new(AtomicUsize::new(0));
    let slow = Slow { asked: Arc::clone(&asked), takes, has: vec![key(3), key(17)] };
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path()).remote(RemoteOptions { deadline: 20 * takes, ..RemoteOptions::new(slow) });
    let vault = Vault::open(options).unwrap();
    let keys: Vec<Key> = (0..20).map(key).collect();
    let started = Instant::now();
    assert_eq!(vault.fetch(&keys), [key(3), key(17)]);
    assert!(started.elapsed() < 10 * takes, "{:?}", started.elapsed());
    assert_eq!(asked.load(Ordering::SeqCst), 20);
    // What it had is here now, and nobody is asked for it; nor for anything by the local handle.
    let local = vault.local();
    assert!(matches!(local.get(&key(3)), Lookup::Hit(_)) && file_of(folder.path(), &key(17)).exists());
    assert!(matches!(local.get(&key(4)), Lookup::Absent) && local.fetch(&keys).is_empty());
    assert_eq!(
        local.for_library("9.27.0").get_or_build(&key(5), || Ok::<_, Infallible>(plan(5))).unwrap().source,
        Source::Built
    );
    assert_eq!(asked.load(Ordering::SeqCst), 20);
    let stats = vault.stats();
    assert_eq!((stats.hits_remote, stats.remote_misses, stats.remote_failures), (2, 18, 0));
}

#[test]
fn many_keys_of_a_remote_that_is_too_slow_cost_one_deadline_and_one_failure() {
    let slow = Slow { asked: Arc::default(), takes: Duration::from_secs(3), has: vec![] };
    let folder = tempfile::tempdir().unwrap();
    let deadline = Duration::from_millis(50);
    let options = options(folder.path()).remote(RemoteOptions { deadline, ..RemoteOptions::new(slow) });
    let vault = Vault::open(options).unwrap();
    let keys: Vec<Key> = (0..20).map(key).collect();
    let started = Instant::now();
    assert!(vault.fetch(&keys).is_empty());
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(vault.fetch(&keys).is_empty());
    assert_eq!((vault.stats().remote_failures, vault.stats().remote_skipped), (1, 1), "then it is left alone");
}

/// A store of a program, whose address and errors have secrets.
struct Leaky;

impl Remote for Leaky {
    fn location(&self) -> String {
        "https://user:hush@store.example/plans?token=hush#hush".to_owned()
    }

    fn fetch(&self, _: &Key, _: Duration) -> Result<Option<Vec<u8>>, RemoteError> {
        let detail = "GET https://user:hush@store.example/plans/x?sig=hush failed".to_owned();
        Err(RemoteError::Unreachable { detail })
    }

    fn store(&self, key: &Key, _: &[u8], within: Duration) -> Result<(), RemoteError> {
        self.fetch(key, within).map(drop)
    }
}

#[test]
fn audit_9_nothing_that_a_vault_tells_has_the_secrets_of_an_address() {
    let here = tempfile::tempdir().unwrap();
    let remote = RemoteOptions::new(Leaky);
    let vault = Vault::open(options(here.path()).remote(remote.clone())).unwrap();
    assert!(vault.remote_trouble().is_none());
    assert!(matches!(vault.get(&key(1)), Lookup::Absent));
    let settings = vault.settings().remote.as_ref().unwrap();
    let strict = Vault::open(options(here.path()).remote(remote.clone()).require_seal(true)).unwrap_err();
    let refused = |location: &'static str| {
        let options = options(here.path()).environment(move |name| (name == "QKVAULT_REMOTE").then(|| location.into()));
        Vault::open(options).unwrap_err()
    };
    let wrong = refused("https://user:hush@store.example/plans?token=hush#hush");
    let unknown = refused("gopher://user:hush@store.example/plans?token=hush");
    let told = [
        format!("{remote:?} {:?}", RemoteOptions::new(FolderRemote::new("u:hush@store.example/plans", true))),
        format!("{vault:?}"),
        format!("{} {settings:?}", settings.location),
        vault.remote_trouble().unwrap(),
        format!("{strict} {strict:?}"),
        format!("{wrong} {wrong:?}"),
        format!("{unknown} {unknown:?}"),
    ];
    for text in told {
        assert!(text.contains("store.example/plans") && !text.contains("hush"), "{text}");
    }
}

/// A pipe in the place of an entry kept a thread for ever.
#[cfg(unix)]
#[test]
fn a_pipe_in_a_remote_folder_is_no_entry_and_nothing_waits_for_it() {
    let store = tempfile::tempdir().unwrap();
    let pipe = store.path().join(remote_name(&key(1)));
    std::fs::create_dir_all(pipe.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg("-m").arg("600").arg(&pipe).status();
    if !made.is_ok_and(|status| status.success()) {
        return qkvault_skip::skip(qkvault_skip::Need::Faults, "mkfifo is there");
    }
    let remote = FolderRemote::new(store.path(), false);
    let error = remote.fetch(&key(1), Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("no regular file"), "{error}");
}

#[test]
fn a_vault_that_requires_a_seal_takes_no_remote_without_one() {
    let here = tempfile::tempdir().unwrap();
    let unsealed = RemoteOptions::new(FolderRemote::new(here.path(), false));
    let error = Vault::open(options(here.path()).require_seal(true).remote(unsealed.clone())).unwrap_err();
    assert!(error.to_string().contains("QKVAULT_REMOTE_SEAL_FILE"), "{error}");
    let sealed = RemoteOptions { seal: Some(SealKey::new([1; 32])), ..unsealed };
    let vault = Vault::open(options(here.path()).require_seal(true).remote(sealed)).unwrap();
    assert!(vault.settings().require_seal);
    let mut pack = Vec::new();
    vault.pack(|_| true, &PackOptions::default(), &mut pack).unwrap();
    let error = vault.unpack(&pack[..], |_| true, &UnpackOptions::default()).unwrap_err();
    assert!(matches!(error, PackError::SealRequired), "{error}");
}
