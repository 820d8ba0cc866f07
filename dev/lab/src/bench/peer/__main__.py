"""Times other libraries for `qkvault-lab bench`: answers each line of JSON with a line of JSON.

    python3 FOLDER serve|first|flex|warm GPU

`first` and `flex` compute one attention before the first answer, with PyTorch's cuDNN backend or compiled
FlexAttention: the caller measures the time from the start of the process to that answer. `warm` reads one line with
all cases, compiles in parallel what they need into the caches of the libraries, and says so in a line; `serve` compiles
nothing of FlashInfer's.
"""
import json
import os
import site
import sys

MODE, GPU = sys.argv[1], int(sys.argv[2])


def say(value):
    print(json.dumps(value), file=ANSWERS, flush=True)


# Libraries print; answers have a stream of their own.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
    # A folder of that list has its .pth files read in no other way.
    site.addsitedir(folder)
os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
# Without it, matrix products of the check fail where PyTorch is told to sum in one order.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

try:
    import torch
    from torch.nn.attention import SDPBackend

    torch.cuda.set_device(GPU)
    MACHINE = {
        "torch": torch.__version__, "torch_cudnn": torch.backends.cudnn.version(), "gpu": torch.cuda.get_device_name(),
    }
except Exception as problem:
    say({"error": f"{type(problem).__name__}: {problem}"[:300]})
    sys.exit(1)

import measure
import plain

REQUESTS = {
    "case": measure.prepared, "turn": measure.turn, "free": measure.free, "kernel": plain.kernel, "time": plain.timed,
    "small": plain.small, "host": plain.host, "shapes": plain.shapes,
}


def answer(request):
    if request["do"] not in REQUESTS:
        raise ValueError(f"unknown request {request['do']!r}")
    with torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return REQUESTS[request["do"]](request)


def main():
    if MODE == "warm":
        import warm

        say(MACHINE)
        say(warm.compiled(json.loads(sys.stdin.readline()), GPU))
        return
    if MODE in ("first", "flex"):
        with torch.no_grad(), torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            plain.first(MODE)
    say(MACHINE)
    for line in sys.stdin:
        try:
            say(answer(json.loads(line)))
        except Exception as problem:
            say({"error": f"{type(problem).__name__}: {problem}"[:300]})


if __name__ == "__main__":
    main()
