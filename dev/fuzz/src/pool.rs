//! The inputs that changes begin with: those that are kept in the repository, those that a target makes, and those that
//! got an answer that no other input got.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::mutate::{self, Random};
use crate::targets::{FuzzOutcome, FuzzTarget};

/// Most inputs that are kept for new answers.
const MOST: usize = 500;

/// The longest input that is kept for a new answer.
const LONGEST: usize = 8 << 10;

/// The inputs of a target.
#[derive(Debug)]
pub struct InputPool {
    inputs: Vec<Vec<u8>>,
    /// How many of them are kept in the repository or made by the target.
    first: usize,
    answers: HashSet<u64>,
    words: &'static [&'static str],
}

/// The folder of the inputs that are kept for a target.
#[must_use]
pub fn folder(target: &FuzzTarget) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The inputs that are kept for a target, by the names of their files; none without a folder.
///
/// # Errors
///
/// The folder cannot be read.
pub fn kept(target: &FuzzTarget) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = folder(target);
    let missing = || format!("{} has the inputs of the target {}, and cannot be read", folder.display(), target.name);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let files: Result<Vec<PathBuf>, _> =
        std::fs::read_dir(&folder).with_context(missing)?.map(|file| file.map(|file| file.path())).collect();
    let mut files = files.with_context(missing)?;
    files.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        Ok((path, bytes))
    };
    files.into_iter().map(read).collect()
}

impl InputPool {
    /// The inputs that are kept for a target and those that it makes.
    ///
    /// # Errors
    ///
    /// As for [`kept`].
    pub fn for_target(target: &FuzzTarget) -> Result<InputPool> {
        let kept = kept(target)?.into_iter().map(|(_, bytes)| bytes);
        let inputs: Vec<Vec<u8>> = kept.chain((target.seeds)()).collect();
        Ok(InputPool { first: inputs.len(), inputs, answers: HashSet::new(), words: target.words })
    }

    /// The inputs as they are.
    #[must_use]
    pub fn inputs(&self) -> &[Vec<u8>] {
        &self.inputs
    }

    /// Answers that differ.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.answers.len()
    }

    /// A new input.
    pub fn draw(&self, random: &mut Random) -> Vec<u8> {
        if random.below(50) == 0 {
            return (0..random.below(512)).map(|_| random.number() as u8).collect();
        }
        // Half of all changes begin with an input that somebody thought of.
        let among = if random.below(2) == 0 { &self.inputs[..self.first] } else { &self.inputs[..] };
        let mut bytes = random.one(among).cloned().unwrap_or_default();
        let other = random.one(&self.inputs).map(Vec::as_slice).unwrap_or_default();
        mutate::change(&mut bytes, other, self.words, random);
        bytes
    }

    /// Keeps an input whose answer is new.
    pub fn learn(&mut self, bytes: &[u8], answer: FuzzOutcome) {
        let new = self.answers.len() < MOST && self.answers.insert(answer.kind);
        if new && bytes.len() <= LONGEST {
            self.inputs.push(bytes.to_vec());
        }
    }
}
