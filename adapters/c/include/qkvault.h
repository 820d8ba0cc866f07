/* qkvault: attention, compiled ahead of time: cuDNN, FlashAttention-4, own kernels.
 *
 * Generated from the Rust code by `cargo xtask header`. Version 1.2 of the interface: functions and fields are added at
 * the end and with a higher QKV_ABI_MINOR, and nothing that is here changes its meaning.
 *
 * Every function returns a status: QKV_OK, which is 0, or a QKV_ERROR_ number. qkv_last_error tells the thread's last
 * error in words. If a function fails, the places for its results are as they were before. Null handles and handles of
 * another kind are errors. No panic and no C++ exception leaves the library.
 *
 * A struct that begins with struct_size may get more fields. Set struct_size to its sizeof and the other fields to zero
 * before a call: programs and libraries of different versions then understand each other. Other structs never change.
 *
 * Threads: functions may be called from any thread. What is said at each handle tells whether threads may share it.
 * A handle is freed once, when no call uses it any more; what was made with it stays valid. Freeing null is no error.
 *
 * Strings in are UTF-8 and are copied. Strings that a function gives through a char ** are freed with qkv_string_free.
 * Sizes are in bytes, extents and strides in elements. A device is CUDA's ordinal of a GPU in this process.
 *
 * The library is linked with neither CUDA nor cuDNN. It loads libcuda.so.1 and libcudnn.so.9 when a call needs them.
 */

#ifndef QKVAULT_H
#define QKVAULT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define QKV_ZERO {}
#else
#define QKV_ZERO {0}
#endif

/**
 * The call did what it says.
 */
#define QKV_OK 0

/**
 * An argument is wrong: null, too small, no text, an unknown name, a missing operand, a handle that is none.
 */
#define QKV_ERROR_ARGUMENT 1

/**
 * A text is not a description, or JSON is not what it should be.
 */
#define QKV_ERROR_PARSE 2

/**
 * The attention contradicts itself or cannot run there. The error has the reasons, each with a stable code.
 */
#define QKV_ERROR_REFUSED 3

/**
 * The plan is not in the vault, and building it is not allowed.
 */
#define QKV_ERROR_MISSING 4

/**
 * There is no driver or no such GPU, or it cannot be used.
 */
#define QKV_ERROR_DEVICE 5

/**
 * There is no cuDNN that can be used.
 */
#define QKV_ERROR_LIBRARY 6

/**
 * The vault or a pack cannot be opened or read.
 */
#define QKV_ERROR_VAULT 7

/**
 * A plan could not be built.
 */
#define QKV_ERROR_BUILD 8

/**
 * A stored plan does not load on this machine.
 */
#define QKV_ERROR_LOAD 9

/**
 * There is too little memory, on the GPU or on the host, or no room for another plan.
 */
#define QKV_ERROR_MEMORY 10

/**
 * cuDNN or the driver refused a launch. Nothing was queued.
 */
#define QKV_ERROR_LAUNCH 11

/**
 * The plan is not loaded, and the stream is being captured: prepare it before the capture begins.
 */
#define QKV_ERROR_CAPTURED 12

/**
 * The library has a fault. Report it with the message.
 */
#define QKV_ERROR_INTERNAL 13

/**
 * The major version of the interface. Another one is another library, with another soname.
 */
#define QKV_ABI_MAJOR 1

/**
 * The minor version of the interface: it goes up with every function and field that is added.
 */
#define QKV_ABI_MINOR 2

/**
 * A plan that the vault lacks is an error (`QKV_ERROR_MISSING`).
 */
#define QKV_ON_MISS_FAIL 0

/**
 * A plan that the vault lacks is built, which takes 0.3 to 1 second.
 */
#define QKV_ON_MISS_BUILD 1

/**
 * The vault is used as `QKVAULT_CACHE` says: read and written if it says nothing.
 */
#define QKV_VAULT_DEFAULT 0

/**
 * The vault is read and written.
 */
#define QKV_VAULT_READ_WRITE 1

/**
 * The vault is only read.
 */
#define QKV_VAULT_READ_ONLY 2

/**
 * No vault is used: nothing is kept on disk.
 */
#define QKV_VAULT_OFF 3

/**
 * Half precision.
 */
#define QKV_F16 1

/**
 * bfloat16.
 */
#define QKV_BF16 2

/**
 * Single precision.
 */
#define QKV_F32 3

/**
 * 8-bit float with 4 exponent bits.
 */
#define QKV_E4M3 4

/**
 * 8-bit float with 5 exponent bits.
 */
#define QKV_E5M2 5

/**
 * 8-bit power of two.
 */
#define QKV_E8M0 6

/**
 * 32-bit signed integer.
 */
#define QKV_I32 7

/**
 * 64-bit signed integer.
 */
#define QKV_I64 8

/**
 * Unsigned byte.
 */
#define QKV_U8 9

/**
 * Boolean of one byte.
 */
#define QKV_BOOL 10

/**
 * Double precision: for arrays of the oracle alone. No operand has it.
 */
#define QKV_F64 64

/**
 * The process had loaded the plan before.
 */
#define QKV_SOURCE_LOADED 0

/**
 * The plan was in the vault's memory.
 */
#define QKV_SOURCE_MEMORY 1

/**
 * The plan was in the vault's folder.
 */
#define QKV_SOURCE_DISK 2

/**
 * The plan was in a layer of the vault.
 */
#define QKV_SOURCE_LAYER 3

/**
 * The plan was in the vault's remote.
 */
#define QKV_SOURCE_REMOTE 4

/**
 * The call compiled the plan.
 */
#define QKV_SOURCE_BUILT 5

/**
 * Another call compiled the plan meanwhile.
 */
#define QKV_SOURCE_WAITED 6

/**
 * Ranks have no GPU: their memory is on the host, and the oracle computes, slowly, for tests.
 */
#define QKV_NO_GPU -1

/**
 * Each rank gets the keys and values that its queries see. Its number is groups of heads, of which one moves while
 * another is computed; 0: as many as are expected to be the fastest.
 */
#define QKV_SCHEME_GATHER 0

/**
 * Each rank gets all tokens of some heads (Ulysses).
 */
