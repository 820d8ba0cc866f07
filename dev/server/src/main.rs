//! The server's program.
//!
//! ```text
//! server --cpu --model tiny                      # a tiny model on this CPU
//! server --model 1b --build                      # on a GPU; builds the plans that the vault lacks, before it is ready
//! server --model 1b --plan h200 --vault DIR      # without a GPU: compiles the plans for one, and ends
//! curl -N localhost:8080/generate --json '{"prompt": "Hello", "max_new": 8, "stream": true}'
//! ```

#![allow(clippy::print_stdout, reason = "this is a program's output")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use qkvault_server::config::{ModelShape, ServerLimits};
use qkvault_server::connections::{self, ConnectionBounds};
use qkvault_server::cpu::CpuModel;
use qkvault_server::engine::ServerEngine;
use qkvault_server::gpu::{GpuModel, GpuOptions};
use qkvault_server::{COMMIT, ServerError, http};

/// A server with continuous batching over pages, its attention by qkvault.
#[derive(Debug, Parser)]
#[command(version = COMMIT)]
struct ServerArgs {
    /// The model: tiny, small or 1b; its weights are random
    #[arg(long, default_value = "tiny")]
    model: String,
    /// Run on this CPU, with the oracle's attention
    #[arg(long)]
    cpu: bool,
    /// The address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Queue the kernels of each decode one by one, instead of as a captured graph
    #[arg(long)]
    no_graphs: bool,
    /// Build the plans that the vault lacks, before the server is ready
    #[arg(long)]
    build: bool,
    /// Compile the plans for this GPU, by name, into the vault, and end
    #[arg(long, value_name = "GPU", conflicts_with = "cpu")]
    plan: Option<String>,
    /// The folder of the vault (default: the user's)
    #[arg(long)]
    vault: Option<PathBuf>,
    /// Sequences that run at once
    #[arg(long)]
    batch: Option<usize>,
    /// New tokens of a step
    #[arg(long)]
    tokens: Option<usize>,
    /// New tokens of one sequence in a step
    #[arg(long)]
    chunk: Option<usize>,
    /// Tokens of a prompt and its answer
    #[arg(long)]
    context: Option<usize>,
    /// Pages of the pool
    #[arg(long)]
    pages: Option<usize>,
    /// The same bits for an answer alone and beside others: attention that is invariant, and products of fixed sizes
    #[arg(long, conflicts_with = "cpu")]
    invariant: bool,
    /// Requests that wait for room
    #[arg(long)]
    queue: Option<usize>,
    /// Seconds that a request waits for room
    #[arg(long)]
    patience: Option<f64>,
    /// Connections at once; the longest idle one gives its place to the next
    #[arg(long, default_value_t = ConnectionBounds::default().connections)]
    connections: usize,
    /// Seconds that the head of a request may take, and as many its body
    #[arg(long, default_value_t = ConnectionBounds::default().head.as_secs_f64())]
    read_timeout: f64,
    /// Seconds that requests run on after a stop
    #[arg(long, default_value_t = ConnectionBounds::default().grace.as_secs_f64())]
    grace: f64,
    /// The seed of the weights
    #[arg(long, default_value_t = 1)]
    seed: u32,
}

impl ServerArgs {
    fn limits(&self) -> Result<ServerLimits, ServerError> {
        let usual = if self.cpu { ServerLimits::SMALL } else { ServerLimits::LARGE };
        let patience = self.patience.map_or(Ok(usual.patience), Duration::try_from_secs_f64)?;
        ServerLimits {
            batch: self.batch.unwrap_or(usual.batch),
            tokens: self.tokens.unwrap_or(usual.tokens),
            chunk: self.chunk.unwrap_or(usual.chunk),
            context: self.context.unwrap_or(usual.context),
            pages: self.pages.unwrap_or(usual.pages),
            page: usual.page,
            queue: self.queue.unwrap_or(usual.queue),
            patience,
            invariant: self.invariant,
        }
        .checked()
    }

    fn bounds(&self) -> Result<ConnectionBounds, ServerError> {
        let read = Duration::try_from_secs_f64(self.read_timeout)?;
        let grace = Duration::try_from_secs_f64(self.grace)?;
        Ok(ConnectionBounds { connections: self.connections, head: read, body: read, grace })
    }
}

#[tokio::main]
async fn main() -> Result<(), ServerError> {
    let args = ServerArgs::parse();
    let (shape, limits, bounds) = (ModelShape::named(&args.model)?, args.limits()?, args.bounds()?);
    if let Some(gpu) = &args.plan {
        let (plans, refused) = limits.plan(&shape, gpu, args.vault.clone())?;
        println!("{plans} plans for {gpu} are in the vault; {refused} more are refused");
        return Ok(());
    }
    let listener = http::listen(args.listen).await?;
    let address = listener.local_addr()?;
    let ServerArgs { cpu, no_graphs, build, vault, seed, .. } = args;
    let started = std::time::Instant::now();
    let engine = tokio::task::spawn_blocking(move || match cpu {
        true => ServerEngine::start((shape, limits), move || CpuModel::new(shape, &limits, seed)),
        false => ServerEngine::start((shape, limits), move || {
            GpuModel::new(shape, limits, GpuOptions { graphs: !no_graphs, build, vault, seed })
        }),
    })
    .await??;
    let seconds = started.elapsed().as_secs_f64();
    println!("listening on http://{address}: {} with {limits:?}, ready after {seconds:.1} s", shape.name);
    match connections::serve(engine, listener, bounds, stopped()).await? {
        0 => println!("stopped: every request came to its end"),
        cut => println!("stopped: {cut} connections had requests after {:?}, which were cut", bounds.grace),
    }
    Ok(())
}

/// Done when the process is asked to stop.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    println!("stopping: no new requests, those that run come to their end");
}
