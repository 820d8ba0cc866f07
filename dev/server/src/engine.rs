//! The thread that owns model and scheduler: it takes requests, runs steps and sends what they give.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::ServerError;
use crate::config::{ModelShape, ServerLimits};
use crate::metrics::Metrics;
use crate::request::{Event, RequestRefused, ServerRequest};
use crate::scheduler::Scheduler;
use crate::step::{ModelStep, Picked};

/// What computes steps: a GPU or this CPU.
pub trait ServedModel {
    /// Computes a step. Returns one result for each pick.
    ///
    /// # Errors
    ///
    /// What stops the server: no request gets an answer after it.
    fn run(&mut self, step: &ModelStep) -> Result<Vec<Picked>, ServerError>;

    /// Writes the counters that the model keeps: plans, builds, graphs, memory.
    fn report(&mut self, metrics: &Metrics);
}

/// How long an idle engine sleeps before it looks for requests that have waited too long.
const IDLE: Duration = Duration::from_millis(50);

enum EngineCommand {
    Submit {
        id: u64,
        request: ServerRequest,
        events: UnboundedSender<Event>,
        arrived: Instant,
    },
    /// Serve what runs or waits, then end.
    Drain,
}

/// The door to the engine. Cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<EngineCommand>,
    next: Arc<AtomicU64>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The model.
    pub shape: ModelShape,
    /// What the server takes.
    pub limits: ServerLimits,
}

/// A running engine.
pub struct ServerEngine {
    /// The door.
    pub handle: EngineHandle,
    /// Done when the thread has ended, whether it was told to or failed.
    pub(crate) ended: oneshot::Receiver<()>,
    thread: JoinHandle<Result<(), ServerError>>,
}

impl EngineHandle {
    /// Queues a request. Dropping the receiver cancels it.
    ///
    /// # Errors
    ///
    /// [`RequestRefused::Busy`] after the server was told to stop.
    pub fn submit(&self, request: ServerRequest) -> Result<UnboundedReceiver<Event>, RequestRefused> {
        let (events, receiver) = unbounded_channel();
        let id = self.next.fetch_add(1, Relaxed);
        let sent = self.commands.send(EngineCommand::Submit { id, request, events, arrived: Instant::now() });
        match sent {
            Ok(()) => Ok(receiver),
            Err(_) => Err(RequestRefused::Busy("the server is stopping".to_owned())),
        }
    }

    /// Tells the engine to end after the requests that it has.
    pub fn drain(&self) {
        let _ = self.commands.send(EngineCommand::Drain);
    }
}

impl ServerEngine {
    /// Starts the thread, and waits until its model is ready.
    ///
    /// # Errors
    ///
    /// What `make` returns.
    pub fn start<M: ServedModel>(
        (shape, limits): (ModelShape, ServerLimits),
        make: impl FnOnce() -> Result<M, ServerError> + Send + 'static,
    ) -> Result<ServerEngine, ServerError> {
        let limits = limits.checked()?;
        let (commands, receiver) = channel();
        let metrics = Arc::new(Metrics::default());
        let handle = EngineHandle { commands, next: Arc::default(), metrics: Arc::clone(&metrics), shape, limits };
        let (ready, is_ready) = channel();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let _end: oneshot::Sender<()> = end;
            let model = match make() {
                Ok(model) => model,
                Err(error) => {
                    // The other side waits for it.
                    let _ = ready.send(Err(error));
                    return Ok(());
                }
            };
            let _ = ready.send(Ok(()));
            let scheduler = Scheduler::new(limits);
            Loop { model, scheduler, metrics, clients: HashMap::new(), draining: false }.run(&receiver)
        })?;
        is_ready.recv().map_err(|_| "the engine ended before it was ready")??;
        Ok(ServerEngine { handle, ended, thread })
    }

    /// Waits until the engine has ended.
    ///
    /// # Errors
    ///
    /// What stopped it, if it was not told to.
    pub fn join(self) -> Result<(), ServerError> {
        let ServerEngine { handle, ended: _, thread } = self;
        drop(handle);
        thread.join().map_err(|_| "the engine panicked")?
    }
}

struct Client {
    events: UnboundedSender<Event>,
    arrived: Instant,
    started: bool,
}

struct Loop<M> {
    model: M,
    scheduler: Scheduler,
    metrics: Arc<Metrics>,
    clients: HashMap<u64, Client>,
    draining: bool,
}

