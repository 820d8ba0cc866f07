//! What two threads do with descriptors of the real library that refer to one kernel cache.

#[allow(dead_code, reason = "each test program uses its part")]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::ThreadId;
use std::time::Duration;

use common::{alone, attention, fetched};
use qkvault_sys::{AttributeName as A, Descriptor, Kind, Library, Search};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// Receives cuDNN's log messages on the thread that calls it, and pauses inside the call of one.
struct Pause {
    armed: Arc<AtomicBool>,
    caller: ThreadId,
    inside: SyncSender<()>,
    go_on: std::sync::Mutex<Receiver<()>>,
}

struct Names(bool);

impl Visit for Names {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        self.0 |= format!("{value:?}").contains("cudnnBackendFinalize");
    }
}

impl Subscriber for Pause {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "cudnn"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut finalizes = Names(false);
        event.record(&mut finalizes);
        let here = std::thread::current().id() == self.caller;
        if here && finalizes.0 && self.armed.swap(false, SeqCst) {
            self.inside.send(()).expect("the test waits for it");
            self.go_on.lock().expect("no panic").recv().expect("the test answers");
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A finalized kernel cache, and a plan that refers to it.
fn cache_and_plan(library: &Arc<Library>) -> (Descriptor, Descriptor) {
    let graph = attention::attention(library).expect("a plain attention");
    let mut cache = Descriptor::create(library, Kind::KERNEL_CACHE).expect("9.27 has kernel caches");
    cache.set_descriptor(A::KERNEL_CACHE_OPERATION_GRAPH, &graph).expect("a graph");
    cache.finalize().expect("a cache");
    let mut plan = Descriptor::create(library, Kind::EXECUTION_PLAN).expect("a kind that all versions have");
    plan.set_descriptor(A::EXECUTION_PLAN_KERNEL_CACHE, &cache).expect("a cache");
    (cache, plan)
}

/// The cache is read by one thread while another is inside the finalization of a plan that writes it.
#[test]
fn audit_6_4_a_kernel_cache_was_used_by_two_threads_at_once() {
    alone("audit_6_4_a_kernel_cache_was_used_by_two_threads_at_once", || {
        let Some(set) = fetched("9.27.0") else { return };
        qkvault_sys::headless::ensure().expect("a driver or the stand-in");
        let (inside, is_inside) = sync_channel(1);
        let (go_on, goes_on) = sync_channel(1);
        let armed = Arc::new(AtomicBool::new(false));
        let caller = std::thread::current().id();
        let pause = Pause { armed: Arc::clone(&armed), caller, inside, go_on: goes_on.into() };
        tracing::subscriber::set_global_default(pause).expect("the only one of this process");
        // cuDNN names its calls only to a subscriber that is there when it is loaded.
        let library = Library::open(&Search::at(&set)).expect("a fetched set is whole");
        let (cache, mut plan) = cache_and_plan(&library);
        let (read, alone) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let (read, alone) = (&read, &alone);
            scope.spawn(move || {
                is_inside.recv().expect("cuDNN says that it finalizes");
                scope.spawn(move || {
                    // The value may be refused; it is the call that counts.
                    let _ = cache.get_bytes(A::KERNEL_CACHE_JSON_REPRESENTATION);
                    read.fetch_add(1, SeqCst);
                    drop(cache);
                });
                std::thread::sleep(Duration::from_millis(200));
                alone.store(u32::from(read.load(SeqCst) == 0), SeqCst);
                go_on.send(()).expect("the other thread waits");
            });
            armed.store(true, SeqCst);
            // Without an engine it is refused, from inside the call.
            let _ = plan.finalize();
            assert!(!armed.load(SeqCst), "cuDNN said nothing while it finalized");
        });
        assert_eq!(alone.load(SeqCst), 1, "the cache was read while a plan that refers to it was finalized");
        assert_eq!(read.load(SeqCst), 1, "and it was never read afterwards");
    });
}

/// Two plans of one cache, finalized, read and dropped on two threads, end.
#[test]
fn plans_of_one_kernel_cache_do_not_wait_for_each_other_for_ever() {
    alone("plans_of_one_kernel_cache_do_not_wait_for_each_other_for_ever", || {
        let Some(set) = fetched("9.27.0") else { return };
        qkvault_sys::headless::ensure().expect("a driver or the stand-in");
        let library = Library::open(&Search::at(&set)).expect("a fetched set is whole");
        for _ in 0..20 {
            let (cache, plan) = cache_and_plan(&library);
            let mut other = Descriptor::create(&library, Kind::EXECUTION_PLAN).expect("a kind that all versions have");
            other.set_descriptor(A::EXECUTION_PLAN_KERNEL_CACHE, &cache).expect("a cache");
            std::thread::scope(|scope| {
                for mut plan in [plan, other] {
                    scope.spawn(move || {
                        let _ = plan.finalize();
                        let _ = plan.get_one::<i64>(A::EXECUTION_PLAN_WORKSPACE_SIZE);
                    });
                }
                scope.spawn(move || {
                    let _ = cache.get_bytes(A::KERNEL_CACHE_JSON_REPRESENTATION);
                });
            });
        }
    });
}
