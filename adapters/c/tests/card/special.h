/* What random cases do not show: captured graphs, threads, the place of the context, batches, and the time of a call. */

#ifndef CARD_SPECIAL_H
#define CARD_SPECIAL_H

#include <pthread.h>
#include <time.h>

#include "launched.h"

static const char *const SAMPLE =
    "q: bf16 [2,8,256,64]\nk: [2,2,256,64]\nmask: causal\noutputs: stats\n"
    "score_mod: scalar $cap: float; tanh(score / $cap) * $cap\n";

static qkv_attention *described(const char *text) {
  qkv_attention *attention = NULL;
  OK(qkv.qkv_attention_parse(text, strlen(text), &attention));
  return attention;
}

/* Three launches are recorded and replayed with right numbers; a plan that is not loaded is refused meanwhile, and the
 * capture stays valid. */
static void graphs(const qkv_context *context, int device, cu_handle stream) {
  qkv_attention *a = described(SAMPLE), *other = described("q: f16 [1,2,48,64]\nmask: causal bottom-right\n");
  qkv_plan *plan = NULL, *none = NULL;
  OK(qkv.qkv_prepare(context, a, device, stream, &plan));
  OK(qkv.qkv_plan_load_kernels(plan));
  OK(qkv.qkv_reserve_handles(context, device, 2));
  qkv_oracle *oracle = oracle_of(a);
  OK(qkv.qkv_oracle_random(oracle, 5));
  OK(qkv.qkv_oracle_run(oracle));
  launched l = launched_with(plan, oracle, NULL, stream);
  OK(launch(&l, stream));
  CU(cu.stream_wait(stream));
  cu_handle graph = NULL, exec = NULL;
  CU(cu.capture_begin(stream, 0));
  for (int i = 0; i < 3; i++) OK(launch(&l, stream));
  CHECK(qkv.qkv_prepare(context, other, device, stream, &none) == QKV_ERROR_CAPTURED);
  CU(cu.capture_end(stream, &graph));
  CU(cu.graph_instantiate(&exec, graph, 0));
  const char *role = NULL;
  for (int i = 0; i < 10; i++) {
    poison(&l, stream);
    CU(cu.graph_launch(exec, stream));
    CHECK(compared(&l, oracle, stream, &role) >= 0);
  }
  CU(cu.graph_exec_destroy(exec));
  CU(cu.graph_destroy(graph));
  launched_free(&l);
  OK(qkv.qkv_oracle_free(oracle));
  OK(qkv.qkv_plan_free(plan));
  OK(qkv.qkv_attention_free(a));
  OK(qkv.qkv_attention_free(other));
}

typedef struct {
  const qkv_plan *plan;
  const qkv_oracle *oracle;
  pthread_barrier_t *gate;
  int right;
} worker;

enum { THREADS = 8, LAUNCHES = 200 };

/* A thread with a stream, outputs and a workspace of its own, and no context that is current while it launches. */
static void *work(void *given) {
  worker *w = given;
  CU(cu.set_current(cu.context));
  cu_handle stream = NULL, current = NULL;
  CU(cu.stream_create(&stream, 1));
  launched l = launched_with(w->plan, w->oracle, NULL, stream);
  CU(cu.stream_wait(stream));
  CU(cu.set_current(NULL));
  pthread_barrier_wait(w->gate);
  for (int i = 0; i < LAUNCHES; i++) OK(launch(&l, stream));
  CU(cu.get_current(&current));
  CHECK(current == NULL);
  CU(cu.set_current(cu.context));
  CU(cu.stream_wait(stream));
  const char *role = NULL;
  pthread_barrier_wait(w->gate);
  w->right = compared(&l, w->oracle, stream, &role) >= 0;
  launched_free(&l);
  CU(cu.stream_destroy(stream));
  return NULL;
}

