//! From the steps of a rank to what a run queues: plans with the places of their operands.

use std::collections::HashMap;

use qkvault_exec::{LoadedPlan, Number};
use qkvault_graph::{DType, GraphKey, Role};

use super::RunError;
use super::arrivals::ArrivalOrder;
use super::layout::{RankLayout, Where};
use super::plans::Plans;
use crate::step::{Bind, BufferBox, PlanLaunch, RankSchedule, RankStep, Stream};
use crate::{Schedule, Transfer};

/// What a run queues.
#[derive(Debug)]
pub(super) enum Act {
    Launch(Box<PreparedRank>),
    Exchange(Vec<(Transfer, Where, u64)>),
    /// The stream of exchanges waits for all that arrives by then.
    Join,
    /// A mark, and whether it stands for arrivals too.
    Record(Stream, usize, bool),
    Wait(Stream, usize, bool),
}

/// A launch whose operands have places.
#[derive(Debug)]
pub(super) struct PreparedRank {
    pub(super) plan: LoadedPlan,
    pub(super) on: Stream,
    /// The place of each tensor, in the plan's order, and the bytes that it needs.
    pub(super) tensors: Vec<(Where, u64)>,
    /// Each number, in the plan's order.
    pub(super) numbers: Vec<Figure>,
    /// Operands in one buffer whose ranges overlap and whose elements do not.
    pub(super) interleaved: Vec<(Role, Role)>,
}

/// A number of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Figure {
    /// The caller's, by its role in the whole attention.
    Given(Role, DType),
    /// One of the schedule.
    Fixed(Number),
}

/// All steps of a rank.
pub(super) struct Acts {
    pub(super) list: Vec<Act>,
    /// What computes each plan of the schedule, as ranks compare it.
    pub(super) plans: Vec<String>,
    pub(super) layout: RankLayout,
    pub(super) marks: usize,
}

pub(super) fn acts(schedule: &Schedule, number: usize, plans: &dyn Plans) -> Result<Acts, RunError> {
    let rank = &schedule.ranks[number];
    let order = ArrivalOrder::new(schedule, number);
    let mut layout = RankLayout::new(rank);
    let mut attentions = Vec::with_capacity(schedule.plans.len());
    for of in &schedule.plans {
        let plan = plans.attention(of).map_err(|source| RunError::Plan { what: of.to_string(), source })?;
        attentions.push(plan);
    }
    let mut combinations: HashMap<GraphKey, LoadedPlan> = HashMap::new();
    let (mut list, mut marks, mut workspaces) = (Vec::new(), 0, [0; 2]);
    for (step, join) in rank.steps.iter().zip(order.joins) {
        if join {
            list.push(Act::Join);
        }
        let act = match step {
            RankStep::Launch(launch) => {
                Act::Launch(Box::new(attention(rank, launch, &attentions[launch.plan as usize], &mut layout)?))
            }
            RankStep::Exchange { transfers } => Act::Exchange(transfers.iter().map(|t| message(rank, t)).collect()),
            RankStep::Record { on, mark } => {
                marks = marks.max(*mark as usize + 1);
                Act::Record(*on, *mark as usize, order.marks[*mark as usize])
            }
            RankStep::Wait { on, mark } => Act::Wait(*on, *mark as usize, order.marks[*mark as usize]),
            RankStep::Copy { .. }
            | RankStep::Fill { .. }
            | RankStep::Merge { .. }
            | RankStep::Sum { .. }
            | RankStep::Keep { .. } => {
                let Some(combined) = rank.combination(step) else { continue };
                let (of, binds) = combined?;
                let plan = match combinations.get(&of.key()) {
                    Some(plan) => plan.clone(),
                    None => {
                        let plan = plans.combination(&of);
                        let plan = plan.map_err(|source| RunError::Plan { what: of.to_string(), source })?;
                        combinations.entry(of.key()).or_insert(plan).clone()
                    }
                };
                Act::Launch(Box::new(prepared(rank, &plan, step.stream(), &binds, None, &mut layout)?))
            }
        };
        if let Act::Launch(launch) = &act {
            let of = &mut workspaces[usize::from(launch.on == Stream::Beside)];
            *of = launch.plan.workspace().max(*of);
        }
        list.push(act);
    }
    layout.workspaces(workspaces);
    Ok(Acts { list, plans: attentions.iter().map(computed_by).collect(), layout, marks })
}

