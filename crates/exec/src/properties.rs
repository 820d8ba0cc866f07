//! The properties of a GPU as cuDNN reports them, for targets and profiles.

use std::sync::{Arc, Once};

use qkvault_compile::library_toolchain;
use qkvault_cudnn::{DeviceProps, Target};
use qkvault_graph::CudnnVersion;
use qkvault_sys::{AttributeName as A, CudnnHandle, Descriptor, Kind, Library};

use crate::driver::{NoDriver, driver};
use qkvault_compile::Machine;

/// Why the properties of a GPU are unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PropertiesError {
    /// There is no driver.
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    /// cuDNN did not return them.
    #[error("cuDNN does not return the properties of the GPU: {0}; `nvidia-smi` shows whether the GPU works")]
    Cudnn(#[from] qkvault_sys::Error),
    /// The properties that cuDNN reports cannot be read.
    #[error("cuDNN {cudnn} reports device properties that cannot be read: {detail}; a newer qkvault may be needed")]
    Unreadable {
        /// The cuDNN version.
        cudnn: CudnnVersion,
        /// The error.
        detail: String,
    },
}

/// The target of a GPU of this machine, by CUDA's ordinal. Needs no handle.
///
/// # Errors
///
/// [`PropertiesError`] without a driver, or if cuDNN does not return properties that can be read.
pub fn present_target(library: &Arc<Library>, ordinal: i32) -> Result<Target, PropertiesError> {
    driver()?;
    let mut device = Descriptor::create(library, Kind::DEVICEPROP)?;
    device.set_one(A::DEVICEPROP_DEVICE_ID, ordinal)?;
    target(&device.finalized()?.get_bytes(A::DEVICEPROP_JSON_REPRESENTATION)?, library)
}

/// The device properties of the GPU of a handle, as the JSON that cuDNN writes.
pub(crate) fn json_of_handle(handle: &CudnnHandle) -> Result<Vec<u8>, PropertiesError> {
    let mut device = Descriptor::create(handle.library(), Kind::DEVICEPROP)?;
    device.set_handle(A::DEVICEPROP_HANDLE, handle)?;
    Ok(device.finalized()?.get_bytes(A::DEVICEPROP_JSON_REPRESENTATION)?)
}

/// The machine with these device properties.
pub(crate) fn machine(json: &[u8], library: &Library) -> Result<Machine, PropertiesError> {
    let (cudnn, libraries) = (library.version(), library.set());
    Machine::read(json, cudnn, libraries, &library_toolchain(library))
        .map_err(|e| PropertiesError::Unreadable { cudnn, detail: e.to_string() })
}

/// The target with these device properties.
pub(crate) fn target(json: &[u8], library: &Library) -> Result<Target, PropertiesError> {
    let (cudnn, libraries, toolchain) = (library.version(), library.set(), library_toolchain(library));
    read(json, cudnn).map(|device| Target { cudnn, libraries, toolchain, device })
}

/// Reads the device properties that a cuDNN version wrote. Properties that this version of qkvault does not know are
/// kept, with a warning once per process.
///
/// # Errors
///
/// [`PropertiesError::Unreadable`], also for a missing property.
pub(crate) fn read(json: &[u8], cudnn: CudnnVersion) -> Result<DeviceProps, PropertiesError> {
    let device: DeviceProps = serde_json::from_slice(json)
        .map_err(|error| PropertiesError::Unreadable { cudnn, detail: error.to_string() })?;
    if !device.other.is_empty() {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            let names: Vec<&String> = device.other.keys().collect();
            let what = "cuDNN reports device properties that this version of qkvault does not know; keys include them";
            tracing::warn!(%cudnn, ?names, "{what}");
        });
    }
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_cudnn::Profile;

    const V: CudnnVersion = CudnnVersion::v9(27, 0);

    fn json() -> String {
        Profile::named("h200").expect("built in").properties.json_for(V).expect("complete")
    }

    #[test]
    fn properties_read_back() {
        let read = read(json().as_bytes(), V).expect("reads");
        assert_eq!(read, Profile::named("h200").expect("built in").properties);
    }

    #[test]
    fn fields_of_a_newer_cudnn_are_kept() {
        let json = json().replacen('{', r#"{"tensorMemory":1,"warpSpeed":9,"#, 1);
        let read = read(json.as_bytes(), V).expect("more than is known");
        assert_eq!(read.other.keys().collect::<Vec<_>>(), ["tensorMemory", "warpSpeed"]);
        assert_eq!(
            DeviceProps { other: Default::default(), ..read },
            Profile::named("h200").expect("built in").properties
        );
    }

    #[test]
    fn a_lacking_field_is_named_and_garbage_is_an_error() {
        let lacking = json().replacen("\"warpSize\":32,", "", 1);
        let error = read(lacking.as_bytes(), V).expect_err("lacks a field");
        assert!(error.to_string().contains("warpSize"), "{error}");
        for garbage in ["", "[]", "{", "null"] {
            assert!(matches!(read(garbage.as_bytes(), V), Err(PropertiesError::Unreadable { .. })), "{garbage:?}");
        }
    }
}
