//! Families of attentions, random shapes of them, and the arguments with which FlashAttention-4's own front end would
//! call its host functions: tensors as (batch, sequence, head, head dim), buffers as its interface makes them.

use std::rc::Rc;

use qkvault_fa4::graph::expr::{
    Axis, Expr, Node, TensorSpec, head, int_scalar, key, library, parse_expr, position, query, scalar, score,
    tensor as tensor_of,
};
use qkvault_fa4::graph::{
    Attention, BackwardOptions, Band, Corner, DType, Gradients, Lengths, PaddedRows, Pass, Role, Storage, Tensor, Valid,
};

use crate::printed::memory::Value;

/// Attentions of a family that are compared.
pub(crate) const SHAPES: usize = 12;

/// The softmax scale of all launches.
pub(crate) const SCALE: f32 = 0.089_353_21;

/// Sizes of an attention that a family leaves open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) batch: i64,
    /// Key heads.
    pub(crate) heads: i64,
    pub(crate) queries: i64,
    pub(crate) keys: i64,
    /// Which order of axes tensors have in memory.
    pub(crate) order: u64,
}

/// A small generator: the numbers of a run are always the same.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Shapes, the first as small as can be and the second very large.
pub(crate) fn shapes(random: &mut Random, count: usize) -> Vec<Shape> {
    let mut list = vec![
        Shape { batch: 1, heads: 1, queries: 2, keys: 2, order: 0 },
        Shape { batch: 3, heads: 8, queries: 131_072, keys: 131_072, order: 1 },
    ];
    while list.len() < count {
        let size = |random: &mut Random| (2 + random.below(9000)) as i64;
        let (queries, keys) = (size(random), size(random));
        let keys = if random.below(2) == 0 { queries } else { keys };
        let (batch, heads) = ((1 + random.below(9)) as i64, (1 + random.below(24)) as i64);
        list.push(Shape { batch, heads, queries, keys, order: random.below(3) });
    }
    list
}

pub(crate) type Write = Box<dyn Fn(Shape) -> Attention>;

/// The families whose names have one of these parts, separated by commas, or `all`; without parts, one family.
pub(crate) fn chosen(only: Option<&str>) -> Vec<(String, Write)> {
    let wanted = |name: &str| match only {
        Some(parts) => parts == "all" || parts.split(',').any(|part| name.contains(part)),
        None => name.contains("d128 causal group 4") && !name.contains("deterministic"),
    };
    families().into_iter().filter(|(name, _)| wanted(name)).collect()
}

