//! The text of matrix products by four warps (`wgmma`), whose registers CUDA C must name one by one.

use std::fmt::Write as _;

/// `multiply_keys`, scores of 64 rows and `keys` keys, and sums of 64 rows and `columns` columns: `multiply_values` of
/// weights in registers, `multiply_shared` of weights in shared memory.
pub(crate) fn products(keys: u32, columns: u32, half: &str) -> String {
    let list = |n: u32| (0..n).map(|i| format!("%{i}")).collect::<Vec<_>>().join(", ");
    let sums = |n: u32| (0..n).map(|i| format!("\"+f\"(sum[{}][{}])", i / 4, i % 4)).collect::<Vec<_>>().join(", ");
    let (of_keys, of_columns) = (keys / 2, columns / 2);
    let mut text = String::from("#ifndef EMULATED\n");
    let _ = write!(
        text,
        "__device__ __forceinline__ void multiply_keys(float (&sum)[{keys_in_8}][4], u64 rows, u64 keys, int add) {{\n  \
           asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{add}, 0;\\n\"\n    \
             \"wgmma.mma_async.sync.aligned.m64n{keys}k16.f32.{half}.{half} {{{registers}}}, %{a}, %{b}, p, 1, 1, 0, 0;\\n}}\"\n    \
             : {outputs}\n    : \"l\"(rows), \"l\"(keys), \"r\"(add));\n}}\n",
        keys_in_8 = keys / 8,
        add = of_keys + 2,
        registers = list(of_keys),
        a = of_keys,
        b = of_keys + 1,
        outputs = sums(of_keys),
    );
    let _ = write!(
        text,
        "__device__ __forceinline__ void multiply_values(float (&sum)[{columns_in_8}][4], const u32 (&rows)[4], u64 values) {{\n  \
           asm volatile(\"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{half}.{half} {{{registers}}}, \"\n    \
             \"{{%{a0}, %{a1}, %{a2}, %{a3}}}, %{b}, 1, 1, 1, 1;\"\n    \
             : {outputs}\n    : \"r\"(rows[0]), \"r\"(rows[1]), \"r\"(rows[2]), \"r\"(rows[3]), \"l\"(values));\n}}\n",
        columns_in_8 = columns / 8,
        registers = list(of_columns),
        a0 = of_columns,
        a1 = of_columns + 1,
        a2 = of_columns + 2,
        a3 = of_columns + 3,
        b = of_columns + 4,
        outputs = sums(of_columns),
    );
    let _ = write!(
        text,
        "__device__ __forceinline__ void multiply_shared(float (&sum)[{columns_in_8}][4], u64 rows, u64 values) {{\n  \
           asm volatile(\"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{half}.{half} {{{registers}}}, \
             %{a}, %{b}, 1, 1, 1, 0, 1;\"\n    \
             : {outputs}\n    : \"l\"(rows), \"l\"(values));\n}}\n",
        columns_in_8 = columns / 8,
        registers = list(of_columns),
        a = of_columns,
        b = of_columns + 1,
        outputs = sums(of_columns),
    );
    text.push_str("#endif\n");
    text
}
