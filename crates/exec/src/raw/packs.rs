//! Variant packs of launches with arguments, kept by their addresses: cuDNN cannot change a pack, and making one costs
//! over a microsecond.

use std::sync::Arc;

use qkvault_sys::{Error, Library, VariantPack};

use crate::bindings::Number;
use crate::raw::host_scalars::HostScalars;
use crate::raw::kept::{KeptLaunches, Taken};
use crate::raw::launch::{DeviceBuffer, LaunchTable, RawArgs};

/// A pack and what it points to.
#[derive(Debug)]
pub(crate) struct KeptPack {
    tensors: Vec<u64>,
    workspace: u64,
    numbers: HostScalars,
    pub(crate) pack: VariantPack,
}

/// The packs of a plan.
#[derive(Debug, Default)]
pub(crate) struct KeptPacks(KeptLaunches<KeptPack>);

impl KeptPacks {
    /// A pack with these addresses and scalars: one that is kept, or a new one. A launch gives it back
    /// ([`KeptPacks::give_back`]).
    pub(crate) fn take(
        &self,
        library: &Arc<Library>,
        table: &LaunchTable,
        args: &RawArgs<'_>,
    ) -> Result<KeptPack, Error> {
        let mut pack = match self.0.take(|pack| pack.is_for(args)) {
            Taken::Found(pack) => pack,
            Taken::New(oldest) => KeptPack::new(library, table, args, oldest)?,
        };
        pack.set(table, args.scalars);
        Ok(pack)
    }

    /// Keeps a pack for later launches.
    pub(crate) fn give_back(&self, pack: KeptPack) {
        self.0.give_back(pack);
    }
}

impl KeptPack {
    /// A new pack, in the memory of an old one.
    fn new(
        library: &Arc<Library>,
        table: &LaunchTable,
        args: &RawArgs<'_>,
        old: Option<KeptPack>,
    ) -> Result<KeptPack, Error> {
        let (mut tensors, numbers) = match old {
            Some(KeptPack { tensors, numbers, .. }) => (tensors, numbers),
            None => (Vec::new(), HostScalars::new(table.numbers().collect())),
        };
        tensors.clear();
        tensors.extend(args.tensors.iter().map(|buffer| buffer.address));
        let workspace = args.workspace.address;
        // SAFETY: host addresses are those of numbers that live as long as the pack. The caller of a launch promises
        // the addresses of the device, and only a launch with the same ones follows them.
        let pack = unsafe { table.pack(library, &numbers, args.tensors, workspace) }?;
        Ok(KeptPack { tensors, workspace, numbers, pack })
    }

    fn is_for(&self, args: &RawArgs<'_>) -> bool {
        self.workspace == args.workspace.address
            && self.tensors.iter().zip(args.tensors).all(|(ours, DeviceBuffer { address, .. })| ours == address)
    }

    fn set(&mut self, table: &LaunchTable, scalars: &[Number]) {
        table.set_scalars(&mut self.numbers, |at| scalars[at]);
    }
}
