//! The guide: a page for each thing that people come for, read in five minutes each. The code on every page is
//! compiled, and run where no GPU is needed.
//!
//! | page | read it when |
//! | --- | --- |
//! | [`getting_started`] | you are new: describe an attention, ask about it, compile it and launch it |
//! | [`serving`] | your shapes change at every step: varlen queries, paged keys, continuous batching |
//! | [`invariant`] | a sequence must have the same bits alone and in any batch |
//! | [`drafts`] | a speculative decoder verifies trees of drafts |
//! | [`training`] | you need gradients, dropout or the same bits twice |
//! | [`threads`] | many launches as one graph, several streams, threads, async |
//! | [`fp8`] | you want 8-bit attention: what runs where, scales, training, pages in 8 bits |
//! | [`quantizing`] | your attention has 8 bits, and your tensors have 16 |
//! | [`several_gpus`] | a sequence or a cache is too long for one GPU |
//! | [`pytorch`] | your program is in Python and PyTorch |
//! | [`jax`] | your program is in Python and JAX |
//! | [`score_mods`] | your scores are not plain: softcap, ALiBi, biases, masks of your own |
//! | [`engines`] | you want to know who computes what, or to run without cuDNN |
//! | [`deploying`] | plans must be compiled before traffic arrives: vault, layers, packs, remotes |
//! | [`safety`] | you need to know what safe code promises, and who must be trusted on a shared host |
//! | [`coming_from`] | you know cudnn-frontend, flash-attn, FlashInfer or candle |
//! | [`performance`] | you want figures, and the command behind each |
//! | [`versions`] | you choose or upgrade cuDNN, the driver, CUDA or Rust |
//! | [`troubleshooting`] | something is refused, missing or wrong |
//!
//! Paths such as `docs/vault.md` are files of the repository.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | attention | one forward or backward, described as data: [`Attention`](crate::graph::Attention) |
//! | scalar | a number that a launch reads on the host: the softmax scale, a softcap; its value is under no key |
//! | role | which operand a buffer is: [`Role`](crate::graph::Role); you bind by role |
//! | target | a GPU together with the exact cuDNN that compiles and loads: [`Target`](crate::Target) |
//! | plan | what cuDNN compiled for one attention and one target: [`Plan`](crate::compile::Plan), about 20 KB on disk |
//! | vault | where plans are kept, under keys that name everything that can change them: [`Vault`](crate::cache::Vault) |
//! | refusal | why there is no plan, as reasons with stable codes: [`Refusal`](crate::graph::Refusal) |
//! | quirk | a case that cuDNN compiles and computes wrongly; refused unless you allow it by its code |

#[doc = include_str!("getting_started.md")]
pub mod getting_started {}

#[doc = include_str!("serving.md")]
pub mod serving {}

#[doc = include_str!("invariant.md")]
pub mod invariant {}

#[doc = include_str!("drafts.md")]
pub mod drafts {}

#[doc = include_str!("training.md")]
pub mod training {}

#[doc = include_str!("threads.md")]
pub mod threads {}

#[doc = include_str!("several_gpus.md")]
pub mod several_gpus {}

#[doc = include_str!("score_mods.md")]
pub mod score_mods {}

#[doc = include_str!("fp8.md")]
pub mod fp8 {}

#[doc = include_str!("quantizing.md")]
pub mod quantizing {}

#[doc = include_str!("pytorch.md")]
pub mod pytorch {}

#[doc = include_str!("jax.md")]
pub mod jax {}

#[doc = include_str!("engines.md")]
pub mod engines {}

#[doc = include_str!("deploying.md")]
pub mod deploying {}

#[doc = include_str!("safety.md")]
pub mod safety {}

#[doc = include_str!("coming_from.md")]
pub mod coming_from {}

#[doc = include_str!("performance.md")]
pub mod performance {}

#[doc = include_str!("versions.md")]
pub mod versions {}

#[doc = include_str!("troubleshooting.md")]
pub mod troubleshooting {}
