//! The stacks of layers of a model: the config itself, its encoder and decoder, and its nested configs.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::names::{DEPTHS, HEADS, LAYERS, NameSide};
use super::row::FamilyRow;
use super::rows;
use crate::AttentionKind;
use crate::defaults::StackRole;
use crate::fields::ConfigFields;

/// One stack of layers.
pub(super) struct Stack<'a> {
    /// Where its config is in the file, with a dot at the end, or empty.
    pub(super) path: String,
    pub(super) family: String,
    pub(super) fields: ConfigFields<'a>,
    /// What the code of the family decides.
    pub(super) row: Option<&'static FamilyRow>,
    /// Which part of the config's names are its own.
    pub(super) side: NameSide,
    pub(super) kind: AttentionKind,
    pub(super) causal: bool,
    /// Whether each layer has cross-attention too.
    pub(super) cross: bool,
    /// Whether the family is that of the model's class, because `model_type` is not known.
    pub(super) by_architecture: bool,
}

/// Nested objects that are no models.
const NO_PARTS: &[&str] = &[
    "quantization_config",
    "compression_config",
    "generation_config",
    "attn_config",
    "ffn_config",
    "linear_attn_config",
    "sparse_attention_config",
    "per_layer_config",
    "mtp_per_layer_config",
];

/// Nested objects that are models, besides those whose name ends in `_config`.
const PARTS: &[&str] = &[
    "encoder",
    "decoder",
    "text_encoder",
    "audio_encoder",
    "question_encoder",
    "generator",
    "text_model",
    "vision_model",
    "vision_tower",
];

/// Nested configs of the language model.
const TEXT_PARTS: &[&str] =
    &["text_config", "language_config", "llm_config", "thinker_config", "decoder", "decoder_config", "text_model"];

/// How deep configs are nested at most.
const DEEPEST: usize = 4;

static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// The stacks of a config, the main one first, and nested configs that are no models, with what they say.
pub(super) fn find<'a>(json: &'a Map<String, Value>, family: &str) -> (Vec<Stack<'a>>, Vec<(String, String)>) {
    let mut search = StackSearch { stacks: Vec::new(), unknown: Vec::new() };
    search.visit(&StackPlace { path: "", key: "", cross: false, depth: 0 }, json, family);
    let rank = |stack: &Stack<'_>| match stack.kind {
        AttentionKind::SelfAttention | AttentionKind::Cross => 0,
        AttentionKind::Encoder => 1,
        AttentionKind::Vision => 2,
    };
    search.stacks.sort_by_key(rank);
    (search.stacks, search.unknown)
}

struct StackSearch<'a> {
    stacks: Vec<Stack<'a>>,
    unknown: Vec<(String, String)>,
}

/// Where a config is.
struct StackPlace<'p> {
    path: &'p str,
    /// Its key in the config around it.
    key: &'p str,
    /// Whether its decoder reads an encoder beside it.
    cross: bool,
    depth: usize,
}

impl<'a> StackSearch<'a> {
    fn visit(&mut self, place: &StackPlace<'_>, json: &'a Map<String, Value>, family: &str) {
        let fields = ConfigFields::new(place.path, json, family);
        let parts = parts(&fields);
        let text = parts.iter().any(|(key, ..)| TEXT_PARTS.contains(&key.as_str()));
        if !text {
            self.own(place, &fields);
        }
        if place.depth == DEEPEST {
            return;
        }
        let coded = fields.flag(&["is_encoder_decoder"]).ok().flatten() == Some(true);
        let pair = parts.iter().any(|(key, ..)| key == "encoder") || coded;
        for (key, part, family) in &parts {
            let path = format!("{}{key}.", place.path);
            let cross = pair && (key == "decoder" || key == "decoder_config");
            self.visit(&StackPlace { path: &path, key, cross, depth: place.depth + 1 }, part, family);
        }
    }

    /// Adds the stacks of a config's own fields, if it has any.
    fn own(&mut self, place: &StackPlace<'_>, fields: &ConfigFields<'a>) {
        // A config of several parts may have the fields of its language model at the top.
        let text = fields.known.and_then(|known| TEXT_PARTS.iter().find_map(|part| known.parts.get(*part)));
        let family = text.filter(|family| !family.is_empty()).unwrap_or(&fields.family).clone();
        // A family of its own may name the code of another.
        let unknown = crate::defaults::known(&family).is_none() && rows::for_family(&family).is_none();
        let named = unknown.then(|| by_architecture(fields.json)).flatten();
        let by_architecture = named.is_some();
        let family = named.unwrap_or(family);
        let fields = ConfigFields::new(place.path, fields.json, &family);
        let row = rows::for_family(&family);
        let heads =
            [HEADS, NameSide::Encoder.heads(), NameSide::Decoder.heads()].iter().any(|n| fields.value(n).is_some());
        let layers = [
            LAYERS,
            DEPTHS,
            NameSide::Encoder.layers(),
            NameSide::Decoder.layers(),
            super::lists::LISTS,
            &["hybrid_override_pattern"],
        ];
        let layers = layers.iter().any(|names| fields.value(names).is_some());
        let sizes = [HEADS, LAYERS, NameSide::Encoder.heads(), NameSide::Decoder.heads()];
        let nothing = place.path.is_empty() && sizes.iter().all(|names| fields.said(names).is_none());
        if !heads || !layers || nothing || row.is_some_and(|row| row.no_attention) {
            return;
        }
        let (role, kind) = role(place.key, &fields);
        let coded = fields.flag(&["is_encoder_decoder"]).ok().flatten() == Some(true);
        let stack = |side, kind, causal, cross| Stack {
            path: place.path.to_owned(),
            family: family.clone(),
            fields: fields.clone(),
            row,
            side,
            kind,
            causal,
            cross,
            by_architecture,
        };
        let decoder_layers = fields.value(NameSide::Decoder.layers()).is_some() || fields.value(LAYERS).is_some();
        if coded && decoder_layers && !matches!(kind, AttentionKind::Vision) {
            // The sound part of another model has the encoder alone.
            if place.key.is_empty() || kind == AttentionKind::SelfAttention {
                self.stacks.push(stack(NameSide::Decoder, AttentionKind::SelfAttention, true, true));
            }
            self.stacks.push(stack(NameSide::Encoder, AttentionKind::Encoder, false, false));
            return;
        }
        let side = match kind {
            AttentionKind::Encoder | AttentionKind::Vision => NameSide::Encoder,
            AttentionKind::SelfAttention | AttentionKind::Cross => NameSide::Decoder,
        };
        let added = fields.flag(&["add_cross_attention"]).ok().flatten() == Some(true);
        // Diffusion transformers that read a text beside the tokens say how wide it is.
        let text = ["cross_attention_dim", "text_dim", "text_len"].iter().any(|name| fields.said(&[name]).is_some());
        let added = added || text && fields.json.contains_key("_class_name");
        self.stacks.push(stack(side, kind, role == StackRole::Decoder, place.cross || added));
    }
}

