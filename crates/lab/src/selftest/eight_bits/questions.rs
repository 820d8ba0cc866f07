//! Questions about 8-bit forwards that only a GPU answers: of what Amax_S is the largest, whether largest magnitudes
//! depend on what the memory held, and which scales of probabilities saturate.
//!
//! Each row of the record has what a launch wrote beside what follows from each possible answer.

use anyhow::Context as _;
use qkvault_graph::{Attention, Band, Corner, DType, Fp8, Role, Scaled, Valid, validate};
use qkvault_reference::{Buffer, Inputs, forward, round};
use serde_json::{Value, json};

use crate::selftest::Args;
use crate::selftest::runner::Runner;
use qkvault_cli::memory::Memory;
use qkvault_cli::{Globals, Outcome, out};

/// What the memory of largest magnitudes holds before a launch.
const BEFORE: [(&str, f32); 3] = [("NaN", f32::from_bits(u32::MAX)), ("1e30", 1e30), ("0", 0.0)];

/// Scales of probabilities in e4m3, whose largest number is 448.
const SCALES_OF_S: [f64; 5] = [1.0, 16.0, 256.0, 448.0, 1024.0];

/// Growth of scores from one tile of 128 keys to the next, in natural logarithms: below the thresholds at which kernels
/// rescale, and above.
const GROWTH: [f64; 3] = [0.0, 2.0, 8.0];

/// The first element of each query whose scores grow.
const FIRST: f64 = 14.0;

