//! Unpacks libraries, headers and licences from wheels, under their names in the wheel.

use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use zip::ZipArchive;

use super::FetchError;
use super::manifest::FileEntry;
use super::pins::Wheel;

/// Unpacks one wheel into `into`, and returns the files written.
///
/// Only libraries, headers and licences are written, unless the `whole` wheel is wanted.
pub(crate) fn wheel(wheel: &Wheel, whole: bool, file: &Path, into: &Path) -> Result<Vec<FileEntry>, FetchError> {
    let broken = |reason: String| FetchError::Wheel { file: wheel.file.clone(), reason };
    let input = File::open(file).map_err(|cause| FetchError::io("read", file, cause))?;
    let mut archive = ZipArchive::new(io::BufReader::new(input)).map_err(|error| broken(error.to_string()))?;

    // Checks all names before writing anything.
    let mut members = Vec::new();
    let mut total = 0;
    for index in 0..archive.len() {
        let member = archive.by_index(index).map_err(|error| broken(error.to_string()))?;
        let name = member.name().map_err(|error| broken(error.to_string()))?;
        let path = plain(&name)
            .ok_or_else(|| broken(format!("it has a file '{name}', which is outside the wheel's folder")))?;
        if member.is_symlink() {
            return Err(broken(format!("it has a link, '{name}'")));
        }
        if member.is_file() && (whole || wanted(&path, &wheel.only)) {
            total += member.size();
            members.push((index, path));
        }
    }
    if members.is_empty() {
        return Err(broken("it has none of the files to unpack".to_owned()));
    }

    let bar = ProgressBar::new(total).with_style(style());
    bar.set_message(format!("unpacking {} {}", wheel.name, wheel.version));
    let mut written = Vec::new();
    for (index, path) in members {
        let member = archive.by_index(index).map_err(|error| broken(error.to_string()))?;
        let bytes = write(&mut bar.wrap_read(member), &into.join(&path)).map_err(|error| match error {
            // The archive's checksum does not match.
            FetchError::Io { cause, .. }
                if cause.kind() == io::ErrorKind::InvalidData || cause.kind() == io::ErrorKind::InvalidInput =>
            {
                broken(format!("'{}' is damaged: {cause}", path.display()))
            }
            other => other,
        })?;
        written.push(FileEntry { path: path.to_string_lossy().into_owned(), bytes });
    }
    bar.finish_and_clear();
    Ok(written)
}

/// Writes one file and syncs it to disk.
fn write(from: &mut impl io::Read, to: &Path) -> Result<u64, FetchError> {
    let failed = |cause| FetchError::io("write", to, cause);
    if let Some(dir) = to.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    let mut output = File::create_new(to).map_err(failed)?;
    let bytes = io::copy(from, &mut output).map_err(failed)?;
    output.sync_all().map_err(failed)?;
    Ok(bytes)
}

/// The path of a member, if it stays inside the target folder.
fn plain(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let stays = path.components().all(|component| matches!(component, Component::Normal(_)));
    (stays && !name.is_empty() && !name.contains('\\')).then(|| path.to_owned())
}

/// Whether to unpack a file: selected shared libraries, headers and licences.
fn wanted(path: &Path, only: &[String]) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_library = name.ends_with(".so") || name.contains(".so.");
    if is_library {
        return only.is_empty() || only.iter().any(|prefix| name.starts_with(prefix));
    }
    let is_header = name.ends_with(".h");
    let is_licence = name.to_lowercase().starts_with("licen") && path.to_string_lossy().contains(".dist-info/");
    is_header || is_licence
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} {bar:40} {decimal_bytes}/{decimal_total_bytes} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
