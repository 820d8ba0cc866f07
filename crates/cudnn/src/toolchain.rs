//! The toolchain of a plan besides cuDNN's version and set: CUDA build, NVRTC, host architecture and environment.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{CompilerEnv, CudnnVersion};

/// Version of NVRTC, NVIDIA's run-time compiler, as `nvrtcVersion` reports it: the CUDA release that it belongs to.
///
/// Update releases have the same version: 13.0.48 and 13.0.88 gave the same code (cuDNN 9.19, sm_90 and sm_100), except
/// for their own number in a note of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NvrtcVersion {
    /// Major version of CUDA.
    pub major: u16,
    /// Minor version of CUDA.
    pub minor: u16,
}

impl NvrtcVersion {
    /// The version with these numbers.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> NvrtcVersion {
        NvrtcVersion { major, minor }
    }

    /// The version as one number, as CUDA counts versions and [`DeviceProps`](crate::DeviceProps) counts drivers: 13.2
    /// is 13020.
    #[must_use]
    pub const fn number(self) -> i64 {
        self.major as i64 * 1000 + self.minor as i64 * 10
    }

    /// The inverse of [`number`](NvrtcVersion::number).
    #[must_use]
    pub const fn from_number(number: i64) -> NvrtcVersion {
        NvrtcVersion { major: (number / 1000) as u16, minor: (number % 1000 / 10) as u16 }
    }

    /// Whether code that it compiles loads under a driver of this CUDA version (13020 is 13.2): its major version must
    /// not be newer than the driver's.
    ///
    /// cuDNN compiles to machine code, not to PTX, so the driver's minor version may be older: plans that cuDNN 9.19
    /// compiled with NVRTC 13.2 loaded and gave right numbers under a driver of CUDA 13.0 (H200).
    #[must_use]
    pub const fn loads_under(self, driver: i64) -> bool {
        self.major as i64 <= driver / 1000
    }
}

impl fmt::Display for NvrtcVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}", self.major, self.minor))
    }
}

/// The error for a text that is not an NVRTC version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not an NVRTC version; write it as 13.0")]
pub struct BadNvrtc {
    /// The text.
    pub given: String,
}

impl FromStr for NvrtcVersion {
    type Err = BadNvrtc;

    fn from_str(s: &str) -> Result<Self, BadNvrtc> {
        let numbers = s.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let (major, minor) = numbers.ok_or_else(|| BadNvrtc { given: s.into() })?;
        Ok(NvrtcVersion { major, minor })
    }
}

impl TryFrom<String> for NvrtcVersion {
    type Error = BadNvrtc;

    fn try_from(s: String) -> Result<Self, BadNvrtc> {
        s.parse()
    }
}

impl From<NvrtcVersion> for String {
    fn from(v: NvrtcVersion) -> String {
        v.to_string()
    }
}

/// Architecture of the host that compiles; cuDNN is published for the first two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostArch {
    /// 64-bit x86.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// Any other: no cuDNN exists for it, but rules can still be checked.
    Other,
}

impl HostArch {
    /// The architecture of this program.
    pub const THIS: HostArch = if cfg!(target_arch = "x86_64") {
        HostArch::X86_64
    } else if cfg!(target_arch = "aarch64") {
        HostArch::Aarch64
    } else {
        HostArch::Other
    };
}

impl fmt::Display for HostArch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            HostArch::X86_64 => "x86_64",
            HostArch::Aarch64 => "aarch64",
            HostArch::Other => "other architecture",
        })
    }
}

/// What compiles besides cuDNN's own code. All of it enters a plan's key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Toolchain {
    /// Major CUDA version of this build of cuDNN: 12 or 13. Each cuDNN version is published for both.
    pub cuda: u16,
    /// NVRTC, if it is a separate library: cuDNN 9.20 and older. Since 9.21 it is part of cuDNN.
    pub nvrtc: Option<NvrtcVersion>,
    /// Architecture of the host.
    pub host: HostArch,
    /// The variables that are set and change what is compiled.
    pub environment: CompilerEnv,
}

impl Toolchain {
    /// The first cuDNN version that contains NVRTC.
    pub const NVRTC_INSIDE: CudnnVersion = CudnnVersion::v9(21, 0);

    /// The NVRTC that `cargo xtask fetch` installs beside cuDNN versions that need one.
    pub const FETCHED_NVRTC: NvrtcVersion = NvrtcVersion::new(13, 0);

    /// The toolchain that [`Profile::target`](crate::Profile::target) assumes: the CUDA 13 build, the NVRTC that `cargo
    /// xtask fetch` installs, this program's architecture, and no variable set.
    #[must_use]
    pub fn assumed(cudnn: CudnnVersion) -> Toolchain {
        let nvrtc = (cudnn < Toolchain::NVRTC_INSIDE).then_some(Toolchain::FETCHED_NVRTC);
        Toolchain { cuda: 13, nvrtc, host: HostArch::THIS, environment: CompilerEnv::NONE }
    }

