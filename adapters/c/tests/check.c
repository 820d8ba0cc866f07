/* The C interface on a machine without a GPU, a driver and a cuDNN: descriptions, reasons, the oracle, serving sets,
 * and everything that callers do wrong. Arguments: the folder of a vault. */

#include "check.h"

#include <math.h>
#include <stddef.h>

#define PLAIN "q: bf16 [1,4,64,64]\nk: [1,2,64,64]\nmask: causal\noutputs: stats\n"
#define CAPPED "q: bf16 [1,4,64,64]\nscore_mod: scalar $cap: float; tanh(score / $cap) * $cap\n"

static void versions(void) {
  qkv_version_info info = QKV_ZERO;
  info.struct_size = sizeof info;
  OK(qkv_version(&info));
  CHECK(info.abi_major == QKV_ABI_MAJOR && info.abi_minor == QKV_ABI_MINOR);
  CHECK(strchr(info.version, '.') != NULL);
}

static void descriptions(void) {
  qkv_attention *a = parse(PLAIN), *b = NULL, *c = NULL;
  char *text = NULL, *json = NULL, *line = NULL;
  OK(qkv_attention_text(a, &text));
  OK(qkv_attention_json(a, &json));
  OK(qkv_attention_summary(a, &line));
  CHECK(strstr(text, "mask: causal") && strstr(json, "\"qkvault\":1") && strstr(line, "causal"));
  OK(qkv_attention_parse(text, strlen(text), &b));
  OK(qkv_attention_from_json(json, strlen(json), &c));
  uint8_t keys[3][32];
  OK(qkv_attention_key(a, keys[0]));
  OK(qkv_attention_key(b, keys[1]));
  OK(qkv_attention_key(c, keys[2]));
  CHECK(memcmp(keys[0], keys[1], 32) == 0 && memcmp(keys[0], keys[2], 32) == 0);
  float scale = 0;
  OK(qkv_attention_default_scale(a, &scale));
  CHECK(scale == 0.125f);
  OK(qkv_string_free(text));
  OK(qkv_string_free(json));
  OK(qkv_string_free(line));
  OK(qkv_string_free(NULL));
  OK(qkv_attention_free(b));
  OK(qkv_attention_free(c));
  OK(qkv_attention_free(NULL));
  OK(qkv_attention_free(a));
}

static void operands(void) {
  qkv_attention *a = parse(CAPPED);
  size_t count = 0, scalars = 0, outputs = 0;
  OK(qkv_attention_operand_count(a, &count));
  for (size_t i = 0; i < count; i++) {
    qkv_operand o = QKV_ZERO;
    o.struct_size = sizeof o;
    OK(qkv_attention_operand(a, i, &o));
    scalars += (size_t)o.scalar;
    outputs += (size_t)o.output;
    if (strcmp(o.role, "q") == 0) {
      CHECK(o.name == NULL && o.dtype == QKV_BF16 && o.dims[1] == 4 && o.strides[3] == 1);
      CHECK(o.bytes == 4 * 64 * 64 * 2 && o.alignment == 16 && o.role_id == 1);
    }
    if (strcmp(o.role, "scalar.0") == 0) {
      CHECK(strcmp(o.name, "cap") == 0 && o.dtype == QKV_F32 && o.scalar == 1 && o.output == 0);
    }
  }
  CHECK(count == 6 && scalars == 2 && outputs == 1);
  qkv_operand o = QKV_ZERO;
  o.struct_size = sizeof o;
  FAILS(qkv_attention_operand(a, count, &o), QKV_ERROR_ARGUMENT, "place 6 of 6");
  OK(qkv_attention_free(a));
}

