//! Advice about an attention that is supported: where another way is known to be faster. No reason, refuses nothing.

use qkvault_cudnn::Target;
use qkvault_graph::{Attention, Band, Fp8, Valid};

/// What is known to be faster than an attention on a target, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// What to know, in a sentence.
    pub what: String,
    /// Where it is known from.
    pub source: &'static str,
}

/// NVIDIA's table of an H200: cudnn-frontend 1.19, cuDNN 9.19.1, 64 query heads over 8, head dim 128.
const H200: &str = "NVIDIA's benchmarks of an H200 (cudnn-frontend 1.19, cuDNN 9.19.1)";
/// Its tables of GB200 and GB300: cudnn-frontend 1.21.1, cuDNN 9.22.0, `benchmark/sdpa_benchmark_training`.
const GB200: &str = "NVIDIA's benchmarks of a GB200 (cudnn-frontend 1.21.1, cuDNN 9.22.0)";
/// Own kernels over caches in 8 bits beside those in 16.
const CACHES: &str = "docs/results/fp8.md: an H200, decodes and chunks over 1,024 to 32,768 keys";
/// Names of kernels in compiled plans.
const TILES: &str = "names of the kernels in plans of cuDNN 9.19 and 9.27";

/// TFLOP/s of a causal backward on an H200: keys, FP8, bf16.
const CAUSAL_BACKWARD: [(i64, u32, u32); 5] =
    [(2048, 393, 370), (4096, 471, 474), (8192, 430, 541), (16384, 374, 579), (32768, 370, 581)];

/// The advice for an attention on a target, from what others measured; nothing in 16 bits.
///
/// ```
/// use qkvault_cudnn::Profile;
/// use qkvault_graph::{Attention, BackwardOptions, CudnnVersion, DType, Fp8, LibrarySet, validate};
/// use qkvault_probe::advice;
///
/// let mut forward = Attention::bshd(1, (64, 8), (8192, 8192), 128, DType::E4M3).causal().with_stats();
/// forward.fp8 = Some(Fp8::Delayed);
/// let backward = validate(forward.backward(BackwardOptions::default()))?;
/// let target = Profile::named("h200")?.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
/// assert!(advice(&backward, &target)[0].what.contains("slower than bf16"));
/// # Ok::<(), qkvault_graph::Refusal>(())
/// ```
#[must_use]
pub fn advice(attention: &Valid, target: &Target) -> Vec<Advice> {
    let a = attention.get();
    let mut list = Vec::new();
    if a.fp8 == Some(Fp8::Cache) && target.sm() == 90 {
        return slow_cache(a).into_iter().map(|what| Advice { what, source: CACHES }).collect();
    }
    if !matches!(a.fp8, Some(Fp8::Delayed | Fp8::Current)) {
        return list;
    }
    let hopper = target.sm() == 90;
    if hopper && a.is_backward() && is_causal(a) {
        list.extend(slow_backward(a.seq().1));
    }
    if target.sm() / 10 == 10 && a.is_backward() && is_causal(a) && a.seq().1 < 4096 {
        list.push(Advice {
            what: "a causal backward over less than 4096 keys is slower than bf16 (831 TFLOP/s for 885 over 2048)"
                .into(),
            source: GB200,
        });
    }
    let (d_qk, d_v) = a.head_dims();
    if hopper && !a.is_backward() && d_qk.max(d_v) < 128 {
        list.push(Advice {
            what: format!(
                "with head dims {d_qk} and {d_v} the 8-bit kernels compute tiles of 128 columns: measure it beside bf16"
            ),
            source: TILES,
        });
    }
    list
}

/// Whether the mask hides about half of the scores.
fn is_causal(a: &Attention) -> bool {
    matches!(a.mask.band, Some(Band { corner: _, left: None, right: Some(0) }))
}

