/* evo
operator = "rmsnorm"
species  = "shared-row"
summary  = "a team of threads per row: every thread copies its part to shared memory by cp.async and reads it back twice"
static   = ["N", "H"]

[genes]
TEAM     = [128, 32, 64, 256, 512, 16, 8]  # threads that share a row
THREADS  = [128, 256, 512]
CTAS     = [8, 4, 2, 1, 6, 12, 16]         # per SM: what registers are allotted for
KEEP     = ["shared", "registers"]         # where the second pass finds the row
WEIGHT   = ["late", "early"]               # loaded after the reduction, or while the row is on its way
RSQRT    = ["approx", "newton", "exact"]
STORE    = [
    "st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32",
    "st.global.L1::no_allocate.v4.b32",
]
WLOAD    = ["ld.global.nc.v4.b32", "ld.global.nc.L1::evict_last.v4.b32"]

[let]
VECTOR   = "16 // itemsize_x"
ACCESSES = "ceildiv(N, VECTOR * TEAM)"
TEAMS    = "THREADS // TEAM"
FLOATS   = "where(KEEP == 'registers', VECTOR * ACCESSES, 16)"
BUDGET   = "40 + FLOATS + where(WEIGHT == 'early', VECTOR * ACCESSES, 8) + 8 * has_bias"
ROW      = "N * (itemsize_x + where(has_residual, itemsize_residual, 0))"

[constraints]
all = [
    "THREADS % TEAM == 0",
    "THREADS * CTAS <= 2048",
    "N % VECTOR == 0",
    "BUDGET <= 216",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * THREADS * CTAS <= 65536",
    "TEAMS * ROW + 2048 <= SMEM_BLOCK",
]

[[launch]]
kernel = "rmsnorm_forward"
grid   = ["ceildiv(M, TEAMS)"]
block  = ["THREADS"]
shared = "TEAMS * ROW"
args   = ["x", "weight", "residual?", "bias?", "y", "residual_out?", "rstd?", "i32:M", "eps"]
*/
#include "evo.h"

constexpr int SIZE = evo_words<DTYPE_x>::SIZE;                  // elements of an access: 16 bytes of x
template <class T> constexpr int WORDS = SIZE * sizeof(T) / 4;  // 32-bit words of as many elements of T
#if HAS_residual
using Kept = float;                                             // x + residual
#else
using Kept = DTYPE_x;                                           // x as it came
#endif
using Piece = unsigned[WORDS<Kept>];
constexpr int TEAMS = THREADS / TEAM;
constexpr int WARPS = TEAM > 32 ? TEAM / 32 : 1;                // of a team
constexpr int VECTORS = DIM_N / SIZE;                           // accesses that cover a row
constexpr int ACCESSES = (VECTORS + TEAM - 1) / TEAM;           // of one thread; in the last some threads may idle
constexpr bool EVEN = VECTORS % TEAM == 0;
constexpr bool REGISTERS = KEEP_INDEX == 1, EARLY = WEIGHT_INDEX == 1;
constexpr int UNROLL = REGISTERS || EARLY ? ACCESSES : 4;       // what lies in registers needs constant indices

EVO_DEVICE int offset(int access) { return (access * TEAM + (int)threadIdx.x % TEAM) * SIZE; }
EVO_DEVICE bool inside(int access) { return EVEN || offset(access) < DIM_N; }

template <class T> EVO_DEVICE void load_factors(float (&factors)[SIZE], const T* from, int access) {
    unsigned words[WORDS<T>];
    EVO_LOAD(WLOAD, words, from + offset(access));
    evo_unpack<T>(words, factors);
}

// A row in shared memory. Every thread reads back only what it copied itself, so no barrier is needed.
struct Row {
    unsigned x, residual;  // addresses