#define QKV_SCHEME_HEADS 1

/**
 * Keys and values go around.
 */
#define QKV_SCHEME_RING 2

/**
 * Outputs over a cache whose keys lie on several ranks are merged. Its number is the run of neighbouring keys.
 */
#define QKV_SCHEME_DECODE 3

/**
 * Rank `r` of `n` has the chunks `r` and `2n - 1 - r` of `2n`: the same work under a causal mask.
 */
#define QKV_ORDER_ZIGZAG 0

/**
 * Rank `r` of `n` has the chunk `r` of `n`.
 */
#define QKV_ORDER_CONTIGUOUS 1

/**
 * A valid description of one attention. It never changes.
 *
 * Threads may share it. Free it with `qkv_attention_free`; plans that were made of it stay valid.
 */
typedef struct qkv_attention qkv_attention;

/**
 * Lengths, offsets and page tables of a plan's steps in one block of host memory.
 *
 * One thread at a time may use it. Free it with `qkv_batch_free`.
 */
typedef struct qkv_batch qkv_batch;

/**
 * One rank among those that compute an attention together.
 *
 * Threads may share it: its calls and those of its ranks take turns. After an error of ranks it is of no more use, on
 * any rank: make a new one on all of them. Free it with `qkv_communicator_free`; its ranks stay valid.
 */
typedef struct qkv_communicator qkv_communicator;

/**
 * A vault, a cuDNN and the GPUs that plans run on.
 *
 * Threads may share it. Close it when no call uses it any more; plans and descriptions stay valid.
 */
typedef struct qkv_context qkv_context;

/**
 * An attention on the CPU with its inputs and, after `qkv_oracle_run`, its outputs.
 *
 * One thread at a time may use it. Free it with `qkv_oracle_free`.
 */
typedef struct qkv_oracle qkv_oracle;

/**
 * A plan of one attention: loaded on a GPU (`qkv_prepare`), or compiled ahead (`qkv_warm`), with facts and without a
 * GPU. It never changes.
 *
 * Threads may share it and launch it at the same time. Freeing it frees the handle: a loaded plan stays on its GPU
 * until the process ends, because nobody tells when the last graph that was captured with it is gone.
 */
typedef struct qkv_plan qkv_plan;

/**
 * One rank of a schedule: plans are loaded and memory is there.
 *
 * One thread at a time may use it. Free it with `qkv_rank_free`, when its last run has ended.
 */
typedef struct qkv_rank qkv_rank;

/**
 * The attentions of a layer for every step in the ranges of a policy.
 *
 * Threads may share it. Free it with `qkv_serving_free`.
 */
typedef struct qkv_serving qkv_serving;

/**
 * The last error of a thread. The strings are never null, and valid until the thread's next failing call.
 */
typedef struct qkv_error {
  /**
   * Set this to `sizeof(qkv_error)`.
   */
  size_t struct_size;
  /**
   * The status that the call returned; `QKV_OK` if no call of this thread failed.
   */
  int32_t status;
  /**
   * The number of reasons of a refusal; 0 for other errors.
   */
  uint32_t reason_count;
  /**
   * What came, what was expected, and how to fix it.
   */
  const char *message;
  /**
   * The name of the status, such as `refused`.
   */
  const char *kind;
  /**
   * The stable codes of a refusal's reasons, with spaces between them, as in `docs/reasons.md`.
   */
  const char *codes;
  /**
   * The reasons of a refusal as a JSON array; `[]` for other errors.
   */
  const char *reasons;
} qkv_error;

/**
 * Versions.
 */
typedef struct qkv_version_info {
  /**
   * Set this to `sizeof(qkv_version_info)`.
   */
  size_t struct_size;
  /**
   * `QKV_ABI_MAJOR` of the library.
   */
  uint32_t abi_major;
  /**
   * `QKV_ABI_MINOR` of the library.
   */
  uint32_t abi_minor;
  /**
   * The library's version as text, such as `0.1.0`. It is always valid.
   */
  const char *version;
} qkv_version_info;

/**
 * Options of a context. Zeros and nulls are the defaults.
 */
typedef struct qkv_options {
  /**
   * Set this to `sizeof(qkv_options)`.
   */
  size_t struct_size;
  /**
   * The folder of the vault. Null: that of the environment, else the user's, as the command `qkvault` uses it.
   */
  const char *vault;
  /**
   * A `libcudnn.so.9`, its folder, or a prefix above it. Null: the usual search, which prefers `QKVAULT_CUDNN_PATH`
   * and then the cuDNN that the process has loaded.
   */
  const char *cudnn;
  /**
   * What to do for a plan that the vault lacks: `QKV_ON_MISS_FAIL` or `QKV_ON_MISS_BUILD`.
   */
  int32_t on_miss;
  /**
   * What may be done with the vault: a `QKV_VAULT_...` number.
   */
  int32_t vault_mode;
  /**
   * Most bytes of scratch memory that a plan may need. 0: no limit.
   */
  uint64_t workspace_limit;
  /**
   * cuDNN handles that are created with the first use of a GPU: as many as threads launch at a time, at most 1024.
   * 0: one. The first context that uses a GPU decides; `qkv_reserve_handles` creates more.
   */
  uint32_t handles;
  /**
   * Must be 0.
   */
  uint32_t reserved;
  /**
   * A remote store of plans: an HTTP address or a folder. Null: that of the environment, if it names one.
   */
  const char *remote;
  /**
   * Codes of quirks, separated by commas, that are allowed although cuDNN computes them wrongly. Null: none.
   */
  const char *allow;
  /**
   * Whose plans are taken: `auto`, `cudnn`, `kernels` or `fa4`. Null: `auto`, which is by measured times.
   */
  const char *engine;
} qkv_options;

/**
 * The cuDNN of a context. The strings are valid until the context is closed.
 */
typedef struct qkv_library_info {
  /**
   * Set this to `sizeof(qkv_library_info)`.
   */
  size_t struct_size;
  /**
   * Its version, such as `9.27.0`.
   */
  const char *version;
  /**
   * The file that is loaded.
   */
  const char *path;
} qkv_library_info;

