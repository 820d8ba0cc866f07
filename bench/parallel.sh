#!/usr/bin/env bash
# On a host with two GPUs: random shared attentions beside the oracle, ranks that are killed, the speed of two GPUs
# beside one, as RESULTS/parallel.json. With --one-gpu all ranks are on one GPU, and times say what schedules cost.
#
#   ./parallel.sh [RESULTS] [--one-gpu]
#
# Needs the commands in this folder, libnccl.so.2 (python3 -m pip install nvidia-nccl-cu13), and a vault folder or NVRTC
# and cuDNN's compiler. QKVAULT_CUDNN_PATH names the cuDNN. CASES (500) says how many random attentions run.
set -u
cd "$(dirname "$0")"
results=${1:-results}
shift $(($# > 0 ? 1 : 0))
mkdir -p "$results"
export NCCL_NVLS_ENABLE=0
./qkvault-lab --vault vault selftest --ranks 2 --cases "${CASES:-500}" --seed 20 --record "$results/parallel-selftest.json" "$@"
case " $* " in *--one-gpu*) ;; *) ./qkvault-lab --vault vault selftest --ranks 2 --kills "${KILLS:-100}" --record "$results/parallel-kills.json" ;; esac
./qkvault-lab --vault vault bench parallel --out "$results/parallel-times.json" "$@"
python3 - "$results" <<'PY'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
parts = {name: folder / f"parallel-{name}.json" for name in ("selftest", "kills", "times")}
record = {name: json.loads(path.read_text()) for name, path in parts.items() if path.exists()}
(folder / "parallel.json").write_text(json.dumps(record, indent=2) + "\n")
PY