/// What computes a plan: its engine, the version of cuDNN where that is its engine, and its key.
fn computed_by(plan: &LoadedPlan) -> String {
    let facts = plan.facts();
    let version = facts.cudnn().map(|own| format!(" {}", own.cudnn)).unwrap_or_default();
    format!("{}{version} ({}), key {}", facts.by, facts.engine, facts.key)
}

fn attention(
    rank: &RankSchedule,
    launch: &PlanLaunch,
    plan: &LoadedPlan,
    layout: &mut RankLayout,
) -> Result<PreparedRank, RunError> {
    prepared(rank, plan, launch.on, &launch.binds, launch.slice, layout)
}

fn prepared(
    rank: &RankSchedule,
    plan: &LoadedPlan,
    on: Stream,
    binds: &[(Role, Bind)],
    slice: Option<crate::Slice>,
    layout: &mut RankLayout,
) -> Result<PreparedRank, RunError> {
    let wrong = |detail: String| RunError::Bind { what: plan.facts().what.clone(), detail };
    let bound = |role: Role| binds.iter().find(|(of, _)| *of == role).map(|(_, bind)| bind);
    let mut tensors = Vec::new();
    let mut pieces: Vec<(Role, BufferBox, bool)> = Vec::new();
    for binding in plan.raw().tensors() {
        let place = match bound(binding.role) {
            Some(Bind::Piece(piece)) => {
                pieces.push((binding.role, *piece, binding.output));
                place(rank, piece)
            }
            Some(Bind::Sequences(which)) => layout.sequences(*which, slice, binding.dtype, binding.bytes),
            Some(Bind::Given(_) | Bind::Int(_)) => return Err(wrong(format!("{} is a number", binding.role))),
            None => return Err(wrong(format!("nothing is bound to {}", binding.role))),
        };
        tensors.push((place, binding.bytes));
    }
    let mut numbers = Vec::new();
    for binding in plan.raw().scalars() {
        numbers.push(match bound(binding.role) {
            Some(Bind::Given(role)) => Figure::Given(*role, binding.dtype),
            Some(Bind::Int(n)) => Figure::Fixed(Number::I32(*n)),
            _ => return Err(wrong(format!("no number is bound to {}", binding.role))),
        });
    }
    // Parts of one buffer by head or token lie between each other; the check of a launch sees ranges alone.
    let mut interleaved = Vec::new();
    for (n, (a, one, writes)) in pieces.iter().enumerate() {
        for (b, other, also) in &pieces[n + 1..] {
            if (*writes || *also) && one.buffer == other.buffer && !one.overlaps(other) {
                interleaved.push((*a, *b));
            }
        }
    }
    Ok(PreparedRank { plan: plan.clone(), on, tensors, numbers, interleaved })
}

fn place(rank: &RankSchedule, piece: &BufferBox) -> Where {
    let tensor = rank.buffers[piece.buffer as usize].tensor;
    let offset = piece.offset(&tensor).unsigned_abs() * tensor.dtype.size() as u64;
    Where::Buffer { buffer: piece.buffer as usize, offset }
}

/// A message with the place of its bytes on a rank, and their number.
pub(super) fn message(rank: &RankSchedule, transfer: &Transfer) -> (Transfer, Where, u64) {
    let size = rank.buffers[transfer.piece.buffer as usize].tensor.dtype.size() as u64;
    (*transfer, place(rank, &transfer.piece), transfer.piece.len().unsigned_abs() * size)
}
