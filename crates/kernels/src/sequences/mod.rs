//! Lists of where sequences begin and how long they are, for attention kernels that read one list for all operands with
//! queries and one for those with keys: CUDA source of a kernel that makes them at each launch from lengths and offsets
//! on the GPU. Beside it, where an attention needs them, kernels that look through page tables ([`pages`]), that write
//! rows of no sequence, and that move Stats between rows of sequences and rows of heads ([`rows`]).

mod pages;
mod rows;

use std::fmt::Write as _;

use qkvault_graph::SCRATCH_ALIGNMENT;
use qkvault_graph::{Gradients, Lengths, Pass, Role, Storage, Tensor, Valid};

use crate::generate::MACHINE;
use crate::params::Params;
use crate::recipe::{Launch, LaunchValue, Param};

const SEQUENCES: &str = include_str!("../cuda/sequences.cu");

/// The line of the source that functions of the operands take the place of.
const OPERANDS: &str = "// Where sequences of the operands begin.";

/// Threads of the block of the kernel.
const THREADS: u32 = 256;

/// The kernels that make the lists of an attention with lengths, and where they put them.
///
/// Sequences whose operands do not begin at the same row, that leave an operand, or that have a page which a pool does
/// not have cannot be said by such lists: then no sequence has rows, and all that a launch would have written is no
/// number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequences {
    /// CUDA C++ without includes.
    pub source: String,
    /// Options of NVRTC, without the architecture.
    pub options: Vec<String>,
    /// The launches before those that read the lists, of module 0.
    pub before: Vec<Launch>,
    /// The launches behind them.
    pub after: Vec<Launch>,
    /// Offsets in the scratch memory: the first rows of queries and of keys (i32, one more than there are sequences),
    /// and the lengths of both (i32).
    pub at: [u64; 4],
    /// Where the table of keys and values in pages lies: for each sequence and each of its pages that of the keys
    /// (i32), and behind it that of the values.
    pub tables: Option<u64>,
    /// Where Stats of dense queries lie in the scratch memory as those of varlen ones do: the heads of a row together.
    pub stats: Option<u64>,
    /// The end of all of them.
    pub end: u64,
}

/// An operand with rows of sequences.
#[derive(Clone, Copy, Debug)]
struct SequenceRows {
    role: Role,
    tensor: Tensor,
    written: bool,
}

/// Room in the scratch memory.
struct ScratchRoom(u64);

impl ScratchRoom {
    fn take(&mut self, numbers: u64) -> u64 {
        let at = self.0.next_multiple_of(SCRATCH_ALIGNMENT);
        self.0 = at + numbers * 4;
        at
    }
}

impl Sequences {
    /// The lists of an attention with lengths whose sequences lie one after another ([`sequence_rows`]), keys also in
    /// pages; `scratch` is where they begin in the scratch memory. `None` for any other attention.
    #[must_use]
    pub fn for_attention(a: &Valid, scratch: u64) -> Option<Sequences> {
        let [queries, keys] = sides(a);
        let capacity = |side: &[SequenceRows]| side.iter().map(|rows| sequence_rows(&rows.tensor)).min().flatten();
        let all = queries.iter().chain(&keys).all(|rows| sequence_rows(&rows.tensor).is_some());
        if a.mask.lengths != Lengths::PerSequence || !all {
            return None;
        }
        let (s_q, s_kv) = a.seq();
        let paged = pages::Pages::for_attention(a);
        // Rows of pages are not counted through, so each sequence has those of the longest.
        let (query_rows, key_rows) = (capacity(&queries)?, if paged.is_some() { s_kv } else { capacity(&keys)? });
        let batch = a.batch().unsigned_abs();
        let mut room = ScratchRoom(scratch);
        let at = [batch + 1, batch + 1, batch, batch].map(|count| room.take(count));
        let mut params = params(&queries, &keys, at);
        let tables = paged.as_ref().map(|paged| {
            let (good, tables) = (room.take(batch), room.take(paged.entries(batch)));
            paged.params(&mut params, good, tables);
            tables
        });
        let more = rows::More::for_attention(a, &queries, &keys, &mut params, &mut room);
        let mut source = format!("#define HALF_TYPE \"bf16\"\n{MACHINE}{}", params.text());
        for (name, value) in [
            ("BATCH", a.batch()),
            ("QUERIES", s_q),
            ("KEYS", s_kv),
            ("QUERY_ROWS", query_rows),
            ("KEY_ROWS", key_rows),
            ("ASCENDING", a.is_backward().into()),
        ] {
            let _ = writeln!(source, "#define {name} {value}");
        }
        let of_pages = paged.as_ref().map_or(String::new(), pages::Pages::source);
        source.push_str(&SEQUENCES.replace(OPERANDS, &(of_pages + &operands(&queries, &keys))));
        source.push_str(&more.source);
        let param = params.param();
        let launch = |function: &str, blocks: u32| launch(function, blocks, &param);
        let mut before: Vec<Launch> = more.fills.iter().map(|(name, blocks)| launch(name, *blocks)).collect();
        before.extend(paged.map(|_| launch("pages", a.batch().try_into().unwrap_or(u32::MAX))));
        before.push(launch("sequences", 1));
        before.extend(more.gather.map(|(name, blocks)| launch(name, blocks)));
        let after = more.spread.map(|(name, blocks)| launch(name, blocks)).into_iter().collect();
        let options = vec!["--std=c++17".to_owned()];
        Some(Sequences { source, options, before, after, at, tables, stats: more.stats, end: room.0 })
    }
}

