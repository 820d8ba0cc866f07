//! The run on a GPU: all cases with either order, chains of launches and burn's operations, host times; a record.

use std::fmt::Write as _;
use std::time::Instant;

use burn_autodiff::Autodiff;
use burn_qkvault::qkvault::cache::VaultOptions;
use burn_qkvault::qkvault::{RawRuntime, Runtime};
use burn_qkvault::{Cuda, Options, Ordering, attention, set_ordering};
use burn_qkvault_examples::case::Case;
use burn_qkvault_examples::plain::{Plain, plain};
use burn_tensor::backend::Backend;
use burn_tensor::{DType, Tensor, TensorData};

use super::judge::{self, Given, Judged};
use super::{Failure, Words};

type Gpu = Autodiff<Cuda>;

/// Both orders, with their names in the record.
const ORDERS: [(Ordering, &str); 2] = [(Ordering::Waits, "waits"), (Ordering::Events, "events")];

pub(crate) fn run(vault: &str, out: &str, words: &Words) -> Result<(), Failure> {
    let cases = words.cases(60, false)?;
    let runtime =
        Runtime::options().vault(VaultOptions::in_folder(vault)).handles(16).build_missing(true).open_raw()?;
    let device = <Gpu as burn_tensor::backend::BackendTypes>::Device::default();
    let target = runtime.session(0)?.target()?.clone();
    let mut record = String::from("{\n");
    writeln!(record, "  \"device\": {:?},\n  \"cudnn\": \"{}\",", target.device.device_name, target.cudnn)?;
    writeln!(record, "  \"burn\": \"0.21.0\",\n  \"cubecl\": \"0.10.0\",\n  \"driver\": {:?},", driver())?;
    // Host times of a debug build say nothing of a release.
    writeln!(record, "  \"build\": \"{}\",", if cfg!(debug_assertions) { "debug" } else { "release" })?;
    writeln!(record, "  \"commit\": {:?},", words.text("--commit").unwrap_or("unknown"))?;
    writeln!(record, "  \"cases\": {},\n  \"seed\": {},", cases.len(), words.value("--seed", 1)?)?;
    let (mut wrong, mut given) = (0, Vec::new());
    for (ordering, name) in ORDERS {
        set_ordering(ordering);
        let began = Instant::now();
        let base = || Options::new().runtime(&runtime);
        let one = |(at, case): (usize, &Case)| {
            let own = Given::of::<Gpu>(case, &device, base());
            println!("{name}: case {at} after {:.1} s", began.elapsed().as_secs_f64());
            own
        };
        given.push(cases.iter().enumerate().map(one).collect::<Vec<Given>>());
        println!("{name}: {} cases computed in {:.1} s", cases.len(), began.elapsed().as_secs_f64());
    }
    for ((_, name), given) in ORDERS.iter().zip(&given) {
        let verdicts = judge::all(&cases, given);
        let (mut right, mut refused, mut faults, mut worst) = (0, Vec::new(), Vec::new(), 0f64);
        for (at, (own, case)) in verdicts.iter().zip(&cases).enumerate() {
            match own {
                Judged::Right(off) => (right, worst) = (right + 1, worst.max(*off)),
                Judged::Refused(codes) => refused.push(format!("case {at}: {codes}")),
                Judged::Wrong(why) => faults.push(format!("case {at}: {why}: {case:?}")),
            }
        }
        println!("{name}: {right} right, {} refused, {} wrong", refused.len(), faults.len());
        faults.iter().for_each(|why| println!("WRONG {why}"));
        writeln!(record, "  \"{name}\": {{\n    \"right\": {right},\n    \"worst_of_roundings\": {worst:.3},")?;
        writeln!(record, "    \"refused\": {refused:?},\n    \"wrong\": {faults:?}\n  }},")?;
        wrong += faults.len();
    }
    let chains = chains(&runtime, &device)?;
    println!("chains of launches and burn's operations, by four threads: {chains:?}");
    wrong += usize::from(chains.iter().any(|own| own != "right"));
    writeln!(record, "  \"chains\": {chains:?},")?;
    // What is known so far, should a peer end the process.
    std::fs::write(out, format!("{record}  \"times_us\": null\n}}\n"))?;
    writeln!(record, "  \"times_us\": {{\n{}\n  }}\n}}", times(&runtime, &device)?.join(",\n"))?;
    println!("{record}");
    std::fs::write(out, &record)?;
    if wrong > 0 { Err("something is wrong".into()) } else { Ok(()) }
}

/// The driver's version, as the kernel tells it.
fn driver() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let words = text.lines().next().unwrap_or_default().split_whitespace();
    let version = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    words.into_iter().find(version).unwrap_or("unknown").to_owned()
}

