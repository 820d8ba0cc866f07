/* Two processes that compute one attention together without a GPU, each with its own rows, and what they are told of
 * mistakes. Arguments: the folder of a vault. */

#define _POSIX_C_SOURCE 200809L

#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT "q: bf16 [1,4,32,16]\nk: [1,2,32,16]\nmask: causal\noutputs: stats\n"
#define MOST (4 * 32 * 16 * 4)

/* A port that is free now. */
static uint32_t port(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  int one = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(one >= 0 && bind(one, (struct sockaddr *)&at, size) == 0);
  CHECK(getsockname(one, (struct sockaddr *)&at, &size) == 0);
  close(one);
  return ntohs(at.sin_port);
}

static size_t width(int32_t dtype) { return dtype == QKV_F32 ? 4 : 2; }

/* Copies this rank's parts of a whole operand to its memory, or compares them with it. */
static void parts(qkv_rank *rank, size_t place, const qkv_operand *own, const qkv_operand *whole, uint8_t *all,
                  uint8_t *mine, int compare) {
  qkv_part list[4];
  size_t count = 4, size = width(own->dtype);
  OK(qkv_rank_parts(rank, place, list, &count));
  for (size_t n = 0; n < count; n++) {
    const int64_t *dims = list[n].dims;
    for (int64_t i = 0; i < dims[0] * dims[1] * dims[2] * dims[3]; i++) {
      int64_t at[4] = {i / dims[3] / dims[2] / dims[1], i / dims[3] / dims[2] % dims[1], i / dims[3] % dims[2],
                       i % dims[3]};
      int64_t from = 0, to = 0;
      for (int d = 0; d < 4; d++) {
        from += (list[n].start[d] + at[d]) * whole->strides[d];
        to += (list[n].at[d] + at[d]) * own->strides[d];
      }
      uint8_t *here = mine + (size_t)to * size, *there = all + (size_t)from * size;
      if (!compare) {
        memcpy(here, there, size);
      } else if (size == 2) {
        CHECK(memcmp(here, there, size) == 0);
      } else {
        float a, b;
        memcpy(&a, here, 4), memcpy(&b, there, 4);
        CHECK(a - b < 1e-5f && b - a < 1e-5f);
      }
    }
  }
}

static qkv_operand named(qkv_attention *attention, const char *role) {
  size_t count = 0;
  OK(qkv_attention_operand_count(attention, &count));
  for (size_t i = 0; i < count; i++) {
    qkv_operand o = QKV_ZERO;
    o.struct_size = sizeof o;
    OK(qkv_attention_operand(attention, i, &o));
    if (strcmp(o.role, role) == 0) return o;
  }
  CHECK(!"an operand of this role");
  return (qkv_operand)QKV_ZERO;
}

/* Every scheme, beside the oracle over everything. */
static void computes(qkv_communicator *ranks, int32_t scheme, int32_t order, uint32_t number) {
  static uint8_t all[MOST], memory[8][MOST];
  qkv_attention *attention = parse(TEXT);
  qkv_sharding sharding = {scheme, order, number, 0};
  qkv_rank *rank = NULL;
  OK(qkv_rank_prepare(ranks, attention, &sharding, &rank));
  qkv_oracle *oracle = NULL;
  OK(qkv_oracle_new(attention, &oracle));
  OK(qkv_oracle_random(oracle, 7));
  float scale = 0.25f;
  OK(qkv_oracle_set(oracle, "scale", QKV_F32, &scale, sizeof scale));
  OK(qkv_oracle_run(oracle));

  qkv_rank_args args = QKV_ZERO;
  args.struct_size = sizeof args;
  FAILS(qkv_rank_run(rank, &args), QKV_ERROR_ARGUMENT, "has 0 bytes on this rank");
  qkv_named_buffer tensors[8];
  size_t count = 0;
  OK(qkv_rank_operand_count(rank, &count));
  CHECK(count == 5);
  for (int after = 0; after < 2; after++) {
    for (size_t i = 0; i < count; i++) {
      qkv_operand own = QKV_ZERO;
      own.struct_size = sizeof own;
      OK(qkv_rank_operand(rank, i, &own));
      qkv_operand whole = named(attention, own.role);
      CHECK(own.bytes * 2 == whole.bytes && own.dims[2] * 2 == whole.dims[2]);
      size_t bytes = sizeof all;
      if (own.output == after) {
        if (after) {
          OK(qkv_oracle_output(oracle, own.role, 0, all, &bytes));
        } else {
          OK(qkv_oracle_input(oracle, own.role, all, &bytes));
        }
        parts(rank, i, &own, &whole, all, memory[i], after);
      }
      tensors[i].name = own.role;
      tensors[i].buffer.address = (uint64_t)(uintptr_t)memory[i];
      tensors[i].buffer.bytes = own.bytes;
    }
    if (!after) {
      qkv_named_number numbers[] = {{"scale", {QKV_F32, 0, {0.25f}}}};
      args.tensors = tensors, args.tensor_count = count;
      args.scalars = numbers, args.scalar_count = 1;
      OK(qkv_rank_run(rank, &args));
      OK(qkv_rank_wait(rank, 1000));
    }
  }
  char *told = NULL;
  OK(qkv_rank_explain(rank, &told));
  CHECK(strstr(told, "over 2 ranks") != NULL);
  OK(qkv_string_free(told));
  OK(qkv_oracle_free(oracle));
  OK(qkv_attention_free(attention));
  OK(qkv_rank_free(rank));
}