/// The nested configs, with key and family.
fn parts<'a>(fields: &ConfigFields<'a>) -> Vec<(String, &'a Map<String, Value>, String)> {
    let usual = |key: &str| fields.known.and_then(|known| known.parts.get(key)).cloned().unwrap_or_default();
    let mut found = Vec::new();
    for (key, value) in fields.json {
        let Some(map) = value.as_object() else { continue };
        let named = key.ends_with("_config") || PARTS.contains(&key.as_str());
        let known = fields.known.is_some_and(|known| known.parts.contains_key(key));
        if !(named || known) || NO_PARTS.contains(&key.as_str()) {
            continue;
        }
        let family = map.get("model_type").and_then(Value::as_str).filter(|f| !f.is_empty()).map(str::to_owned);
        found.push((key.clone(), map, family.unwrap_or_else(|| usual(key))));
    }
    // A nested config that is left out is that of the defaults, if others are there.
    let any = !found.is_empty();
    for (key, family) in fields.known.into_iter().flat_map(|known| &known.parts) {
        let absent = !fields.json.contains_key(key) && !family.is_empty();
        let top = HEADS.iter().any(|name| fields.json.contains_key(*name));
        if absent && any && !top {
            found.push((key.clone(), &EMPTY, family.clone()));
        }
    }
    found
}

/// The family of a config by the class of its model, such as `DeepseekV3ForCausalLM`.
fn by_architecture(json: &Map<String, Value>) -> Option<String> {
    let class = json.get("architectures")?.as_array()?.first()?.as_str()?;
    let name = class.split("For").next()?;
    let name = name.strip_suffix("LMHeadModel").or_else(|| name.strip_suffix("Model")).unwrap_or(name);
    // DeepseekV3 is deepseek_v3, GPTNeoX gpt_neox: compared without the words' ends.
    let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let name = plain(name);
    let same = |family: &&String| plain(family) == name;
    crate::defaults::DEFAULTS.keys().find(same).cloned()
}

/// What a stack is, by its fields, by its family, by the key of its config.
fn role(key: &str, fields: &ConfigFields<'_>) -> (StackRole, AttentionKind) {
    let has = |words: &[&str]| words.iter().any(|word| key.contains(word));
    // The name of a family counts only if nothing else is known of it.
    let named = |word: &str| fields.known.is_none() && fields.family.split(['_', '-']).any(|part| part == word);
    let by_name = if has(&["vision", "visual", "image", "vit"]) || ["vision", "visual", "vit"].into_iter().any(named) {
        Some(StackRole::Vision)
    } else if has(&["audio", "speech", "sound", "encoder", "qformer"]) {
        Some(StackRole::Encoder)
    } else {
        None
    };
    let known = fields.known.and_then(|known| known.role);
    let said = |name: &str| fields.said(&[name]).and_then(|(_, value)| value.as_bool());
    let both_ways = fields.said(&["use_bidirectional_attention"]).map(|(_, value)| value);
    let both_ways = both_ways.is_some_and(|v| v.as_bool() == Some(true) || v.as_str() == Some("all"));
    let masked = fields.json.get("architectures").and_then(Value::as_array).is_some_and(|list| {
        list.iter()
            .filter_map(Value::as_str)
            .any(|name| name.ends_with("ForMaskedLM") || name.ends_with("Transformer3DModel"))
    });
    let forced = if said("is_decoder") == Some(true) || said("is_causal") == Some(true) {
        Some(StackRole::Decoder)
    } else if both_ways || said("is_causal") == Some(false) || said("causal") == Some(false) {
        Some(StackRole::Encoder)
    } else {
        None
    };
    let by_class = fields.json.contains_key("_class_name") && known.is_none();
    let usual = known.or(by_name).or_else(|| (masked && fields.known.is_none()).then_some(StackRole::Encoder));
    let role = forced.or(usual).unwrap_or(if by_class { StackRole::Encoder } else { StackRole::Decoder });
    let kind = match (role, by_name) {
        (StackRole::Vision, _) | (_, Some(StackRole::Vision)) => AttentionKind::Vision,
        // The tokens of a diffusion transformer are those that it makes.
        (StackRole::Encoder, _) if by_class => AttentionKind::SelfAttention,
        (StackRole::Encoder, _) | (_, Some(StackRole::Encoder)) => AttentionKind::Encoder,
        (StackRole::Decoder, _) => AttentionKind::SelfAttention,
    };
    (role, kind)
}