impl<M: ServedModel> Loop<M> {
    fn run(mut self, commands: &Receiver<EngineCommand>) -> Result<(), ServerError> {
        Metrics::set(&self.metrics.pages, self.scheduler.pages().total() as u64);
        Metrics::set(&self.metrics.ready, 1);
        self.report();
        let result = self.serve(commands);
        Metrics::set(&self.metrics.ready, 0);
        if let Err(error) = &result {
            for client in std::mem::take(&mut self.clients).into_values() {
                Metrics::add(&self.metrics.requests_failed_total, 1);
                let _ = client.events.send(Event::Refused(RequestRefused::Failed(error.to_string())));
            }
        }
        self.report();
        result
    }

    fn serve(&mut self, commands: &Receiver<EngineCommand>) -> Result<(), ServerError> {
        loop {
            if !self.listen(commands) {
                return Ok(());
            }
            self.clean();
            let started = Instant::now();
            let planned = self.scheduler.plan();
            // After those that found room.
            for id in self.scheduler.expire(started) {
                self.refuse(id, "no room came free while the request waited");
            }
            if let Some((step, owners)) = planned {
                let before_model = Instant::now();
                let picked = self.model.run(&step)?;
                let in_model = before_model.elapsed();
                let events = self.scheduler.finish(&owners, &picked);
                events.into_iter().for_each(|(id, event)| self.send(id, event));
                self.count(&step, in_model, started.elapsed());
            }
            self.report();
        }
    }

    /// Takes the commands that are there; waits for one if there is nothing to do. False when the engine is to end.
    fn listen(&mut self, commands: &Receiver<EngineCommand>) -> bool {
        if self.scheduler.running() + self.scheduler.waiting() == 0 {
            if self.draining {
                return false;
            }
            match commands.recv_timeout(IDLE) {
                Ok(command) => self.take(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        loop {
            match commands.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => {
                    self.draining = true;
                    return true;
                }
            }
        }
    }

    fn take(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Submit { id, request, events, arrived } => {
                self.clients.insert(id, Client { events, arrived, started: false });
                if self.draining {
                    self.refuse(id, "the server is stopping");
                } else if !self.scheduler.submit(id, request, arrived) {
                    self.refuse(id, "as many requests wait as the server lets wait");
                }
            }
            EngineCommand::Drain => self.draining = true,
        }
    }

    /// Removes the requests whose clients went away.
    fn clean(&mut self) {
        let gone: Vec<u64> = self.clients.iter().filter(|(_, c)| c.events.is_closed()).map(|(id, _)| *id).collect();
        for id in gone {
            self.scheduler.cancel(id);
            self.clients.remove(&id);
            Metrics::add(&self.metrics.requests_vanished_total, 1);
        }
    }

    fn refuse(&mut self, id: u64, why: &str) {
        Metrics::add(&self.metrics.requests_busy_total, 1);
        if let Some(client) = self.clients.remove(&id) {
            // A client that went away needs no answer.
            let _ = client.events.send(Event::Refused(RequestRefused::Busy(why.to_owned())));
        }
    }

    fn send(&mut self, id: u64, event: Event) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if let Event::Token(_) = event {
            Metrics::add(&self.metrics.tokens_total, 1);
            if !std::mem::replace(&mut client.started, true) {
                self.metrics.first_token(client.arrived.elapsed());
            }
        }
        let done = matches!(event, Event::Done(_));
        // `clean` finds a client that went away before the next step.
        let sent = client.events.send(event).is_ok();
        if done {
            self.clients.remove(&id);
            let counter = if sent { &self.metrics.requests_done_total } else { &self.metrics.requests_vanished_total };
            Metrics::add(counter, 1);
        }
    }

    fn count(&self, step: &ModelStep, in_model: Duration, all: Duration) {
        let m = &self.metrics;
        Metrics::add(&m.steps_total, 1);
        Metrics::add(&m.decode_steps_total, u64::from(step.chunks.is_empty()));
        Metrics::add(&m.prompt_tokens_total, step.chunks.iter().map(|&rows| u64::from(rows.unsigned_abs())).sum());
        Metrics::add(&m.model_us_total, in_model.as_micros() as u64);
        Metrics::add(&m.step_us_total, all.as_micros() as u64);
    }

    fn report(&mut self) {
        let (m, pages) = (&self.metrics, self.scheduler.pages());
        Metrics::set(&m.running, self.scheduler.running() as u64);
        Metrics::set(&m.waiting, self.scheduler.waiting() as u64);
        Metrics::set(&m.pages_used, pages.used() as u64);
        Metrics::set(&m.pages_most, pages.most() as u64);
        Metrics::set(&m.preemptions_total, self.scheduler.preemptions());
        self.model.report(m);
    }
}
