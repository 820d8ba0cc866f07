#!/usr/bin/env bash
# Runs the self-test and compute-sanitizer on this machine's GPU, in parts with a time limit each, and writes records as
# JSON.
#
#   ./trust.sh RESULTS STEP...     steps: selftest sanitize strides (in the order given)
#
#   selftest  CASES random attentions (default 2,000) of seed SEED (default 101) from FIRST on, in parts of 1,000
#   sanitize  SANITIZE cases of the same seed (default 500) under TOOL of compute-sanitizer (default memcheck)
#   strides   strides.txt and odd-tensors.txt, plain and under memcheck
#
# ENGINE=kernels or ENGINE=fa4 takes the plans of that engine instead of cuDNN's, over cases that it takes.
#
# QKVAULT_CUDNN_PATH names the cuDNN; the default is PyTorch's. The vault (VAULT, default ./trust-vault) keeps the plans
# of `selftest` for `sanitize`: use one vault per cuDNN. sum_records.py makes docs/results/selftest.json from the
# records; each log of the sanitizer ends with its summary.
set -u
cd "$(dirname "$0")"
results=${1:?"./trust.sh RESULTS STEP..."}
shift
mkdir -p "$results"
results=$(cd "$results" && pwd)
if [ -z "${QKVAULT_CUDNN_PATH:-}" ]; then
    wheel=$(python3 -c 'import nvidia.cudnn as c; print(list(c.__path__)[0] + "/lib")' 2>/dev/null)
    [ -n "$wheel" ] && export QKVAULT_CUDNN_PATH=$wheel
fi
vault=${VAULT:-trust-vault} seed=${SEED:-101} first=${FIRST:-0} name=${NAME:-$(basename "$vault")}
failed=0 engine=${ENGINE:-cudnn} tool=${TOOL:-memcheck}

# record NAME SECONDS OPTIONS...: runs the self-test once, writes its record, and prints its counts.
record() {
    local record="$results/$1.json" limit=$2 begun=$SECONDS rc
    shift 2
    timeout -k 5 "$limit" ./qkvault-lab --vault "$vault" selftest "$@" --json --record "$record" >/dev/null 2>"$record.err"
    rc=$?
    [ $rc -gt 1 ] && { failed=1; tail -n 2 "$record.err" | cut -c1-300; }
    python3 - "$record" "$rc" $((SECONDS - begun)) <<'PY'
import json, os, sys
path, rc, seconds = sys.argv[1:]
if os.path.exists(path):
    r = json.load(open(path))
    print(os.path.basename(path), "rc", rc, seconds, "s", {k: r[k] for k in ("cases", "right", "refused", "wrong", "failed") if k in r})
    for row in r.get("not_right", []):
        if row["status"] != "refused":
            print("  ", row["case"], row["status"], row.get("attention", ""), str(row.get("why", ""))[:160])
PY
    rm -f "$record.err"
}

# sanitized NAME SECONDS OPTIONS...: runs the self-test under compute-sanitizer, and prints the summary of its log.
sanitized() {
    local log="$results/$1.log" limit=$2
    shift 2
    local check=(compute-sanitizer --tool "$tool" --report-api-errors no --print-limit 100 --log-file "$log")
    # An access beyond an operand then hits no other allocation.
    [ "$tool" = memcheck ] && check+=(--padding 256)
    timeout -k 5 "$limit" "${check[@]}" ./qkvault-lab --vault "$vault" selftest "$@" --json >/dev/null || failed=1
    grep -h "ERROR SUMMARY\|Invalid" "$log" | sort | uniq -c
}

for step; do
    case $step in
    selftest)
        end=$((first + ${CASES:-2000}))
        for ((at = first; at < end; at += 1000)); do
            part=$((end - at < 1000 ? end - at : 1000))
            record "selftest-$name-$seed-$at" 300 --engine "$engine" --cases "$part" --first "$at" --seed "$seed" --isolate 40
        done ;;
    sanitize)
        sanitized "sanitize-$name-$seed-$first" "${LIMIT:-580}" --engine "$engine" --cases "${SANITIZE:-500}" --first "$first" --seed "$seed" ;;
    strides)
        for file in strides odd-tensors; do
            record "$file-$name" 240 --file "$file.txt" --isolate 4
            sanitized "sanitize-$file-$name" 240 --file "$file.txt"
        done ;;
    *) echo "unknown step '$step'; the top of this file lists the steps" >&2; exit 2 ;;
    esac
done
exit $failed
