/* Compiles plans with a real cuDNN and without a GPU, and reads their facts. Arguments: the folder of the cuDNN, the
 * folder of a vault, the version of the cuDNN. */

#include "check.h"

#define CAPPED                                                                                      \
  "q: bf16 [2,4,128,64]\nk: [2,2,128,64]\nmask: causal\n"                                           \
  "score_mod: scalar $cap: float; tanh(score / $cap) * $cap\n"
#define BAND "q: f16 [1,4,128,64]\nmask: band left 32 right 0\n"

static qkv_context *opened(const char *cudnn, const char *vault) {
  qkv_options options = QKV_ZERO;
  options.struct_size = sizeof options;
  options.cudnn = cudnn;
  options.vault = vault;
  qkv_context *context = NULL;
  OK(qkv_open(&options, &context));
  return context;
}

static qkv_plan_info facts(const qkv_plan *plan) {
  qkv_plan_info info = QKV_ZERO;
  info.struct_size = sizeof info;
  OK(qkv_plan_facts(plan, &info));
  return info;
}

/* What a launch is given, by name: everything that is right, then one mistake after the other. */
static void names(const qkv_plan *plan) {
  qkv_named_buffer tensors[] = {
      {"q", {1u << 20, 1u << 20}}, {"k", {2u << 20, 1u << 20}}, {"v", {3u << 20, 1u << 20}},
      {"o", {4u << 20, 1u << 20}}, {"stats", {5u << 20, 1u << 20}}};
  qkv_named_number scalars[] = {{"cap", {QKV_F32, 0, {30.0f}}}, {"scale", {QKV_F32, 0, {0.125f}}}};
  qkv_launch_named_args args = QKV_ZERO;
  args.struct_size = sizeof args;
  args.tensors = tensors;
  args.tensor_count = 5;
  args.scalars = scalars;
  args.scalar_count = 2;
  OK(qkv_check_named(plan, &args));
  args.scalar_count = 1;
  OK(qkv_check_named(plan, &args));
  tensors[3].buffer.bytes = 2;
  FAILS(qkv_check_named(plan, &args), QKV_ERROR_ARGUMENT, "O has 2 bytes");
  tensors[3].buffer.bytes = 1u << 20;
  args.scalar_count = 0;
  FAILS(qkv_check_named(plan, &args), QKV_ERROR_ARGUMENT, "scalar 0 is missing");
  args.scalar_count = 1;
  scalars[0].name = "capp";
  FAILS(qkv_check_named(plan, &args), QKV_ERROR_ARGUMENT, "'capp': did you mean 'cap'?");
  scalars[0].name = "cap";
  scalars[0].number.dtype = QKV_BF16;
  FAILS(qkv_check_named(plan, &args), QKV_ERROR_ARGUMENT, "QKV_F32");
  scalars[0].number.dtype = QKV_F32;
  tensors[0].name = "Q";
  FAILS(qkv_check_named(plan, &args), QKV_ERROR_ARGUMENT, "Q is missing");
  tensors[0].name = "k";
  FAILS(qkv_check_named(plan, &args), QKV_ERROR_ARGUMENT, "K was bound 2 times");
  tensors[0].name = NULL;
  FAILS(qkv_check_named(plan, &args), QKV_ERROR_ARGUMENT, "a tensor's name is null");
  tensors[0].name = "q";
  args.tensors = NULL;
  FAILS(qkv_check_named(plan, &args), QKV_ERROR_ARGUMENT, "tensors are 5");
  args.tensors = tensors;
  qkv_pair pair = {1, 9999};
  args.interleaved = &pair;
  args.interleaved_count = 1;
  FAILS(qkv_check_named(plan, &args), QKV_ERROR_ARGUMENT, "there is no role 9999");
  args.interleaved_count = 0;
  args.struct_size = 16;
  FAILS(qkv_check_named(plan, &args), QKV_ERROR_ARGUMENT, "struct_size of qkv_launch_named_args is 16");
  args.struct_size = sizeof args;
  FAILS(qkv_launch_named(plan, &args), QKV_ERROR_DEVICE, "compiled ahead");
  size_t place = 99;
  int32_t scalar = 9;
  OK(qkv_plan_place(plan, "cap", &place, &scalar));
  CHECK(place == 1 && scalar == 1);
  OK(qkv_plan_place(plan, "o", &place, &scalar));
  CHECK(place == 3 && scalar == 0);
  FAILS(qkv_plan_place(plan, "sclae", &place, &scalar), QKV_ERROR_ARGUMENT, "did you mean 'scale'?");
}

