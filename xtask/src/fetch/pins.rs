//! Reads the checked-in list of wheels to fetch, with their hashes.

use std::path::Path;

use qkvault_base::LibrarySet;
use serde::Deserialize;

use super::{FetchError, Licence};

/// The list of the repository.
const LIST: &str = include_str!("../../wheels.toml");

/// The whole list.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pins {
    /// The default cuDNN version.
    pub(crate) default: String,
    #[serde(rename = "set")]
    sets: Vec<Set>,
    nvrtc: Option<NvrtcPins>,
    #[serde(rename = "engine", default)]
    engines: Vec<EnginePins>,
    #[serde(rename = "tool", default)]
    tools: Vec<Tool>,
    #[serde(rename = "wheel")]
    wheels: Vec<Wheel>,
}

/// A cuDNN with all libraries that it needs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    cudnn: String,
    set: String,
    wheels: Vec<String>,
    /// Prefixes of the libraries to unpack of all its wheels; empty for those that each wheel names.
    #[serde(default)]
    only: Vec<String>,
}

/// The compiler of kernels.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct NvrtcPins {
    version: String,
    wheels: Vec<String>,
}

/// Python packages that compile an engine's kernels.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnginePins {
    name: String,
    version: String,
    /// Versions of Python that all wheels exist for.
    pythons: Vec<String>,
    wheels: Vec<String>,
}

/// A chore's tool, which is not NVIDIA's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    name: String,
    version: String,
    /// Whether it is a program, and not libraries and headers.
    #[serde(default)]
    program: bool,
    wheels: Vec<String>,
}

/// One wheel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wheel {
    /// The project's name on the index.
    pub(crate) name: String,
    /// The exact version.
    pub(crate) version: String,
    /// The file's name.
    pub(crate) file: String,
    /// The file's SHA-256, in hexadecimal.
    pub(crate) sha256: String,
    /// The file's length.
    pub(crate) bytes: u64,
    /// Prefixes of the libraries to unpack; empty for all.
    #[serde(default)]
    pub(crate) only: Vec<String>,
    /// The one version of Python that the wheel is for, as `3.12`.
    #[serde(default)]
    pub(crate) python: Option<String>,
}

/// The contents of one folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parcel {
    /// The folder's name: `9.27.0.42-slim`, `libclang-18.1.1`.
    pub(crate) folder: String,
    /// The title for messages.
    pub(crate) title: String,
    /// The wheels to unpack into it.
    pub(crate) wheels: Vec<Wheel>,
    /// The licence of NVIDIA's that a part of it is under.
    pub(crate) licence: Option<Licence>,
    /// Whether every file of its wheels is unpacked, and not libraries, headers and licences alone.
    pub(crate) whole: bool,
}

impl Parcel {
    /// Whether NVRTC is in it.
    pub(crate) fn has_nvrtc(&self) -> bool {
        self.wheels.iter().any(|wheel| wheel.name.contains("nvrtc"))
    }
}

impl Pins {
    /// Reads the list of the repository, or of `file`.
    pub(crate) fn read(file: Option<&Path>) -> Result<Self, FetchError> {
        let name = file.map_or_else(|| "wheels.toml".into(), Path::to_path_buf);
        let text = match file {
            Some(file) => std::fs::read_to_string(file).map_err(|cause| FetchError::io("read", file, cause))?,
            None => LIST.to_owned(),
        };
        toml::from_str(&text).map_err(|error| FetchError::Pins { file: name, reason: error.to_string() })
    }