/* A caller of an older version knows fewer fields, one of a newer version more. */
static void sizes(void) {
  qkv_attention *a = parse(PLAIN);
  qkv_operand o;
  memset(&o, 77, sizeof o);
  o.struct_size = offsetof(qkv_operand, followed);
  OK(qkv_attention_operand(a, 0, &o));
  CHECK(strcmp(o.role, "q") == 0 && o.scalar == 0);
  CHECK(o.followed == 0x4d4d4d4d && o.struct_size == offsetof(qkv_operand, followed));
  struct {
    qkv_operand known;
    uint8_t later[32];
  } newer;
  memset(&newer, 77, sizeof newer);
  newer.known.struct_size = sizeof newer;
  OK(qkv_attention_operand(a, 0, &newer.known));
  CHECK(newer.known.followed == 0 && newer.known.struct_size == sizeof newer);
  for (size_t i = 0; i < sizeof newer.later; i++) {
    CHECK(newer.later[i] == 77);
  }
  o.struct_size = 8;
  FAILS(qkv_attention_operand(a, 0, &o), QKV_ERROR_ARGUMENT, "struct_size of qkv_operand is 8");
  FAILS(qkv_attention_operand(a, 0, NULL), QKV_ERROR_ARGUMENT, "qkv_operand is null");
  /* Options that are read: what an older caller does not have counts as zero. */
  struct {
    qkv_options known;
    uint8_t later[64];
  } options;
  memset(&options, 0, sizeof options);
  options.known.vault_mode = QKV_VAULT_OFF;
  options.known.remote = (const char *)1;
  options.known.struct_size = offsetof(qkv_options, remote);
  qkv_context *context = NULL;
  OK(qkv_open(&options.known, &context));
  OK(qkv_close(context));
  options.known.remote = NULL;
  options.known.struct_size = sizeof options;
  memset(options.later, 255, sizeof options.later);
  OK(qkv_open(&options.known, &context));
  OK(qkv_close(context));
  options.known.engine = "fa5";
  FAILS(qkv_open(&options.known, &context), QKV_ERROR_ARGUMENT, "'fa5'; give one of auto, cudnn, kernels, fa4");
  options.known.struct_size = offsetof(qkv_options, engine);
  OK(qkv_open(&options.known, &context));
  OK(qkv_close(context));
  options.known.struct_size = 0;
  FAILS(qkv_open(&options.known, &context), QKV_ERROR_ARGUMENT, "set it to sizeof(qkv_options)");
  OK(qkv_attention_free(a));
}

static qkv_context *opened(const char *vault, int32_t on_miss) {
  qkv_options options = QKV_ZERO;
  options.struct_size = sizeof options;
  options.vault = vault;
  options.on_miss = on_miss;
  qkv_context *context = NULL;
  OK(qkv_open(&options, &context));
  return context;
}

static void reasons(const char *vault) {
  qkv_context *context = opened(vault, QKV_ON_MISS_FAIL);
  qkv_attention *plain = parse(PLAIN), *odd = parse("q: f16 [1,8,512,100]");
  char *json = NULL, *text = NULL;
  OK(qkv_explain(context, plain, "h200", "9.19", &json, NULL));
  CHECK(strstr(json, "\"supported\":true") && strstr(json, "\"cudnn\":\"9.19.0\""));
  OK(qkv_string_free(json));
  OK(qkv_explain(context, plain, "b200", NULL, NULL, &text));
  CHECK(strstr(text, "supported on sm_100"));
  OK(qkv_string_free(text));
  OK(qkv_explain(context, odd, "h200", NULL, &json, &text));
  CHECK(strstr(json, "\"supported\":false") && strstr(json, "\"code\":\"head-dim.multiple-of-8\""));
  CHECK(strstr(text, "nearest supported"));
  OK(qkv_string_free(json));
  OK(qkv_string_free(text));
  FAILS(qkv_explain(context, plain, "h300", NULL, &json, NULL), QKV_ERROR_REFUSED, "h200");
  FAILS(qkv_explain(context, plain, "h200", "nine", &json, NULL), QKV_ERROR_ARGUMENT, "nine");
  FAILS(qkv_explain(context, plain, NULL, NULL, &json, NULL), QKV_ERROR_ARGUMENT, "gpu is null");
  FAILS(qkv_explain(context, plain, "h200", NULL, NULL, NULL), QKV_ERROR_ARGUMENT, "both null");
  /* A refusal of validation has its codes, and as many reasons. */
  qkv_attention *none = NULL;
  const char *wrong = "q: bf16 [1,32,64,64]\nk: [1,5,64,64]";
  FAILS(qkv_attention_parse(wrong, strlen(wrong), &none), QKV_ERROR_REFUSED, "heads");
  qkv_error error = QKV_ZERO;
  error.struct_size = sizeof error;
  OK(qkv_last_error(&error));
  CHECK(none == NULL && error.status == QKV_ERROR_REFUSED && error.reason_count >= 1);
  CHECK(strcmp(error.kind, "refused") == 0 && strstr(error.codes, "heads.group"));
  CHECK(error.reasons[0] == '[' && strstr(error.reasons, "\"fix\":"));
  OK(qkv_attention_free(plain));
  OK(qkv_attention_free(odd));
  OK(qkv_close(context));
}

