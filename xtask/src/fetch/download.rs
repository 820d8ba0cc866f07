//! Downloads wheels and checks their hashes. Keeps the wheels of earlier runs.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::pins::{Parcel, Wheel};
use super::{FetchError, FetchOptions, pip};
use crate::ui;

/// Downloads every wheel of a parcel to `dir`, unless it is there with the right hash.
pub(crate) fn wheels(
    parcel: &Parcel,
    dir: &Path,
    folder: &Path,
    options: &FetchOptions,
) -> Result<Vec<PathBuf>, FetchError> {
    std::fs::create_dir_all(dir).map_err(|cause| FetchError::io("create", dir, cause))?;
    let mut wanted = Vec::new();
    for wheel in &parcel.wheels {
        let file = dir.join(&wheel.file);
        match file.exists().then(|| check(wheel, &file)) {
            Some(Ok(())) => {}
            // A file of an interrupted run or of another list.
            Some(Err(_)) => {
                std::fs::remove_file(&file).map_err(|cause| FetchError::io("remove", &file, cause))?;
                wanted.push(wheel);
            }
            None => wanted.push(wheel),
        }
    }
    if !wanted.is_empty() {
        let bytes = wanted.iter().map(|wheel| wheel.bytes).sum();
        // Sizes of wheels that are not pinned are not known before.
        let size = if bytes == 0 { String::new() } else { format!(": {} to download", ui::size(bytes)) };
        ui::say(&format!("fetching {}{size}", parcel.title));
    }
    // One at a time: an interrupted pip keeps none of several files.
    for wheel in &wanted {
        pip::get(&pip::Want { parcel, wheel, dir, folder }, options)?;
        let file = dir.join(&wheel.file);
        if let Err(error) = check(wheel, &file) {
            let _ = std::fs::remove_file(&file);
            return Err(error);
        }
    }
    Ok(parcel.wheels.iter().map(|wheel| dir.join(&wheel.file)).collect())
}

/// Checks that a file has the pinned hash.
fn check(wheel: &Wheel, file: &Path) -> Result<(), FetchError> {
    let read = |cause| FetchError::io("read", file, cause);
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
    Err(FetchError::WrongHash {
        file: wheel.file.clone(),
        expected: wheel.sha256.clone(),
        found: format!("is {found}"),
    })
}
