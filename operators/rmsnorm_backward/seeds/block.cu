/* evo
operator = "rmsnorm_backward"
species  = "block-per-row"
summary  = "persistent CTAs, a row at a time: rows ahead by cp.async, dw in registers; a second launch adds the CTAs' dw"
static   = ["N"]

[genes]
THREADS  = [256, 128, 512, 64, 1024]       # at most: a short row has one for each access, and so more CTAs an SM
STAGES   = [3, 2, 4, 6]                    # rows in shared memory, one of them being worked on
CTAS     = [2, 1, 3, 4, 6, 8]              # per SM, of so many threads
WEIGHT   = ["late", "held"]                # loaded for every row, or kept in registers
STORE    = [
    "st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32",
    "st.global.L1::no_allocate.v4.b32",
]
WLOAD    = ["ld.global.nc.v4.b32", "ld.global.nc.L1::evict_last.v4.b32"]
COLUMNS  = [16, 32, 64, 128]               # that a CTA of the last step sums
PDL      = [1, 0]                          # the last step is launched while the first still runs, and waits inside

[let]
VECTOR   = "16 // itemsize_dx"
TEAM     = "min(THREADS, 32 * ceildiv(N, 32 * VECTOR))"   # threads
ACCESSES = "ceildiv(N, VECTOR * TEAM)"
RESIDENT = "max(CTAS, min(16, CTAS * THREADS // TEAM))"   # CTAs an SM
PARTS    = "min(M, SMS * RESIDENT)"        # CTAs, and rows of partial sums
ROW      = "N * (itemsize_x + itemsize_dy + where(has_dresidual_out, itemsize_dresidual_out, 0))"
BUDGET   = "56 + VECTOR * ACCESSES * (1 + has_db + (WEIGHT == 'held'))"

[constraints]
all = [
    "THREADS * CTAS <= 2048",
    "N % VECTOR == 0",
    "BUDGET <= 200",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * TEAM * RESIDENT <= 65536",
    "STAGES * ROW + 2048 <= SMEM_BLOCK",
    "(STAGES * ROW + 2048) * RESIDENT <= SMEM_SM",
]

[[launch]]
kernel = "backward_rows"
grid   = ["PARTS"]
block  = ["TEAM"]
shared = "STAGES * ROW"
args   = ["x", "weight", "dy", "rstd", "dresidual_out?", "dx", "dresidual?", "partial", "i32:M"]

[[launch]]
kernel = "backward_sums"
grid   = ["ceildiv(N, COLUMNS)", "1 + has_db"]
block  = [256]
pdl    = "PDL"
args   = ["partial", "dw", "db?", "i32:PARTS"]

[scratch]
partial = { dtype = "fp32", shape = ["1 + has_db", "PARTS", "N"] }
*/
#include "evo.h"

constexpr int SIZE = evo_words<DTYPE_dx>::SIZE;                 // elements of an access: 16 bytes of dy and dx
template <class T> constexpr int WORDS = SIZE * sizeof(T) / 4;  // 32-bit words of as many elements of T
constexpr int VECTORS = DIM_N / SIZE;                           // accesses that cover a row
constexpr int COVER = (VECTORS + 31) / 32 * 32, TEAM = THREADS < COVER ? THREADS : COVER, WARPS = TEAM / 32;
constexpr int ACCESSES = (VECTORS + TEAM - 1) / TEAM;           // of one thread; in the last some threads may idle
constexpr bool EVEN = VECTORS % TEAM == 0, HELD = WEIGHT_INDEX == 1;
constexpr int X_BYTES = DIM_N * sizeof(DTYPE_x), DY_BYTES = DIM_N * sizeof(DTYPE_dy);
constexpr int MORE_BYTES = HAS_dresidual_out ? DIM_N * sizeof(DTYPE_dresidual_out) : 0;
constexpr int ROW_BYTES = X_BYTES + DY_BYTES + MORE_BYTES;

EVO_DEVICE int offset(int access) { return (access * TEAM + (int)threadIdx.x) * SIZE; }
EVO_DEVICE bool inside(int access) { return EVEN || offset(access) < DIM_N; }

