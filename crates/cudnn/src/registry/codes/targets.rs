//! Targets and profiles.

use crate::registry::Entry;
use crate::registry::declare;

declare![
    PROFILE_PARSE = Entry {
        code: "profile.parse",
        cause: "The profile file cannot be read.",
        needed: "a JSON object with name, source, verified and properties; properties are as cuDNN reports them",
        fix: "capture it again with `qkvault profile capture` on the GPU host",
        ..Entry::description()
    },
    PROFILE_FIELD = Entry {
        code: "profile.field",
        cause: "The profile lacks a field that this cuDNN version needs.",
        fix: "capture the profile again with this cuDNN, or add the field by hand",
        ..Entry::description()
    },
    TARGET_UNKNOWN = Entry {
        code: "target.unknown",
        cause: "No GPU with this name is known.",
        field: "target",
        fix: "use one of these names, or give the path of a profile file, which `qkvault profile capture` writes on a \
              GPU host",
        ..Entry::description()
    },
];
