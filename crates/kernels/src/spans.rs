//! Where an invariant attention's keys are divided, by their positions alone: each part is summed from its first key to
//! its last, and then parts are added from the first to the last, whichever blocks compute them.

use std::fmt::Write as _;

/// Keys of a span, by the position from which on spans have as many. Short sequences need many blocks, in long ones the
/// sums of every span cost memory and time.
const SPANS: [(i64, i64); 4] = [(0, 256), (2048, 512), (8192, 1024), (32_768, 2048)];

/// The spans of so many keys.
pub(crate) fn count(keys: i64) -> i64 {
    let ends = SPANS.iter().skip(1).map(|(from, _)| *from).chain([i64::MAX]);
    let of = |((from, size), end): (&(i64, i64), i64)| {
        (keys.min(end) - from).max(0).div_euclid(*size) + i64::from((keys.min(end) - from).max(0) % size > 0)
    };
    SPANS.iter().zip(ends).map(of).sum()
}

/// The functions that kernels ask: the keys of the span of a key, and the spans before that.
pub(crate) fn functions() -> String {
    let (mut sizes, mut indices) = (String::new(), String::new());
    for (at, (from, size)) in SPANS.iter().enumerate() {
        let (test, before) = match SPANS.get(at + 1) {
            Some((end, _)) => (format!("key < {end} ? "), " : "),
            None => (String::new(), ";"),
        };
        let _ = write!(sizes, "{test}{size}{before}");
        let _ = write!(indices, "{test}{} + (key - {from}) / {size}{before}", count(*from));
    }
    format!(
        "__device__ __forceinline__ int span_size(int key) {{ return {sizes} }}\n\
         __device__ __forceinline__ int span_index(int key) {{ return {indices} }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_begin_at_multiples_of_their_size_and_are_counted() {
        for (at, (from, size)) in SPANS.iter().enumerate() {
            assert!(from % size == 0 && SPANS.get(at + 1).is_none_or(|(end, _)| end % size == 0));
        }
        let counts = [0, 1, 256, 257, 2048, 2049, 8192, 8193, 32_768, 131_072].map(count);
        assert_eq!(counts, [0, 1, 1, 2, 8, 9, 20, 21, 44, 92]);
        let text = functions();
        assert!(text.contains("return key < 2048 ? 256 : key < 8192 ? 512 : key < 32768 ? 1024 : 2048; }"), "{text}");
        assert!(
            text.contains("? 8 + (key - 2048) / 512 :") && text.contains(": 44 + (key - 32768) / 2048; }"),
            "{text}"
        );
    }
}
