//! Finds the config of a model: a file, a folder, or a name in the cache of the Hugging Face hub.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::codes;
use qkvault_graph::Refusal;

use super::text::{LARGEST_CONFIG, too_large};
use super::{Model, gguf};

impl Model {
    /// Reads the model that a path or a name means, and a name for it.
    ///
    /// * A file is a `config.json`, or a GGUF file, whose metadata alone is read.
    /// * A folder has a `config.json`, a diffusers model's `transformer/config.json`, one GGUF file, or the snapshots
    ///   of the hub's cache.
    /// * Anything else, such as `Qwen/Qwen3-8B`, is the name of a repository in the cache of the hub (`HF_HUB_CACHE`,
    ///   `HF_HOME`, else `~/.cache/huggingface/hub`). `NAME@REVISION` names a branch, tag or commit.
    ///
    /// # Errors
    ///
    /// What is not found or cannot be read, and every problem of the config.
    pub fn find(given: &Path) -> Result<(String, Model), Refusal> {
        let file = config_of(given)?;
        Ok((name_of(given, &file), read(&file)?))
    }
}

fn absent(given: String, needed: impl Into<String>) -> Refusal {
    codes::CONFIG_PATH.reason(given).with_needed(needed).into()
}

/// The name of a model: that of its file, or of its folder if the file has the usual name.
fn name_of(given: &Path, file: &Path) -> String {
    if !given.exists() {
        let name = given.to_string_lossy();
        let name = name.split('@').next().unwrap_or_default();
        return name.rsplit('/').next().unwrap_or_default().to_owned();
    }
    let folder = if given.is_dir() { given.canonicalize().ok() } else { file.parent().map(Path::to_path_buf) };
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = folder.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    match folder {
        Some(folder) if stem == "config" || stem == "params" => {
            folder.rsplit("--").next().unwrap_or_default().to_owned()
        }
        _ => stem,
    }
}

fn config_of(given: &Path) -> Result<PathBuf, Refusal> {
    match std::fs::metadata(given) {
        Ok(data) if data.is_dir() => in_folder(given),
        Ok(data) if data.is_file() => Ok(given.to_path_buf()),
        Ok(_) => Err(absent(format!("{} is no file", given.display()), "a file, a folder, or a name of the hub")),
        Err(error) => in_cache(given, &error),
    }
}

/// The config in a folder of a model.
fn in_folder(folder: &Path) -> Result<PathBuf, Refusal> {
    let usual = Path::new("config").with_extension("json");
    // Mistral's own files have params.json beside or instead.
    let files = [folder.join(&usual), folder.join("transformer").join(usual), folder.join("params.json")];
    if let Some(file) = files.into_iter().find(|file| file.is_file()) {
        return Ok(file);
    }
    if folder.join("snapshots").is_dir() {
        return snapshot(folder, None);
    }
    if let Some(base) = adapted(&folder.join("adapter_config.json")) {
        let given = format!("{} has an adapter, which is no model of its own", folder.display());
        return Err(absent(given, format!("the model that it adapts, which has the same attentions: {base}")));
    }
    let files = std::fs::read_dir(folder).map(|list| list.flatten().map(|entry| entry.path()).collect::<Vec<_>>());
    let mut files = files.unwrap_or_default();
    files.retain(|path| path.extension().is_some_and(|end| end == "gguf"));
    files.sort();
    // The first part of a model in several files has all metadata.
    let parts = files.iter().all(|path| path.to_string_lossy().contains("-of-"));
    match &files[..] {
        [first, ..] if parts || files.len() == 1 => Ok(first.clone()),
        [] => Err(absent(
            format!("{} could not be read: it has no config.json", folder.display()),
            "a folder with a config.json or a GGUF file",
        )),
        many => Err(absent(format!("{} has {} GGUF files", folder.display(), many.len()), "one GGUF file: name it")),
    }
}

/// The name of the model that an adapter, such as LoRA's, is for.
fn adapted(config: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(config).ok()?.take(LARGEST_CONFIG).read_to_string(&mut text).ok()?;
    let config = super::text::object(&text).ok()?;
    config.get("base_model_name_or_path").and_then(serde_json::Value::as_str).map(str::to_owned)
}

