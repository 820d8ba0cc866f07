/* The C interface on a GPU: random attentions forward and backward beside the oracle, captured graphs, threads, batches,
 * and the host time of a call. It is linked with neither libqkvault nor CUDA:
 *
 *   cc -std=c11 -O1 card.c -o card -ldl -lm -lpthread
 *   ./card --library ./libqkvault.so --vault DIR --build --cases 200 --seed 1 --record out.json
 *
 * --dry needs no GPU: it describes and explains the cases, and compares the oracle with attention in plain C. */

#define _POSIX_C_SOURCE 200809L

#include "card/cases.h"
#include "card/families.h"
#include "card/launched.h"
#include "card/special.h"

typedef struct {
  const char *library, *vault, *cudnn, *record;
  int build, cases, device, threads, dry;
  uint64_t seed;
} options;

enum { FORWARD, BACKWARD };
static const char *const PASSES[] = {"forward", "backward"};

/* A case in both directions. A direction without a plan has the codes of its refusal. */
typedef struct {
  card_case drawn;
  qkv_attention *attention[2];
  qkv_plan *plan[2];
  char refused[2][256];
  char what[2][256];
  const char *verdict[2];
  double error[2];
} job;

static struct {
  pthread_mutex_t lock;
  const qkv_context *context;
  job *jobs;
  int next, count, device;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note_refusal(job *j, int pass) {
  qkv_error error = last_error();
  if (error.status != QKV_ERROR_REFUSED) {
    fprintf(stderr, "%s: %s\n", j->drawn.text, error.message);
    exit(1);
  }
  snprintf(j->refused[pass], sizeof j->refused[pass], "%s", error.codes);
}

static void describe(job *j) {
  qkv_attention *attention = NULL;
  if (qkv.qkv_attention_parse(j->drawn.text, strlen(j->drawn.text), &attention) != QKV_OK ||
      qkv.qkv_training(attention, j->drawn.deterministic, j->drawn.sink, &j->attention[FORWARD],
                       &j->attention[BACKWARD]) != QKV_OK) {
    note_refusal(j, FORWARD);
    note_refusal(j, BACKWARD);
    snprintf(j->what[FORWARD], sizeof j->what[FORWARD], "case %d heads", j->drawn.h);
    memcpy(j->what[BACKWARD], j->what[FORWARD], sizeof j->what[BACKWARD]);
  }
  OK(qkv.qkv_attention_free(attention));
  for (int pass = 0; pass < 2; pass++) {
    char *line = NULL;
    if (j->attention[pass] == NULL) continue;
    OK(qkv.qkv_attention_summary(j->attention[pass], &line));
    snprintf(j->what[pass], sizeof j->what[pass], "%s", line);
    OK(qkv.qkv_string_free(line));
  }
}

/* Prepares the plans of cases, which builds them, until none is left. */
static void *prepare(void *unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&queue.lock);
    int at = queue.next++;
    pthread_mutex_unlock(&queue.lock);
    if (at >= queue.count) return NULL;
    job *j = &queue.jobs[at];
    for (int pass = 0; pass < 2; pass++) {
      if (j->attention[pass] == NULL) continue;
      if (qkv.qkv_prepare(queue.context, j->attention[pass], queue.device, NULL, &j->plan[pass]) != QKV_OK) {
        note_refusal(j, pass);
      }
    }
  }
}

/* Gives an oracle every input that another one has. */
static void copy_inputs(const qkv_attention *attention, qkv_oracle *to, const qkv_oracle *from) {
  size_t count = 0;
  OK(qkv.qkv_attention_operand_count(attention, &count));
  for (size_t i = 0; i < count; i++) {
    qkv_operand o = QKV_ZERO;
    o.struct_size = sizeof o;
    OK(qkv.qkv_attention_operand(attention, i, &o));
    size_t bytes = 0;
    void *data = o.output ? NULL : input_of(from, o.role, &bytes);
    if (data != NULL) OK(qkv.qkv_oracle_set(to, o.role, o.dtype, data, bytes));
    free(data);
  }
}

