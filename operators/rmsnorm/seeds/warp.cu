/* evo
operator = "rmsnorm"
species  = "warp-per-row"
summary  = "8, 16 or 32 lanes a row, several rows in flight in registers, shuffles only: no shared memory, no CTA barrier"
static   = ["N", "H"]

[genes]
LANES    = [32, 16, 8]                     # that share a row
UNROLL   = [2, 1, 4, 8]                    # rows in flight of the same lanes
THREADS  = [128, 64, 256, 512]
CTAS     = [4, 1, 2, 3, 6, 8, 12, 16]      # per SM: what registers are allotted for, and a persistent grid's size
SCHEDULE = ["oneshot", "persistent"]
WEIGHT   = ["late", "held"]                # loaded after the reduction, or before the first row and held
FORM     = ["packed", "unpacked"]          # how a row is kept
RSQRT    = ["approx", "newton", "exact"]
LOAD     = [
    "ld.global.v4.b32", "ld.global.nc.v4.b32", "ld.global.nc.L1::no_allocate.v4.b32",
    "ld.global.nc.L1::no_allocate.L2::128B.v4.b32", "ld.global.nc.L1::no_allocate.L2::256B.v4.b32",
    "ld.global.L1::no_allocate.L2::256B.v4.b32", "ld.global.cs.v4.b32", "ld.global.cg.v4.b32", "ld.global.lu.v4.b32",
]
STORE    = [
    "st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32",
    "st.global.L1::no_allocate.v4.b32",
]
WLOAD    = ["ld.global.nc.v4.b32", "ld.global.nc.L1::evict_last.v4.b32"]

[let]
VECTOR   = "16 // itemsize_x"
ACCESSES = "ceildiv(N, VECTOR * LANES)"
ADDING   = "where(has_residual, 4 + 4 * itemsize_residual // itemsize_x, 4)"   # registers of an access before it is added
FLOATS   = "where(FORM == 'packed' and not has_residual, 4, VECTOR)"
HOLDING  = "where(WEIGHT == 'held', VECTOR * ACCESSES, 8) + 8 * has_bias"
BUDGET   = "40 + max(FLOATS, ADDING) * ACCESSES * UNROLL + HOLDING"
TILES    = "ceildiv(M, THREADS // LANES * UNROLL)"

[constraints]
all = [
    "THREADS * CTAS <= 2048",
    "N % VECTOR == 0",
    "H == 1 or WEIGHT == 'late'",
    "BUDGET <= 216",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * THREADS * CTAS <= 65536",
]

[[launch]]
kernel = "rmsnorm_forward"
grid   = ["where(SCHEDULE == 'persistent', min(TILES, SMS * CTAS), TILES)"]
block  = ["THREADS"]
args   = ["x", "weight", "residual?", "bias?", "y", "residual_out?", "rstd?", "i32:M", "eps"]
*/
#include "evo.h"

constexpr int SIZE = evo_words<DTYPE_x>::SIZE;            // elements of an access: 16 bytes of x
template <class T> constexpr int WORDS = SIZE * sizeof(T) / 4;  // 32-bit words of as many elements of T
#if HAS_residual
using Kept = float;                                       // x + residual
#else
using Kept = DTYPE_x;                                     // x as it came
#endif
using Piece = unsigned[WORDS<Kept>];
constexpr int VECTORS = DIM_N / SIZE;                     // accesses that cover a row
constexpr int ACCESSES = (VECTORS + LANES - 1) / LANES;   // of one lane; in the last some lanes may idle
constexpr int GROUPS = THREADS / LANES;                   // rows that a CTA reads side by side, UNROLL times over
constexpr bool EVEN = VECTORS % LANES == 0;
constexpr bool HELD = WEIGHT_INDEX == 1;
constexpr bool UNPACK_ANEW = FORM_INDEX == 0 && sizeof(Kept) == 2;

EVO_DEVICE int offset(int access) { return (access * LANES + (int)threadIdx.x % LANES) * SIZE; }
EVO_DEVICE bool inside(int access) { return EVEN || offset(access) < DIM_N; }

template <class T> EVO_DEVICE void load_factors(float (&factors)[SIZE], const T* from, int access) {
    unsigned words[WORDS<T>];
    EVO_LOAD(WLOAD, words, from + offset(access));
    evo_unpack<T>(words, factors);
}

