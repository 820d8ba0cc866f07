"""The C interface of libqkvault.so. Written by `python3 adapters/python/abi.py`; edits are lost."""

# ruff: noqa: F403, F405
from ctypes import *

OK = 0
ERROR_ARGUMENT = 1
ERROR_PARSE = 2
ERROR_REFUSED = 3
ERROR_MISSING = 4
ERROR_DEVICE = 5
ERROR_LIBRARY = 6
ERROR_VAULT = 7
ERROR_BUILD = 8
ERROR_LOAD = 9
ERROR_MEMORY = 10
ERROR_LAUNCH = 11
ERROR_CAPTURED = 12
ERROR_INTERNAL = 13
ABI_MAJOR = 1
ABI_MINOR = 2
ON_MISS_FAIL = 0
ON_MISS_BUILD = 1
VAULT_DEFAULT = 0
VAULT_READ_WRITE = 1
VAULT_READ_ONLY = 2
VAULT_OFF = 3
F16 = 1
BF16 = 2
F32 = 3
E4M3 = 4
E5M2 = 5
E8M0 = 6
I32 = 7
I64 = 8
U8 = 9
BOOL = 10
F64 = 64
SOURCE_LOADED = 0
SOURCE_MEMORY = 1
SOURCE_DISK = 2
SOURCE_LAYER = 3
SOURCE_REMOTE = 4
SOURCE_BUILT = 5
SOURCE_WAITED = 6
NO_GPU = -1
SCHEME_GATHER = 0
SCHEME_HEADS = 1
SCHEME_RING = 2
SCHEME_DECODE = 3
ORDER_ZIGZAG = 0
ORDER_CONTIGUOUS = 1


class qkv_error(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int32),
        ("reason_count", c_uint32),
        ("message", c_char_p),
        ("kind", c_char_p),
        ("codes", c_char_p),
        ("reasons", c_char_p),
    ]


class qkv_version_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("abi_major", c_uint32),
        ("abi_minor", c_uint32),
        ("version", c_char_p),
    ]


class qkv_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("vault", c_char_p),
        ("cudnn", c_char_p),
        ("on_miss", c_int32),
        ("vault_mode", c_int32),
        ("workspace_limit", c_uint64),
        ("handles", c_uint32),
        ("reserved", c_uint32),
        ("remote", c_char_p),
        ("allow", c_char_p),
        ("engine", c_char_p),
    ]


class qkv_library_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("version", c_char_p),
        ("path", c_char_p),
    ]


class qkv_operand(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("role", c_char_p),
        ("name", c_char_p),
        ("role_id", c_int32),
        ("dtype", c_int32),
        ("dims", c_int64 * 4),
        ("strides", c_int64 * 4),
        ("bytes", c_uint64),
        ("alignment", c_uint32),
        ("output", c_int32),
        ("scalar", c_int32),
        ("constant", c_int32),
        ("followed", c_int32),
        ("reserved", c_int32),
    ]


class qkv_plan_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("key", c_uint8 * 32),
        ("attention_key", c_uint8 * 32),
        ("workspace", c_uint64),
        ("workspace_alignment", c_uint32),
        ("tensor_count", c_uint32),
        ("scalar_count", c_uint32),
        ("device", c_int32),
        ("deterministic", c_int32),
        ("sm", c_int32),
        ("source", c_int32),
        ("cudnn_number", c_int32),
        ("cudnn", c_char_p),
        ("engine", c_char_p),
        ("what", c_char_p),
        ("plan_bytes", c_uint64),
        ("compile_ms", c_uint32),
        ("reserved", c_uint32),
        ("why", c_char_p),
        ("prepare_us", c_double),
        ("vault_us", c_double),
        ("load_us", c_double),
        ("checks_us", c_double),
        ("code_us", c_double),
        ("kernels_us", c_double),
        ("attributes_us", c_double),
    ]


class qkv_buffer(Structure):
    _fields_ = [
        ("address", c_uint64),
        ("bytes", c_uint64),
    ]


class qkv_value(Union):
    _fields_ = [
        ("f32", c_float),
        ("i32", c_int32),
        ("i64", c_int64),
    ]


class qkv_number(Structure):
    _fields_ = [
        ("dtype", c_int32),
        ("reserved", c_int32),
        ("value", qkv_value),
    ]


class qkv_pair(Structure):
    _fields_ = [
        ("a", c_int32),
        ("b", c_int32),
    ]