/**
 * An operand of an attention or of a plan. The strings are valid until the description or plan that told it is freed.
 */
typedef struct qkv_operand {
  /**
   * Set this to `sizeof(qkv_operand)`.
   */
  size_t struct_size;
  /**
   * The name of its role, such as `q`, `stats`, `d_q`, `scalar.0` or `offsets.q`. It is the same in every version.
   */
  const char *role;
  /**
   * Its name in the description's expressions, for scalars and tensors of these; for the gradient of such a tensor,
   * with `d_` before it. Else null.
   */
  const char *name;
  /**
   * The number of its role, the same in every version.
   */
  int32_t role_id;
  /**
   * Element type: `QKV_BF16` and so on.
   */
  int32_t dtype;
  /**
   * Extents over (batch, head, sequence, head dim), or over (batch, head, query, key) for operands of expressions.
   */
  int64_t dims[4];
  /**
   * Elements between neighbours along each dim.
   */
  int64_t strides[4];
  /**
   * Bytes of its buffer, from the first to one past the last element.
   */
  uint64_t bytes;
  /**
   * Alignment in bytes of its address.
   */
  uint32_t alignment;
  /**
   * 1 if a launch writes it, else 0.
   */
  int32_t output;
  /**
   * 1 if it is one number on the host, else 0: memory on the GPU.
   */
  int32_t scalar;
  /**
   * 1 if its values follow from the description (ALiBi slopes): a launch does not take it. Else 0.
   */
  int32_t constant;
  /**
   * 1 if kernels follow its numbers to other memory: lengths, offsets and page tables. Wrong numbers make kernels
   * read and write anywhere. Else 0.
   */
  int32_t followed;
  /**
   * Must be ignored.
   */
  int32_t reserved;
} qkv_operand;

/**
 * The facts of a plan. The strings are valid until the plan is freed.
 */
typedef struct qkv_plan_info {
  /**
   * Set this to `sizeof(qkv_plan_info)`.
   */
  size_t struct_size;
  /**
   * The key of the plan: attention, target and options.
   */
  uint8_t key[32];
  /**
   * The key of its attention.
   */
  uint8_t attention_key[32];
  /**
   * Bytes of scratch memory that a launch needs.
   */
  uint64_t workspace;
  /**
   * Alignment in bytes of the scratch memory's address.
   */
  uint32_t workspace_alignment;
  /**
   * Tensors that a launch takes (`qkv_plan_tensor`).
   */
  uint32_t tensor_count;
  /**
   * Scalars that a launch takes (`qkv_plan_scalar`).
   */
  uint32_t scalar_count;
  /**
   * CUDA's ordinal of the GPU on which it is loaded; -1 if it is compiled ahead.
   */
  int32_t device;
  /**
   * 1 if two launches on the same input agree bit for bit, else 0.
   */
  int32_t deterministic;
  /**
   * Compute capability of its target, major * 10 + minor.
   */
  int32_t sm;
  /**
   * Where it came from: a `QKV_SOURCE_...` number.
   */
  int32_t source;
  /**
   * The version of the cuDNN that compiled it and that alone loads it, as major * 10000 + minor * 100 + patch;
   * 0 for a plan that needs none.
   */
  int32_t cudnn_number;
  /**
   * The same as text, empty for a plan that needs none.
   */
  const char *cudnn;
  /**
   * Engine and knobs of cuDNN, or whose kernels it has.
   */
  const char *engine;
  /**
   * Its attention in one short line.
   */
  const char *what;
  /**
   * Bytes of cuDNN's serialised plan.
   */
  uint64_t plan_bytes;
  /**
   * Milliseconds that compiling took.
   */
  uint32_t compile_ms;
  /**
   * Must be ignored.
   */
  uint32_t reserved;
  /**
   * Whose plan it is, why, and why not those of other engines, in words; null if that is not known.
   */
  const char *why;
  /**
   * Microseconds of the `qkv_prepare` that loaded it; 0 if another call had. The times below are parts of it.
   */
  double prepare_us;
  /**
   * Computing its key, and reading and checking its entry of the vault.
   */
  double vault_us;
  /**
   * Loading it on the GPU. The times below are parts of it.
   */
  double load_us;
  /**
   * Comparing its facts with the machine, and its recipe with its bytes.
   */
  double checks_us;
  /**
   * Reading cuDNN's plan, or loading cubins that no other plan had loaded.
   */
  double code_us;
  /**
   * Finding kernels and bringing their code.
   */
  double kernels_us;
  /**
   * Giving kernels their shared memory.
   */
  double attributes_us;
} qkv_plan_info;

/**
 * Memory on the GPU. It never grows.
 */
typedef struct qkv_buffer {
  /**
   * The address, a `CUdeviceptr`.
   */
  uint64_t address;
  /**
   * Bytes from the address on.
   */
  uint64_t bytes;
} qkv_buffer;

/**
 * The value of a scalar. It never grows.
 */
typedef union qkv_value {
  /**
   * For `QKV_F32`.
   */
  float f32;
  /**
   * For `QKV_I32`.
   */
  int32_t i32;
  /**
   * For `QKV_I64`.
   */
  int64_t i64;
} qkv_value;

/**
 * One number on the host. It never grows.
 */
typedef struct qkv_number {
  /**
   * `QKV_F32`, `QKV_I32` or `QKV_I64`.
   */
  int32_t dtype;
  /**
   * Must be 0.
   */
  int32_t reserved;
  /**
   * The value.
   */
  union qkv_value value;
} qkv_number;

/**
 * Two operands whose ranges of addresses overlap and whose elements do not, by `role_id`: such as the gradients of an
 * interleaved QKV. It never grows.
 */
typedef struct qkv_pair {
  /**
   * One operand.
   */
  int32_t a;
  /**
   * The other one.
   */
  int32_t b;
} qkv_pair;

/**
 * What a launch is given, in the order of the plan.
 */
