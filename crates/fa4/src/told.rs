//! What the compiler tells about the launch of a kernel, beside the machine code: the host lays parameters out by it.
//!
//! A plan keeps it as data, so that whoever looks the plan up can write the launch recipe again from the attention, and
//! compare. From a disk it is untrusted: it is bounded when it is read, and every size and offset is compared with the
//! cubin's.

use serde::{Deserialize, Serialize};

use crate::args::Boxes;
use crate::types::Type;

/// What the compiler tells about the launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// Types of the parameters.
    pub params: Vec<Type>,
    /// How tensors are cut into boxes, for each tensor map in order.
    pub boxes: Vec<Boxes>,
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Whether it may begin before the kernel before it has ended.
    pub overlap: bool,
}

/// The most parameters, and tensor maps, of a kernel: far more than any has.
const COUNT: usize = 256;

impl Told {
    /// Whether the sizes of everything within are those of a kernel.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let Told { params, boxes, block: _, shared: _, overlap: _ } = self;
        params.len() <= COUNT
            && params.iter().all(Type::is_bounded)
            && boxes.len() <= COUNT
            && boxes.iter().all(|boxes| boxes.dims.len() <= COUNT)
    }
}
