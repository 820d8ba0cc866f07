//! Clients that connect and say little: they take nobody's place, and do not hold up the end.

mod kit;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kit::Server;
use qkvault_server::config::ServerLimits;
use qkvault_server::connections::ConnectionBounds;
use serde_json::json;

/// The program, as a process of its own.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Process {
    /// Starts the program with a limit of its open descriptors.
    fn start(descriptors: u32, options: &[&str]) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")]);
        command.arg(env!("CARGO_BIN_EXE_server")).args(["--cpu", "--model", "tiny", "--listen", "127.0.0.1:0"]);
        let mut child = command.args(options).stdout(Stdio::piped()).spawn().expect("starts");
        let mut output = BufReader::new(child.stdout.take().expect("an output"));
        let mut said = String::new();
        output.read_line(&mut said).expect("text");
        let at = said.split_whitespace().find_map(|word| word.strip_prefix("http://"));
        let address = at.and_then(|at| at.trim_end_matches(':').parse().ok()).unwrap_or_else(|| panic!("{said}"));
        Process { child, output, address }
    }

    fn open(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(10)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("is set");
        stream.write_all(text.as_bytes()).expect("is written");
        stream
    }

    /// Asks on a connection of its own, and returns the answer.
    fn ask(&self, head: &str, body: &str) -> String {
        let request = format!("{head}host: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        rest(&self.open(&request))
    }

    fn terminate(&self) {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().expect("starts");
        assert!(status.success());
    }

    /// Waits for the end, so long at most.
    fn ends_within(&mut self, most: Duration) -> (ExitStatus, String) {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("is a child") {
                break status;
            }
            assert!(begin.elapsed() < most, "it has not ended after {most:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("text");
        (status, said)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rest(mut stream: &TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "the server keeps the connection: {e}"),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

const HALF_HEAD: &str = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-le";
const HALF_BODY: &str = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"prompt\": ";
const GENERATE: &str = "POST /generate HTTP/1.1\r\n";

#[test]
fn audit_10_sixty_idle_connections_at_forty_descriptors_block_nobody() {
    let server = Process::start(40, &["--read-timeout", "600"]);
    let begin = Instant::now();
    let mut idle: Vec<_> = (0..60).map(|n| server.open(["", HALF_HEAD, "G"][n % 3])).collect();
    for round in 0..3 {
        let health = server.ask("GET /health HTTP/1.1\r\n", "");
        assert!(health.starts_with("HTTP/1.1 200"), "{health}");
        let answer = server.ask(GENERATE, &json!({ "prompt": [1, 2], "max_new": 4 }).to_string());
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("tokens"), "round {round}: {answer}");
        idle.extend((0..20).map(|_| server.open(HALF_HEAD)));
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    drop(idle);
}

#[test]
fn audit_10_requests_in_work_keep_their_places_and_one_more_is_told() {
    let server = Process::start(256, &["--connections", "4", "--read-timeout", "600"]);
    // Their heads are complete, so they are requests; their bodies do not come.
    let busy: Vec<_> = (0..4).map(|_| server.open(HALF_BODY)).collect();
    std::thread::sleep(Duration::from_millis(500));
    let refused = rest(&server.open("GET /health HTTP/1.1\r\nhost: x\r\n\r\n"));
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after"), "{refused}");
    let rest_of_one = format!("{:<89}", "[1, 2], \"max_new\": 4}");
    for mut stream in busy {
        stream.write_all(rest_of_one.as_bytes()).expect("is written");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("an answer");
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    }
    assert!(server.ask("GET /health HTTP/1.1\r\n", "").starts_with("HTTP/1.1 200"), "there are places again");
}

#[test]
fn audit_10_the_server_ends_on_sigterm_while_half_requests_are_open() {
    let mut server = Process::start(256, &["--read-timeout", "600", "--grace", "60"]);
    let silent = server.open("");
    let half_head = server.open(HALF_HEAD);
    let half_body = server.open(HALF_BODY);
    let kept = server.open("GET /health HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut second_half = server.open("GET /health HTTP/1.1\r\nhost: x\r\n\r\n");
    let asked = json!({ "prompt": [1, 2], "max_new": 200, "stream": true }).to_string();
    let running = server.open(&format!("{GENERATE}host: x\r\ncontent-length: {}\r\n\r\n{asked}", asked.len()));
    let mut running_lines = BufReader::new(&running).lines();
    let token = running_lines.find(|line| line.as_ref().expect("text").contains("token"));
    assert!(token.is_some());
    second_half.write_all(HALF_HEAD.as_bytes()).expect("is written");
    std::thread::sleep(Duration::from_millis(300));
    server.terminate();
    // Far less than the times that a request and the requests in work have.
    let (status, said) = server.ends_within(Duration::from_secs(15));
    assert!(status.success() && said.contains("stopped: every request came to its end"), "{status}: {said}");
    let last = running_lines.map(|line| line.expect("text")).filter(|line| line.starts_with("data")).last();
    assert!(last.is_some_and(|line| line.contains("done")), "the request that ran has its end");
    let answer = rest(&half_body);
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("stopping"), "{answer}");
    for stream in [silent, half_head] {
        assert_eq!(rest(&stream), "");
    }
    for stream in [kept, second_half] {
        assert!(rest(&stream).starts_with("HTTP/1.1 200"));
    }
}

#[test]
fn audit_10_halves_of_requests_end_in_their_time() {
    let server = Process::start(256, &["--read-timeout", "1"]);
    let begin = Instant::now();
    let halves = [server.open(""), server.open(HALF_HEAD), server.open(HALF_BODY)];
    // A byte now and then is no more time.
    let mut slow = halves[2].try_clone().expect("a clone");
    let drip = std::thread::spawn(move || {
        while slow.write_all(b" ").is_ok() && begin.elapsed() < Duration::from_secs(15) {
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let answers = halves.each_ref().map(rest);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert!(answers[2].starts_with("HTTP/1.1 408") && answers[2].contains("within 1s"), "{answers:?}");
    assert!(answers[0].is_empty(), "{answers:?}");
    drip.join().expect("no panic");
    assert!(server.ask("GET /health HTTP/1.1\r\n", "").starts_with("HTTP/1.1 200"));
}

#[test]
fn audit_10_a_request_that_runs_longer_than_the_grace_is_cut_and_counted() {
    let grace = Duration::from_millis(200);
    let mut server =
        Server::slow_within(ServerLimits::SMALL, ConnectionBounds { grace, ..ConnectionBounds::default() });
    // 220 tokens of at least 4 ms.
    let mut running = server.stream(&kit::prompt(3, 10), 220);
    assert!(running.next().expect("an event")["token"].is_u64());
    let begin = Instant::now();
    server.stop();
    assert_eq!(server.ended().expect("no failure"), 1);
    assert!((grace..Duration::from_secs(5)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    assert!(running.all(|event| event["done"].is_null()), "it had no end");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let ran = Command::new(env!("CARGO_BIN_EXE_server")).args(["--cpu", "--tokens", "4"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains("a step of 4 tokens"), "{said}");
}
