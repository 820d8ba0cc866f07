/* libqkvault, opened at run time: the functions that the card program calls. */

#ifndef CARD_LIBRARY_H
#define CARD_LIBRARY_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkvault.h"

#define FUNCTIONS(X)                                                                                \
  X(qkv_version) X(qkv_last_error) X(qkv_open) X(qkv_close) X(qkv_library) X(qkv_reserve_handles)   \
  X(qkv_attention_operand_count) X(qkv_attention_operand)                                           \
  X(qkv_attention_parse) X(qkv_attention_summary) X(qkv_attention_free) X(qkv_string_free)          \
  X(qkv_training) X(qkv_explain) X(qkv_warm) X(qkv_prepare) X(qkv_plan_facts) X(qkv_plan_tensor)    \
  X(qkv_plan_scalar) X(qkv_plan_load_kernels) X(qkv_plan_free) X(qkv_launch) X(qkv_launch_named)    \
  X(qkv_serving_new) X(qkv_serving_pick) X(qkv_serving_attention) X(qkv_serving_free)               \
  X(qkv_batch_new) X(qkv_batch_fill) X(qkv_batch_data) X(qkv_batch_operand_count)                   \
  X(qkv_batch_operand_at) X(qkv_batch_changed) X(qkv_batch_free)                                    \
  X(qkv_oracle_new) X(qkv_oracle_random) X(qkv_oracle_input) X(qkv_oracle_set)                      \
  X(qkv_oracle_run) X(qkv_oracle_run_of_o) X(qkv_oracle_add_forward)                                \
  X(qkv_oracle_output) X(qkv_oracle_compare) X(qkv_oracle_free)

/* The name of a function is that of the pointer to it, so that calls read as they do in other programs. */
static struct {
#define POINTER(name) __typeof__(name) *name;
  FUNCTIONS(POINTER)
#undef POINTER
} qkv;

static inline void library_open(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
#define FIND(name)                                                                                  \
  *(void **)&qkv.name = dlsym(library, #name);                                                      \
  if (qkv.name == NULL) {                                                                           \
    fprintf(stderr, "%s has no %s\n", path, #name);                                                 \
    exit(2);                                                                                        \
  }
  FUNCTIONS(FIND)
#undef FIND
}

static inline qkv_error last_error(void) {
  qkv_error error = QKV_ZERO;
  error.struct_size = sizeof error;
  qkv.qkv_last_error(&error);
  return error;
}

/* Ends the program if a call of the library fails. */
#define OK(call)                                                                                    \
  do {                                                                                              \
    if ((call) != QKV_OK) {                                                                         \
      fprintf(stderr, "%s:%d: %s\n  %s\n", __FILE__, __LINE__, #call, last_error().message);        \
      exit(1);                                                                                      \
    }                                                                                               \
  } while (0)

#define CHECK(condition)                                                                            \
  do {                                                                                              \
    if (!(condition)) {                                                                             \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                               \
      exit(1);                                                                                      \
    }                                                                                               \
  } while (0)

#endif
