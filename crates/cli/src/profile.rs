//! `profile`: lists, shows and captures GPU profiles.

use std::path::PathBuf;

use anyhow::Context as _;
use qkvault_cudnn::Profile;
use serde_json::json;

use crate::target::{LibraryArgs, profile};
use crate::{Globals, Outcome, out};

/// Commands that work on profiles.
#[derive(Debug, clap::Subcommand)]
pub enum ProfileCommand {
    /// List the GPUs that come with qkvault
    Ls,
    /// Print one profile
    Show {
        /// A name from `profile ls`, or a profile file
        name: String,
    },
    /// Read the properties of this machine's GPU, as cuDNN reports them
    Capture {
        /// Name for the profile
        #[arg(long, default_value = "captured")]
        name: String,
        /// File to write (default: standard output)
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
        /// The GPU's number
        #[arg(long, default_value_t = 0)]
        device: usize,
        #[command(flatten)]
        library: LibraryArgs,
    },
}

/// Runs one of the commands.
pub(super) fn run(globals: &Globals, command: &ProfileCommand) -> anyhow::Result<Outcome> {
    match command {
        ProfileCommand::Ls => list(globals),
        ProfileCommand::Show { name } => out::json(&serde_json::to_value(profile(name)?)?),
        ProfileCommand::Capture { name, out: file, device, library } => {
            let library = qkvault_sys::Library::open(&library.search()?)?;
            let device = qkvault_exec::Device::open(*device)?;
            let properties = device.properties(&library)?;
            let source = format!(
                "read with cuDNN {} from an {}, driver for CUDA {}.{}",
                library.version(),
                device.name(),
                properties.driver_ver / 1000,
                properties.driver_ver % 1000 / 10
            );
            let profile = Profile { name: name.clone(), source, verified: true, properties };
            let value = serde_json::to_value(&profile)?;
            match file {
                Some(path) => std::fs::write(path, format!("{value:#}\n"))
                    .with_context(|| format!("{} could not be written", path.display()))?,
                None => out::json(&value),
            }
        }
    }
    Ok(Outcome::Good)
}

fn list(globals: &Globals) {
    let profiles: Vec<Profile> = Profile::built_in().collect();
    if globals.json {
        out::json(&json!({ "profiles": profiles }));
        return;
    }
    let rows: Vec<Vec<String>> = profiles
        .iter()
        .map(|p| {
            vec![
                p.name.clone(),
                format!("sm_{}", p.properties.sm()),
                p.properties.multi_processor_count.to_string(),
                p.properties.device_name.clone(),
                if p.verified { "yes" } else { "no" }.to_owned(),
            ]
        })
        .collect();
    out::table(&["name", "arch", ">SMs", "device", "verified"], &rows);
}
