/* The CUDA driver, opened at run time: memory, streams and graphs in the primary context of a GPU. */

#ifndef CARD_DRIVER_H
#define CARD_DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *cu_handle;

/* Names in the driver, with the parameters that CUDA 12 and 13 give them. */
#define DRIVER(X)                                                                                   \
  X(init, "cuInit", (unsigned))                                                                     \
  X(device_get, "cuDeviceGet", (int *, int))                                                        \
  X(device_name, "cuDeviceGetName", (char *, int, int))                                             \
  X(retain, "cuDevicePrimaryCtxRetain", (cu_handle *, int))                                         \
  X(set_current, "cuCtxSetCurrent", (cu_handle))                                                    \
  X(get_current, "cuCtxGetCurrent", (cu_handle *))                                                  \
  X(alloc, "cuMemAlloc_v2", (uint64_t *, size_t))                                                   \
  X(release, "cuMemFree_v2", (uint64_t))                                                            \
  X(to_device, "cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, cu_handle))                 \
  X(to_host, "cuMemcpyDtoHAsync_v2", (void *, uint64_t, size_t, cu_handle))                         \
  X(fill, "cuMemsetD8Async", (uint64_t, unsigned char, size_t, cu_handle))                          \
  X(stream_create, "cuStreamCreate", (cu_handle *, unsigned))                                       \
  X(stream_wait, "cuStreamSynchronize", (cu_handle))                                                \
  X(stream_destroy, "cuStreamDestroy_v2", (cu_handle))                                              \
  X(capture_begin, "cuStreamBeginCapture_v2", (cu_handle, int))                                     \
  X(capture_end, "cuStreamEndCapture", (cu_handle, cu_handle *))                                    \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", (cu_handle *, cu_handle, unsigned long long)) \
  X(graph_launch, "cuGraphLaunch", (cu_handle, cu_handle))                                          \
  X(graph_exec_destroy, "cuGraphExecDestroy", (cu_handle))                                          \
  X(graph_destroy, "cuGraphDestroy", (cu_handle))

static struct {
#define POINTER(field, name, parameters) int(*field) parameters;
  DRIVER(POINTER)
#undef POINTER
  cu_handle context;
} cu;

#define CU(call)                                                                                    \
  do {                                                                                              \
    int status_ = (call);                                                                           \
    if (status_ != 0) {                                                                             \
      fprintf(stderr, "%s:%d: %s: CUDA error %d\n", __FILE__, __LINE__, #call, status_);            \
      exit(1);                                                                                      \
    }                                                                                               \
  } while (0)

/* Opens the driver and makes the primary context of a GPU current on this thread. Returns 0 without a driver. */
static inline int driver_open(int device, char *name, int room) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) {
    return 0;
  }
#define FIND(field, symbol, parameters)                                                             \
  *(void **)&cu.field = dlsym(library, symbol);                                                     \
  if (cu.field == NULL) {                                                                           \
    fprintf(stderr, "the driver has no %s\n", symbol);                                              \
    exit(2);                                                                                        \
  }
  DRIVER(FIND)
#undef FIND
  int ordinal = 0;
  if (cu.init(0) != 0 || cu.device_get(&ordinal, device) != 0) {
    return 0;
  }
  CU(cu.device_name(name, room, ordinal));
  CU(cu.retain(&cu.context, ordinal));
  CU(cu.set_current(cu.context));
  return 1;
}

static inline uint64_t device_alloc(size_t bytes) {
  uint64_t address = 0;
  CU(cu.alloc(&address, bytes == 0 ? 256 : bytes));
  return address;
}

#endif
