//! `model`: shows the attentions of a model.

use std::path::PathBuf;

use crate::codes;
use anyhow::Context as _;
use qkvault_graph::Refusal;
use qkvault_models::{AttentionKind, LayerKind, Model, Phase};

use crate::{Globals, Outcome, jobs, out};

/// Options of the command.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelCommandArgs {
    /// A config.json, a GGUF file, a folder that has one, or a name in the cache of the Hugging Face hub
    #[arg(value_name = "FILE|DIR|NAME")]
    model: PathBuf,
    #[command(flatten)]
    shard: ShardArgs,
    /// Write a manifest of the attentions, to edit and to give to --model; without FILE, print it
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    manifest: Option<Option<PathBuf>>,
    /// Phases of the manifest: prefill, decode (default: both) or train
    #[arg(long, value_delimiter = ',', requires = "manifest")]
    phase: Vec<Phase>,
    /// Batches of the manifest (default: those of `warm`)
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "manifest", value_parser = clap::value_parser!(i64).range(1..=1_048_576))]
    batch: Vec<i64>,
    /// Lengths of the manifest (default: those of `warm`)
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "manifest", value_parser = clap::value_parser!(i64).range(1..=16_777_216))]
    seq: Vec<i64>,
}

/// Options for the part of a model that one of several GPUs computes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ShardArgs {
    /// GPUs that share the heads of each layer; the attentions are those of one of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..=4096))]
    tensor_parallel: i64,
    /// Which of the GPUs: it decides ALiBi's slopes and which sinks a GPU has
    #[arg(long, value_name = "RANK", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..=4095))]
    rank: i64,
}

impl ShardArgs {
    /// Whether several GPUs share the heads.
    pub(super) const fn is_set(&self) -> bool {
        self.tensor_parallel > 1
    }

    /// The model that a path or a name means, and its name.
    pub(super) fn model(&self, given: &std::path::Path) -> anyhow::Result<(String, Model)> {
        let cannot = || format!("{} cannot be planned", given.display());
        let (name, model) = Model::find(given).with_context(cannot)?;
        let model = model.sharded(self.tensor_parallel, self.rank).with_context(cannot)?;
        Ok((name, model))
    }
}

pub(super) fn run(globals: &Globals, args: &ModelCommandArgs) -> anyhow::Result<Outcome> {
    let (name, model) = args.shard.model(&args.model)?;
    if let Some(file) = &args.manifest {
        return manifest(globals, args, file.as_deref(), &name, &model);
    }
    if globals.json {
        out::json(&model.report());
        return Ok(Outcome::Good);
    }
    let family = if model.family.is_empty() { String::new() } else { format!(" ({})", model.family) };
    let layers: usize = model.layers.iter().map(|layer| layer.count).sum();
    out::line(&format!("{name}{family}: {layers} attentions, {} of them distinct", model.layers.len()));
    let columns = ["kind", ">count", ">heads", ">kv", ">d_qk", ">d_v", ">scale", "mask", "also", "layers"];
    let rows: Vec<Vec<String>> = model.layers.iter().map(row).collect();
    if !rows.is_empty() {
        out::table(&columns, &rows);
    }
    for skipped in &model.skipped {
        let places =
            if skipped.indices.is_empty() { String::new() } else { format!(", layers {}", spans(&skipped.indices)) };
        out::line(&format!("not planned: {} x{}{places}: {}", skipped.what, skipped.count, skipped.why));
    }
    model.notes.iter().for_each(|note| out::line(&format!("note: {note}")));
    Ok(Outcome::Good)
}

/// Writes the manifest of a model to a file, or prints it.
fn manifest(
    globals: &Globals,
    args: &ModelCommandArgs,
    file: Option<&std::path::Path>,
    name: &str,
    model: &Model,
) -> anyhow::Result<Outcome> {
    if args.phase.contains(&Phase::Serve) {
        let refusal: Refusal = codes::MODEL_SERVE.reason("serve, with one batch and one length").into();
        return Err(refusal.into());
    }
    let manifest = jobs::written(name, model, &args.phase, &args.batch, &args.seq);
    let Some(file) = file else {
        if globals.json {
            out::json(&serde_json::to_value(&manifest)?)
        } else {
            out::lines(manifest.to_toml().trim_end())
        }
        return Ok(Outcome::Good);
    };
    let is_json = file.extension().is_some_and(|end| end == "json");
    let text = if is_json { serde_json::to_string_pretty(&manifest)? } else { manifest.to_toml() };
    // A file that is cut off by a full disk must not look like a manifest.
    let new = file.with_extension(format!("new-{}", std::process::id()));
    let written = || std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file));
    let written = || written().inspect_err(|_| drop(std::fs::remove_file(&new)));
    written().with_context(|| format!("{} could not be written", file.display()))?;
    let entries = manifest.attention.len();
    if globals.json {
        out::json(&serde_json::json!({ "file": file, "entries": entries }));
    } else {
        out::line(&format!("{}: {}", file.display(), out::entries(entries)));
    }
    Ok(Outcome::Good)
}

fn row(layer: &LayerKind) -> Vec<String> {
    let kind = match layer.kind {
        AttentionKind::SelfAttention => "self",
        AttentionKind::Cross => "cross",
        AttentionKind::Encoder => "encoder",
        AttentionKind::Vision => "vision",
    };
    let mut mask = vec![if layer.causal { "causal" } else { "all" }.to_owned()];
    mask.extend(layer.prefix.then(|| "prefix".to_owned()));
    mask.extend(layer.window.map(|window| format!("window {window}")));
    mask.extend(layer.chunk.map(|chunk| format!("chunks of {chunk}")));
    let mut also = Vec::new();
    also.extend(layer.softcap.map(|cap| format!("softcap {cap}")));
    also.extend(layer.sink.then(|| "sink".to_owned()));
    also.extend(layer.alibi.map(|alibi| format!("ALiBi from head {} of {}", alibi.first_head, alibi.model_heads)));
    also.extend(layer.position_bias.then(|| "position bias".to_owned()));
    also.extend(layer.latent.map(|latent| format!("decodes {}/{} on one head", latent.d_qk, latent.d_v)));
    let numbers = [layer.heads, layer.kv_heads, layer.d_qk, layer.d_v].map(|n| n.to_string());
    let start = [kind.to_owned(), layer.count.to_string()];
    let end = [format!("{:.6}", layer.scale), mask.join(", "), also.join(", "), spans(&layer.indices)];
    start.into_iter().chain(numbers).chain(end).collect()
}

/// Places in a row as spans, such as `0-4, 6`.
fn spans(places: &[usize]) -> String {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for &place in places {
        match found.last_mut() {
            Some((_, last)) if place == *last || place == *last + 1 => *last = place,
            _ => found.push((place, place)),
        }
    }
    let span = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let texts: Vec<String> = found.iter().map(span).collect();
    if texts.len() > 8 { format!("{}, ...", texts[..8].join(", ")) } else { texts.join(", ") }
}

#[cfg(test)]
mod tests {
    #[test]
    fn places_in_a_row_are_spans() {
        assert_eq!(super::spans(&[0, 1, 2, 4, 6, 7]), "0-2, 4, 6-7");
        assert_eq!(super::spans(&[0, 0, 1, 1]), "0-1");
        assert_eq!(super::spans(&[]), "");
    }
}