/* Compares the oracle's forward with attention in plain C. */
static void plain(const card_case *c, const qkv_attention *attention, const qkv_oracle *oracle) {
  plain_tensor in[3];
  qkv_operand operands[8];
  size_t count = 0, bytes = 0;
  double scale = 0, cap = 1;
  OK(qkv.qkv_attention_operand_count(attention, &count));
  CHECK(count <= 8);
  for (size_t i = 0; i < count; i++) {
    qkv_operand *o = &operands[i];
    o->struct_size = sizeof *o;
    OK(qkv.qkv_attention_operand(attention, i, o));
    if (o->role_id >= 1 && o->role_id <= 3) {
      plain_tensor *t = &in[o->role_id - 1];
      t->data = input_of(oracle, o->role, &bytes);
      memcpy(t->stride, o->strides, sizeof t->stride);
    } else if (o->scalar) {
      float *value = input_of(oracle, o->role, &bytes);
      *(strcmp(o->role, "scale") == 0 ? &scale : &cap) = (double)*value;
      free(value);
    }
  }
  double *o = NULL, *stats = NULL, row[128];
  const int64_t *stride = NULL;
  for (size_t i = 0; i < count; i++) {
    if (strcmp(operands[i].role, "o") == 0) stride = operands[i].strides;
  }
  OK(qkv.qkv_oracle_output(oracle, "o", QKV_F64, NULL, &bytes));
  OK(qkv.qkv_oracle_output(oracle, "o", QKV_F64, o = malloc(bytes), &bytes));
  OK(qkv.qkv_oracle_output(oracle, "stats", QKV_F64, NULL, &bytes));
  OK(qkv.qkv_oracle_output(oracle, "stats", QKV_F64, stats = malloc(bytes), &bytes));
  for (int b = 0; b < c->b; b++) {
    for (int h = 0; h < c->h; h++) {
      for (int q = 0; q < c->s_q; q += 7) {
        double lse = plain_row(c, in, scale, cap, b, h, q, row), told = stats[(b * c->h + h) * c->s_q + q];
        CHECK(fabs(lse - told) < 1e-9 * (1 + fabs(lse)) || (isinf(lse) && isinf(told)));
        for (int d = 0; d < c->d; d++) {
          double x = o[b * stride[0] + h * stride[1] + q * stride[2] + d * stride[3]];
          CHECK(fabs(x - row[d]) < 1e-9 * (1 + fabs(row[d])));
        }
      }
    }
  }
  free(o);
  free(stats);
  for (int i = 0; i < 3; i++) free(in[i].data);
}

/* Launches both directions over the same inputs; the backward reads what the forward wrote. */
static void run(job *j, int number, uint64_t seed, cu_handle stream) {
  qkv_oracle *backward = oracle_of(j->attention[BACKWARD]), *forward = oracle_of(j->attention[FORWARD]);
  OK(qkv.qkv_oracle_random(backward, seed + (uint64_t)number));
  shape(&j->drawn, j->attention[BACKWARD], backward, number % FAMILIES);
  copy_inputs(j->attention[FORWARD], forward, backward);
  OK(qkv.qkv_oracle_run(forward));
  if (is_plain(&j->drawn)) plain(&j->drawn, j->attention[FORWARD], forward);
  if (stream == NULL || j->plan[FORWARD] == NULL) {
    OK(qkv.qkv_oracle_free(forward));
    OK(qkv.qkv_oracle_free(backward));
    return;
  }
  const char *role = NULL;
  launched first = launched_with(j->plan[FORWARD], forward, NULL, stream);
  OK(launch(&first, stream));
  j->error[FORWARD] = compared(&first, forward, stream, &role);
  j->verdict[FORWARD] = j->error[FORWARD] < 0 ? role : "right";
  if (j->plan[BACKWARD] != NULL) {
    launched second = launched_with(j->plan[BACKWARD], backward, &first, stream);
    OK(launch(&second, stream));
    OK(qkv.qkv_oracle_run(backward));
    j->error[BACKWARD] = compared(&second, backward, stream, &role);
    if (j->error[BACKWARD] < 0) {
      /* Where one key has a row's whole probability, gradients depend on the rounding of O: take that of the GPU. */
      qkv_buffer *buffer = buffer_of(&first, "o");
      void *o = downloaded(buffer, stream);
      OK(qkv.qkv_oracle_set(backward, "o", j->drawn.f16 ? QKV_F16 : QKV_BF16, o, buffer->bytes));
      OK(qkv.qkv_oracle_run_of_o(backward));
      j->error[BACKWARD] = compared(&second, backward, stream, &role);
      free(o);
    }
    j->verdict[BACKWARD] = j->error[BACKWARD] < 0 ? role : "right";
    launched_free(&second);
  }
  launched_free(&first);
  OK(qkv.qkv_oracle_free(forward));
  OK(qkv.qkv_oracle_free(backward));
}

