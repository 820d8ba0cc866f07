//! `pack` and `unpack`: a vault as one file, sealed or not, whole or in part. A damaged pack stores nothing.

use crate::kit::{Place, fields, numbers};

/// A vault with four plans: prefill and decode, in two types.
fn filled() -> Option<Place> {
    let place = Place::with_cudnn("9.27.0")?;
    for dtype in ["bf16", "f16"] {
        let words = format!("warm --model ../../models/qwen2.5-7b.json --seq 128 --batch 1 --dtype {dtype}");
        place.run(&words).good();
    }
    assert_eq!(place.entries().len(), 4);
    Some(place)
}

#[test]
fn a_pack_carries_a_vault_to_another_machine() {
    let Some(from) = filled() else { return };
    let pack = from.path("plans.qkvpack").display().to_string();
    let (code, report) = from.json(&format!("pack {pack}"));
    fields(&report, &["entries", "plain_bytes", "packed_bytes", "skipped"]);
    assert_eq!((code, &report["entries"]), (0, &4.into()));
    assert!(from.run(&format!("pack {pack}")).good().contains("do not publish"));

    let to = Place::with_cudnn("9.27.0").unwrap();
    let (code, checked) = to.json(&format!("unpack {pack} --verify-only"));
    assert_eq!((code, &checked["entries"]), (0, &4.into()));
    assert!(to.entries().is_empty(), "a check stores nothing");
    let (_, report) = to.json(&format!("unpack {pack}"));
    assert_eq!(numbers(&report, ["stored", "already"]), [4, 0]);
    assert!(to.run(&format!("unpack {pack}")).good().starts_with("0 stored, 4 already there, of 4"));
    let (_, warm) = to.json("warm --model ../../models/qwen2.5-7b.json --seq 128 --batch 1");
    assert_eq!(numbers(&warm, ["built", "hits"]), [0, 2], "the unpacked plans are those that were compiled");
    assert_eq!(to.json("cache verify").1["good"], 4);
}

#[test]
fn a_part_can_be_packed_and_a_part_unpacked() {
    let Some(from) = filled() else { return };
    let pack = from.path("part.qkvpack").display().to_string();
    for (select, entries) in [
        ("--only-what f16", 4), // bf16 contains it, too
        ("--only-what bf16", 2),
        ("--only-what causal", 2),
        ("--only-target sm_90", 4),
    ] {
        let (code, report) = from.json(&format!("pack {pack} {select}"));
        assert_eq!((code, &report["entries"]), (0, &entries.into()), "{select}");
    }
    let key = from.entries()[0].file_name().unwrap().to_string_lossy()[..16].to_owned();
    from.run(&format!("pack {pack}")).good();
    let to = Place::new();
    let (_, report) = to.json(&format!("unpack {pack} --key {key}"));
    assert_eq!(numbers(&report, ["entries", "selected", "stored"]), [4, 1, 1]);
    assert_eq!(to.entries()[0].file_name(), from.entries()[0].file_name());
}

#[test]
fn a_sealed_pack_opens_only_with_its_secret() {
    let Some(from) = filled() else { return };
    let pack = from.path("sealed.qkvpack").display().to_string();
    let secret = from.secret("secret", "correct horse battery staple, and some more of it");
    let wrong = from.secret("wrong", "incorrect horse battery staple, and some more of it");
    let weak = from.secret("weak", "short");
    from.run(&format!("pack {pack} --seal {weak}")).failed(1, &["at least 16 bytes"]);
    from.run(&format!("pack {pack} --seal {}", from.path("absent").display())).failed(1, &["absent"]);
    assert!(!from.path("sealed.qkvpack").exists(), "a failed `pack` leaves no file");
    from.run(&format!("pack {pack} --seal {secret}")).good();
    let to = Place::new();
    to.run(&format!("unpack {pack} --seal {wrong}")).failed(1, &["seal"]);
    to.run(&format!("unpack {pack}")).failed(1, &["sealed.qkvpack", "`qkvault unpack --seal FILE`"]);
    assert!(to.entries().is_empty(), "nothing was stored");
    to.run(&format!("unpack {pack} --seal {secret}")).good();
    assert_eq!(to.entries().len(), 4);
}

