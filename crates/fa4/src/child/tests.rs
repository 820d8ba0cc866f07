//! Children with real processes of Python: what they are given, what ends them, and what stays.

use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::compiler::FILES;

const NONE: &[&Path] = &[];

fn python() -> Python {
    Python::first(&crate::PYTHONS.map(str::to_owned)).expect("a Python, which fetching needs too")
}

fn limits(milliseconds: u64) -> ChildLimits {
    ChildLimits { time: Duration::from_millis(milliseconds), memory: 2 << 30, answer: 1 << 16 }
}

/// Runs a program behind the beginning of the compiler's own, up to its packages.
fn run(program: &str, limits: ChildLimits) -> (ChildRoom, Result<String, Ended>) {
    let own = FILES[0].1.split("if __name__").next().expect("the functions").to_owned();
    let begin = "bounded(*map(int, sys.argv[1:3]))\nrequest = request_while_wanted()\n";
    let room = ChildRoom::with(&[("program.py", &format!("{own}{begin}{program}"))]).expect("a folder");
    let answer = room.run(&python(), "program.py", NONE, "[1, 2]", limits);
    (room, answer)
}

const TELL: &str = "
def answer(value):
    with open(os.path.join(HERE, 'answer.json'), 'w') as file:
        json.dump(value, file)
";

#[test]
fn a_child_gets_its_request_and_nothing_of_the_callers_environment() {
    let (room, answer) = run(
        &format!("{TELL}answer([request, dict(os.environ), os.getcwd(), HERE, sys.path, sys.flags.isolated])"),
        limits(20_000),
    );
    let answer: serde_json::Value = serde_json::from_str(&answer.expect("an answer")).expect("JSON");
    let folder = room.folder.path().display().to_string();
    assert_eq!(answer[0], serde_json::json!([1, 2]));
    let mut names: Vec<&str> = answer[1].as_object().expect("variables").keys().map(String::as_str).collect();
    names.retain(|name| *name != "LC_CTYPE");
    assert_eq!(names, ["HOME", "LANG", "PATH", "TMPDIR"]);
    for place in [&answer[1]["HOME"], &answer[1]["TMPDIR"], &answer[2], &answer[3]] {
        assert_eq!(place.as_str(), Some(folder.as_str()));
    }
    assert_eq!(answer[5], 1);
    let mode = room.folder.path().metadata().expect("is there").mode();
    assert_eq!(mode & 0o77, 0, "others cannot enter: {mode:o}");
    drop(room);
    assert!(!Path::new(&folder).exists());
}

#[test]
fn a_child_that_takes_too_long_is_ended_with_what_it_started() {
    let program = "import subprocess\nsubprocess.Popen(['sleep', '60.25'])\nimport time\ntime.sleep(60)";
    let started = Instant::now();
    let (_, answer) = run(program, limits(1_500));
    let Err(Ended::Failed { status, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!(status, "it took too long and was ended");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let asleep = || {
        let processes = std::fs::read_dir("/proc").expect("processes").flatten();
        let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
        lines.into_iter().any(|line| line.starts_with(b"sleep\x0060.25"))
    };
    let until = Instant::now() + Duration::from_secs(10);
    while asleep() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!asleep(), "a child's child lives on");
}

#[test]
fn a_child_that_takes_too_much_memory_or_answers_too_long_fails_and_says_so() {
    let (_, answer) = run("held = bytearray(4 << 30)", limits(20_000));
    let Err(Ended::Failed { words, .. }) = answer else { panic!("{answer:?}") };
    assert!(words.contains("MemoryError"), "{words}");
    let (_, answer) = run(&format!("{TELL}answer('x' * (1 << 17))"), limits(20_000));
    let Err(Ended::Failed { status, .. }) = answer else { panic!("{answer:?}") };
    assert!(status.contains("more than 65536 bytes"), "{status}");
    let (_, answer) = run("raise ValueError('no\\nword')", limits(20_000));
    let Err(Ended::Failed { status, words }) = answer else { panic!("{answer:?}") };
    assert!(status.contains("exit status: 1") && words.ends_with("ValueError: no | word"), "{status}: {words}");
}

/// The process that is killed in the test below. It is another run of this test binary.
#[test]
#[ignore = "the other test starts it"]
fn waits_for_a_child() {
    let place = std::env::var_os("QKVAULT_TEST_CHILD").expect("the other test sets it");
    let tell = format!("open({:?}, 'w').write(HERE)\nimport time\ntime.sleep(600)", place.to_string_lossy());
    let _ = run(&tell, limits(600_000));
}

/// The audit's fourteenth fault: folders of the compiler stayed behind when a process was ended.
#[test]
fn audit_14_a_killed_process_leaves_neither_child_nor_folder() {
    let place = tempfile::tempdir().expect("a folder");
    let told = place.path().join("told");
    let mut process = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child::tests::waits_for_a_child", "--ignored"])
        .env("QKVAULT_TEST_CHILD", &told)
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(30);
        while !done() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    until("the child runs", &|| std::fs::read_to_string(&told).is_ok_and(|text| !text.is_empty()));
    let folder = PathBuf::from(std::fs::read_to_string(&told).expect("its folder"));
    assert!(folder.is_dir());
    process.kill().expect("is killed");
    process.wait().expect("ends");
    until("the folder goes", &|| !folder.exists());
}

#[test]
fn old_folders_of_this_user_are_swept_and_nothing_else() {
    let parent = tempfile::tempdir().expect("a folder");
    let make = |name: &str, age: Duration| {
        let path = parent.path().join(name);
        std::fs::create_dir(&path).expect("is made");
        std::fs::write(path.join("file"), "x").expect("is written");
        File::open(&path).expect("opens").set_modified(SystemTime::now() - age).expect("is set");
        path
    };
    let old = make("qkvault-fa4-old", STALE * 2);
    let kept = [make("qkvault-fa4-new", Duration::ZERO), make("other", STALE * 2)];
    let link = parent.path().join("qkvault-fa4-link");
    std::os::unix::fs::symlink(&kept[1], &link).expect("is made");
    sweep(parent.path());
    assert!(!old.exists() && kept.iter().all(|path| path.join("file").exists()) && link.exists());
}