/// Runs the launches and prints the record.
pub(in crate::selftest) fn run(globals: &Globals, args: &Args) -> anyhow::Result<Outcome> {
    let runner = Runner::open(globals, args)?;
    let mut rows = Vec::new();
    for shape in shapes(runner.sm()) {
        let a = validate(shape)?;
        for growth in GROWTH {
            let inputs = inputs(&a, args.seed, growth)?;
            match ask(&runner, &a, &inputs, growth) {
                Ok(found) => rows.extend(found),
                Err(why) => {
                    rows.push(json!({ "attention": a.to_string(), "growth": growth, "why": format!("{why:#}") }))
                }
            }
        }
    }
    let mut record = runner.place.clone();
    record["rows"] = json!(rows);
    if let Some(path) = &args.record {
        std::fs::write(path, format!("{record:#}\n"))
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    if globals.json {
        out::json(&record);
    } else {
        rows.iter().for_each(|row| out::line(&row.to_string()));
    }
    let failed = rows.iter().any(|row| row.get("why").is_some());
    Ok(if failed { Outcome::Bad } else { Outcome::Good })
}

/// Forwards of few rows; on compute capability 10.x also one whose keys are split, which may write no magnitudes.
fn shapes(sm: u32) -> Vec<Attention> {
    let shape = |h, q, kv| {
        let mut a = Attention::bshd(1, (h, h), (q, kv), 128, DType::E4M3).with_stats();
        a.fp8 = Some(Fp8::Delayed);
        a
    };
    let causal = Band { corner: Corner::TopLeft, left: None, right: Some(0) };
    let mut all = vec![shape(1, 128, 128), shape(1, 64, 512), shape(1, 192, 192).with_band(causal)];
    if sm / 10 == 10 {
        all.push(shape(4, 256, 32_768));
    }
    all
}

/// Random operands. With a growth, scores grow along the keys by this much in every 128 of them.
fn inputs(a: &Valid, seed: u64, growth: f64) -> anyhow::Result<Inputs> {
    let mut inputs = Inputs::random(a, seed)?;
    if growth == 0.0 {
        return Ok(inputs);
    }
    let scale = inputs.buffer(Role::Scale)?.get(0);
    let width = a.head_dims().0.unsigned_abs() as usize;
    // Keys of up to 56 need another descale.
    inputs.set_f32(Role::Descale(Scaled::K), 0.125);
    for (role, scaled) in [(Role::Q, Scaled::Q), (Role::K, Scaled::K)] {
        let row = a.stored(role).context("an operand")?.strides[2].unsigned_abs() as usize;
        let descale = inputs.buffer(Role::Descale(scaled))?.get(0);
        let old = inputs.buffer(role)?;
        // The first element of a row carries the growth, and small noise in the others makes rows differ.
        let real = |at: usize| match (at % width, role) {
            (0, Role::Q) => FIRST,
            (0, _) => (at / row) as f64 * growth / 128.0 / (FIRST * scale),
            _ => old.get(at) / 256.0,
        };
        let values: Vec<f64> = (0..old.len()).map(|at| real(at) / descale).collect();
        inputs.insert(role, Buffer::of(a.q.dtype, values));
    }
    Ok(inputs)
}

/// Launches the case with every scale of probabilities and every content of the memory before.
fn ask(runner: &Runner<'_>, a: &Valid, inputs: &Inputs, growth: f64) -> anyhow::Result<Vec<Value>> {
    let plan = runner.plan(a)?;
    let exact = forward(a, &inputs.widened())?;
    let number = |outputs: &qkvault_reference::Outputs, role| outputs.get(role).map_or(f64::NAN, |o| o.values()[0]);
    let largest = number(&exact, Role::Amax(Scaled::S));
    let mut rows = Vec::new();
    for scale in SCALES_OF_S.into_iter().chain([448.0 / largest]) {
        let mut inputs = inputs.clone();
        inputs.set_f32(Role::ScaleOf(Scaled::S), scale as f32);
        inputs.set_f32(Role::Descale(Scaled::S), (1.0 / scale) as f32);
        let o = exact.get(Role::O).context("an output")?.values();
        let before_sum = of_exponentials(a, &inputs)?;
        let rounded = forward(a, &inputs)?;
        let rounded = rounded.get(Role::O).context("an output")?.buffer();
        for (name, before) in BEFORE {
            let found = match runner.launcher() {
                None => None,
                Some((session, stream)) => {
                    let plan = session.load(&plan)?;
                    let words = |(status, why): (&str, String)| anyhow::anyhow!("{status}: {why}");
                    let mut memory = Memory::upload(stream, a, &plan, &inputs).map_err(words)?;
                    for which in [Scaled::S, Scaled::O] {
                        memory.fill(stream, Role::Amax(which), &before.to_ne_bytes()).map_err(words)?;
                    }
                    memory.bind(&plan, &inputs, stream).map_err(words)?.launch(stream)?;
                    stream.synchronize()?;
                    let read = |role| memory.download(stream, role).map_err(words)?.context("an output");
                    let (s, o_max) = (read(Role::Amax(Scaled::S))?.get(0), read(Role::Amax(Scaled::O))?.get(0));
                    let written = read(Role::O)?;
                    Some((s, o_max, distance(o, |at| written.get(at))))
                }
            };
            rows.push(json!({
                "attention": a.to_string(), "growth": growth, "scale_s": scale, "memory_before": name,
                "amax_s": found.map(|f| f.0), "largest_probability": largest, "largest_exponential": 1.0,
                "amax_o": found.map(|f| f.1), "largest_o": number(&exact, Role::Amax(Scaled::O)),
                "error": found.map(|f| f.2),
                "error_of_rounded_probabilities": distance(o, |at| rounded.get(at)),
                "error_of_rounded_exponentials": distance(o, |at| before_sum.get(at)),
            }));
        }
    }
    Ok(rows)
}

/// Distance to the exact numbers relative to them.
fn distance(exact: &[f64], of: impl Fn(usize) -> f64) -> f64 {
    let (off, all) =
        exact.iter().enumerate().fold((0.0, 0.0), |(off, all), (at, x)| (off + (of(at) - x).powi(2), all + x * x));
    (off / all).sqrt()
}

/// O if exponentials relative to the largest score are rounded, and their product with V is divided by their sum.
fn of_exponentials(a: &Valid, inputs: &Inputs) -> anyhow::Result<Buffer> {
    let number = |role| anyhow::Ok(inputs.buffer(role)?.get(0));
    let (scale_s, descale_s) = (number(Role::ScaleOf(Scaled::S))?, number(Role::Descale(Scaled::S))?);
    let scores = number(Role::Scale)? * number(Role::Descale(Scaled::Q))? * number(Role::Descale(Scaled::K))?;
    let values = descale_s * number(Role::Descale(Scaled::V))? * number(Role::ScaleOf(Scaled::O))?;
    let ([q, k, v], o) = ([Role::Q, Role::K, Role::V].map(|role| inputs.buffer(role)), a.o);
    let (q, k, v) = (q?, k?, v?);
    let (heads, width) = (a.q.heads().unsigned_abs() as usize, a.head_dims().0.unsigned_abs() as usize);
    let [s_q, s_kv] = [a.seq().0, a.seq().1].map(|n| n.unsigned_abs() as usize);
    let row = |buffer: &Buffer, s: usize, h: usize| {
        let mut row = vec![0.0_f64; width];
        buffer.read((s * heads + h) * width, &mut row);
        row
    };
    let mut result = Buffer::zeros(o.dtype, s_q * heads * width);
    for h in 0..heads {
        let keys: Vec<Vec<f64>> = (0..s_kv).map(|s| row(k, s, h)).collect();
        let of_v: Vec<Vec<f64>> = (0..s_kv).map(|s| row(v, s, h)).collect();
        for s in 0..s_q {
            let query = row(q, s, h);
            let seen = if a.mask.band.is_some() { s + 1 } else { s_kv };
            let dot = |key: &Vec<f64>| query.iter().zip(key).map(|(x, y)| x * y).sum::<f64>() * scores;
            let row: Vec<f64> = keys[..seen].iter().map(dot).collect();
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|x| (x - most).exp()).sum();
            let mut out = vec![0.0; width];
            for (x, v) in row.iter().zip(&of_v) {
                let p = round(a.q.dtype, (x - most).exp() * scale_s);
                out.iter_mut().zip(v).for_each(|(out, v)| *out += p * v);
            }
            for (d, x) in out.into_iter().enumerate() {
                result.set((s * heads + h) * width + d, x / sum * values);
            }
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::eight_bits::Expected;

    /// A kernel that rounds exponentials, as NVIDIA's reference does, is no wrong one.
    #[test]
    fn both_ways_of_rounding_are_judged_right() {
        for (at, shape) in shapes(90).into_iter().enumerate() {
            let a = validate(shape).expect("valid");
            let given = inputs(&a, 2, GROWTH[at]).expect("random");
            let expected = Expected::of(&a, &given).expect("computes");
            let other = of_exponentials(&a, &given).expect("computes");
            let found = expected.judge(&a, &given, Role::O, &other);
            assert_eq!(found.fault, None, "{a}");
            assert!(found.ratio > 0.3, "{a}: {}", found.ratio);
        }
    }

    /// With a scale that saturates nothing both ways of rounding are near the exact numbers; beyond 448 exponentials
    /// saturate and small probabilities do not.
    #[test]
    fn the_two_ways_of_rounding_differ_where_one_saturates() {
        let shape = shapes(90).remove(1);
        let a = validate(shape).expect("valid");
        let mut given = inputs(&a, 1, 0.0).expect("random");
        let exact = forward(&a, &given.widened()).expect("computes");
        let o = exact.get(Role::O).expect("an output").values();
        let mut errors = |scale: f64| {
            given.set_f32(Role::ScaleOf(Scaled::S), scale as f32);
            given.set_f32(Role::Descale(Scaled::S), (1.0 / scale) as f32);
            let exponentials = of_exponentials(&a, &given).expect("computes");
            let rounded = forward(&a, &given).expect("computes").buffer(Role::O).expect("an output");
            [distance(o, |at| rounded.get(at)), distance(o, |at| exponentials.get(at))]
        };
        assert!(errors(256.0).iter().all(|&error| error > 1e-3 && error < 0.06), "{:?}", errors(256.0));
        let [probabilities, exponentials] = errors(2048.0);
        assert!(probabilities < 0.06 && exponentials > 2.0 * probabilities, "{probabilities} {exponentials}");
    }
}
