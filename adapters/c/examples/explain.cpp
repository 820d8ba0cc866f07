// Asks, without a GPU and without cuDNN, on which GPUs attentions run, and why not.
//
//   c++ -std=c++17 explain.cpp -o explain $(pkg-config --cflags --libs qkvault) -Wl,-rpath,/opt/qkvault/lib
//   ./explain h200 b200

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "qkvault.h"

namespace {

void check(std::int32_t status) {
  if (status != QKV_OK) throw std::runtime_error(qkv_last_message());
}

struct Free {
  void operator()(qkv_context *context) const { qkv_close(context); }
  void operator()(qkv_attention *attention) const { qkv_attention_free(attention); }
  void operator()(char *text) const { qkv_string_free(text); }
};

template <typename T>
using Owned = std::unique_ptr<T, Free>;

Owned<qkv_attention> describe(const std::string &text) {
  qkv_attention *attention = nullptr;
  check(qkv_attention_parse(text.data(), text.size(), &attention));
  return Owned<qkv_attention>(attention);
}

}  // namespace

int main(int argc, char **argv) try {
  qkv_options options QKV_ZERO;
  options.struct_size = sizeof options;
  options.vault_mode = QKV_VAULT_OFF;
  qkv_context *opened = nullptr;
  check(qkv_open(&options, &opened));
  Owned<qkv_context> context(opened);

  for (const char *text : {"q: bf16 [1,32,4096,128]\nk: [1,8,4096,128]\nmask: causal",
                           "q: f16 [1,8,512,100]"}) {
    const auto attention = describe(text);
    for (int gpu = 1; gpu < argc; gpu++) {
      char *answer = nullptr;
      check(qkv_explain(context.get(), attention.get(), argv[gpu], nullptr, nullptr, &answer));
      const Owned<char> owned(answer);
      std::printf("%s: %s\n", argv[gpu], answer);
    }
  }
  return 0;
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