/* What the rules say of the cases on an H200; the number of those that are refused. */
static int explained(const qkv_context *context, const job *jobs, int count) {
  int refused = 0;
  for (int i = 0; i < 2 * count; i++) {
    const qkv_attention *attention = jobs[i / 2].attention[i % 2];
    char *json = NULL;
    if (attention == NULL) continue;
    OK(qkv.qkv_explain(context, attention, "h200", NULL, &json, NULL));
    refused += strstr(json, "\"supported\":false") != NULL;
    OK(qkv.qkv_string_free(json));
  }
  return refused;
}

static options parsed(int argc, char **argv) {
  options o = {.library = "./libqkvault.so", .cases = 200, .threads = 8, .seed = 1};
  for (int i = 1; i < argc; i++) {
    const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(name, "--build") == 0) { o.build = 1; continue; }
    if (strcmp(name, "--dry") == 0) { o.dry = 1; continue; }
    i++;
    if (strcmp(name, "--library") == 0) o.library = value;
    else if (strcmp(name, "--vault") == 0) o.vault = value;
    else if (strcmp(name, "--cudnn") == 0) o.cudnn = value;
    else if (strcmp(name, "--record") == 0) o.record = value;
    else if (strcmp(name, "--cases") == 0) o.cases = atoi(value);
    else if (strcmp(name, "--device") == 0) o.device = atoi(value);
    else if (strcmp(name, "--threads") == 0) o.threads = atoi(value);
    else if (strcmp(name, "--seed") == 0) o.seed = strtoull(value, NULL, 10);
    else {
      fprintf(stderr, "unknown option %s\n", name);
      exit(2);
    }
  }
  return o;
}

typedef struct {
  int right, refused, wrong, batches, families[FAMILIES][3];
  double time[4][2];
  char gpu[128], cudnn[32];
} results;

