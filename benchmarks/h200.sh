#!/usr/bin/env bash
# What docs/results holds from an H200, measured again: parts of under ten minutes each.
#
#     benchmarks/h200.sh trust OUT     the zoo and 200 honest evaluations; the tests that need a device
#     benchmarks/h200.sh kda OUT       pending proposals judged, then a search, under `flashkda`
#     benchmarks/h200.sh memory OUT    what an archive is worth to the next search
#     benchmarks/h200.sh rmsnorm OUT   both directions searched under `triton`, from what is archived
#     benchmarks/h200.sh numerics OUT  FlashKDA's published tests, by the best kernel of each class of numerics
#     benchmarks/h200.sh certify OUT   certificates of KDA's solver, under `flashkda`
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


unpack() { xz -dc "$RESULTS/$1/evo.db.xz" > "$OUT/$2.db"; }  # an archive that was published

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

part_kda() {
    unpack 2026-12-01-kda-h200 kda
    step 60 profile-tests "$PYTHON" -m pytest -m gpu tests/gpu/test_profile.py -q -p no:cacheprovider -p no:benchmark
    step 240 kda-pending "$PYTHON" -m evo evaluate --pending --target "$TARGET" --archive "$OUT/kda.db" --quiet
    step 20 kda-lessons "$PYTHON" -m evo lessons --archive "$OUT/kda.db"
    step 260 kda-run "$PYTHON" -m evo run --operator kda --target "$TARGET" --protocol flashkda --budget minutes=2 \
        --archive "$OUT/kda.db" --quiet
    pack kda
}

part_memory() {
    step 400 memory-gain "$PYTHON" benchmarks/memory_gain.py --real "$TARGET" --repeats 3 --evaluations 24 \
        --cases bf16-32768x1024 bf16-32768x4096 --out "$OUT/memory-gain.json" --picture "$OUT/memory-gain.svg"
}

part_rmsnorm() {
    unpack 2026-11-30-rmsnorm-forward-h200 forward
    unpack 2026-12-01-rmsnorm-proposals-h200 backward
    step 280 forward-run "$PYTHON" -m evo run --operator rmsnorm --target "$TARGET" --protocol triton --cases 'bf16-*' \
        --budget minutes=2.5 --archive "$OUT/forward.db" --quiet
    step 280 backward-run "$PYTHON" -m evo run --operator rmsnorm_backward --target "$TARGET" --protocol triton \
        --cases 'bf16-*' --budget minutes=2.5 --archive "$OUT/backward.db" --quiet
    pack forward
    pack backward
}

part_numerics() {
    step 280 accurate "$PYTHON" benchmarks/kda_matrix.py --genome operators/kda/seeds/solver.cu --class accurate --out "$OUT/accurate.json"
    step 280 exact "$PYTHON" benchmarks/kda_matrix.py --genome operators/kda/seeds/chunked.cu --class exact --out "$OUT/exact.json"
}

part_certify() {
    step 300 certify-many "$PYTHON" -m evo certify operators/kda/seeds/solver.cu --target "$TARGET" --protocol flashkda \
        --sessions 3 --pairs 8 --case 'h96-*' --case 'h64-*' --out "$OUT/kda-many-heads.json" --quiet
    step 200 certify-few "$PYTHON" -m evo certify operators/kda/seeds/solver.cu --target "$TARGET" --protocol flashkda \
        --gene SEGMENT=47 --sessions 3 --pairs 8 --case 'h12-*' --case 'h16-*' --out "$OUT/kda-few-heads.json" --quiet
}

nvidia-smi > "$OUT/nvidia-smi.txt" 2>&1 || true
declare -F "part_$PART" > /dev/null || { echo "no part $PART: trust, kda, memory, rmsnorm, numerics, certify"; exit 2; }
"part_$PART"
