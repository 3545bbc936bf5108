/* evo
operator = "rmsnorm"
species  = "block-per-row"
summary  = "a CTA per row: direct 16-byte loads, the row kept in registers, warp shuffles then one shared-memory exchange"
static   = ["N", "H"]

[genes]
THREADS  = [256, 128, 512, 64, 1024]
ROWS     = [1, 2, 4]                       # rows that a CTA has in flight
KEEP     = [32, 64, 16, 8, 128]            # registers of a row that a thread keeps; what is beyond is read twice
CTAS     = [3, 1, 2, 4, 6, 8, 12, 16]      # per SM: what registers are allotted for, and a persistent grid's size
SCHEDULE = ["oneshot", "persistent"]
WEIGHT   = ["late", "held", "ahead"]       # after the reduction; before the first row, and held; or an access early
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
WLOAD    = [                               # those without .nc may not pass a store, which saves fp32 rows 30 registers
    "ld.global.nc.v4.b32", "ld.global.nc.L1::evict_last.v4.b32", "ld.global.v4.b32", "ld.global.L1::evict_last.v4.b32",
]

[let]
VECTOR   = "16 // itemsize_x"
ACCESSES = "ceildiv(N, VECTOR * THREADS)"
ADDING   = "where(has_residual, 4 + 4 * itemsize_residual // itemsize_x, 4)"   # registers of an access before it is added
TIED     = "WLOAD == 'ld.global.v4.b32' or WLOAD == 'ld.global.L1::evict_last.v4.b32'"
PLAIN    = "WEIGHT != 'held' and H == 1 and not has_bias and not has_residual and (VECTOR == 8 or TIED)"
SCALING  = "where(VECTOR == 4 and not PLAIN, 6 + 2 * has_bias, 4)"   # and after: some fp32 weights are loaded ahead
KEPT     = "max(1, min(ACCESSES, KEEP // max(ADDING, SCALING)))"
FLOATS   = "where(FORM == 'packed' and not has_residual, 4, VECTOR)"
WHOLE    = "ROWS == 1 and KEPT == ACCESSES"
LEAN     = "WHOLE and PLAIN and FLOATS == 4"                             # a row as it came, and little else
WEIGHING = "where(WEIGHT == 'held', VECTOR * KEPT - 8, where(WEIGHT == 'ahead', 2 * VECTOR, 0))"
BUDGET   = "where(LEAN, where(VECTOR == 8, 16, 24), 48) + max(FLOATS, ADDING) * KEPT * ROWS + WEIGHING + 4 * has_bias"
TILES    = "ceildiv(M, ROWS)"

[constraints]
all = [
    "THREADS * CTAS <= 2048",
    "N % VECTOR == 0",
    "H == 1 or WEIGHT == 'late'",
    "BUDGET <= 232",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * THREADS * CTAS <= 65536",
]

[[launch]]
kernel = "rmsnorm_forward"
grid   = ["where(SCHEDULE == 'persistent', min(TILES, SMS * CTAS), TILES)"]
block  = ["THREADS"]
args   = ["x", "weight", "residual?", "bias?", "y", "residual_out?", "rstd?", "i32:M", "eps"]
*/
#include "evo.h"

constexpr int SIZE = evo_words<DTYPE_x>::SIZE;                    // elements of an access: 16 bytes of x
template <class T> constexpr int WORDS = SIZE * sizeof(T) / 4;    // 32-bit words of as many elements of T
#if HAS_residual
using Kept = float;                                               // x + residual
constexpr int ADDING = 4 + WORDS<DTYPE_residual>;
#else
using Kept = DTYPE_x;                                             // x as it came
constexpr int ADDING = 4;
#endif
using Piece = unsigned[WORDS<Kept>];
constexpr int WARPS = THREADS / 32;
constexpr int VECTORS = DIM_N / SIZE;                             // accesses that cover a row
constexpr int ACCESSES = (VECTORS + THREADS - 1) / THREADS;       // of one thread; in the last some threads may idle
constexpr bool HELD = WEIGHT_INDEX == 1;
constexpr bool PLAIN = !HELD && DIM_H == 1 && !HAS_bias && !HAS_residual && (SIZE == 8 || WLOAD_INDEX >= 2);
constexpr int SCALING = SIZE == 4 && !PLAIN ? 6 + 2 * HAS_bias : 4;
constexpr int SHARE = ADDING > SCALING ? ADDING : SCALING;        // registers of one, at most
constexpr int FIT = KEEP / SHARE > 0 ? KEEP / SHARE : 1;
constexpr int KEPT = ACCESSES < FIT ? ACCESSES : FIT;             // of these, kept in registers
constexpr bool EVEN = VECTORS % THREADS == 0;
constexpr bool AHEAD = WEIGHT_INDEX == 2;                         // its way from the L2 is hidden by the access before
constexpr bool UNPACK_ANEW = FORM_INDEX == 0 && sizeof(Kept) == 2;