static void mistakes(qkv_context *context, qkv_communicator *ranks, uint32_t number) {
  qkv_attention *attention = parse(TEXT), *odd = parse("q: bf16 [1,4,30,16]\n");
  qkv_sharding sharding = QKV_ZERO;
  qkv_rank *rank = NULL;
  FAILS(qkv_rank_prepare(ranks, odd, &sharding, &rank), QKV_ERROR_REFUSED, "30 tokens for 4 parts");
  sharding.number = 3;
  FAILS(qkv_rank_prepare(ranks, attention, &sharding, &rank), QKV_ERROR_REFUSED, "3 groups of 2 key heads");
  FAILS(qkv_sharding_check(attention, &sharding, 2), QKV_ERROR_REFUSED, "3 groups of 2 key heads");
  sharding.scheme = 9;
  FAILS(qkv_rank_prepare(ranks, attention, &sharding, &rank), QKV_ERROR_ARGUMENT, "the scheme is 9");
  sharding.scheme = QKV_SCHEME_HEADS, sharding.order = 7;
  FAILS(qkv_rank_prepare(ranks, attention, &sharding, &rank), QKV_ERROR_ARGUMENT, "the order is 7");
  FAILS(qkv_rank_prepare(NULL, attention, &sharding, &rank), QKV_ERROR_ARGUMENT, "qkv_communicator is null");
  FAILS(qkv_rank_run(NULL, NULL), QKV_ERROR_ARGUMENT, "qkv_rank is null");
  qkv_world world = QKV_ZERO;
  qkv_communicator *none = NULL;
  world.struct_size = sizeof world, world.ranks = 2, world.rank = 2;
  FAILS(qkv_communicator_join(context, &world, &none), QKV_ERROR_ARGUMENT, "rank 2 of 2");
  world.rank = 0, world.address = "127.0.0.1";
  FAILS(qkv_communicator_join(context, &world, &none), QKV_ERROR_ARGUMENT, "port");
  OK(qkv_communicator_check(ranks));
  /* One rank has another schedule: both are told, and the communicator has ended. */
  sharding.order = QKV_ORDER_ZIGZAG, sharding.scheme = QKV_SCHEME_GATHER, sharding.number = number + 1;
  FAILS(qkv_rank_prepare(ranks, attention, &sharding, &rank), QKV_ERROR_REFUSED, "has schedule");
  qkv_error error = QKV_ZERO;
  error.struct_size = sizeof error;
  OK(qkv_last_error(&error));
  CHECK(strcmp(error.codes, "ranks.differ") == 0);
  OK(qkv_rank_free(rank));
  OK(qkv_attention_free(attention));
  OK(qkv_attention_free(odd));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  qkv_world world = QKV_ZERO;
  world.struct_size = sizeof world, world.ranks = 2, world.device = QKV_NO_GPU, world.port = port();
  world.address = "127.0.0.1", world.secret = "a-secret-of-these-two", world.deadline_ms = 20000;
  pid_t other = fork();
  CHECK(other >= 0);
  world.rank = other == 0;
  qkv_options options = QKV_ZERO;
  options.struct_size = sizeof options, options.vault = argv[1];
  qkv_context *context = NULL;
  qkv_communicator *ranks = NULL;
  OK(qkv_open(&options, &context));
  OK(qkv_communicator_join(context, &world, &ranks));
  computes(ranks, QKV_SCHEME_GATHER, QKV_ORDER_ZIGZAG, 0);
  computes(ranks, QKV_SCHEME_GATHER, QKV_ORDER_CONTIGUOUS, 2);
  computes(ranks, QKV_SCHEME_HEADS, QKV_ORDER_CONTIGUOUS, 0);
  computes(ranks, QKV_SCHEME_RING, QKV_ORDER_ZIGZAG, 0);
  mistakes(context, ranks, world.rank);
  OK(qkv_communicator_free(ranks));
  OK(qkv_close(context));
  int ended = 0;
  if (other != 0) {
    CHECK(waitpid(other, &ended, 0) == other && ended == 0);
    printf("all checks passed\n");
  }
  return 0;
}