static void record(const options *o, const results *r, const job *jobs) {
  FILE *file = fopen(o->record, "w");
  CHECK(file != NULL);
  static const char *const calls[] = {"forward", "forward_named", "backward", "backward_named"};
  fprintf(file, "{\n  \"gpu\": \"%s\",\n  \"cudnn\": \"%s\",\n  \"seed\": %llu,\n", r->gpu, r->cudnn,
          (unsigned long long)o->seed);
  fprintf(file, "  \"right\": %d,\n  \"refused\": %d,\n  \"wrong\": %d,\n", r->right, r->refused, r->wrong);
  fprintf(file, "  \"families\": {");
  for (int i = 0; i < FAMILIES; i++) {
    const int *of = r->families[i];
    fprintf(file, "%s\n    \"%s\": { \"right\": %d, \"refused\": %d, \"wrong\": %d }", i == 0 ? "" : ",", FAMILY[i],
            of[0], of[1], of[2]);
  }
  fprintf(file, "\n  },\n");
  fprintf(file, "  \"graphs\": \"right\",\n  \"threads\": \"right\",\n  \"batches\": %d,\n  \"host_us\": {", r->batches);
  for (int i = 0; i < 4; i++) {
    fprintf(file, "%s\n    \"%s\": { \"least\": %.3f, \"median\": %.3f }", i == 0 ? "" : ",", calls[i], r->time[i][0],
            r->time[i][1]);
  }
  fprintf(file, "\n  },\n  \"cases\": [");
  for (int i = 0; i < 2 * o->cases; i++) {
    const job *j = &jobs[i / 2];
    int pass = i % 2;
    fprintf(file, "%s\n    { \"case\": %d, \"pass\": \"%s\", \"family\": \"%s\", \"what\": \"%s\", ",
            i == 0 ? "" : ",", i / 2, PASSES[pass], FAMILY[i / 2 % FAMILIES], j->what[pass]);
    if (j->refused[pass][0] != 0) fprintf(file, "\"verdict\": \"refused\", \"codes\": \"%s\" }", j->refused[pass]);
    else if (j->error[pass] < 0) fprintf(file, "\"verdict\": \"wrong\", \"role\": \"%s\" }", j->verdict[pass]);
    else fprintf(file, "\"verdict\": \"right\", \"error\": %.3e }", j->error[pass]);
  }
  fprintf(file, "\n  ]\n}\n");
  fclose(file);
}

/* Host times of calls of both directions, by order and by name. */
static void times(const qkv_context *context, const options *o, cu_handle stream, results *r) {
  qkv_attention *a = described("q: bf16 [1,16,2048,128]\nmask: causal\n"), *both[2];
  OK(qkv.qkv_training(a, 0, 0, &both[FORWARD], &both[BACKWARD]));
  qkv_oracle *oracle = oracle_of(both[BACKWARD]);
  for (int pass = 0; pass < 2; pass++) {
    qkv_plan *plan = NULL;
    OK(qkv.qkv_prepare(context, both[pass], o->device, stream, &plan));
    OK(qkv.qkv_plan_load_kernels(plan));
    launched l;
    memset(&l, 0, sizeof l);
    l.plan = plan;
    l.info.struct_size = sizeof l.info;
    OK(qkv.qkv_plan_facts(plan, &l.info));
    CHECK(l.info.tensor_count <= MOST && l.info.scalar_count == 1);
    for (unsigned i = 0; i < l.info.tensor_count; i++) {
      l.tensor[i].struct_size = sizeof l.tensor[i];
      OK(qkv.qkv_plan_tensor(plan, i, &l.tensor[i]));
      l.owned[i] = 1;
      l.buffer[i] = (qkv_buffer){device_alloc(l.tensor[i].bytes), l.tensor[i].bytes};
      CU(cu.fill(l.buffer[i].address, 0, l.buffer[i].bytes, stream));
    }
    l.scalar[0].struct_size = sizeof l.scalar[0];
    OK(qkv.qkv_plan_scalar(plan, 0, &l.scalar[0]));
    l.number[0].dtype = QKV_F32;
    l.number[0].value.f32 = 0.088388f;
    l.workspace = (qkv_buffer){device_alloc(l.info.workspace), l.info.workspace};
    for (int named = 0; named < 2; named++) {
      timed(&l, stream, named, &r->time[2 * pass + named][0], &r->time[2 * pass + named][1]);
    }
    launched_free(&l);
    OK(qkv.qkv_plan_free(plan));
    OK(qkv.qkv_attention_free(both[pass]));
  }
  OK(qkv.qkv_oracle_free(oracle));
  OK(qkv.qkv_attention_free(a));
}