template <class T> EVO_DEVICE void load_factors(float (&factors)[SIZE], const T* from) {
    unsigned words[WORDS<T>];
    EVO_LOAD(WLOAD, words, from);
    evo_unpack<T>(words, factors);
}

// A thread copies SIZE elements and reads back only what it copied itself, so that no barrier is needed.
template <class T> EVO_DEVICE void copy(unsigned at, const T* from) {
#pragma unroll
    for (int i = 0; i < SIZE; i += 16 / sizeof(T)) evo_async_load(at + i * (int)sizeof(T), from + i);
}

template <class T> EVO_DEVICE void read(float (&values)[SIZE], unsigned at) {
    unsigned words[WORDS<T>];
    evo_shared_load(at, words);
    evo_unpack<T>(words, values);
}

// A row in shared memory: x, dy, dresidual_out.
struct Row {
    unsigned base;

    EVO_DEVICE unsigned x(int access) const { return base + offset(access) * (int)sizeof(DTYPE_x); }
    EVO_DEVICE unsigned dy(int access) const { return base + X_BYTES + offset(access) * (int)sizeof(DTYPE_dy); }
    EVO_DEVICE unsigned more(int access) const {
        return base + X_BYTES + DY_BYTES + offset(access) * (int)sizeof(DTYPE_dresidual_out);
    }
};

// What becomes of one access of a row: dx is stored, dw and db grow. `mean` is that of n * g, see the operator.
EVO_DEVICE void finish(const float (&x)[SIZE], const float (&dy)[SIZE], const float (&weight)[SIZE],
                       const float (&more)[SIZE], float root, float mean, float (&dw)[SIZE], float (&db)[SIZE],
                       DTYPE_dx* dx, DTYPE_dresidual* dresidual, bool exists) {
    float values[SIZE];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        const float normed = x[i] * root;
        values[i] = (dy[i] * weight[i] - normed * mean) * root + (HAS_dresidual_out ? more[i] : 0.0f);
        dw[i] = fmaf(dy[i], normed, dw[i]);
        if constexpr (HAS_db) db[i] += dy[i];
    }
    if (!exists) return;
    unsigned words[WORDS<DTYPE_dx>];
    evo_pack<DTYPE_dx>(values, words);
    EVO_STORE(STORE, dx, words);
    if constexpr (HAS_dresidual) {
        unsigned wide[WORDS<DTYPE_dresidual>];
        evo_pack<DTYPE_dresidual>(values, wide);
        EVO_STORE(STORE, dresidual, wide);
    }
}

