//! Acts with addresses: what a run passes to the driver as it stands.

use std::collections::HashMap;

use qkvault_exec::Number;
use qkvault_exec::raw::DeviceBuffer;
use qkvault_graph::Role;

use super::RunError;
use super::layout::{RankLayout, Where};
use super::prepare::{Act, Figure, PreparedRank};
use crate::comm::RankMessage;
use crate::step::Stream;

/// The arguments of an act.
#[derive(Debug)]
pub(super) enum Arguments {
    Launch { tensors: Vec<DeviceBuffer>, numbers: Vec<Number>, workspace: DeviceBuffer },
    Exchange(Vec<RankMessage>),
    Mark,
}

/// The addresses of a rank's memory: of each buffer with its bytes, and of the block.
pub(super) struct Addresses {
    pub(super) buffers: Vec<DeviceBuffer>,
    pub(super) block: u64,
}

impl Addresses {
    /// The memory at a place; `None` if the buffer ends before.
    fn at(&self, place: Where, bytes: u64) -> Option<DeviceBuffer> {
        match place {
            Where::Buffer { buffer, offset } => {
                let all = self.buffers[buffer];
                let fits = offset.checked_add(bytes)? <= all.bytes;
                fits.then_some(DeviceBuffer { address: all.address + offset, bytes })
            }
            Where::Block { offset } => Some(DeviceBuffer { address: self.block + offset, bytes }),
        }
    }

    /// The arguments of all acts.
    pub(super) fn arguments(
        &self,
        acts: &[Act],
        layout: &RankLayout,
        numbers: &HashMap<Role, Number>,
        of: impl Fn(usize) -> Option<Role>,
    ) -> Result<Vec<Arguments>, RunError> {
        let find = |place: Where, bytes: u64| {
            self.at(place, bytes).ok_or_else(|| match place {
                Where::Buffer { buffer, offset } => RunError::Operand {
                    role: of(buffer).unwrap_or(Role::Into),
                    given: self.buffers[buffer].bytes,
                    needed: offset + bytes,
                },
                Where::Block { offset } => RunError::Bind {
                    what: "a rank".to_owned(),
                    detail: format!("{bytes} bytes at {offset} of its memory"),
                },
            })
        };
        let workspaces = layout.workspaces.map(|(offset, bytes)| DeviceBuffer { address: self.block + offset, bytes });
        let one = |act: &Act| match act {
            Act::Launch(launch) => {
                let PreparedRank { plan, on, tensors, numbers: figures, .. } = &**launch;
                let tensors = tensors.iter().map(|(place, bytes)| find(*place, *bytes)).collect::<Result<_, _>>()?;
                let numbers = figures.iter().map(|figure| number(*figure, numbers)).collect::<Result<_, _>>()?;
                // Launches of the stream of exchanges need none.
                let own = workspaces[usize::from(*on == Stream::Beside)];
                let workspace = if plan.workspace() == 0 { DeviceBuffer::default() } else { own };
                Ok(Arguments::Launch { tensors, numbers, workspace })
            }
            Act::Exchange(list) => {
                let message = |(transfer, place, bytes): &(crate::Transfer, Where, u64)| {
                    let DeviceBuffer { address, bytes } = find(*place, *bytes)?;
                    Ok(RankMessage { peer: transfer.peer, send: transfer.send, address, bytes })
                };
                Ok(Arguments::Exchange(list.iter().map(message).collect::<Result<_, RunError>>()?))
            }
            Act::Join | Act::Record(..) | Act::Wait(..) => Ok(Arguments::Mark),
        };
        acts.iter().map(one).collect()
    }
}

fn number(figure: Figure, numbers: &HashMap<Role, Number>) -> Result<Number, RunError> {
    match figure {
        Figure::Fixed(number) => Ok(number),
        Figure::Given(role, dtype) => {
            let found = numbers.get(&role).copied().filter(|number| number.dtype() == dtype);
            found.ok_or(RunError::Number { role, dtype })
        }
    }
}
