//! Targets of compilation, and profiles, which are captured GPUs as files.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::registry::codes;
use crate::{CudnnVersion, DeviceProps, LibrarySet, Refusal, Toolchain};

/// The target of a plan: the exact cuDNN, its library set, the toolchain, and the GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Version of the cuDNN that compiles and of the one that loads the plan; they must be equal.
    pub cudnn: CudnnVersion,
    /// The library set that compiles.
    pub libraries: LibrarySet,
    /// The rest of the toolchain: CUDA build, NVRTC, host architecture, environment.
    pub toolchain: Toolchain,
    /// The GPU.
    pub device: DeviceProps,
}

impl Target {
    /// The compute capability as major * 10 + minor.
    #[must_use]
    pub const fn sm(&self) -> u32 {
        self.device.sm()
    }

    /// A short line for tables and file headers, such as `sm_90 132sm cuda 13.0 cudnn 9.27.0 slim`. An unusual
    /// toolchain follows, as in `... slim nvrtc 13.2 with CUDNN_RESCALE_THRESHOLD=0`.
    #[must_use]
    pub fn label(&self) -> String {
        self.to_string()
    }

    /// The target as its own cuDNN tells of it: without the properties of a profile that this version does not report.
    /// Targets of one key are equal in this form.
    #[must_use]
    pub fn as_reported(&self) -> Target {
        let Target { cudnn, libraries, ref toolchain, ref device } = *self;
        Target { cudnn, libraries, toolchain: toolchain.clone(), device: device.known_to(cudnn) }
    }

    /// Everything of the target that enters a plan's key.
    pub(crate) fn identity(&self) -> impl Serialize + use<'_> {
        let Target { cudnn, libraries, toolchain, device } = self;
        let set = match libraries {
            LibrarySet::Slim => 1_u8,
            LibrarySet::Full => 2,
        };
        let device = device.known_to(*cudnn);
        let mut bytes = rmp_serde::to_vec(&device.identity()).expect("numbers always serialise");
        // A list of pairs, which cannot be confused with the list of numbers of the fields: keys without such
        // properties stay unchanged.
        let unknown: Vec<(&str, String)> =
            device.unknown_to_us(*cudnn).map(|(name, value)| (name, value.to_string())).collect();
        if !unknown.is_empty() {
            bytes.extend(rmp_serde::to_vec(&unknown).expect("texts always serialise"));
        }
        (cudnn.number(), set, toolchain.identity(), bytes)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.device.driver_ver;
        let text = format!(
            "sm_{} {}sm cuda {}.{} cudnn {} {}{}",
            self.sm(),
            self.device.multi_processor_count,
            driver / 1000,
            driver % 1000 / 10,
            self.cudnn,
            self.libraries,
            self.toolchain.unusual()
        );
        f.pad(&text)
    }
}

/// A captured GPU, as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Short name, for `--target`.
    pub name: String,
    /// The source of the properties.
    pub source: String,
    /// Whether plans that were compiled for it have run on such a GPU.
    pub verified: bool,
    /// The properties.
    pub properties: DeviceProps,
}

/// The profiles in this crate, as (name, file).
const BUILT_IN: [(&str, &str); 7] = [
    ("a100", include_str!("../profiles/a100.json")),
    ("l40s", include_str!("../profiles/l40s.json")),
    ("h100", include_str!("../profiles/h100.json")),
    ("h100-pcie", include_str!("../profiles/h100-pcie.json")),
    ("h200", include_str!("../profiles/h200.json")),
    ("b200", include_str!("../profiles/b200.json")),
    ("rtx-pro-6000", include_str!("../profiles/rtx-pro-6000.json")),
];

impl Profile {
    /// Every built-in profile.
    pub fn built_in() -> impl Iterator<Item = Profile> {
        BUILT_IN.iter().map(|(name, text)| {
            let profile = Profile::from_json(text).expect("built-in profiles are tested");
            debug_assert_eq!(profile.name, *name);
            profile
        })
    }

