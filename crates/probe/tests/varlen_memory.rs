//! Memory of varlen backwards: buffers have room for the tokens, not for every sequence at its longest.

use proptest::prelude::*;
use qkvault_cudnn::{CompileOptions, Profile, Target};
use qkvault_graph::{Attention, BackwardOptions, CudnnVersion, DType, LibrarySet, Tensor, Valid, validate};
use qkvault_probe::{Footprint, on_device};

fn h200() -> Target {
    Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim)
}

/// A varlen backward of (query heads, key/value heads) with room for (queries, keys) in tokens.
fn varlen(batch: i64, heads: (i64, i64), longest: i64, head_dim: i64, tokens: (i64, i64)) -> Valid {
    let q = Tensor::thd(batch, heads.0, longest, head_dim, tokens.0, DType::BF16);
    let kv = Tensor::thd(batch, heads.1, longest, head_dim, tokens.1, DType::BF16);
    let forward = Attention::forward(q, kv, kv, q).with_lengths().with_stats();
    validate(forward.backward(BackwardOptions::default())).expect("sound")
}

fn footprint(attention: &Valid) -> Footprint {
    Footprint::for_attention(attention, &h200(), &CompileOptions::default()).expect("lowers")
}

/// 65,536 tokens in up to 1024 sequences of up to 32,768: 558 GB if each had its greatest length. The sum of dQ in f32
/// is 1.07 GB.
#[test]
fn b4_a_varlen_backward_that_fits_is_accepted() {
    let attention = varlen(1024, (32, 32), 32_768, 128, (65_536, 65_536));
    let found = footprint(&attention);
    assert_eq!(found.scratch, 65_536 * 32 * (128 + 1) * 4, "{found:?}");
    assert_eq!(found.over(on_device(&h200())), None);
    // A footprint that does not fit is still refused.
    let large = varlen(1024, (32, 32), 32_768, 128, (16 << 20, 16 << 20));
    assert!(footprint(&large).over(on_device(&h200())).is_some());
}

proptest! {
    /// Rows of f32 for each token of the capacity, rounded up to 64 of them: one number per head, and a row of dQ.
    #[test]
    fn b4_buffers_of_varlen_backwards_follow_the_capacity_in_tokens(
        batch in 1_i64..2000, group in 1_i64..5, kv_heads in 1_i64..9, longest in 1_i64..40_000, head_dim in 1_i64..17,
        room in (0_i64..100_000, 0_i64..100_000),
    ) {
        let (heads, head_dim) = ((group * kv_heads, kv_heads), 8 * head_dim);
        let tokens = (batch.max(room.0), batch.max(room.1));
        let found = footprint(&varlen(batch, heads, longest, head_dim, tokens));
        let rows = tokens.0.unsigned_abs().next_multiple_of(64) * heads.0.unsigned_abs();
        prop_assert_eq!(found.scratch, rows * 4 + rows * head_dim.unsigned_abs() * 4);
    }
}
