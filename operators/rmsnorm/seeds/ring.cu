/* evo
operator = "rmsnorm"
species  = "bulk-ring"
summary  = "persistent: a producer warp brings tiles of whole rows by bulk copies, consumer warps normalise them from a ring"
arch     = ["sm_90a", "sm_100a"]
static   = ["N", "H"]

[genes]
LANES     = [32, 16, 8]                    # that share a row
CONSUMERS = [256, 128, 512]                # threads; one warp more produces
ROWS      = [2, 1, 4, 8]                   # of the same lanes in one tile
STAGES    = [4, 2, 3, 6, 8]                # tiles in the ring
CTAS      = [2, 1, 3, 4]                   # per SM
WEIGHT    = ["held", "late"]               # kept in registers, or loaded for every row
OUT       = ["direct", "bulk"]             # y stored from registers, or put in the tile's place and copied out in bulk
RSQRT     = ["approx", "newton", "exact"]
STORE     = [
    "st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32",
    "st.global.L1::no_allocate.v4.b32",
]
WLOAD     = ["ld.global.nc.v4.b32", "ld.global.nc.L1::evict_last.v4.b32"]

[let]
VECTOR   = "16 // itemsize_x"
ACCESSES = "ceildiv(N, VECTOR * LANES)"
TILE     = "CONSUMERS // LANES * ROWS"
FLOATS   = "VECTOR * ACCESSES"             # of a row; rows of a tile are worked on one after the other
BUDGET   = "48 + FLOATS + where(WEIGHT == 'held', VECTOR * ACCESSES, 8) + 8 * has_bias"
STAGE    = "TILE * N * (itemsize_x + where(has_residual, itemsize_residual, 0))"
TILES    = "ceildiv(M, TILE)"

[constraints]
all = [
    "(CONSUMERS + 32) * CTAS <= 2048",
    "N % VECTOR == 0",
    "H == 1 or WEIGHT == 'late'",
    "BUDGET <= 216",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * ceildiv(CONSUMERS + 32, 128) * 128 * CTAS <= 65536",  # shared out by four warps
    "STAGES * STAGE + 2048 <= SMEM_BLOCK",
    "(STAGES * STAGE + 2048) * CTAS <= SMEM_SM",
    "OUT == 'direct' or STORE == 'st.global.v4.b32'",
]

[[launch]]
kernel = "rmsnorm_forward"
grid   = ["min(TILES, SMS * CTAS)"]
block  = ["CONSUMERS + 32"]
shared = "STAGES * STAGE"
args   = ["x", "weight", "residual?", "bias?", "y", "residual_out?", "rstd?", "i32:M", "eps"]
*/
#include "evo.h"

constexpr int SIZE = evo_words<DTYPE_x>::SIZE;                  // elements of an access: 16 bytes of x
template <class T> constexpr int WORDS = SIZE * sizeof(T) / 4;  // 32-bit words of as many elements of T
constexpr int VECTORS = DIM_N / SIZE;                           // accesses that cover a row
constexpr int ACCESSES = (VECTORS + LANES - 1) / LANES;         // of one lane; in the last some lanes may idle
constexpr int GROUPS = CONSUMERS / LANES;                       // rows that are worked on side by side
constexpr int TILE = GROUPS * ROWS;                             // rows of a stage
constexpr int X_BYTES = DIM_N * sizeof(DTYPE_x), RESIDUAL_BYTES = HAS_residual ? DIM_N * sizeof(DTYPE_residual) : 0;
constexpr int STAGE_BYTES = TILE * (X_BYTES + RESIDUAL_BYTES);  // the tile's x, then its residual
constexpr bool EVEN = VECTORS % LANES == 0;
constexpr bool HELD = WEIGHT_INDEX == 0, BULK = OUT_INDEX == 1;

EVO_DEVICE int offset(int access) { return (access * LANES + (int)threadIdx.x % LANES) * SIZE; }
EVO_DEVICE bool inside(int access) { return EVEN || offset(access) < DIM_N; }

template <class T> EVO_DEVICE void load_factors(float (&factors)[SIZE], const T* from, int access) {
    unsigned words[WORDS<T>];
    EVO_LOAD(WLOAD, words, from + offset(access));
    evo_unpack<T>(words, factors);
}

// The tiles that a CTA goes through, and where each lies in the ring.
struct Ring {
    unsigned memory, barriers;  // shared memory; "full" barriers, then "empty" ones
    unsigned tile;
    int stage, parity;

