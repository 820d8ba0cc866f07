//! Manifests as a list of jobs, and the jobs of models as a manifest.

use std::path::Path;

use anyhow::Context as _;
use qkvault_graph::{Attention, Refusal, Valid, text, validate};
use qkvault_models::{AttentionEntry, LARGEST_CONFIG, LayerKind, Manifest, Model, Phase};

use crate::traffic::TrafficLengths;

use super::{
    DECODE_BATCHES, DECODE_LENGTHS, ModelArgs, PREFILL_BATCHES, PREFILL_LENGTHS, TRAIN_LENGTHS, Use, or, pair,
};

/// The manifest of a file, and its name; `None` if the file is something else.
pub(super) fn read(path: &Path) -> anyhow::Result<Option<(String, Manifest)>> {
    let is_toml = path.extension().is_some_and(|end| end == "toml");
    let small = path.metadata().is_ok_and(|data| data.is_file() && data.len() <= LARGEST_CONFIG);
    if !is_toml && !small {
        return Ok(None);
    }
    let given = match crate::file::text(path) {
        Ok(given) => given,
        Err(error) if is_toml => return Err(error),
        Err(_) => return Ok(None),
    };
    if !is_toml && !Manifest::is_meant(&given) {
        return Ok(None);
    }
    let manifest = Manifest::parse(&given).with_context(|| format!("{} is no manifest", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Some((name, manifest)))
}

/// The attentions of a manifest. Phases and sizes of the command line take the place of its own.
pub(super) fn attentions(
    args: &ModelArgs,
    traffic: &TrafficLengths,
    name: &str,
    manifest: &Manifest,
) -> anyhow::Result<Vec<(Result<Valid, Refusal>, Use)>> {
    let mut manifest = manifest.clone();
    manifest.attention.retain(|entry| args.phase.is_empty() || args.phase.contains(&entry.phase));
    for entry in &mut manifest.attention {
        let lengths = or(&args.seq, traffic.for_phase(entry.phase));
        for (own, given) in [(&mut entry.batch, &args.batch[..]), (&mut entry.seq, lengths)] {
            if !own.is_empty() && !given.is_empty() {
                *own = given.to_vec();
            }
        }
    }
    let mut list = Vec::new();
    let listed = manifest.attentions().with_context(|| format!("the attentions of {name} cannot be listed"))?;
    for listed in listed {
        let AttentionEntry { model, layer, layers, phase, scale, .. } = &manifest.attention[listed.entry];
        let mut attention = listed.attention;
        if let Some(dtype) = args.dtype {
            for tensor in [&mut attention.q, &mut attention.k, &mut attention.v, &mut attention.o] {
                tensor.dtype = dtype;
            }
        }
        let usage = Use {
            model: if model.is_empty() { name.to_owned() } else { model.clone() },
            layer: if layer.is_empty() { format!("attention {}", listed.entry) } else { layer.clone() },
            layers: *layers,
            phase: *phase,
            backward: attention.is_backward(),
            batch: listed.sizes.0,
            seq: listed.sizes.1,
            bucket: None,
            scale: scale.map_or_else(|| attention.default_scale(), |scale| scale as f32),
        };
        if *phase == Phase::Train && !attention.is_backward() {
            list.extend(pair(args, Ok(attention), usage));
            continue;
        }
        if args.stats {
            attention.outputs.stats = true;
        }
        list.push((validate(attention), usage));
    }
    Ok(list)
}

/// The manifest of a model: an entry for each kind of layer and phase.
pub(in crate::jobs) fn of_layer(
    model: &str,
    layer: &LayerKind,
    phase: Phase,
    batches: &[i64],
    lengths: &[i64],
) -> Vec<AttentionEntry> {
    let described = |batch, seq| layer.attention(phase, batch, seq);
    let entry = |batch: &[i64], seq: &[i64], text: String| AttentionEntry {
        model: model.to_owned(),
        layer: layer.label.clone(),
        layers: layer.count,
        phase,
        scale: Some(layer.scale),
        batch: batch.to_vec(),
        seq: seq.to_vec(),
        text,
    };
    let whole = template(&described, None).map(|text| entry(batches, lengths, text));
    if let Some(whole) = whole.filter(|entry| is(entry, &described, batches, lengths)) {
        return vec![whole];
    }
    // What depends on the length in another way has an entry for each length.
    let of_length = |&seq: &i64| {
        let text = template(&described, Some(seq)).unwrap_or_default();
        let one = entry(batches, &[], text);
        let same = is(&one, &described, batches, &[seq]);
        let each = |&batch: &i64| described(batch, seq).ok().map(|a| entry(&[], &[], short(&text::print(&a))));
        if same { vec![one] } else { batches.iter().filter_map(each).collect() }
    };
    lengths.iter().flat_map(of_length).collect()
}

/// Numbers that no model has, in the places of sizes.
const BATCH: i64 = 1009;
const SEQ: i64 = 32_771;

type DescribeSizes<'d> = dyn Fn(i64, i64) -> Result<Attention, Refusal> + 'd;

/// The text of an attention with names in the places of its sizes.
fn template(described: &DescribeSizes<'_>, seq: Option<i64>) -> Option<String> {
    let attention = described(BATCH, seq.unwrap_or(SEQ)).ok()?;
    let text = short(&text::print(&attention)).replace(&BATCH.to_string(), "$batch");
    Some(if seq.is_none() { text.replace(&SEQ.to_string(), "$seq") } else { text })
}

/// Whether an entry means the attentions that it was made from.
fn is(entry: &AttentionEntry, described: &DescribeSizes<'_>, batches: &[i64], lengths: &[i64]) -> bool {
    let listed = Manifest::new(vec![entry.clone()]).attentions().unwrap_or_default();
    let sizes = lengths.iter().flat_map(|&seq| batches.iter().map(move |&batch| (batch, seq)));
    let meant: Option<Vec<Attention>> = sizes.map(|(batch, seq)| described(batch, seq).ok()).collect();
    meant.is_some_and(|meant| listed.iter().map(|l| &l.attention).eq(meant.iter()))
}

/// The text without the fields that have their defaults.
fn short(text: &str) -> String {
    const DEFAULTS: &[&str] = &[
        "pass: forward",
        "mask: none",
        "lengths: full",
        "mask_mod: none",
        "score_mod: none",
        "sink: no",
        "dropout: none",
        "block_mask: no",
        "outputs: none",
        "padded_rows: undefined",
        "fp8: none",
    ];
    let kept: Vec<&str> = text.lines().filter(|line| !DEFAULTS.contains(line)).collect();
    kept.join("\n")
}

/// The manifest of a model for these phases and sizes, or the usual ones.
pub(crate) fn written(name: &str, model: &Model, phases: &[Phase], batch: &[i64], seq: &[i64]) -> Manifest {
    let mut entries = Vec::new();
    for layer in &model.layers {
        for &phase in if phases.is_empty() { &Phase::INFERENCE } else { phases } {
            let (batches, lengths) = match phase {
                Phase::Prefill => (or(batch, &PREFILL_BATCHES), or(seq, &PREFILL_LENGTHS)),
                Phase::Train => (or(batch, &PREFILL_BATCHES), or(seq, &TRAIN_LENGTHS)),
                Phase::Decode | Phase::Serve => (or(batch, &DECODE_BATCHES), or(seq, &DECODE_LENGTHS)),
            };
            let most = model.max_positions.unwrap_or(i64::MAX);
            let lengths: Vec<i64> = lengths.iter().copied().filter(|&seq| seq <= most).collect();
            let has = phase != Phase::Serve && (phase != Phase::Decode || layer.decodes());
            if has && !lengths.is_empty() {
                entries.extend(of_layer(name, layer, phase, batches, &lengths));
            }
        }
    }
    Manifest::new(entries)
}
