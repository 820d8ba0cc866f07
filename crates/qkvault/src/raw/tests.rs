//! The raw runtime on a machine without a GPU. What needs one is in the tests of the C adapter and in `qkvault-exec`.

use qkvault_cache::VaultOptions;
use qkvault_compile::{FA4, KERNELS};
use qkvault_cudnn::QuirkSet;
use qkvault_exec::testing::driver;
use qkvault_graph::{Attention, DType};

use qkvault_compile::CUDNN;
use qkvault_cudnn::Profile;

use super::*;
use crate::{ErrorKind, Runtime};

fn attention() -> Valid {
    Attention::bshd(1, (4, 4), (64, 64), 64, DType::BF16).validate().expect("sound")
}

fn opened(options: RuntimeOptions) -> (tempfile::TempDir, RawRuntime) {
    let folder = tempfile::tempdir().expect("a folder");
    let vault = VaultOptions::in_folder(folder.path()).without_environment();
    (folder, options.vault(vault).open_raw().expect("a vault"))
}

#[test]
fn it_opens_and_answers_without_a_gpu_and_prepares_nothing() {
    let (_folder, runtime) = opened(Runtime::options().handles(4));
    let target = runtime.rules_target("b200", Some(CudnnVersion::v9(19, 0))).expect("built in");
    assert!(runtime.explain(&attention(), &target).supported);
    assert_eq!(target.cudnn, CudnnVersion::v9(19, 0));
    assert!(runtime.plan_key(&attention(), &target).is_ok());
    assert!(runtime.find(attention().fingerprint().bytes(), 0).is_none());
    if driver().is_ok() {
        return;
    }
    // SAFETY: null is the default stream.
    let error = unsafe { runtime.prepare(&attention(), 0, std::ptr::null_mut()) }.expect_err("no GPU");
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert!(error.to_string().contains("no NVIDIA driver"), "{error}");
}

#[test]
fn an_unknown_gpu_is_a_refusal_with_the_known_ones_and_a_profile_may_be_given_as_text() {
    let (_folder, runtime) = opened(Runtime::options());
    let error = runtime.rules_target("h300", None).expect_err("unknown");
    assert!(error.is_refused() && error.to_string().contains("h200"), "{error}");
    let text = serde_json::to_string(&Profile::named("h200").expect("built in")).expect("writes");
    let (given, named) = (runtime.rules_target(&text, None), runtime.rules_target("h200", None));
    assert_eq!(given.expect("a profile"), named.expect("built in"));
}

#[test]
fn a_plan_that_an_older_version_wrote_is_missing_and_the_error_says_so() {
    let (folder, runtime) = opened(Runtime::options());
    let target = runtime.rules_target("h200", Some(CudnnVersion::v9(19, 0))).expect("built in");
    let told = runtime.look(&attention(), &target).expect_err("an empty vault");
    assert!(told.is_missing() && !told.to_string().contains("format"), "{told}");
    let entry = folder.path().join("vault/v1/entries/ab").join(format!("{}.qkv", "ab".repeat(32)));
    std::fs::create_dir_all(entry.parent().expect("a folder")).expect("it is made");
    std::fs::write(entry, b"what an older version wrote").expect("it is written");
    let told = runtime.look(&attention(), &target).expect_err("an older vault");
    assert!(told.is_missing() && told.to_string().contains("1 entry of format 1"), "{told}");
    assert!(told.to_string().contains("qkvault cache gc"), "{told}");
}

#[test]
fn plans_with_other_options_have_other_names_in_the_table_of_the_process() {
    let fingerprint = *attention().fingerprint().bytes();
    let name = |options: RuntimeOptions| opened(options).1.name(&fingerprint);
    assert_eq!(name(Runtime::options()), fingerprint);
    let quirks: QuirkSet = qkvault_cudnn::QUIRKS[0].code.parse().expect("a quirk");
    let allowed = CompileOptions { allowed: quirks, ..CompileOptions::default() };
    let names = [
        name(Runtime::options()),
        name(Runtime::options().compile(allowed)),
        name(Runtime::options().workspace_limit(1 << 20)),
        name(Runtime::options().workspace_limit(1 << 21)),
    ];
    assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    assert_eq!(names[3], name(Runtime::options().workspace_limit(1 << 21)));
}

#[test]
fn a_pack_that_is_none_is_an_error_of_the_vault_with_its_path() {
    let (folder, runtime) = opened(Runtime::options());
    for content in [None, Some("no pack")] {
        let file = folder.path().join("some.qkvpack");
        content.inspect(|text| std::fs::write(&file, text).expect("written"));
        let error = runtime.unpack(&file, &UnpackOptions::default()).expect_err("no pack");
        assert!(error.kind() == ErrorKind::Vault && error.to_string().contains("some.qkvpack"), "{error}");
    }
}

#[test]
fn an_explanation_names_the_engine_and_those_that_do_not_compute_it() {
    let (_folder, runtime) = opened(Runtime::options());
    let target = runtime.rules_target("h200", None).expect("built in");
    let prompt = || Attention::bshd(4, (16, 16), (4096, 4096), 128, DType::BF16).causal();
    let said = runtime.explain(&prompt().validate().expect("sound"), &target);
    let chosen = said.engine.as_ref().expect("an engine");
    assert_eq!((said.supported, chosen.engine.as_str(), chosen.passed.len()), (true, "fa4", 0));
    assert!(said.to_string().contains("engine: FlashAttention-4: 14 % faster than cuDNN"), "{said}");
    // cuDNN keeps a gradient of every score, which is too much, and FlashAttention-4 keeps none.
    let long = Attention::bshd(1, (128, 128), (32_768, 32_768), 128, DType::BF16).causal().with_stats();
    let options = qkvault_graph::BackwardOptions { deterministic: true, ..Default::default() };
    let long = long.backward(options).validate().expect("sound");
    let said = runtime.explain(&long, &target);
    let chosen = said.engine.as_ref().expect("an engine");
    assert_eq!((said.supported, said.reasons[0].code.as_str()), (true, "workspace.quadratic"));
    assert_eq!((chosen.engine.as_str(), chosen.passed.len()), ("fa4", 1), "kernels have no backward");
    let json = serde_json::to_value(&said).expect("writes");
    assert_eq!(json["engine"]["passed"].as_array().expect("a list").len(), 1);
    // With one engine by name, its reasons are those that count.
    let named = |engine| {
        let compile = CompileOptions { engine, ..CompileOptions::default() };
        opened(Runtime::options().compile(compile)).1.explain(&long, &target)
    };
    let kernels = named(KERNELS.policy());
    assert_eq!((kernels.supported, kernels.reasons[0].code.as_str()), (false, "kernels.backward"));
    let fa4 = named(FA4.policy());
    assert!(fa4.supported && fa4.reasons.is_empty(), "{fa4}");
    let cudnn = named(CUDNN.policy());
    assert!(!cudnn.supported && cudnn.engine.is_none(), "{cudnn}");
}