    /// The built-in profile with this name.
    ///
    /// # Errors
    ///
    /// A reason that lists the known names.
    pub fn named(name: &str) -> Result<Profile, Refusal> {
        Profile::built_in().find(|p| p.name == name).ok_or_else(|| {
            let names: Vec<&str> = BUILT_IN.iter().map(|(n, _)| *n).collect();
            codes::TARGET_UNKNOWN.reason(format!("'{name}'")).with_needed(format!("one of {}", names.join(", "))).into()
        })
    }

    /// Reads a profile file.
    ///
    /// # Errors
    ///
    /// A reason with the place in the file and the fields of a profile.
    pub fn from_json(text: &str) -> Result<Profile, Refusal> {
        serde_json::from_str(text).map_err(|e| {
            codes::PROFILE_PARSE.reason(e.to_string()).at(format!("line {} column {}", e.line(), e.column())).into()
        })
    }

    /// The target of this GPU with a cuDNN that is not loaded, and with the [assumed](Toolchain::assumed) toolchain:
    /// for rules and tests. To compile, use the target of the loaded library: `Compiler::target` of `qkvault-compile`.
    #[must_use]
    pub fn target(&self, cudnn: CudnnVersion, libraries: LibrarySet) -> Target {
        self.target_with(cudnn, libraries, Toolchain::assumed(cudnn))
    }

