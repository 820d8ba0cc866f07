//! A server on this CPU with a tiny model, in a thread of the test, and its clients.

#![allow(dead_code, reason = "every test program uses a part")]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use qkvault_server::config::{ModelShape, ServerLimits};
use qkvault_server::connections::ConnectionBounds;
use qkvault_server::cpu::CpuModel;
use qkvault_server::engine::{ServedModel, ServerEngine};
use qkvault_server::metrics::Metrics;
use qkvault_server::step::{ModelStep, Picked};
use qkvault_server::{ServerError, connections, http, metrics};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// A running server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<usize, ServerError>>>,
}

/// A model that takes its time.
struct Slow(CpuModel);

impl ServedModel for Slow {
    fn run(&mut self, step: &ModelStep) -> Result<Vec<Picked>, ServerError> {
        std::thread::sleep(Duration::from_millis(4));
        self.0.run(step)
    }

    fn report(&mut self, metrics: &Metrics) {
        self.0.report(metrics);
    }
}

/// A status and a body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) body: Value,
}

impl Server {
    pub(crate) fn start(limits: ServerLimits) -> Server {
        let shape = ModelShape::named("tiny").expect("it is there");
        Server::with(limits, move || CpuModel::new(shape, &limits, 1))
    }

    /// A server whose steps take milliseconds, so that requests that are sent together run together.
    pub(crate) fn slow(limits: ServerLimits) -> Server {
        let shape = ModelShape::named("tiny").expect("it is there");
        Server::with(limits, move || Ok(Slow(CpuModel::new(shape, &limits, 1)?)))
    }

    /// A server with a model of the test's own.
    pub(crate) fn with<M: ServedModel>(
        limits: ServerLimits,
        make: impl FnOnce() -> Result<M, ServerError> + Send + 'static,
    ) -> Server {
        Server::bounded(limits, ConnectionBounds::default(), make)
    }

    /// A slow server with bounds of its own.
    pub(crate) fn slow_within(limits: ServerLimits, bounds: ConnectionBounds) -> Server {
        let shape = ModelShape::named("tiny").expect("it is there");
        Server::bounded(limits, bounds, move || Ok(Slow(CpuModel::new(shape, &limits, 1)?)))
    }

    fn bounded<M: ServedModel>(
        limits: ServerLimits,
        bounds: ConnectionBounds,
        make: impl FnOnce() -> Result<M, ServerError> + Send + 'static,
    ) -> Server {
        let (stop, stopped) = oneshot::channel();
        let (here, is_here) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let shape = ModelShape::named("tiny")?;
            let engine = ServerEngine::start((shape, limits), make)?;
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async {
                let listener = http::listen(([127, 0, 0, 1], 0).into()).await?;
                here.send(listener.local_addr()?)?;
                let stopped = async { drop(stopped.await) };
                connections::serve(engine, listener, bounds, stopped).await
            })
        });
        let address = is_here.recv().expect("it listens");
        Server { address, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        post(&self.url(path), body)
    }

    /// The answer of a prompt, not streamed.
    pub(crate) fn tokens(&self, prompt: &[u32], max_new: usize) -> Vec<u64> {
        let answer = self.post("/generate", &json!({ "prompt": prompt, "max_new": max_new }).to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        numbers(&answer.body["tokens"])
    }

    /// A response whose events are read line by line.
    pub(crate) fn stream(&self, prompt: &[u32], max_new: usize) -> impl Iterator<Item = Value> + use<> {
        let body = json!({ "prompt": prompt, "max_new": max_new, "stream": true }).to_string();
        let response = agent().post(self.url("/generate")).content_type("application/json").send(&body).expect("sent");
        assert_eq!(response.status(), 200);
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        lines.map_while(Result::ok).filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = agent().get(self.url("/metrics")).call().expect("sent").into_body().read_to_string().expect("text");
        metrics::value(&page, name).unwrap_or_else(|| panic!("no {name} in {page}"))
    }

    /// Waits until a metric has a value.
    pub(crate) fn wait(&self, name: &str, value: u64) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.metric(name) != value {
            assert!(Instant::now() < until, "{name} is {} and not {value}", self.metric(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks the server to stop.
    pub(crate) fn stop(&mut self) {
        self.stop.take().expect("once").send(()).expect("it listens");
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) {
        if self.stop.is_some() {
            self.stop();
        }
        assert_eq!(self.ended().expect("no failure"), 0, "connections were cut");
    }

    /// Waits until the server has ended by itself. Returns how many connections were cut.
    pub(crate) fn ended(mut self) -> Result<usize, ServerError> {
        self.thread.take().expect("once").join().expect("no panic")
    }
}

pub(crate) fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().new_agent()
}

pub(crate) fn post(url: &str, body: &str) -> Answer {
    let response = agent().post(url).content_type("application/json").send(body).expect("sent");
    let retry_after = response.headers().get("retry-after").map(|value| value.to_str().expect("text").to_owned());
    let status = response.status().as_u16();
    let text = response.into_body().read_to_string().expect("text");
    Answer { status, retry_after, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
}

pub(crate) fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a token")).collect()
}

/// A prompt of random tokens.
pub(crate) fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|at| qkvault_server::weights::mix(seed << 16 ^ at) % 512).collect()
}