typedef struct qkv_launch_args {
  /**
   * Set this to `sizeof(qkv_launch_args)`.
   */
  size_t struct_size;
  /**
   * A buffer for each tensor of the plan, in the order of `qkv_plan_tensor`.
   */
  const struct qkv_buffer *tensors;
  /**
   * The number of buffers.
   */
  size_t tensor_count;
  /**
   * A number for each scalar of the plan, in the order of `qkv_plan_scalar`.
   */
  const struct qkv_number *scalars;
  /**
   * The number of numbers.
   */
  size_t scalar_count;
  /**
   * Scratch memory of at least `qkv_plan_info.workspace` bytes at a multiple of `workspace_alignment`; zeros if the
   * plan needs none.
   */
  struct qkv_buffer workspace;
  /**
   * The stream, a `CUstream` or `cudaStream_t`; null is the default stream.
   */
  void *stream;
  /**
   * Pairs of operands that are interleaved; null if there are none.
   */
  const struct qkv_pair *interleaved;
  /**
   * The number of pairs.
   */
  size_t interleaved_count;
} qkv_launch_args;

/**
 * Memory by name. It never grows.
 */
typedef struct qkv_named_buffer {
  /**
   * The name of a role or of a tensor in the description's expressions.
   */
  const char *name;
  /**
   * The memory.
   */
  struct qkv_buffer buffer;
} qkv_named_buffer;

/**
 * A number by name. It never grows.
 */
typedef struct qkv_named_number {
  /**
   * The name of a role or of a scalar in the description's expressions.
   */
  const char *name;
  /**
   * The number.
   */
  struct qkv_number number;
} qkv_named_number;

/**
 * What a launch is given, by name and in any order.
 */
typedef struct qkv_launch_named_args {
  /**
   * Set this to `sizeof(qkv_launch_named_args)`.
   */
  size_t struct_size;
  /**
   * Every tensor of the plan.
   */
  const struct qkv_named_buffer *tensors;
  /**
   * Their number.
   */
  size_t tensor_count;
  /**
   * Every scalar of the plan; `scale` may be left out, and is one over the square root of the head dim then.
   */
  const struct qkv_named_number *scalars;
  /**
   * Their number.
   */
  size_t scalar_count;
  /**
   * As in `qkv_launch_args`.
   */
  struct qkv_buffer workspace;
  /**
   * As in `qkv_launch_args`.
   */
  void *stream;
  /**
   * As in `qkv_launch_args`.
   */
  const struct qkv_pair *interleaved;
  /**
   * The number of pairs.
   */
  size_t interleaved_count;
} qkv_launch_named_args;

/**
 * A rank, and where all of them meet.
 */
typedef struct qkv_world {
  /**
   * Set this to `sizeof(qkv_world)`.
   */
  size_t struct_size;
  /**
   * This rank, from 0 on.
   */
  uint32_t rank;
  /**
   * The number of ranks.
   */
  uint32_t ranks;
  /**
   * CUDA's ordinal of the rank's GPU, or `QKV_NO_GPU`.
   */
  int32_t device;
  /**
   * The port at which rank 0 listens.
   */
  uint32_t port;
  /**
   * The name or address of the machine of rank 0.
   */
  const char *address;
  /**
   * What the ranks prove to each other: 16 to 1,024 printable characters, the same for all. Null: none, at an
   * address of the loopback alone.
   */
  const char *secret;
  /**
   * How long a rank waits for another one, and how long a run may take before the rank that hangs is named. 0: five
   * minutes.
   */
  uint32_t deadline_ms;
  /**
   * 0: ranks of other processes of this host copy from GPU to GPU. 1: ranks that are threads of this process too;
   * the first run of each of their ranks waits for its GPU.
   */
  uint32_t threads;
} qkv_world;

/**
 * How ranks share an attention. It never grows.
 */
typedef struct qkv_sharding {
  /**
   * A `QKV_SCHEME_` number.
   */
  int32_t scheme;
  /**
   * A `QKV_ORDER_` number.
   */
  int32_t order;
  /**
   * The number of the scheme, where it has one; else 0.
   */
  uint32_t number;
  /**
   * Must be 0.
   */
  uint32_t reserved;
} qkv_sharding;

/**
 * A part of an operand that a rank has. It never grows.
 */
typedef struct qkv_part {
  /**
   * Where it begins in the operand of the whole attention.
   */
  int64_t start[4];
  /**
   * Where it begins in the rank's memory of the operand.
   */
  int64_t at[4];
  /**
   * Its extents.
   */
  int64_t dims[4];
} qkv_part;

/**
 * What a run is given, by name and in any order.
 */
typedef struct qkv_rank_args {
  /**
   * Set this to `sizeof(qkv_rank_args)`.
   */
  size_t struct_size;
  /**
   * Memory for operands of `qkv_rank_operand`. What is not named keeps its memory.
   */
  const struct qkv_named_buffer *tensors;
  /**
   * Their number.
   */
  size_t tensor_count;
  /**
   * Scalars of the attention. What is not named keeps its number; `scale` begins as one over the square root of the
   * head dim.
   */
  const struct qkv_named_number *scalars;
  /**
   * Their number.
   */
  size_t scalar_count;
  /**
   * The stream, a `CUstream` or `cudaStream_t`; null is the default stream. Not used without a GPU.
   */
  void *stream;
} qkv_rank_args;

/**
 * The largest sizes of one attention of a serving set.
 */
typedef struct qkv_bucket {
  /**
   * Set this to `sizeof(qkv_bucket)`.
   */
  size_t struct_size;
  /**
   * Sequences.
   */
  int64_t batch;
  /**
   * New tokens of a sequence.
   */
  int64_t queries;
  /**
   * Keys of a sequence.
   */
  int64_t keys;
  /**
   * New tokens of a step: the room of varlen buffers.
   */
  int64_t tokens;
  /**
   * 1 if each sequence has one new token (dense queries), else 0 (varlen queries).
   */
  int32_t decode;
  /**
   * Must be ignored.
   */
  int32_t reserved;
} qkv_bucket;

/**
 * The place of an operand in the block of a batch.
 */
typedef struct qkv_batch_operand {
  /**
   * Set this to `sizeof(qkv_batch_operand)`.
   */
  size_t struct_size;
  /**
   * The number of its role, as in `qkv_operand`.
   */
  int32_t role_id;
  /**
   * Must be ignored.
   */
  int32_t reserved;
  /**
   * Its first byte in the block, a multiple of 256.
   */
  uint64_t offset;
  /**
   * Its bytes.
   */
  uint64_t bytes;
} qkv_batch_operand;

