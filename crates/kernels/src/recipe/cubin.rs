//! Reads what a cubin tells about its kernels: names, places of parameters, threads of a block.
//!
//! A cubin is an ELF file. Every kernel has a section `.nv.info.NAME` with attributes; those of parameters are what
//! `cuobjdump -elf` prints as `EIATTR_KPARAM_INFO`. Nothing outside of the bytes is read, whatever they are.

/// What a cubin tells about a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CubinKernel {
    /// The kernel's name.
    pub name: String,
    /// Compute capability, as major * 10 + minor.
    pub sm: u32,
    /// Version of the ELF's ABI: 8 needs a driver of CUDA 13.
    pub abi: u8,
    /// Offset and size of each parameter, in order.
    pub params: Vec<(u32, u32)>,
    /// Bytes of all parameters.
    pub bytes: u32,
    /// Offset of the first parameter in the bank of constants: alignments count from the bank's beginning.
    pub base: u32,
    /// Threads of a block along x, y and z, if the kernel requires a number.
    pub block: Option<[u32; 3]>,
}

/// The bytes are no cubin of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the code is no cubin of kernels: {why}")]
pub struct BadCubin {
    /// What is wrong.
    pub why: &'static str,
}

/// Attributes of kernels (`EIATTR_...`).
mod attribute {
    pub(super) const PARAM_BANK: u8 = 0x0a;
    pub(super) const REQUIRED_BLOCK: u8 = 0x10;
    pub(super) const PARAM: u8 = 0x17;
    pub(super) const PARAM_BYTES: u8 = 0x19;
}

/// The one form of attributes whose value follows them; all others have it within (`EIFMT_...`).
const SIZED: u8 = 4;

/// Bytes of a section's header in a 64-bit ELF file.
const SECTION: usize = 64;

/// ABI versions whose flags have the architecture in the second byte.
const ABI: u8 = 8;

/// Little-endian numbers at an offset.
fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn place_at(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at.checked_add(8)?)?.try_into().ok()?;
    usize::try_from(u64::from_le_bytes(word)).ok()
}

impl CubinKernel {
    /// Reads a cubin with one kernel.
    ///
    /// # Errors
    ///
    /// [`BadCubin`] with what is wrong.
    pub fn only(bytes: &[u8]) -> Result<CubinKernel, BadCubin> {
        let mut kernels = CubinKernel::all(bytes)?;
        match (kernels.pop(), kernels.is_empty()) {
            (Some(kernel), true) => Ok(kernel),
            _ => Err(BadCubin { why: "it has several kernels" }),
        }
    }

    /// Reads a cubin: its kernels in order, at least one.
    ///
    /// # Errors
    ///
    /// [`BadCubin`] with what is wrong.
    pub fn all(bytes: &[u8]) -> Result<Vec<CubinKernel>, BadCubin> {
        let bad = |why| BadCubin { why };
        let header = bytes.get(..64).filter(|header| header.starts_with(b"\x7fELF\x02\x01"));
        let header = header.ok_or(bad("it is no ELF file of 64 bits"))?;
        if u16_at(header, 18) != Some(190) {
            return Err(bad("its machine is not CUDA"));
        }
        if header[8] != ABI {
            return Err(bad("its ABI is not that of CUDA 13"));
        }
        let (abi, sm) = (header[8], u32::from(header[49]));
        let sections = sections(bytes).ok_or(bad("it is cut off"))?;
        let infos = sections.iter().filter_map(|(name, body)| Some((name.strip_prefix(".nv.info.")?, *body)));
        let empty = |name: &str| CubinKernel {
            name: name.to_owned(),
            sm,
            abi,
            params: Vec::new(),
            bytes: 0,
            base: 0,
            block: None,
        };
        let kernels: Vec<_> = infos.map(|(name, info)| empty(name).with(info)).collect::<Result<_, _>>()?;
        if kernels.is_empty() { Err(bad("it has no kernel")) } else { Ok(kernels) }
    }

    /// The kernel with its attributes.
    fn with(mut self, info: &[u8]) -> Result<CubinKernel, BadCubin> {
        let cut = || BadCubin { why: "it is cut off" };
        let mut params: Vec<(u16, u32, u32)> = Vec::new();
        let mut at = 0;
        while at < info.len() {
            let (form, number) = (info[at], *info.get(at + 1).ok_or_else(cut)?);
            let short = u16_at(info, at + 2).ok_or_else(cut)?;
            at += 4;
            let mut value: &[u8] = &[];
            if form == SIZED {
                value = info.get(at..at + usize::from(short)).ok_or_else(cut)?;
                at += usize::from(short);
            }
            match number {
                attribute::PARAM => {
                    let (order, offset) = (u16_at(value, 4).ok_or_else(cut)?, u16_at(value, 6).ok_or_else(cut)?);
                    let word = u32_at(value, 8).ok_or_else(cut)?;
                    params.push((order, offset.into(), word >> 18));
                }
                attribute::PARAM_BYTES => self.bytes = short.into(),
                attribute::PARAM_BANK => self.base = u16_at(value, 4).ok_or_else(cut)?.into(),
                attribute::REQUIRED_BLOCK => {
                    let extent = |n: usize| u32_at(value, n * 4).ok_or_else(cut);
                    self.block = Some([extent(0)?, extent(1)?, extent(2)?]);
                }
                _ => {}
            }
        }
        params.sort_unstable();
        if params.iter().enumerate().any(|(n, (order, ..))| usize::from(*order) != n) {
            return Err(BadCubin { why: "its parameters are not numbered from 0" });
        }
        self.params = params.into_iter().map(|(_, offset, size)| (offset, size)).collect();
        Ok(self)
    }
}

