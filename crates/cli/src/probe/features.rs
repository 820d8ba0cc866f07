//! Features of the matrix that the models do not cover, each described in the text form.

use qkvault_graph::{Valid, text, validate};

/// A feature: its name, and the lines that add it to a description.
pub(super) struct MatrixFeature {
    pub(super) name: &'static str,
    lines: &'static str,
}

const fn feature(name: &'static str, lines: &'static str) -> MatrixFeature {
    MatrixFeature { name, lines }
}

const BASE: &str = "q: bf16 [2,16,2048,128]\nk: [2,4,2048,128]";

/// Features, in the order of the matrix. A line for `q`, `k`, `v` or `o` replaces the usual one: 2 sequences, 16 heads
/// over 4, 2048 queries and keys, head dim 128, bf16.
pub(super) const FEATURES: &[MatrixFeature] = &[
    feature("no mask", ""),
    feature("causal", "mask: causal"),
    feature("causal, bottom right, 512 queries", "q: bf16 [2,16,512,128]\nmask: causal bottom-right"),
    feature("sliding window", "mask: causal window 512"),
    feature("window on both sides", "mask: band left 256 right 255"),
    feature("lengths per sequence", "lengths: per-sequence\nmask: causal"),
    feature("Stats, Max and Sum_exp", "outputs: stats max sum_exp"),
    feature("head dim 64", "q: bf16 [2,16,2048,64]\nk: [2,4,2048,64]"),
    feature("head dim 256", "q: bf16 [2,16,2048,256]\nk: [2,4,2048,256]"),
    feature("head dims 192 and 128", "q: bf16 [2,16,2048,192]\nk: [2,4,2048,192]\nv: [2,4,2048,128]"),
    feature("lengths that fill no tile", "q: bf16 [2,16,1000,128]\nk: [2,4,1000,128]"),
    feature("softcap", "score_mod: scalar $cap: float; tanh(score / $cap) * $cap\nmask: causal"),
    feature("ALiBi", "score_mod: tensor @slopes: f32[1, 16, 1, 1]; score + float(key - query) * @slopes\nmask: causal"),
    feature("bias", "score_mod: tensor @bias: bf16[1, 16, 2048, 2048]; score + @bias"),
    feature("bias with gradient", "score_mod: tensor @bias: bf16[1, 16, 2048, 2048] grad; score + @bias"),
    feature(
        "documents",
        "mask_mod: { tensor @of_query: i32[2, 1, 2048, 1]; tensor @of_key: i32[2, 1, 1, 2048]; @of_query == @of_key }",
    ),
    feature("prefix", "mask_mod: { tensor @prefix: i32[2, 1, 1, 1]; key <= query | key < @prefix }"),
    feature("sink", "sink: yes\nmask: causal"),
    feature("dropout by Philox", "dropout: philox 0.1"),
    feature("dropout by mask", "dropout: mask 0.1"),
    feature("block mask", "block_mask: yes"),
    feature("padded rows as zeros", "lengths: per-sequence\npadded_rows: zero"),
    feature(
        "varlen (THD)",
        "q: bf16 [2,16,2048,128] varlen tokens 3000\nk: [2,4,2048,128] varlen tokens 3000\nlengths: per-sequence\nmask: causal",
    ),
    feature("deterministic", "mask: causal\ndeterministic: yes"),
    feature("FP8, delayed scaling", "q: e4m3 [2,16,2048,128]\nk: [2,16,2048,128]\nfp8: delayed\nmask: causal"),
    feature("FP8, delayed scaling, shared heads", "q: e4m3 [2,16,2048,128]\nk: [2,4,2048,128]\nfp8: delayed"),
    feature(
        "FP8, current scaling",
        "q: e4m3 [2,16,2048,128]\nk: [2,4,2048,128]\no: bf16 [2,16,2048,128]\nfp8: current",
    ),
    feature("MXFP8", "q: e4m3 [2,16,2048,128]\nk: [2,4,2048,128]\no: bf16 [2,16,2048,128]\nfp8: block"),
    feature(
        "MXFP8, head dims 192 and 128, causal",
        "q: e4m3 [2,16,2048,192]\nk: [2,16,2048,192]\nv: [2,16,2048,128]\no: bf16 [2,16,2048,128]\nfp8: block\n\
         mask: causal",
    ),
];

/// Features of inference only.
pub(super) const SERVING: &[MatrixFeature] = &[
    feature("decode", "q: bf16 [8,16,1,128]\nk: [8,4,4096,128]\nlengths: per-sequence"),
    feature(
        "decode over pages of 64",
        "q: bf16 [8,16,1,128]\nk: [8,4,4096,128] paged 1024 x 64\nlengths: per-sequence",
    ),
    feature(
        "varlen queries over pages of 16",
        "q: bf16 [8,16,512,128] varlen tokens 1024\nk: [8,4,4096,128] paged 4096 x 16\nlengths: per-sequence\n\
         mask: causal bottom-right",
    ),
    feature(
        "decode with softcap over pages",
        "q: bf16 [8,16,1,128]\nk: [8,4,4096,128] paged 1024 x 64\nlengths: per-sequence\n\
         score_mod: scalar $cap: float; tanh(score / $cap) * $cap",
    ),
    feature("decode over a shared head of 576 (MLA)", "q: bf16 [8,128,1,576]\nk: [8,1,4096,576]\nv: [8,1,4096,512]"),
];

impl MatrixFeature {
    /// The description, forward or backward. `None` if the feature does not exist in that direction.
    pub(super) fn attention(&self, backward: bool) -> Option<Valid> {
        if !backward && self.lines.contains("deterministic") {
            return None;
        }
        let mut lines: Vec<&str> = BASE.lines().collect();
        for line in self.lines.lines() {
            let name = line.split(':').next().unwrap_or_default();
            lines.retain(|l| l.split(':').next() != Some(name));
            lines.push(line);
        }
        let pass = if backward { "pass: backward\n" } else { "" };
        let stats = if backward || self.lines.contains("outputs") { "" } else { "\noutputs: stats" };
        let lines = lines.join("\n");
        validate(text::parse(&format!("{pass}{lines}{stats}")).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_a_sound_description_in_some_direction() {
        for feature in FEATURES {
            assert!(feature.attention(true).is_some(), "{} backward", feature.name);
            assert_eq!(feature.attention(false).is_some(), feature.name != "deterministic", "{}", feature.name);
        }
        for feature in SERVING {
            assert!(feature.attention(false).is_some(), "{}", feature.name);
        }
    }
}
