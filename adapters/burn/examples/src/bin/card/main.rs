//! What a GPU must show of burn-qkvault: random attentions in both directions, order with burn's stream, host times.
//!
//! ```text
//! card prepare VAULT [--cases 60] [--seed 1] [--gpu h200]    fills a vault; no GPU is needed
//! card run VAULT OUT.json [--cases 60] [--seed 1] [--commit TEXT]
//! card cpu [--cases 8] [--seed 1]                            small cases by the oracle, to try the program
//! ```
//!
//! Outputs hold NaN before a launch. The project's judge compares every output with the float64 definition, as a whole
//! and row by row.

#![allow(clippy::print_stdout, reason = "this is a program's output")]

#[cfg(feature = "cuda")]
mod gpu;
mod judge;
mod prepare;

use burn_autodiff::Autodiff;
use burn_qkvault::Options;
use burn_qkvault_examples::case::Case;

use judge::{Given, Judged};

/// burn's backend for CPUs.
type Cpu = Autodiff<burn_qkvault::Flex>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Words of the command line.
struct Words(Vec<String>);

impl Words {
    fn text(&self, word: &str) -> Option<&str> {
        let at = self.0.iter().position(|own| own == word)?;
        self.0.get(at + 1).map(String::as_str)
    }

    fn value(&self, word: &str, usual: u64) -> Result<u64, Failure> {
        Ok(self.text(word).map_or(Ok(usual), str::parse)?)
    }

    fn cases(&self, usual: u64, small: bool) -> Result<Vec<Case>, Failure> {
        let (count, seed) = (self.value("--cases", usual)?, self.value("--seed", 1)?);
        Ok((0..count).map(|at| Case::new(seed * 1000 + at, small)).collect())
    }
}

fn main() -> Result<(), Failure> {
    let words = Words(std::env::args().skip(1).collect());
    match words.0.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["prepare", vault, ..] => prepare::fill(vault, words.text("--gpu").unwrap_or("h200"), &words.cases(60, false)?),
        #[cfg(feature = "cuda")]
        ["run", vault, out, ..] => gpu::run(vault, out, &words),
        ["cpu", ..] => cpu(&words.cases(8, true)?),
        _ => Err("usage: card prepare VAULT | card run VAULT OUT.json (feature `cuda`) | card cpu".into()),
    }
}

fn cpu(cases: &[Case]) -> Result<(), Failure> {
    let given = cases.iter().map(|case| Given::of::<Cpu>(case, &Default::default(), Options::new()));
    let given: Vec<Given> = given.collect();
    let verdicts = judge::all(cases, &given);
    for (own, case) in verdicts.iter().zip(cases) {
        match own {
            Judged::Right(worst) => println!("right, {worst:.2} of what roundings explain"),
            Judged::Refused(codes) => println!("refused, {codes}: {case:?}"),
            Judged::Wrong(why) => println!("WRONG {why}: {case:?}"),
        }
    }
    let right = verdicts.iter().filter(|own| matches!(own, Judged::Right(_))).count();
    println!("{right} of {} right", cases.len());
    if verdicts.iter().any(|own| matches!(own, Judged::Wrong(_))) { Err("something is wrong".into()) } else { Ok(()) }
}
