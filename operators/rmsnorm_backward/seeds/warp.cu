/* evo
operator = "rmsnorm_backward"
species  = "warp-per-row"
summary  = "short rows: 8 to 32 lanes a row, several rows in flight, dw in registers; a second launch or the last CTA adds up"
static   = ["N"]

[genes]
LANES    = [32, 16, 8]                     # that share a row
UNROLL   = [2, 1, 4]                       # rows in flight of the same lanes
THREADS  = [256, 128, 512]
CTAS     = [2, 1, 3, 4, 6, 8]              # per SM
WEIGHT   = ["held", "late"]                # kept in registers, or loaded for every tile
FINISH   = ["second", "ticket"]            # a second launch, or the CTA that ends last adds the CTAs' sums
LOAD     = [
    "ld.global.nc.L1::no_allocate.v4.b32", "ld.global.v4.b32", "ld.global.nc.v4.b32",
    "ld.global.nc.L1::no_allocate.L2::128B.v4.b32", "ld.global.nc.L1::no_allocate.L2::256B.v4.b32",
    "ld.global.cs.v4.b32", "ld.global.cg.v4.b32", "ld.global.lu.v4.b32",
]
STORE    = [
    "st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32",
    "st.global.L1::no_allocate.v4.b32",
]
WLOAD    = ["ld.global.nc.v4.b32", "ld.global.nc.L1::evict_last.v4.b32"]
COLUMNS  = [32, 64, 128, 256, 512]         # that a CTA of the last step sums at a time
PDL      = [1, 0]                          # the last step is launched while the first still runs, and waits inside

[let]
VECTOR   = "16 // itemsize_dx"
ACCESSES = "ceildiv(N, VECTOR * LANES)"
PARTS    = "min(ceildiv(M, THREADS // LANES * UNROLL), SMS * CTAS)"   # CTAs, and rows of partial sums
ARRIVING = "4 * (itemsize_x + itemsize_dy + where(has_dresidual_out, itemsize_dresidual_out, 0)) // itemsize_dx"
BUDGET   = "56 + ACCESSES * (UNROLL * ARRIVING + VECTOR * (1 + has_db + (WEIGHT == 'held')))"
SHARED   = "max(THREADS // 32 * N * 4, THREADS * 16)"   # every warp's sums, one after the other for dw and db

[constraints]
all = [
    "THREADS * CTAS <= 2048",
    "N % VECTOR == 0",
    "BUDGET <= 208",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * THREADS * CTAS <= 65536",
    "SHARED + 8192 <= SMEM_BLOCK",
    "(SHARED + 8192) * CTAS <= SMEM_SM",
    "FINISH == 'second' or PDL == 1",
]

[[launch]]
kernel = "backward_rows"
grid   = ["PARTS"]
block  = ["THREADS"]
shared = "SHARED"
args   = ["x", "weight", "dy", "rstd", "dresidual_out?", "dx", "dresidual?", "dw", "db?", "partial", "ticket", "i32:M"]

[[launch]]
kernel = "backward_sums"
grid   = ["ceildiv(N, COLUMNS)", "1 + has_db"]
block  = [256]
pdl    = "PDL"
when   = "FINISH == 'second'"
args   = ["partial", "dw", "db?", "i32:PARTS"]

[scratch]
partial = { dtype = "fp32", shape = ["1 + has_db", "PARTS", "N"] }
ticket  = { dtype = "u32", shape = [1], zero = "kept" }
*/
#include "evo.h"

constexpr int SIZE = evo_words<DTYPE_dx>::SIZE;                 // elements of an access: 16 bytes of dy and dx
template <class T> constexpr int WORDS = SIZE * sizeof(T) / 4;  // 32-bit words of as many elements of T
constexpr int WARPS = THREADS / 32;
constexpr int VECTORS = DIM_N / SIZE;                           // accesses that cover a row
constexpr int ACCESSES = (VECTORS + LANES - 1) / LANES;         // of one lane; in the last some lanes may idle
constexpr int GROUPS = THREADS / LANES;                         // rows that a CTA reads side by side, UNROLL times over
constexpr bool EVEN = VECTORS % LANES == 0, HELD = WEIGHT_INDEX == 0, TICKET = FINISH_INDEX == 1;