/// A launch of so many blocks.
fn launch(function: &str, blocks: u32, param: &Param) -> Launch {
    Launch {
        module: 0,
        function: function.to_owned(),
        grid: [blocks, 1, 1],
        block: [THREADS, 1, 1],
        shared: 0,
        cluster: None,
        overlap: false,
        params: vec![param.clone()],
    }
}

/// Rows of all sequences of an operand, if they can be counted through: those of a sequence lie behind those of the one
/// before. `None` for pages, and for tensors that have something between, such as heads.
#[must_use]
pub fn sequence_rows(tensor: &Tensor) -> Option<i64> {
    let ([batch, _, rows, _], [step, _, row, _]) = (tensor.dims, tensor.strides);
    match tensor.storage {
        Storage::Varlen { tokens } => Some(tokens),
        Storage::Dense if batch == 1 || Some(step) == row.checked_mul(rows) => batch.checked_mul(rows),
        Storage::Dense | Storage::Paged { .. } => None,
    }
}

/// Operands with rows of queries and of keys. Dense Stats are none of them: their heads lie between sequences.
fn sides(a: &Valid) -> [Vec<SequenceRows>; 2] {
    let backward = a.is_backward();
    let of = |role, tensor, written| SequenceRows { role, tensor, written };
    let mut queries = vec![of(Role::Q, a.q, false), of(Role::O, a.o, !backward)];
    let keys = [of(Role::K, a.k, false), of(Role::V, a.v, false)];
    let mut keys: Vec<SequenceRows> = keys.into_iter().filter(|rows| !rows.tensor.is_paged()).collect();
    let stats = a.row_tensor();
    if a.outputs.stats && is_varlen(&stats) {
        // Numbers in f32 are not written here: O tells that something is wrong.
        queries.push(of(Role::Stats, stats, false));
    }
    if let Pass::Backward(Gradients { d_o, d_q, d_k, d_v, .. }) = &a.pass {
        queries.extend([of(Role::DO, *d_o, false), of(Role::DQ, *d_q, true)]);
        keys.extend([of(Role::DK, *d_k, true), of(Role::DV, *d_v, true)]);
    }
    [queries, keys]
}

const fn is_varlen(tensor: &Tensor) -> bool {
    matches!(tensor.storage, Storage::Varlen { .. })
}

/// The name of an operand in the source.
fn name(role: Role) -> String {
    role.name().replace('.', "_")
}

fn params(queries: &[SequenceRows], keys: &[SequenceRows], at: [u64; 4]) -> Params {
    let mut p = Params::default();
    for (name, at) in ["rows_q", "rows_k", "used_q", "used_k"].into_iter().zip(at) {
        p.pointer("int", name, LaunchValue::Scratch(at));
    }
    p.pointer("const int", "len_q", LaunchValue::Address(Role::SeqLenQ));
    p.pointer("const int", "len_k", LaunchValue::Address(Role::SeqLenKv));
    for SequenceRows { role, tensor, written } in queries.iter().chain(keys) {
        if let (true, Some(offsets)) = (is_varlen(tensor), role.offsets()) {
            let name = format!("offsets_{}", name(*role));
            p.pointer("const i64", &name, LaunchValue::Address(Role::Offsets(offsets)));
        }
        if *written {
            p.pointer("u16", &name(*role), LaunchValue::Address(*role));
        }
    }
    p
}

/// Functions that say where sequences of operands begin, and whether all of a side agree.
fn operands(queries: &[SequenceRows], keys: &[SequenceRows]) -> String {
    let mut text = String::new();
    let offset = |SequenceRows { role, tensor, .. }: &SequenceRows| match is_varlen(tensor) {
        true => format!("p.offsets_{}[batch]", name(*role)),
        false => format!("batch * {}ll", tensor.dims[2] * tensor.strides[2]),
    };
    let row = |rows: &SequenceRows| format!("row_of({}, {}ll)", offset(rows), rows.tensor.strides[2]);
    for (one, all, side) in [("query_row", "queries_agree", queries), ("key_row", "keys_agree", keys)] {
        let begin = "__device__ __forceinline__";
        if side.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{begin} i64 {one}(const Params& p, int batch) {{ return {}; }}", row(&side[0]));
        let same: Vec<String> = side[1..].iter().map(|rows| format!("{} == at", row(rows))).collect();
        let _ = writeln!(text, "{begin} bool {all}(const Params& p, int batch, i64 at) {{");
        let _ = writeln!(text, "  return {};\n}}", same.join(" &&\n         "));
    }
    let _ = writeln!(text, "__device__ __forceinline__ void spoil_outputs(const Params& p, int batch) {{");
    for (length, side) in [("p.len_q[batch]", queries), ("p.len_k[batch]", keys)] {
        for rows in side.iter().filter(|rows| rows.written) {
            let ([_, heads, _, columns], [_, head, step, _]) = (rows.tensor.dims, rows.tensor.strides);
            let _ = writeln!(
                text,
                "  spoil(p.{}, {}, {length}, {}, {step}ll, {heads}, {head}ll, {columns});",
                name(rows.role),
                offset(rows),
                sequence_rows(&rows.tensor).unwrap_or(0),
            );
        }
    }
    text.push_str("}\n");
    text
}