/**
 * The input of one launch: its sequences in the order of the batch, at most as many as the plan has.
 */
typedef struct qkv_step {
  /**
   * Set this to `sizeof(qkv_step)`.
   */
  size_t struct_size;
  /**
   * The number of sequences.
   */
  size_t sequences;
  /**
   * New tokens of each sequence; null: one of each.
   */
  const int32_t *query_lengths;
  /**
   * Keys of each sequence, those of the new tokens included.
   */
  const int32_t *key_lengths;
  /**
   * Pages of each sequence's keys, as indices into the pool: `page_width` entries for each sequence, of which as
   * many are read as its keys fill. Null if keys are not paged.
   */
  const int32_t *pages;
  /**
   * Entries for each sequence.
   */
  size_t page_width;
  /**
   * Pages of each sequence's values, if they differ from those of the keys; else null.
   */
  const int32_t *value_pages;
  /**
   * Must be 0.
   */
  int64_t reserved;
} qkv_step;

/**
 * A part of the block of a batch. It never grows.
 */
typedef struct qkv_range {
  /**
   * Its first byte.
   */
  uint64_t offset;
  /**
   * Its bytes.
   */
  uint64_t bytes;
} qkv_range;

/**
 * How a result differs from the exact numbers.
 */
typedef struct qkv_comparison {
  /**
   * Set this to `sizeof(qkv_comparison)`.
   */
  size_t struct_size;
  /**
   * 1 if the result is as close as kernels of its element type come, wholly written, and finite where it must be;
   * else 0.
   */
  int32_t good;
  /**
   * Must be ignored.
   */
  int32_t reserved;
  /**
   * Elements compared.
   */
  uint64_t elements;
  /**
   * Norm of the difference, divided by the norm of the exact numbers.
   */
  double relative;
  /**
   * Largest difference of one element.
   */
  double largest;
  /**
   * Elements that are not finite although the exact number is, or the reverse.
   */
  uint64_t non_finite;
  /**
   * Elements that still have all bits set, as they should before a launch: they were not written.
   */
  uint64_t unwritten;
  /**
   * Elements outside the tensor (gaps between strides) that no longer have all bits set.
   */
  uint64_t touched;
} qkv_comparison;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Tells the last error of this thread. Calls that succeed leave it as it was.
 */
int32_t qkv_last_error(struct qkv_error *error);

/**
 * Fails with a panic inside the library, for tests of the border: the status is `QKV_ERROR_INTERNAL`.
 */
int32_t qkv_debug_panic(void);

/**
 * Frees a text that a function of this library gave. Null is no error. Any thread may free it.
 */
int32_t qkv_string_free(char *text);

/**
 * Tells the versions of the library that is loaded.
 */
int32_t qkv_version(struct qkv_version_info *info);

/**
 * Opens a context. It opens the vault and nothing else: no cuDNN, no driver, no GPU.
 *
 * `options` may be null: defaults. `context` gets the context; close it with `qkv_close`.
 */
int32_t qkv_open(const struct qkv_options *options, struct qkv_context **context);

/**
 * Closes a context. Null is no error.
 */
int32_t qkv_close(struct qkv_context *context);

/**
 * Tells which cuDNN the context uses. The first call loads it.
 */
int32_t qkv_library(const struct qkv_context *context, struct qkv_library_info *info);

/**
 * Stores the plans of a pack (`qkvault pack`) in the vault. The whole pack is checked before the first is stored.
 *
 * `seal_file` is a file with the secret of the pack's seal; null for packs without one. `stored`, unless it is null,
 * gets the number of plans and refusals that the vault did not have.
 */
int32_t qkv_unpack(const struct qkv_context *context,
                   const char *pack,
                   const char *seal_file,
                   uint64_t *stored);

/**
 * Creates cuDNN handles for a GPU until there are this many, ahead of launches that run at one time or are captured:
 * one for each thread that launches at a time. While a stream is captured, none can be created.
 *
 * `device` is CUDA's ordinal of the GPU.
 */
int32_t qkv_reserve_handles(const struct qkv_context *context,
                            int32_t device,
                            uint32_t handles);

/**
 * Reads a description from its text form, of which only the first line below is needed; `qkvault help text` prints the
 * page with all fields and operations.
 *
 *     q: bf16 [1,32,4096,128]
 *     k: [1,8,4096,128]
 *     mask: causal
 *     score_mod: scalar $cap: float; tanh(score / $cap) * $cap
 *
 * `length` is the number of bytes, without a null character. `QKV_ERROR_PARSE` tells line and column,
 * `QKV_ERROR_REFUSED` everything in which the description contradicts itself.
 */
int32_t qkv_attention_parse(const char *text_form,
                            size_t length,
                            struct qkv_attention **attention);

/**
 * Reads a description from JSON, as `qkv_attention_json` writes it.
 */
int32_t qkv_attention_from_json(const char *json, size_t length, struct qkv_attention **attention);

/**
 * The backward of a forward: the gradients of Q, K and V, and of tensors of expressions that ask for theirs. Its
 * inputs are those of the forward, `o`, `stats` and `d_o`.
 *
 * `deterministic` and `d_sink` are 0 or 1: whether two runs must agree bit for bit, and whether the gradient of the
 * sinks is computed.
 */
int32_t qkv_attention_backward(const struct qkv_attention *forward,
                               int32_t deterministic,
                               int32_t d_sink,
                               struct qkv_attention **backward);

/**
 * The complete text form of a description, in canonical form: equal attentions have equal texts, but for names of
 * scalars and tensors. Free it with `qkv_string_free`.
 */
int32_t qkv_attention_text(const struct qkv_attention *attention,
                           char **text_form);

/**
 * A description as JSON. Free it with `qkv_string_free`.
 */
int32_t qkv_attention_json(const struct qkv_attention *attention, char **json);

/**
 * A description in one short line for people, such as `fwd bf16 b1 h32/8 q4096 kv4096 d128 causal`. Free it with
 * `qkv_string_free`.
 */
