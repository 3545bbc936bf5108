/* evo
operator = "rmsnorm"
species  = "block-per-row"
summary  = "a CTA per row: direct 16-byte loads, the row kept in registers, warp shuffles then one shared-memory exchange"
arch     = ["sm_90a", "sm_100a"]
static   = ["N"]

[genes]
THREADS  = [256, 128, 512, 64, 1024]
ROWS     = [1, 2, 4]                       # rows that a CTA has in flight
KEEP     = [32, 64, 16, 8, 128]            # 32-bit words of a row that a thread keeps; what is beyond is read twice
CTAS     = [3, 1, 2, 4, 6, 8, 12, 16]      # per SM: what registers are allotted for, and a persistent grid's size
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
ACCESSES = "ceildiv(N, VECTOR * THREADS)"
KEPT     = "min(ACCESSES, KEEP // 4)"
BUDGET   = "40 + 4 * KEPT * ROWS * where(FORM == 'packed', 1, VECTOR // 4) + where(WEIGHT == 'held', VECTOR * KEPT, 8)"
TILES    = "ceildiv(M, ROWS)"

[constraints]
all = [
    "THREADS * CTAS <= 2048",
    "itemsize_x == itemsize_y",
    "N % VECTOR == 0",
    "BUDGET <= 232",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * THREADS * CTAS <= 65536",
]

[default]
THREADS = 256
ROWS = 1
KEEP = 32
CTAS = 2
SCHEDULE = "oneshot"
WEIGHT = "late"
FORM = "packed"
RSQRT = "approx"
LOAD = "ld.global.v4.b32"
STORE = "st.global.v4.b32"
WLOAD = "ld.global.nc.v4.b32"

[[launch]]
kernel = "rmsnorm_forward"
grid   = ["where(SCHEDULE == 'persistent', min(TILES, SMS * CTAS), TILES)"]
block  = ["THREADS"]
args   = ["x", "weight", "y", "i32:M", "eps"]
*/
#include "evo.h"

using X = evo_words<DTYPE_x>;
using Y = evo_words<DTYPE_y>;
constexpr int WARPS = THREADS / 32;
constexpr int VECTORS = DIM_N / X::SIZE;                         // 16-byte accesses that cover a row
constexpr int ACCESSES = (VECTORS + THREADS - 1) / THREADS;      // of one thread; in the last some threads may idle
constexpr int KEPT = ACCESSES < KEEP / 4 ? ACCESSES : KEEP / 4;  // of these, kept in registers
constexpr bool EVEN = VECTORS % THREADS == 0;
constexpr bool HELD = WEIGHT_INDEX == 1;
constexpr bool UNPACK_ANEW = FORM_INDEX == 0 && X::SIZE > 4;

// Rows first .. first + count - 1 are this CTA's at a time.
struct Tile {
    const DTYPE_x* x;
    DTYPE_y* y;
    int count;
};

EVO_DEVICE int vector_of(int access) { return access * THREADS + (int)threadIdx.x; }
EVO_DEVICE bool inside(int access) { return EVEN || vector_of(access) < VECTORS; }

EVO_DEVICE void load(unsigned (&words)[4], const Tile& tile, int row, int access) {
    EVO_LOAD4(LOAD, words, tile.x + (long long)row * DIM_N + vector_of(access) * X::SIZE);
}

EVO_DEVICE void load_weight(float (&factors)[X::SIZE], const float* weight, int access) {
#pragma unroll
    for (int i = 0; i < X::SIZE; i += 4) {
        unsigned words[4];
        EVO_LOAD4(WLOAD, words, weight + vector_of(access) * X::SIZE + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) factors[i + j] = __uint_as_float(words[j]);
    }
}

EVO_DEVICE float inverse_root(float value) {
    float root;
    if constexpr (RSQRT_INDEX == 2) {
        asm("sqrt.rn.f32 %0, %1;\n\trcp.rn.f32 %0, %0;" : "=f"(root) : "f"(value));
    } else {
        asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(value));
        if constexpr (RSQRT_INDEX == 1) root *= 1.5f - 0.5f * value * root * root;
    }
    return root;
}

