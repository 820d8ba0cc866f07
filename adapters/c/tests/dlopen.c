/* Opens the library at run time, calls it, and looks whether that has loaded anything of NVIDIA's. */

#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int32_t (*release)(void *);
  *(void **)&release = dlsym(library, "qkv_attention_free");
  if (release == NULL || release(NULL) != 0) {
    return 2;
  }
  char line[4096];
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    if (strstr(line, "cudnn") != NULL || strstr(line, "libcuda") != NULL) {
      fprintf(stderr, "%s", line);
      return 3;
    }
  }
  puts("ok");
  return 0;
}
