#!/usr/bin/env bash
# On a host with two GPUs: random shared attentions beside the oracle, ranks that are killed, the speed of two GPUs
# beside one, PyTorch's context_parallel in the same run; as RESULTS/parallel.json. With --one-gpu all ranks are on one
# GPU, and times say what schedules cost.
#
#   ./parallel.sh [RESULTS] [--one-gpu]
#   PARTS="selftest kills" ./parallel.sh results; PARTS="times peer" ./parallel.sh results     # two calls of ten minutes
#
# Needs the commands in this folder, libnccl.so.2 (python3 -m pip install nvidia-nccl-cu13), and a vault folder or NVRTC
# and cuDNN's compiler (fill it without a GPU: DRY=h200 ./parallel.sh). QKVAULT_CUDNN_PATH names the cuDNN. The peer
# needs PyTorch (PYTHON names the program). CASES (500) and KILLS (100) say how many run, LIMIT (540) the seconds of a
# part.
set -u
cd "$(dirname "$0")"
results=${1:-results}
shift $(($# > 0 ? 1 : 0))
mkdir -p "$results"
parts=${PARTS:-selftest kills times peer}
limit="timeout ${LIMIT:-540}"
dry=${DRY:+--dry $DRY}
vault=${VAULT:-vault}
export NCCL_NVLS_ENABLE=0
failed=0
for part in $parts; do
    began=$SECONDS
    case "$part$dry $*" in
    selftest*) $limit ./qkvault-lab --vault "$vault" selftest --ranks 2 --cases "${CASES:-500}" --seed 20 $dry \
        --record "$results/parallel-selftest.json" "$@" ;;
    *--dry*peer* | peer*--dry* | kills*--dry* | kills*--one-gpu* | peer*--one-gpu*) continue ;;
    kills*) $limit ./qkvault-lab --vault "$vault" selftest --ranks 2 --kills "${KILLS:-100}" \
        --record "$results/parallel-kills.json" "$@" ;;
    times*) $limit ./qkvault-lab --vault "$vault" bench parallel $dry --out "$results/parallel-times.json" "$@" ;;
    peer*) $limit "${PYTHON:-python3}" -m torch.distributed.run --nproc-per-node 2 context_parallel_peer.py \
        --out "$results/parallel-peer.json" ;;
    *) echo "there is no part $part: selftest, kills, times, peer" >&2; exit 2 ;;
    esac
    ended=$?
    echo "$part: ended with $ended after $((SECONDS - began)) s" >&2
    [ $ended = 0 ] || failed=1
done
python3 - "$results" <<'PY'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
parts = {name: folder / f"parallel-{name}.json" for name in ("selftest", "kills", "times", "peer")}
record = {name: json.loads(path.read_text()) for name, path in parts.items() if path.exists()}
(folder / "parallel.json").write_text(json.dumps(record, indent=2) + "\n")
PY
exit $failed
