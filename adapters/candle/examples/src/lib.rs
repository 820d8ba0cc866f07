//! What the example programs share: models with a replaceable attention, and candle's plain attention.

use candle_qkvault::qkvault::cache::{Mode, VaultOptions};
use candle_qkvault::qkvault::{self, RawRuntime, Runtime};

pub mod llama;
pub mod paged;
pub mod plain;
pub mod toy;

/// Options of a command line: `--name value` pairs, and words alone.
#[derive(Debug)]
pub struct Words(Vec<String>);

impl Words {
    /// Those of this process.
    #[must_use]
    pub fn of_process() -> Words {
        Words(std::env::args().skip(1).collect())
    }

    /// Whether a word was given.
    #[must_use]
    pub fn has(&self, word: &str) -> bool {
        self.0.iter().any(|own| own == word)
    }

    /// The value behind a word, or the usual one.
    ///
    /// # Errors
    ///
    /// A value that does not read.
    pub fn value<T: std::str::FromStr>(&self, word: &str, usual: T) -> Result<T, String> {
        let Some(at) = self.0.iter().position(|own| own == word) else { return Ok(usual) };
        let text = self.0.get(at + 1).ok_or_else(|| format!("{word} needs a value"))?;
        text.parse().map_err(|_| format!("{word} {text} does not read"))
    }

    /// The keys and values, `KEY=VALUE`, behind each of a word.
    pub fn pairs<'a>(&'a self, word: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.windows(2).filter(move |pair| pair[0] == word).filter_map(|pair| pair[1].split_once('='))
    }

    /// The text behind a word.
    #[must_use]
    pub fn text(&self, word: &str) -> Option<&str> {
        let at = self.0.iter().position(|own| own == word)?;
        self.0.get(at + 1).map(String::as_str)
    }
}

/// The device of a run: the CPU if it was asked for or the program has no GPU, else the first GPU.
///
/// # Errors
///
/// There is no GPU.
pub fn device(words: &Words) -> candle_core::Result<candle_core::Device> {
    match words.has("--cpu") || !cfg!(feature = "cuda") {
        true => Ok(candle_core::Device::Cpu),
        false => candle_core::Device::new_cuda(0),
    }
}

/// Where plans come from: the user's vault, which `--build` fills; on the CPU none is needed.
///
/// # Errors
///
/// The vault does not open.
pub fn runtime(words: &Words, device: &candle_core::Device) -> Result<RawRuntime, qkvault::Error> {
    let mut options = Runtime::options().build_missing(words.has("--build"));
    if let Some(folder) = words.text("--vault") {
        options = options.vault(VaultOptions::in_folder(folder));
    }
    let options = if device.is_cpu() { options.vault(VaultOptions::new().mode(Mode::Off)) } else { options };
    options.open_raw()
}