static void bad_input(const char *vault) {
  qkv_attention *a = NULL;
  qkv_context *context = NULL, *missing = opened(vault, QKV_ON_MISS_FAIL);
  FAILS(qkv_attention_parse(NULL, 3, &a), QKV_ERROR_ARGUMENT, "is null");
  FAILS(qkv_attention_parse("q: bf17 [1]", 11, &a), QKV_ERROR_PARSE, "line 1, column 4");
  FAILS(qkv_attention_parse("q\xff", 2, &a), QKV_ERROR_ARGUMENT, "UTF-8");
  FAILS(qkv_attention_parse("q", SIZE_MAX, &a), QKV_ERROR_ARGUMENT, "at most");
  FAILS(qkv_attention_from_json("{", 1, &a), QKV_ERROR_PARSE, "line 1");
  FAILS(qkv_attention_parse(PLAIN, strlen(PLAIN), NULL), QKV_ERROR_ARGUMENT, "the address of a variable");
  char *text = NULL;
  FAILS(qkv_attention_text(NULL, &text), QKV_ERROR_ARGUMENT, "qkv_attention is null");
  a = parse(PLAIN);
  FAILS(qkv_attention_text((const qkv_attention *)missing, &text), QKV_ERROR_ARGUMENT, "another handle");
  FAILS(qkv_attention_free((qkv_attention *)missing), QKV_ERROR_ARGUMENT, "no qkv_attention");
  FAILS(qkv_explain((const qkv_context *)a, a, "h200", NULL, &text, NULL), QKV_ERROR_ARGUMENT, "no qkv_context");
  FAILS(qkv_attention_text(a, NULL), QKV_ERROR_ARGUMENT, "the text");
  qkv_options options = QKV_ZERO;
  options.struct_size = sizeof options;
  options.on_miss = 9;
  FAILS(qkv_open(&options, &context), QKV_ERROR_ARGUMENT, "on_miss is 9");
  options.on_miss = 0;
  options.vault_mode = -1;
  FAILS(qkv_open(&options, &context), QKV_ERROR_ARGUMENT, "vault_mode is -1");
  options.vault_mode = 0;
  options.allow = "no.quirk";
  FAILS(qkv_open(&options, &context), QKV_ERROR_ARGUMENT, "no.quirk");
  options.allow = NULL;
  options.reserved = 1;
  FAILS(qkv_open(&options, &context), QKV_ERROR_ARGUMENT, "reserved is 1");
  options.reserved = 0;
  options.vault = "/dev/null/vault";
  FAILS(qkv_open(&options, &context), QKV_ERROR_VAULT, "/dev/null/vault");
  FAILS(qkv_unpack(missing, "/nowhere.qkvpack", NULL, NULL), QKV_ERROR_VAULT, "/nowhere.qkvpack");
  /* No GPU: an error, and nothing else. */
  qkv_plan *plan = NULL;
  int32_t status = qkv_prepare(missing, a, 0, NULL, &plan);
  if (status != QKV_OK) {
    CHECK(status == QKV_ERROR_DEVICE && strstr(qkv_last_message(), "GPU"));
    FAILS(qkv_reserve_handles(missing, 0, 4), QKV_ERROR_DEVICE, "GPU");
  }
  CHECK(status == QKV_OK || plan == NULL);
  FAILS(qkv_prepare(NULL, a, 0, NULL, &plan), QKV_ERROR_ARGUMENT, "qkv_context is null");
  FAILS(qkv_launch(NULL, NULL), QKV_ERROR_ARGUMENT, "qkv_plan is null");
  /* No place for the second of two results: the first is left alone. */
  qkv_attention *first = NULL;
  FAILS(qkv_training(a, 0, 0, &first, NULL), QKV_ERROR_ARGUMENT, "the backward");
  CHECK(first == NULL);
  FAILS(qkv_debug_panic(), QKV_ERROR_INTERNAL, "libqkvault has a fault: asked for");
  OK(qkv_attention_free(a));
  OK(qkv_close(missing));
}