    EVO_DEVICE void copy(const DTYPE_x* from, const DTYPE_residual* more) const {
#pragma unroll UNROLL
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            evo_async_load(x + offset(a) * (int)sizeof(DTYPE_x), from + offset(a));
            if constexpr (HAS_residual) {
#pragma unroll
                for (int i = 0; i < SIZE; i += 16 / sizeof(DTYPE_residual))
                    evo_async_load(residual + (offset(a) + i) * (int)sizeof(DTYPE_residual), more + offset(a) + i);
            }
        }
    }
    EVO_DEVICE void read(Piece& piece, int access) const {
        unsigned words[4];
        evo_shared_load(x + offset(access) * (int)sizeof(DTYPE_x), words);
        if constexpr (HAS_residual) {
            unsigned more[WORDS<DTYPE_residual>];
            float values[SIZE], other[SIZE];
            evo_shared_load(residual + offset(access) * (int)sizeof(DTYPE_residual), more);
            evo_unpack<DTYPE_x>(words, values);
            evo_unpack<DTYPE_residual>(more, other);
#pragma unroll
            for (int i = 0; i < SIZE; ++i) values[i] += other[i];
            evo_pack<Kept>(values, piece);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) piece[i] = words[i];
        }
    }
};

// Sum over a team, the same in all its threads.
EVO_DEVICE float team_sum(float mine) {
    if constexpr (TEAM <= 32) return evo_sum<TEAM>(mine);
    __shared__ float partial[TEAMS][WARPS];
    const int lane = threadIdx.x % 32, team = threadIdx.x / TEAM;
    mine = evo_sum(mine);
    if (lane == 0) partial[team][threadIdx.x % TEAM / 32] = mine;
    __syncthreads();
    return evo_sum(lane < WARPS ? partial[team][lane] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    rmsnorm_forward(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_residual* residual, const DTYPE_bias* bias,
                    DTYPE_y* y, DTYPE_residual_out* residual_out, float* rstd, int rows, float eps) {
    extern __shared__ float4 memory[];  // [TEAMS][N] of x, then of residual
    const int team = threadIdx.x / TEAM, head = DIM_H > 1 ? (int)((blockIdx.x * (long long)TEAMS + team) % DIM_H) : 0;
    const long long number = blockIdx.x * (long long)TEAMS + team, start = number * DIM_N;
    const bool exists = number < rows;  // all threads of a team go the same way, and meet in `team_sum`
    const Row row = {evo_shared(memory) + team * DIM_N * (int)sizeof(DTYPE_x),
                     evo_shared(memory) + TEAMS * DIM_N * (int)sizeof(DTYPE_x) + team * DIM_N * (int)sizeof(DTYPE_residual)};
    if (exists) row.copy(x + start, residual + start);
    evo_async_commit();
    weight += head * DIM_N;
    float factors[EARLY ? ACCESSES : 1][SIZE], offsets[SIZE], sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if constexpr (EARLY) {
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a)
            if (inside(a)) load_factors(factors[a], weight, a);
    }
    evo_async_wait<0>();

    Piece pieces[REGISTERS ? ACCESSES : 1];
#pragma unroll UNROLL
    for (int a = 0; a < ACCESSES; ++a) {
        if (!exists || !inside(a)) continue;
        Piece& piece = pieces[REGISTERS ? a : 0];
        float values[SIZE];
        row.read(piece, a);
        evo_unpack<Kept>(piece, values);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) sums[i % 4] = fmaf(values[i], values[i], sums[i % 4]);
    }
    const float root = evo_rsqrt<RSQRT_INDEX>(team_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) * (1.0f / DIM_N) + eps);
    if (!exists) return;
    if (HAS_rstd && threadIdx.x % TEAM == 0) rstd[number] = root;

#pragma unroll UNROLL
    for (int a = 0; a < ACCESSES; ++a) {
        if (!inside(a)) continue;
        Piece& piece = pieces[REGISTERS ? a : 0];
        float values[SIZE];
        unsigned words[4];
        if constexpr (!REGISTERS) row.read(piece, a);
        evo_unpack<Kept>(piece, values);
        if constexpr (HAS_residual_out) {
            unsigned sum[WORDS<DTYPE_residual_out>];
            evo_pack<DTYPE_residual_out>(values, sum);
            EVO_STORE(STORE, residual_out + start + offset(a), sum);
        }
        if constexpr (!EARLY) load_factors(factors[0], weight, a);
        if constexpr (HAS_bias) load_factors(offsets, bias + head * DIM_N, a);
#pragma unroll
        for (int i = 0; i < SIZE; ++i)
            values[i] = values[i] * root * factors[EARLY ? a : 0][i] + (HAS_bias ? offsets[i] : 0.0f);
        evo_pack<DTYPE_y>(values, words);
        EVO_STORE(STORE, y + start + offset(a), words);
    }
}
