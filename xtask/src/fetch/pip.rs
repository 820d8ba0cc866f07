//! Runs the first pip found, and turns its output into packages or one error.

use std::io::{self, BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::pins::{Parcel, Wheel};
use super::{FetchError, FetchOptions};
use crate::ui;

/// The ways to start pip, in order.
const PIPS: &[&[&str]] =
    &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"], &["uv", "tool", "run", "pip"]];

/// One wheel to get.
pub(crate) struct Want<'a> {
    /// The parcel that needs the wheel.
    pub(crate) parcel: &'a Parcel,
    /// The wheel.
    pub(crate) wheel: &'a Wheel,
    /// The folder for the file.
    pub(crate) dir: &'a Path,
    /// The folder of the unpacked parcel, for the error.
    pub(crate) folder: &'a Path,
}

/// Downloads a wheel with the first pip that can be started.
pub(crate) fn get(want: &Want<'_>, options: &FetchOptions) -> Result<(), FetchError> {
    let Want { parcel: _, wheel, dir, folder: _ } = want;
    let list = dir.join("requirements.txt");
    let line = format!("{}=={} --hash=sha256:{}\n", wheel.name, wheel.version, wheel.sha256);
    std::fs::write(&list, line).map_err(|cause| FetchError::io("write", &list, cause))?;
    download(first()?, want, &list, options)
}

/// The first pip that can be started.
fn first() -> Result<&'static [&'static str], FetchError> {
    let mut tried = Vec::new();
    for pip in PIPS {
        match present(pip) {
            Ok(()) => return Ok(pip),
            Err(reason) => tried.push(format!("{}: {reason}", pip.join(" "))),
        }
    }
    Err(FetchError::NoPip { tried })
}

/// A package that pip would install, from its report.
#[derive(Debug, Deserialize)]
pub(crate) struct Resolved {
    pub(crate) download_info: DownloadInfo,
    pub(crate) metadata: PackageMetadata,
}

