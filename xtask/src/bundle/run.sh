#!/usr/bin/env bash
# Runs all plans of this bundle on this machine's GPU and writes JSON files to a folder (default: results).
#
#   ./run.sh [RESULTS] [MODEL...]       models by name, such as llama-3.1-8b (default: all)
#
# The cuDNN is ./cudnn if the bundle contains it, else QKVAULT_CUDNN_PATH, else python3's nvidia-cudnn wheel
# (PyTorch's), else the one that qkvault finds.
set -u
cd "$(dirname "$0")"
results=${1:-results}
shift $(($# > 0 ? 1 : 0))
mkdir -p "$results"
if [ -d cudnn ]; then
    export QKVAULT_CUDNN_PATH=$PWD/cudnn
elif [ -z "${QKVAULT_CUDNN_PATH:-}" ]; then
    wheel=$(python3 -c 'import nvidia.cudnn as c; print(list(c.__path__)[0] + "/lib")' 2>/dev/null)
    [ -n "$wheel" ] && export QKVAULT_CUDNN_PATH=$wheel
fi
./qkvault --vault vault unpack vault.qkvpack || exit 1
./qkvault --vault vault doctor --json >"$results/doctor.json"
models=()
if [ $# -gt 0 ]; then
    for name in "$@"; do models+=(--model "models/$name.json"); done
else
    for file in models/*.json; do models+=(--model "$file"); done
fi
status=0
./qkvault --vault vault run "${models[@]}" --pack vault.qkvpack --stats --json >"$results/run-bf16.json" || status=1
./qkvault --vault vault run "${models[@]}" --pack vault.qkvpack --stats --dtype f16 --json >"$results/run-f16.json" || status=1
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    python3 sdpa_peer.py "$results/run-bf16.json" >"$results/peer-bf16.json" || status=1
fi
python3 - "$results" <<'END' || true
import json, sys
for name in ("run-bf16", "run-f16"):
    d = json.load(open(f"{sys.argv[1]}/{name}.json"))
    print(name, {k: d[k] for k in ("right", "wrong", "refused", "failed")}, {k: v for k, v in d["machine"].items() if k.startswith("median") or k in ("builds", "pack")})
END
exit $status
