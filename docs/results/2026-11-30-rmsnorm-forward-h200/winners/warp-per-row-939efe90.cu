/* evo
operator = "rmsnorm"
species  = "warp-per-row"
summary  = "8, 16 or 32 lanes a row, several rows in flight in registers, shuffles only: no shared memory, no CTA barrier"
arch     = ["sm_90a", "sm_100a"]
static   = ["N"]

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
BUDGET   = "40 + 4 * ACCESSES * UNROLL * where(FORM == 'packed', 1, VECTOR // 4) + where(WEIGHT == 'held', VECTOR * ACCESSES, 8)"
TILES    = "ceildiv(M, THREADS // LANES * UNROLL)"

[constraints]
all = [
    "THREADS * CTAS <= 2048",
    "itemsize_x == itemsize_y",
    "N % VECTOR == 0",
    "BUDGET <= 216",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * THREADS * CTAS <= 65536",
]

[default]
LANES = 32
UNROLL = 1
THREADS = 128
CTAS = 4
SCHEDULE = "oneshot"
WEIGHT = "held"
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
constexpr int VECTORS = DIM_N / X::SIZE;                  // 16-byte accesses that cover a row
constexpr int ACCESSES = (VECTORS + LANES - 1) / LANES;   // of one lane; in the last some lanes may idle
constexpr int GROUPS = THREADS / LANES;                   // rows that a CTA reads side by side, UNROLL times over
constexpr bool EVEN = VECTORS % LANES == 0;
constexpr bool HELD = WEIGHT_INDEX == 1;
constexpr bool UNPACK_ANEW = FORM_INDEX == 0 && X::SIZE > 4;

EVO_DEVICE int vector_of(int access) { return access * LANES + (int)threadIdx.x % LANES; }
EVO_DEVICE bool inside(int access) { return EVEN || vector_of(access) < VECTORS; }

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

// 1 / sqrt(mean(x^2) + eps) of a row, in all its lanes.
EVO_DEVICE float reduce(const unsigned (&words)[ACCESSES][4], float eps) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        float values[X::SIZE];
        X::unpack(words[a], values);
#pragma unroll
        for (int i = 0; i < X::SIZE; ++i) sums[i % 4] = fmaf(values[i], values[i], sums[i % 4]);
    }
    const float sum = evo_sum<LANES>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    return inverse_root(sum * (1.0f / DIM_N) + eps);
}

EVO_DEVICE void scale(unsigned (&words)[4], float root, const float (&factors)[X::SIZE], DTYPE_y* target, unsigned same) {
    if constexpr (UNPACK_ANEW) {
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("prmt.b32 %0, %0, 0, %1;" : "+r"(words[i]) : "r"(same));
    }
    float values[X::SIZE];
    unsigned out[4];
    X::unpack(words, values);
#pragma unroll
    for (int i = 0; i < X::SIZE; ++i) values[i] = values[i] * root * factors[i];
    Y::pack(values, out);
    EVO_STORE4(STORE, target, out);
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    rmsnorm_forward(const DTYPE_x* x, const float* weight, DTYPE_y* y, int rows, float eps) {
    float factors[ACCESSES][X::SIZE];
    if constexpr (HELD) {
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a)
            if (inside(a)) load_weight(factors[a], weight, a);
    }
    // The identity permutation, which the compiler cannot know: it must unpack a word anew and cannot keep the floats.
    const unsigned same = 0x3210u | (unsigned)rows >> 31;
    const unsigned tiles = (rows - 1) / (GROUPS * UNROLL) + 1;
    // Every lane of a warp goes through every tile, also where its row is beyond the last: shuffles need all of them.
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const long long first = (long long)tile * (GROUPS * UNROLL) + threadIdx.x / LANES;
        unsigned words[UNROLL][ACCESSES][4];
        float roots[UNROLL];
#pragma unroll
        for (int r = 0; r < UNROLL; ++r)
#pragma unroll
            for (int a = 0; a < ACCESSES; ++a) {
                const long long row = first + r * GROUPS;
                words[r][a][0] = words[r][a][1] = words[r][a][2] = words[r][a][3] = 0;
                if (row < rows && inside(a)) EVO_LOAD4(LOAD, words[r][a], x + row * DIM_N + vector_of(a) * X::SIZE);
            }
#pragma unroll
        for (int r = 0; r < UNROLL; ++r) roots[r] = reduce(words[r], eps);
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            if constexpr (!HELD) load_weight(factors[a], weight, a);
#pragma unroll
            for (int r = 0; r < UNROLL; ++r) {
                const long long row = first + r * GROUPS;
                if (row < rows) scale(words[r][a], roots[r], factors[a], y + row * DIM_N + vector_of(a) * Y::SIZE, same);
            }
        }
    }
}
