//! What the model computes beside its attention, as plain loops over rows.

/// The epsilon of the norms.
const EPSILON: f32 = 1e-5;

/// The base of the rotary embedding's wavelengths.
const THETA: f32 = 500_000.0;

/// RMSNorm of each row, as long as `factors`.
pub(super) fn norm(x: &[f32], factors: &[f32]) -> Vec<f32> {
    let one = |row: &[f32]| {
        let mean = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
        let by = 1.0 / (mean + EPSILON).sqrt();
        row.iter().zip(factors).map(|(x, factor)| x * by * factor).collect::<Vec<f32>>()
    };
    x.chunks_exact(factors.len()).flat_map(one).collect()
}

/// Each row of `x`, of `inputs` numbers, times each row of `weights`.
pub(super) fn product(x: &[f32], weights: &[f32], inputs: usize) -> Vec<f32> {
    let dot = |row: &[f32], column: &[f32]| row.iter().zip(column).map(|(x, w)| x * w).sum::<f32>();
    x.chunks_exact(inputs).flat_map(|row| weights.chunks_exact(inputs).map(|column| dot(row, column))).collect()
}

/// Rotary embedding of the heads of one row: the first half of a head with the second.
pub(super) fn rotate(heads: &mut [f32], position: i32, head_dim: usize) {
    let half = head_dim / 2;
    for head in heads.chunks_exact_mut(head_dim) {
        for i in 0..half {
            let angle = position as f32 * THETA.powf(-(i as f32) / half as f32);
            let (sin, cos) = angle.sin_cos();
            let (a, b) = (head[i], head[i + half]);
            (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
        }
    }
}

/// SiLU of the gate times up. Rows have `inner` numbers of each.
pub(super) fn silu(gate_up: &[f32], inner: usize) -> Vec<f32> {
    let one = |row: &[f32]| {
        let (gate, up) = row.split_at(inner);
        gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect::<Vec<f32>>()
    };
    gate_up.chunks_exact(2 * inner).flat_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_lengths_and_makes_scores_follow_the_distance_of_positions() {
        let head = |phase: f32| (0..16).map(|i| (i as f32 * phase).sin()).collect::<Vec<f32>>();
        let score = |at: i32, key_at: i32| {
            let (mut q, mut k) = (head(0.7), head(1.3));
            rotate(&mut q, at, 16);
            rotate(&mut k, key_at, 16);
            q.iter().zip(&k).map(|(q, k)| q * k).sum::<f32>()
        };
        assert!((score(9, 4) - score(105, 100)).abs() < 1e-3 && (score(9, 4) - score(9, 5)).abs() > 1e-2);
    }

    #[test]
    fn products_and_norms_are_those_of_their_definitions() {
        assert_eq!(
            product(&[1.0, 2.0, 3.0, 4.0], &[1.0, 0.0, 1.0, -1.0, 2.0, 2.0], 2),
            [1.0, -1.0, 6.0, 3.0, -1.0, 14.0]
        );
        let normed = norm(&[3.0, -3.0], &[1.0, 2.0]);
        assert!((normed[0] - 1.0).abs() < 1e-3 && (normed[1] + 2.0).abs() < 1e-3, "{normed:?}");
        assert_eq!(silu(&[0.0, 2.0], 1), [0.0]);
    }
}
