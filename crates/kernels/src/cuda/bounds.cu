// What is true of integers and of predicates over a whole tile of scores.

// Every value that an integer takes in the tile lies between these.
struct Bounds { int least, greatest; };
// Whether a predicate may be false, and may be true, somewhere in the tile.
struct Truth { bool no, yes; };
// A tile of scores: one sequence and head, queries and keys.
struct Tile { int batch, head; Bounds query, key; };

#define ANY_INT Bounds{(int)0x80000000u, 0x7fffffff}
#define EITHER Truth{true, true}

__device__ __forceinline__ Bounds exactly(int x) { return Bounds{x, x}; }
__device__ __forceinline__ Truth surely(bool truth) { return Truth{!truth, truth}; }

// Integers wrap: bounds of what may leave 32 bits are those of every integer.
__device__ __forceinline__ Bounds between(i64 least, i64 greatest) {
  return least < -2147483648ll || greatest > 2147483647ll ? ANY_INT : Bounds{(int)least, (int)greatest};
}

__device__ __forceinline__ bool is_one(Bounds a) { return a.least == a.greatest; }

__device__ __forceinline__ Bounds bound_add(Bounds a, Bounds b) {
  return between((i64)a.least + b.least, (i64)a.greatest + b.greatest);
}
__device__ __forceinline__ Bounds bound_sub(Bounds a, Bounds b) {
  return between((i64)a.least - b.greatest, (i64)a.greatest - b.least);
}
__device__ __forceinline__ Bounds bound_mul(Bounds a, Bounds b) {
  const i64 w = (i64)a.least * b.least, x = (i64)a.least * b.greatest;
  const i64 y = (i64)a.greatest * b.least, z = (i64)a.greatest * b.greatest;
  return between(min(min(w, x), min(y, z)), max(max(w, x), max(y, z)));
}
__device__ __forceinline__ Bounds bound_min(Bounds a, Bounds b) {
  return Bounds{min(a.least, b.least), min(a.greatest, b.greatest)};
}
__device__ __forceinline__ Bounds bound_max(Bounds a, Bounds b) {
  return Bounds{max(a.least, b.least), max(a.greatest, b.greatest)};
}
__device__ __forceinline__ Bounds bound_neg(Bounds a) { return bound_sub(exactly(0), a); }
__device__ __forceinline__ Bounds bound_abs(Bounds a) {
  const i64 low = a.least, high = a.greatest;
  return between(low > 0 ? low : high < 0 ? -high : 0, max(-low, high));
}
// Quotients by what is positive rise with the dividend, and with the divisor rise or fall throughout.
__device__ __forceinline__ Bounds bound_floor_div(Bounds a, Bounds b) {
  if (b.least <= 0) return ANY_INT;
  return Bounds{min(floor_div_int(a.least, b.least), floor_div_int(a.least, b.greatest)),
                max(floor_div_int(a.greatest, b.least), floor_div_int(a.greatest, b.greatest))};
}
__device__ __forceinline__ Bounds bound_floor_rem(Bounds a, Bounds b) {
  if (!is_one(b) || b.least <= 0) return ANY_INT;
  const int n = b.least;
  if (floor_div_int(a.least, n) != floor_div_int(a.greatest, n)) return Bounds{0, n - 1};
  return Bounds{floor_rem_int(a.least, n), floor_rem_int(a.greatest, n)};
}
__device__ __forceinline__ Bounds bound_rem(Bounds a, Bounds b) {
  return a.least >= 0 ? bound_floor_rem(a, b) : ANY_INT;
}
__device__ __forceinline__ Bounds bound_select(Truth keep, Bounds yes, Bounds no) {
  if (!keep.no) return yes;
  if (!keep.yes) return no;
  return Bounds{min(yes.least, no.least), max(yes.greatest, no.greatest)};
}

__device__ __forceinline__ Truth truth_lt(Bounds a, Bounds b) {
  return Truth{a.greatest >= b.least, a.least < b.greatest};
}
__device__ __forceinline__ Truth truth_eq(Bounds a, Bounds b) {
  return Truth{!is_one(a) || !is_one(b) || a.least != b.least, a.least <= b.greatest && b.least <= a.greatest};
}
__device__ __forceinline__ Truth truth_not(Truth a) { return Truth{a.yes, a.no}; }
__device__ __forceinline__ Truth truth_and(Truth a, Truth b) { return Truth{a.no || b.no, a.yes && b.yes}; }
__device__ __forceinline__ Truth truth_or(Truth a, Truth b) { return Truth{a.no && b.no, a.yes || b.yes}; }
