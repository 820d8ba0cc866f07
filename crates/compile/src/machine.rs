//! The properties that decide whether a plan loads: those of the loaded cuDNN, and those of the GPU that cuDNN
//! compares.

use qkvault_cudnn::{HostArch, Target, Toolchain};
use qkvault_graph::{CudnnVersion, LibrarySet};
use serde::Deserialize;

/// A machine that loads plans: the properties on which loading depends.
///
/// It has fewer fields than a [`Target`], so that it can be read from device properties with fields that this version
/// of qkvault does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Version of the loaded cuDNN.
    pub cudnn: CudnnVersion,
    /// Its library set.
    pub libraries: LibrarySet,
    /// Major version of the CUDA that the loaded cuDNN is built with.
    pub cuda: u16,
    /// Architecture of this host.
    pub host: HostArch,
    /// Compute capability, major * 10 + minor.
    pub sm: u32,
    /// Streaming multiprocessors.
    pub multi_processors: i64,
    /// CUDA version of the driver, major * 1000 + minor * 10.
    pub driver: i64,
    /// Width of the memory bus in bits, where this cuDNN reports it.
    pub memory_bus: Option<i64>,
    /// CUDA's ordinal of the GPU in this process.
    pub ordinal: i32,
}

impl Machine {
    /// The machine of a target.
    #[must_use]
    pub fn from_target(target: &Target) -> Machine {
        Machine {
            cudnn: target.cudnn,
            libraries: target.libraries,
            cuda: target.toolchain.cuda,
            host: target.toolchain.host,
            sm: target.sm(),
            multi_processors: target.device.multi_processor_count,
            driver: target.device.driver_ver,
            memory_bus: target.as_reported().device.memory_bus_width,
            ordinal: i32::try_from(target.device.cuda_device_id).unwrap_or(0),
        }
    }

    /// Reads the machine from the device properties that cuDNN wrote as JSON. Other fields are ignored.
    pub fn read(
        json: &[u8],
        cudnn: CudnnVersion,
        libraries: LibrarySet,
        toolchain: &Toolchain,
    ) -> Result<Machine, serde_json::Error> {
        let Needed { multi_processor_count, memory_bus_width, device_ver, driver_ver, cuda_device_id } =
            serde_json::from_slice(json)?;
        Ok(Machine {
            cudnn,
            libraries,
            cuda: toolchain.cuda,
            host: toolchain.host,
            sm: device_ver / 10,
            multi_processors: multi_processor_count,
            driver: driver_ver,
            memory_bus: memory_bus_width,
            ordinal: cuda_device_id,
        })
    }
}

/// The fields of cuDNN's device properties that loading depends on, under cuDNN's names.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Needed {
    multi_processor_count: i64,
    #[serde(default)]
    memory_bus_width: Option<i64>,
    device_ver: u32,
    driver_ver: i64,
    cuda_device_id: i32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_cudnn::Profile;

    #[test]
    fn a_machine_reads_from_the_properties_of_every_profile_and_from_ones_with_more_fields() {
        for profile in Profile::built_in() {
            let target = profile.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
            let json = target.device.json_for(target.cudnn).expect("complete");
            let more = json.replacen('{', r#"{"fieldOfTheFuture":[1,{"a":2}],"#, 1);
            for json in [json, more] {
                let read =
                    Machine::read(json.as_bytes(), target.cudnn, target.libraries, &target.toolchain).expect("reads");
                assert_eq!(read, Machine::from_target(&target));
            }
        }
    }
}
