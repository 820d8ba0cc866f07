#!/usr/bin/env bash
# Loads the example server on this machine's GPU, and writes records as JSON. Each step has its own time limit.
#
#   ./server.sh [RESULTS] [STEP...]        steps: smoke bench preempt (default: all)
#
#   smoke    a few users and 20 scored answers; if it fails nothing else runs
#   bench    1 to 256 users beside PyTorch's server (server_peer.py); 2,000 answers are scored
#   preempt  a pool that is too small: hundreds of preemptions, and scores of the answers that were computed again
#
# SECONDS_EACH is the length of a measurement (default 4), SCORED the answers that are scored. QKVAULT_CUDNN_PATH names
# the cuDNN; the default is PyTorch's, as for cuBLASLt and NVRTC. Plans that vault.qkvpack lacks are compiled here.
set -u
cd "$(dirname "$0")"
results=${1:-results}
shift $(($# > 0 ? 1 : 0))
[ $# -eq 0 ] && set -- smoke bench preempt
mkdir -p "$results"
wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)
if [ -z "${QKVAULT_CUDNN_PATH:-}" ] && [ -n "$wheels" ]; then
    export QKVAULT_CUDNN_PATH=$wheels/cudnn/lib
fi
for folder in "$wheels/cu13/lib" /usr/local/cuda/lib64; do
    if [ -d "$folder" ]; then
        export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        break
    fi
done
vault=$PWD/server-vault
[ -f vault.qkvpack ] && [ -x qkvault ] && ./qkvault --vault "$vault" unpack vault.qkvpack >"$results/unpack.log" 2>&1
failed=0

# limited NAME SECONDS COMMAND...: runs a command, writes NAME.log and NAME.json, and prints one line.
limited() {
    local name=$1 limit=$2 begun=$SECONDS rc
    shift 2
    timeout -k 5 "$limit" "$@" --vault "$vault" --out "$results/server-$name.json" >"$results/server-$name.log" 2>&1
    rc=$?
    echo "$name: rc $rc after $((SECONDS - begun)) s: $(tail -n 1 "$results/server-$name.log" | cut -c1-200)"
    [ $rc -ne 0 ] && failed=1
    return $rc
}

for step in "$@"; do
    case $step in
    smoke) limited smoke 45 ./load bench --users 4 --seconds 1.5 --scored 20 || exit 1 ;;
    bench)
        limited bench 170 ./load bench --seconds "${SECONDS_EACH:-4}" --scored "${SCORED:-2000}" --peer server_peer.py
        grep -h '"tokens_per_s"' "$results/server-bench.log" | grep '^{' | cut -c1-240
        ;;
    preempt) limited preempt 60 ./load preempt ;;
    *) echo "no step $step"; exit 2 ;;
    esac
done
exit $failed