class qkv_launch_args(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tensors", POINTER(qkv_buffer)),
        ("tensor_count", c_size_t),
        ("scalars", POINTER(qkv_number)),
        ("scalar_count", c_size_t),
        ("workspace", qkv_buffer),
        ("stream", c_void_p),
        ("interleaved", POINTER(qkv_pair)),
        ("interleaved_count", c_size_t),
    ]


class qkv_named_buffer(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("buffer", qkv_buffer),
    ]


class qkv_named_number(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("number", qkv_number),
    ]


class qkv_launch_named_args(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tensors", POINTER(qkv_named_buffer)),
        ("tensor_count", c_size_t),
        ("scalars", POINTER(qkv_named_number)),
        ("scalar_count", c_size_t),
        ("workspace", qkv_buffer),
        ("stream", c_void_p),
        ("interleaved", POINTER(qkv_pair)),
        ("interleaved_count", c_size_t),
    ]


class qkv_world(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("device", c_int32),
        ("port", c_uint32),
        ("address", c_char_p),
        ("secret", c_char_p),
        ("deadline_ms", c_uint32),
        ("threads", c_uint32),
    ]


class qkv_sharding(Structure):
    _fields_ = [
        ("scheme", c_int32),
        ("order", c_int32),
        ("number", c_uint32),
        ("reserved", c_uint32),
    ]


class qkv_part(Structure):
    _fields_ = [
        ("start", c_int64 * 4),
        ("at", c_int64 * 4),
        ("dims", c_int64 * 4),
    ]


class qkv_rank_args(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tensors", POINTER(qkv_named_buffer)),
        ("tensor_count", c_size_t),
        ("scalars", POINTER(qkv_named_number)),
        ("scalar_count", c_size_t),
        ("stream", c_void_p),
    ]


class qkv_bucket(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_int64),
        ("queries", c_int64),
        ("keys", c_int64),
        ("tokens", c_int64),
        ("decode", c_int32),
        ("reserved", c_int32),
    ]


class qkv_batch_operand(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("role_id", c_int32),
        ("reserved", c_int32),
        ("offset", c_uint64),
        ("bytes", c_uint64),
    ]


class qkv_step(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("sequences", c_size_t),
        ("query_lengths", POINTER(c_int32)),
        ("key_lengths", POINTER(c_int32)),
        ("pages", POINTER(c_int32)),
        ("page_width", c_size_t),
        ("value_pages", POINTER(c_int32)),
        ("reserved", c_int64),
    ]


class qkv_range(Structure):
    _fields_ = [
        ("offset", c_uint64),
        ("bytes", c_uint64),
    ]


class qkv_comparison(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("good", c_int32),
        ("reserved", c_int32),
        ("elements", c_uint64),
        ("relative", c_double),
        ("largest", c_double),
        ("non_finite", c_uint64),
        ("unwritten", c_uint64),
        ("touched", c_uint64),
    ]


