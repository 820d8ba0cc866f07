#!/usr/bin/env bash
# Measures training speed of qkvault and PyTorch on this machine's GPU, and writes the record as JSON and Markdown.
#
#   ./training.sh [RESULTS] [OPTIONS of `qkvault-lab bench attentions`...]   such as --only softcap-causal --form auto,fused --build
#
# Needs the commands in this folder, `vault.qkvpack` or --build, and python3 with PyTorch. QKVAULT_CUDNN_PATH names the
# cuDNN; the default is PyTorch's.
set -u
cd "$(dirname "$0")"
results=${1:-results}
shift $(($# > 0 ? 1 : 0))
mkdir -p "$results"
if [ -z "${QKVAULT_CUDNN_PATH:-}" ]; then
    wheel=$(python3 -c 'import nvidia.cudnn as c; print(list(c.__path__)[0] + "/lib")' 2>/dev/null)
    [ -n "$wheel" ] && export QKVAULT_CUDNN_PATH=$wheel
fi
[ -f vault.qkvpack ] && ./qkvault --vault vault unpack vault.qkvpack > /dev/null
python3 training_peers.py --out "$results/training.json" -- ./qkvault-lab --vault vault bench attentions --cases training.txt "$@"
