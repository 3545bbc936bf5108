/* evo
operator = "rmsnorm_backward"
species  = "warp-ring"
summary  = "short rows: each warp fills a ring of its own by bulk copies and meets nobody until the end; dw in registers"
arch     = ["sm_90a", "sm_100a"]
static   = ["N"]

[genes]
PER      = [16, 8, 32]                     # elements of a row for a lane, before more than 8 or 16 lanes share it
TILE     = [1024, 512, 2048, 4096]         # elements of x in a tile of whole rows, where rows are shorter
STAGES   = [3, 2, 4, 6]                    # tiles in a warp's ring
WARPS    = [16, 8, 12, 4, 24]              # of a CTA, as far as the ring has room for
RING     = [192, 96, 64, 48]               # KB of shared memory that a CTA's rings may take
CTAS     = [1, 2, 3, 4]                    # per SM
HELD     = [16, 0, 32, 64]                 # weights that a lane keeps in registers, at most; else shared memory has them
FINISH   = ["second", "ticket"]            # a second launch, or the CTA that ends last adds the CTAs' sums
STORE    = [
    "st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32",
    "st.global.L1::no_allocate.v4.b32",
]
WLOAD    = ["ld.global.nc.v4.b32", "ld.global.nc.L1::evict_last.v4.b32"]
COLUMNS  = [32, 64, 128, 16, 256]          # that a CTA of the last step sums at a time
PDL      = [1, 0]                          # the last step is launched while the first still runs, and waits inside

[let]
VECTOR   = "16 // itemsize_dx"
LANES    = "where(N > 16 * PER, 32, where(N > 8 * PER, 16, 8))"
ACCESSES = "ceildiv(N, VECTOR * LANES)"
ROUNDS   = "max(1, min(4, TILE * LANES // (32 * N)))"   # rows of a tile that the same lanes work on
ROWS     = "32 // LANES * ROUNDS"
STAGE    = "ROWS * N * (itemsize_x + itemsize_dy + where(has_dresidual_out, itemsize_dresidual_out, 0))"
ARRIVING = "4 * (itemsize_x + itemsize_dy + where(has_dresidual_out, itemsize_dresidual_out, 0)) // itemsize_dx"
BUDGET   = "52 + ACCESSES * (ROUNDS * ARRIVING + VECTOR * (1 + has_db)) + where(VECTOR * ACCESSES > HELD, 8, VECTOR * ACCESSES)"
TEAM     = "max(1, min(WARPS, RING * 1024 // (STAGES * STAGE), 65536 // (128 * CTAS * BUDGET) * 4))"  # warps of a CTA
FACTORS  = "where(VECTOR * ACCESSES > HELD, ACCESSES * LANES * VECTOR * 4, 0)"
SHARED   = "TEAM * STAGES * STAGE + FACTORS"
PARTS    = "min(ceildiv(M, TEAM * ROWS), SMS * CTAS)"               # CTAs, and rows of partial sums

[constraints]
all = [
    "TEAM * 32 * CTAS <= 2048",
    "TEAM * 32 <= 1024",
    "N % VECTOR == 0",
    "BUDGET <= 224",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * ceildiv(TEAM, 4) * 128 * CTAS <= 65536",
    "SHARED + 2048 <= SMEM_BLOCK",
    "(SHARED + 2048) * CTAS <= SMEM_SM",
    "FINISH == 'second' or PDL == 1",
]

[[launch]]
kernel = "backward_rows"
grid   = ["PARTS"]
block  = ["TEAM * 32"]
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
constexpr int LANES = DIM_N > 16 * PER ? 32 : DIM_N > 8 * PER ? 16 : 8;  // that share a row
constexpr int VECTORS = DIM_N / SIZE;                           // accesses that cover a row
constexpr int ACCESSES = (VECTORS + LANES - 1) / LANES;         // of one lane; in the last some lanes may idle
constexpr int GROUPS = 32 / LANES;                              // rows that a warp works on side by side
constexpr int FIT = TILE / (GROUPS * DIM_N), ROUNDS = FIT < 1 ? 1 : FIT > 4 ? 4 : FIT, ROWS = GROUPS * ROUNDS;
constexpr int X_BYTES = ROWS * DIM_N * sizeof(DTYPE_x), DY_BYTES = ROWS * DIM_N * sizeof(DTYPE_dy);
constexpr int MORE_BYTES = HAS_dresidual_out ? ROWS * DIM_N * sizeof(DTYPE_dresidual_out) : 0;
constexpr int STAGE_BYTES = X_BYTES + DY_BYTES + MORE_BYTES;    // the rows' x, then their dy, then dresidual_out
constexpr bool EVEN = VECTORS % LANES == 0, REGISTERS = SIZE * ACCESSES <= HELD, TICKET = FINISH_INDEX == 1;
constexpr int ARRIVING = WORDS<DTYPE_x> + WORDS<DTYPE_dy> + (HAS_dresidual_out ? WORDS<DTYPE_dresidual_out> : 0);
constexpr int BUDGET = 52 + ACCESSES * (ROUNDS * ARRIVING + SIZE * (1 + HAS_db)) + (REGISTERS ? SIZE * ACCESSES : 8);
EVO_DEVICE constexpr int least(int a, int b) { return a < b ? a : b; }
// As many warps as shared memory and registers have room for, as the header has it.
constexpr int ROOM = least(least(WARPS, RING * 1024 / (STAGES * STAGE_BYTES)), 65536 / (128 * CTAS * BUDGET) * 4);
constexpr int TEAM = ROOM < 1 ? 1 : ROOM, THREADS = TEAM * 32;

// Hides a word behind the identity permutation, which the compiler cannot know: it unpacks the word anew, and does not
// keep the floats of the first pass for the second.
template <int COUNT> EVO_DEVICE void forget(unsigned (&words)[COUNT], unsigned same) {
    if constexpr (SIZE > 4) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) asm volatile("prmt.b32 %0, %0, 0, %1;" : "+r"(words[i]) : "r"(same));
    }
}

EVO_DEVICE int lane_of_row() { return threadIdx.x % LANES; }
EVO_DEVICE int offset(int access) { return (access * LANES + lane_of_row()) * SIZE; }
EVO_DEVICE bool inside(int access) { return EVEN || offset(access) < DIM_N; }

// The weight: of each lane in registers, or [ACCESSES][SIZE / 4][LANES] in shared memory.
struct Weight {
    float4* shared;
    float held[REGISTERS ? ACCESSES : 1][SIZE];

    EVO_DEVICE float4& slot(int access, int quarter, int lane) const {
        return shared[(access * (SIZE / 4) + quarter) * LANES + lane];
    }
    // A CTA barrier must follow.
    EVO_DEVICE void keep(const DTYPE_weight* weight) {
        if constexpr (REGISTERS) {
#pragma unroll
            for (int a = 0; a < ACCESSES; ++a)
                if (inside(a)) load(held[a], weight + offset(a));
        } else {
            for (int i = threadIdx.x; i < VECTORS; i += THREADS) {
                float factors[SIZE];
                load(factors, weight + i * SIZE);
#pragma unroll
                for (int q = 0; q < SIZE / 4; ++q)
                    slot(i / LANES, q, i % LANES) = {factors[4 * q], factors[4 * q + 1], factors[4 * q + 2], factors[4 * q + 3]};
            }
        }
    }
    EVO_DEVICE void factors(float (&out)[SIZE], int access) const {
#pragma unroll
        for (int q = 0; q < SIZE / 4; ++q) {
            if constexpr (REGISTERS) {
#pragma unroll
                for (int i = 4 * q; i < 4 * q + 4; ++i) out[i] = held[access][i];
            } else {
                const float4 four = slot(access, q, lane_of_row());
                out[4 * q] = four.x, out[4 * q + 1] = four.y, out[4 * q + 2] = four.z, out[4 * q + 3] = four.w;
            }
        }
    }
    static EVO_DEVICE void load(float (&factors)[SIZE], const DTYPE_weight* from) {
        unsigned words[WORDS<DTYPE_weight>];
        EVO_LOAD(WLOAD, words, from);
        evo_unpack<DTYPE_weight>(words, factors);
    }
};

// Asks for tiles of consecutive rows; by one lane of the warp.
struct Source {
    const DTYPE_x* x;
    const DTYPE_dy* dy;
    const DTYPE_dresidual_out* more;
    unsigned ring, barriers;  // of this warp
    int rows;

    EVO_DEVICE void fetch(long long tile, int stage) const {
        const long long first = tile * ROWS;
        if (first >= rows) return;
        const int count = (rows - first < ROWS ? (int)(rows - first) : ROWS) * DIM_N;
        const unsigned at = ring + stage * STAGE_BYTES, full = barriers + 8 * stage;
        evo_barrier_expect(full, count * (STAGE_BYTES / (ROWS * DIM_N)));
        evo_bulk_load(at, x + first * DIM_N, count * (int)sizeof(DTYPE_x), full);
        evo_bulk_load(at + X_BYTES, dy + first * DIM_N, count * (int)sizeof(DTYPE_dy), full);
        if constexpr (HAS_dresidual_out)
            evo_bulk_load(at + X_BYTES + DY_BYTES, more + first * DIM_N, count * (int)sizeof(DTYPE_dresidual_out), full);
    }
};

// This lane's part of a tile, packed as it came. A row beyond the last is zero, and so is what it adds.
struct Tile {
    unsigned x[ROUNDS][ACCESSES][WORDS<DTYPE_x>], dy[ROUNDS][ACCESSES][WORDS<DTYPE_dy>];
    unsigned more[ROUNDS][ACCESSES][WORDS<DTYPE_dresidual_out>];

    template <class T> static EVO_DEVICE void take(unsigned (&words)[WORDS<T>], unsigned at, int row, int access, bool is) {
        if (is) {
            evo_shared_load(at + (row * DIM_N + offset(access)) * (int)sizeof(T), words);
        } else {
#pragma unroll
            for (int i = 0; i < WORDS<T>; ++i) words[i] = 0;
        }
    }
    EVO_DEVICE void read(unsigned at, int group, int count) {
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
            for (int a = 0; a < ACCESSES; ++a) {
                const int row = r * GROUPS + group;
                const bool is = row < count && inside(a);
                take<DTYPE_x>(x[r][a], at, row, a, is);
                take<DTYPE_dy>(dy[r][a], at + X_BYTES, row, a, is);
                if constexpr (HAS_dresidual_out) take<DTYPE_dresidual_out>(more[r][a], at + X_BYTES + DY_BYTES, row, a, is);
            }
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

template <class T> EVO_DEVICE void put(T* to, float4 value) {
    to[0] = evo_cast<T>(value.x), to[1] = evo_cast<T>(value.y), to[2] = evo_cast<T>(value.z), to[3] = evo_cast<T>(value.w);
}

EVO_DEVICE float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// Adds one sum (dw or db) of all warps of the CTA into its row of partial sums, in a fixed order.
EVO_DEVICE void merge(float (&mine)[ACCESSES][SIZE], float* memory, float* row) {
    __syncthreads();  // nobody needs what lay here
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
        for (int warp = 0; warp < TEAM; ++warp)
            sum = add(sum, *reinterpret_cast<const float4*>(memory + warp * DIM_N + column));
        *reinterpret_cast<float4*>(row + column) = sum;
    }
}

// The sums over `parts` rows of partial [parts, N] of COLUMNS columns, by COUNT threads in a fixed order: some rows
// each, then a tree. Other CTAs may have written them a moment ago, so they are not looked for in this SM's cache.
template <int COUNT, class T> EVO_DEVICE void sum_columns(const float* partial, T* to, int parts, int first, float4* sums) {
    constexpr int QUADS = COLUMNS / 4, SPLIT = COUNT / QUADS;
    const int quad = threadIdx.x % QUADS, split = threadIdx.x / QUADS, column = first + 4 * quad;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column < DIM_N && split < SPLIT) {
#pragma unroll 8
        for (int part = split; part < parts; part += SPLIT) {
            unsigned words[4];
            float values[4];
            EVO_LOAD4("ld.global.cg.v4.b32", words, partial + (long long)part * DIM_N + column);
            evo_unpack<float>(words, values);
            sum = add(sum, {values[0], values[1], values[2], values[3]});
        }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int live = SPLIT; live > 1;) {  // also where SPLIT is no power of two
        const int half = (live + 1) / 2;
        if (split < live - half) sums[threadIdx.x] = add(sums[threadIdx.x], sums[threadIdx.x + half * QUADS]);
        live = half;
        __syncthreads();
    }
    if (split == 0 && column < DIM_N) put(to + column, sums[quad]);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    backward_rows(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_dy* dy, const float* rstd,
                  const DTYPE_dresidual_out* dresidual_out, DTYPE_dx* dx, DTYPE_dresidual* dresidual, DTYPE_dw* dw_out,
                  DTYPE_db* db_out, float* partial, unsigned* ticket, int rows) {
    extern __shared__ float4 memory[];  // the warps' rings, then the weight
    __shared__ unsigned long long barriers[TEAM * STAGES];
    __shared__ bool last;
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / LANES;
    const long long step = (long long)gridDim.x * TEAM;
    long long tile = (long long)blockIdx.x * TEAM + warp;
    const Source source = {x, dy, dresidual_out, evo_shared(memory) + warp * STAGES * STAGE_BYTES,
                           evo_shared(barriers) + 8 * warp * STAGES, rows};
    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < STAGES; ++i) evo_barrier_init(source.barriers + 8 * i, 1);
        evo_barrier_fence();
        evo_copy_fence();
        for (int i = 0; i < STAGES; ++i) source.fetch(tile + i * step, i);
    }
    Weight factors = {memory + TEAM * STAGES * (STAGE_BYTES / 16)};
    factors.keep(weight);
    __syncthreads();

    const unsigned same = 0x3210u | (unsigned)rows >> 31;
    float dw[ACCESSES][SIZE] = {}, db[ACCESSES][SIZE] = {}, next_roots[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        const long long row = tile * ROWS + r * GROUPS + group;
        next_roots[r] = row < rows ? rstd[row] : 0.0f;
    }
    int stage = 0, parity = 0;
    for (; tile * ROWS < rows; tile += step) {
        const long long first = tile * ROWS;
        const int count = rows - first < ROWS ? (int)(rows - first) : ROWS;
        Tile own;
        float roots[ROUNDS], means[ROUNDS], dots[ROUNDS][2] = {};
        evo_barrier_wait(source.barriers + 8 * stage, parity);
        own.read(source.ring + stage * STAGE_BYTES, group, count);
        evo_copy_fence();  // the tile is in registers: the next one may come
        __syncwarp();
        if (threadIdx.x % 32 == 0) source.fetch(tile + STAGES * step, stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            const long long row = first + step * ROWS + r * GROUPS + group;
            roots[r] = next_roots[r];
            next_roots[r] = row < rows ? rstd[row] : 0.0f;
        }
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            float weights[SIZE];
            factors.factors(weights, a);
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) {
                float xs[SIZE], dys[SIZE];
                evo_unpack<DTYPE_x>(own.x[r][a], xs);
                evo_unpack<DTYPE_dy>(own.dy[r][a], dys);
#pragma unroll
                for (int i = 0; i < SIZE; ++i) dots[r][i % 2] = fmaf(xs[i], dys[i] * weights[i], dots[r][i % 2]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) means[r] = evo_sum<LANES>(dots[r][0] + dots[r][1]) * roots[r] * (1.0f / DIM_N);
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            float weights[SIZE];
            factors.factors(weights, a);
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) {
                float xs[SIZE], dys[SIZE], more[SIZE];
                const int row = r * GROUPS + group;
                const long long at = (first + row) * DIM_N + offset(a);
                forget(own.x[r][a], same);
                forget(own.dy[r][a], same);
                evo_unpack<DTYPE_x>(own.x[r][a], xs);
                evo_unpack<DTYPE_dy>(own.dy[r][a], dys);
                if constexpr (HAS_dresidual_out) evo_unpack<DTYPE_dresidual_out>(own.more[r][a], more);
                finish(xs, dys, weights, more, roots[r], means[r], dw[a], db[a], dx + at, dresidual + at, row < count);
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
            sum_columns<THREADS>(partial, dw_out, parts, column, memory);
            if constexpr (HAS_db) sum_columns<THREADS>(partial + parts * DIM_N, db_out, parts, column, memory);
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
