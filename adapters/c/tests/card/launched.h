/* One launch beside the oracle: operands on the GPU, outputs poisoned before, compared after. */

#ifndef CARD_LAUNCHED_H
#define CARD_LAUNCHED_H

#include "driver.h"
#include "library.h"

enum { MOST = 24 };

/* A plan with memory for everything that a launch takes. */
typedef struct {
  const qkv_plan *plan;
  qkv_plan_info info;
  qkv_operand tensor[MOST], scalar[MOST];
  qkv_buffer buffer[MOST], workspace;
  qkv_number number[MOST];
  int owned[MOST];
} launched;

static inline qkv_oracle *oracle_of(const qkv_attention *attention) {
  qkv_oracle *oracle = NULL;
  OK(qkv.qkv_oracle_new(attention, &oracle));
  return oracle;
}

/* The bytes of an oracle's input; null if it has none. */
static inline void *input_of(const qkv_oracle *oracle, const char *role, size_t *bytes) {
  *bytes = 0;
  if (qkv.qkv_oracle_input(oracle, role, NULL, bytes) != QKV_OK) return NULL;
  void *data = malloc(*bytes == 0 ? 1 : *bytes);
  OK(qkv.qkv_oracle_input(oracle, role, data, bytes));
  return data;
}

/* The memory of a role, which `other` may have already. */
static inline qkv_buffer *buffer_of(launched *l, const char *role) {
  for (unsigned i = 0; l != NULL && i < l->info.tensor_count; i++) {
    if (strcmp(l->tensor[i].role, role) == 0) return &l->buffer[i];
  }
  return NULL;
}

static inline void poison(const launched *l, cu_handle stream) {
  for (unsigned i = 0; i < l->info.tensor_count; i++) {
    if (l->tensor[i].output) CU(cu.fill(l->buffer[i].address, 255, l->buffer[i].bytes, stream));
  }
  if (l->workspace.bytes > 0) CU(cu.fill(l->workspace.address, 255, l->workspace.bytes, stream));
}

/* Allocates and uploads. What `saved` wrote (O and Stats of a forward) is read where it is. */
static inline launched launched_with(const qkv_plan *plan, const qkv_oracle *oracle, launched *saved, cu_handle stream) {
  launched l;
  memset(&l, 0, sizeof l);
  l.plan = plan;
  l.info.struct_size = sizeof l.info;
  OK(qkv.qkv_plan_facts(plan, &l.info));
  CHECK(l.info.tensor_count <= MOST && l.info.scalar_count <= MOST);
  for (unsigned i = 0; i < l.info.tensor_count; i++) {
    qkv_operand *t = &l.tensor[i];
    t->struct_size = sizeof *t;
    OK(qkv.qkv_plan_tensor(plan, i, t));
    qkv_buffer *of_saved = t->output ? NULL : buffer_of(saved, t->role);
    if (of_saved != NULL && (strcmp(t->role, "o") == 0 || strcmp(t->role, "stats") == 0)) {
      l.buffer[i] = *of_saved;
      continue;
    }
    l.owned[i] = 1;
    l.buffer[i].bytes = t->bytes;
    l.buffer[i].address = device_alloc(t->bytes);
    CU(cu.fill(l.buffer[i].address, 255, t->bytes, stream));
    if (!t->output) {
      size_t bytes = 0;
      void *data = input_of(oracle, t->role, &bytes);
      CHECK(data != NULL);
      CU(cu.to_device(l.buffer[i].address, data, bytes < t->bytes ? bytes : t->bytes, stream));
      CU(cu.stream_wait(stream));
      free(data);
    }
  }
  for (unsigned i = 0; i < l.info.scalar_count; i++) {
    qkv_operand *s = &l.scalar[i];
    s->struct_size = sizeof *s;
    OK(qkv.qkv_plan_scalar(plan, i, s));
    size_t bytes = 0;
    void *data = input_of(oracle, s->role, &bytes);
    CHECK(data != NULL && bytes <= sizeof l.number[i].value);
    l.number[i].dtype = s->dtype;
    memcpy(&l.number[i].value, data, bytes);
    free(data);
  }
  l.workspace.bytes = l.info.workspace;
  l.workspace.address = l.info.workspace > 0 ? device_alloc(l.info.workspace) : 0;
  poison(&l, stream);
  return l;
}

static inline void launched_free(launched *l) {
  for (unsigned i = 0; i < l->info.tensor_count; i++) {
    if (l->owned[i]) CU(cu.release(l->buffer[i].address));
  }
  if (l->workspace.address != 0) CU(cu.release(l->workspace.address));
}

static inline qkv_launch_args args_of(const launched *l, cu_handle stream) {
  qkv_launch_args args = QKV_ZERO;
  args.struct_size = sizeof args;
  args.tensors = l->buffer;
  args.tensor_count = l->info.tensor_count;
  args.scalars = l->number;
  args.scalar_count = l->info.scalar_count;
  args.workspace = l->workspace;
  args.stream = stream;
  return args;
}

static inline int32_t launch(const launched *l, cu_handle stream) {
  qkv_launch_args args = args_of(l, stream);
  return qkv.qkv_launch(l->plan, &args);
}

/* The bytes of an operand, after everything on the stream. */
static inline void *downloaded(const qkv_buffer *buffer, cu_handle stream) {
  void *data = malloc(buffer->bytes);
  CU(cu.to_host(data, buffer->address, buffer->bytes, stream));
  CU(cu.stream_wait(stream));
  return data;
}

/* Compares every output with the oracle, which has run. Returns the largest relative error, or -1 for a wrong one, of
 * which `role` gets the name. */
static inline double compared(const launched *l, const qkv_oracle *oracle, cu_handle stream, const char **role) {
  double worst = 0;
  for (unsigned i = 0; i < l->info.tensor_count; i++) {
    if (!l->tensor[i].output) continue;
    void *data = downloaded(&l->buffer[i], stream);
    qkv_comparison found = QKV_ZERO;
    found.struct_size = sizeof found;
    OK(qkv.qkv_oracle_compare(oracle, l->tensor[i].role, data, l->buffer[i].bytes, &found));
    free(data);
    if (!found.good) {
      *role = l->tensor[i].role;
      fprintf(stderr, "%s: %s relative %.3e largest %.3e not finite %llu unwritten %llu touched %llu\n", l->info.what,
              *role, found.relative, found.largest, (unsigned long long)found.non_finite,
              (unsigned long long)found.unwritten, (unsigned long long)found.touched);
      return -1;
    }
    double error = found.relative < found.largest ? found.relative : found.largest;
    worst = error > worst ? error : worst;
  }
  return worst;
}

#endif