/// The config of a repository in the cache of the hub.
fn in_cache(given: &Path, error: &std::io::Error) -> Result<PathBuf, Refusal> {
    let text = given.to_string_lossy();
    let (name, revision) =
        text.split_once('@').map_or((text.as_ref(), None), |(name, revision)| (name, Some(revision)));
    let words = name.split('/').count();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let caches = caches();
    if words > 2
        || name.ends_with(".json")
        || name.ends_with(".gguf")
        || !name.chars().all(plain)
        || name.contains("..")
    {
        let given = format!("{} cannot be read: {error}", given.display());
        return Err(absent(
            given,
            "a config.json, a GGUF file, a folder with one of them, or a name in the hub's cache",
        ));
    }
    let folder = format!("models--{}", name.replace('/', "--"));
    match caches.iter().map(|cache| cache.join(&folder)).find(|path| path.is_dir()) {
        Some(path) => snapshot(&path, revision),
        None => {
            let looked: Vec<String> = caches.iter().map(|cache| cache.join(&folder).display().to_string()).collect();
            let needed =
                format!("a file, a folder, or a model in the hub's cache: there is no {}", looked.join(" and no "));
            Err(absent(format!("{name} is no file and no folder"), needed))
        }
    }
}

/// The config of the snapshot that a revision names (usually `main`), or of the only one.
fn snapshot(folder: &Path, revision: Option<&str>) -> Result<PathBuf, Refusal> {
    let snapshots = folder.join("snapshots");
    let by_name = |name: &str| std::fs::read_to_string(folder.join("refs").join(name)).ok();
    let simple = revision.is_none_or(|r| !r.contains("..") && !r.starts_with('/'));
    let named = revision.unwrap_or("main");
    let commit = simple.then(|| by_name(named)).flatten().map(|commit| snapshots.join(commit.trim()));
    let direct = revision.filter(|_| simple).map(|revision| snapshots.join(revision)).filter(|path| path.is_dir());
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(&snapshots).map(|list| list.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    all.sort();
    let only = match &all[..] {
        [only] if revision.is_none() => Some(only.clone()),
        _ => None,
    };
    let Some(found) = commit.filter(|path| path.is_dir()).or(direct).or(only) else {
        let given = format!("{} has no snapshot of {named}", folder.display());
        return Err(absent(given, "a revision whose config.json is in the cache"));
    };
    in_folder(&found)
}

/// The folders that may be the hub's cache, the first that counts first.
fn caches() -> Vec<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let under = |folder: OsString, rest: &str| PathBuf::from(folder).join(rest);
    let home = || var("HOME").or_else(|| var("USERPROFILE")).map(|home| under(home, ".cache/huggingface/hub"));
    let given = var("HF_HUB_CACHE").or_else(|| var("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from);
    let given = given.or_else(|| var("HF_HOME").map(|home| under(home, "hub")));
    let given = given.or_else(|| var("XDG_CACHE_HOME").map(|cache| under(cache, "huggingface/hub")));
    given.or_else(home).into_iter().collect()
}

fn read(path: &Path) -> Result<Model, Refusal> {
    let broken = |error: std::io::Error| -> Refusal {
        absent(format!("{} cannot be read: {error}", path.display()), "a file that can be read")
    };
    let mut file = File::open(path).map_err(broken)?;
    let size = file.metadata().map_err(broken)?.len();
    let mut magic = Vec::new();
    Read::by_ref(&mut file).take(4).read_to_end(&mut magic).map_err(broken)?;
    if magic == gguf::MAGIC || path.extension().is_some_and(|end| end == "gguf") {
        return gguf::model(File::open(path).map_err(broken)?, size);
    }
    if size > LARGEST_CONFIG {
        return Err(too_large(size));
    }
    let mut bytes = magic;
    file.take(LARGEST_CONFIG).read_to_end(&mut bytes).map_err(broken)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        codes::CONFIG_JSON.reason(format!("no text: byte {at} is not UTF-8"))
    })?;
    Model::from_config(&text)
}