    /// This toolchain with another cuDNN version: NVRTC is separate or part of cuDNN, as for that version.
    #[must_use]
    pub fn under(&self, cudnn: CudnnVersion) -> Toolchain {
        let assumed = Toolchain::assumed(cudnn).nvrtc;
        let nvrtc = assumed.and(self.nvrtc.or(assumed));
        Toolchain { nvrtc, ..self.clone() }
    }

    /// Everything that enters a plan's key, which is every field.
    pub(crate) fn identity(&self) -> impl Serialize + use<'_> {
        let Toolchain { cuda, nvrtc, host, environment } = self;
        let host = match host {
            HostArch::X86_64 => 1_u8,
            HostArch::Aarch64 => 2,
            HostArch::Other => 3,
        };
        let nvrtc = nvrtc.map(|NvrtcVersion { major, minor }| (major, minor));
        (*cuda, nvrtc, host, environment.pairs().collect::<Vec<_>>())
    }

    /// What differs from the usual toolchain (the CUDA 13 build, the NVRTC that is fetched, x86_64, no variable):
    /// empty, or words that each begin with a space.
    pub(crate) fn unusual(&self) -> String {
        let Toolchain { cuda, nvrtc, host, environment } = self;
        let mut text = String::new();
        if *cuda != 13 {
            text += &format!(" cu{cuda}");
        }
        if let Some(nvrtc) = nvrtc.filter(|nvrtc| *nvrtc != Toolchain::FETCHED_NVRTC) {
            text += &format!(" nvrtc {nvrtc}");
        }
        if *host != HostArch::X86_64 {
            text += &format!(" {host}");
        }
        if !environment.is_empty() {
            text += &format!(" with {environment}");
        }
        text
    }
}

impl fmt::Display for Toolchain {
    /// Prints, for example, `cu13, NVRTC 13.0, x86_64` or `cu13, NVRTC inside, x86_64, with CUDNN_RESCALE_THRESHOLD=0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Toolchain { cuda, nvrtc, host, environment } = self;
        let nvrtc = nvrtc.map_or_else(|| "inside".to_owned(), |nvrtc| nvrtc.to_string());
        let with = if environment.is_empty() { String::new() } else { format!(", with {environment}") };
        f.pad(&format!("cu{cuda}, NVRTC {nvrtc}, {host}{with}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_nvrtc_read_print_and_compare() {
        let v: NvrtcVersion = "13.2".parse().expect("a version");
        assert_eq!((v, v.number(), v.to_string()), (NvrtcVersion::new(13, 2), 13_020, "13.2".to_owned()));
        assert_eq!(NvrtcVersion::from_number(v.number()), v);
        for bad in ["", "13", "13.", "13.0.88", "x.1"] {
            assert!(bad.parse::<NvrtcVersion>().is_err(), "{bad}");
        }
        for (nvrtc, driver, loads) in [
            (v, 13_020, true),
            (v, 13_030, true),
            (v, 13_000, true),
            (v, 14_000, true),
            (v, 12_090, false),
            (NvrtcVersion::new(13, 0), 12_090, false),
            (NvrtcVersion::new(12, 9), 13_000, true),
        ] {
            assert_eq!(nvrtc.loads_under(driver), loads, "{nvrtc} under {driver}");
        }
    }

    #[test]
    fn a_toolchain_prints_every_field_and_a_label_only_unusual_ones() {
        let mut toolchain = Toolchain { host: HostArch::X86_64, ..Toolchain::assumed(CudnnVersion::v9(19, 0)) };
        assert_eq!(toolchain.to_string(), "cu13, NVRTC 13.0, x86_64");
        assert_eq!(toolchain.unusual(), "");
        toolchain.nvrtc = Some(NvrtcVersion::new(13, 2));
        toolchain.cuda = 12;
        toolchain.host = HostArch::Aarch64;
        toolchain.environment = CompilerEnv::from_variables([("CUDNN_RESCALE_THRESHOLD".into(), "0".into())]);
        assert_eq!(toolchain.to_string(), "cu12, NVRTC 13.2, aarch64, with CUDNN_RESCALE_THRESHOLD=0");
        assert_eq!(toolchain.unusual(), " cu12 nvrtc 13.2 aarch64 with CUDNN_RESCALE_THRESHOLD=0");
        let inside = Toolchain::assumed(CudnnVersion::v9(27, 0));
        assert_eq!(inside.under(CudnnVersion::v9(20, 0)).nvrtc, Some(Toolchain::FETCHED_NVRTC));
        assert_eq!(toolchain.under(CudnnVersion::v9(21, 0)).nvrtc, None);
        assert_eq!(toolchain.under(CudnnVersion::v9(14, 0)), toolchain);
        assert!(inside.to_string().contains("NVRTC inside") && inside.nvrtc.is_none());
        let json = serde_json::to_string(&toolchain).expect("serialises");
        assert_eq!(serde_json::from_str::<Toolchain>(&json).expect("reads"), toolchain);
        assert!(serde_json::from_str::<Toolchain>(&json.replacen('{', r#"{"linker":1,"#, 1)).is_err());
    }
}
