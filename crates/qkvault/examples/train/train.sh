#!/usr/bin/env bash
# Trains the example on this machine's GPU, then the same model in PyTorch float32, and compares the loss curves.
#
#   ./train.sh [RESULTS] [OPTIONS of the example...]      such as --steps 200 --dtype f16 --build
#
# Needs the program `train` in this folder, `vault.qkvpack` or --build, and python3 with PyTorch. QKVAULT_CUDNN_PATH
# names the cuDNN; the default is PyTorch's, with the cuBLAS that it needs.
set -u
cd "$(dirname "$0")"
results=${1:-results}
shift $(($# > 0 ? 1 : 0))
mkdir -p "$results"
libraries() { python3 -c "import importlib.util as u; print('\n'.join(p + '/lib' for n in ('$1',) if u.find_spec(n) for p in u.find_spec(n).submodule_search_locations))" 2>/dev/null; }
[ -n "${QKVAULT_CUDNN_PATH:-}" ] || export QKVAULT_CUDNN_PATH=$(libraries nvidia.cudnn)
for name in nvidia.cu13 nvidia.cublas; do
    found=$(libraries $name)
    [ -n "$found" ] && export LD_LIBRARY_PATH=$found:${LD_LIBRARY_PATH:-}
done
[ -f vault.qkvpack ] && ./qkvault --vault vault unpack vault.qkvpack > /dev/null
./train --vault vault --out "$results/train-rust.json" "$@" || exit 1
python3 train.py "$results/train-rust.json" --out "$results/train.json"
