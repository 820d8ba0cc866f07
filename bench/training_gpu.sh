#!/usr/bin/env bash
# Runs the GPU tests and measurements of training, the most important first. Every step has its own time limit.
#
#   ./training_gpu.sh RESULTS [STEP...]     steps: documents selftest plain exec example (default: all)
#
# Needs the same files as training.sh. `exec` also needs the test programs exec-gpu and exec-gpu-training, with their
# plans in exec-vault. An interrupted step leaves a record of its results so far. SELFTEST_CASES and
# SELFTEST_SEED change the amounts.
set -u
cd "$(dirname "$0")"
results=${1:?"./training_gpu.sh RESULTS [STEP...]"}
shift
mkdir -p "$results"
results=$(cd "$results" && pwd)
if [ -z "${QKVAULT_CUDNN_PATH:-}" ]; then
    wheel=$(python3 -c 'import nvidia.cudnn as c; print(list(c.__path__)[0] + "/lib")' 2>/dev/null)
    [ -n "$wheel" ] && export QKVAULT_CUDNN_PATH=$wheel
fi
[ -f vault.qkvpack ] && ./qkvault --vault vault unpack vault.qkvpack > /dev/null

peers() { # NAME SECONDS OPTIONS-OF-THE-PEER -- OPTIONS-OF-BENCH
    local name=$1 seconds=$2 mine=()
    shift 2
    while [ "${1:-}" != -- ]; do mine+=("$1"); shift; done
    shift
    timeout -k 5 "$seconds" python3 training_peers.py --out "$results/$name.json" "${mine[@]}" -- \
        ./qkvault-lab --vault vault bench attentions --cases training.txt --build "$@"
}

# Compares documents as varlen sequences and as a mask predicate with FlexAttention.
documents() {
    peers documents 300 --rounds 9 -- \
        --only documents-softcap,documents-softcap-varlen,uneven-documents-softcap-varlen,uneven-documents-causal-softcap-varlen
}

# Runs random attentions in worker processes, in parts.
selftest() {
    local cases=${SELFTEST_CASES:-2400} seed=${SELFTEST_SEED:-61} part=800 first=0
    while [ "$first" -lt "$cases" ]; do
        timeout -k 5 420 ./qkvault-lab selftest --cases "$part" --first "$first" --seed "$seed" --isolate 40 --json \
            --record "$results/selftest-$seed-$first.json" > /dev/null 2> "$results/selftest-$seed-$first.err"
        python3 - "$results/selftest-$seed-$first.json" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
print({k: r[k] for k in ("first", "right", "refused", "wrong", "failed", "seconds")}, "repeated alone:", len(r["repeated_alone"]))
for row in r["not_right"]:
    if row["status"] != "refused":
        print(row["case"], row["status"], row.get("attention"), row["why"][:200])
PY
        first=$((first + part))
    done
}

# Measures the two plain cases that missed their goal, with a rest before each turn.
plain() {
    peers plain 240 --burst 0.003 --rest 0.25 --rounds 11 -- --only causal-8k,full-16k
}

# Runs exec's GPU tests of plans, bindings and training pairs.
exec_tests() {
    if [ ! -x exec-gpu-training ]; then
        echo "no exec-gpu-training here"
        return
    fi
    for program in exec-gpu-training exec-gpu; do
        QKVAULT_TEST_VAULT=exec-vault QKVAULT_REQUIRE=gpu timeout -k 5 120 "./$program" --test-threads=1 --nocapture \
            > "$results/$program.txt" 2>&1
        grep -E "^test result|FAILED|panicked" "$results/$program.txt"
    done
}

# Two layers for 200 steps beside PyTorch float32.
example() {
    timeout -k 5 180 ./train.sh "$results/train"
}

[ $# -gt 0 ] || set -- documents selftest plain exec example
for step in "$@"; do
    echo "== $step"
    begun=$SECONDS
    case $step in
        documents | selftest | plain | example) "$step" ;;
        exec) exec_tests ;;
        *) echo "no step '$step'" >&2; exit 2 ;;
    esac
    echo "== $step: $((SECONDS - begun)) s, exit $?"
done
