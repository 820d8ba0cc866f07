//! Variant packs of launches with arguments, kept by their addresses.
//!
//! cuDNN cannot change a pack, and making one costs over a microsecond. Programs come back to the same buffers: each
//! layer of a model at every step, each block of a caching allocator. So a plan keeps the packs of its last launches.

use std::sync::{Arc, Mutex, PoisonError};

use qkvault_sys::{Error, Library, VariantPack};

use crate::bindings::Number;
use crate::raw::host_scalars::HostScalars;
use crate::raw::launch::{DeviceBuffer, LaunchTable, RawArgs};

/// Packs that a plan keeps: more than the layers of most models.
const KEPT: usize = 64;

/// A pack and what it points to.
#[derive(Debug)]
pub(crate) struct Pack {
    tensors: Vec<u64>,
    workspace: u64,
    numbers: HostScalars,
    pub(crate) pack: VariantPack,
}

/// The packs of a plan.
#[derive(Debug, Default)]
pub(crate) struct Packs(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    packs: Vec<Pack>,
    /// The place where the next pack is looked for first: layers take turns.
    next: usize,
}

impl Packs {
    /// A pack with these addresses and scalars: one that is kept, or a new one. A launch takes it out, so that no other
    /// changes its scalars meanwhile, and gives it back ([`Packs::give_back`]).
    pub(crate) fn take(&self, library: &Arc<Library>, table: &LaunchTable, args: &RawArgs<'_>) -> Result<Pack, Error> {
        let (found, oldest) = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match kept.find(args) {
                Some(pack) => (Some(pack), None),
                None => (None, kept.oldest()),
            }
        };
        let mut pack = match found {
            Some(pack) => pack,
            None => Pack::new(library, table, args, oldest)?,
        };
        pack.set(table, args.scalars);
        Ok(pack)
    }

    /// Keeps a pack for later launches, in the place of one that was used longer ago.
    pub(crate) fn give_back(&self, pack: Pack) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Kept { packs, next } = &mut *kept;
        if packs.len() < KEPT {
            // Put back where it was taken from: `swap_remove` has moved the last pack there.
            packs.push(pack);
            let last = packs.len() - 1;
            packs.swap((*next).min(last), last);
        }
        *next = (*next + 1) % KEPT;
    }
}

impl Kept {
    fn find(&mut self, args: &RawArgs<'_>) -> Option<Pack> {
        let count = self.packs.len();
        let at = (0..count).map(|i| (self.next + i) % count).find(|at| self.packs[*at].is_for(args))?;
        self.next = at;
        Some(self.packs.swap_remove(at))
    }

    /// The pack that was used longest ago, when no more are kept.
    fn oldest(&mut self) -> Option<Pack> {
        (self.packs.len() >= KEPT).then(|| self.packs.swap_remove(self.next % KEPT))
    }
}

impl Pack {
    /// A new pack, in the memory of an old one.
    fn new(library: &Arc<Library>, table: &LaunchTable, args: &RawArgs<'_>, old: Option<Pack>) -> Result<Pack, Error> {
        let (mut tensors, numbers) = match old {
            Some(Pack { tensors, numbers, .. }) => (tensors, numbers),
            None => (Vec::new(), HostScalars::new(table.numbers().collect())),
        };
        tensors.clear();
        tensors.extend(args.tensors.iter().map(|buffer| buffer.address));
        let workspace = args.workspace.address;
        // SAFETY: host addresses are those of numbers that live as long as the pack. The caller of a launch promises
        // the addresses of the device, and only a launch with the same ones follows them.
        let pack = unsafe { table.pack(library, &numbers, args.tensors, workspace) }?;
        Ok(Pack { tensors, workspace, numbers, pack })
    }

    fn is_for(&self, args: &RawArgs<'_>) -> bool {
        self.workspace == args.workspace.address
            && self.tensors.iter().zip(args.tensors).all(|(ours, DeviceBuffer { address, .. })| ours == address)
    }

    fn set(&mut self, table: &LaunchTable, scalars: &[Number]) {
        table.set_scalars(&mut self.numbers, |at| scalars[at]);
    }
}