int32_t qkv_attention_summary(const struct qkv_attention *attention,
                              char **summary);

/**
 * The key of a description: 32 bytes, written to `key`, equal exactly for attentions that compute the same, in every
 * process and on every machine.
 */
int32_t qkv_attention_key(const struct qkv_attention *attention,
                          uint8_t *key);

/**
 * The softmax scale that is usual: one over the square root of the head dim.
 */
int32_t qkv_attention_default_scale(const struct qkv_attention *attention, float *scale);

/**
 * The number of operands of a description: tensors and scalars that a launch reads and writes. No plan and no GPU is
 * needed.
 */
int32_t qkv_attention_operand_count(const struct qkv_attention *attention,
                                    size_t *count);

/**
 * An operand of a description, by its place from 0. Plans list theirs in the same order, tensors and scalars apart
 * (`qkv_plan_tensor`, `qkv_plan_scalar`), and leave constants out. Plans of a cuDNN before 9.7 have offsets of 32
 * bits.
 */
int32_t qkv_attention_operand(const struct qkv_attention *attention,
                              size_t place,
                              struct qkv_operand *operand);

/**
 * Frees a description. Null is no error.
 */
int32_t qkv_attention_free(struct qkv_attention *attention);

/**
 * Asks the rules whether a GPU and a cuDNN support an attention. It takes microseconds and needs neither.
 *
 * `gpu` is a name such as `h200` or `b200`, or the text of a profile (`qkvault profile capture`). `cudnn` is a version
 * such as `9.19.0`; null: the newest that the rules cover. `json` gets an object, to be freed with `qkv_string_free`:
 *
 *     { "what", "key", "target", "cudnn",          texts
 *       "supported": whether some engine takes it,
 *       "reasons":   every reason why cuDNN does not, or the one engine that the context allows:
 *                    [ { "code", "origin", "field", "given", "needed", "fix", "since" } ],
 *       "engine":    whose plan is looked for first: { "engine", "why", "passed": [ { "engine", "why" } ] }, or null,
 *       "allowed":   quirks that apply and were allowed, likewise,
 *       "nearest":   single changes with which it is supported: [ { "change", "attention", "cudnn" } ],
 *       "memory":    { "operands", "scratch", "quadratic" } in bytes, or null }
 *
 * An attention that is not supported is an answer and no error. `text`, unless it is null, gets the same for people.
 */
int32_t qkv_explain(const struct qkv_context *context,
                    const struct qkv_attention *attention,
                    const char *gpu,
                    const char *cudnn,
                    char **json,
                    char **text);

/**
 * Compiles the plan of an attention for a GPU into the vault, if the vault lacks it. No GPU and no driver is needed;
 * it takes 0.3 to 1 second of a core. The plan is for the cuDNN of this context, which alone loads it.
 *
 * `gpu` is a name such as `h200`, or the text of a profile. `plan` may be null; else it gets a plan with facts, which
 * cannot be launched, to be freed with `qkv_plan_free`.
 */
int32_t qkv_warm(const struct qkv_context *context,
                 const struct qkv_attention *attention,
                 const char *gpu,
                 struct qkv_plan **plan);

/**
 * The plan of an attention for a GPU, if the vault has it, as `qkv_warm` gives it. It compiles nothing: a plan that
 * the vault lacks is `QKV_ERROR_MISSING`.
 */
int32_t qkv_look(const struct qkv_context *context,
                 const struct qkv_attention *attention,
                 const char *gpu,
                 struct qkv_plan **plan);

/**
 * The plan of an attention, loaded on a GPU: from the process if it has it, in a microsecond; else from the vault, in
 * about a millisecond; else built, if the context's options allow it, in 0.3 to 1 second. A plan that is missing is
 * `QKV_ERROR_MISSING`.
 *
 * `device` is CUDA's ordinal of the GPU; its primary context is used, which is that of the CUDA runtime, PyTorch and
 * JAX. The context that is current on the thread stays current. `stream` may be null; a stream that is being captured
 * is `QKV_ERROR_CAPTURED` if the plan is not loaded yet. Free the plan with `qkv_plan_free`.
 */
int32_t qkv_prepare(const struct qkv_context *context,
                    const struct qkv_attention *attention,
                    int32_t device,
                    void *stream,
                    struct qkv_plan **plan);

/**
 * Tells the facts of a plan.
 */
int32_t qkv_plan_facts(const struct qkv_plan *plan, struct qkv_plan_info *info);

/**
 * A tensor of a plan, by its place from 0 in the order of a launch.
 */
int32_t qkv_plan_tensor(const struct qkv_plan *plan, size_t place, struct qkv_operand *operand);

/**
 * A scalar of a plan, by its place from 0 in the order of a launch.
 */
int32_t qkv_plan_scalar(const struct qkv_plan *plan, size_t place, struct qkv_operand *operand);

/**
 * The place of an operand in the order of a launch, by the name of its role or its name in the description. `scalar`
 * gets 1 if the place is one among the scalars, else 0. For an unknown name the error has the most similar one.
 */
int32_t qkv_plan_place(const struct qkv_plan *plan,
                       const char *operand,
                       size_t *place,
                       int32_t *scalar);

/**
 * Loads a plan's kernels now, so that its first launch takes no longer than later ones (about a millisecond). It
 * launches nothing. Call it on a thread that captures no stream, and before captures.
 */
int32_t qkv_plan_load_kernels(const struct qkv_plan *plan);

/**
 * Frees the handle of a plan. Null is no error.
 */
int32_t qkv_plan_free(struct qkv_plan *plan);

/**
 * Queues a launch of a plan on a stream, or records it if the stream is captured. It allocates, compiles and looks up
 * nothing, and returns before the launch runs. If it fails, nothing was queued.
 *
 * Counts, types, sizes, alignment and overlap of the arguments are checked; what lies at an address is not. Until the
 * launch is finished on the stream (a captured one: until the last replay of its graph), every address must be memory
 * of the plan's GPU of at least these bytes, and no other launch may use the workspace: one workspace for each stream,
 * or threads that take turns. Lengths, offsets and page tables must lead nowhere outside the operands
 * (`qkv_batch_fill` checks them).
 *
 * Any thread may call it, several at a time; the context that is current on the thread stays current.
 */
