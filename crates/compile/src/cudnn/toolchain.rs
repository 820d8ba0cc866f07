//! The toolchain of a compiler, targets with this toolchain, and refusals because it differs or has changed.

use qkvault_cudnn::{CompilerEnv, NvrtcVersion, Profile, Target, Toolchain};

use crate::cudnn::compiler::Compiler;
use crate::cudnn::convert::library_toolchain;
use crate::cudnn::failure::Failure;

impl Compiler {
    /// The toolchain besides cuDNN's own code: CUDA build, NVRTC, host architecture, and the variables that were set
    /// when the library was opened.
    #[must_use]
    pub fn toolchain(&self) -> Toolchain {
        library_toolchain(self.library())
    }

    /// The target of a GPU with this compiler. Another process with the same compiler finds plans for this target
    /// again.
    #[must_use]
    pub fn target(&self, profile: &Profile) -> Target {
        let library = self.library();
        profile.target_with(library.version(), library.set(), self.toolchain())
    }

    /// The reason not to compile for a target here: it names another library or toolchain, a variable has changed, or
    /// NVRTC is too new for its driver.
    pub(crate) fn check_toolchain(&self, target: &Target) -> Result<(), Failure> {
        let here = (self.library().version(), self.library().set(), self.toolchain());
        if (target.cudnn, target.libraries, &target.toolchain) != (here.0, here.1, &here.2) {
            let (found, found_set, found_toolchain) = here;
            return Err(Failure::OtherLibrary {
                wanted: target.cudnn,
                wanted_set: target.libraries,
                found,
                found_set,
                wanted_toolchain: Box::new(target.toolchain.clone()),
                found_toolchain: Box::new(found_toolchain),
            });
        }
        if let Some(row) = here.2.environment.refused() {
            return Err(Failure::RefusedVariable { name: row.name, seen: row.seen });
        }
        unchanged(&here.2.environment, &CompilerEnv::from_variables(std::env::vars_os()))?;
        let driver = target.device.driver_ver;
        match target.toolchain.nvrtc {
            Some(nvrtc) if !nvrtc.loads_under(driver) => {
                Err(Failure::NewerNvrtc { nvrtc, driver: NvrtcVersion::from_number(driver) })
            }
            _ => Ok(()),
        }
    }
}

/// Whether the environment is unchanged; otherwise the first variable that differs.
fn unchanged(opened: &CompilerEnv, now: &CompilerEnv) -> Result<(), Failure> {
    let Some(name) = opened.first_difference(now) else { return Ok(()) };
    let value = |env: &CompilerEnv| env.get(&name).map(str::to_owned);
    Err(Failure::Environment { opened: value(opened), now: value(now), name })
}

/// A variable's value in a sentence.
pub(crate) fn is(value: &Option<String>) -> String {
    value.as_ref().map_or_else(|| "was not set".to_owned(), |value| format!("was '{value}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b2_a_variable_that_was_set_in_between_is_named_with_both_values() {
        let env =
            |value: Option<&str>| CompilerEnv::from_variables(value.map(|v| ("CUDNN_UNFUSE_FMA".into(), v.into())));
        for (opened, now, words) in [
            (None, Some("1"), ["was not set when cuDNN was opened", "was '1' now"]),
            (Some("1"), None, ["was '1' when cuDNN was opened", "was not set now"]),
            (Some("1"), Some(""), ["was '1' when", "was '' now"]),
        ] {
            let error = unchanged(&env(opened), &env(now)).expect_err("it differs").to_string();
            assert!(error.contains("CUDNN_UNFUSE_FMA") && words.iter().all(|w| error.contains(w)), "{error}");
        }
        assert!(unchanged(&env(Some("1")), &env(Some("1"))).is_ok());
    }
}