/// Sixty attentions in a row, each over what burn's operations make of the one before, without a wait between: with
/// both orders the bits are those of waits, in four threads at a time, each with a stream of burn's own.
fn chains(
    runtime: &RawRuntime,
    device: &<Cuda as burn_tensor::backend::BackendTypes>::Device,
) -> Result<Vec<String>, Failure> {
    let case = Case::timed()[0].unturned();
    let chain = || -> Result<TensorData, Failure> {
        let options = Options::new().causal(true).runtime(runtime);
        let [mut q, k, v] = case.leaves::<Cuda>(device, false).qkv;
        for at in 0..60 {
            // Memory that burn takes from a pool and gives back at once, where a launch too early or late is seen.
            let other = (q.clone() * 0.5 + v.clone()) * 0.25;
            let o = attention(q.clone() + other, k.clone(), v.clone(), &options)?;
            q = o * 0.75 + k.clone().mul_scalar(0.01 * at as f32);
        }
        Ok(q.into_data())
    };
    set_ordering(Ordering::Waits);
    let expected = chain()?;
    let mut all = Vec::new();
    for (ordering, name) in ORDERS {
        set_ordering(ordering);
        let same = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(chain)).collect();
            threads.into_iter().map(|own| own.join().map_err(|_| "a panic")).collect::<Vec<_>>()
        });
        let right = same.into_iter().all(|own| matches!(own, Ok(Ok(data)) if data.as_bytes() == expected.as_bytes()));
        all.push(if right { "right".to_owned() } else { format!("{name} differs") });
    }
    Ok(all)
}

/// Microseconds of a call: until it returns to the host, and of one of many in a row until the GPU has finished.
fn times(
    runtime: &RawRuntime,
    device: &<Cuda as burn_tensor::backend::BackendTypes>::Device,
) -> Result<Vec<String>, Failure> {
    let mut fields = Vec::new();
    for (case, size) in Case::timed().iter().zip(["256x8x64", "2048x16x128"]) {
        let [q, k, v] = case.leaves::<Cuda>(device, false).qkv;
        let leaves = case.leaves::<Gpu>(device, false).tracked(case.tracked);
        let weights = case.weights::<Gpu>(device, DType::BF16);
        for (ordering, name) in ORDERS {
            set_ordering(ordering);
            let options = Options::new().causal(true).runtime(runtime);
            let forward = measured::<Cuda>(device, || attention(q.clone(), k.clone(), v.clone(), &options).map(drop))?;
            let both = measured::<Cuda>(device, || {
                let o = case.attend(&leaves, Options::new().runtime(runtime))?;
                drop((o * weights.clone()).sum().backward());
                Ok(())
            })?;
            fields.push(format!("    \"forward {size}, {name}\": {forward}"));
            fields.push(format!("    \"forward and backward {size}, {name}\": {both}"));
        }
        let wide = case.leaves::<Cuda>(device, true).qkv;
        let causal = Plain { right: Some(0), ..Plain::default() };
        let peer = measured::<Cuda>(device, || {
            let [q, k, v] = wide.clone();
            drop(plain(q, k, v, &causal));
            Ok(())
        })?;
        fields.push(format!("    \"plain forward in float32 {size}\": {peer}"));
        let peer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            measured::<Cuda>(device, || {
                let own: [Tensor<Cuda, 4>; 3] = [q.clone(), k.clone(), v.clone()];
                let [q, k, v] = own;
                let options = burn_tensor::ops::AttentionModuleOptions { is_causal: true, ..Default::default() };
                drop(burn_tensor::module::attention(q, k, v, None, None, options));
                Ok(())
            })
        }));
        let peer = peer.map_err(|_| "a panic in burn").and_then(|own| own.map_err(|_| "an error"));
        fields.push(format!("    \"burn's own forward {size}\": {}", peer.unwrap_or_else(|why| format!("{why:?}"))));
    }
    Ok(fields)
}

/// `[host, whole]` of a call, the least of some rounds.
fn measured<B: Backend>(
    device: &B::Device,
    mut call: impl FnMut() -> Result<(), burn_qkvault::Error>,
) -> Result<String, Failure> {
    const ROUNDS: usize = 8;
    const CALLS: usize = 20;
    for _ in 0..3 {
        call()?;
    }
    B::sync(device)?;
    let (mut host, mut whole) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        host = host.min(began.elapsed().as_secs_f64());
        B::sync(device)?;
        whole = whole.min(began.elapsed().as_secs_f64());
    }
    let us = 1e6 / CALLS as f64;
    Ok(format!("[{:.1}, {:.1}]", host * us, whole * us))
}