// Adds the residual to x, which lies in the first words of a piece.
EVO_DEVICE void add(Piece& piece, const unsigned (&residual)[WORDS<DTYPE_residual>]) {
    const unsigned x[4] = {piece[0], piece[1], piece[2], piece[3]};
    float values[SIZE], more[SIZE];
    evo_unpack<DTYPE_x>(x, values);
    evo_unpack<DTYPE_residual>(residual, more);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] += more[i];
    evo_pack<Kept>(values, piece);
}

// 1 / sqrt(mean of squares + eps) of a row, in all its lanes.
EVO_DEVICE float reduce(const Piece (&pieces)[ACCESSES], float eps) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        float values[SIZE];
        evo_unpack<Kept>(pieces[a], values);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) sums[i % 4] = fmaf(values[i], values[i], sums[i % 4]);
    }
    const float sum = evo_sum<LANES>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    return evo_rsqrt<RSQRT_INDEX>(sum * (1.0f / DIM_N) + eps);
}

EVO_DEVICE void finish(Piece& piece, float root, const float (&factors)[SIZE], const float (&offsets)[SIZE], DTYPE_y* y,
                       DTYPE_residual_out* residual_out, unsigned same) {
    if constexpr (UNPACK_ANEW) {
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("prmt.b32 %0, %0, 0, %1;" : "+r"(piece[i]) : "r"(same));
    }
    float values[SIZE];
    unsigned words[4];
    evo_unpack<Kept>(piece, values);
    if constexpr (HAS_residual_out) {
        unsigned sum[WORDS<DTYPE_residual_out>];
        evo_pack<DTYPE_residual_out>(values, sum);
        EVO_STORE(STORE, residual_out, sum);
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = values[i] * root * factors[i] + (HAS_bias ? offsets[i] : 0.0f);
    evo_pack<DTYPE_y>(values, words);
    EVO_STORE(STORE, y, words);
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    rmsnorm_forward(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_residual* residual, const DTYPE_bias* bias,
                    DTYPE_y* y, DTYPE_residual_out* residual_out, float* rstd, int rows, float eps) {
    float held[ACCESSES][SIZE];
    if constexpr (HELD) {
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a)
            if (inside(a)) load_factors(held[a], weight, a);
    }
    // The identity permutation, which the compiler cannot know: it must unpack a word anew and cannot keep the floats.
    const unsigned same = 0x3210u | (unsigned)rows >> 31;
    const unsigned tiles = (rows - 1) / (GROUPS * UNROLL) + 1;
    // Every lane of a warp goes through every tile, also where its row is beyond the last: shuffles need all of them.
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const long long first = (long long)tile * (GROUPS * UNROLL) + threadIdx.x / LANES;
        Piece pieces[UNROLL][ACCESSES];
        unsigned more[UNROLL][ACCESSES][WORDS<DTYPE_residual>] = {};
        float roots[UNROLL];
#pragma unroll
        for (int r = 0; r < UNROLL; ++r)
#pragma unroll
            for (int a = 0; a < ACCESSES; ++a) {
                const long long row = first + r * GROUPS;
#pragma unroll
                for (int i = 0; i < WORDS<Kept>; ++i) pieces[r][a][i] = 0;
                if (row >= rows || !inside(a)) continue;
                EVO_LOAD4(LOAD, pieces[r][a], x + row * DIM_N + offset(a));
                if constexpr (HAS_residual) EVO_LOAD(LOAD, more[r][a], residual + row * DIM_N + offset(a));
            }
#pragma unroll
        for (int r = 0; r < UNROLL; ++r) {
            if constexpr (HAS_residual) {
#pragma unroll
                for (int a = 0; a < ACCESSES; ++a) add(pieces[r][a], more[r][a]);
            }
            roots[r] = reduce(pieces[r], eps);
            const long long row = first + r * GROUPS;
            if (HAS_rstd && row < rows && threadIdx.x % LANES == 0) rstd[row] = roots[r];
        }
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            float factors[SIZE], offsets[SIZE];
#pragma unroll
            for (int r = 0; r < UNROLL; ++r) {
                const long long row = first + r * GROUPS, at = row * DIM_N + offset(a);
                const int head = DIM_H > 1 ? (int)(row % DIM_H) * DIM_N : 0;
                if (!HELD && (r == 0 || DIM_H > 1)) load_factors(factors, weight + head, a);
                if (HAS_bias && (r == 0 || DIM_H > 1)) load_factors(offsets, bias + head, a);
                if (row < rows)
                    finish(pieces[r][a], roots[r], HELD ? held[a] : factors, offsets, y + at, residual_out + at, same);
            }
        }
    }
}