/// The families by name.
fn families() -> Vec<(String, Write)> {
    let mut list: Vec<(String, Write)> = Vec::new();
    for (head_dim, head_dim_v, dtype) in [
        (128, 128, DType::BF16),
        (64, 64, DType::F16),
        (96, 96, DType::BF16),
        (192, 128, DType::BF16),
        (256, 256, DType::BF16),
        (72, 72, DType::F16),
    ] {
        for mask in ["full", "causal", "window"] {
            for group in [1, 4] {
                let forward = move |shape: Shape| forward(shape, (head_dim, head_dim_v), dtype, group, mask);
                list.push((format!("forward d{head_dim} {mask} group {group}"), Box::new(forward)));
                if (group > 1 && head_dim != head_dim_v) || head_dim % 32 != 0 {
                    // Its kernels do not take it, or compute it wrongly.
                    continue;
                }
                for deterministic in [false, true] {
                    let options = BackwardOptions { deterministic, ..BackwardOptions::default() };
                    let backward = move |shape| forward(shape).with_stats().backward(options);
                    let kind = if deterministic { " deterministic" } else { "" };
                    list.push((format!("backward{kind} d{head_dim} {mask} group {group}"), Box::new(backward)));
                }
            }
        }
    }
    for (name, modified) in modifications() {
        for (dims, mask, group) in [((128, 128), "causal", 4), ((64, 64), "window", 1), ((192, 128), "full", 1)] {
            let modified = modified.clone();
            let forward = move |shape: Shape| {
                // Differences of lengths are constants of expressions, and extents of 1 leave dims out: other kernels.
                let Shape { batch, heads, keys, .. } = shape;
                let square = Shape { batch: batch.max(2), heads: heads.max(2), queries: keys, ..shape };
                let shape = if name == "softcap" { shape } else { square };
                modified(forward(shape, dims, DType::BF16, group, mask), shape, group)
            };
            list.push((format!("forward {name} d{} {mask} group {group}", dims.0), Box::new(forward.clone())));
            let deterministic = mask == "window";
            let options = BackwardOptions { deterministic, ..BackwardOptions::default() };
            let backward = move |shape| forward(shape).with_stats().backward(options);
            list.push((format!("backward {name} d{} {mask} group {group}", dims.0), Box::new(backward)));
        }
    }
    for (name, masked) in predicates() {
        for (dims, group) in [((128, 128), 4), ((64, 64), 1), ((96, 96), 1), ((192, 128), 1), ((256, 256), 4)] {
            let masked = masked.clone();
            let forward = move |shape: Shape| {
                let Shape { batch, heads, keys, .. } = shape;
                // Lists of the largest shapes would be checked for minutes; see above for the others.
                let keys = keys.min(20_000);
                let square = Shape { batch: batch.max(2), heads: heads.max(2), queries: keys, keys, ..shape };
                masked(forward(square, dims, DType::BF16, group, "full"), square, group)
            };
            list.push((format!("forward {name} d{} group {group}", dims.0), Box::new(forward.clone())));
            let backward = move |shape| forward(shape).with_stats().backward(BackwardOptions::default());
            list.push((format!("backward {name} d{} group {group}", dims.0), Box::new(backward)));
        }
    }
    for (dims, group) in [((128, 128), 4), ((192, 128), 1)] {
        let options = BackwardOptions { d_sink: true, ..BackwardOptions::default() };
        let backward = move |shape| forward(shape, dims, DType::BF16, group, "causal").with_sink().with_stats();
        let backward = move |shape| backward(shape).backward(options);
        list.push((format!("backward of sinks d{} group {group}", dims.0), Box::new(backward)));
    }
    for (dims, mask, group) in [
        ((128, 128), "causal", 4),
        ((128, 128), "window", 1),
        ((64, 64), "full", 1),
        ((96, 96), "causal", 4),
        ((192, 128), "causal", 1),
        ((256, 256), "full", 4),
    ] {
        let packed = move |shape: Shape| packed(forward(shape, dims, DType::BF16, group, mask), shape);
        let name = format!("packed d{} {mask} group {group}", dims.0);
        list.push((format!("forward {name}"), Box::new(packed)));
        let sink = mask == "causal";
        let options = BackwardOptions { d_sink: sink, ..BackwardOptions::default() };
        let with_sink = move |a: Attention| if sink { a.with_sink() } else { a };
        let backward = move |shape| with_sink(packed(shape)).with_stats().backward(options);
        list.push((format!("backward {name}"), Box::new(backward)));
    }
    for (dims, mask, group) in [((128, 128), "causal", 4), ((96, 96), "window", 1), ((256, 256), "full", 4)] {
        let padded = move |shape: Shape| padded(forward(shape, dims, DType::BF16, group, mask));
        let name = format!("padded d{} {mask} group {group}", dims.0);
        list.push((format!("forward {name}"), Box::new(padded)));
        let backward = move |shape| padded(shape).backward(BackwardOptions::default());
        list.push((format!("backward {name}"), Box::new(backward)));
    }
    for (dims, mask, group, dtype) in [
        ((128, 128), "causal", 4, DType::BF16),
        ((64, 64), "window", 1, DType::F16),
        ((96, 96), "full", 4, DType::BF16),
        ((80, 80), "full", 1, DType::BF16),
        ((192, 128), "causal", 1, DType::BF16),
        ((160, 160), "full", 1, DType::F16),
        ((256, 256), "full", 4, DType::BF16),
        ((240, 240), "causal", 4, DType::BF16),
    ] {
        let pages = move |shape: Shape| {
            let a = pages(forward(shape, dims, dtype, group, mask), shape);
            if group == 4 { a.with_stats().with_sink() } else { a }
        };
        list.push((format!("forward pages d{} {mask} group {group}", dims.0), Box::new(pages)));
    }
    for (name, modified) in modifications() {
        let forward = move |shape: Shape| {
            let shape = Shape { batch: shape.batch.max(2), heads: shape.heads.max(2), ..shape };
            let square = Shape { queries: shape.keys, ..shape };
            pages(modified(forward(square, (128, 128), DType::BF16, 1, "full"), square, 1), square)
        };
        list.push((format!("forward {name} pages d128"), Box::new(forward)));
    }
    for (name, modified) in modifications() {
        let forward = move |shape: Shape| {
            let shape = Shape { batch: shape.batch.max(2), heads: shape.heads.max(2), ..shape };
            let square = Shape { queries: shape.keys, ..shape };
            packed(modified(forward(square, (128, 128), DType::BF16, 1, "full"), square, 1), square).with_stats()
        };
        list.push((format!("forward {name} packed d128"), Box::new(forward.clone())));
        let backward = move |shape| forward(shape).backward(BackwardOptions::default());
        list.push((format!("backward {name} packed d128"), Box::new(backward)));
    }
    list.push(("forward of every word".to_owned(), Box::new(words)));
    list.push((
        "forward with stats and a sink".to_owned(),
        Box::new(|shape| forward(shape, (128, 128), DType::BF16, 2, "causal").with_stats().with_sink()),
    ));
    list
}

