/* Families of data, as `qkvault-lab selftest` has them and `families.py` beside the Python doors: random numbers are
 * normal, so faults of rows that are constant, far below zero or of one key stay hidden. */

#ifndef CARD_FAMILIES_H
#define CARD_FAMILIES_H

#include "cases.h"
#include "launched.h"

enum { NORMAL, BELOW, ABOVE, CONSTANT, DOMINANT, ZERO, TINY, LARGE, FAMILIES };
static const char *const FAMILY[FAMILIES] = {"normal", "below", "above", "constant", "dominant", "zero", "tiny", "large"};

/* How small the other dims are where one dim decides the scores. */
static const double REST = 0.125;

/* One element of an operand after its family's change. `first` is the same element of the first key. */
static inline double of_family(int family, char operand, double x, double first, int64_t s, int64_t d, double scale) {
  if (operand == 'v') return family == LARGE ? 1024 * x : x;
  switch (family) {
    case BELOW:
    case ABOVE:
    case DOMINANT: {
      if (d != 0) return family == DOMINANT && operand == 'k' && s > 0 ? 0 : REST * x;
      if (operand == 'q') return 1;
      double level = family == BELOW ? -120 : family == ABOVE ? 120 : s == 0 ? 40 : 0;
      return level / scale;
    }
    case CONSTANT: return operand == 'k' ? first : x;
    case ZERO: return 0;
    case TINY: return 1e-7 * x;
    default: return x;
  }
}

/* Makes the random Q, K and V of a backward those of a family, with O and Stats that belong to them. */
static inline void shape(const card_case *c, const qkv_attention *backward, qkv_oracle *oracle, int family) {
  size_t count = 0, bytes = 0;
  if (family == NORMAL) return;
  float *stored = input_of(oracle, "scale", &bytes);
  CHECK(stored != NULL);
  double scale = (double)*stored;
  free(stored);
  OK(qkv.qkv_attention_operand_count(backward, &count));
  for (size_t i = 0; i < count; i++) {
    qkv_operand o = QKV_ZERO;
    o.struct_size = sizeof o;
    OK(qkv.qkv_attention_operand(backward, i, &o));
    if (o.role_id < 1 || o.role_id > 3) continue;
    uint16_t *halves = input_of(oracle, o.role, &bytes);
    double *numbers = calloc(bytes / 2, sizeof *numbers);
    CHECK(halves != NULL && numbers != NULL);
    const int64_t *n = o.dims, *step = o.strides;
    for (int64_t at = 0; at < n[0] * n[1] * n[2] * n[3]; at++) {
      int64_t d = at % n[3], s = at / n[3] % n[2], h = at / (n[3] * n[2]) % n[1], b = at / (n[3] * n[2] * n[1]);
      int64_t row = b * step[0] + h * step[1] + d * step[3], place = row + s * step[2];
      double x = half(halves[place], c->f16), first = half(halves[row], c->f16);
      numbers[place] = of_family(family, o.role[0], x, first, s, d, scale);
    }
    OK(qkv.qkv_oracle_set(oracle, o.role, QKV_F64, numbers, bytes / 2 * sizeof *numbers));
    free(numbers);
    free(halves);
  }
  OK(qkv.qkv_oracle_add_forward(oracle));
}

#endif