static void threads(const qkv_context *context, int device) {
  qkv_attention *a = described(SAMPLE);
  qkv_plan *plan = NULL;
  OK(qkv.qkv_prepare(context, a, device, NULL, &plan));
  OK(qkv.qkv_reserve_handles(context, device, THREADS));
  qkv_oracle *oracle = oracle_of(a);
  OK(qkv.qkv_oracle_random(oracle, 6));
  OK(qkv.qkv_oracle_run(oracle));
  pthread_t handles[THREADS];
  worker workers[THREADS];
  pthread_barrier_t gate;
  pthread_barrier_init(&gate, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){plan, oracle, &gate, 0};
    CHECK(pthread_create(&handles[i], NULL, work, &workers[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(handles[i], NULL);
    CHECK(workers[i].right);
  }
  pthread_barrier_destroy(&gate);
  OK(qkv.qkv_oracle_free(oracle));
  OK(qkv.qkv_plan_free(plan));
  OK(qkv.qkv_attention_free(a));
}

/* A decode over pages whose lengths and tables a batch has, filled from those that the oracle drew. */
static int batches(const qkv_context *context, int device, cu_handle stream) {
  static const char layer[] =
      "{\"heads\":8,\"kv_heads\":2,\"d_qk\":64,\"d_v\":64,\"dtype\":\"bf16\",\"pages\":64,\"page_size\":16,"
      "\"layout\":\"nhd\",\"values_in_keys\":false,\"window\":null,\"score_mod\":null,\"sink\":false,\"stats\":false}";
  static const char policy[] =
      "{\"batch\":4,\"queries\":64,\"keys\":256,\"tokens\":64,\"least_keys\":256,"
      "\"growth\":{\"few\":null,\"many\":null,\"mixed\":null,\"queries\":null,\"keys\":null}}";
  qkv_serving *serving = NULL;
  qkv_attention *a = NULL;
  qkv_plan *plan = NULL;
  qkv_batch *batch = NULL;
  size_t place = 0, count = 0, bytes = 0;
  OK(qkv.qkv_serving_new(layer, sizeof layer - 1, policy, sizeof policy - 1, &serving));
  OK(qkv.qkv_serving_pick(serving, 4, 1, 256, 0, &place));
  OK(qkv.qkv_serving_attention(serving, place, &a));
  OK(qkv.qkv_prepare(context, a, device, NULL, &plan));
  OK(qkv.qkv_batch_new(plan, &batch));
  qkv_oracle *oracle = oracle_of(a);
  int right = 0;
  for (uint64_t seed = 1; seed <= 40 && right < 5; seed++) {
    OK(qkv.qkv_oracle_random(oracle, seed));
    size_t n = 0;
    int32_t *queries = input_of(oracle, "seq_len_q", &n), *keys = input_of(oracle, "seq_len_kv", &n);
    size_t sequences = n / 4;
    int32_t *pages = input_of(oracle, "page_table_k", &n), *values = input_of(oracle, "page_table_v", &n);
    CHECK(queries != NULL && keys != NULL && pages != NULL && values != NULL);
    qkv_step step = QKV_ZERO;
    step.struct_size = sizeof step;
    step.sequences = sequences;
    step.query_lengths = queries;
    step.key_lengths = keys;
    step.pages = pages;
    step.value_pages = values;
    step.page_width = n / 4 / sequences;
    /* Lengths that no step has, such as a query without keys, are refused; the next seed has others. */
    if (qkv.qkv_batch_fill(batch, &step) == QKV_OK) {
      launched l = launched_with(plan, oracle, NULL, stream), bound = l;
      const uint8_t *data = NULL;
      OK(qkv.qkv_batch_data(batch, &data, &bytes));
      uint64_t block = device_alloc(bytes);
      CU(cu.to_device(block, data, bytes, stream));
      OK(qkv.qkv_batch_operand_count(batch, &count));
      for (size_t i = 0; i < count; i++) {
        qkv_batch_operand o = QKV_ZERO;
        o.struct_size = sizeof o;
        OK(qkv.qkv_batch_operand_at(batch, i, &o));
        for (unsigned t = 0; t < l.info.tensor_count; t++) {
          if (l.tensor[t].role_id == o.role_id) bound.buffer[t] = (qkv_buffer){block + o.offset, o.bytes};
        }
      }
      const char *role = NULL;
      OK(launch(&bound, stream));
      OK(qkv.qkv_oracle_run(oracle));
      CHECK(compared(&bound, oracle, stream, &role) >= 0);
      right++;
      CU(cu.release(block));
      launched_free(&l);
    }
    free(queries);
    free(keys);
    free(pages);
    free(values);
  }
  OK(qkv.qkv_oracle_free(oracle));
  OK(qkv.qkv_batch_free(batch));
  OK(qkv.qkv_plan_free(plan));
  OK(qkv.qkv_attention_free(a));
  OK(qkv.qkv_serving_free(serving));
  return right;
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_time(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

enum { CALLS = 4096 };

/* Host time of one call, in microseconds: the shortest and the median of many, with a wait after every 32. */
static void timed(const launched *l, cu_handle stream, int named, double *least, double *median) {
  static double times[CALLS];
  qkv_launch_args args = args_of(l, stream);
  qkv_named_buffer tensors[MOST];
  qkv_named_number scalars[MOST];
  for (unsigned i = 0; i < l->info.tensor_count; i++) tensors[i] = (qkv_named_buffer){l->tensor[i].role, l->buffer[i]};
  for (unsigned i = 0; i < l->info.scalar_count; i++) scalars[i] = (qkv_named_number){l->scalar[i].role, l->number[i]};
  qkv_launch_named_args by_name = QKV_ZERO;
  by_name.struct_size = sizeof by_name;
  by_name.tensors = tensors;
  by_name.tensor_count = l->info.tensor_count;
  by_name.scalars = scalars;
  by_name.scalar_count = l->info.scalar_count;
  by_name.workspace = l->workspace;
  by_name.stream = stream;
  for (int i = 0; i < CALLS; i++) {
    double before = now_us();
    int32_t status = named ? qkv.qkv_launch_named(l->plan, &by_name) : qkv.qkv_launch(l->plan, &args);
    times[i] = now_us() - before;
    CHECK(status == QKV_OK);
    if (i % 32 == 31) CU(cu.stream_wait(stream));
  }
  qsort(times, CALLS, sizeof *times, by_time);
  *least = times[0];
  *median = times[CALLS / 2];
}

#endif
