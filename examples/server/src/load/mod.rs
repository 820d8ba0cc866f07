//! The load client: it starts servers, measures them, breaks what clients can break, and checks answers.

mod bench;
mod check;
mod client;
mod process;
mod smoke;
mod soak;
mod users;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde_json::Value;

use crate::Failure;
use crate::config::Shape;

/// Loads servers of this example, measures them and checks their answers.
#[derive(Debug, Parser)]
pub struct Load {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Answers of three servers beside each other: the CPU's, the GPU's, and the GPU's with plain attention
    Smoke(Common),
    /// Tokens per second, times to the first token and the attention's share, for some numbers of users
    Bench {
        #[command(flatten)]
        common: Common,
        /// Numbers of users
        #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64, 256])]
        users: Vec<usize>,
        /// Seconds of each measurement; a third as many before it are not counted
        #[arg(long, default_value_t = 6.0)]
        seconds: f64,
    },
    /// Minutes of load with faults; then pages, memory and answers are checked
    Soak {
        #[command(flatten)]
        common: Common,
        /// Minutes
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
        /// Users at once
        #[arg(long, default_value_t = 256)]
        users: usize,
    },
}

/// Options of all commands.
#[derive(Clone, Debug, Args)]
struct Common {
    /// The server's program (default: beside this one)
    #[arg(long)]
    server: Option<PathBuf>,
    /// The model
    #[arg(long, default_value = "1b")]
    model: String,
    /// Servers run on this CPU
    #[arg(long)]
    cpu: bool,
    /// The vault of the servers (default: the user's)
    #[arg(long)]
    vault: Option<PathBuf>,
    /// Also write the record to this file
    #[arg(long)]
    out: Option<PathBuf>,
    /// Seed of prompts
    #[arg(long, default_value_t = 1)]
    seed: u32,
}

impl Common {
    fn shape(&self) -> Result<Shape, Failure> {
        Shape::named(&self.model)
    }

    /// Writes the record so far.
    fn save(&self, record: &Value) -> Result<(), Failure> {
        if let Some(out) = &self.out {
            std::fs::write(out, format!("{record:#}\n"))?;
        }
        Ok(())
    }
}

/// Prints a line about what is done now.
#[allow(clippy::print_stdout, reason = "this is a program's output")]
fn say(line: &str) {
    println!("{line}");
}

impl Load {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// A server does not start, or something was wrong.
    pub fn run(&self) -> Result<(), Failure> {
        let (common, record) = match &self.what {
            What::Smoke(common) => (common, smoke::run(common)?),
            What::Bench { common, users, seconds } => (common, bench::run(common, users, *seconds)?),
            What::Soak { common, minutes, users } => (common, soak::run(common, *minutes, *users)?),
        };
        say(&format!("{record:#}"));
        common.save(&record)?;
        match record["wrong"].as_array() {
            Some(wrong) if wrong.is_empty() => Ok(()),
            _ => Err(format!("wrong: {:#}", record["wrong"]).into()),
        }
    }
}
