//! A server as a process of its own.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::LoadOptions;
use super::client::LoadClient;
use crate::ServerError;
use crate::metrics::{label, value};

/// How long a server takes to start or to stop, at most.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running server.
pub(super) struct ServerProcess {
    child: Child,
    output: BufReader<ChildStdout>,
    pub(super) base: String,
    pub(super) client: LoadClient,
    /// What it said when it was ready.
    pub(super) said: String,
}

impl ServerProcess {
    /// Starts a server with options of its own, and waits until it is ready.
    pub(super) fn start(common: &LoadOptions, more: &[&str]) -> Result<ServerProcess, ServerError> {
        let program = match &common.server {
            Some(program) => program.clone(),
            None => beside()?,
        };
        let mut command = Command::new(&program);
        command.args(["--model", &common.model, "--listen", "127.0.0.1:0"]);
        if common.cpu {
            command.arg("--cpu");
        }
        if let Some(vault) = &common.vault {
            command.arg("--build").arg("--vault").arg(vault);
        }
        command.args(more).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let mut output = BufReader::new(child.stdout.take().ok_or("the server has no output")?);
        let mut said = String::new();
        output.read_line(&mut said)?;
        let base = said.split_whitespace().find(|word| word.starts_with("http://"));
        let Some(base) = base.map(|word| word.trim_end_matches(':').to_owned()) else {
            let status = child.wait()?;
            return Err(format!("the server with {more:?} ended with {status} before it was ready").into());
        };
        super::say(said.trim());
        let client = LoadClient::new(&base);
        Ok(ServerProcess { child, output, base, client, said: said.trim().to_owned() })
    }

    /// The page of metrics.
    pub(super) fn metrics(&self) -> Result<MetricsPage, ServerError> {
        Ok(MetricsPage(self.client.get("/metrics")?))
    }

    /// Waits until nothing runs and nothing waits.
    pub(super) fn settle(&self) -> Result<MetricsPage, ServerError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let page = self.metrics()?;
            if page.count("running") + page.count("waiting") == 0 {
                return Ok(page);
            }
            if Instant::now() > until {
                return Err(format!("the server does not come to rest: {}", page.0).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks the server to stop, and waits for its end.
    pub(super) fn stop(mut self) -> Result<(), ServerError> {
        let id = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status()?;
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > until {
                return Err("the server does not stop".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let rest: Vec<String> = self.output.by_ref().lines().collect::<Result<_, _>>()?;
        match status.success() && rest.iter().any(|line| line.starts_with("stopped")) {
            true => Ok(()),
            false => Err(format!("the server ended with {status}: {rest:?}").into()),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // One that was not stopped, because something failed before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page of metrics.
pub(super) struct MetricsPage(String);

impl MetricsPage {
    /// A metric; 0 if there is none.
    pub(super) fn count(&self, name: &str) -> u64 {
        value(&self.0, name).unwrap_or(0)
    }

    /// What the page says of the machine.
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        label(&self.0, name)
    }
}

fn beside() -> Result<PathBuf, ServerError> {
    Ok(std::env::current_exe()?.with_file_name("server"))
}
