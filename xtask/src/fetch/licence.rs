//! NVIDIA's licence: the user accepts it once, and a file in the cache folder records it.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::PathBuf;

use super::Error;
use crate::ui;

/// The address of the licence.
pub(crate) const URL: &str = "https://docs.nvidia.com/deeplearning/cudnn/latest/reference/eula.html";

/// The variable that accepts the licence with the value 1.
const VARIABLE: &str = "QKVAULT_ACCEPT_NVIDIA_LICENSE";

/// Checks that the licence is accepted: by option, by variable, in an earlier run, or at a prompt.
pub(crate) fn accepted(by_option: bool) -> Result<(), Error> {
    let record = record();
    if by_option || std::env::var_os(VARIABLE).is_some_and(|value| value == "1") {
        return remember(&record);
    }
    if record.exists() {
        return Ok(());
    }
    if io::stdin().is_terminal() && io::stderr().is_terminal() && asked() {
        return remember(&record);
    }
    Err(Error::Licence)
}

/// The file that records the acceptance.
fn record() -> PathBuf {
    qkvault_base::cache_dir().join("nvidia-license-accepted")
}

fn remember(record: &PathBuf) -> Result<(), Error> {
    if record.exists() {
        return Ok(());
    }
    let dir = qkvault_base::cache_dir();
    std::fs::create_dir_all(&dir).map_err(|cause| Error::io("create", &dir, cause))?;
    let text =
        format!("NVIDIA's licence ({URL}) was accepted on this machine for the libraries that qkvault fetches.\n");
    std::fs::write(record, text).map_err(|cause| Error::io("write", record, cause))
}

fn asked() -> bool {
    ui::say(&format!(
        "cuDNN and the libraries that it needs are under NVIDIA's licence:\n  {URL}\nDo you accept it? [y/N]"
    ));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