/* Softmax attention as everybody writes it, over what the oracle was given, to check the oracle itself. */
static void oracle(void) {
  enum { H = 4, HK = 2, S = 64, D = 64 };
  qkv_attention *a = parse(PLAIN);
  qkv_oracle *oracle = NULL;
  OK(qkv_oracle_new(a, &oracle));
  static double in[3][H * S * D], o[H * S * D];
  const char *names[] = {"q", "k", "v"};
  const size_t heads[] = {H, HK, HK};
  uint32_t state = 1;
  for (int n = 0; n < 3; n++) {
    for (size_t i = 0; i < heads[n] * S * D; i++) {
      state = state * 1664525u + 1013904223u;
      /* Multiples of 1/64 up to 2 are exact in bf16 below 4 and above -4 with 8 bits: keep to 1/32. */
      in[n][i] = (double)((int)(state >> 26) - 32) / 32.0;
    }
    OK(qkv_oracle_set(oracle, names[n], QKV_F64, in[n], heads[n] * S * D * sizeof(double)));
  }
  const float scale = 0.125f;
  OK(qkv_oracle_set(oracle, "scale", QKV_F32, &scale, sizeof scale));
  size_t bytes = sizeof o;
  FAILS(qkv_oracle_output(oracle, "o", QKV_F64, o, &bytes), QKV_ERROR_ARGUMENT, "qkv_oracle_run");
  OK(qkv_oracle_run(oracle));
  OK(qkv_oracle_output(oracle, "o", QKV_F64, o, &bytes));
  CHECK(bytes == sizeof o);
  for (int h = 0; h < H; h++) {
    for (int q = 0; q < S; q++) {
      double p[S], sum = 0, most = -INFINITY;
      /* The usual order in memory is batch, sequence, head, head dim. */
      for (int k = 0; k <= q; k++) {
        p[k] = 0;
        for (int d = 0; d < D; d++) {
          p[k] += in[0][(q * H + h) * D + d] * in[1][(k * HK + h / (H / HK)) * D + d];
        }
        p[k] *= 0.125;
        most = p[k] > most ? p[k] : most;
      }
      for (int k = 0; k <= q; k++) {
        p[k] = exp(p[k] - most);
        sum += p[k];
      }
      for (int d = 0; d < D; d++) {
        double x = 0;
        for (int k = 0; k <= q; k++) {
          x += p[k] / sum * in[2][(k * HK + h / (H / HK)) * D + d];
        }
        CHECK(fabs(x - o[(q * H + h) * D + d]) < 1e-12);
      }
    }
  }
  /* A result of the operand's own type compares; one that was not written does not. */
  static uint16_t device[H * S * D];
  bytes = sizeof device;
  OK(qkv_oracle_output(oracle, "o", 0, device, &bytes));
  qkv_comparison found = QKV_ZERO;
  found.struct_size = sizeof found;
  OK(qkv_oracle_compare(oracle, "o", device, sizeof device, &found));
  CHECK(found.good == 1 && found.elements == H * S * D && found.relative < 4e-3 && found.unwritten == 0);
  memset(device, 255, 64);
  OK(qkv_oracle_compare(oracle, "o", device, sizeof device, &found));
  CHECK(found.good == 0 && found.unwritten == 32);
  FAILS(qkv_oracle_set(oracle, "qq", QKV_F32, &scale, 4), QKV_ERROR_ARGUMENT, "'qq'");
  FAILS(qkv_oracle_set(oracle, "q", 99, &scale, 4), QKV_ERROR_ARGUMENT, "99 is no element type");
  FAILS(qkv_oracle_set(oracle, "q", QKV_F64, &scale, 4), QKV_ERROR_ARGUMENT, "whole number");
  OK(qkv_oracle_set(oracle, "q", QKV_F32, &scale, 4));
  FAILS(qkv_oracle_run(oracle), QKV_ERROR_ARGUMENT, "Q needs a buffer of");
  bytes = 1;
  OK(qkv_oracle_random(oracle, 7));
  FAILS(qkv_oracle_input(oracle, "q", device, &bytes), QKV_ERROR_ARGUMENT, "room for 1");
  CHECK(bytes == sizeof device);
  OK(qkv_oracle_input(oracle, "q", device, &bytes));
  OK(qkv_oracle_free(oracle));
  /* A backward of random inputs. */
  qkv_attention *forward = NULL, *backward = NULL;
  OK(qkv_training(a, 1, 0, &forward, &backward));
  OK(qkv_oracle_new(backward, &oracle));
  OK(qkv_oracle_random(oracle, 3));
  OK(qkv_oracle_run(oracle));
  bytes = 0;
  OK(qkv_oracle_output(oracle, "d_k", QKV_F32, NULL, &bytes));
  CHECK(bytes == HK * S * D * sizeof(float));
  OK(qkv_oracle_free(oracle));
  OK(qkv_attention_free(forward));
  OK(qkv_attention_free(backward));
  OK(qkv_attention_free(a));
}