    /// The target of this GPU with a cuDNN and a toolchain.
    #[must_use]
    pub fn target_with(&self, cudnn: CudnnVersion, libraries: LibrarySet, toolchain: Toolchain) -> Target {
        Target { cudnn, libraries, toolchain, device: self.properties.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{CompilerEnv, HostArch, NvrtcVersion, codec};

    fn key(t: &Target) -> Vec<u8> {
        rmp_serde::to_vec(&t.identity()).expect("serialises")
    }

    #[test]
    fn built_in_profiles_parse_and_work_for_every_version() {
        let names: Vec<String> = Profile::built_in().map(|p| p.name).collect();
        assert_eq!(names.len(), BUILT_IN.len());
        for (profile, (name, _)) in Profile::built_in().zip(BUILT_IN) {
            assert_eq!(profile.name, name);
            for version in [CudnnVersion::v9(14, 0), CudnnVersion::v9(19, 0), CudnnVersion::v9(27, 0)] {
                profile.properties.json_for(version).expect("has every field");
            }
        }
        assert_eq!(Profile::named("h200").expect("exists").properties.sm(), 90);
        assert!(Profile::named("h2000").expect_err("unknown").to_string().contains("h200"));
    }

    #[test]
    fn a_profile_without_a_field_names_it_and_the_version_that_needs_it() {
        let mut profile = Profile::named("h200").expect("exists");
        profile.properties.memory_bus_width = None;
        assert!(profile.properties.json_for(CudnnVersion::v9(19, 0)).is_ok());
        let reasons = profile.properties.json_for(CudnnVersion::v9(27, 0)).expect_err("refused");
        assert_eq!(reasons.len(), 1);
        assert!(reasons[0].to_string().contains("memoryBusWidth") && reasons[0].to_string().contains("9.27.0"));
    }

    #[test]
    fn every_deciding_property_changes_the_key_and_no_board_fact_does() {
        let target = Profile::named("h200").expect("exists").target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
        let base = key(&target);
        let json = serde_json::to_value(&target.device).expect("serialises");
        let board = [
            "pciDeviceId",
            "isTccDriver",
            "totalGlobalMem",
            "smClockRateKHz",
            "memClockRateKHz",
            "l2CacheSize",
            "cudaDeviceId",
            "deviceName",
        ];
        for (name, value) in json.as_object().expect("an object") {
            let mut changed = json.clone();
            changed[name] = match value {
                serde_json::Value::Array(_) => serde_json::json!([7, 7, 7]),
                serde_json::Value::String(_) => "another".into(),
                v => (v.as_i64().expect("a number") + 10).into(),
            };
            let changed = Target { device: serde_json::from_value(changed).expect("parses"), ..target.clone() };
            assert_eq!(key(&changed) != base, !board.contains(&name.as_str()), "{name}");
        }
        assert_ne!(key(&Target { cudnn: CudnnVersion::v9(27, 1), ..target.clone() }), base);
        assert_ne!(key(&Target { libraries: LibrarySet::Full, ..target }), base);
    }

    /// B3: cuDNN 9.19 gave other kernels with NVRTC 13.0 than with 13.2 under the same key; B2: so did a variable.
    #[test]
    fn b2_b3_every_part_of_the_toolchain_changes_the_key() {
        let target = Profile::named("h200").expect("exists").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let Toolchain { cuda: _, nvrtc: _, host: _, environment: _ } = &target.toolchain;
        let other_host = if HostArch::THIS == HostArch::Aarch64 { HostArch::X86_64 } else { HostArch::Aarch64 };
        let env = |name: &str, value: &str| CompilerEnv::from_variables([(name.into(), value.into())]);
        let changes: [fn(&mut Toolchain); 4] =
            [|_| (), |t| t.cuda = 12, |t| t.nvrtc = Some(NvrtcVersion::new(13, 2)), |t| t.nvrtc = None];
        let mut toolchains: Vec<Toolchain> = changes
            .into_iter()
            .map(|change| {
                let mut toolchain = target.toolchain.clone();
                change(&mut toolchain);
                toolchain
            })
            .collect();
        toolchains.push(Toolchain { host: other_host, ..target.toolchain.clone() });
        for (name, value) in
            [("CUDNN_NEW", ""), ("CUDNN_NEW", "0"), ("CUDNN_NEWER", "0"), ("CUDNN_USE_EX2_EMULATION", "0")]
        {
            toolchains.push(Toolchain { environment: env(name, value), ..target.toolchain.clone() });
        }
        let keys: BTreeSet<Vec<u8>> =
            toolchains.iter().map(|t| key(&Target { toolchain: t.clone(), ..target.clone() })).collect();
        assert_eq!(keys.len(), toolchains.len());
        let quiet = Toolchain { environment: env("CUDNN_LOGLEVEL_DBG", "3"), ..target.toolchain.clone() };
        assert_eq!(key(&Target { toolchain: quiet, ..target.clone() }), key(&target), "a log changes no kernel");
    }

    /// B11: an additional property in cuDNN's next version prevented loads from a warm vault.
    #[test]
    fn b11_an_unknown_property_is_kept_and_enters_keys_of_versions_that_may_report_it() {
        let profile = Profile::named("h200").expect("exists");
        let json = serde_json::to_string(&profile).expect("serialises");
        let more = json.replacen(r#""maxGridSize""#, r#""tensorMemory":[1,{"a":2.5}],"maxGridSize""#, 1);
        let wider = Profile::from_json(&more).expect("reads");
        assert_eq!(wider.properties.other.keys().collect::<Vec<_>>(), ["tensorMemory"]);
        assert_eq!(Profile::from_json(&serde_json::to_string(&wider).expect("serialises")).expect("reads"), wider);
        let at = |profile: &Profile, minor| profile.target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
        assert_eq!(key(&at(&wider, 28)), key(&at(&profile, 28)), "9.28 is known not to have such a property");
        assert_ne!(key(&at(&wider, 29)), key(&at(&profile, 29)));
        let handed = |minor| wider.properties.json_for(CudnnVersion::v9(minor, 0)).expect("complete");
        assert!(handed(29).contains("tensorMemory") && !handed(28).contains("tensorMemory"));
        // The target of a plan is stored with the plan.
        let target = at(&wider, 29);
        assert_eq!(codec::decode::<Target>(&codec::encode(&target)).expect("reads"), target);
        // A known property that is missing or misspelled is still an error.
        let error = Profile::from_json(&json.replacen("warpSize", "warpsize", 1)).expect_err("lacks a property");
        assert!(error.to_string().contains("warpSize"), "{error}");
    }

    #[test]
    fn properties_of_a_newer_cudnn_do_not_change_keys_of_an_older() {
        let mut profile = Profile::named("h200").expect("exists");
        let wide = profile.target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        profile.properties.memory_bus_width = None;
        profile.properties.sm_count_origin = None;
        profile.properties.oversized_shared_memory_per_block = None;
        assert_eq!(key(&wide), key(&profile.target(CudnnVersion::v9(19, 0), LibrarySet::Slim)));
    }
}
