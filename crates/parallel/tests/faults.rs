//! What ranks hear when one of them dies, is late or does something else. Processes: `processes.rs`.

use std::time::{Duration, Instant};

use qkvault_graph::{Attention, DType, Valid, validate};
use qkvault_parallel::{
    CommError, Communicator as _, Hello, RankFault, Scheme, Sharding, Store, Threads, World, agree, schedule,
};

mod rounds;

use rounds::{free_port, rounds};

fn attention() -> Valid {
    validate(Attention::bshd(1, (4, 2), (64, 64), 16, DType::BF16).causal().with_stats()).expect("valid")
}

fn threads(size: u32, deadline: u64, faulty: u32, fault: Option<RankFault>) -> Vec<Result<(), CommError>> {
    let ranks = Threads::world(size, Duration::from_millis(deadline));
    let ranks = ranks.into_iter().map(|rank| match fault {
        Some(fault) if rank.rank() == faulty => rank.with_fault(fault),
        _ => rank,
    });
    std::thread::scope(|scope| {
        let all: Vec<_> = ranks.map(|mut rank| scope.spawn(move || rounds(&mut rank, 20))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn every_thread_names_the_one_that_died_was_late_or_sent_a_part() {
    assert!(threads(4, 2_000, 0, None).iter().all(Result::is_ok));
    let begin = Instant::now();
    for size in [2, 3, 5] {
        for faulty in 0..size {
            let late = RankFault::Late(3, Duration::from_millis(1_200));
            // What comes 1.2 s late is too late for a deadline of 0.4 s; on a busy machine the others need more.
            for (fault, deadline) in [(RankFault::Dies(3), 5_000), (late, 400), (RankFault::Partial(3), 5_000)] {
                let results = threads(size, deadline, faulty, Some(fault));
                for (rank, result) in (0..).zip(&results).filter(|(rank, _)| *rank != faulty) {
                    let error = result.as_ref().expect_err("an error");
                    assert_eq!(error.rank(), Some(faulty), "{fault:?} of {faulty}, as rank {rank} has it: {error}");
                    assert!(error.reason().code.entry().is_some() && error.to_string().contains(&faulty.to_string()));
                }
            }
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn ranks_with_other_schedules_or_sizes_are_named_on_every_rank() {
    let made = |groups, ranks| {
        schedule(&attention(), &Sharding::new(ranks, Scheme::Gather { groups }))
            .map(|s| Hello::for_schedule(&s))
            .expect("taken")
    };
    let run = |hellos: Vec<Hello>| -> Vec<CommError> {
        let ranks = Threads::world(3, Duration::from_secs(5));
        std::thread::scope(|scope| {
            let all: Vec<_> = ranks
                .into_iter()
                .zip(hellos)
                .map(|(mut rank, hello)| scope.spawn(move || agree(&mut rank, &hello).err()))
                .collect();
            all.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
        })
    };
    let four = || schedule(&attention(), &Sharding::new(4, Scheme::Gather { groups: 1 }));
    let (same, other) = (Hello { ranks: 3, ..Hello::for_schedule(&four().expect("taken")) }, made(2, 2));
    assert_eq!(run(vec![same.clone(), same.clone(), same.clone()]), []);
    let differs = Hello { digest: other.digest, ..same.clone() };
    for rank in 0..3 {
        let mut list = vec![same.clone(); 3];
        list[rank] = differs.clone();
        let errors = run(list);
        assert_eq!(errors.len(), 3);
        assert!(
            errors.iter().all(|e| e.rank() == Some(rank as u32) && e.to_string().contains("schedule")),
            "{errors:?}"
        );
    }
    let older = Hello { version: "0.0.1".to_owned(), ..same.clone() };
    let errors = run(vec![same.clone(), older, same.clone()]);
    assert!(errors.iter().all(|e| e.to_string().contains("rank 1 has version 0.0.1")), "{errors:?}");
    // A schedule for another number of ranks than the communicator has.
    let errors = run(vec![made(1, 2), made(1, 2), made(1, 2)]);
    assert!(errors.len() == 3 && errors.iter().all(|e| matches!(e, CommError::Size { .. } | CommError::Gone { .. })));
}

#[test]
fn all_ranks_go_on_with_a_new_communicator() {
    let results = threads(3, 500, 1, Some(RankFault::Dies(2)));
    assert!(results.iter().all(Result::is_err));
    assert!(threads(2, 500, 0, None).iter().all(Result::is_ok));
}

#[test]
fn a_store_refuses_ranks_that_do_not_belong_to_it() {
    let port = free_port();
    let deadline = Duration::from_secs(3);
    let zero = Store::meet(&World::local(0, 2, port), deadline).expect("meets");
    let older = Store::meet_as(&World::local(1, 2, port), deadline, "0.0.1").err().expect("refused");
    assert!(matches!(&older, CommError::Differs { rank: 1, what, .. } if what == "version"), "{older}");
    drop(zero);
    let port = free_port();
    let _zero = Store::meet(&World::local(0, 2, port), deadline).expect("meets");
    let wide = Store::meet(&World::local(1, 3, port), deadline).err().expect("refused");
    assert!(wide.to_string().contains("rank 1 has a world of 3 ranks, the others have 2 ranks"), "{wide}");
    let nobody = Store::meet(&World::local(1, 2, free_port()), Duration::from_millis(100)).err().expect("nobody");
    assert_eq!(nobody.rank(), Some(0));
}
