/* Random attentions in the text form, and softmax attention in plain C, which shares nothing with the project's oracle. */

#ifndef CARD_CASES_H
#define CARD_CASES_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "library.h"

typedef struct {
  uint64_t state;
} random_source;

static inline uint32_t random_next(random_source *source) {
  source->state = source->state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(source->state >> 33);
}

static inline int random_below(random_source *source, int most) {
  return (int)(random_next(source) % (uint32_t)most);
}

enum { NO_MASK, CAUSAL, CAUSAL_BOTTOM, WINDOW, WINDOW_BOTTOM };

typedef struct {
  int b, h, group, s_q, s_kv, d, f16;
  int mask, window, softcap, alibi, lengths, sink, layout, deterministic;
  char text[1024];
} card_case;

/* Softcap, ALiBi and so on are drawn one by one: each with and without each other. */
static inline card_case draw(random_source *r, int number) {
  static const char *const layouts[] = {"bshd", "bhsd", "sbhd"};
  card_case c;
  c.b = 1 + random_below(r, 3);
  c.group = 1 << random_below(r, 3);
  c.h = c.group * (1 + random_below(r, 4));
  c.d = random_below(r, 2) ? 128 : 64;
  c.s_q = 16 + random_below(r, 273);
  c.s_kv = random_below(r, 2) ? c.s_q : 16 + random_below(r, 273);
  c.f16 = number % 2;
  c.mask = random_below(r, 5);
  c.window = 8 + random_below(r, 120);
  c.softcap = random_below(r, 3) == 0;
  c.alibi = random_below(r, 4) == 0;
  c.lengths = random_below(r, 4) == 0;
  c.sink = random_below(r, 8) == 0;
  c.layout = random_below(r, 3);
  c.deterministic = random_below(r, 4) == 0;
  const char *dtype = c.f16 ? "f16" : "bf16", *layout = layouts[c.layout];
  int at = snprintf(c.text, sizeof c.text,
                    "q: %s [%d,%d,%d,%d] %s\nk: [%d,%d,%d,%d] %s\nlengths: %s\nsink: %s\n", dtype, c.b, c.h,
                    c.s_q, c.d, layout, c.b, c.h / c.group, c.s_kv, c.d, layout,
                    c.lengths ? "per-sequence" : "full", c.sink ? "yes" : "no");
  char *rest = c.text + at;
  size_t room = sizeof c.text - (size_t)at;
  switch (c.mask) {
    case NO_MASK: at = snprintf(rest, room, "mask: none\n"); break;
    case CAUSAL: at = snprintf(rest, room, "mask: causal\n"); break;
    case CAUSAL_BOTTOM: at = snprintf(rest, room, "mask: causal bottom-right\n"); break;
    case WINDOW: at = snprintf(rest, room, "mask: causal window %d\n", c.window); break;
    default: at = snprintf(rest, room, "mask: causal window %d bottom-right\n", c.window); break;
  }
  rest += at;
  room -= (size_t)at;
  const char *capped = c.softcap ? "tanh(score / $cap) * $cap" : "score";
  if (c.alibi) {
    snprintf(rest, room,
             "score_mod: %stensor @slopes: f32[1, %d, 1, 1] alibi %d; %s + float(key - query) * @slopes\n",
             c.softcap ? "scalar $cap: float; " : "", c.h, c.h, capped);
  } else if (c.softcap) {
    snprintf(rest, room, "score_mod: scalar $cap: float; %s\n", capped);
  }
  return c;
}

/* Whether plain attention knows the case: lengths and sinks are left to the oracle. */
static inline int is_plain(const card_case *c) { return !c->lengths && !c->sink; }

static inline double half(uint16_t bits, int f16) {
  if (!f16) {
    union {
      uint32_t bits;
      float value;
    } wide = {(uint32_t)bits << 16};
    return (double)wide.value;
  }
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 0    ? ldexp(fraction, -24)
                 : exponent == 31 ? (fraction ? NAN : INFINITY)
                                  : ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -value : value;
}

typedef struct {
  int64_t stride[4];
  uint16_t *data;
} plain_tensor;

static inline double plain_at(const plain_tensor *t, int f16, int b, int h, int s, int d) {
  return half(t->data[b * t->stride[0] + h * t->stride[1] + s * t->stride[2] + d * t->stride[3]], f16);
}

/* One row of the output and its log-sum-exp, from the definition. */
static inline double plain_row(const card_case *c, const plain_tensor *in, double scale, double cap, int b, int h,
                               int q, double *o) {
  int k_head = h / c->group, bottom = c->mask == CAUSAL_BOTTOM || c->mask == WINDOW_BOTTOM;
  int diagonal = bottom ? q + c->s_kv - c->s_q : q;
  double most = -INFINITY, sum = 0;
  double *p = malloc((size_t)c->s_kv * sizeof *p);
  for (int k = 0; k < c->s_kv; k++) {
    int hidden = c->mask != NO_MASK && k > diagonal;
    hidden |= (c->mask == WINDOW || c->mask == WINDOW_BOTTOM) && k <= diagonal - c->window;
    double x = 0;
    for (int d = 0; d < c->d; d++) {
      x += plain_at(&in[0], c->f16, b, h, q, d) * plain_at(&in[1], c->f16, b, k_head, k, d);
    }
    x *= scale;
    if (c->softcap) x = tanh(x / cap) * cap;
    /* The slopes of the ALiBi paper: powers of 2^(-8/h); for other numbers of heads, of the power of two below. */
    if (c->alibi) {
      int whole = 1;
      while (whole * 2 <= c->h) whole *= 2;
      double slope = h < whole ? pow(2, -8.0 * (h + 1) / whole) : pow(2, -4.0 * (2 * (h - whole) + 1) / whole);
      x += (k - q) * (double)(float)slope;
    }
    p[k] = hidden ? -INFINITY : x;
    most = p[k] > most ? p[k] : most;
  }
  for (int d = 0; d < c->d; d++) o[d] = 0;
  for (int k = 0; k < c->s_kv && most > -INFINITY; k++) {
    p[k] = exp(p[k] - most);
    sum += p[k];
  }
  for (int k = 0; k < c->s_kv && sum > 0; k++) {
    for (int d = 0; p[k] > 0 && d < c->d; d++) {
      o[d] += p[k] / sum * plain_at(&in[2], c->f16, b, k_head, k, d);
    }
  }
  free(p);
  return most + log(sum);
}

#endif