/// Predicates: documents by ids of a tensor, with a softcap; and one that heads see differently, within a window.
fn predicates() -> [(&'static str, Modify); 3] {
    let masked = |a: Attention, e: Expr| a.with_mask_mod(e.build_mask_mod().expect("a predicate"));
    let documents = move |a: Attention, Shape { batch, keys, .. }: Shape, _| {
        let softcap = library::softcap(score(), scalar("cap")).build_score_mod().expect("a score");
        masked(a, library::document_mask("of_query", "of_key", batch, keys, keys)).with_score_mod(softcap)
    };
    let dilated = move |a, _, _| {
        let a = masked(a, ((query() - key()) % (head() + 2)).eq(0));
        a.with_band(Band { corner: Corner::BottomRight, left: Some(1000), right: Some(0) })
    };
    let blocks = |a: Attention, _: Shape, _: i64| {
        let corner = Corner::BottomRight;
        let mut a = a.with_band(Band { corner, left: None, right: Some(0) });
        a.block_mask = true;
        a
    };
    [("documents", Rc::new(documents)), ("dilated", Rc::new(dilated)), ("blocks", Rc::new(blocks))]
}

/// A modification with every word that expressions are written in.
fn words(shape: Shape) -> Attention {
    let of_one = "exp log sqrt rsqrt reciprocal sin cos tan tanh sigmoid erf floor ceil relu elu gelu gelu_tanh softplus swish abs";
    let of_two = "min max pow rem floor_rem atan2";
    let reals = of_one.split(' ').map(|word| format!("{word}(score)"));
    let reals = reals.chain(of_two.split(' ').map(|word| format!("{word}(score, $a)")));
    let text = format!(
        "scalar $a: float; scalar $n: int; let i = min(abs(key - query), $n) + max(query % $n, 3); \
         let j = floor_rem(i, $n) + key // 7 - (0 - head); \
         {} + float(j) + select((score < $a) & !(i == j) | (key >= query), score, -score / $a)",
        reals.collect::<Vec<_>>().join(" + "),
    );
    let e = parse_expr(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    forward(shape, (64, 64), DType::BF16, 1, "full").with_score_mod(e)
}

type Modify = Rc<dyn Fn(Attention, Shape, i64) -> Attention>;

/// Score modifications: with a number of the launch, with a tensor, and with both and lengths of sequences.
fn modifications() -> [(&'static str, Modify); 3] {
    let built = |a: Attention, e: Expr| a.with_score_mod(e.build_score_mod().expect("a score"));
    let softcap = move |a, _, _| built(a, library::softcap(score(), scalar("cap")));
    let alibi = move |a, shape: Shape, group| built(a, library::alibi(score(), shape.heads * group));
    let bias = move |a, Shape { batch, keys, .. }: Shape, _| {
        let bias = tensor_of("bias", TensorSpec::new(DType::BF16, [batch, 1, 1, keys]));
        built(a, (score() + bias) * (position() % int_scalar("period")).to_float())
    };
    [("softcap", Rc::new(softcap)), ("alibi", Rc::new(alibi)), ("bias", Rc::new(bias))]
}

fn forward(shape: Shape, (d, d_v): (i64, i64), dtype: DType, group: i64, mask: &str) -> Attention {
    let Shape { batch, heads, queries, keys, order } = shape;
    let tensor = |heads, rows, columns| match order {
        0 => Tensor::bshd(batch, heads, rows, columns, dtype),
        1 => Tensor::bhsd(batch, heads, rows, columns, dtype),
        // Rows of a wider matrix.
        _ => {
            let [b, h, s, one] = Tensor::bshd(batch, heads, rows, columns, dtype).strides;
            Tensor { strides: [b * 3, h, s * 3, one], ..Tensor::bshd(batch, heads, rows, columns, dtype) }
        }
    };
    let (q, o) = (tensor(heads * group, queries, d), tensor(heads * group, queries, d_v));
    let (k, v) = (tensor(heads, keys, d), tensor(heads, keys, d_v));
    let attention = Attention::forward(q, k, v, o);
    let corner = Corner::BottomRight;
    match mask {
        "causal" => attention.with_band(Band { corner, left: None, right: Some(0) }),
        // A window that hides something however short sequences are.
        "window" => attention.with_band(Band { corner, left: Some(1), right: Some(0) }),
        _ => attention,
    }
}

/// The same with sequences of their own lengths, one after another; keys with room for the longest one, if rows of
/// tensors are those of a wider matrix.
fn packed(a: Attention, Shape { batch, queries, keys, order, .. }: Shape) -> Attention {
    let varlen = |t: Tensor, rows: i64| {
        let [batch_step, head, row, one] = Tensor::bshd(t.dims[0], t.dims[1], rows, t.dims[3], t.dtype).strides;
        let wider = if order == 2 { 3 } else { 1 };
        let tokens = rows.max(batch) + order as i64 * 7;
        Tensor { strides: [batch_step * wider, head, row * wider, one], storage: Storage::Varlen { tokens }, ..t }
    };
    let mut a = a.with_lengths();
    (a.q, a.o) = (varlen(a.q, queries), varlen(a.o, queries));
    if order != 2 {
        (a.k, a.v) = (varlen(a.k, keys), varlen(a.v, keys));
    }
    a
}

/// The same with keys and values in pages of some rows, of which a pool has more than any sequence needs; and with
/// queries one after another, or with room for the longest.
fn pages(a: Attention, shape: Shape) -> Attention {
    let rows = [16, 64, 128][shape.order as usize];
    let pool = |t: Tensor| match shape.order {
        0 => Tensor::paged_hnd(t.dims[0], t.dims[1], t.dims[2], t.dims[3], shape.batch * 1000 + 1, rows, t.dtype),
        _ => Tensor::paged_nhd(t.dims[0], t.dims[1], t.dims[2], t.dims[3], shape.batch * 1000 + 1, rows, t.dtype),
    };
    let (k, v) = (pool(a.k), pool(a.v));
    let mut a = packed(a, Shape { order: 0, ..shape });
    (a.k, a.v) = (k, v);
    a
}

/// Queries and keys with room for the longest sequence, with Stats, and zeros in padded rows.
fn padded(mut a: Attention) -> Attention {
    for t in [&mut a.q, &mut a.k, &mut a.v, &mut a.o] {
        *t = Tensor::bshd(t.dims[0], t.dims[1], t.dims[2], t.dims[3], t.dtype);
    }
    a.padded_rows = PaddedRows::Zero;
    a.with_lengths().with_stats()
}

/// The address of an operand.
pub(crate) fn address(role: Role) -> u64 {
    0x7000_0000_0000 + (u64::from(role.uid().unsigned_abs() as u32) << 24)
}

/// A buffer that the front end allocates: its address says how large it is.
pub(crate) struct Buffer {
    address: u64,
    extents: Vec<i64>,
}

const BUFFERS: u64 = 1 << 60;

/// Bytes of a buffer, from its address: numbers of four bytes in the upper part, which buffer in the lowest.
pub(crate) fn buffer_bytes(address: u64) -> u64 {
    (address - BUFFERS) >> 8 << 2
}

impl Buffer {
    fn new(number: u64, extents: &[i64]) -> Buffer {
        let count: i64 = extents.iter().product();
        Buffer { address: BUFFERS + (count.unsigned_abs() << 8) + number * 16, extents: extents.to_vec() }
    }

    fn value(&self) -> Value {
        let mut strides = vec![1];
        for n in self.extents[1..].iter().rev() {
            strides.insert(0, strides[0] * n);
        }
        tensor(self.address, &self.extents, &strides)
    }
}

/// A tensor as host functions take it: the address, extents, and all strides but the last, which is 1.
fn tensor(address: u64, extents: &[i64], strides: &[i64]) -> Value {
    let ints = |list: &[i64], bits: u32| {
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        Value::Struct(list.iter().map(|n| Value::Int(*n as u64 & mask, bits)).collect())
    };
    assert_eq!(strides.last(), Some(&1));
    let layout = if strides.len() == 1 {
        // One extent is no tuple.
        Value::Struct(vec![ints(extents, 32).part(&[0]).clone(), Value::Struct(Vec::new())])
    } else {
        let steps = ints(&strides[..strides.len() - 1], 64);
        // One step is none either.
        let steps = if strides.len() == 2 { steps.part(&[0]).clone() } else { steps };
        Value::Struct(vec![ints(extents, 32), steps])
    };
    Value::Struct(vec![Value::Int(address, 64), layout])
}

/// Whether sequences lie one after another.
fn is_packed(a: &Valid) -> bool {
    a.mask.lengths == Lengths::PerSequence
}

/// Rows of all sequences of an operand.
fn all_rows(of: &Tensor) -> i64 {
    match of.storage {
        Storage::Varlen { tokens } => tokens,
        _ => of.dims[0] * of.dims[2],
    }
}

/// First rows and lengths of sequences: of queries, of keys.
fn sequences(a: &Valid) -> [Vec<Value>; 2] {
    if !is_packed(a) {
        return [Vec::new(), Vec::new()];
    }
    let list = |number: u64, count: i64| tensor(Buffer::new(number, &[count]).address, &[count], &[1]);
    let b = a.batch();
    [vec![list(9, b + 1), list(11, b)], vec![list(10, b + 1), list(12, b)]]
}

/// An operand as (batch, sequence, head, head dim), or as (row, head, head dim).
fn operand(role: Role, of: &Tensor, packed: bool) -> Value {
    if let Storage::Paged { pages, page_size } = of.storage {
        let ([_, heads, _, columns], [page, head, row, one]) = (of.dims, of.strides);
        return tensor(address(role), &[pages, page_size, heads, columns], &[page, row, head, one]);
    }
    if packed {
        let ([_, heads, _, columns], [_, head, row, one]) = (of.dims, of.strides);
        return tensor(address(role), &[all_rows(of), heads, columns], &[row, head, one]);
    }
    let order = [0, 2, 1, 3];
    tensor(address(role), &order.map(|axis| of.dims[axis]), &order.map(|axis| of.strides[axis]))
}

/// A number for each row, as (batch, head, sequence), or as (head, row) with heads together.
fn rows(role: Role, of: &Tensor, packed: bool) -> Value {
    if packed {
        let ints = |list: &[i64], bits| Value::Struct(list.iter().map(|n| Value::Int(*n as u64, bits)).collect());
        // Stats of dense queries lie in a buffer as those of varlen ones do.
        let (at, step) = match of.storage {
            Storage::Varlen { .. } => (address(role), of.strides[2]),
            _ => (Buffer::new(13, &[all_rows(of), of.dims[1]]).address, of.dims[1]),
        };
        let layout = vec![ints(&[of.dims[1], all_rows(of)], 32), Value::Int(step as u64, 64)];
        return Value::Struct(vec![Value::Int(at, 64), Value::Struct(layout)]);
    }
    tensor(address(role), &of.dims[..3], &of.strides[..3])
}

/// What the front end gives to a host function.
pub(crate) struct Given {
    pub(crate) kernel: &'static str,
    pub(crate) arguments: Vec<Value>,
}

/// The calls of an attention in order, and buffers that begin with zeros.
pub(crate) struct Launches {
    pub(crate) given: Vec<Given>,
    pub(crate) zeros: Vec<u64>,
}

/// A number of a launch: 4 bytes that follow from its role.
pub(crate) fn number(role: Role) -> u32 {
    0x3d00_0000 + role.uid().unsigned_abs() as u32
}

/// What the host functions take for expressions: numbers, and addresses of tensors.
fn numbers(a: &Valid) -> Vec<Value> {
    let scalars = a.scalars().map(|scalar| match scalar.dtype {
        DType::I32 => Value::Int(number(scalar.role).into(), 32),
        _ => Value::Float(f32::from_bits(number(scalar.role))),
    });
    let mut list: Vec<Value> = scalars.collect();
    for tensor in a.score_tensors() {
        list.push(Value::Int(address(tensor.role), 64));
        // For each dim: the last index, for queries and keys, and the step if it is not 1.
        let [_, h, q, k] = tensor.dims;
        for ((n, step), ends) in tensor.dims.into_iter().zip([h * q * k, q * k, k, 1]).zip([false, false, true, true]) {
            list.extend((n > 1 && ends).then(|| Value::Int((n - 1) as u64, 32)));
            list.extend((n > 1 && step != 1).then_some(Value::Int(step as u64, 64)));
        }
    }
    if a.block_mask {
        let ((s_q, s_k), [_, heads, ..]) = (a.seq(), a.q.dims);
        let (rows, bytes) = ((s_q + 127) / 128, (s_k + 1023) / 1024);
        list.push(Value::Int(address(Role::BlockMask), 64));
        list.extend([heads * rows * bytes, rows * bytes, bytes].map(|step| Value::Int(step as u64, 64)));
        list.extend([rows - 1, bytes - 1].map(|last| Value::Int(last as u64, 32)));
    }
    list
}

fn window(a: &Valid) -> Vec<Value> {
    let Some(Band { left, right, .. }) = a.mask.band.filter(|_| !masked(a)) else { return Vec::new() };
    match (left, right) {
        (None, Some(0)) => Vec::new(),
        (left, right) => {
            let bounds = [left.map(|keys| keys - 1), right];
            bounds.into_iter().flatten().map(|n| Value::Int(n as u64 & 0xffff_ffff, 32)).collect()
        }
    }
}

/// Tiles of queries and keys of a forward with a predicate, from FlashAttention-4's table for Hopper.
fn forward_tiles((d, d_v): (i64, i64)) -> (i64, i64) {
    let keys = match d {
        ..=128 => 128,
        129..=192 => {
            if d_v <= 128 {
                128
            } else {
                112
            }
        }
        _ => 80,
    };
    (128, keys)
}

/// Whether tiles are listed.
fn masked(a: &Valid) -> bool {
    a.mask.mask_mod.is_some() || a.block_mask
}

/// The lists of tiles that a predicate leaves: counts and tiles, of those that it cuts and of whole ones. Sequences or
/// heads that the predicate does not tell apart have steps of 0.
fn lists(a: &Valid, (m, n): (i64, i64), by_keys: bool) -> Vec<Value> {
    if !masked(a) {
        return Vec::new();
    }
    let predicate = a.mask.mask_mod.as_ref();
    let ((s_q, s_k), [batch, heads, ..]) = (a.seq(), a.q.dims);
    let tiles = |rows: i64, tile: i64| (rows + tile - 1) / tile;
    let (rows, columns) = if by_keys { (tiles(s_k, n), tiles(s_q, m)) } else { (tiles(s_q, m), tiles(s_k, n)) };
    let of_batch = predicate.is_none_or(|e| e.tensors().iter().any(|spec| spec.dims[0] > 1));
    let of_heads = predicate.is_none_or(|e| e.contains(Node::Index(Axis::Head)));
    let (b, h) = (if of_batch { batch } else { 1 }, if of_heads { heads } else { 1 });
    let step = |there: bool, n: i64| if there { n } else { 0 };
    let list = |number: u64, row: &[i64]| {
        let each: i64 = row.iter().product();
        let buffer = Buffer::new(number, &[b * h * rows, each]);
        let extents: Vec<i64> = [batch, heads, rows].into_iter().chain(row.iter().copied()).collect();
        let mut strides = vec![step(of_batch, h * rows * each), step(of_heads, rows * each), each];
        strides.extend(row.iter().map(|_| 1));
        tensor(buffer.address, &extents, &strides)
    };
    vec![list(9, &[]), list(10, &[columns]), list(11, &[]), list(12, &[columns])]
}

/// First rows of both, then lengths of both.
fn both([of_queries, of_keys]: [Vec<Value>; 2]) -> Vec<Value> {
    (0..of_queries.len()).flat_map(|n| [of_queries[n].clone(), of_keys[n].clone()]).collect()
}

/// The calls of an attention.
pub(crate) fn launches(a: &Valid) -> Launches {
    let scale = Value::Float(SCALE);
    let Pass::Backward(gradients) = a.pass else {
        let packed = is_packed(a);
        let operand = |role, of| operand(role, of, packed);
        let mut arguments = vec![operand(Role::Q, &a.q), operand(Role::K, &a.k), operand(Role::V, &a.v)];
        arguments.push(operand(Role::O, &a.o));
        if a.outputs.stats {
            arguments.push(rows(Role::Stats, &a.row_tensor(), packed));
        }
        arguments.push(scale);
        match a.k.pages_per_sequence() {
            Some(width) => {
                let [of_queries, of_keys] = sequences(a);
                arguments.extend(of_queries.into_iter().chain(of_keys.into_iter().skip(1)));
                // The page of the keys and that of the values beside each other.
                arguments.push(Buffer::new(14, &[a.batch(), 2 * width]).value());
            }
            None => arguments.extend(both(sequences(a))),
        }
        arguments.extend(window(a));
        if a.sink {
            arguments.push(tensor(address(Role::Sink), &[a.q.heads()], &[1]));
        }
        arguments.extend(lists(a, forward_tiles(a.head_dims()), false));
        arguments.extend(numbers(a));
        return Launches { given: vec![Given { kernel: "forward", arguments }], zeros: Vec::new() };
    };
    backward(a, gradients)
}

fn backward(a: &Valid, Gradients { d_o, d_q, d_k, d_v, d_sink, deterministic, .. }: Gradients) -> Launches {
    let (d, d_v_dim) = a.head_dims();
    let ((s_q, s_k), (heads, key_heads, _), b) = (a.seq(), a.heads(), a.batch());
    let masked = masked(a);
    let causal = a.mask.band.is_some() || masked;
    // Rows of tiles and the rounding of head dims, from FlashAttention-4's table for Hopper.
    let (m, n, round) = match d {
        193.. if masked => (64, 64, 32),
        ..=64 => (128, 128, 32),
        65..=96 => (64, 128, 32),
        97..=128 => (if causal { 64 } else { 80 }, 128, 32),
        129..=192 => (64, 96, 64),
        _ => (64, 48, 64),
    };
    let up = |size: i64, of: i64| (size + of - 1) / of * of;
    let packed = is_packed(a);
    let (operand, rows) = (|role, of: &Tensor| operand(role, of, packed), |role, of: &Tensor| rows(role, of, packed));
    let (wide, wide_v) = (up(d, round), up(d_v_dim, round));
    let (q_rows, k_rows) = match packed {
        false => (up(s_q, m), up(s_k, n)),
        true => ((all_rows(&a.q) + (b + 1) * m - 1) / m * m, (all_rows(&a.k) + (b + 1) * n - 1) / n * n),
    };
    let buffer = |number, heads, row| match packed {
        false => Buffer::new(number, &[b, heads, row]),
        true => Buffer::new(number, &[heads, row]),
    };
    let d_q_sums = buffer(1, heads, q_rows * wide);
    let (sums, lse) = (buffer(2, heads, q_rows), buffer(3, heads, q_rows));
    let d_k_sums = buffer(4, key_heads, k_rows * wide);
    let d_v_sums = buffer(5, key_heads, k_rows * wide_v);
    let [of_queries, of_keys] = sequences(a);
    let counters = [
        Buffer::new(6, &[b, heads, q_rows / m, 1]),
        Buffer::new(7, &[b, key_heads, k_rows / n, 2]),
        Buffer::new(8, &[b, key_heads, k_rows / n, 2]),
    ];
    let grouped = heads > key_heads;
    let used = if !deterministic { 0 } else { if grouped { 3 } else { 1 } };
    let mut zeros: Vec<u64> = counters[..used].iter().map(|buffer| buffer.address).collect();

    let mut arguments = vec![operand(Role::O, &a.o), operand(Role::DO, &d_o), sums.value()];
    arguments.extend([rows(Role::Stats, &a.row_tensor()), lse.value(), d_q_sums.value()]);
    arguments.extend(of_queries.clone());
    arguments.push(Value::Float(1.0));
    let mut given = vec![Given { kernel: "preprocess", arguments }];

    let mut arguments = vec![operand(Role::Q, &a.q), operand(Role::K, &a.k), operand(Role::V, &a.v)];
    arguments.extend([operand(Role::DO, &d_o), lse.value(), sums.value(), d_q_sums.value()]);
    if grouped {
        arguments.extend([d_k_sums.value(), d_v_sums.value()]);
        zeros.extend([d_k_sums.address, d_v_sums.address]);
    } else {
        arguments.extend([operand(Role::DK, &d_k), operand(Role::DV, &d_v)]);
    }
    arguments.push(Value::Float(SCALE));
    arguments.extend(both([of_queries.clone(), of_keys.clone()]));
    arguments.extend(window(a));
    arguments.extend(counters[..used].iter().map(Buffer::value));
    arguments.extend(numbers(a));
    arguments.extend(lists(a, (m, n), true));
    given.push(Given { kernel: "backward", arguments });

    let mut post = |kernel, sums: &Buffer, role, of: &Tensor, by, sink: Vec<Value>| {
        let mut arguments = vec![sums.value(), operand(role, of), Value::Float(by)];
        arguments.extend(if role == Role::DQ { of_queries.clone() } else { of_keys.clone() });
        arguments.extend(sink);
        given.push(Given { kernel, arguments });
    };
    let per_head = |role| tensor(address(role), &[heads], &[1]);
    let sink = [sums.value(), rows(Role::Stats, &a.row_tensor()), per_head(Role::Sink), per_head(Role::DSink)];
    let sink = if d_sink { sink.to_vec() } else { Vec::new() };
    post("postprocess of dQ", &d_q_sums, Role::DQ, &d_q, SCALE, sink);
    if grouped {
        post("postprocess of dK", &d_k_sums, Role::DK, &d_k, SCALE, Vec::new());
        post("postprocess of dV", &d_v_sums, Role::DV, &d_v, 1.0, Vec::new());
    }
    Launches { given, zeros }
}
