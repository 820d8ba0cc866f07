//! Device properties: what cuDNN reports about a GPU and compiles for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::registry::codes;
use crate::{CudnnVersion, Reason};

/// Properties of a GPU, named as in the JSON form of cuDNN's device-properties descriptor (attribute 2702; read on an
/// H200 with cuDNN 9.14, 9.19 and 9.27).
///
/// Properties that name a board (PCI id, ordinal, name), clocks, L2 size, memory size and driver model enter no key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(
    missing_docs,
    reason = "the names are cuDNN's; units are in the names, or those of the CUDA device attribute with that name"
)]
pub struct DeviceProps {
    pub max_grid_size: [i64; 3],
    pub max_block_size: [i64; 3],
    pub regs_per_block: i64,
    pub multi_processor_count: i64,
    /// Needed since cuDNN 9.27.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_count_origin: Option<i64>,
    pub warp_size: i64,
    pub max_shared_memory_per_block: i64,
    pub max_shared_memory_per_block_optin: i64,
    /// Needed since cuDNN 9.27.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oversized_shared_memory_per_block: Option<i64>,
    pub reserved_shared_memory_per_block: i64,
    #[serde(rename = "maxRegistersPerSM")]
    pub max_registers_per_sm: i64,
    #[serde(rename = "maxCtasPerSM")]
    pub max_ctas_per_sm: i64,
    pub max_threads_per_block: i64,
    #[serde(rename = "maxThreadsPerSM")]
    pub max_threads_per_sm: i64,
    pub pci_device_id: i64,
    pub is_tcc_driver: i64,
    pub support_coop_launch: i64,
    pub total_global_mem: i64,
    #[serde(rename = "smClockRateKHz")]
    pub sm_clock_rate_khz: i64,
    #[serde(rename = "memClockRateKHz")]
    pub mem_clock_rate_khz: i64,
    /// In bits. Needed since cuDNN 9.27, which refuses properties without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bus_width: Option<i64>,
    #[serde(rename = "l2CacheSize")]
    pub l2_cache_size: i64,
    pub cuda_device_id: i64,
    /// Compute capability times 100: 900 is sm_90.
    pub device_ver: i64,
    /// CUDA version of the driver, `major * 1000 + minor * 10`.
    pub driver_ver: i64,
    pub device_name: String,
    /// Properties that this version of qkvault does not know, under cuDNN's names, from a cuDNN newer than any that was
    /// examined. They may affect compilation, so they are passed on, and enter keys of versions that may report them.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// The first of the examined cuDNN versions whose device properties have `smCountOrigin`,
/// `oversizedSharedMemoryPerBlock` and `memoryBusWidth` (9.14, 9.19, 9.28.0 and 9.28.1 without a GPU, 9.27 with one).
const WIDER_PROPERTIES: CudnnVersion = CudnnVersion::v9(27, 0);

/// The newest cuDNN version whose device properties were examined: up to it, no version reports a property that is not
/// a field here.
const NEWEST_LOOKED_AT: CudnnVersion = CudnnVersion::v9(28, 1);

/// The properties that enter keys: they decide whether a plan loads and which kernels are chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceIdentity<'a>(&'a [i64; 3], &'a [i64; 3], [i64; 13], [Option<i64>; 3]);

impl DeviceProps {
    /// The compute capability as major * 10 + minor: 90 for an H200.
    #[must_use]
    pub const fn sm(&self) -> u32 {
        (self.device_ver / 10) as u32
    }

    /// One reason for each field that a cuDNN version needs and that is missing.
    #[must_use]
    pub fn missing_for(&self, version: CudnnVersion) -> Vec<Reason> {
        let fields = [
            ("smCountOrigin", self.sm_count_origin),
            ("oversizedSharedMemoryPerBlock", self.oversized_shared_memory_per_block),
            ("memoryBusWidth", self.memory_bus_width),
        ];
        let lacks = fields.iter().filter(|(_, value)| value.is_none() && version >= WIDER_PROPERTIES);
        lacks
            .map(|(name, _)| {
                codes::PROFILE_FIELD
                    .reason("absent from the device properties")
                    .at(*name)
                    .with_needed(format!("cuDNN {version} needs it (since {WIDER_PROPERTIES})"))
            })
            .collect()
    }

    /// The properties as JSON for a cuDNN version, with the fields of this version.
    ///
    /// # Errors
    ///
    /// One reason for each field that the version needs and that is missing.
    pub fn json_for(&self, version: CudnnVersion) -> Result<String, Vec<Reason>> {
        let missing = self.missing_for(version);
        if !missing.is_empty() {
            return Err(missing);
        }
        let props = self.known_to(version);
        Ok(serde_json::to_string(&props).expect("a struct of numbers and one string always serialises"))
    }

    /// The properties that enter keys.
    ///
    /// Left out are the PCI id, ordinal and name, because they name a board, and the driver model, clocks, L2 size and
    /// memory size. On an H200 (cuDNN 9.19), plans still loaded after each of these was changed.
    pub(crate) fn identity(&self) -> DeviceIdentity<'_> {
        let DeviceProps {
            max_grid_size,
            max_block_size,
            regs_per_block,
            multi_processor_count,
            sm_count_origin,
            warp_size,
            max_shared_memory_per_block,
            max_shared_memory_per_block_optin,
            oversized_shared_memory_per_block,
            reserved_shared_memory_per_block,
            max_registers_per_sm,
            max_ctas_per_sm,
            max_threads_per_block,
            max_threads_per_sm,
            pci_device_id: _,
            is_tcc_driver: _,
            support_coop_launch,
            total_global_mem: _,
            sm_clock_rate_khz: _,
            mem_clock_rate_khz: _,
            memory_bus_width,
            l2_cache_size: _,
            cuda_device_id: _,
            device_ver,
            driver_ver,
            device_name: _,
            // Properties that a version may report follow the others: see `unknown_to_us`.
            other: _,
        } = self;
        DeviceIdentity(
            max_grid_size,
            max_block_size,
            [
                *device_ver,
                *driver_ver,
                *multi_processor_count,
                *regs_per_block,
                *warp_size,
                *max_shared_memory_per_block,
                *max_shared_memory_per_block_optin,
                *reserved_shared_memory_per_block,
                *max_registers_per_sm,
                *max_ctas_per_sm,
                *max_threads_per_block,
                *max_threads_per_sm,
                *support_coop_launch,
            ],
            [*sm_count_origin, *oversized_shared_memory_per_block, *memory_bus_width],
        )
    }

    /// The properties without the fields that a cuDNN version does not report, so that profiles captured with newer and
    /// older versions give the same key.
    #[must_use]
    pub(crate) fn known_to(&self, version: CudnnVersion) -> DeviceProps {
        let mut props = self.clone();
        if version < WIDER_PROPERTIES {
            props.sm_count_origin = None;
            props.oversized_shared_memory_per_block = None;
            props.memory_bus_width = None;
        }
        if self.unknown_to_us(version).next().is_none() {
            props.other.clear();
        }
        props
    }

    /// The properties, by name, that a cuDNN version may report and this version of qkvault does not know: all of
    /// [`other`](Self::other) for versions newer than any that was examined, none for older ones, which do not report
    /// them.
    pub fn unknown_to_us(&self, version: CudnnVersion) -> impl Iterator<Item = (&str, &serde_json::Value)> {
        let newer = version > NEWEST_LOOKED_AT;
        self.other.iter().filter(move |_| newer).map(|(name, value)| (&**name, value))
    }
}