// Hides a word behind the identity permutation, which the compiler cannot know: it unpacks the word anew, and does not
// keep the floats of the first pass for the second.
template <int COUNT> EVO_DEVICE void forget(unsigned (&words)[COUNT], unsigned same) {
    if constexpr (SIZE > 4) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) asm volatile("prmt.b32 %0, %0, 0, %1;" : "+r"(words[i]) : "r"(same));
    }
}

EVO_DEVICE int offset(int access) { return (access * LANES + (int)threadIdx.x % LANES) * SIZE; }
EVO_DEVICE bool inside(int access) { return EVEN || offset(access) < DIM_N; }

template <class T> EVO_DEVICE void load_factors(float (&factors)[SIZE], const T* from) {
    unsigned words[WORDS<T>];
    EVO_LOAD(WLOAD, words, from);
    evo_unpack<T>(words, factors);
}

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

template <class T> EVO_DEVICE void put(T* to, float4 value) {
    to[0] = evo_cast<T>(value.x), to[1] = evo_cast<T>(value.y), to[2] = evo_cast<T>(value.z), to[3] = evo_cast<T>(value.w);
}

EVO_DEVICE float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }


// Adds one sum (dw or db) of all warps of the CTA into its row of partial sums, in a fixed order.
EVO_DEVICE void merge(float (&mine)[ACCESSES][SIZE], float* memory, float* row) {
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
#pragma unroll
        for (int i = 0; i < SIZE; ++i)
#pragma unroll
            for (int step = LANES; step < 32; step *= 2) mine[a][i] += __shfl_xor_sync(0xffffffffu, mine[a][i], step);
        if (threadIdx.x % 32 >= LANES || !inside(a)) continue;
        unsigned words[SIZE];
        evo_pack<float>(mine[a], words);
        evo_shared_store(evo_shared(memory + threadIdx.x / 32 * DIM_N + offset(a)), words);
    }
    __syncthreads();
    for (int column = 4 * threadIdx.x; column < DIM_N; column += 4 * THREADS) {
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp)
            sum = add(sum, *reinterpret_cast<const float4*>(memory + warp * DIM_N + column));
        *reinterpret_cast<float4*>(row + column) = sum;
    }
    __syncthreads();
}

// The sums over `parts` rows of partial [parts, N] of COLUMNS columns, by all threads of a CTA in a fixed order: some
// rows each, then a tree. Other CTAs may have written them a moment ago, so they are not looked for in this SM's cache.
template <int COUNT, class T> EVO_DEVICE void sum_columns(const float* partial, T* to, int parts, int first, float4* sums) {
    constexpr int QUADS = COLUMNS / 4, SPLIT = COUNT / QUADS;
    const int quad = threadIdx.x % QUADS, split = threadIdx.x / QUADS, column = first + 4 * quad;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column < DIM_N) {
#pragma unroll 4
        for (int part = split; part < parts; part += SPLIT) {
            unsigned words[4];
            float values[4];
            EVO_LOAD4("ld.global.cg.v4.b32", words, partial + (long long)part * DIM_N + column);
            evo_unpack<float>(words, values);
            sum = add(sum, {values[0], values[1], values[2], values[3]});
        }
    }
    sums[threadIdx.x] = sum;
    for (int half = SPLIT / 2; half > 0; half /= 2) {
        __syncthreads();
        if (split < half) sums[threadIdx.x] = add(sums[threadIdx.x], sums[threadIdx.x + half * QUADS]);
    }
    if (split == 0 && column < DIM_N) put(to + column, sums[quad]);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    backward_rows(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_dy* dy, const float* rstd,
                  const DTYPE_dresidual_out* dresidual_out, DTYPE_dx* dx, DTYPE_dresidual* dresidual, DTYPE_dw* dw_out,
                  DTYPE_db* db_out, float* partial, unsigned* ticket, int rows) {
    extern __shared__ float4 memory[];
    __shared__ bool last;
    float dw[ACCESSES][SIZE] = {}, db[ACCESSES][SIZE] = {}, held[HELD ? ACCESSES : 1][SIZE];
    if constexpr (HELD) {
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a)
            if (inside(a)) load_factors(held[a], weight + offset(a));
    }
    const unsigned tiles = (rows - 1) / (GROUPS * UNROLL) + 1, same = 0x3210u | (unsigned)rows >> 31;
    // Every lane of a warp goes through every tile, also where its row is beyond the last: shuffles need all of them.
    // Such a row is all zero, and so is what it adds.
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const long long first = (long long)tile * (GROUPS * UNROLL) + threadIdx.x / LANES;
        unsigned x_words[UNROLL][ACCESSES][WORDS<DTYPE_x>] = {}, dy_words[UNROLL][ACCESSES][WORDS<DTYPE_dy>] = {};
        unsigned more_words[UNROLL][ACCESSES][WORDS<DTYPE_dresidual_out>] = {};
        float roots[UNROLL], means[UNROLL], dots[UNROLL][2] = {};
