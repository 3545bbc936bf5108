#!/usr/bin/env bash
# What docs/results holds from an H200, measured again: parts of under ten minutes each.
#
#     benchmarks/h200.sh trust OUT     the zoo and 200 honest evaluations; the tests that need a device
#     benchmarks/h200.sh memory OUT    what an archive is worth to the next search
#     benchmarks/h200.sh numerics OUT  FlashKDA's published tests, by the best kernel of each class of numerics
#     benchmarks/h200.sh kda OUT       searched from what is archived; its winners certified under `flashkda`
#     benchmarks/h200.sh forward OUT   RMSNorm, the same under `triton`
#     benchmarks/h200.sh backward OUT  and its backward
#
# Every step has a time limit of its own and prints its time; OUT gets reports and packed archives. EVO_PYTHON names the
# interpreter (python3), TARGET another device's target.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${EVO_PYTHON:-python3} TARGET=${TARGET:-sm_90} PART=${1:?which part} OUT=${2:?where to}
RESULTS=docs/results
export PYTHONUNBUFFERED=1
mkdir -p "$OUT"

step() {  # LIMIT_S NAME COMMAND...
    local limit=$1 name=$2 began=$SECONDS
    shift 2
    timeout -s INT -k 20 "$limit" "$@" 2>&1 | tee "$OUT/$name.txt" | tail -n "${LINES_SHOWN:-40}"
    echo "== $name: exit code ${PIPESTATUS[0]}, $((SECONDS - began)) s"
}

pack() {  # in one file, whoever writes into it
    "$PYTHON" -c 'import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute("VACUUM INTO ?", [sys.argv[2]])' \
        "$OUT/$1.db" "$OUT/$1.packed" && xz -9 -f "$OUT/$1.packed" && mv "$OUT/$1.packed.xz" "$OUT/$1.db.xz"
    rm -f "$OUT/$1.db" "$OUT/$1.db-wal" "$OUT/$1.db-shm"
}

part_trust() {
    step 430 zoo-and-honest "$PYTHON" benchmarks/zoo_and_honest.py --target "$TARGET" --honest 200 --out "$OUT/zoo-and-honest.json"
    step 200 gpu-tests "$PYTHON" -m pytest -m "gpu and not alone" tests/gpu -q -n 8 -p no:cacheprovider -p no:benchmark
    step 200 gpu-alone-tests "$PYTHON" -m pytest -m "gpu and alone" tests/gpu -q -p no:cacheprovider -p no:benchmark
}

part_kda() { search_and_certify kda kda flashkda 2026-12-01-kda-h200; }
part_forward() { search_and_certify forward rmsnorm triton 2026-11-30-rmsnorm-forward-h200; }
part_backward() { search_and_certify backward rmsnorm_backward triton 2026-12-01-rmsnorm-proposals-h200; }

search_and_certify() {  # NAME OPERATOR PROTOCOL RESULTS: from what is archived, by the quicker `rotation`
    xz -dc "$RESULTS/$4/evo.db.xz" > "$OUT/$1.db"
    step 240 "$1-run" "$PYTHON" -m evo run --operator "$2" --target "$TARGET" --budget minutes=2 --archive "$OUT/$1.db" \
        --quiet
    pack "$1"
    mv "$OUT"/evo-winners/*/ "$OUT/$1-winners"  # lay beside the archive
    step 330 "$1-certify" "$PYTHON" -m evo certify "$OUT/$1-winners" --target "$TARGET" --protocol "$3" --sessions 3 \
        --pairs 8 --out "$OUT" --quiet
}

part_memory() {
    step 400 memory-gain "$PYTHON" benchmarks/memory_gain.py --real "$TARGET" --repeats 3 --evaluations 24 \
        --cases bf16-32768x1024 bf16-32768x4096 --out "$OUT/memory-gain.json" --picture "$OUT/memory-gain.svg"
}

part_numerics() {
    step 280 accurate "$PYTHON" benchmarks/kda_matrix.py --genome operators/kda/seeds/solver.cu --class accurate --out "$OUT/accurate.json"
    step 280 exact "$PYTHON" benchmarks/kda_matrix.py --genome operators/kda/seeds/chunked.cu --class exact --out "$OUT/exact.json"
}

nvidia-smi > "$OUT/nvidia-smi.txt" 2>&1 || true
declare -F "part_$PART" > /dev/null || { echo "no part $PART: trust, memory, numerics, kda, forward, backward"; exit 2; }
"part_$PART"
