//! The HTTP front: requests as JSON, tokens as server-sent events.
//!
//! | | |
//! | --- | --- |
//! | `POST /generate` | `{"prompt": [1, 2] or "text", "max_new": 16, "temperature": 0, "seed": 0, "stream": true}` |
//! | `POST /score` | `{"prompt": [1, 2], "answer": [3]}`: how far each token is below the likeliest |
//! | `GET /metrics`, `GET /health` | counters for Prometheus; 200 when ready |
//!
//! The status of a stream is known with its first token: a request that finds no room in time gets 503 and
//! `Retry-After`. A body that does not come in time gets 408. A client that goes away drops its receiver, and the
//! engine takes back its pages before the next step.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRef, FromRequest, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use crate::ServerError;
use crate::engine::EngineHandle;
use crate::metrics::Metrics;
use crate::request::{Event, RequestKind, RequestRefused, Sampling, ServerRequest};

/// Bytes of a request, at most.
const BODY: usize = 1 << 20;

/// Bytes that are read before a longer request is refused: a client that still sends sees a closed connection instead
/// of the reason.
const READ: usize = 16 << 20;

/// Tokens, or a text whose bytes are tokens.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "a prompt is a text, or a list of tokens, which are whole numbers from 0 on")]
pub enum Prompt {
    /// Tokens.
    Tokens(Vec<u32>),
    /// A text.
    Text(String),
}

impl Prompt {
    fn tokens(self) -> Vec<u32> {
        match self {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => text.bytes().map(u32::from).collect(),
        }
    }
}

/// The body of `POST /generate`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Generate {
    /// What to continue.
    pub prompt: Prompt,
    /// Tokens of the answer.
    pub max_new: usize,
    /// 0 takes the likeliest token.
    #[serde(default)]
    pub temperature: f32,
    /// The same seed gives the same answer.
    #[serde(default)]
    pub seed: u32,
    /// Whether each token is sent when it is known.
    #[serde(default)]
    pub stream: bool,
}

/// The body of `POST /score`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// What the answer follows.
    pub prompt: Prompt,
    /// The tokens to score.
    pub answer: Vec<u32>,
}

impl IntoResponse for RequestRefused {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            RequestRefused::Wrong(why) => (StatusCode::BAD_REQUEST, why),
            RequestRefused::TooLong(why) => (StatusCode::PAYLOAD_TOO_LARGE, why),
            RequestRefused::Slow(why) => (StatusCode::REQUEST_TIMEOUT, why),
            RequestRefused::Busy(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
            RequestRefused::Failed(why) => (StatusCode::INTERNAL_SERVER_ERROR, why),
        };
        let mut response = (status, Json(json!({ "error": why }))).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}

/// What every route has.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) handle: EngineHandle,
    /// How long the body of a request may take.
    pub(crate) body: Duration,
    /// True when the server is stopping: it waits for no body then.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl FromRef<Front> for EngineHandle {
    fn from_ref(front: &Front) -> EngineHandle {
        front.handle.clone()
    }
}

/// The routes.
pub(crate) fn router(front: Front) -> Router {
    Router::new()
        .route("/generate", post(generate))
        .route("/score", post(score))
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .layer(DefaultBodyLimit::max(READ))
        .with_state(front)
}

/// Opens the listener.
///
/// # Errors
///
/// The address is in use, or not of this machine.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}").into())
}

/// Takes a checked request, or counts one that is wrong.
fn submit(
    handle: &EngineHandle,
    prompt: Prompt,
    wanted: RequestKind,
) -> Result<UnboundedReceiver<Event>, RequestRefused> {
    let request = ServerRequest::new(prompt.tokens(), wanted, &handle.shape, &handle.limits);
    let wrong = || Metrics::add(&handle.metrics.requests_wrong_total, 1);
    handle.submit(request.inspect_err(|_| wrong())?)
}

/// The body of a request, which has come in time, or why it has not.
struct RequestBody(Result<Bytes, RequestRefused>);

impl FromRequest<Front> for RequestBody {
    type Rejection = Infallible;

