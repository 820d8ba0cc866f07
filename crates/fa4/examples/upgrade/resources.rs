//! What the machine code of a kernel takes, from its cubin, and how that differs: `cuobjdump -res-usage` without CUDA.

use qkvault_fa4::CompiledKernel;

use crate::changes::Change;

/// What a cubin of one kernel tells, and its code.
#[derive(Debug, Default, PartialEq, Eq)]
struct Resources<'a> {
    registers: u32,
    /// Bytes of a thread's stack, where registers spill to.
    stack: u32,
    /// Bytes of static shared memory.
    shared: u64,
    /// Instructions and constants; the rest of a cubin also has the compiler's version.
    code: Vec<&'a [u8]>,
}

/// Attributes of `.nv.info` (`EIATTR_...`): a symbol and a number.
const REGISTERS: u8 = 0x2f;
const STACK: u8 = 0x12;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut whole = [0; 8];
    whole[..N].copy_from_slice(bytes.get(at..at.checked_add(N)?)?);
    Some(u64::from_le_bytes(whole))
}

impl Resources<'_> {
    /// Reads a cubin; `None` if it is cut off.
    fn read(cubin: &[u8]) -> Option<Resources<'_>> {
        const HEADER: usize = 64;
        let place = |bytes, at| number::<8>(bytes, at).map(|place| place as usize);
        let table = place(cubin, 40)?;
        let header = |n: u64| cubin.get(table..)?.get(n as usize * HEADER..)?.get(..HEADER);
        let body = |header| cubin.get(place(header, 24)?..)?.get(..place(header, 32)?);
        let names = body(header(number::<2>(cubin, 62)?)?)?;
        let mut read = Resources::default();
        for n in 0..number::<2>(cubin, 60)? {
            let header = header(n)?;
            let name = names.get(number::<4>(header, 0)? as usize..)?.split(|byte| *byte == 0).next()?;
            if name == b".nv.info" {
                // Form and attribute, bytes of the value, a symbol, the number.
                for record in body(header)?.chunks_exact(12) {
                    let value = number::<4>(record, 8)? as u32;
                    match record[1] {
                        REGISTERS => read.registers = value,
                        STACK => read.stack = value,
                        _ => {}
                    }
                }
            } else if name.starts_with(b".nv.shared.") {
                // Nothing of it is in the file.
                read.shared += number::<8>(header, 32)?;
            } else if name.starts_with(b".text.") || name.starts_with(b".nv.constant") {
                read.code.push(body(header)?);
            }
        }
        Some(read)
    }
}

/// What differs between two kernels beside their launch.
pub(crate) fn changes(kernel: &str, before: &CompiledKernel, after: &CompiledKernel) -> Vec<Change> {
    let [old, new] = [before, after].map(|code| Resources::read(&code.cubin).unwrap_or_default());
    let bytes = |code: &[&[u8]]| code.iter().map(|part| part.len()).sum::<usize>();
    let pairs = [
        ("name", before.kernel.name.clone(), after.kernel.name.clone()),
        ("registers", old.registers.to_string(), new.registers.to_string()),
        ("bytes of stack", old.stack.to_string(), new.stack.to_string()),
        ("bytes of static shared memory", old.shared.to_string(), new.shared.to_string()),
        ("bytes of the cubin", before.cubin.len().to_string(), after.cubin.len().to_string()),
    ];
    let changed = pairs.into_iter().filter(|(_, old, new)| old != new);
    let mut found: Vec<Change> = changed.map(|(what, old, new)| Change::code(kernel, what, &old, &new)).collect();
    if old.code != new.code {
        let [old, new] = [old, new].map(|of| format!("{} bytes", bytes(&of.code)));
        found.push(Change::code(kernel, "other instructions or constants", &old, &new));
    }
    found
}

#[cfg(test)]
mod tests {
    use qkvault_fa4::Told;
    use qkvault_kernels::recipe::CubinKernel;

    use super::*;

    /// A cubin of a kernel with these registers and instructions.
    fn compiled(name: &str, registers: u32, shared: u64, text: &[u8]) -> CompiledKernel {
        let names = b"\0.shstrtab\0.nv.info\0.nv.shared.k\0.text.k\0.note.nv.tkinfo\0".to_vec();
        let at = |name: &[u8]| names.windows(name.len()).position(|part| part == name).expect("is there") as u32;
        let record = |attribute: u8, value: u32| [&[4, attribute, 8, 0, 6, 0, 0, 0][..], &value.to_le_bytes()].concat();
        let info = [record(REGISTERS, registers), record(0x11, 7), record(STACK, 16)].concat();
        let bodies = [
            (at(b".shstrtab"), names.clone()),
            (at(b".nv.info\0"), info),
            (at(b".text.k"), text.to_vec()),
            (at(b".note.nv"), name.as_bytes().to_vec()),
        ];
        let mut cubin = vec![0; 64];
        let mut headers = Vec::new();
        let mut header = |name: u32, at: u64, size: u64| {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[24..32].copy_from_slice(&at.to_le_bytes());
            header[32..40].copy_from_slice(&size.to_le_bytes());
            headers.extend(header);
        };
        for (name, body) in bodies {
            header(name, cubin.len() as u64, body.len() as u64);
            cubin.extend(body);
        }
        header(at(b".nv.shared"), 0, shared);
        let table = cubin.len() as u64;
        cubin[40..48].copy_from_slice(&table.to_le_bytes());
        cubin[60] = 5;
        cubin.extend(headers);
        let kernel =
            CubinKernel { name: name.to_owned(), sm: 90, abi: 8, params: vec![], bytes: 0, base: 0, block: None };
        let told = Told { params: vec![], boxes: vec![], block: [1; 3], shared: 0, overlap: false };
        CompiledKernel { cubin, kernel, told, host: String::new() }
    }

    #[test]
    fn registers_stack_shared_memory_and_code_are_read_from_a_cubin() {
        let one = compiled("k", 168, 1024, b"code");
        let read = Resources::read(&one.cubin).expect("is whole");
        assert_eq!(read, Resources { registers: 168, stack: 16, shared: 1024, code: vec![b"code"] });
        for end in 0..one.cubin.len() {
            assert_eq!(Resources::read(&one.cubin[..end]), None, "{end} bytes");
        }
    }

    #[test]
    fn what_a_kernel_takes_is_compared_and_the_compilers_note_is_not() {
        let told = |other: &CompiledKernel| {
            let list = changes("forward", &compiled("k", 168, 1024, b"code"), other);
            assert!(list.iter().all(|change| !change.launch));
            list.into_iter()
                .map(|change| format!("{}: {} -> {}", change.what, change.before, change.after))
                .collect::<Vec<_>>()
        };
        let mut note = compiled("k", 168, 1024, b"code");
        let at = note.cubin.windows(5).position(|part| part == b"codek").expect("the note is behind the code");
        note.cubin[at + 4] = b'x';
        assert_eq!(told(&note), [""; 0]);
        assert_eq!(told(&compiled("k", 160, 1024, b"code")), ["registers: 168 -> 160"]);
        assert_eq!(told(&compiled("k", 168, 0, b"code")), ["bytes of static shared memory: 1024 -> 0"]);
        assert_eq!(told(&compiled("l", 168, 1024, b"code")), ["name: k -> l"]);
        assert_eq!(told(&compiled("k", 168, 1024, b"edoc")), ["other instructions or constants: 4 bytes -> 4 bytes"]);
    }
}