// The rows that a CTA has at a time, from number `first` on; all pointers are to the first one.
struct Tile {
    const DTYPE_x* x;
    const DTYPE_residual* residual;
    DTYPE_y* y;
    DTYPE_residual_out* residual_out;
    float* rstd;
    long long first;
    int count;

    static EVO_DEVICE long long at(int row, int access) { return (long long)row * DIM_N + offset(access); }
    static EVO_DEVICE int offset(int access) { return (access * THREADS + (int)threadIdx.x) * SIZE; }
    static EVO_DEVICE bool inside(int access) { return EVEN || offset(access) < DIM_N; }
};

// Weight and bias as row `row` meets them.
struct Affine {
    const DTYPE_weight* weight;
    const DTYPE_bias* bias;

    EVO_DEVICE Affine of(long long row) const {
        if constexpr (DIM_H == 1) return *this;
        const int head = (int)(row % DIM_H) * DIM_N;
        return {weight + head, HAS_bias ? bias + head : bias};
    }
};

template <class T> EVO_DEVICE void load_factors(float (&factors)[SIZE], const T* from, int access) {
    unsigned words[WORDS<T>];
    EVO_LOAD(WLOAD, words, from + Tile::offset(access));
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

// One access, alone: where a row is too long to keep.
EVO_DEVICE void read_piece(Piece& piece, const Tile& tile, int row, int access) {
    EVO_LOAD4(LOAD, piece, tile.x + Tile::at(row, access));
    if constexpr (HAS_residual) {
        unsigned residual[WORDS<DTYPE_residual>];
        EVO_LOAD(LOAD, residual, tile.residual + Tile::at(row, access));
        add(piece, residual);
    }
}

// All that is kept, every load on its way before the first is waited for.
EVO_DEVICE void read(Piece (&pieces)[ROWS][KEPT], const Tile& tile) {
    unsigned residual[ROWS][KEPT][WORDS<DTYPE_residual>] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int a = 0; a < KEPT; ++a) {
#pragma unroll
            for (int i = 0; i < WORDS<Kept>; ++i) pieces[r][a][i] = 0;
            if (r >= tile.count || !Tile::inside(a)) continue;
            EVO_LOAD4(LOAD, pieces[r][a], tile.x + Tile::at(r, a));
            if constexpr (HAS_residual) EVO_LOAD(LOAD, residual[r][a], tile.residual + Tile::at(r, a));
        }
    if constexpr (HAS_residual) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int a = 0; a < KEPT; ++a) add(pieces[r][a], residual[r][a]);
    }
}

// Adds the squares of one access to four independent accumulators.
EVO_DEVICE void add_squares(float (&sums)[4], const Piece& piece) {
    float values[SIZE];
    evo_unpack<Kept>(piece, values);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) sums[i % 4] = fmaf(values[i], values[i], sums[i % 4]);
}

// 1 / sqrt(mean of squares + eps) of every row of the tile, in all threads.
EVO_DEVICE void reduce(float (&roots)[ROWS], const Piece (&pieces)[ROWS][KEPT], const Tile& tile,
                       float (&partial)[ROWS][WARPS], float eps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int a = 0; a < KEPT; ++a) add_squares(sums, pieces[r][a]);
        if (r < tile.count) {
#pragma unroll 4
            for (int a = KEPT; a < ACCESSES; ++a) {
                if (!Tile::inside(a)) continue;
                Piece passing;
                read_piece(passing, tile, r, a);
                add_squares(sums, passing);
            }
        }
        const float sum = evo_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
        if (lane == 0) partial[r][warp] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const float sum = evo_sum(lane < WARPS ? partial[r][lane] : 0.0f);
        roots[r] = evo_rsqrt<RSQRT_INDEX>(sum * (1.0f / DIM_N) + eps);
        if (HAS_rstd && threadIdx.x == 0 && r < tile.count) tile.rstd[r] = roots[r];
    }
}

