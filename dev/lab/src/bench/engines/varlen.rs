//! Packed causal documents: sequences one after another with cumulative lengths, as models are trained and prompts of a
//! batch are computed.

use qkvault_graph::{Attention, Band, DType, Tensor};

/// Documents of one length, in sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    documents: i64,
    h: i64,
    hk: i64,
    /// Tokens of a document.
    s: i64,
    d: i64,
}

impl Packed {
    /// A name of its own.
    pub(super) fn name(&self) -> String {
        let Packed { documents, h, hk, s, d } = *self;
        format!("varlen b{documents} h{h}/{hk} s{s} d{d} causal")
    }

    /// The forward without Stats, as for inference, and the backward.
    pub(super) fn attentions(&self) -> [Attention; 2] {
        let Packed { documents, h, hk, s, d } = *self;
        let tensor = |heads| Tensor::thd(documents, heads, s, d, documents * s, DType::BF16);
        let (q, k) = (tensor(h), tensor(hk));
        let a = Attention::forward(q, k, k, q).with_lengths().with_band(Band::CAUSAL_BOTTOM_RIGHT);
        let backward = a.clone().with_stats().backward(Default::default());
        [a, backward]
    }
}

/// 16,384 tokens in documents of three lengths, and twice as many with heads that share keys.
pub(super) fn list() -> Vec<Packed> {
    let sizes = [
        (16, 16, 16, 1024, 128),
        (4, 16, 16, 4096, 128),
        (64, 16, 16, 256, 128),
        (8, 32, 8, 4096, 128),
        (32, 32, 8, 1024, 64),
        (2, 64, 8, 16_384, 128),
    ];
    sizes.map(|(documents, h, hk, s, d)| Packed { documents, h, hk, s, d }).to_vec()
}