// Sum over the CTA, the same bits in all threads; `partial` is of two rows in turn, so one barrier a row is enough.
EVO_DEVICE float block_sum(float mine, float (&partial)[WARPS]) {
    const int lane = threadIdx.x % 32;
    mine = evo_sum(mine);
    if (lane == 0) partial[threadIdx.x / 32] = mine;
    __syncthreads();
    return evo_sum(lane < WARPS ? partial[lane] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    backward_rows(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_dy* dy, const float* rstd,
                  const DTYPE_dresidual_out* dresidual_out, DTYPE_dx* dx, DTYPE_dresidual* dresidual, float* partial,
                  int rows) {
    extern __shared__ float4 memory[];  // [STAGES] rows
    __shared__ float sums[2][WARPS];
    const unsigned base = evo_shared(memory);
    const auto fetch = [&](long long row, int stage) {
        const Row to = {base + stage * ROW_BYTES};
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (row >= rows || !inside(a)) continue;
            const long long from = row * DIM_N + offset(a);
            copy(to.x(a), x + from);
            copy(to.dy(a), dy + from);
            if constexpr (HAS_dresidual_out) copy(to.more(a), dresidual_out + from);
        }
        evo_async_commit();  // also where there is none: groups are counted
    };
    float dw[ACCESSES][SIZE] = {}, db[ACCESSES][SIZE] = {}, held[HELD ? ACCESSES : 1][SIZE];
    if constexpr (HELD) {
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a)
            if (inside(a)) load_factors(held[a], weight + offset(a));
    }
    long long row = blockIdx.x;
    for (int s = 0; s < STAGES - 1; ++s) fetch(row + (long long)s * gridDim.x, s);
    float next_root = rstd[row];
    int stage = 0, turn = 0;
    for (; row < rows; row += gridDim.x, turn ^= 1, stage = stage + 1 == STAGES ? 0 : stage + 1) {
        fetch(row + (long long)(STAGES - 1) * gridDim.x, stage == 0 ? STAGES - 1 : stage - 1);
        const float root = next_root;
        if (row + gridDim.x < rows) next_root = rstd[row + gridDim.x];
        evo_async_wait<STAGES - 1>();
        const Row own = {base + stage * ROW_BYTES};
        float dot[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            float xs[SIZE], dys[SIZE], factors[SIZE];
            read<DTYPE_x>(xs, own.x(a));
            read<DTYPE_dy>(dys, own.dy(a));
            if constexpr (!HELD) load_factors(factors, weight + offset(a));
#pragma unroll
            for (int i = 0; i < SIZE; ++i) dot[i % 4] = fmaf(xs[i], dys[i] * (HELD ? held[HELD ? a : 0] : factors)[i], dot[i % 4]);
        }
        const float mean = block_sum((dot[0] + dot[1]) + (dot[2] + dot[3]), sums[turn]) * root * (1.0f / DIM_N);
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            float xs[SIZE], dys[SIZE], more[SIZE], factors[SIZE];
            read<DTYPE_x>(xs, own.x(a));
            read<DTYPE_dy>(dys, own.dy(a));
            if constexpr (HAS_dresidual_out) read<DTYPE_dresidual_out>(more, own.more(a));
            if constexpr (!HELD) load_factors(factors, weight + offset(a));
            const long long at = row * DIM_N + offset(a);
            finish(xs, dys, HELD ? held[HELD ? a : 0] : factors, more, root, mean, dw[a], db[a], dx + at,
                   dresidual + at, true);
        }
    }
    evo_pdl_launch();
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        if (!inside(a)) continue;
        unsigned words[SIZE];
        evo_pack<float>(dw[a], words);
        EVO_STORE("st.global.v4.b32", partial + (long long)blockIdx.x * DIM_N + offset(a), words);
        if constexpr (HAS_db) {
            evo_pack<float>(db[a], words);
            EVO_STORE("st.global.v4.b32", partial + (long long)(gridDim.x + blockIdx.x) * DIM_N + offset(a), words);
        }
    }
}

template <class T> EVO_DEVICE void put(T* to, float4 value) {
    to[0] = evo_cast<T>(value.x), to[1] = evo_cast<T>(value.y), to[2] = evo_cast<T>(value.z), to[3] = evo_cast<T>(value.w);
}

EVO_DEVICE float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// The sums over `parts` rows of partial [parts, N] of four columns a thread, in a fixed order: some rows each, then a tree.
extern "C" __global__ void __launch_bounds__(256)
    backward_sums(const float* partial, DTYPE_dw* dw, DTYPE_db* db, int parts) {
    constexpr int QUADS = COLUMNS / 4, SPLIT = 256 / QUADS;
    __shared__ float4 sums[SPLIT][QUADS];
    const int quad = threadIdx.x % QUADS, split = threadIdx.x / QUADS, column = blockIdx.x * COLUMNS + 4 * quad;
    evo_pdl_wait();
    partial += (long long)blockIdx.y * parts * DIM_N;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column < DIM_N) {
#pragma unroll 8
        for (int part = split; part < parts; part += SPLIT)
            sum = add(sum, *reinterpret_cast<const float4*>(partial + (long long)part * DIM_N + column));
    }
    sums[split][quad] = sum;
    for (int half = SPLIT / 2; half > 0; half /= 2) {
        __syncthreads();
        if (split < half) sums[split][quad] = add(sums[split][quad], sums[split + half][quad]);
    }
    if (split != 0 || column >= DIM_N) return;
    if (blockIdx.y == 0) put(dw + column, sums[0][quad]);
    if (HAS_db && blockIdx.y == 1) put(db + column, sums[0][quad]);
}
