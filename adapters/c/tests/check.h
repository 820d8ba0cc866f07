/* What the C test programs share: a check that says what failed, and where. */

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkvault.h"

#define CHECK(condition)                                                                            \
  do {                                                                                              \
    if (!(condition)) {                                                                             \
      fprintf(stderr, "%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #condition,              \
              qkv_last_message());                                                                  \
      exit(1);                                                                                      \
    }                                                                                               \
  } while (0)

#define OK(call) CHECK((call) == QKV_OK)

/* The call fails with a status, and the message has a part. */
#define FAILS(call, wanted, part)                                                                   \
  do {                                                                                              \
    int32_t status_ = (call);                                                                       \
    if (status_ != (wanted) || strstr(qkv_last_message(), (part)) == NULL) {                        \
      fprintf(stderr, "%s:%d: %s is %d, wanted %d with '%s'\n  last error: %s\n", __FILE__,         \
              __LINE__, #call, (int)status_, (int)(wanted), (part), qkv_last_message());            \
      exit(1);                                                                                      \
    }                                                                                               \
  } while (0)

static inline qkv_attention *parse(const char *text) {
  qkv_attention *attention = NULL;
  OK(qkv_attention_parse(text, strlen(text), &attention));
  return attention;
}

#endif
