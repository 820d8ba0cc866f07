//! NVIDIA's licences: the user accepts each once, and a file in the cache folder records it.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::PathBuf;

use super::FetchError;
use crate::ui;

/// A licence of NVIDIA's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Licence {
    /// cuDNN's, which the libraries that it needs are under as well.
    Cudnn,
    /// That of CUTLASS's DSLs, the compiler of FlashAttention-4's kernels.
    CutlassDsl,
}

impl Licence {
    /// What is under it.
    #[must_use]
    pub fn subject(self) -> &'static str {
        match self {
            Licence::Cudnn => "cuDNN and the libraries that it needs are",
            Licence::CutlassDsl => "the compiler of FlashAttention-4's kernels (nvidia-cutlass-dsl) is",
        }
    }

    /// Its address.
    #[must_use]
    pub fn url(self) -> &'static str {
        match self {
            Licence::Cudnn => "https://docs.nvidia.com/deeplearning/cudnn/latest/reference/eula.html",
            Licence::CutlassDsl => "https://docs.nvidia.com/cutlass/latest/media/docs/pythonDSL/license.html",
        }
    }

    /// The file that records the acceptance.
    fn record(self) -> PathBuf {
        qkvault_base::cache_dir().join(match self {
            Licence::Cudnn => "nvidia-license-accepted",
            Licence::CutlassDsl => "nvidia-cutlass-dsl-license-accepted",
        })
    }
}

/// The variable that accepts the licence with the value 1.
const VARIABLE: &str = "QKVAULT_ACCEPT_NVIDIA_LICENSE";

/// Checks that a licence is accepted: by option, by variable, in an earlier run, or at a prompt.
pub(crate) fn accepted(licence: Licence, by_option: bool) -> Result<(), FetchError> {
    let record = licence.record();
    if by_option || std::env::var_os(VARIABLE).is_some_and(|value| value == "1") {
        return remember(licence, &record);
    }
    if record.exists() {
        return Ok(());
    }
    if io::stdin().is_terminal() && io::stderr().is_terminal() && asked(licence) {
        return remember(licence, &record);
    }
    Err(FetchError::Licence { licence })
}

fn remember(licence: Licence, record: &PathBuf) -> Result<(), FetchError> {
    if record.exists() {
        return Ok(());
    }
    let dir = qkvault_base::cache_dir();
    std::fs::create_dir_all(&dir).map_err(|cause| FetchError::io("create", &dir, cause))?;
    let url = licence.url();
    let text = format!("NVIDIA's licence ({url}) was accepted on this machine for what qkvault fetches.\n");
    std::fs::write(record, text).map_err(|cause| FetchError::io("write", record, cause))
}

fn asked(licence: Licence) -> bool {
    let (subject, url) = (licence.subject(), licence.url());
    ui::say(&format!("{subject} under NVIDIA's licence:\n  {url}\nDo you accept it? [y/N]"));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