int32_t qkv_launch(const struct qkv_plan *plan,
                   const struct qkv_launch_args *args);

/**
 * Queues a launch as `qkv_launch` does, with arguments by name. It takes some hundred nanoseconds more: programs that
 * launch often ask for places once (`qkv_plan_place`).
 */
int32_t qkv_launch_named(const struct qkv_plan *plan,
                         const struct qkv_launch_named_args *args);

/**
 * Says what is wrong in arguments by name, without a launch and without a GPU: also for a plan that is compiled ahead.
 * Addresses are not looked at.
 */
int32_t qkv_check_named(const struct qkv_plan *plan,
                        const struct qkv_launch_named_args *args);

/**
 * The descriptions of a training step: a forward that writes `stats`, and its backward. Give the forward as for
 * inference. The arguments are those of `qkv_attention_backward`; free both descriptions.
 *
 * The backward reads `o` and `stats` of the forward, and needs the same scalars, seed and offset of dropout: with
 * others its gradients are wrong, and nothing shows it.
 */
int32_t qkv_training(const struct qkv_attention *attention,
                     int32_t deterministic,
                     int32_t d_sink,
                     struct qkv_attention **forward,
                     struct qkv_attention **backward);

/**
 * Both plans of a training step on a GPU, each as `qkv_prepare` gives it. Free both.
 */
int32_t qkv_prepare_training(const struct qkv_context *context,
                             const struct qkv_attention *attention,
                             int32_t deterministic,
                             int32_t d_sink,
                             int32_t device,
                             void *stream,
                             struct qkv_plan **forward,
                             struct qkv_plan **backward);

/**
 * Joins the other ranks: rank 0 listens at the address. On GPUs the call returns when all of them are there, and they
 * exchange over NCCL (`libnccl.so.2`, that of the process if it has one), which starts blocks on the GPU; without
 * GPUs, when rank 0 is there, and they exchange over the connection in which they meet. `context` is where ranks find
 * their plans.
 *
 * What goes wrong between ranks is `QKV_ERROR_REFUSED` with a code that begins with `ranks.` or `nccl.`, and the rank
 * that is the cause.
 */
int32_t qkv_communicator_join(const struct qkv_context *context,
                              const struct qkv_world *world,
                              struct qkv_communicator **communicator);

/**
 * Whether all ranks are well, without waiting for them: `QKV_OK`, or what is known of the rank that is lost.
 */
int32_t qkv_communicator_check(const struct qkv_communicator *communicator);

/**
 * Frees a communicator. It ends with the last of its ranks; the others hear of it. Null is no error.
 */
int32_t qkv_communicator_free(struct qkv_communicator *communicator);

/**
 * Whether so many ranks can share an attention: `QKV_OK`, or `QKV_ERROR_REFUSED` with codes that begin with `shard.`.
 * It needs no ranks.
 */
int32_t qkv_sharding_check(const struct qkv_attention *attention,
                           const struct qkv_sharding *sharding,
                           uint32_t ranks);

/**
 * Makes the schedule of an attention, compares it with those of the other ranks, and prepares this rank: on a GPU it
 * loads plans as `qkv_prepare` does and allocates what is gathered. All ranks of the communicator call it alike.
 *
 * The description is that of all ranks together; an attention that cannot be shared so is `QKV_ERROR_REFUSED` with
 * codes that begin with `shard.`, on every rank and without a word to the others.
 */
int32_t qkv_rank_prepare(const struct qkv_communicator *communicator,
                         const struct qkv_attention *attention,
                         const struct qkv_sharding *sharding,
                         struct qkv_rank **rank);

/**
 * The number of a rank's operands: tensors that its runs read and write.
 */
int32_t qkv_rank_operand_count(const struct qkv_rank *rank, size_t *count);

/**
 * An operand of a rank, by its place from 0: extents and strides are those of the rank's memory.
 */
int32_t qkv_rank_operand(const struct qkv_rank *rank, size_t place, struct qkv_operand *operand);

/**
 * Which parts of the whole operand lie in a rank's memory of it. `count` has the room of `parts` and gets their
 * number; with null `parts` it gets the number alone.
 */
int32_t qkv_rank_parts(const struct qkv_rank *rank,
                       size_t place,
                       struct qkv_part *parts,
                       size_t *count);

/**
 * Sets the lengths of the whole sequences, queries and keys of each, for the runs that follow. It waits for the last
 * run. An attention without lengths of a launch needs none.
 */
int32_t qkv_rank_set_lengths(struct qkv_rank *rank,
                             const int64_t *queries,
                             const int64_t *keys,
                             size_t count);

/**
 * Queues a run: on a GPU it returns before the run ends, and work that is queued on the stream later follows it;
 * without a GPU it returns when all outputs are there. All ranks of the communicator run alike, in the same order.
 *
 * Every address is memory of the rank's GPU (without one, of the host) of at least the operand's bytes, until the run
 * has ended. While the stream is captured, a run becomes a part of the graph, which must end before the rank.
 */
int32_t qkv_rank_run(struct qkv_rank *rank,
                     const struct qkv_rank_args *args);

/**
 * Waits until the rank's last run has ended, and for a rank that is lost no longer than the deadline.
 */
int32_t qkv_rank_wait(struct qkv_rank *rank,
                      uint32_t deadline_ms);

/**
 * What the ranks do, in words: the sharding, and the bytes, launches and memory of each. Free it with
 * `qkv_string_free`.
 */
int32_t qkv_rank_explain(const struct qkv_rank *rank,
                         char **text_form);

/**
 * Frees a rank. Null is no error.
 */
int32_t qkv_rank_free(struct qkv_rank *rank);

/**
 * The serving set of a layer, from JSON: see `ServeLayer` and `ServePolicy` of the Rust package `qkvault-serving` for
 * the fields. A null `policy` is the default one: up to 256 sequences of up to 32,768 keys and 8,192 new tokens.
 */
int32_t qkv_serving_new(const char *layer,
                        size_t layer_length,
                        const char *policy,
                        size_t policy_length,
                        struct qkv_serving **serving);

/**
 * The number of attentions of a serving set.
 */