/// The help once stated 32 bytes; the code requires 16.
#[test]
fn the_help_of_seal_states_the_length_that_pack_requires() {
    let Some(place) = filled() else { return };
    let pack = place.path("some.qkvpack").display().to_string();
    let [short, enough] = [15, 16].map(|bytes| place.secret(&format!("secret-{bytes}"), &"s".repeat(bytes)));
    place.run(&format!("pack {pack} --seal {short}")).failed(1, &["at least 16 bytes"]);
    place.run(&format!("pack {pack} --seal {enough}")).good();
    assert!(place.run("pack --help").good().contains("at least 16 bytes"));
}

#[test]
fn a_damaged_pack_stores_nothing_and_harms_nothing() {
    let Some(place) = filled() else { return };
    let pack = place.path("plans.qkvpack");
    place.run(&format!("pack {}", pack.display())).good();
    let bytes = std::fs::read(&pack).unwrap();
    let (half, mut flipped) = (&bytes[..bytes.len() / 2], bytes.clone());
    flipped[bytes.len() * 3 / 4] ^= 1;
    for (name, content) in [("half", half), ("flipped", &flipped[..]), ("foreign", b"no pack at all"), ("empty", b"")] {
        std::fs::write(place.path(name), content).unwrap();
        let to = Place::new();
        for option in ["", "--verify-only"] {
            to.run(&format!("unpack {} {option}", place.path(name).display())).failed(1, &[]);
        }
        assert!(to.entries().is_empty(), "{name}: something was stored");
    }
    place.run("unpack /nonexistent.qkvpack").failed(1, &["/nonexistent.qkvpack"]);
    place.run("pack /nonexistent/x.qkvpack").failed(1, &["/nonexistent"]);
    assert_eq!(place.json("cache verify").1["good"], 4);
}

/// Packs the vault.
fn packed(place: &Place, options: &str) -> String {
    let pack = place.path("some.qkvpack").display().to_string();
    place.run(&format!("pack {pack} {options}")).good();
    pack
}

#[test]
fn an_unsealed_pack_is_told_in_one_line_and_refused_when_a_seal_is_required() {
    let Some(place) = filled() else { return };
    let pack = packed(&place, "");
    for options in ["", "--verify-only"] {
        let done = place.run(&format!("unpack {pack} {options}"));
        assert_eq!(done.err.matches("the pack is not sealed").count(), 1, "{}", done.err);
        assert!(done.err.lines().any(|line| line.contains("not sealed") && line.contains("run code on your GPU")));
        let words = ["not sealed", "qkvault pack --seal FILE"];
        place.run(&format!("unpack {pack} --require-seal {options}")).failed(1, &words);
        let strict = Place::new().set("QKVAULT_CACHE_REQUIRE_SEAL", "1");
        strict.run(&format!("unpack {pack} {options}")).failed(1, &words);
    }
    let secret = place.secret("secret", "correct horse battery staple");
    let sealed = packed(&place, &format!("--seal {secret}"));
    let done = place.run(&format!("unpack {sealed} --require-seal --seal {secret}"));
    assert!(!done.err.contains("not sealed"), "{}", done.err);
    done.good();
    place.run(&format!("unpack {sealed} --require-seal")).failed(1, &["give the seal's secret"]);
    let strict = Place::new().set("QKVAULT_CACHE_REQUIRE_SEAL", "1");
    strict.run("--remote http://127.0.0.1:1 cache stats").failed(1, &["QKVAULT_REMOTE_SEAL_FILE"]);
}

#[cfg(unix)]
#[test]
fn audit_14_a_secret_that_is_open_or_no_file_is_refused_at_once() {
    let place = Place::new();
    let open = place.file("open", "correct horse battery staple");
    let pipe = place.path("pipe").display().to_string();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pack = place.path("x.qkvpack").display().to_string();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    for (secret, words) in [(&*open, "chmod 600"), (&*pipe, "a pipe"), ("/dev/zero", "a device"), ("/", "a folder")] {
        place.run(&format!("pack {pack} --seal {secret}")).failed(1, &[words, secret]);
        place.run(&format!("unpack {pack} --seal {secret}")).failed(1, &[words, secret]);
        let remote = Place::new().set("QKVAULT_REMOTE", "/x").set("QKVAULT_REMOTE_SEAL_FILE", secret);
        remote.run("cache stats").failed(1, &[words, secret]);
    }
}

#[test]
fn audit_14_more_threads_than_the_limit_are_refused() {
    let place = Place::new();
    let warm = "warm --model ../../models/bert-base.json --target h200 --dry-run";
    for jobs in ["20000", "1025", "0"] {
        place.run(&format!("{warm} -j {jobs}")).failed(2, &["1024"]);
    }
    place.run(&format!("{warm} --engine kernels -j 1024"));
}