    /// The cuDNN of this version and set. A partial version selects the newest one that begins with it.
    pub(crate) fn cudnn(&self, version: Option<&str>, set: LibrarySet) -> Result<Parcel, FetchError> {
        let wanted = version.unwrap_or(&self.default);
        let begins = |full: &str| full == wanted || full.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('.'));
        let of_set = || self.sets.iter().filter(|pinned| pinned.set == set.word());
        let found = of_set().filter(|pinned| begins(&pinned.cudnn)).max_by_key(|pinned| numbers(&pinned.cudnn));
        let Some(found) = found else {
            let known = of_set().map(|pinned| pinned.cudnn.clone()).collect();
            return Err(FetchError::UnknownVersion { wanted: wanted.to_owned(), set, known });
        };
        let mut wheels = self.wheels(&found.wheels, None)?;
        if !found.only.is_empty() {
            wheels.iter_mut().for_each(|wheel| wheel.only.clone_from(&found.only));
        }
        Ok(Parcel {
            folder: format!("{}-{set}", found.cudnn),
            title: format!("cuDNN {} ({set})", found.cudnn),
            wheels,
            licence: Some(Licence::Cudnn),
            whole: false,
        })
    }

    /// The compiler of kernels, if the list has one.
    pub(crate) fn nvrtc(&self) -> Result<Option<Parcel>, FetchError> {
        let Some(NvrtcPins { version, wheels }) = &self.nvrtc else { return Ok(None) };
        let (folder, title) = (version.clone(), format!("NVRTC {version}"));
        let (wheels, licence) = (self.wheels(wheels, None)?, Some(Licence::Cudnn));
        Ok(Some(Parcel { folder, title, wheels, licence, whole: false }))
    }

    /// The versions of Python that an engine's wheels are for.
    pub(crate) fn pythons(&self, name: &str) -> Result<&[String], FetchError> {
        self.found(name).map(|engine| engine.pythons.as_slice())
    }

    /// An engine's packages for a version of Python.
    pub(crate) fn engine(&self, name: &str, python: &str) -> Result<Parcel, FetchError> {
        let EnginePins { name, version, pythons: _, wheels } = self.found(name)?;
        Ok(Parcel {
            folder: qkvault_fa4::folder(name, version, python),
            title: format!("{name} {version} for Python {python}"),
            wheels: self.wheels(wheels, Some(python))?,
            licence: Some(Licence::CutlassDsl),
            whole: true,
        })
    }

    fn found(&self, name: &str) -> Result<&EnginePins, FetchError> {
        let known = || self.engines.iter().map(|engine| engine.name.clone()).collect();
        let missing = || FetchError::UnknownEngine { wanted: name.to_owned(), known: known() };
        self.engines.iter().find(|engine| engine.name == name).ok_or_else(missing)
    }

    /// A tool, by name.
    pub(crate) fn tool(&self, name: &str) -> Result<Parcel, FetchError> {
        let missing = || FetchError::Pins { file: "wheels.toml".into(), reason: format!("it has no tool {name}") };
        let tool = self.tools.iter().find(|tool| tool.name == name).ok_or_else(missing)?;
        let title = format!("{name} {}", tool.version);
        let folder = title.replace(' ', "-");
        let wheels = self.wheels(&tool.wheels, None)?;
        Ok(Parcel { folder, title, wheels, licence: None, whole: tool.program })
    }

    fn wheels(&self, names: &[String], python: Option<&str>) -> Result<Vec<Wheel>, FetchError> {
        let find = |name: &String| {
            let fits = |wheel: &&Wheel| {
                let for_it = wheel.python.is_none() || wheel.python.as_deref() == python;
                for_it && format!("{} {}", wheel.name, wheel.version) == *name
            };
            self.wheels.iter().find(fits).cloned().ok_or_else(|| FetchError::Pins {
                file: "wheels.toml".into(),
                reason: format!("a set names the wheel '{name}', which is not listed"),
            })
        };
        names.iter().map(find).collect()
    }
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_the_repository_is_complete() {
        let pins = Pins::read(None).expect("it is valid");
        for pinned in &pins.sets {
            let set = if pinned.set == "slim" { LibrarySet::Slim } else { LibrarySet::Full };
            let parcel = pins.cudnn(Some(&pinned.cudnn), set).expect("every set's wheels are listed");
            assert_eq!(parcel.folder, format!("{}-{}", pinned.cudnn, pinned.set));
        }
        for wheel in &pins.wheels {
            assert_eq!(wheel.sha256.len(), 64, "{}", wheel.file);
            assert!(wheel.file.contains(&wheel.version), "{}", wheel.file);
        }
        for tool in ["libclang", "uv"] {
            assert_eq!(pins.tool(tool).expect("the tool is listed").whole, tool != "libclang");
        }
        let nvrtc = pins.nvrtc().expect("its wheel is listed").expect("it is listed");
        let licensed = nvrtc.licence == Some(Licence::Cudnn);
        assert!(licensed && nvrtc.folder.starts_with("13.0."), "plans are compiled by 13.0: {nvrtc:?}");
    }

    #[test]
    fn the_wheels_of_fa4_are_those_that_its_plans_name_and_each_python_has_its_own() {
        let pins = Pins::read(None).expect("it is valid");
        for python in pins.pythons("fa4").expect("it is listed") {
            let parcel = pins.engine("fa4", python).expect("every wheel is listed");
            let tag = format!("cp{}", python.replace('.', ""));
            assert_eq!(parcel.folder, format!("fa4-{}-{tag}", qkvault_fa4::TOOLCHAIN.flash_attn));
            assert_eq!((parcel.licence, parcel.whole), (Some(Licence::CutlassDsl), true));
            let version = |name: &str| {
                let wheel = parcel.wheels.iter().find(|wheel| wheel.name == name);
                wheel.map(|wheel| wheel.version.clone()).unwrap_or_default()
            };
            let qkvault_fa4::Fa4Toolchain { flash_attn, cutlass_dsl, quack } = qkvault_fa4::TOOLCHAIN;
            for (name, of) in
                [("flash-attn-4", flash_attn), ("nvidia-cutlass-dsl", cutlass_dsl), ("quack-kernels", quack)]
            {
                assert_eq!(version(name), of, "{name}");
            }
            for wheel in parcel.wheels.iter().filter(|wheel| wheel.python.is_some()) {
                assert!(wheel.file.contains(&tag), "{} is not for Python {python}", wheel.file);
            }
        }
        let error = pins.engine("fa5", "3.11").expect_err("there is none").to_string();
        assert!(error.contains("'fa5'") && error.contains("fa4"), "{error}");
    }

    #[test]
    fn a_version_may_be_given_in_part() {
        let pins = Pins::read(None).expect("it is valid");
        for wanted in ["9.19", "9.19.0", "9.19.0.56"] {
            assert_eq!(pins.cudnn(Some(wanted), LibrarySet::Slim).expect("it is listed").folder, "9.19.0.56-slim");
        }
        assert_eq!(pins.cudnn(Some("9"), LibrarySet::Slim).expect("there are some").folder, "9.28.1.4-slim");
        assert_eq!(pins.cudnn(None, LibrarySet::Slim).expect("the default").folder, "9.27.0.42-slim");
    }

    #[test]
    fn an_unknown_version_is_answered_with_the_known_ones() {
        let pins = Pins::read(None).expect("it is valid");
        let error = pins
            .cudnn(Some("9.1"), LibrarySet::Slim)
            .expect_err("not listed, though 9.19 begins with the same letters");
        assert!(error.to_string().contains("9.19.0.56"), "{error}");
    }
}
