#!/usr/bin/env bash
# Runs serving tests and measurements on this machine's GPU, and writes records as JSON. Every step has its own time
# limit.
#
#   ./serving.sh [RESULTS] [STEP...]        steps: tests selftest peers memcheck (default: all)
#
#   tests     exec's GPU tests of batches and captured graphs (needs exec-gpu-serving and test-vault in this folder)
#   selftest  1,200 random batches in four parts, and a summary
#   peers     PyTorch, and FlashInfer if it is installed or in wheels/
#   memcheck  a part of the tests under compute-sanitizer, if it is installed
#
# Plans that vault/ lacks are compiled here. QKVAULT_CUDNN_PATH names the cuDNN; the default is PyTorch's.
set -u
cd "$(dirname "$0")"
results=${1:-results}
shift $(($# > 0 ? 1 : 0))
[ $# -eq 0 ] && set -- tests selftest peers memcheck
mkdir -p "$results"
results=$(cd "$results" && pwd)
if [ -z "${QKVAULT_CUDNN_PATH:-}" ]; then
    wheel=$(python3 -c 'import nvidia.cudnn as c; print(list(c.__path__)[0] + "/lib")' 2>/dev/null)
    [ -n "$wheel" ] && export QKVAULT_CUDNN_PATH=$wheel
fi
[ -f vault.qkvpack ] && ./qkvault --vault vault unpack vault.qkvpack > /dev/null
failed=0

# limited NAME SECONDS COMMAND...: runs a command, writes NAME.out and NAME.log, and prints one line.
limited() {
    local name=$1 limit=$2 begun=$SECONDS rc
    shift 2
    timeout -k 5 "$limit" "$@" >"$results/$name.out" 2>"$results/$name.log"
    rc=$?
    [ $rc -ne 0 ] && failed=1
    echo "$name: rc $rc after $((SECONDS - begun)) s: $(tail -n 1 "$results/$name.log" | cut -c1-200)"
    return $rc
}

# Runs the GPU tests with plans that were compiled elsewhere.
tests() {
    [ -x exec-gpu-serving ] || { echo "tests: no exec-gpu-serving here"; return; }
    export QKVAULT_TEST_VAULT=$PWD/test-vault QKVAULT_REQUIRE=gpu
    limited "$1" "$2" "${@:4}" ./exec-gpu-serving --test-threads=1 --nocapture $3
    grep -h "^test .*FAILED\|panicked at\|test result\|update and launch" "$results/$1.out" "$results/$1.log" | head -n 20
}

selftest() {
    local first
    for first in 0 300 600 900; do
        limited "selftest-$first" 90 ./qkvault-lab --vault vault selftest --serving --first $first --cases 300 --seed "${SEED:-11}" \
            ${WITHOUT:+--without "$WITHOUT"} --json --record "$results/selftest-$first.json"
    done
    python3 - "$results" <<'PYTHON'
import glob, json, os, sys
parts = [json.load(open(f)) for f in sorted(glob.glob(sys.argv[1] + "/selftest-[0-9]*.json"), key=lambda f: int(f.split("-")[-1][:-5]))]
if parts:
    whole = dict(parts[0])
    for key in ("cases", "right", "refused", "wrong", "failed", "builds", "seconds"):
        whole[key] = sum(part[key] for part in parts)
    whole["worst_relative_error"] = max(part["worst_relative_error"] for part in parts)
    whole["not_right"] = [row for part in parts for row in part["not_right"]]
    json.dump(whole, open(sys.argv[1] + "/selftest-serving.json", "w"), indent=2)
    print("selftest:", {k: whole[k] for k in ("cases", "right", "refused", "wrong", "failed", "seconds", "worst_relative_error")})
    for row in [row for row in whole["not_right"] if row.get("status") != "refused"][:8]:
        print({k: str(v)[:200] for k, v in row.items() if k != "lengths"})
PYTHON
}

peers() {
    if ! python3 -c 'import flashinfer' 2>/dev/null && ls wheels/*.whl >/dev/null 2>&1; then
        site=$PWD/wheels/site
        if [ ! -d "$site" ]; then
            python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" wheels/*.whl
            # Installs kernels that were compiled elsewhere (folders NAME with NAME.so).
            mkdir -p "$site/flashinfer/data/aot"
            [ -f wheels/kernels.tar ] && tar -xf wheels/kernels.tar -C "$site/flashinfer/data/aot"
        fi
        export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} FLASHINFER_WORKSPACE_BASE=$site
        python3 -c 'import flashinfer; print("flashinfer", flashinfer.__version__)' 2>&1 | tail -n 1
    fi
    # Compiling other kernels here would take minutes. Set FLASHINFER to name kernels anyway.
    local kernels=cuda_cores,fa2
    tar -tf wheels/kernels.tar 2>/dev/null | grep -q _sm90/ && kernels+=,fa3
    limited peers "${PEERS_LIMIT:-170}" python3 serving_peer.py --limit 110 --flashinfer "${FLASHINFER:-$kernels}" --out "$results/peer-serving.json"
    grep " decode \| chunk " "$results/peers.log"
}

for step; do
    case $step in
    tests) tests tests 90 "" ;;
    selftest) selftest ;;
    peers) peers ;;
    memcheck)
        if command -v compute-sanitizer >/dev/null; then
            tests memcheck 120 "every_step" compute-sanitizer --tool memcheck --error-exitcode 9
            grep -h "ERROR SUMMARY\|Invalid" "$results/memcheck.out" | head -n 5
        else
            echo "memcheck: no compute-sanitizer here"
        fi ;;
    *) echo "unknown step '$step'; the top of this file lists the steps"; failed=1 ;;
    esac
done
exit $failed
