//! Ranks of this process: threads on one GPU each, over NCCL, or all on one GPU, over copies.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use qkvault_compile::{OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{Device, Session};
use qkvault_parallel::testing::Member;
use qkvault_parallel::{InProcess, Nccl, PeerCopies, Secret, SessionPlans, Store, World};
use qkvault_sys::Search;

/// How long a rank waits for another one.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The GPUs of a run, each with its session.
pub(crate) struct GpuSessions {
    planner: Planner,
    options: CompileOptions,
    pub(crate) sessions: Vec<Session>,
    one: bool,
    /// Whether its ranks, which are threads, write each other's memory.
    pub(crate) copies: PeerCopies,
}

impl GpuSessions {
    /// Opens a GPU for each rank from `device` on, or only that one.
    pub(crate) fn open(
        search: &Search,
        planner: &Planner,
        device: usize,
        ranks: u32,
        one: bool,
    ) -> anyhow::Result<GpuSessions> {
        let session = |n: usize| {
            let device = Device::open(device + n).with_context(|| {
                format!("{ranks} ranks need {ranks} GPUs; `--one-gpu` puts all of them on one, to compare numbers")
            })?;
            Ok(Session::open(&device, search)?)
        };
        let sessions = (0..if one { 1 } else { ranks as usize }).map(session).collect::<anyhow::Result<_>>()?;
        Ok(GpuSessions {
            planner: planner.clone(),
            options: CompileOptions::default(),
            sessions,
            one,
            copies: PeerCopies::default(),
        })
    }

    /// What carries messages, in words.
    pub(crate) const fn over(&self) -> &'static str {
        match (self.one, self.copies) {
            (true, _) => "copies on one GPU",
            (false, PeerCopies::Threads) => "peer copies, or NCCL",
            (false, _) => "NCCL",
        }
    }

    /// Where the plans of each GPU come from.
    pub(crate) fn plans(&self) -> Vec<SessionPlans<'_>> {
        let GpuSessions { planner, options, .. } = self;
        let plans = |session| SessionPlans { session, planner, options, on_miss: OnMiss::Compile };
        self.sessions.iter().map(plans).collect()
    }

    /// The ranks of a new world.
    pub(crate) fn world<'a>(&self, ranks: u32, plans: &'a [SessionPlans<'a>]) -> anyhow::Result<Vec<Member<'a>>> {
        let of = |rank: usize| if self.one { 0 } else { rank };
        let context = |rank: usize| Arc::clone(self.sessions[of(rank)].device().context());
        if self.one {
            let contexts: Vec<_> = (0..ranks as usize).map(context).collect();
            let world = InProcess::world(&contexts, DEADLINE)?;
            let member = |(rank, communicator)| Member {
                communicator: Box::new(communicator),
                plans: &plans[of(rank)],
                context: context(rank),
            };
            return Ok((0..).zip(world).map(member).collect());
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let secret = Secret::random()?;
        let joined: Vec<anyhow::Result<Nccl>> = std::thread::scope(|scope| {
            let join = |rank: u32| {
                let (context, secret) = (context(rank as usize), secret.clone());
                scope.spawn(move || {
                    context.bind_to_thread()?;
                    let store = Store::meet(&World::local(rank, ranks, port).with_secret(secret), DEADLINE)?;
                    Ok(Nccl::join(store, None)?.with_peer_copies(self.copies))
                })
            };
            let threads: Vec<_> = (0..ranks).map(join).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        });
        let member = |(rank, communicator): (usize, anyhow::Result<Nccl>)| {
            Ok(Member { communicator: Box::new(communicator?), plans: &plans[of(rank)], context: context(rank) })
        };
        (0..).zip(joined).map(member).collect()
    }
}