EVO_DEVICE void finish(const Piece& piece, float root, const float (&factors)[SIZE], const float (&offsets)[SIZE],
                       const Tile& tile, int row, int access) {
    const long long at = Tile::at(row, access);
    float values[SIZE];
    unsigned words[4];
    evo_unpack<Kept>(piece, values);
    if constexpr (HAS_residual_out) {
        unsigned sum[WORDS<DTYPE_residual_out>];
        evo_pack<DTYPE_residual_out>(values, sum);
        EVO_STORE(STORE, tile.residual_out + at, sum);
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = values[i] * root * factors[i] + (HAS_bias ? offsets[i] : 0.0f);
    evo_pack<DTYPE_y>(values, words);
    EVO_STORE(STORE, tile.y + at, words);
}

EVO_DEVICE void write(Piece (&pieces)[ROWS][KEPT], const float (&roots)[ROWS], float (&held)[KEPT][SIZE],
                      float (&ahead)[SIZE], const Affine& affine, const Tile& tile, unsigned same) {
#pragma unroll
    for (int a = 0; a < KEPT; ++a) {
        if (!Tile::inside(a)) continue;
        float factors[SIZE], offsets[SIZE];
        if constexpr (AHEAD) {
#pragma unroll
            for (int i = 0; i < SIZE; ++i) factors[i] = ahead[i];
            if (a + 1 < KEPT && Tile::inside(a + 1)) load_factors(ahead, affine.weight, a + 1);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if constexpr (UNPACK_ANEW) {
#pragma unroll
                for (int i = 0; i < 4; ++i) asm volatile("prmt.b32 %0, %0, 0, %1;" : "+r"(pieces[r][a][i]) : "r"(same));
            }
            if (r >= tile.count) continue;
            const Affine own = affine.of(tile.first + r);
            if (!HELD && !AHEAD && (r == 0 || DIM_H > 1)) load_factors(factors, own.weight, a);
            if (HAS_bias && (r == 0 || DIM_H > 1)) load_factors(offsets, own.bias, a);
            finish(pieces[r][a], roots[r], HELD ? held[a] : factors, offsets, tile, r, a);
        }
    }
#pragma unroll 2
    for (int a = KEPT; a < ACCESSES; ++a) {
        if (!Tile::inside(a)) continue;
        float factors[SIZE], offsets[SIZE];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (r >= tile.count) continue;
            const Affine own = affine.of(tile.first + r);
            if (r == 0 || DIM_H > 1) load_factors(factors, own.weight, a);
            if (HAS_bias && (r == 0 || DIM_H > 1)) load_factors(offsets, own.bias, a);
            Piece again;
            read_piece(again, tile, r, a);
            finish(again, roots[r], factors, offsets, tile, r, a);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    rmsnorm_forward(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_residual* residual, const DTYPE_bias* bias,
                    DTYPE_y* y, DTYPE_residual_out* residual_out, float* rstd, int rows, float eps) {
    __shared__ float partial[2][ROWS][WARPS];  // of two tiles in turn, so that one barrier a tile is enough
    const Affine affine = {weight, bias};
    float held[KEPT][SIZE];
    if constexpr (HELD) {
#pragma unroll
        for (int a = 0; a < KEPT; ++a)
            if (Tile::inside(a)) load_factors(held[a], weight, a);
    }
    // The identity permutation, which the compiler cannot know: it must unpack a word anew and cannot keep the floats.
    const unsigned same = 0x3210u | (unsigned)rows >> 31;
    const unsigned tiles = (rows - 1) / ROWS + 1;
    int turn = 0;
    for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x, turn ^= 1) {
        const long long first = (long long)index * ROWS;
        const int count = rows - first < ROWS ? (int)(rows - first) : ROWS;
        const long long skip = first * DIM_N;
        const Tile tile = {x + skip, residual + skip, y + skip, residual_out + skip, rstd + first, first, count};
        Piece pieces[ROWS][KEPT];
        float roots[ROWS], ahead[SIZE];
        read(pieces, tile);
        if (AHEAD && Tile::inside(0)) load_factors(ahead, weight, 0);
        reduce(roots, pieces, tile, partial[turn], eps);
        write(pieces, roots, held, ahead, affine, tile, same);
    }
}