// Adds the squares of one access to four independent accumulators.
EVO_DEVICE void add_squares(float (&sums)[4], const unsigned (&words)[4]) {
    float values[X::SIZE];
    X::unpack(words, values);
#pragma unroll
    for (int i = 0; i < X::SIZE; ++i) sums[i % 4] = fmaf(values[i], values[i], sums[i % 4]);
}

EVO_DEVICE void scale(const unsigned (&words)[4], float root, const float (&factors)[X::SIZE], const Tile& tile, int row,
                      int access) {
    float values[X::SIZE];
    unsigned out[4];
    X::unpack(words, values);
#pragma unroll
    for (int i = 0; i < X::SIZE; ++i) values[i] = values[i] * root * factors[i];
    Y::pack(values, out);
    EVO_STORE4(STORE, tile.y + (long long)row * DIM_N + vector_of(access) * Y::SIZE, out);
}

EVO_DEVICE void read(unsigned (&words)[ROWS][KEPT][4], const Tile& tile) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int a = 0; a < KEPT; ++a) {
            words[r][a][0] = words[r][a][1] = words[r][a][2] = words[r][a][3] = 0;
            if (r < tile.count && inside(a)) load(words[r][a], tile, r, a);
        }
}

// 1 / sqrt(mean(x^2) + eps) of every row of the tile, in all threads.
EVO_DEVICE void reduce(float (&roots)[ROWS], const unsigned (&words)[ROWS][KEPT][4], const Tile& tile,
                       float (&partial)[ROWS][WARPS], float eps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int a = 0; a < KEPT; ++a) add_squares(sums, words[r][a]);
        if (r < tile.count) {
#pragma unroll 4
            for (int a = KEPT; a < ACCESSES; ++a) {
                if (!inside(a)) continue;
                unsigned passing[4];
                load(passing, tile, r, a);
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
        roots[r] = inverse_root(sum * (1.0f / DIM_N) + eps);
    }
}

EVO_DEVICE void write(unsigned (&words)[ROWS][KEPT][4], const float (&roots)[ROWS], float (&factors)[KEPT][X::SIZE],
                      const float* weight, const Tile& tile, unsigned same) {
#pragma unroll
    for (int a = 0; a < KEPT; ++a) {
        if (!inside(a)) continue;
        if constexpr (!HELD) load_weight(factors[a], weight, a);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if constexpr (UNPACK_ANEW) {
#pragma unroll
                for (int i = 0; i < 4; ++i) asm volatile("prmt.b32 %0, %0, 0, %1;" : "+r"(words[r][a][i]) : "r"(same));
            }
            if (r < tile.count) scale(words[r][a], roots[r], factors[a], tile, r, a);
        }
    }
#pragma unroll 4
    for (int a = KEPT; a < ACCESSES; ++a) {
        if (!inside(a)) continue;
        float late[X::SIZE];
        load_weight(late, weight, a);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (r >= tile.count) continue;
            unsigned again[4];
            load(again, tile, r, a);
            scale(again, roots[r], late, tile, r, a);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    rmsnorm_forward(const DTYPE_x* x, const float* weight, DTYPE_y* y, int rows, float eps) {
    __shared__ float partial[2][ROWS][WARPS];  // of two tiles in turn, so that one barrier a tile is enough
    float factors[KEPT][X::SIZE];
    if constexpr (HELD) {
#pragma unroll
        for (int a = 0; a < KEPT; ++a)
            if (inside(a)) load_weight(factors[a], weight, a);
    }
    // The identity permutation, which the compiler cannot know: it must unpack a word anew and cannot keep the floats.
    const unsigned same = 0x3210u | (unsigned)rows >> 31;
    const unsigned tiles = (rows - 1) / ROWS + 1;
    int turn = 0;
    for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x, turn ^= 1) {
        const long long first = (long long)index * ROWS;
        const int count = rows - first < ROWS ? (int)(rows - first) : ROWS;
        const Tile tile = {x + first * DIM_N, y + first * DIM_N, count};
        unsigned words[ROWS][KEPT][4];
        float roots[ROWS];
        read(words, tile);
        reduce(roots, words, tile, partial[turn], eps);
        write(words, roots, factors, weight, tile, same);
    }
}
