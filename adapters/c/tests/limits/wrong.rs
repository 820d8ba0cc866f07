//! Every function of the header with pointers and numbers that are wrong, in a process of its own. The functions and
//! the kinds of their parameters are read from the header.

use std::process::Command;

use super::kit;

/// The variable that tells the process what pointers and numbers it gives.
const CASE: &str = "QKVAULT_TEST_CHILD";

/// A function and whether each of its parameters is a pointer.
fn functions() -> Vec<(String, Vec<bool>)> {
    let header = std::fs::read_to_string(kit::package().join("include/qkvault.h")).expect("it is there");
    let mut found = Vec::new();
    for part in header.split("\nint32_t ").skip(1) {
        let end = part.find(");").expect("a declaration ends");
        let (name, list) = part[..end].split_once('(').expect("a function has parameters");
        let list: Vec<&str> =
            list.split(',').map(str::trim).filter(|text| !text.is_empty() && *text != "void").collect();
        found.push((name.to_owned(), list.into_iter().map(|text| text.contains('*')).collect()));
    }
    assert!(found.len() > 50, "{found:?}");
    found
}

/// What the process with wrong pointers does: each function once.
#[test]
fn calls_with_wrong_pointers() {
    let Ok(case) = std::env::var(CASE) else { return };
    let (kind, number) = case.split_once(' ').expect("two words");
    let number: usize = number.parse::<i64>().expect("a number").cast_unsigned() as usize;
    // SAFETY: the library of this package.
    let library = unsafe { libloading::Library::new(kit::built()) }.expect("it opens");
    // Memory that is no handle and no struct, and is an empty text.
    let mut zeros = vec![0_u64; 1 << 12];
    let mut other = vec![0x0101_0101_0101_0101_u64; 1 << 12];
    other[1 << 11..].fill(0);
    let pointer = match kind {
        "null" => 0,
        "zeros" => zeros.as_mut_ptr() as usize,
        _ => other.as_mut_ptr() as usize,
    };
    for (name, parameters) in functions() {
        println!("{name}");
        let args: Vec<usize> = parameters.iter().map(|is_pointer| if *is_pointer { pointer } else { number }).collect();
        let at = |place: usize| args.get(place).copied().unwrap_or(0);
        // `qkv_string_free` cannot know what it is given.
        if name == "qkv_string_free" && pointer != 0 {
            continue;
        }
        type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> i32;
        // SAFETY: a function of at most eight integers and pointers, in registers and on the stack as for eight.
        let status = unsafe {
            let function = library.get::<Function>(name.as_bytes()).expect("the header declares it");
            function(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))
        };
        assert!((0..=13).contains(&status), "{name}: {status}");
        // A place without a handle, which any memory is.
        let plain = kind == "other" && matches!(&*name, "qkv_last_error" | "qkv_version");
        let takes_null = plain || name.ends_with("_free") || matches!(&*name, "qkv_close" | "qkv_open");
        let fails = name != "qkv_debug_panic" && !takes_null && !parameters.is_empty();
        assert!(!fails || status != 0, "{name} took {case}");
        assert!(name == "qkv_debug_panic" || status != 13, "{name} has a fault with {case}");
    }
    println!("went through");
}

#[test]
fn audit_14_every_function_refuses_null_and_memory_that_is_no_handle_with_any_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let numbers = [0, 1, -1, i64::MAX, i64::MIN, 1 << 31, i64::from(i32::MAX)];
    // With memory behind the pointers, a length of more than it has would be a lie about it.
    let cases = numbers.iter().map(|n| format!("null {n}")).chain(["zeros 0".to_owned(), "other 0".to_owned()]);
    for case in cases {
        let mut child = Command::new(std::env::current_exe().expect("a program has a path"));
        child.args(["--exact", "wrong::calls_with_wrong_pointers", "--nocapture", "--test-threads", "1"]);
        child.env(CASE, &case).env("QKVAULT_CACHE_DIR", folder.path());
        let said = child.output().expect("it starts");
        let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        assert!(said.status.success() && out.contains("went through"), "{case}: {}\n{out}\n{err}", said.status);
    }
}