/// The sections with their names.
fn sections(bytes: &[u8]) -> Option<Vec<(&str, &[u8])>> {
    let (table, count, names) = (place_at(bytes, 40)?, u16_at(bytes, 60)?, u16_at(bytes, 62)?);
    let header = |n: u16| {
        let at = table.checked_add(usize::from(n) * SECTION)?;
        bytes.get(at..at.checked_add(SECTION)?)
    };
    let body = |header: &[u8]| {
        const NO_BITS: u32 = 8;
        if u32_at(header, 4)? == NO_BITS {
            return Some(&bytes[..0]);
        }
        let (at, size) = (place_at(header, 24)?, place_at(header, 32)?);
        bytes.get(at..at.checked_add(size)?)
    };
    let names = body(header(names)?)?;
    let name = |header: &[u8]| {
        let text = names.get(u32_at(header, 0)? as usize..)?;
        std::str::from_utf8(text.split(|byte| *byte == 0).next()?).ok()
    };
    (0..count).map(|n| header(n).and_then(|header| Some((name(header)?, body(header)?)))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file with the section of one kernel, as the compiler writes it: two parameters, a block of 384 threads.
    fn cubin() -> Vec<u8> {
        let names = b"\0.shstrtab\0.nv.info.attend\0";
        let param = |order: u8, offset: u8, size: u32| {
            let mut value = vec![SIZED, attribute::PARAM, 12, 0, 0, 0, 0, 0, order, 0, offset, 0];
            value.extend(((size << 18) | 0x1_f000).to_le_bytes());
            value
        };
        let mut info = [param(1, 8, 4), param(0, 0, 8)].concat();
        info.extend([SIZED, attribute::PARAM_BANK, 8, 0, 9, 0, 0, 0, 0x10, 2, 12, 0]);
        info.extend([3, attribute::PARAM_BYTES, 12, 0, SIZED, attribute::REQUIRED_BLOCK, 12, 0]);
        info.extend([384_u32, 1, 1].iter().flat_map(|n| n.to_le_bytes()));
        let mut file = vec![0_u8; 64];
        file[..9].copy_from_slice(b"\x7fELF\x02\x01\x01\x41\x08");
        file[18] = 190;
        file[49] = 90;
        let places = [(names.to_vec(), 1_u32), (info, 11)].map(|(body, name)| {
            let at = file.len();
            file.extend(&body);
            (name, at as u64, body.len() as u64)
        });
        let table = file.len() as u64;
        file[40..48].copy_from_slice(&table.to_le_bytes());
        file[60] = 2;
        for (name, at, size) in places {
            let mut header = [0_u8; SECTION];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[24..32].copy_from_slice(&at.to_le_bytes());
            header[32..40].copy_from_slice(&size.to_le_bytes());
            file.extend(header);
        }
        file
    }

    #[test]
    fn a_kernel_tells_its_name_parameters_and_block() {
        let kernel = CubinKernel::only(&cubin()).expect("is read");
        assert_eq!((kernel.name.as_str(), kernel.sm, kernel.abi, kernel.bytes), ("attend", 90, 8, 12));
        assert_eq!((kernel.params, kernel.base, kernel.block), (vec![(0, 8), (8, 4)], 0x210, Some([384, 1, 1])));
    }

    #[test]
    fn other_files_are_refused_with_what_is_wrong() {
        let changed = |change: fn(&mut Vec<u8>)| {
            let mut file = cubin();
            change(&mut file);
            CubinKernel::only(&file).expect_err("refused").why
        };
        assert_eq!(changed(|file| file[0] = 0), "it is no ELF file of 64 bits");
        assert_eq!(changed(|file| file[18] = 62), "its machine is not CUDA");
        assert_eq!(changed(|file| file[8] = 7), "its ABI is not that of CUDA 13");
        assert_eq!(changed(|file| file.truncate(200)), "it is cut off");
        assert_eq!(changed(|file| file[64 + 11] = b'x'), "it has no kernel");
        // The order of the first parameter in the file.
        assert_eq!(changed(|file| file[64 + 27 + 8] = 7), "its parameters are not numbered from 0");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(changes in prop::collection::vec((0_usize..330, any::<u8>()), 0..6), end in 0_usize..330) {
            let mut file = cubin();
            for (at, byte) in changes {
                if let Some(place) = file.get_mut(at) {
                    *place = byte;
                }
            }
            file.truncate(end);
            let _ = CubinKernel::only(&file);
        }
    }
}
