//! The model families: how to read the attention layers of each model type from its config.
//!
//! Sources: the defaults and layer patterns of the published `modeling_*` and `configuration_*` files of each
//! `model_type`.

use super::config::Config;
use super::{Latent, LayerKind, Model};
use qkvault_graph::registry::codes;
use qkvault_graph::{DType, Reason, Refusal};

/// The model types that `read` knows, for the reason that an unknown one gets.
pub(super) const FAMILIES: &str = "llama, mistral, gemma2, qwen2, gpt_oss, bert, mpt, deepseek_v3";

/// Collects reasons and continues with a default value, so that one error reports every problem of a config.
struct Reader<'a> {
    config: &'a Config,
    reasons: Vec<Reason>,
}

impl Reader<'_> {
    fn take<T: Default>(&mut self, result: Result<T, Refusal>) -> T {
        result.unwrap_or_else(|refusal| {
            self.reasons.extend(Vec::from(refusal));
            T::default()
        })
    }

    fn need(&mut self, names: &[&str]) -> i64 {
        let result = self.config.need(names);
        self.take(result).max(1)
    }

    fn int(&mut self, field: &str) -> Option<i64> {
        let result = self.config.int(field);
        self.take(result)
    }

    fn float(&mut self, field: &str) -> Option<f32> {
        let result = self.config.float(field);
        self.take(result)
    }

    fn flag(&mut self, field: &str) -> bool {
        let result = self.config.flag(field);
        self.take(result)
    }

    /// The head dim: `head_dim` if the config has it, else the width of the model divided by the number of heads.
    fn head_dim(&mut self, width: &str, heads: i64) -> i64 {
        if let Some(d) = self.int("head_dim") {
            return d;
        }
        let width_value = self.need(&[width]);
        if width_value % heads != 0 {
            self.reasons
                .push(codes::CONFIG_HEAD_DIM.reason(format!("{width_value} over {heads} heads")).at(width.to_owned()));
        }
        width_value / heads
    }
}

/// Builds the model from its config.
pub(super) fn read(config: &Config) -> Result<Model, Refusal> {
    let mut r = Reader { config, reasons: Vec::new() };
    let mut notes = Vec::new();
    let family = config.text("model_type").unwrap_or("").to_owned();
    let dtype = config.dtype(&mut notes).unwrap_or_else(|refusal| {
        r.reasons.extend(Vec::from(refusal));
        DType::BF16
    });
    let layers = match family.as_str() {
        "llama" => decoder(&mut r, dtype, |_, _| Vec::new()),
        "mistral" => decoder(&mut r, dtype, |r, n| match r.int("sliding_window") {
            Some(_) => vec![true; n],
            None => Vec::new(),
        }),
        "qwen2" => decoder(&mut r, dtype, |r, n| {
            let on = r.flag("use_sliding_window");
            let first = r.int("max_window_layers").unwrap_or(n as i64) as usize;
            if on { (0..n).map(|i| i >= first).collect() } else { Vec::new() }
        }),
        "gemma2" => gemma2(&mut r, dtype),
        "gpt_oss" => {
            let mut kinds = decoder(&mut r, dtype, patterned);
            kinds.iter_mut().for_each(|k| k.sink = true);
            kinds
        }
        "bert" => bert(&mut r, dtype),
        "mpt" => mpt(&mut r, dtype),
        "deepseek_v3" => deepseek(&mut r, dtype),
        other => {
            let given = if other.is_empty() { "absent".to_owned() } else { format!("'{other}'") };
            r.reasons.push(codes::CONFIG_FAMILY.reason(given).with_needed(format!("one of {FAMILIES}")));
            Vec::new()
        }
    };
    let positions = ["max_position_embeddings", "max_seq_len"].into_iter().find_map(|f| r.int(f));
    match Refusal::of(r.reasons) {
        Some(refusal) => Err(refusal),
        None => Ok(Model { family, layers, max_positions: positions, notes }),
    }
}

/// Which layers slide: `layer_types` if the config has it, else every second layer from the first on.
fn patterned(r: &mut Reader<'_>, n: usize) -> Vec<bool> {
    let result = r.config.layer_types(n);
    r.take(result).unwrap_or_else(|| (0..n).map(|i| i % 2 == 0).collect())
}

