#!/usr/bin/env bash
# Serving on this machine's GPU, and its records as JSON: every step with a limit of its own, so that one that hangs costs no more.
#
#   ./serving.sh [RESULTS] [STEP...]        steps: tests selftest bench serve peers memcheck (default: all, in this order)
#
#   tests     exec's GPU tests of batches and captured graphs (exec-gpu-serving and test-vault, where they are carried)
#   selftest  1,200 random batches in four parts, and their sum
#   bench     decode, padding, prefill, 10,000 steps
#   serve     the example: continuous batching, every step compared with the oracle
#   peers     PyTorch, and FlashInfer where it imports or wheels/ has it
#   memcheck  a part of tests under compute-sanitizer, where there is one
#
# Plans that vault/ does not have are compiled here. cuDNN is QKVAULT_CUDNN_PATH, else PyTorch's.
set -u
cd "$(dirname "$0")"
results=${1:-results}
shift $(($# > 0 ? 1 : 0))
[ $# -eq 0 ] && set -- tests selftest bench serve peers memcheck
mkdir -p "$results"
results=$(cd "$results" && pwd)
if [ -z "${QKVAULT_CUDNN_PATH:-}" ]; then
    wheel=$(python3 -c 'import nvidia.cudnn as c; print(list(c.__path__)[0] + "/lib")' 2>/dev/null)
    [ -n "$wheel" ] && export QKVAULT_CUDNN_PATH=$wheel
fi
failed=0

# limited NAME SECONDS COMMAND...: its output in NAME.out and NAME.log, one line here.
limited() {
    local name=$1 limit=$2 begun=$SECONDS rc
    shift 2
    timeout -k 5 "$limit" "$@" >"$results/$name.out" 2>"$results/$name.log"
    rc=$?
    [ $rc -ne 0 ] && failed=1
    echo "$name: rc $rc after $((SECONDS - begun)) s: $(tail -n 1 "$results/$name.log" | cut -c1-200)"
    return $rc
}

# The GPU tests over plans that were compiled elsewhere.
tests() {
    [ -x exec-gpu-serving ] || { echo "tests: no exec-gpu-serving here"; return; }
    export QKVAULT_TEST_VAULT=$PWD/test-vault QKVAULT_REQUIRE_GPU=1
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
            # Kernels that were compiled elsewhere (folders NAME with NAME.so), so that none is compiled here.
            mkdir -p "$site/flashinfer/data/aot"
            [ -f wheels/kernels.tar ] && tar -xf wheels/kernels.tar -C "$site/flashinfer/data/aot"
        fi
        export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} FLASHINFER_WORKSPACE_BASE=$site
        python3 -c 'import flashinfer; print("flashinfer", flashinfer.__version__)' 2>&1 | tail -n 1
    fi
    # What was not compiled elsewhere would be compiled here for minutes: FLASHINFER names what to take all the same.
    local kernels=cuda_cores,fa2
    tar -tf wheels/kernels.tar 2>/dev/null | grep -q _sm90/ && kernels+=,fa3
    limited peers "${PEERS_LIMIT:-170}" python3 serving_peer.py --limit 110 --flashinfer "${FLASHINFER:-$kernels}" --out "$results/peer-serving.json"
    grep " decode \| chunk " "$results/peers.log"
}

for step; do
    case $step in
    tests) tests tests 90 "" ;;
    selftest) selftest ;;
    bench) limited bench 170 ./qkvault-lab --vault vault bench-serving decode padding prefill steps --limit 120 --steps 10000 --json \
        --record "$results/bench-serving.json" ;;
    serve) QKVAULT_CACHE_DIR=$PWD/vault limited serve 90 ./serve --build --requests 60 --out "$results/serve.json" ;;
    peers) peers ;;
    memcheck)
        if command -v compute-sanitizer >/dev/null; then
            tests memcheck 120 "p22_every" compute-sanitizer --tool memcheck --error-exitcode 9
            grep -h "ERROR SUMMARY\|Invalid" "$results/memcheck.out" | head -n 5
        else
            echo "memcheck: no compute-sanitizer here"
        fi ;;
    *) echo "$step is no step; the top of this file has them"; failed=1 ;;
    esac
done
exit $failed