#[derive(Debug, Deserialize)]
pub(crate) struct DownloadInfo {
    pub(crate) url: String,
    pub(crate) archive_info: ArchiveInfo,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ArchiveInfo {
    pub(crate) hashes: ArchiveHashes,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ArchiveHashes {
    pub(crate) sha256: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct PackageMetadata {
    pub(crate) name: String,
    pub(crate) version: String,
    #[serde(default)]
    pub(crate) requires_dist: Vec<String>,
}

#[derive(Deserialize)]
struct InstallReport {
    install: Vec<Resolved>,
}

/// The packages that pip would install for these requirements on a version of Python, without what they require.
pub(crate) fn resolved(
    requirements: &[String],
    python: &str,
    options: &FetchOptions,
) -> Result<Vec<Resolved>, FetchError> {
    let pip = first()?;
    let mut command = Command::new(pip[0]);
    command.args(&pip[1..]).args(["install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]);
    command.args(["--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--report", "-"]);
    // Another version of Python needs a target, which nothing is written to.
    command.args(["--python-version", python, "--target"]).arg(std::env::temp_dir().join("qkvault-dry-run"));
    if let Some(links) = &options.find_links {
        command.arg("--no-index").arg("--find-links").arg(links);
    }
    let done = command.arg("--").args(requirements).stdin(Stdio::null()).output();
    let done = done.map_err(|error| FetchError::NoPip { tried: vec![format!("{}: {error}", pip.join(" "))] })?;
    let refused = |reason: String| FetchError::Unresolved { requirements: requirements.join(", "), reason };
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let complaints: Vec<String> = said.lines().map(|line| line.trim().to_owned()).collect();
        // The first error says what; the last one where to read about such errors.
        let first =
            complaints.iter().find_map(|line| Some(line.strip_prefix("ERROR: ")?.trim_end_matches('.').to_owned()));
        let reason = unreachable(&complaints).or(first).or_else(|| last_line(&said));
        return Err(refused(reason.unwrap_or_else(|| done.status.to_string())));
    }
    let report: InstallReport = serde_json::from_slice(&done.stdout)
        .map_err(|error| refused(format!("its report has another form: {error}")))?;
    Ok(report.install)
}

fn present(pip: &[&str]) -> Result<(), String> {
    let done = Command::new(pip[0]).args(&pip[1..]).arg("--version").stdin(Stdio::null()).output();
    match done {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(last_line(&String::from_utf8_lossy(&done.stderr)).unwrap_or_else(|| done.status.to_string())),
        Err(error) => Err(error.to_string()),
    }
}

fn download(pip: &[&str], want: &Want<'_>, list: &Path, options: &FetchOptions) -> Result<(), FetchError> {
    let mut command = Command::new(pip[0]);
    command.args(&pip[1..]).args(["download", "--no-deps", "--require-hashes", "--only-binary=:all:"]);
    command.args(["--disable-pip-version-check", "--no-input"]);
    if let Some(python) = &want.wheel.python {
        command.args(["--python-version", python]);
    }
    if !ui::watched() {
        command.args(["--progress-bar", "off", "--quiet"]);
    }
    if let Some(links) = &options.find_links {
        command.arg("--no-index").arg("--find-links").arg(links);
    }
    command.arg("--dest").arg(want.dir).arg("--requirement").arg(list);
    // pip's standard output goes to standard error; its errors are collected.
    let err = io::stderr().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::null(), Stdio::from);
    command.stdin(Stdio::null()).stdout(err).stderr(Stdio::piped());

    let start = |error: io::Error| FetchError::NoPip { tried: vec![format!("{}: {error}", pip.join(" "))] };
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
    Err(refusal(pip, want, &complaints))
}

/// Turns pip's error output into one error.
fn refusal(pip: &[&str], want: &Want<'_>, complaints: &[String]) -> FetchError {
    let Want { parcel, wheel, dir: _, folder } = want;
    let whole = complaints.join("\n");
    if whole.to_lowercase().contains("do not match the hashes") {
        let got = complaints.iter().find_map(|line| line.strip_prefix("Got ")).map(str::trim);
        return FetchError::WrongHash {
            file: wheel.file.clone(),
            expected: wheel.sha256.clone(),
            found: got.map_or_else(|| "is another".to_owned(), |got| format!("is {got}")),
        };
    }
    if whole.contains("No space left on device") {
        return FetchError::io("write to", folder, io::ErrorKind::StorageFull.into());
    }
    FetchError::Download {
        command: format!("{} download", pip.join(" ")),
        what: format!("{} {} for {}", wheel.name, wheel.version, parcel.title),
        reason: unreachable(complaints).or_else(|| last_line(&whole)).unwrap_or_else(|| "it gave no reason".to_owned()),
        folder: (*folder).to_owned(),
    }
}

/// Why pip could not reach the index, if that is its error. Its last line then only states that it found nothing.
fn unreachable(complaints: &[String]) -> Option<String> {
    let line = complaints.iter().rfind(|line| line.contains("connection broken by"))?;
    let reason = line.split_once("connection broken by")?.1;
    // `'NewConnectionError('<… object at 0x…>: Failed to …: [Errno -3] Temporary failure in name resolution')':
    // /simple/…/`
    let reason = reason.split_once(">: ").map_or(reason, |(_, reason)| reason);
    let reason = reason.split_once("')").map_or(reason, |(reason, _)| reason);
    Some(format!("the index cannot be reached: {}", reason.trim()))
}

fn last_line(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.trim_start_matches("ERROR: ").trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use qkvault_base::LibrarySet;

    use super::super::pins::Pins;
    use super::*;

    fn refused(complaints: &[&str]) -> FetchError {
        let parcel =
            Pins::read(None).and_then(|pins| pins.cudnn(Some("9.19.0.56"), LibrarySet::Slim)).expect("it is listed");
        let complaints = complaints.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let folder = Path::new("/cache/9.19.0.56-slim");
        let want = Want { parcel: &parcel, wheel: &parcel.wheels[1], dir: folder, folder };
        refusal(&["pip"], &want, &complaints)
    }

    #[test]
    fn a_missing_network_is_reported_as_the_reason() {
        let error = refused(&[
            "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.\
             connection.HTTPSConnection object at 0x7f17>: Failed to establish a new connection: [Errno -3] Temporary failure in name \
             resolution')': /simple/nvidia-cudnn-jit-cu13/",
            "ERROR: Could not find a version that satisfies the requirement nvidia-cudnn-jit-cu13==9.19.0.56 (from versions: none)",
            "ERROR: No matching distribution found for nvidia-cudnn-jit-cu13==9.19.0.56",
        ]);
        let FetchError::Download { reason, .. } = error else { panic!("{error:?}") };
        let expected = "the index cannot be reached: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution";
        assert_eq!(reason, expected);
    }

    #[test]
    fn another_error_of_pip_is_passed_on() {
        let error = refused(&["ERROR: Could not find a version", "ERROR: No matching distribution found for x==1."]);
        assert!(
            matches!(&error, FetchError::Download { reason, .. } if reason == "No matching distribution found for x==1"),
            "{error:?}"
        );
        assert!(matches!(refused(&[]), FetchError::Download { .. }));
    }

    #[test]
    fn a_wrong_hash_names_the_wheel_it_was_for() {
        let error = refused(&[
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated …",
            "nvidia-cuda-nvrtc==13.0.88 from …:",
            "Expected sha256 ad9b6d2e",
            "Got        0000",
        ]);
        let FetchError::WrongHash { file, expected, found } = error else { panic!("{error:?}") };
        assert!(file.starts_with("nvidia_cuda_nvrtc-13.0.88"), "{file}");
        assert_eq!((expected.len(), found.as_str()), (64, "is 0000"));
    }

    #[test]
    fn a_full_disk_is_reported_as_the_reason() {
        let error =
            refused(&["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"]);
        assert!(error.to_string().contains("free some space"), "{error}");
    }
}
