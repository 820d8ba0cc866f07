#!/usr/bin/env bash
# Measures launches, cold start, kernels and memory on this machine's GPU beside PyTorch, and writes records, pages and
# plots to a folder (default: results).
#
#   ./bench.sh [RESULTS] [PART...]      parts: launch cold shapes memory kernels (default: all)
#
# Needs the commands in this folder and `vault.qkvpack`. QKVAULT_CUDNN_PATH names the cuDNN; the default is PyTorch's.
# Without PyTorch the records have no peer.
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
[ $# -gt 0 ] || set -- all
status=0
for part in "$@"; do
    ./qkvault-lab --vault vault bench "$part" --out "$results" || status=1
done
exit $status