static void decode(const qkv_context *context) {
  const char *layer = "{\"heads\":8,\"kv_heads\":2,\"d_qk\":64,\"d_v\":64,\"dtype\":\"bf16\",\"pages\":64,"
                      "\"page_size\":16,\"layout\":\"nhd\",\"values_in_keys\":false,\"window\":null,"
                      "\"score_mod\":null,\"sink\":false,\"stats\":false}";
  const char *policy = "{\"batch\":4,\"queries\":64,\"keys\":256,\"tokens\":64,\"least_keys\":256,"
                       "\"growth\":{\"few\":null,\"many\":null,\"mixed\":null,\"queries\":null,\"keys\":null}}";
  qkv_serving *serving = NULL;
  qkv_attention *a = NULL;
  qkv_plan *plan = NULL;
  qkv_batch *batch = NULL;
  size_t place = 0, count = 0, bytes = 0, changed = 0;
  const uint8_t *data = NULL;
  OK(qkv_serving_new(layer, strlen(layer), policy, strlen(policy), &serving));
  OK(qkv_serving_pick(serving, 2, 1, 100, 0, &place));
  OK(qkv_serving_attention(serving, place, &a));
  OK(qkv_warm(context, a, "a100", &plan));
  OK(qkv_batch_new(plan, &batch));
  OK(qkv_batch_operand_count(batch, &count));
  OK(qkv_batch_data(batch, &data, &bytes));
  int32_t keys[] = {100, 17}, pages[16];
  for (int i = 0; i < 16; i++) {
    pages[i] = i;
  }
  qkv_step step = QKV_ZERO;
  step.struct_size = sizeof step;
  step.sequences = 2;
  step.key_lengths = keys;
  step.pages = pages;
  step.page_width = 8;
  OK(qkv_batch_fill(batch, &step));
  for (size_t i = 0; i < count; i++) {
    qkv_batch_operand o = QKV_ZERO;
    o.struct_size = sizeof o;
    OK(qkv_batch_operand_at(batch, i, &o));
    CHECK(o.offset % 256 == 0 && o.offset + o.bytes <= bytes);
    if (o.role_id == 14) {
      const int32_t *lengths = (const int32_t *)(const void *)(data + o.offset);
      CHECK(o.bytes == 16 && lengths[0] == 100 && lengths[1] == 17 && lengths[2] == 0);
    }
  }
  OK(qkv_batch_changed(batch, NULL, &changed));
  CHECK(changed > 0);
  OK(qkv_batch_fill(batch, &step));
  OK(qkv_batch_changed(batch, NULL, &changed));
  CHECK(changed == 0);
  pages[0] = 64;
  FAILS(qkv_batch_fill(batch, &step), QKV_ERROR_ARGUMENT, "64");
  step.sequences = (size_t)1 << 31;
  FAILS(qkv_batch_fill(batch, &step), QKV_ERROR_ARGUMENT, "2147483648 sequences");
  step.sequences = SIZE_MAX;
  FAILS(qkv_batch_fill(batch, &step), QKV_ERROR_ARGUMENT, "at most 4");
  step.sequences = 2;
  keys[0] = 100000;
  FAILS(qkv_batch_fill(batch, &step), QKV_ERROR_ARGUMENT, "100000");
  step.page_width = 0;
  FAILS(qkv_batch_fill(batch, &step), QKV_ERROR_ARGUMENT, "page_width is 0");
  step.key_lengths = NULL;
  FAILS(qkv_batch_fill(batch, &step), QKV_ERROR_ARGUMENT, "key_lengths are 2");
  OK(qkv_batch_free(batch));
  OK(qkv_plan_free(plan));
  OK(qkv_attention_free(a));
  OK(qkv_serving_free(serving));
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  qkv_context *context = opened(argv[1], argv[2]);
  qkv_library_info library = QKV_ZERO;
  library.struct_size = sizeof library;
  OK(qkv_library(context, &library));
  CHECK(strcmp(library.version, argv[3]) == 0 && strstr(library.path, "libcudnn.so.9"));

  qkv_attention *attention = parse(CAPPED), *forward = NULL, *backward = NULL, *band = parse(BAND);
  OK(qkv_training(attention, 0, 0, &forward, &backward));
  qkv_plan *plan = NULL, *again = NULL, *second = NULL;
  FAILS(qkv_look(context, forward, "a100", &plan), QKV_ERROR_MISSING, "qkvault warm");
  OK(qkv_warm(context, forward, "a100", &plan));
  OK(qkv_warm(context, backward, "a100", &second));
  OK(qkv_warm(context, band, "b200", NULL));
  qkv_plan_info first = facts(plan), other = facts(second);
  CHECK(first.source == QKV_SOURCE_BUILT && first.device == -1 && first.sm == 80 && first.deterministic == 1);
  CHECK(first.tensor_count == 5 && first.scalar_count == 2 && strcmp(first.cudnn, argv[3]) == 0);
  CHECK(first.plan_bytes > 0 && first.engine[0] != 0 && strstr(first.what, "fwd"));
  CHECK(other.deterministic == 0 && other.tensor_count == 9 && other.workspace > 0);
  CHECK(memcmp(first.key, other.key, 32) != 0);
  uint8_t key[32];
  OK(qkv_attention_key(forward, key));
  CHECK(memcmp(first.attention_key, key, 32) == 0);
  names(plan);
  FAILS(qkv_plan_load_kernels(plan), QKV_ERROR_DEVICE, "compiled ahead");
  qkv_operand operand = QKV_ZERO;
  operand.struct_size = sizeof operand;
  OK(qkv_plan_scalar(plan, 1, &operand));
  CHECK(strcmp(operand.name, "cap") == 0);
  FAILS(qkv_plan_tensor(plan, 5, &operand), QKV_ERROR_ARGUMENT, "place 5 of 5");

  /* What cuDNN refuses is told with its reasons and the rule that knows how to fix it, and not compiled again. */
  qkv_attention *odd = parse("q: f16 [1,8,512,100]");
  FAILS(qkv_warm(context, odd, "a100", NULL), QKV_ERROR_REFUSED, "multiple of 8");
  CHECK(strstr(qkv_last_message(), "[rule / head-dim.multiple-of-8]") && strstr(qkv_last_message(), "fix: "));
  OK(qkv_attention_free(odd));
  decode(context);
  OK(qkv_close(context));

  /* Another context finds the plan on disk. */
  context = opened(argv[1], argv[2]);
  OK(qkv_look(context, forward, "a100", &again));
  CHECK(facts(again).source == QKV_SOURCE_DISK && memcmp(facts(again).key, first.key, 32) == 0);
  OK(qkv_close(context));
  OK(qkv_plan_free(plan));
  OK(qkv_plan_free(again));
  OK(qkv_plan_free(second));
  OK(qkv_attention_free(attention));
  OK(qkv_attention_free(forward));
  OK(qkv_attention_free(backward));
  OK(qkv_attention_free(band));
  puts("all checks passed");
  return 0;
}
