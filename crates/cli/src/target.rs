//! Options for cuDNN and the target GPU that several commands share.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use qkvault_compile::Compiler;
use qkvault_cudnn::{Profile, Target};
use qkvault_graph::{BadVersion, CudnnVersion, LibrarySet};
use qkvault_probe::NEWEST;
use qkvault_sys::Search;

/// Options that select a cuDNN.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Target")]
pub struct LibraryArgs {
    /// The cuDNN version, such as 9.27 (which is 9.27.0) or 9.10.2 (default: the first one found)
    #[arg(long, value_name = "VERSION", value_parser = is_version)]
    pub cudnn: Option<String>,
    /// Use the full library set instead of the slim one
    #[arg(long)]
    pub full: bool,
    /// A libcudnn.so.9, its folder, or a prefix above it (also QKVAULT_CUDNN_PATH)
    #[arg(long, value_name = "PATH")]
    pub cudnn_path: Option<PathBuf>,
}

/// The option that selects the target GPU.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Target")]
pub struct TargetArgs {
    /// A GPU by name (see `profile ls`) or a profile file
    #[arg(long, value_name = "NAME|FILE", default_value = "h200", value_parser = is_target)]
    pub target: String,
}

/// The option that selects target GPUs.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Target")]
pub(super) struct TargetsArgs {
    /// A GPU by name (see `profile ls`) or a profile file; several with commas
    #[arg(long, value_name = "NAME|FILE", default_value = "h200", value_delimiter = ',', value_parser = is_target)]
    target: Vec<String>,
}

/// Accepts versions only, and keeps the text as written: a fetch may match a partial version.
fn is_version(text: &str) -> Result<String, BadVersion> {
    text.parse::<CudnnVersion>().map(|_| text.to_owned())
}

/// Accepts names of known GPUs and of files. An unknown name fails here, before anything is fetched or opened.
pub(super) fn is_target(name: &str) -> Result<String, String> {
    if Path::new(name).is_file() || Profile::named(name).is_ok() {
        return Ok(name.to_owned());
    }
    let names: Vec<String> = Profile::built_in().map(|p| p.name).collect();
    let names = names.join(", ");
    Err(format!(
        "neither a known GPU nor a file has this name; the known GPUs are {names}; `qkvault profile capture` on \
         a GPU host writes a file for another GPU"
    ))
}

/// Accepts a list of versions with commas, for commands that start one process for each.
pub(super) fn are_versions(text: &str) -> Result<String, BadVersion> {
    text.split(',').map(is_version).collect::<Result<Vec<_>, _>>().map(|_| text.to_owned())
}

impl LibraryArgs {
    /// The versions of a list, each once, as they were written.
    pub(super) fn versions(&self) -> Vec<String> {
        let mut versions: Vec<(Option<CudnnVersion>, String)> = Vec::new();
        for text in self.cudnn.iter().flat_map(|list| list.split(',')) {
            let version = text.parse().ok();
            if !versions.iter().any(|(known, _)| *known == version) {
                versions.push((version, text.to_owned()));
            }
        }
        versions.into_iter().map(|(_, text)| text).collect()
    }

    /// The search that these options describe.
    pub fn search(&self) -> anyhow::Result<Search> {
        let mut search = match &self.cudnn_path {
            Some(path) => Search::at(path),
            None => Search::default(),
        };
        if let Some(version) = &self.cudnn {
            search = search.version(version.parse()?);
        }
        if self.full {
            search = search.set(LibrarySet::Full);
        }
        Ok(search)
    }
}

/// Loads a profile by GPU name or from a file.
pub fn profile(name: &str) -> anyhow::Result<Profile> {
    let path = Path::new(name);
    if path.is_file() {
        let text = crate::file::text(path)?;
        return Profile::from_json(&text).with_context(|| format!("{name} is not a profile"));
    }
    Ok(Profile::named(name)?)
}

impl TargetArgs {
    /// The target of these options under the compiler's cuDNN.
    pub fn target(&self, compiler: &Compiler) -> anyhow::Result<Target> {
        Ok(compiler.target(&profile(&self.target)?))
    }
}

impl TargetsArgs {
    /// The targets of these options under the compiler's cuDNN, each once. Without a compiler, for plans that need no
    /// cuDNN, under the version that is asked for, or the newest that the rules know.
    pub(super) fn targets(&self, compiler: Option<&Compiler>, asked: Option<&str>) -> anyhow::Result<Vec<Target>> {
        let version = asked.map(str::parse).transpose()?.unwrap_or(NEWEST);
        let mut targets: Vec<Target> = Vec::new();
        for name in &self.target {
            let profile = profile(name)?;
            let target = match compiler {
                Some(compiler) => compiler.target(&profile),
                None => profile.target(version, LibrarySet::Slim),
            };
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        Ok(targets)
    }
}