int main(int argc, char **argv) {
  options o = parsed(argc, argv);
  results r;
  memset(&r, 0, sizeof r);
  library_open(o.library);
  qkv_options opened = QKV_ZERO;
  opened.struct_size = sizeof opened;
  opened.vault = o.vault;
  opened.cudnn = o.cudnn;
  opened.on_miss = o.build ? QKV_ON_MISS_BUILD : QKV_ON_MISS_FAIL;
  opened.handles = THREADS;
  qkv_context *context = NULL;
  OK(qkv.qkv_open(&opened, &context));

  random_source source = {o.seed * 0x9e3779b97f4a7c15u};
  job *jobs = calloc((size_t)o.cases, sizeof *jobs);
  CHECK(jobs != NULL && o.cases > 0);
  for (int i = 0; i < o.cases; i++) {
    jobs[i].drawn = draw(&source, i);
    describe(&jobs[i]);
  }
  if (o.dry) {
    int refused = explained(context, jobs, o.cases);
    for (int i = 0; i < o.cases; i++) {
      if (jobs[i].attention[FORWARD] != NULL) run(&jobs[i], i, o.seed, NULL);
    }
    printf("dry: %d cases, %d of %d refused for an H200 by rules\n", o.cases, refused, 2 * o.cases);
    return 0;
  }
  if (!driver_open(o.device, r.gpu, sizeof r.gpu)) {
    fprintf(stderr, "there is no GPU %d here\n", o.device);
    return 3;
  }
  cu_handle stream = NULL;
  CU(cu.stream_create(&stream, 1));
  qkv_library_info library = QKV_ZERO;
  library.struct_size = sizeof library;
  OK(qkv.qkv_library(context, &library));
  snprintf(r.cudnn, sizeof r.cudnn, "%s", library.version);
  printf("%s, cuDNN %s (%s)\n", r.gpu, library.version, library.path);

  queue.context = context;
  queue.jobs = jobs;
  queue.count = o.cases;
  queue.device = o.device;
  pthread_t handles[64];
  int threads_of_build = o.threads < 1 ? 1 : o.threads > 64 ? 64 : o.threads;
  double began = now_us();
  for (int i = 0; i < threads_of_build; i++) CHECK(pthread_create(&handles[i], NULL, prepare, NULL) == 0);
  for (int i = 0; i < threads_of_build; i++) pthread_join(handles[i], NULL);
  printf("%d plans prepared in %.1f s\n", 2 * o.cases, (now_us() - began) * 1e-6);

  for (int i = 0; i < o.cases; i++) {
    if (jobs[i].attention[FORWARD] != NULL) run(&jobs[i], i, o.seed, stream);
    for (int pass = 0; pass < 2; pass++) {
      if (jobs[i].refused[pass][0] == 0 && jobs[i].verdict[pass] == NULL) {
        /* Its forward is refused, so that it had nothing to read. */
        snprintf(jobs[i].refused[pass], sizeof jobs[i].refused[pass], "%s", jobs[i].refused[FORWARD]);
      }
      int refused = jobs[i].refused[pass][0] != 0, wrong = !refused && jobs[i].error[pass] < 0;
      r.refused += refused;
      r.wrong += wrong;
      r.right += !refused && !wrong;
      r.families[i % FAMILIES][refused ? 1 : wrong ? 2 : 0]++;
    }
  }
  printf("%d right, %d refused, %d wrong\n", r.right, r.refused, r.wrong);
  graphs(context, o.device, stream);
  puts("graphs: right");
  threads(context, o.device);
  puts("threads: right");
  r.batches = batches(context, o.device, stream);
  printf("batches: %d right\n", r.batches);
  CHECK(r.batches > 0);
  times(context, &o, stream, &r);
  printf("host time of a call, least and median: forward %.2f %.2f us, by name %.2f %.2f, backward %.2f %.2f\n",
         r.time[0][0], r.time[0][1], r.time[1][0], r.time[1][1], r.time[2][0], r.time[2][1]);
  if (o.record != NULL) record(&o, &r, jobs);
  for (int i = 0; i < o.cases; i++) {
    for (int pass = 0; pass < 2; pass++) {
      OK(qkv.qkv_plan_free(jobs[i].plan[pass]));
      OK(qkv.qkv_attention_free(jobs[i].attention[pass]));
    }
  }
  free(jobs);
  CU(cu.stream_destroy(stream));
  OK(qkv.qkv_close(context));
  return r.wrong == 0 ? 0 : 1;
}
