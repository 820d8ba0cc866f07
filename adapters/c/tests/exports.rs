//! What the library shows to others: its symbols, and the libraries that it needs.

mod kit;

use std::collections::BTreeSet;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};

fn elf(bytes: &[u8]) -> ElfFile64<'_> {
    ElfFile64::parse(bytes).expect("a shared library")
}

#[test]
fn the_library_exports_the_functions_of_the_header_and_nothing_else() {
    let bytes = std::fs::read(kit::built()).expect("it is there");
    let exported: BTreeSet<String> = elf(&bytes)
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().expect("a name").to_owned())
        .collect();
    let list = exported.iter().map(|name| format!("{name}\n")).collect::<String>();
    kit::golden("tests/goldens/exports.txt", &list);
    let header = std::fs::read_to_string(kit::package().join("include/qkvault.h")).expect("it is there");
    for name in &exported {
        assert!(name.starts_with("qkv_"), "{name}");
        assert!(header.contains(&format!("int32_t {name}(")) || list_of_doors(name), "{name} is not in the header");
    }
}

/// Functions that frameworks call and programs in C do not.
fn list_of_doors(name: &str) -> bool {
    ["qkv_xla_", "qkv_torch_"].iter().any(|door| name.starts_with(door))
}

#[test]
fn the_library_is_linked_with_the_system_alone_and_has_its_soname() {
    let bytes = std::fs::read(kit::built()).expect("it is there");
    let file = elf(&bytes);
    let endian = object::Endianness::Little;
    let sections = file.elf_section_table();
    let (entries, strings) = sections.dynamic(endian, &*bytes).expect("it reads").expect("a shared library has one");
    let strings = sections.strings(endian, &*bytes, strings).expect("it reads");
    let (mut needed, mut soname) = (BTreeSet::new(), None);
    for entry in entries {
        use object::read::elf::Dyn as _;
        let text = || {
            let text = entry.string(endian, strings).expect("a name");
            String::from_utf8(text.to_vec()).expect("a name")
        };
        match entry.tag32(endian) {
            Some(object::elf::DT_NEEDED) => drop(needed.insert(text())),
            Some(object::elf::DT_SONAME) => soname = Some(text()),
            _ => {}
        }
    }
    let system = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"];
    assert!(needed.iter().all(|name| system.contains(&name.as_str())), "{needed:?}");
    assert_eq!(soname.as_deref(), Some("libqkvault.so.1"));
}
