//! What a GPU must show of candle-qkvault: random attentions in both directions, bad input, speed. It writes a record.
//!
//! ```text
//! card [--out DIR] [--cases 100] [--seed 1] [--vault DIR] [--note 'KEY=VALUE']... [--cpu]
//! ```
//!
//! `--cpu` lets the oracle compute a few cases, to try the program itself. Plans that the vault lacks are built, by
//! threads, before the first case.

#![allow(clippy::print_stdout, reason = "this is a program's output")]

mod bad;
mod cases;
mod dropout;
mod families;
mod speed;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use candle_core::Device;
use candle_qkvault::qkvault::cache::{Mode, VaultOptions};
use candle_qkvault::qkvault::graph::Valid;
use candle_qkvault::qkvault::{RawRuntime, Runtime};
use candle_qkvault::{Error, Options};
use candle_qkvault_examples::{Words, device};
use cases::Case;
use families::Family;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let words = Words::of_process();
    let device = device(&words)?;
    let mut options = Runtime::options().build_missing(true).handles(16);
    if let Some(folder) = words.text("--vault") {
        options = options.vault(VaultOptions::in_folder(folder));
    }
    let options = if device.is_cpu() { options.vault(VaultOptions::new().mode(Mode::Off)) } else { options };
    let runtime = options.open_raw()?;
    // The oracle judges every launch, row by row, besides the comparison with candle's plain attention.
    let base = Options::new().runtime(&runtime).cpu_oracle(true).judge_launches(true);
    let (count, first): (u64, u64) = (words.value("--cases", 100)?, words.value("--seed", 1)?);
    let all: Vec<Case> = (0..count).map(|at| Case::new(first * 1000 + at)).collect();
    if !device.is_cpu() {
        let began = Instant::now();
        let ahead: Vec<Valid> = all.iter().filter_map(|case| case.ahead(&runtime).ok()).flatten().collect();
        println!("{} plans to prepare", ahead.len());
        prepare(&runtime, &ahead);
        println!("prepared in {:.1} s", began.elapsed().as_secs_f64());
    }
    let (mut right, mut refused, mut wrong) = (0, Vec::new(), Vec::new());
    // Right, refused and wrong.
    let mut families: BTreeMap<Family, [u64; 3]> = BTreeMap::new();
    for (at, case) in all.iter().enumerate() {
        let done = case.run(&base, &device);
        let place = match &done {
            Ok((_, off)) if *off <= 1.0 => 0,
            Err(error) if Error::of(error).is_some_and(|own| own.refusal().is_some()) => 1,
            _ => 2,
        };
        families.entry(case.family).or_default()[place] += 1;
        match done {
            Ok((_, off)) if off <= 1.0 => right += 1,
            Ok((what, off)) => wrong.push(format!("case {at}: {what} is {off:.2} times its bound: {case:?}")),
            Err(error) => match Error::of(&error).and_then(Error::refusal) {
                Some(refusal) => {
                    let mut codes: Vec<String> = refusal.reasons().iter().map(|own| own.code.to_string()).collect();
                    codes.dedup();
                    refused.push(format!("case {at}: {}", codes.join(" ")));
                    println!("refused, case {at}: {error}\n  {case:?}");
                }
                None => wrong.push(format!("case {at}: {error}: {case:?}")),
            },
        }
    }
    println!("{right} right, {} refused, {} wrong", refused.len(), wrong.len());
    if !device.is_cpu() {
        wrong.extend(dropout::run(&base, &device).unwrap_or_else(|error| vec![error.to_string()]));
    }
    wrong.iter().for_each(|text| println!("WRONG {text}"));
    let bad = bad::run(&base, &device)?;
    println!("bad input: {} errors with reasons, {} not", bad.0, bad.1.len());
    bad.1.iter().for_each(|text| println!("WRONG {text}"));
    let mut record = String::from("{\n");
    for (key, value) in words.pairs("--note") {
        writeln!(record, "  {key:?}: {value:?},")?;
    }
    writeln!(record, "  \"device\": {:?},\n  \"candle\": \"0.11.1\",", name(&device)?)?;
    let list = |texts: &[String]| texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ");
    writeln!(record, "  \"cases\": {count},\n  \"seed\": {first},\n  \"right\": {right},")?;
    let of_family = |(family, [right, refused, wrong]): (&Family, &[u64; 3])| {
        let name = format!("{family:?}").to_lowercase();
        format!("    \"{name}\": {{ \"right\": {right}, \"refused\": {refused}, \"wrong\": {wrong} }}")
    };
    let of_families: Vec<String> = families.iter().map(of_family).collect();
    writeln!(record, "  \"families\": {{\n{}\n  }},", of_families.join(",\n"))?;
    writeln!(record, "  \"refused\": [{}],", list(&refused))?;
    writeln!(record, "  \"wrong\": [{}],", list(&wrong))?;
    writeln!(record, "  \"bad_input\": {},\n  \"bad_input_wrong\": [{}],", bad.0, list(&bad.1))?;
    record.push_str(&speed::run(&base.judge_launches(false), &device, &words)?);
    record.push_str("\n}\n");
    println!("{record}");
    if let Some(folder) = words.text("--out") {
        std::fs::create_dir_all(folder)?;
        std::fs::write(std::path::Path::new(folder).join("adapter-candle.json"), &record)?;
    }
    if !(wrong.is_empty() && bad.1.is_empty()) {
        return Err("something is wrong".into());
    }
    println!("all right");
    Ok(())
}

/// The name of the device, for the record.
fn name(device: &Device) -> candle_core::Result<String> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(own) = device {
        return own.cuda_stream().context().name().map_err(candle_core::Error::wrap);
    }
    Ok(format!("{:?}", device.location()))
}

/// Prepares plans in several threads. What is refused is told when it is launched.
fn prepare(runtime: &RawRuntime, all: &[Valid]) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // SAFETY: null is the default stream.
                    let _ = unsafe { runtime.prepare(one, 0, std::ptr::null_mut()) };
                }
            });
        }
    });
}
