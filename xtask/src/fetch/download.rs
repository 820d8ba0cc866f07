//! Gets wheels with pip, from wherever pip is configured to get them, and checks their hashes.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest as _, Sha256};

use super::pins::{Parcel, Wheel};
use super::{Error, Options};
use crate::ui;

/// The ways to start pip, in order.
const PIPS: &[&[&str]] =
    &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"], &["uv", "tool", "run", "pip"]];

/// Puts every wheel of a parcel into `dir`; those that are there with the right hash are kept.
pub(crate) fn wheels(parcel: &Parcel, dir: &Path, folder: &Path, options: &Options) -> Result<Vec<PathBuf>, Error> {
    std::fs::create_dir_all(dir).map_err(|source| Error::io("create", dir, source))?;
    let mut wanted = Vec::new();
    for wheel in &parcel.wheels {
        let file = dir.join(&wheel.file);
        match file.exists().then(|| check(wheel, &file)) {
            Some(Ok(())) => {}
            // Left by an earlier run that was cut short, or by another list.
            Some(Err(_)) => {
                std::fs::remove_file(&file).map_err(|source| Error::io("remove", &file, source))?;
                wanted.push(wheel);
            }
            None => wanted.push(wheel),
        }
    }
    if !wanted.is_empty() {
        let bytes = wanted.iter().map(|wheel| wheel.bytes).sum();
        ui::say(&format!("fetching {}: {} to download", parcel.title, ui::size(bytes)));
        pip(parcel, &wanted, dir, folder, options)?;
    }
    for wheel in &wanted {
        let file = dir.join(&wheel.file);
        if let Err(error) = check(wheel, &file) {
            let _ = std::fs::remove_file(&file);
            return Err(error);
        }
    }
    Ok(parcel.wheels.iter().map(|wheel| dir.join(&wheel.file)).collect())
}

/// Whether a file is the one that is pinned.
fn check(wheel: &Wheel, file: &Path) -> Result<(), Error> {
    let read = |source| Error::io("read", file, source);
    let mut input = File::open(file).map_err(read)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match input.read(&mut buffer).map_err(read)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    let found = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    if found == wheel.sha256 {
        return Ok(());
    }
    Err(Error::WrongHash { file: wheel.file.clone(), expected: wheel.sha256.clone(), found: format!("is {found}") })
}

/// Runs the first pip that can be started.
fn pip(parcel: &Parcel, wheels: &[&Wheel], dir: &Path, folder: &Path, options: &Options) -> Result<(), Error> {
    let list = dir.join("requirements.txt");
    let lines =
        wheels.iter().map(|wheel| format!("{}=={} --hash=sha256:{}\n", wheel.name, wheel.version, wheel.sha256));
    std::fs::write(&list, lines.collect::<String>()).map_err(|source| Error::io("write", &list, source))?;
    let mut tried = Vec::new();
    for pip in PIPS {
        match present(pip) {
            Ok(()) => return download(pip, parcel, wheels, &list, dir, folder, options),
            Err(reason) => tried.push(format!("{}: {reason}", pip.join(" "))),
        }
    }
    Err(Error::NoPip { tried })
}

fn present(pip: &[&str]) -> Result<(), String> {
    let done = Command::new(pip[0]).args(&pip[1..]).arg("--version").stdin(Stdio::null()).output();
    match done {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(last_line(&String::from_utf8_lossy(&done.stderr)).unwrap_or_else(|| done.status.to_string())),
        Err(error) => Err(error.to_string()),
    }
}

fn download(
    pip: &[&str],
    parcel: &Parcel,
    wheels: &[&Wheel],
    list: &Path,
    dir: &Path,
    folder: &Path,
    options: &Options,
) -> Result<(), Error> {
    let mut command = Command::new(pip[0]);
    command.args(&pip[1..]).args(["download", "--no-deps", "--require-hashes", "--only-binary=:all:"]);
    command.args(["--disable-pip-version-check", "--no-input"]);
    if !ui::watched() {
        command.args(["--progress-bar", "off", "--quiet"]);
    }
    if let Some(links) = &options.find_links {
        command.arg("--no-index").arg("--find-links").arg(links);
    }
    command.arg("--dest").arg(dir).arg("--requirement").arg(list);
    // What pip tells goes where our own lines go; what it complains about is kept for the error.
    let err = io::stderr().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::null(), Stdio::from);
    command.stdin(Stdio::null()).stdout(err).stderr(Stdio::piped());

    let start = |error: io::Error| Error::NoPip { tried: vec![format!("{}: {error}", pip.join(" "))] };
    let mut child = command.spawn().map_err(start)?;
    let mut complaints = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let line = line.trim().to_owned();
            if !line.is_empty() {
                complaints.push(line);
            }
        }
    }
    let status = child.wait().map_err(start)?;
    if status.success() {
        return Ok(());
    }
    Err(refusal(pip, parcel, wheels, &complaints, folder))
}

/// Makes one error of what pip complained about.
fn refusal(pip: &[&str], parcel: &Parcel, wheels: &[&Wheel], complaints: &[String], folder: &Path) -> Error {
    let whole = complaints.join("\n");
    if whole.to_lowercase().contains("do not match the hashes") {
        // pip lists what it got after the word "Got", beside the wheel that it was for.
        let got = complaints.iter().find_map(|line| line.strip_prefix("Got ")).map(str::trim);
        let expected = complaints.iter().find_map(|line| line.strip_prefix("Expected sha256 ")).map(str::trim);
        let wheel = wheels.iter().find(|wheel| expected.is_none_or(|hash| wheel.sha256 == hash));
        return Error::WrongHash {
            file: wheel.map_or_else(|| parcel.title.clone(), |wheel| wheel.file.clone()),
            expected: expected.unwrap_or("another").to_owned(),
            found: got.map_or_else(|| "is not".to_owned(), |got| format!("is {got}")),
        };
    }
    if whole.contains("No space left on device") {
        return Error::io("write to", folder, io::ErrorKind::StorageFull.into());
    }
    Error::Download {
        command: format!("{} download", pip.join(" ")),
        what: parcel.title.clone(),
        reason: last_line(&whole).unwrap_or_else(|| "it gave no reason".to_owned()),
        folder: folder.to_owned(),
    }
}

fn last_line(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.trim_start_matches("ERROR: ").trim_end_matches('.').to_owned())
}
