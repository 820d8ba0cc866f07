/* Writes what a program calls of CUDA's driver, when, and what its GPUs run: one line of JSON each. It is loaded by the
 * driver into a program that knows nothing of it (trace.sh), over CUPTI, whose header and library PyTorch's wheels have.
 *
 *   {"kind": "kernel", "name": "...", "begin": ns, "end": ns, "gpu": 0, "stream": 13}
 *   {"kind": "copy", "name": "2 MB to GPU 1", "begin": ns, "end": ns, "gpu": 0, "stream": 14}
 *   {"kind": "call", "name": "cuLaunchKernelEx", "begin": ns, "end": ns, "thread": 4711}
 */
#include <cupti.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Records have other names in every major version of CUPTI; trace.sh takes the newest of the header. */
#if !defined(KERNEL_RECORD) || !defined(MEMCPY_RECORD) || !defined(COPY_RECORD)
#error "trace.sh compiles this file: it says KERNEL_RECORD, MEMCPY_RECORD and COPY_RECORD"
#endif

enum { BUFFER_BYTES = 4 << 20 };

static FILE *out;

static void must(CUptiResult result, const char *what)
{
    if (result != CUPTI_SUCCESS) {
        const char *why = "";
        cuptiGetResultString(result, &why);
        fprintf(stderr, "trace: %s: %s\n", what, why);
    }
}

static void CUPTIAPI give(uint8_t **buffer, size_t *bytes, size_t *most)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *bytes = *buffer ? BUFFER_BYTES : 0;
    *most = 0;
}

/* The names of kernels have neither quotes nor backslashes. */
static void write_record(const CUpti_Activity *record)
{
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const KERNEL_RECORD *kernel = (const KERNEL_RECORD *)record;
        fprintf(out, "{\"kind\":\"kernel\",\"name\":\"%.120s\",\"begin\":%llu,\"end\":%llu,\"gpu\":%u,\"stream\":%u}\n",
                kernel->name, (unsigned long long)kernel->start, (unsigned long long)kernel->end, kernel->deviceId,
                kernel->streamId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const MEMCPY_RECORD *copy = (const MEMCPY_RECORD *)record;
        fprintf(out, "{\"kind\":\"copy\",\"name\":\"%.1f MB\",\"begin\":%llu,\"end\":%llu,\"gpu\":%u,\"stream\":%u}\n",
                (double)copy->bytes / 1e6, (unsigned long long)copy->start, (unsigned long long)copy->end,
                copy->deviceId, copy->streamId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY2) {
        const COPY_RECORD *copy = (const COPY_RECORD *)record;
        fprintf(out, "{\"kind\":\"copy\",\"name\":\"%.1f MB to GPU %u\",\"begin\":%llu,\"end\":%llu,\"gpu\":%u,\"stream\":%u}\n",
                (double)copy->bytes / 1e6, copy->dstDeviceId, (unsigned long long)copy->start,
                (unsigned long long)copy->end, copy->srcDeviceId, copy->streamId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_DRIVER) {
        const CUpti_ActivityAPI *call = (const CUpti_ActivityAPI *)record;
        const char *name = "?";
        cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, call->cbid, &name);
        fprintf(out, "{\"kind\":\"call\",\"name\":\"%s\",\"begin\":%llu,\"end\":%llu,\"thread\":%u}\n", name,
                (unsigned long long)call->start, (unsigned long long)call->end, call->threadId);
    }
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    (void)context, (void)stream, (void)bytes;
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        write_record(record);
    }
    free(buffer);
}

static void flush(void)
{
    cuptiActivityFlushAll(1);
    fclose(out);
}

/* The driver calls it when the program begins to use it (CUDA_INJECTION64_PATH). */
int InitializeInjection(void)
{
    const char *path = getenv("TRACE_OUT");
    out = fopen(path ? path : "trace.jsonl", "w");
    if (!out) {
        perror("trace");
        return 1;
    }
    must(cuptiActivityRegisterCallbacks(give, take), "register callbacks");
    must(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "record kernels");
    must(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY), "record copies");
    must(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY2), "record copies between GPUs");
    must(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER), "record calls of the driver");
    atexit(flush);
    return 1;
}