FUNCTIONS = {
    "qkv_last_error": [POINTER(qkv_error)],
    "qkv_debug_panic": [],
    "qkv_string_free": [c_void_p],
    "qkv_version": [POINTER(qkv_version_info)],
    "qkv_open": [POINTER(qkv_options), POINTER(c_void_p)],
    "qkv_close": [c_void_p],
    "qkv_library": [c_void_p, POINTER(qkv_library_info)],
    "qkv_unpack": [c_void_p, c_char_p, c_char_p, POINTER(c_uint64)],
    "qkv_reserve_handles": [c_void_p, c_int32, c_uint32],
    "qkv_attention_parse": [c_char_p, c_size_t, POINTER(c_void_p)],
    "qkv_attention_from_json": [c_char_p, c_size_t, POINTER(c_void_p)],
    "qkv_attention_backward": [c_void_p, c_int32, c_int32, POINTER(c_void_p)],
    "qkv_attention_text": [c_void_p, POINTER(c_void_p)],
    "qkv_attention_json": [c_void_p, POINTER(c_void_p)],
    "qkv_attention_summary": [c_void_p, POINTER(c_void_p)],
    "qkv_attention_key": [c_void_p, POINTER(c_uint8)],
    "qkv_attention_default_scale": [c_void_p, POINTER(c_float)],
    "qkv_attention_operand_count": [c_void_p, POINTER(c_size_t)],
    "qkv_attention_operand": [c_void_p, c_size_t, POINTER(qkv_operand)],
    "qkv_attention_free": [c_void_p],
    "qkv_explain": [c_void_p, c_void_p, c_char_p, c_char_p, POINTER(c_void_p), POINTER(c_void_p)],
    "qkv_warm": [c_void_p, c_void_p, c_char_p, POINTER(c_void_p)],
    "qkv_look": [c_void_p, c_void_p, c_char_p, POINTER(c_void_p)],
    "qkv_prepare": [c_void_p, c_void_p, c_int32, c_void_p, POINTER(c_void_p)],
    "qkv_plan_facts": [c_void_p, POINTER(qkv_plan_info)],
    "qkv_plan_tensor": [c_void_p, c_size_t, POINTER(qkv_operand)],
    "qkv_plan_scalar": [c_void_p, c_size_t, POINTER(qkv_operand)],
    "qkv_plan_place": [c_void_p, c_char_p, POINTER(c_size_t), POINTER(c_int32)],
    "qkv_plan_load_kernels": [c_void_p],
    "qkv_plan_free": [c_void_p],
    "qkv_launch": [c_void_p, POINTER(qkv_launch_args)],
    "qkv_launch_named": [c_void_p, POINTER(qkv_launch_named_args)],
    "qkv_check_named": [c_void_p, POINTER(qkv_launch_named_args)],
    "qkv_training": [c_void_p, c_int32, c_int32, POINTER(c_void_p), POINTER(c_void_p)],
    "qkv_prepare_training": [c_void_p, c_void_p, c_int32, c_int32, c_int32, c_void_p, POINTER(c_void_p), POINTER(c_void_p)],
    "qkv_communicator_join": [c_void_p, POINTER(qkv_world), POINTER(c_void_p)],
    "qkv_communicator_check": [c_void_p],
    "qkv_communicator_free": [c_void_p],
    "qkv_sharding_check": [c_void_p, POINTER(qkv_sharding), c_uint32],
    "qkv_rank_prepare": [c_void_p, c_void_p, POINTER(qkv_sharding), POINTER(c_void_p)],
    "qkv_rank_operand_count": [c_void_p, POINTER(c_size_t)],
    "qkv_rank_operand": [c_void_p, c_size_t, POINTER(qkv_operand)],
    "qkv_rank_parts": [c_void_p, c_size_t, POINTER(qkv_part), POINTER(c_size_t)],
    "qkv_rank_set_lengths": [c_void_p, POINTER(c_int64), POINTER(c_int64), c_size_t],
    "qkv_rank_run": [c_void_p, POINTER(qkv_rank_args)],
    "qkv_rank_wait": [c_void_p, c_uint32],
    "qkv_rank_explain": [c_void_p, POINTER(c_void_p)],
    "qkv_rank_free": [c_void_p],
    "qkv_serving_new": [c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_void_p)],
    "qkv_serving_count": [c_void_p, POINTER(c_size_t)],
    "qkv_serving_bucket": [c_void_p, c_size_t, POINTER(qkv_bucket)],
    "qkv_serving_attention": [c_void_p, c_size_t, POINTER(c_void_p)],
    "qkv_serving_pick": [c_void_p, c_int64, c_int64, c_int64, c_int32, POINTER(c_size_t)],
    "qkv_serving_free": [c_void_p],
    "qkv_batch_new": [c_void_p, POINTER(c_void_p)],
    "qkv_batch_operand_count": [c_void_p, POINTER(c_size_t)],
    "qkv_batch_operand_at": [c_void_p, c_size_t, POINTER(qkv_batch_operand)],
    "qkv_batch_fill": [c_void_p, POINTER(qkv_step)],
    "qkv_batch_data": [c_void_p, POINTER(POINTER(c_uint8)), POINTER(c_size_t)],
    "qkv_batch_changed": [c_void_p, POINTER(qkv_range), POINTER(c_size_t)],
    "qkv_batch_free": [c_void_p],
    "qkv_oracle_new": [c_void_p, POINTER(c_void_p)],
    "qkv_oracle_random": [c_void_p, c_uint64],
    "qkv_oracle_set": [c_void_p, c_char_p, c_int32, c_void_p, c_size_t],
    "qkv_oracle_add_forward": [c_void_p],
    "qkv_oracle_run": [c_void_p],
    "qkv_oracle_run_of_o": [c_void_p],
    "qkv_oracle_input": [c_void_p, c_char_p, c_void_p, POINTER(c_size_t)],
    "qkv_oracle_output": [c_void_p, c_char_p, c_int32, c_void_p, POINTER(c_size_t)],
    "qkv_oracle_compare": [c_void_p, c_char_p, c_void_p, c_size_t, POINTER(qkv_comparison)],
    "qkv_oracle_free": [c_void_p],
}