static void serving(void) {
  const char *layer = "{\"heads\":8,\"kv_heads\":2,\"d_qk\":64,\"d_v\":64,\"dtype\":\"bf16\",\"pages\":64,"
                      "\"page_size\":16,\"layout\":\"nhd\",\"values_in_keys\":false,\"window\":null,"
                      "\"score_mod\":null,\"sink\":false,\"stats\":false}";
  const char *policy = "{\"batch\":4,\"queries\":64,\"keys\":256,\"tokens\":64,\"least_keys\":256}";
  qkv_serving *serving = NULL;
  OK(qkv_serving_new(layer, strlen(layer), policy, strlen(policy), &serving));
  size_t count = 0, place = 0;
  OK(qkv_serving_count(serving, &count));
  OK(qkv_serving_pick(serving, 3, 1, 200, 0, &place));
  qkv_bucket bucket = QKV_ZERO;
  bucket.struct_size = sizeof bucket;
  OK(qkv_serving_bucket(serving, place, &bucket));
  CHECK(place < count && bucket.decode == 1 && bucket.batch == 4 && bucket.keys >= 200);
  qkv_attention *a = NULL;
  OK(qkv_serving_attention(serving, place, &a));
  char *line = NULL;
  OK(qkv_attention_summary(a, &line));
  CHECK(strstr(line, "paged"));
  OK(qkv_string_free(line));
  OK(qkv_attention_free(a));
  FAILS(qkv_serving_pick(serving, 5, 1, 200, 0, &place), QKV_ERROR_ARGUMENT, "no attention holds 5");
  FAILS(qkv_serving_bucket(serving, count, &bucket), QKV_ERROR_ARGUMENT, "places begin at 0");
  FAILS(qkv_serving_new("{}", 2, NULL, 0, &serving), QKV_ERROR_PARSE, "missing field");
  OK(qkv_serving_free(serving));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  CHECK(strcmp(qkv_last_message(), "") == 0);
  versions();
  descriptions();
  operands();
  sizes();
  reasons(argv[1]);
  bad_input(argv[1]);
  oracle();
  serving();
  puts("all checks passed");
  return 0;
}
