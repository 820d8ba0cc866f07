//! A small HTTP server, run as a process of its own: it stores objects, or misbehaves as its folder tells it to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use super::child;

pub(crate) const TOKEN: &str = "a-token-for-tests";

/// A running server; ends with the value.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server on a folder. How it behaves is what the file `behave` there says.
pub(crate) fn start(folder: &Path, behave: &str) -> Server {
    std::fs::write(folder.join("behave"), behave).unwrap();
    from_output(child::job("serve", folder).spawn().unwrap(), "port=")
}

/// Waits for a server to tell its port after `mark`.
pub(crate) fn from_output(mut child: Child, mark: &str) -> Server {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port = loop {
        let line = lines.next().expect("the server starts").unwrap();
        if let Some((_, rest)) = line.split_once(mark) {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            break digits.parse().unwrap();
        }
    };
    // The rest of its output must go somewhere, or it stops when the pipe is full.
    std::thread::spawn(move || lines.for_each(drop));
    Server { child, port }
}

/// The job.
pub(crate) fn serve(folder: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("port={}", listener.local_addr().unwrap().port());
    std::io::stdout().flush().unwrap();
    for stream in listener.incoming() {
        let folder = folder.to_owned();
        std::thread::spawn(move || {
            // A client that hangs up is no failure of the server.
            let _ = answer(&folder, stream.unwrap());
        });
    }
}

fn answer(folder: &Path, mut stream: TcpStream) -> std::io::Result<()> {
    let behave = std::fs::read_to_string(folder.join("behave"))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let mut words = lines.first().map(String::as_str).unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let header = |name: &str| {
        lines.iter().find_map(|line| line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)))
    };
    let file = object(folder, path);
    let authorized = header("authorization").is_some_and(|(_, value)| value == format!("Bearer {TOKEN}"));
    match behave.as_str() {
        "hang" => std::thread::sleep(Duration::from_secs(3600)),
        "dribble" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")?;
            loop {
                stream.write_all(b"x")?;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        "close" => return Ok(()),
        "rubbish" => stream.write_all(b"\x93QKVE is not HTTP\r\n\r\n")?,
        "error" => reply(&mut stream, 500, b"boom")?,
        "redirect" => {
            stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        }
        "short" => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nConnection: close\r\n\r\nshort")?,
        "huge" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            let block = vec![0; 1 << 20];
            loop {
                stream.write_all(&block)?;
            }
        }
        "lies" => reply(&mut stream, 200, b"this is not an entry at all")?,
        _ if !authorized => reply(&mut stream, 401, b"")?,
        _ => match (method, file) {
            ("GET", Some(file)) => match std::fs::read(file) {
                Ok(bytes) => reply(&mut stream, 200, &bytes)?,
                Err(_) => reply(&mut stream, 404, b"")?,
            },
            ("PUT", Some(file)) => {
                let len = header("content-length").and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
                let mut bytes = Vec::new();
                reader.take(len).read_to_end(&mut bytes)?;
                std::fs::create_dir_all(file.parent().unwrap())?;
                std::fs::write(file, bytes)?;
                reply(&mut stream, 201, b"")?;
            }
            _ => reply(&mut stream, 400, b"")?,
        },
    }
    Ok(())
}

fn object(folder: &Path, path: &str) -> Option<PathBuf> {
    let path = path.strip_prefix("/store/")?;
    (!path.contains("..")).then(|| folder.join("objects").join(path))
}

fn reply(stream: &mut TcpStream, status: u16, body: &[u8]) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}
