//! The connections: how many there are, how long a request may take to come, and the end of the server.
//!
//! A client that opens connections and says nothing takes nobody's place: when all are taken, the one that has had no
//! request for longest is closed for the next. When the server stops, connections without a complete request end at
//! once, and those with one when it is answered, or after the grace.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::{Error, Router};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;

use crate::ServerError;
use crate::engine::ServerEngine;
use crate::http::{self, Front};

/// How long a connection has for its request while others wait for its place.
const CROWDED: Duration = Duration::from_millis(100);

/// How long the last bytes of an answer may take to leave a connection that is closed.
const FLUSH: Duration = Duration::from_millis(500);

/// Descriptors that the server keeps for other things than connections.
const SPARE: usize = 8;

/// What a client is told that finds no place: all others have requests.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// What connections take at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionBounds {
    /// Connections at once. Fewer if the process may not open so many descriptors.
    pub connections: usize,
    /// How long a connection may take for the head of a request, from its beginning or from the answer before.
    pub head: Duration,
    /// How long the body of a request may take.
    pub body: Duration,
    /// How long requests run on after a stop.
    pub grace: Duration,
}

impl Default for ConnectionBounds {
    fn default() -> ConnectionBounds {
        let read = Duration::from_secs(15);
        ConnectionBounds { connections: 1024, head: read, body: read, grace: Duration::from_secs(30) }
    }
}

/// Serves until `stop` is done, then lets the requests that it has come to their end, within the grace. An engine that
/// fails stops it too. Returns the number of connections that had not ended with the grace.
///
/// # Errors
///
/// What stopped the engine.
pub async fn serve(
    mut engine: ServerEngine,
    listener: TcpListener,
    bounds: ConnectionBounds,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<usize, ServerError> {
    let handle = engine.handle.clone();
    let (_, never) = oneshot::channel();
    let ended = std::mem::replace(&mut engine.ended, never);
    let (stopping, is_stopping) = watch::channel(false);
    let front = Front { handle: handle.clone(), body: bounds.body, stopping: is_stopping };
    let room =
        ConnectionRoom { router: http::router(front), bounds, most: places(bounds.connections), all: Arc::default() };
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = stop => {}
        _ = ended => {}
        () = room.accept(&listener, &mut tasks) => {}
    }
    drop(listener);
    handle.drain();
    // Nobody looks for it any more if there is no request.
    let _ = stopping.send(true);
    room.lock().iter().for_each(|connection| connection.end.notify_one());
    let all = async { while tasks.join_next().await.is_some() {} };
    let cut = if tokio::time::timeout(bounds.grace, all).await.is_ok() { 0 } else { tasks.len() };
    tasks.shutdown().await;
    tokio::task::spawn_blocking(move || engine.join()).await??;
    Ok(cut)
}

/// As many connections as are asked for, or as descriptors are left for.
fn places(asked: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let open = std::fs::read_dir("/proc/self/fd").map_or(64, Iterator::count);
    asked.min(limit.saturating_sub(open + SPARE)).max(1)
}

/// All connections.
struct ConnectionRoom {
    router: Router,
    bounds: ConnectionBounds,
    most: usize,
    all: Arc<Mutex<Vec<Arc<Connection>>>>,
}

/// What is known of a connection.
struct Connection {
    /// Requests in work: 0 or 1.
    requests: AtomicUsize,
    /// Since when there is no request.
    idle: Mutex<Instant>,
    /// Asked to end.
    end: Notify,
}

impl ConnectionRoom {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes connections, for ever.
    async fn accept(&self, listener: &TcpListener, tasks: &mut JoinSet<()>) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = tasks.join_next() => continue,
            };
            match accepted {
                Ok((stream, _)) => self.seat(stream, tasks).await,
                // No descriptor is left, for which an idle connection gives its own; other errors are the client's.
                Err(_) => {
                    let _ = self.make_room();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    /// Gives a connection a place, once there is one.
    async fn seat(&self, stream: TcpStream, tasks: &mut JoinSet<()>) {
        while tasks.len() >= self.most {
            let Some(wait) = self.make_room() else {
                // It is told at once, if its buffer takes the words.
                let _ = stream.try_write(FULL);
                return;
            };
            let _ = tokio::time::timeout(wait, tasks.join_next()).await;
        }
        let connection = Arc::new(Connection {
            requests: AtomicUsize::new(0),
            idle: Mutex::new(Instant::now()),
            end: Notify::new(),
        });
        self.lock().push(Arc::clone(&connection));
        let (all, router, head) = (Arc::clone(&self.all), self.router.clone(), self.bounds.head);
        tasks.spawn(async move {
            connection.serve(stream, router, head).await;
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|other| !Arc::ptr_eq(other, &connection));
        });
    }

    /// Ends the connection that has had no request for longest, if that is [`CROWDED`] ago. Returns how long to wait
    /// for a place; `None` if all connections have requests.
    fn make_room(&self) -> Option<Duration> {
        let all = self.lock();
        let idle = all.iter().filter(|connection| connection.requests.load(SeqCst) == 0);
        let oldest = idle.max_by_key(|connection| connection.idle_for())?;
        let left = CROWDED.saturating_sub(oldest.idle_for());
        if left.is_zero() {
            oldest.end.notify_one();
        }
        Some(left.max(Duration::from_millis(1)))
    }
}

impl Connection {
    fn idle_for(&self) -> Duration {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Serves the requests of a connection until it ends or is asked to.
    async fn serve(self: &Arc<Connection>, stream: TcpStream, router: Router, head: Duration) {
        // Each token is its own packet.
        let _ = stream.set_nodelay(true);
        let routes = TowerToHyperService::new(router);
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let work = RequestGuard::begin(self);
            let answer = routes.call(request);
            async move { answer.await.map(|answer| answer.map(|body| AnswerBody { body, _work: work })) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(head);
        let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            _ = served.as_mut() => return,
            () = self.end.notified() => {}
        }
        // One without a request is dropped, with the half of one that it may have; what follows an answer is not read.
        served.as_mut().graceful_shutdown();
        while self.requests.load(SeqCst) > 0 {
            tokio::select! {
                _ = served.as_mut() => return,
                () = tokio::time::sleep(FLUSH / 10) => {}
            }
        }
        if self.idle_for() < FLUSH {
            // The end of its answer may be in a buffer.
            let _ = tokio::time::timeout(FLUSH, served).await;
        }
    }
}

/// A request in work, until its answer is sent or dropped.
struct RequestGuard(Arc<Connection>);

impl RequestGuard {
    fn begin(connection: &Arc<Connection>) -> RequestGuard {
        connection.requests.fetch_add(1, SeqCst);
        RequestGuard(Arc::clone(connection))
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        *self.0.idle.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.requests.fetch_sub(1, SeqCst);
    }
}

/// The body of an answer, which keeps its request in work.
struct AnswerBody {
    body: Body,
    _work: RequestGuard,
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
