//! Entries for the benches: as large as a real plan, and about as compressible (4.3 times at zstd level 3).

use qkvault_cache::{Entry, EntryKind, Key};

/// The nth key.
pub(crate) fn key(n: u64) -> Key {
    let mut hash = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = [0; 32];
    for part in bytes.chunks_mut(8) {
        hash ^= hash >> 29;
        hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        part.copy_from_slice(&hash.to_be_bytes());
    }
    Key(bytes)
}

/// A plan with `len` bytes of payload: a base64 text over records of 16 bytes that repeat in part, like machine code.
pub(crate) fn plan(n: u64, len: usize) -> Entry {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = n.wrapping_mul(2).wrapping_add(1);
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let mut code = Vec::with_capacity(len);
    let forms: Vec<[u8; 16]> = (0..64).map(|_| std::array::from_fn(|_| random() as u8)).collect();
    while code.len() < len {
        let mut record = forms[random() as usize % forms.len()];
        record[3] = random() as u8 % 32;
        record[9] = random() as u8 % 8;
        code.extend_from_slice(&record);
    }
    let mut payload = Vec::with_capacity(len + 4);
    for three in code.chunks(3) {
        let word = three.iter().fold(0u32, |word, byte| (word << 8) | u32::from(*byte)) << (8 * (3 - three.len()));
        payload.extend((0..4).map(|digit| DIGITS[(word >> (18 - 6 * digit)) as usize & 63]));
        if payload.len() >= len {
            break;
        }
    }
    payload.truncate(len);
    Entry {
        kind: EntryKind::Plan,
        target: "sm_90 132sm driver 13.0 cudnn 9.27.0 slim".into(),
        what: format!("prefill bf16 b1 h32/8 s{n} d128 causal"),
        library: "9.27.0".into(),
        meta: vec![7; 200],
        payload,
    }
}
