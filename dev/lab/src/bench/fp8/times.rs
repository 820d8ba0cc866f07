//! Two ways to time the entries of a row. In turns, launches follow each other, and the GPU's power limit decides its
//! clock; alone, each launch comes after a pause and with a cold cache, as in the program that NVIDIA's table is of.

use std::time::Duration;

use qkvault_cli::memory::Recorded;
use qkvault_cli::turns::time;
use qkvault_exec::cudarc;

use crate::bench::timed::turns::Turns;

/// Milliseconds of one recorded graph: the host's time between two of them is small beside it.
const GRAPH_MS: f64 = 20.0;

/// The pause before a launch alone. NVIDIA's program starts a profiler there.
const PAUSE: Duration = Duration::from_millis(30);

/// Bytes that are written before a launch alone, more than the cache has. NVIDIA's program writes as many.
const FLUSHED: usize = 256 << 20;

/// Milliseconds of a launch of one entry in one direction, for each round.
#[derive(Clone, Debug, Default)]
pub(super) struct LaunchTimes {
    pub(super) in_turns: Vec<f64>,
    pub(super) alone: Vec<f64>,
}

/// The times of each direction, of each entry. An entry without a plan has none.
pub(super) fn measure(turns: &mut Turns, rounds: usize) -> anyhow::Result<[Vec<LaunchTimes>; 2]> {
    let mut times = [(); 2].map(|()| vec![LaunchTimes::default(); turns.entries().len()]);
    for (backward, times) in [false, true].into_iter().zip(&mut times) {
        in_turns(turns, backward, rounds, times)?;
        alone(turns, backward, rounds, times)?;
    }
    Ok(times)
}

fn in_turns(turns: &mut Turns, backward: bool, rounds: usize, times: &mut [LaunchTimes]) -> anyhow::Result<()> {
    let stream = turns.stream().clone();
    let mut bound = turns.bound(backward)?;
    let mut graphs = Vec::new();
    for (entry, bound) in &mut bound {
        bound[0].launch(&stream)?;
        let once = time(&stream, || Ok(bound[0].launch(&stream)?))? / 1e3;
        let calls = ((GRAPH_MS / once) as usize).clamp(3, 200);
        graphs.push((*entry, calls, Recorded::new(bound, &stream, calls)?));
    }
    for round in 0..=rounds {
        if round % 2 == 1 {
            graphs.reverse();
        }
        for (entry, calls, graph) in &mut graphs {
            let us = time(&stream, || graph.launch())? / *calls as f64;
            // The first round only warms up.
            if round > 0 {
                times[*entry].in_turns.push(us / 1e3);
            }
        }
    }
    Ok(())
}

/// The write that empties the cache is queued before the first event, so that the GPU does not wait for the host
/// between the events.
fn alone(turns: &mut Turns, backward: bool, rounds: usize, times: &mut [LaunchTimes]) -> anyhow::Result<()> {
    let stream = turns.stream().clone();
    let mut cache: cudarc::driver::CudaSlice<u8> = stream.alloc_zeros(FLUSHED)?;
    let mut bound = turns.bound(backward)?;
    let mut graphs = Vec::new();
    for (entry, bound) in &mut bound {
        graphs.push((*entry, Recorded::new(bound, &stream, 1)?));
    }
    for round in 0..=rounds {
        for (entry, graph) in &mut graphs {
            stream.synchronize()?;
            std::thread::sleep(PAUSE);
            stream.memset_zeros(&mut cache)?;
            let us = time(&stream, || graph.launch())?;
            // The first round only warms up.
            if round > 0 {
                times[*entry].alone.push(us / 1e3);
            }
        }
    }
    Ok(())
}
