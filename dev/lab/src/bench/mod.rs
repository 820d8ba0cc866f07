//! `bench`: measures qkvault, and PyTorch where it is installed, on this machine's GPU, in turns in one run.
//!
//! Each part writes a record as JSON into one folder; `report` turns the folder into pages and the summary that the
//! README quotes.

mod cold;
mod engines;
mod first;
mod fp8;
mod ground;
mod kernels;
mod launch;
mod memory;
mod parallel;
mod peer;
mod report;
mod shapes;
mod summary;
mod timed;

use qkvault_cli::{Globals, Outcome, out};

use ground::GroundOptions;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    part: BenchPart,
}

/// The parts.
#[derive(Debug, clap::Subcommand)]
enum BenchPart {
    /// Every part below, then the report
    All(GroundOptions),
    /// NVIDIA's table of an H200: forward and backward, beside PyTorch's cuDNN backend
    Kernels(GroundOptions),
    /// Host time of every way to launch, beside cuDNN's own call and PyTorch
    Launch(GroundOptions),
    /// Fresh processes: time to the first output, and of each further shape
    Cold(GroundOptions),
    /// 256 shapes in random order, none launched before
    Shapes(GroundOptions),
    /// Bytes per loaded plan: on the GPU, in memory, on disk
    Memory(GroundOptions),
    /// Compile the plans of all parts for a GPU that need not be present
    Plan(ground::PlanOptions),
    /// Turn the records of a folder into Markdown and launch.json
    Report(report::ReportArgs),
    /// Time the attentions of a file, forward and backward
    Attentions(Box<timed::TimedArgs>),
    /// Times of cuDNN and of qkvault's kernels, and the table by which an engine is chosen
    Engines(Box<engines::EnginesArgs>),
    /// The FP8 rows of NVIDIA's table of an H200, forward and backward, beside bf16
    Fp8(Box<fp8::Fp8Args>),
    /// One attention over several GPUs, beside one GPU that computes all of it
    Parallel(Box<parallel::ParallelArgs>),
    /// One fresh process of `cold`
    #[command(hide = true)]
    First(first::FirstArgs),
}

/// A measurement that writes a record.
type Measure = fn(&Globals, &GroundOptions) -> anyhow::Result<serde_json::Value>;

/// The parts with records, in the order of `all`: those that need a cool GPU first.
const PARTS: [(&str, Measure); 5] = [
    ("launch", launch::run),
    ("cold", cold::run),
    ("shapes", shapes::run),
    ("memory", memory::run),
    ("kernels", kernels::run),
];

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &BenchArgs) -> anyhow::Result<Outcome> {
    let (name, options) = match &args.part {
        BenchPart::Attentions(args) => return timed::run(globals, args),
        BenchPart::Engines(args) => return engines::run(globals, args),
        BenchPart::Fp8(args) => return fp8::run(globals, args),
        BenchPart::Parallel(args) => return parallel::run(globals, args),
        BenchPart::First(args) => return first::run(globals, args),
        BenchPart::Report(args) => return report::run(args),
        BenchPart::Plan(options) => return ground::plan(globals, options),
        BenchPart::All(options) => ("all", options),
        BenchPart::Kernels(options) => ("kernels", options),
        BenchPart::Launch(options) => ("launch", options),
        BenchPart::Cold(options) => ("cold", options),
        BenchPart::Shapes(options) => ("shapes", options),
        BenchPart::Memory(options) => ("memory", options),
    };
    let mut outcome = Outcome::Good;
    for (part, measure) in PARTS.iter().filter(|(part, _)| name == "all" || name == *part) {
        out::note(&format!("bench {part}"));
        match measure(globals, options) {
            Ok(record) => options.write(part, &record)?,
            Err(error) if name == "all" => {
                // The other parts are still worth their time.
                out::problem(&format!("bench {part}: {error:#}"));
                outcome = Outcome::Bad;
            }
            Err(error) => return Err(error),
        }
    }
    report::write(&options.out, &options.out)?;
    out::note(&format!("records and pages: {}", options.out.display()));
    Ok(outcome)
}