    async fn from_request(request: axum::extract::Request, front: &Front) -> Result<RequestBody, Infallible> {
        let mut stopping = front.stopping.clone();
        let time = front.body;
        let given = tokio::select! {
            read = Bytes::from_request(request, front) => {
                let bytes = read.ok().filter(|bytes| bytes.len() <= BODY);
                bytes.ok_or_else(|| RequestRefused::TooLong(format!("a body of more than {BODY} bytes")))
            }
            () = tokio::time::sleep(time) => {
                Err(RequestRefused::Slow(format!("the body has not come within {time:?}")))
            }
            _ = stopping.wait_for(|stopping| *stopping) => {
                Err(RequestRefused::Busy("the server is stopping".to_owned()))
            }
        };
        Ok(RequestBody(given))
    }
}

/// The JSON of a body.
fn body<T: DeserializeOwned>(handle: &EngineHandle, RequestBody(given): RequestBody) -> Result<T, RequestRefused> {
    let read = || serde_json::from_slice(&given?).map_err(|error| RequestRefused::Wrong(error.to_string()));
    read().inspect_err(|_| Metrics::add(&handle.metrics.requests_wrong_total, 1))
}

const ENDED: &str = "the engine has ended";

async fn generate(State(handle): State<EngineHandle>, given: RequestBody) -> Result<Response, RequestRefused> {
    let Generate { prompt, max_new, temperature, seed, stream } = body(&handle, given)?;
    let mut events = submit(&handle, prompt, RequestKind::Tokens(max_new, Sampling { temperature, seed }))?;
    if stream {
        return match events.recv().await {
            Some(Event::Refused(refused)) => Err(refused),
            Some(first) => Ok(streamed(first, events)),
            None => Err(RequestRefused::Failed(ENDED.to_owned())),
        };
    }
    let mut tokens = Vec::new();
    loop {
        match events.recv().await {
            Some(Event::Token(token)) => tokens.push(token),
            Some(Event::Scores(_)) => {}
            Some(Event::Done(summary)) => {
                return Ok(Json(json!({ "tokens": tokens, "summary": summary })).into_response());
            }
            Some(Event::Refused(refused)) => return Err(refused),
            None => return Err(RequestRefused::Failed(ENDED.to_owned())),
        }
    }
}

/// A response with an event for each token. Its body has the receiver, so it goes when the client goes.
fn streamed(first: Event, events: UnboundedReceiver<Event>) -> Response {
    let each = stream::unfold((Some(first), Some(events)), async |(first, events)| {
        let mut events = events?;
        let event = match first {
            Some(first) => Some(first),
            None => events.recv().await,
        };
        let (line, more) = match event {
            Some(Event::Token(token)) => (json!({ "token": token }), true),
            Some(Event::Scores(_)) => (json!({}), true),
            Some(Event::Done(summary)) => (json!({ "done": summary }), false),
            Some(Event::Refused(refused)) => (json!({ "error": format!("{refused:?}") }), false),
            None => (json!({ "error": ENDED }), false),
        };
        let text = Bytes::from(format!("data: {line}\n\n"));
        Some((Ok::<_, Infallible>(text), (None, more.then_some(events))))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(each)).into_response()
}

async fn score(State(handle): State<EngineHandle>, given: RequestBody) -> Result<Response, RequestRefused> {
    let Score { prompt, answer } = body(&handle, given)?;
    let mut events = submit(&handle, prompt, RequestKind::Scores(answer))?;
    let mut gaps = Vec::new();
    loop {
        match events.recv().await {
            Some(Event::Scores(more)) => gaps.extend(more),
            Some(Event::Token(_)) => {}
            Some(Event::Done(_)) => return Ok(Json(json!({ "gaps": gaps })).into_response()),
            Some(Event::Refused(refused)) => return Err(refused),
            None => return Err(RequestRefused::Failed(ENDED.to_owned())),
        }
    }
}

async fn metrics(State(handle): State<EngineHandle>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], handle.metrics.text()).into_response()
}

async fn health(State(handle): State<EngineHandle>) -> StatusCode {
    match handle.metrics.ready.load(Relaxed) {
        1 => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}
