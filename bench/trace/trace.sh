#!/usr/bin/env bash
# What a program's threads call of the driver and what its GPUs run, as lines of JSON: trace.sh FILE PROGRAM WORDS...
# Needs a C compiler and CUPTI, which PyTorch's wheels bring (PYTHON names the program). picture.py draws it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
file=$1
shift
cupti=$("${PYTHON:-python3}" -c 'import nvidia; print(next(p + "/cu13" for p in nvidia.__path__))')
newest() { grep -oh "$1[0-9]*" "$cupti"/include/cupti_activity*.h | sort -uV | tail -1; }
library=$(mktemp -d)
trap 'rm -r "$library"' EXIT
cc -O2 -shared -fPIC -D_DEFAULT_SOURCE -DKERNEL_RECORD="$(newest CUpti_ActivityKernel)" \
    -DMEMCPY_RECORD="$(newest CUpti_ActivityMemcpy)" -DCOPY_RECORD="$(newest CUpti_ActivityMemcpyPtoP)" \
    -I"$cupti/include" \
    -I/usr/local/cuda/include -o "$library/trace.so" "$here/trace.c" -L"$cupti/lib" -l:libcupti.so.13 -Wl,-rpath,"$cupti/lib"
TRACE_OUT=$file CUDA_INJECTION64_PATH=$library/trace.so "$@"
