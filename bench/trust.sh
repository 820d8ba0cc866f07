#!/usr/bin/env bash
# The self-test and compute-sanitizer on this machine's GPU, in parts, each with a limit of its own; records as JSON.
#
#   ./trust.sh RESULTS STEP...     steps: selftest sanitize strides (in the order given)
#
#   selftest  CASES random attentions (default 2,000) of seed SEED (default 101) from FIRST on, in parts of 1,000: rules, library and card
#   sanitize  SANITIZE cases of the same seed (default 500) under memcheck, every SAMPLE-th (20) under initcheck and racecheck too
#   strides   strides.txt and odd-tensors.txt, plain and under memcheck
#
# cuDNN is QKVAULT_CUDNN_PATH, else PyTorch's. The vault (VAULT, default ./trust-vault) keeps what `selftest` compiles for `sanitize`:
# use one for each cuDNN. sum_records.py makes docs/results/selftest.json and sanitize.json of the records.
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
failed=0

# record NAME SECONDS OPTIONS...: one run of the self-test, its record, and a line of what it counts.
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
    print(os.path.basename(path), "rc", rc, seconds, "s", {k: r[k] for k in ("cases", "right", "refused", "wrong", "failed", "errors", "tools") if k in r})
    for row in r.get("not_right", []):
        if row["status"] != "refused":
            print("  ", row["case"], row["status"], row.get("attention", ""), str(row.get("why", ""))[:160])
    for f in r.get("faults", []):
        print("  ", f["tool"], f["what"], f["kernel"][-60:], f["place"], f["count"])
PY
    rm -f "$record.err"
}

for step; do
    case $step in
    selftest)
        end=$((first + ${CASES:-2000}))
        for ((at = first; at < end; at += 1000)); do
            part=$((end - at < 1000 ? end - at : 1000))
            record "selftest-$name-$seed-$at" 300 --verdicts --cases "$part" --first "$at" --seed "$seed" --isolate 40
        done ;;
    sanitize)
        record "sanitize-$name-$seed-$first" "${LIMIT:-580}" --sanitize --cases "${SANITIZE:-500}" --first "$first" --seed "$seed" \
            --sample "${SAMPLE:-20}" ;;
    strides)
        for file in strides odd-tensors; do
            record "$file-$name" 240 --file "$file.txt" --isolate 4
            record "sanitize-$file-$name" 240 --file "$file.txt" --sanitize --sample 0
        done ;;
    *) echo "$step is no step; the top of this file has them" >&2; exit 2 ;;
    esac
done
exit $failed