/// A causal decoder with grouped heads. `slides` returns for each layer whether it has the window; empty means none
/// has.
fn decoder(r: &mut Reader<'_>, dtype: DType, slides: impl Fn(&mut Reader<'_>, usize) -> Vec<bool>) -> Vec<LayerKind> {
    let heads = r.need(&["num_attention_heads"]);
    let kv_heads = r.int("num_key_value_heads").unwrap_or(heads);
    let d = r.head_dim("hidden_size", heads);
    let n = r.need(&["num_hidden_layers"]) as usize;
    let slides = slides(r, n);
    let base = LayerKind {
        label: "full".into(),
        count: n,
        heads,
        kv_heads,
        d_qk: d,
        d_v: d,
        dtype,
        causal: true,
        window: None,
        scale: 1.0 / (d as f32).sqrt(),
        softcap: None,
        sink: false,
        alibi_bias_max: None,
        latent: None,
    };
    let sliding = slides.iter().filter(|&&s| s).count();
    if sliding == 0 {
        return vec![base];
    }
    let window = r.need(&["sliding_window"]);
    let with = LayerKind { label: format!("sliding {window}"), count: sliding, window: Some(window), ..base.clone() };
    let without = LayerKind { count: n - sliding, ..base };
    let mut kinds = if slides[0] { vec![with, without] } else { vec![without, with] };
    kinds.retain(|k| k.count > 0);
    kinds
}

fn gemma2(r: &mut Reader<'_>, dtype: DType) -> Vec<LayerKind> {
    let softcap = r.float("attn_logit_softcapping");
    let scalar = r.float("query_pre_attn_scalar");
    let mut kinds = decoder(r, dtype, patterned);
    for kind in &mut kinds {
        kind.softcap = softcap;
        kind.scale = scalar.map_or(kind.scale, |s| 1.0 / s.sqrt());
    }
    kinds
}

fn bert(r: &mut Reader<'_>, dtype: DType) -> Vec<LayerKind> {
    let mut kinds = decoder(r, dtype, |_, _| Vec::new());
    kinds.iter_mut().for_each(|k| k.causal = false);
    kinds
}

fn mpt(r: &mut Reader<'_>, dtype: DType) -> Vec<LayerKind> {
    let heads = r.need(&["n_heads"]);
    let kv_heads = r.int("attn_config.kv_n_heads").unwrap_or(heads);
    let count = r.need(&["n_layers"]) as usize;
    let d = r.head_dim("d_model", heads);
    let alibi = r.flag("attn_config.alibi");
    let bias_max = r.float("attn_config.alibi_bias_max").unwrap_or(8.0);
    if r.flag("attn_config.prefix_lm") {
        r.reasons.push(codes::CONFIG_PREFIX_LM.reason("true: tokens of a prefix see each other"));
    }
    let scale = r.float("attn_config.softmax_scale").unwrap_or(1.0 / (d as f32).sqrt());
    vec![LayerKind {
        label: if alibi { "full, alibi".into() } else { "full".into() },
        count,
        heads,
        kv_heads,
        d_qk: d,
        d_v: d,
        dtype,
        causal: true,
        window: None,
        scale,
        softcap: None,
        sink: false,
        alibi_bias_max: alibi.then_some(bias_max),
        latent: None,
    }]
}

/// Multi-head latent attention: a prefill expands the heads, a decode reads the compressed cache.
fn deepseek(r: &mut Reader<'_>, dtype: DType) -> Vec<LayerKind> {
    let heads = r.need(&["num_attention_heads"]);
    let nope = r.need(&["qk_nope_head_dim"]);
    let rope = r.need(&["qk_rope_head_dim"]);
    let d_v = r.need(&["v_head_dim"]);
    let rank = r.need(&["kv_lora_rank"]);
    let count = r.need(&["num_hidden_layers"]) as usize;
    let d_qk = nope + rope;
    // With YaRN, the scale is multiplied by the square of 0.1 * mscale_all_dim * ln(factor) + 1.
    let factor = r.float("rope_scaling.factor").unwrap_or(1.0);
    let mscale = r.float("rope_scaling.mscale_all_dim").unwrap_or(0.0);
    let grow = if factor > 1.0 { 0.1 * mscale * factor.ln() + 1.0 } else { 1.0 };
    vec![LayerKind {
        label: "latent".into(),
        count,
        heads,
        kv_heads: heads,
        d_qk,
        d_v,
        dtype,
        causal: true,
        window: None,
        scale: grow * grow / (d_qk as f32).sqrt(),
        softcap: None,
        sink: false,
        alibi_bias_max: None,
        latent: Some(Latent { d_qk: rank + rope, d_v: rank }),
    }]
}