int32_t qkv_serving_count(const struct qkv_serving *serving, size_t *count);

/**
 * The sizes of an attention of a serving set, by its place from 0.
 */
int32_t qkv_serving_bucket(const struct qkv_serving *serving,
                           size_t place,
                           struct qkv_bucket *bucket);

/**
 * The description of an attention of a serving set, by its place from 0. Free it with `qkv_attention_free`.
 */
int32_t qkv_serving_attention(const struct qkv_serving *serving,
                              size_t place,
                              struct qkv_attention **attention);

/**
 * The place of the smallest attention that holds a step: so many sequences, new tokens of the sequence with the most,
 * and keys of the sequence with the most. With `mixed` 1, of those with varlen queries alone, for a decode whose own
 * attention is refused. A step outside the ranges is `QKV_ERROR_ARGUMENT`. It allocates nothing.
 */
int32_t qkv_serving_pick(const struct qkv_serving *serving,
                         int64_t sequences,
                         int64_t queries,
                         int64_t keys,
                         int32_t mixed,
                         size_t *place);

/**
 * Frees a serving set. Null is no error.
 */
int32_t qkv_serving_free(struct qkv_serving *serving);

/**
 * The metadata of a plan's steps, of which every sequence is idle. The plan may be compiled ahead, and may be freed.
 *
 * Allocate `qkv_batch_data`'s bytes on the GPU, at a multiple of 256, bind each operand of the block at its offset,
 * and copy what changed there before each launch, on the launch's stream.
 */
int32_t qkv_batch_new(const struct qkv_plan *plan,
                      struct qkv_batch **batch);

/**
 * The number of operands in the block.
 */
int32_t qkv_batch_operand_count(const struct qkv_batch *batch, size_t *count);

/**
 * An operand of the block, by its place from 0. Operands with equal offsets in every step share a part.
 */
int32_t qkv_batch_operand_at(const struct qkv_batch *batch,
                             size_t place,
                             struct qkv_batch_operand *operand);

/**
 * Fills the block with a step, after a check of it: lengths within the plan's, offsets within the buffers, enough
 * pages. If something is wrong, everything is told and the block stays as it was. It allocates little and looks up
 * nothing.
 */
int32_t qkv_batch_fill(struct qkv_batch *batch,
                       const struct qkv_step *step);

/**
 * The block: its first byte, valid until the batch is freed, and its size.
 */
int32_t qkv_batch_data(const struct qkv_batch *batch, const uint8_t **data, size_t *bytes);

/**
 * The parts of the block that the last `qkv_batch_fill` changed, in order. `count` has the room of `ranges` and gets
 * the number of parts; with a null `ranges` it gets the number alone.
 */
int32_t qkv_batch_changed(const struct qkv_batch *batch,
                          struct qkv_range *ranges,
                          size_t *count);

/**
 * Frees a batch. Null is no error.
 */
int32_t qkv_batch_free(struct qkv_batch *batch);

/**
 * An oracle for an attention, without inputs. The description may be freed.
 */
int32_t qkv_oracle_new(const struct qkv_attention *attention, struct qkv_oracle **oracle);

/**
 * Sets every input that the attention needs to random numbers, lengths, offsets and page tables that fit each other;
 * the same for the same seed. For a backward, `o` and `stats` are computed.
 */
int32_t qkv_oracle_random(struct qkv_oracle *oracle,
                          uint64_t seed);

/**
 * Sets an input, by the name of its role or its name in the description. `data` has `bytes` bytes in the memory order
 * of the operand, as a GPU would hold them (`dtype` is the operand's), or of `QKV_F32` or `QKV_F64`, which are rounded
 * once to the operand's type. Scalars are arrays of one element. The data is copied.
 */
int32_t qkv_oracle_set(struct qkv_oracle *oracle,
                       const char *operand_name,
                       int32_t dtype,
                       const void *data,
                       size_t bytes);

/**
 * Computes the `o` and `stats` that a backward reads, from its other inputs.
 */
int32_t qkv_oracle_add_forward(struct qkv_oracle *oracle);

/**
 * Computes the outputs. It takes time that grows with queries times keys; several cores work on it.
 */
int32_t qkv_oracle_run(struct qkv_oracle *oracle);

/**
 * Computes the gradients of a backward from the `o` that was set, with its rounding, instead of the exact one. If one
 * key has nearly all of a row's probability, gradients depend on that rounding, and a launch is close to these alone.
 */
int32_t qkv_oracle_run_of_o(struct qkv_oracle *oracle);

/**
 * Copies an input into `data`, with the operand's own element type. `bytes` has the room of `data` and gets the size
 * of the input; with a null `data` it gets the size alone.
 */
int32_t qkv_oracle_input(const struct qkv_oracle *oracle,
                         const char *operand_name,
                         void *data,
                         size_t *bytes);

/**
 * Copies an output into `data`, in the memory order of the operand. `dtype` is `QKV_F64` for the exact numbers, with
 * NaN where the description leaves the output undefined and in gaps; `QKV_F32`; or 0 for the operand's own element
 * type as a GPU would hold it, rounded once, with all bits set where it is undefined. `bytes` is as for
 * `qkv_oracle_input`.
 */
int32_t qkv_oracle_output(const struct qkv_oracle *oracle,
                          const char *operand_name,
                          int32_t dtype,
                          void *data,
                          size_t *bytes);

/**
 * Compares an array with an output: the bytes that a launch wrote, in the operand's own element type. Set all bits of
 * it before the launch, so that elements that were not written are found.
 */
int32_t qkv_oracle_compare(const struct qkv_oracle *oracle,
                           const char *operand_name,
                           const void *data,
                           size_t bytes,
                           struct qkv_comparison *comparison);

/**
 * Frees an oracle. Null is no error.
 */
int32_t qkv_oracle_free(struct qkv_oracle *oracle);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

/* The message of the thread's last error; an empty string if there was none. */
static inline const char *qkv_last_message(void) {
  qkv_error error = QKV_ZERO;
  error.struct_size = sizeof error;
  return qkv_last_error(&error) == QKV_OK ? error.message : "";
}

#endif /* QKVAULT_H */
