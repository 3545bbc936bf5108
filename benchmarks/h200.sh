#!/usr/bin/env bash
# What docs/results holds from an H200, measured again: parts of under ten minutes each.
#
#     benchmarks/h200.sh trust OUT     the zoo and 200 honest evaluations; the tests that need a device
#     benchmarks/h200.sh memory OUT    what an archive is worth to the next search
#     benchmarks/h200.sh numerics OUT  FlashKDA's published tests, by the best kernel of each class of numerics
#     benchmarks/h200.sh kda OUT       searched from what is archived; its winners certified under `flashkda`
#     benchmarks/h200.sh libraries OUT KDA beside the libraries that are installed
#     benchmarks/h200.sh forward OUT   RMSNorm in bf16, as kda but under `triton`; forward-fp16, forward-fp32
#     benchmarks/h200.sh backward OUT  its backward; backward-fp16, backward-fp32
#
# Every step has a time limit of its own and prints its time; OUT gets reports and packed archives. EVO_PYTHON names the
# interpreter (python3), TARGET another device's target, MINUTES how long a search takes, CERTIFY_S what its certificates
# may, of PAIRS a session, MEMORY_S how long memory is tried.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${EVO_PYTHON:-python3} TARGET=${TARGET:-sm_90} PART=${1:?which part} OUT=${2:?where to}
MINUTES=${MINUTES:-2} CERTIFY_S=${CERTIFY_S:-330} PAIRS=${PAIRS:-8} MEMORY_S=${MEMORY_S:-470}
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

FORWARD=2026-12-01-rmsnorm-forward-h200 BACKWARD=2026-12-01-rmsnorm-proposals-h200

part_kda() { search_and_certify kda kda flashkda 2026-12-01-kda-h200; }
part_forward() { search_and_certify forward rmsnorm triton $FORWARD; }
part_backward() { search_and_certify backward rmsnorm_backward triton $BACKWARD; }
part_forward-fp16() { search_and_certify forward-fp16 rmsnorm triton $FORWARD --cases 'fp16-*'; }
part_forward-fp32() { search_and_certify forward-fp32 rmsnorm triton $FORWARD --cases 'fp32-*'; }
part_backward-fp16() { search_and_certify backward-fp16 rmsnorm_backward triton $BACKWARD --cases 'fp16-*'; }
part_backward-fp32() { search_and_certify backward-fp32 rmsnorm_backward triton $BACKWARD --cases 'fp32-*'; }

search_and_certify() {  # NAME OPERATOR PROTOCOL RESULTS OPTIONS...: from what is archived, by the quicker `rotation`
    local name=$1 operator=$2 protocol=$3 results=$4 archive=$OUT/$1.db
    xz -dc "$RESULTS/$results/evo.db.xz" > "$archive"
    "$PYTHON" -m evo archive upgrade --archive "$archive"
    step "${PENDING_S:-60}" "$name-pending" "$PYTHON" -m evo evaluate --pending --target "$TARGET" --archive "$archive" --quiet
    step $((MINUTES * 60 + 90)) "$name-run" "$PYTHON" -m evo run --operator "$operator" --target "$TARGET" \
        --budget minutes="$MINUTES" --archive "$archive" --quiet "${@:5}"
    pack "$name"
    mv "$OUT"/evo-winners/*/ "$OUT/$name-winners"  # lay beside the archive
    step "$CERTIFY_S" "$name-certify" "$PYTHON" -m evo certify "$OUT/$name-winners" --target "$TARGET" \
        --protocol "$protocol" --sessions 3 --pairs "$PAIRS" --out "$OUT" --quiet
}

part_libraries() {
    local library
    for library in cudnn cudnn-precast flash_kda fla; do  # fla tunes a hundred settings a head count
        step "${LIBRARY_S:-150}" "$library" "$PYTHON" -m evo bench operators/kda/seeds/solver.cu --target "$TARGET" --against "$library" \
            --protocol flashkda --case h96-fixed --case h64-mixed --case h12-fixed-8k --quiet
    done
}

part_memory() {
    step $((MEMORY_S + 30)) memory-gain "$PYTHON" benchmarks/memory_gain.py --real "$TARGET" --repeats 9 --seconds "$MEMORY_S" --evaluations 24 \
        --cases bf16-32768x256 bf16-32768x32768 --out "$OUT/memory-gain.json" --picture "$OUT/memory-gain.svg"
}

part_numerics() {
    step 280 accurate "$PYTHON" benchmarks/kda_matrix.py --genome operators/kda/seeds/solver.cu --class accurate --out "$OUT/accurate.json"
    step 280 exact "$PYTHON" benchmarks/kda_matrix.py --genome operators/kda/seeds/chunked.cu --class exact --out "$OUT/exact.json"
}

nvidia-smi > "$OUT/nvidia-smi.txt" 2>&1 || true
declare -F "part_$PART" > /dev/null || { echo "no part $PART: see the head of $0"; exit 2; }
"part_$PART"