    EVO_DEVICE unsigned full(int which) const { return barriers + 8 * which; }
    EVO_DEVICE unsigned empty(int which) const { return barriers + 8 * (STAGES + which); }
    EVO_DEVICE unsigned at() const { return memory + stage * STAGE_BYTES; }
    EVO_DEVICE void next() {
        tile += gridDim.x;
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

EVO_DEVICE int rows_of(unsigned tile, int rows) {
    const int left = rows - (int)tile * TILE;
    return left < TILE ? left : TILE;
}

EVO_DEVICE void produce(Ring ring, const DTYPE_x* x, const DTYPE_residual* residual, unsigned tiles, int rows) {
    for (; ring.tile < tiles; ring.next()) {
        const int count = rows_of(ring.tile, rows);
        const long long start = (long long)ring.tile * TILE * DIM_N;
        evo_barrier_wait(ring.empty(ring.stage), ring.parity ^ 1);  // at first they count as released
        evo_barrier_expect(ring.full(ring.stage), count * (X_BYTES + RESIDUAL_BYTES));
        evo_bulk_load(ring.at(), x + start, count * X_BYTES, ring.full(ring.stage));
        if constexpr (HAS_residual)
            evo_bulk_load(ring.at() + TILE * X_BYTES, residual + start, count * RESIDUAL_BYTES, ring.full(ring.stage));
    }
}

// This lane's part of a row as floats.
EVO_DEVICE void read(float (&values)[ACCESSES][SIZE], unsigned x, unsigned residual) {
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
#pragma unroll
        for (int i = 0; i < SIZE; ++i) values[a][i] = 0.0f;
        if (!inside(a)) continue;
        unsigned words[4];
        evo_shared_load(x + offset(a) * (int)sizeof(DTYPE_x), words);
        evo_unpack<DTYPE_x>(words, values[a]);
        if constexpr (HAS_residual) {
            unsigned more[WORDS<DTYPE_residual>];
            float other[SIZE];
            evo_shared_load(residual + offset(a) * (int)sizeof(DTYPE_residual), more);
            evo_unpack<DTYPE_residual>(more, other);
#pragma unroll
            for (int i = 0; i < SIZE; ++i) values[a][i] += other[i];
        }
    }
}

EVO_DEVICE float mean_square(const float (&values)[ACCESSES][SIZE]) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a)
#pragma unroll
        for (int i = 0; i < SIZE; ++i) sums[i % 4] = fmaf(values[a][i], values[a][i], sums[i % 4]);
    return evo_sum<LANES>((sums[0] + sums[1]) + (sums[2] + sums[3])) * (1.0f / DIM_N);
}

// The tile was read by every consumer warp, or (bulk) its y is on its way out: gives stages back to the producer.
EVO_DEVICE void release(const Ring& ring, bool first, DTYPE_y* y, int count) {
    if constexpr (BULK) {
        evo_copy_fence();
        evo_sync(1, CONSUMERS);
        if (threadIdx.x != 0) return;
        evo_bulk_store(y + (long long)ring.tile * TILE * DIM_N, ring.at(), count * X_BYTES);
        evo_bulk_commit();
        evo_bulk_wait<1>();  // the tile before has left its stage
        if (!first) evo_barrier_arrive(ring.empty(ring.stage == 0 ? STAGES - 1 : ring.stage - 1));
    } else {
        evo_release(ring.empty(ring.stage));
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, CTAS)
    rmsnorm_forward(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_residual* residual, const DTYPE_bias* bias,
                    DTYPE_y* y, DTYPE_residual_out* residual_out, float* rstd, int rows, float eps) {
    extern __shared__ float4 memory[];
    __shared__ unsigned long long barriers[2 * STAGES];
    Ring ring = {evo_shared(memory), evo_shared(barriers), blockIdx.x, 0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            evo_barrier_init(ring.full(i), 1);
            evo_barrier_init(ring.empty(i), BULK ? 1 : CONSUMERS / 32);
        }
        evo_barrier_fence();
    }
    __syncthreads();
    const unsigned tiles = (rows - 1) / TILE + 1;
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) produce(ring, x, residual, tiles, rows);
        return;
    }

    float held[HELD ? ACCESSES : 1][SIZE];
    if constexpr (HELD) {
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a)
            if (inside(a)) load_factors(held[a], weight, a);
    }
    for (bool first = true; ring.tile < tiles; ring.next(), first = false) {
        const int count = rows_of(ring.tile, rows);
        evo_barrier_wait(ring.full(ring.stage), ring.parity);
#pragma unroll 1
        for (int r = 0; r < ROWS; ++r) {
            // Rows beyond the last are read too (whatever lies there), since shuffles need all lanes; nothing is stored.
            const int local = r * GROUPS + threadIdx.x / LANES;
            const long long row = (long long)ring.tile * TILE + local;
            const unsigned at = ring.at() + local * X_BYTES;
            float values[ACCESSES][SIZE], factors[SIZE], offsets[SIZE];
            read(values, at, ring.at() + TILE * X_BYTES + local * RESIDUAL_BYTES);
            if (!BULK && r == ROWS - 1) release(ring, first, y, count);  // all of this warp's rows are in registers
            const float root = evo_rsqrt<RSQRT_INDEX>(mean_square(values) + eps);
            if (local >= count) continue;
            if (HAS_rstd && threadIdx.x % LANES == 0) rstd[row] = root;
            const int head = DIM_H > 1 ? (int)(row % DIM_H) * DIM_N : 0;
#pragma unroll
            for (int a = 0; a < ACCESSES; ++a) {
                if (!inside(a)) continue;
                unsigned words[4];
                if constexpr (HAS_residual_out) {
                    unsigned sum[WORDS<DTYPE_residual_out>];
                    evo_pack<DTYPE_residual_out>(values[a], sum);
                    EVO_STORE(STORE, residual_out + row * DIM_N + offset(a), sum);
                }
                if constexpr (!HELD) load_factors(factors, weight + head, a);
                if constexpr (HAS_bias) load_factors(offsets, bias + head, a);
#pragma unroll
                for (int i = 0; i < SIZE; ++i)
                    values[a][i] = values[a][i] * root * (HELD ? held[HELD ? a : 0][i] : factors[i]) +
                                   (HAS_bias ? offsets[i] : 0.0f);
                evo_pack<DTYPE_y>(values[a], words);
                if constexpr (BULK) {
                    evo_shared_store(at + offset(a) * (int)sizeof(DTYPE_x), words);
                } else {
                    EVO_STORE(STORE, y + row * DIM_N + offset(a), words);
                }
            }
        }
        if constexpr (BULK) {
            __syncwarp();
            release(ring, first, y, count);
        }
    }
    if (BULK && threadIdx.x == 0) evo_bulk_wait<0>();  // shared memory must live until it has been read
}
