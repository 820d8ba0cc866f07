//! Reads the texts that options name: no more of them than a text has, whatever the file is.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context as _;
use qkvault_models::LARGEST_CONFIG;

/// Whether a file that an option names is standard input.
pub(super) fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The text of a file, or of standard input for `-`.
///
/// # Errors
///
/// The file cannot be read, is no text, or has more than [`LARGEST_CONFIG`] bytes.
pub(super) fn text(path: &Path) -> anyhow::Result<String> {
    let cannot = || format!("{} could not be read", name(path));
    let mut bytes = Vec::new();
    let file: Box<dyn Read> = match is_standard_input(path) {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(path).with_context(cannot)?),
    };
    // One byte more tells a file that is too long, also one whose size nobody knows before.
    file.take(LARGEST_CONFIG + 1).read_to_end(&mut bytes).with_context(cannot)?;
    let most = LARGEST_CONFIG;
    anyhow::ensure!(bytes.len() as u64 <= most, "{}: it has more than {most} bytes, and no such text has", cannot());
    String::from_utf8(bytes).map_err(|error| anyhow::anyhow!("it is no text in UTF-8: {error}")).with_context(cannot)
}

/// What a message calls a file that an option names.
pub(super) fn name(path: &Path) -> String {
    match is_standard_input(path) {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}
