//! The model on a real GPU beside the one on the CPU: the same weights, so the same answers but for near ties.

use qkvault_server::config::{ModelShape, ServerLimits};
use qkvault_server::cpu::CpuModel;
use qkvault_server::engine::{ServedModel, ServerEngine};
use qkvault_server::gpu::{GpuModel, GpuOptions};
use qkvault_server::request::{Event, RequestKind, Sampling, ServerRequest};
use qkvault_server::weights::mix;
use qkvault_server::{ServerError, metrics};
use qkvault_skip::{Need, skip};

const LIMITS: ServerLimits = ServerLimits { page: 64, pages: 64, chunk: 64, tokens: 128, ..ServerLimits::SMALL };

/// An answer must have no token whose logit is further below the largest, of a standard deviation of 1.
const BOUND: f32 = 0.25;

/// Tokens and scores.
type Told = (Vec<u32>, Vec<f32>);

/// What an engine gives for requests that run at once.
fn served<M: ServedModel>(
    make: impl FnOnce() -> Result<M, ServerError> + Send + 'static,
    requests: &[(Vec<u32>, RequestKind)],
) -> (Vec<Told>, String) {
    let shape = ModelShape::named("tiny").expect("it is there");
    let engine = ServerEngine::start((shape, LIMITS), make).unwrap_or_else(|error| panic!("{error}"));
    let requests = requests
        .iter()
        .map(|(prompt, wanted)| ServerRequest::new(prompt.clone(), wanted.clone(), &shape, &LIMITS).expect("in range"));
    let receivers: Vec<_> = requests.map(|request| engine.handle.submit(request).expect("it runs")).collect();
    let each = receivers.into_iter().map(|mut events| {
        let (mut tokens, mut scores) = (Vec::new(), Vec::new());
        loop {
            match events.blocking_recv().expect("an end") {
                Event::Token(token) => tokens.push(token),
                Event::Scores(more) => scores.extend(more),
                Event::Done(_) => return (tokens, scores),
                Event::Refused(why) => panic!("{why:?}"),
            }
        }
    });
    let all = each.collect();
    engine.handle.drain();
    let page = engine.handle.metrics.text();
    engine.join().expect("it ends");
    (all, page)
}

/// Numbers as prompts, of these lengths.
fn prompts<const N: usize>(shape: &ModelShape, lengths: [u32; N]) -> Vec<Vec<u32>> {
    lengths.map(|length| (0..length).map(|at| mix(length << 16 ^ at) % shape.vocab as u32).collect()).to_vec()
}

/// Sums of a batch depend on its size where they may; an invariant server's do not.
#[test]
fn an_invariant_server_gives_an_answer_the_same_bits_in_a_crowd_and_alone() {
    if let Err(error) = qkvault::exec::Device::open(0) {
        return skip(Need::Gpu, &error.to_string());
    }
    let shape = ModelShape::named("tiny").expect("it is there");
    let prompts = prompts(&shape, [1, 5, 63, 64, 65, 130, 180, 7]);
    let vault = tempfile::tempdir().expect("a folder");
    let folder = vault.path().to_path_buf();
    let gpu = move || {
        let options = GpuOptions { graphs: true, build: true, vault: Some(folder.clone()), seed: 1 };
        GpuModel::new(shape, ServerLimits { invariant: true, ..LIMITS }, options)
    };
    let asked: Vec<_> =
        prompts.iter().map(|prompt| (prompt.clone(), RequestKind::Tokens(40, Sampling::default()))).collect();
    let crowd = served(gpu.clone(), &asked).0;
    // The logits of every token of an answer that another prompt has: no ties, and each bit counts.
    let scored: Vec<_> = prompts
        .iter()
        .zip(crowd.iter().cycle().skip(1))
        .map(|(prompt, (answer, _))| (prompt.clone(), RequestKind::Scores(answer.clone())))
        .collect();
    let scores = served(gpu.clone(), &scored).0;
    for at in 0..prompts.len() {
        let alone = served(gpu.clone(), &asked[at..=at]).0;
        assert_eq!(alone[0].0, crowd[at].0, "the answer to a prompt of {} tokens", prompts[at].len());
        let alone = served(gpu.clone(), &scored[at..=at]).0;
        let bits = |told: &Told| told.1.iter().map(|gap| gap.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&alone[0]), bits(&scores[at]), "scores after a prompt of {} tokens", prompts[at].len());
    }
}

#[test]
fn answers_of_the_cpu_are_the_likeliest_on_the_gpu_with_and_without_graphs_and_the_other_way_round() {
    if let Err(error) = qkvault::exec::Device::open(0) {
        return skip(Need::Gpu, &error.to_string());
    }
    let shape = ModelShape::named("tiny").expect("it is there");
    let prompts = prompts(&shape, [1, 5, 63, 64, 65, 130, 180]);
    let asked: Vec<_> =
        prompts.iter().map(|prompt| (prompt.clone(), RequestKind::Tokens(40, Sampling::default()))).collect();
    let score = |told: &[Told]| -> Vec<(Vec<u32>, RequestKind)> {
        prompts.iter().zip(told).map(|(p, (answer, _))| (p.clone(), RequestKind::Scores(answer.clone()))).collect()
    };
    let cpu = move || CpuModel::new(shape, &LIMITS, 1);
    let (of_cpu, _) = served(cpu, &asked);
    let vault = tempfile::tempdir().expect("a folder");
    for graphs in [true, false] {
        let folder = vault.path().to_path_buf();
        let gpu = move || {
            let vault = Some(folder.clone());
            GpuModel::new(shape, LIMITS, GpuOptions { graphs, build: true, vault, seed: 1 })
        };
        let (of_gpu, page) = served(gpu.clone(), &asked);
        assert_eq!(metrics::value(&page, "graph_replays_total").is_some_and(|replays| replays > 0), graphs, "{page}");
        assert_eq!(metrics::value(&page, "plan_builds_total"), Some(0));
        for (who, scores) in [("the GPU", served(gpu, &score(&of_cpu)).0), ("the CPU", served(cpu, &score(&of_gpu)).0)]
        {
            for (prompt, (_, scores)) in prompts.iter().zip(scores) {
                let worst = scores.iter().copied().fold(0.0, f32::max);
                assert!(scores.len() == 40 && worst <= BOUND, "graphs {graphs}, on {who}, {}: {worst}", prompt.len());
            }
        }
    }
}