/// Where own kernels take longer over a cache in 8 bits than over one in 16.
fn slow_cache(a: &Attention) -> Option<String> {
    let (d_qk, d_v) = a.head_dims();
    let rows = a.seq().0.saturating_mul(a.q.heads() / a.k.heads().max(1));
    let slow = rows > 16 || d_qk.max(d_v) > 128 || a.invariant;
    slow.then(|| {
        format!(
            "{rows} rows of queries for a head of keys, head dims {d_qk} and {d_v}: beyond 16 rows and head dims \
             of 128 a cache in 8 bits takes 1.5 to 2.7 times as long as one in 16 (invariant attentions have the same \
             kernels); decodes of 8 sequences and more with heads of 128 take 0.54 to 0.63 times as long"
        )
    })
}

/// The row of the table for this many keys, if FP8 is the slower one there.
fn slow_backward(keys: i64) -> Option<Advice> {
    let (row, fp8, bf16) = CAUSAL_BACKWARD.into_iter().rev().find(|(row, ..)| *row <= keys)?;
    (fp8 < bf16).then(|| Advice {
        what: format!(
            "a causal backward from 4096 keys on is slower than bf16 ({fp8} TFLOP/s for {bf16} over {row}): compute the \
             forward in 8 bits and the backward in 16 (`Training::fp8_forward`)"
        ),
        source: H200,
    })
}

#[cfg(test)]
mod tests {
    use qkvault_cudnn::Profile;
    use qkvault_graph::{BackwardOptions, CudnnVersion, DType, LibrarySet, validate};

    use super::*;

    fn told(gpu: &str, a: Attention) -> Vec<String> {
        let target = Profile::named(gpu).expect("built in").target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
        advice(&validate(a).expect("sound"), &target).into_iter().map(|advice| advice.what).collect()
    }

    fn eight(s: i64, d: i64) -> Attention {
        let mut a = Attention::bshd(1, (8, 8), (s, s), d, DType::E4M3).with_stats();
        a.fp8 = Some(Fp8::Delayed);
        a
    }

    fn backward(a: Attention) -> Attention {
        a.backward(BackwardOptions::default())
    }

    /// Both sides of each bound: keys, mask, pass, GPU, format.
    #[test]
    fn advice_is_given_where_others_measured_it_and_nowhere_else() {
        let slow = told("h200", backward(eight(5000, 128).causal()));
        assert!(slow[0].contains("471 TFLOP/s for 474 over 4096"), "{slow:?}");
        assert!(told("h200", backward(eight(40_000, 128).causal()))[0].contains("370 TFLOP/s for 581"));
        assert_eq!(told("h200", backward(eight(4095, 128).causal())), [""; 0]);
        assert_eq!(told("h200", backward(eight(8192, 128))), [""; 0]);
        assert_eq!(told("h200", eight(8192, 128).causal()), [""; 0]);
        assert_eq!(told("b200", backward(eight(8192, 128).causal())), [""; 0]);
        assert_eq!(told("b200", backward(eight(4095, 128).causal())).len(), 1);
        assert!(told("h200", eight(512, 64))[0].contains("128 columns"));
        let bf16 = Attention::bshd(1, (8, 8), (8192, 8192), 64, DType::BF16).causal().with_stats();
        assert_eq!(told("h200", backward(bf16)), [""; 0]);
    }

    #[test]
    fn a_cache_in_8_bits_is_told_where_it_takes_longer_than_one_in_16() {
        let over = |queries, d| {
            let mut a = Attention::bshd(8, (32, 8), (queries, 8192), d, DType::BF16).with_lengths();
            (a.k.dtype, a.v.dtype, a.fp8) = (DType::E4M3, DType::E4M3, Some(Fp8::Cache));
            a
        };
        assert_eq!([told("h200", over(1, 128)), told("h200", over(4, 128))].concat(), [""; 0]);
        assert!(told("h200", over(5, 128))[0].contains("20 rows") && told("h200", over(1, 256)).len() == 1);
        assert_eq!(told("h200", over(1, 64)), [""; 0]);
        assert_eq!(told("h200", over(4, 128).invariant()).len(), 1);
    }
}