#pragma unroll
        for (int r = 0; r < UNROLL; ++r) {
            const long long row = first + r * GROUPS;
            roots[r] = row < rows ? rstd[row] : 0.0f;
#pragma unroll
            for (int a = 0; a < ACCESSES; ++a) {
                if (row >= rows || !inside(a)) continue;
                const long long at = row * DIM_N + offset(a);
                EVO_LOAD(LOAD, x_words[r][a], x + at);
                EVO_LOAD(LOAD, dy_words[r][a], dy + at);
                if constexpr (HAS_dresidual_out) EVO_LOAD(LOAD, more_words[r][a], dresidual_out + at);
            }
        }
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            float factors[SIZE];
            if constexpr (!HELD) load_factors(factors, weight + offset(a));
#pragma unroll
            for (int r = 0; r < UNROLL; ++r) {
                float xs[SIZE], dys[SIZE];
                evo_unpack<DTYPE_x>(x_words[r][a], xs);
                evo_unpack<DTYPE_dy>(dy_words[r][a], dys);
#pragma unroll
                for (int i = 0; i < SIZE; ++i)
                    dots[r][i % 2] = fmaf(xs[i], dys[i] * (HELD ? held[HELD ? a : 0] : factors)[i], dots[r][i % 2]);
            }
        }
#pragma unroll
        for (int r = 0; r < UNROLL; ++r) means[r] = evo_sum<LANES>(dots[r][0] + dots[r][1]) * roots[r] * (1.0f / DIM_N);
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            float factors[SIZE];
            if constexpr (!HELD) load_factors(factors, weight + offset(a));
#pragma unroll
            for (int r = 0; r < UNROLL; ++r) {
                float xs[SIZE], dys[SIZE], more[SIZE];
                const long long row = first + r * GROUPS, at = row * DIM_N + offset(a);
                forget(x_words[r][a], same);
                forget(dy_words[r][a], same);
                evo_unpack<DTYPE_x>(x_words[r][a], xs);
                evo_unpack<DTYPE_dy>(dy_words[r][a], dys);
                evo_unpack<DTYPE_dresidual_out>(more_words[r][a], more);
                finish(xs, dys, HELD ? held[HELD ? a : 0] : factors, more, roots[r], means[r], dw[a], db[a], dx + at,
                       dresidual + at, row < rows);
            }
        }
    }
    evo_pdl_launch();
    const long long parts = gridDim.x;
    merge(dw, reinterpret_cast<float*>(memory), partial + blockIdx.x * (long long)DIM_N);
    if constexpr (HAS_db) merge(db, reinterpret_cast<float*>(memory), partial + (parts + blockIdx.x) * DIM_N);
    if constexpr (TICKET) {
        __threadfence();  // this thread's part of the sums is visible before the ticket is drawn
        __syncthreads();
        if (threadIdx.x == 0) last = atomicAdd(ticket, 1u) == gridDim.x - 1;
        __syncthreads();
        if (!last) return;
        __threadfence();
        if (threadIdx.x == 0) *ticket = 0;
        for (int column = 0; column < DIM_N; column += COLUMNS) {
            sum_columns<THREADS>(partial, dw_out, gridDim.x, column, memory);
            if constexpr (HAS_db) sum_columns<THREADS>(partial + parts * DIM_N, db_out, gridDim.x, column, memory);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    backward_sums(const float* partial, DTYPE_dw* dw, DTYPE_db* db, int parts) {
    __shared__ float4 sums[256];
    evo_pdl_wait();
    if (blockIdx.y == 0) sum_columns<256>(partial, dw, parts, blockIdx.x * COLUMNS, sums);
    if (HAS_db && blockIdx.y == 1)
        sum_columns<256>(partial + (long long)parts * DIM_N, db, parts, blockIdx.x * COLUMNS, sums);
}
