//! Chunks of queries and slices of keys at positions of a longer sequence, beside the whole: outputs and gradients.

mod plain;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_qkvault::qkvault::graph::expr::{key, query};
use candle_qkvault::qkvault::graph::{MAX_ORIGIN, text};
use candle_qkvault::{Error, Options, attention, descriptions};
use plain::{near, var};

const ROWS: usize = 12;

fn oracle() -> Options {
    Options::new().cpu_oracle(true)
}

/// Options that count positions.
fn counting(slopes: &Tensor) -> Vec<(&'static str, Options)> {
    let far = |score| score - (query() * 3 - key()).to_float() * 0.125;
    vec![
        ("causal", oracle().causal(true)),
        ("window", oracle().window_size_left(3).window_size_right(1)),
        ("slopes", oracle().causal(true).softcap(2.0).alibi_slopes(slopes)),
        ("positions", oracle().score_mod(far)),
        ("a mask", oracle().mask_mod(key().le(query() + 2)).window_size_left(5)),
    ]
}

fn half(of: &Var) -> Result<Tensor> {
    of.to_dtype(DType::BF16)
}

/// Output and gradients of `run` over weighted rows.
fn output(vars: &[&Var], weights: &Tensor, run: impl Fn() -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let o = run()?;
    let gradients = (o.to_dtype(DType::F32)? * weights)?.backward()?;
    let own = vars.iter().map(|var| gradients.get(var).cloned().expect("it has a gradient"));
    Ok([o].into_iter().chain(own).collect())
}

#[test]
fn chunks_of_queries_over_slices_of_keys_are_the_whole() -> Result<()> {
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu)?;
    let [q, k, v] = [4, 2, 2].map(|heads| var(&[2, ROWS, heads, 16], DType::BF16));
    let weights = Tensor::randn(0f32, 1.0, (2, ROWS, 4, 16), &Device::Cpu)?;
    for (name, options) in counting(&slopes) {
        let whole = output(&[&q, &k, &v], &weights, || attention(&half(&q)?, &half(&k)?, &half(&v)?, &options))?;
        let chunked = || {
            let chunks = (0..ROWS).step_by(4).map(|first| {
                let options = options.clone().query_origin(first);
                attention(&half(&q)?.narrow(1, first, 4)?, &half(&k)?, &half(&v)?, &options)
            });
            Tensor::cat(&chunks.collect::<Result<Vec<Tensor>>>()?, 1)
        };
        for (at, (ours, theirs)) in output(&[&q, &k, &v], &weights, chunked)?.iter().zip(&whole).enumerate() {
            near(&format!("{name}, tensor {at}"), ours, theirs);
        }
    }
    // A window of four keys: each chunk is given the keys that it sees.
    let options = oracle().causal(true).window_size_left(3);
    let whole = output(&[&q, &k, &v], &weights, || attention(&half(&q)?, &half(&k)?, &half(&v)?, &options))?;
    let sliced = || {
        let chunks = (0..ROWS).step_by(4).map(|first| {
            let (start, options) = (first.saturating_sub(3), options.clone().query_origin(first));
            let keys = |of: &Var| half(of)?.narrow(1, start, first + 4 - start);
            attention(&half(&q)?.narrow(1, first, 4)?, &keys(&k)?, &keys(&v)?, &options.key_origin(start))
        });
        Tensor::cat(&chunks.collect::<Result<Vec<Tensor>>>()?, 1)
    };
    for (at, (ours, theirs)) in output(&[&q, &k, &v], &weights, sliced)?.iter().zip(&whole).enumerate() {
        near(&format!("slices, tensor {at}"), ours, theirs);
    }
    Ok(())
}

#[test]
fn a_backward_has_the_origins_of_its_own_forward() -> Result<()> {
    let [q, k, v] = [4, 2, 2].map(|heads| var(&[1, ROWS, heads, 16], DType::BF16));
    let weights = Tensor::randn(0f32, 1.0, (1, 4, 4, 16), &Device::Cpu)?;
    let options = oracle().causal(true).query_origin(4);
    let rows = half(&q)?.narrow(1, 4, 4)?;
    let of = |options: &Options| attention(&rows, &half(&k)?, &half(&v)?, options);
    let first = of(&options)?;
    let second = of(&options.clone().query_origin(0))?;
    let gradient = |o: &Tensor| -> Result<GradStore> { (o.to_dtype(DType::F32)? * &weights)?.backward() };
    let moved = gradient(&first)?;
    let d_v = moved.get(&v).expect("a gradient").narrow(1, 4, 4)?.abs()?.sum_all()?.to_scalar::<f32>()?;
    assert!(d_v > 0.1, "queries at 4 to 7 see keys from 4 on");
    let unmoved = gradient(&second)?;
    let d_v = unmoved.get(&v).expect("a gradient").narrow(1, 4, 4)?.abs()?.sum_all()?.to_scalar::<f32>()?;
    assert!(d_v == 0.0, "queries at 0 to 3 see none of them");
    Ok(())
}

#[test]
fn one_description_serves_all_origins() -> Result<()> {
    let q = Tensor::zeros((1, 128, 2, 64), DType::BF16, &Device::Cpu)?;
    let texts = |options: Options| -> Result<Vec<String>> {
        Ok(descriptions(&q, &q, &q, None, &options, true)?.iter().map(|own| text::print(own.get())).collect())
    };
    let options = Options::new().causal(true);
    let (here, there) =
        (texts(options.clone().query_origin(1))?, texts(options.clone().query_origin(9).key_origin(2))?);
    assert_eq!(here, there);
    assert!(here.iter().all(|text| text.contains("origins: any")), "{here:?}");
    assert!(texts(options)?.iter().all(|text| !text.contains("origins")));
    Ok(())
}

#[test]
fn positions_that_no_launch_takes_are_named() -> Result<()> {
    let q = Tensor::zeros((1, 4, 2, 16), DType::BF16, &Device::Cpu)?;
    let most = usize::try_from(MAX_ORIGIN).expect("it fits");
    assert!(attention(&q, &q, &q, &oracle().key_origin(most)).is_ok());
    let error = attention(&q, &q, &q, &oracle().query_origin(most + 1)).expect_err("too far");
    let own = Error::of(&error).expect("an error of this crate").to_string();
    assert!(own.contains("query_origin is 8388609") && own.contains("at most 8388608"), "{own}");
    Ok(())
}
