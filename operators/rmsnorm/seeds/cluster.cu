/* evo
operator = "rmsnorm"
species  = "cluster-per-row"
summary  = "a thread-block cluster per row: slices in registers, partial sums exchanged through distributed shared memory"
arch     = ["sm_90a", "sm_100a"]
static   = ["N"]

[genes]
CLUSTER  = [8, 4, 2, 16]                   # CTAs that share a row
THREADS  = [512, 256, 128, 1024]
CTAS     = [1, 2, 3, 4, 8]                 # per SM: what registers are allotted for, and a persistent grid's size
SCHEDULE = ["persistent", "oneshot"]
FILL     = [88, 75, 94, 100]               # percent of the SMs: clusters stay within a GPC, so some SMs find no place in
                                           # one, and a persistent cluster that has to wait costs a second wave
AHEAD    = [1, 0]                          # 1: the next row's loads fly while this row is reduced and written
EXCHANGE = ["push", "pull"]                # every warp stores to every peer and an mbarrier counts; or: barrier, then read
WEIGHT   = ["shared", "held", "late"]      # kept in shared memory, kept in registers, or loaded for every row
FORM     = ["packed", "unpacked"]          # how a row is kept
RSQRT    = ["approx", "newton", "exact"]
LOAD     = [
    "ld.global.nc.L1::no_allocate.v4.b32", "ld.global.v4.b32", "ld.global.nc.v4.b32",
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
ACCESSES = "ceildiv(N, VECTOR * THREADS * CLUSTER)"
ADDING   = "where(has_residual, 4 + 4 * itemsize_residual // itemsize_x, 4)"   # registers of an access before it is added
ROW      = "ACCESSES * max(where(FORM == 'packed' and not has_residual, 4, VECTOR), ADDING)"
BUDGET   = "44 + ROW + ADDING * ACCESSES * AHEAD + where(WEIGHT == 'held', VECTOR * ACCESSES, 8) + 8 * has_bias"
SLICE    = "where(WEIGHT == 'shared', ACCESSES * THREADS * VECTOR * 4, 0)"
CLUSTERS = "max(1, SMS * CTAS * FILL // (100 * CLUSTER))"

[constraints]
all = [
    "THREADS * CTAS <= 2048",
    "H == 1",
    "N >= 8192",
    "N % VECTOR == 0",
    "BUDGET <= 216",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * THREADS * CTAS <= 65536",
    "SLICE + 6144 <= SMEM_BLOCK",          # 6 KB: slots and what the driver reserves
    "(SLICE + 6144) * CTAS <= SMEM_SM",
    "AHEAD == 0 or SCHEDULE == 'persistent'",
    "FILL == 88 or SCHEDULE == 'persistent'",
]

[[launch]]
kernel  = "rmsnorm_forward"
grid    = ["CLUSTER * where(SCHEDULE == 'persistent', min(M, CLUSTERS), M)"]
block   = ["THREADS"]
cluster = ["CLUSTER"]
shared  = "SLICE"
args    = ["x", "weight", "residual?", "bias?", "y", "residual_out?", "rstd?", "i32:M", "eps"]
*/
#include "evo.h"

constexpr int SIZE = evo_words<DTYPE_x>::SIZE;                        // elements of an access: 16 bytes of x
template <class T> constexpr int WORDS = SIZE * sizeof(T) / 4;        // 32-bit words of as many elements of T
#if HAS_residual
using Kept = float;                                                   // x + residual
#else
using Kept = DTYPE_x;                                                 // x as it came
#endif
constexpr int WARPS = THREADS / 32;
constexpr int PARTIALS = CLUSTER * WARPS;                              // sums that make up a row's
constexpr int VECTORS = DIM_N / SIZE;                                  // accesses that cover a row
constexpr int STRIDE = THREADS * CLUSTER;
constexpr int ACCESSES = (VECTORS + STRIDE - 1) / STRIDE;              // of one thread; in the last some may idle
constexpr bool EVEN = VECTORS % STRIDE == 0;
constexpr bool PUSH = EXCHANGE_INDEX == 0, SHARED = WEIGHT_INDEX == 0, HELD = WEIGHT_INDEX == 1;
constexpr bool UNPACK_ANEW = FORM_INDEX == 0 && sizeof(Kept) == 2;
using Row = unsigned[ACCESSES][WORDS<Kept>];

// This CTA's part of a row as it is loaded.
struct Raw {
    unsigned x[ACCESSES][4];
    unsigned residual[ACCESSES][WORDS<DTYPE_residual>];
};

// Where partial sums meet, of two rows in turn: a peer that is one row ahead never touches what is still being read.
struct Exchange {
    unsigned slots;     // float[2][PARTIALS], shared memory
    unsigned barriers;  // mbarrier[2]
    int rank, turn, parity;

    EVO_DEVICE unsigned slot(int index) const { return slots + 4 * (turn * PARTIALS + index); }
    EVO_DEVICE unsigned barrier() const { return barriers + 8 * turn; }
    EVO_DEVICE void next() {
        parity ^= turn;  // every second row comes back to the same barrier
        turn ^= 1;
    }
};

EVO_DEVICE int offset(int access, int rank) {
    return ((access * CLUSTER + rank) * THREADS + (int)threadIdx.x) * SIZE;
}
EVO_DEVICE bool inside(int access, int rank) { return EVEN || offset(access, rank) < DIM_N; }

template <class T> EVO_DEVICE void load_factors(float (&factors)[SIZE], const T* from, int access, int rank) {
    unsigned words[WORDS<T>];
    EVO_LOAD(WLOAD, words, from + offset(access, rank));
    evo_unpack<T>(words, factors);
}

EVO_DEVICE void read(Raw& raw, const DTYPE_x* x, const DTYPE_residual* residual, int rank) {
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        raw.x[a][0] = raw.x[a][1] = raw.x[a][2] = raw.x[a][3] = 0;
#pragma unroll
        for (int i = 0; i < WORDS<DTYPE_residual>; ++i) raw.residual[a][i] = 0;
        if (!inside(a, rank)) continue;
        EVO_LOAD4(LOAD, raw.x[a], x + offset(a, rank));
        if constexpr (HAS_residual) EVO_LOAD(LOAD, raw.residual[a], residual + offset(a, rank));
    }
}

EVO_DEVICE void keep(Row& row, const Raw& raw) {
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        float values[SIZE], more[SIZE];
        if constexpr (HAS_residual) {
            evo_unpack<DTYPE_x>(raw.x[a], values);
            evo_unpack<DTYPE_residual>(raw.residual[a], more);
#pragma unroll
            for (int i = 0; i < SIZE; ++i) values[i] += more[i];
            evo_pack<Kept>(values, row[a]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) row[a][i] = raw.x[a][i];
        }
    }
}

// This warp's part of the row's sum of squares, in all its lanes.
EVO_DEVICE float square(const Row& row) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        float values[SIZE];
        evo_unpack<Kept>(row[a], values);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) sums[i % 4] = fmaf(values[i], values[i], sums[i % 4]);
    }
    return evo_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// The sum over all warps of the cluster, in the same order and so the same bits in every thread.
EVO_DEVICE float share(float mine, const Exchange& exchange) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned own = exchange.slot(exchange.rank * WARPS + warp);
    float sum = 0.0f;
    if constexpr (PUSH) {
        // A store may arrive before its barrier is armed: the phase stays open until thread 0 has arrived.
        if (threadIdx.x == 0) evo_barrier_expect(exchange.barrier(), 4 * PARTIALS);
        if (lane < CLUSTER) evo_peer_store(evo_peer(own, lane), mine, evo_peer(exchange.barrier(), lane));
        evo_barrier_wait(exchange.barrier(), exchange.parity);
        for (int i = lane; i < PARTIALS; i += 32) sum += evo_shared_load(exchange.slot(i));
    } else {
        if (lane == 0) evo_shared_store(own, mine);
        evo_cluster_arrive();
        evo_cluster_wait();
        for (int i = lane; i < PARTIALS; i += 32) sum += evo_peer_load(evo_peer(exchange.slot(i), i / WARPS));
    }
    __syncwarp();
    return evo_sum(sum);
}

// Weight and bias, and the weight as it is kept in registers or shared memory, [ACCESSES][SIZE / 4][THREADS] there.
struct Affine {
    const DTYPE_weight* weight;
    const DTYPE_bias* bias;
    float4* shared;
    float held[ACCESSES][SIZE];

    EVO_DEVICE float4& slot(int access, int quarter) const {
        return shared[(access * (SIZE / 4) + quarter) * THREADS + threadIdx.x];
    }
    EVO_DEVICE void keep(int rank) {
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a, rank)) continue;
            load_factors(held[a], weight, a, rank);
            if constexpr (SHARED) {
#pragma unroll
                for (int q = 0; q < SIZE / 4; ++q)
                    slot(a, q) = {held[a][4 * q], held[a][4 * q + 1], held[a][4 * q + 2], held[a][4 * q + 3]};
            }
        }
    }
    EVO_DEVICE void factors(float (&out)[SIZE], int access, int rank) const {
        if constexpr (!HELD && !SHARED) load_factors(out, weight, access, rank);
#pragma unroll
        for (int q = 0; q < SIZE / 4; ++q) {
            if constexpr (SHARED) {
                const float4 four = slot(access, q);  // each thread reads back what it wrote
                out[4 * q] = four.x, out[4 * q + 1] = four.y, out[4 * q + 2] = four.z, out[4 * q + 3] = four.w;
            } else if constexpr (HELD) {
#pragma unroll
                for (int i = 4 * q; i < 4 * q + 4; ++i) out[i] = held[access][i];
            }
        }
    }
};

EVO_DEVICE void write(Row& row, float root, const Affine& affine, DTYPE_y* y, DTYPE_residual_out* residual_out, int rank,
                      unsigned same) {
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        if (!inside(a, rank)) continue;
        if constexpr (UNPACK_ANEW) {
#pragma unroll
            for (int i = 0; i < 4; ++i) asm volatile("prmt.b32 %0, %0, 0, %1;" : "+r"(row[a][i]) : "r"(same));
        }
        float values[SIZE], factors[SIZE], offsets[SIZE];
        unsigned words[4];
        evo_unpack<Kept>(row[a], values);
        if constexpr (HAS_residual_out) {
            unsigned sum[WORDS<DTYPE_residual_out>];
            evo_pack<DTYPE_residual_out>(values, sum);
            EVO_STORE(STORE, residual_out + offset(a, rank), sum);
        }
        affine.factors(factors, a, rank);
        if constexpr (HAS_bias) load_factors(offsets, affine.bias, a, rank);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) values[i] = values[i] * (root * factors[i]) + (HAS_bias ? offsets[i] : 0.0f);
        evo_pack<DTYPE_y>(values, words);
        EVO_STORE(STORE, y + offset(a, rank), words);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    rmsnorm_forward(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_residual* residual, const DTYPE_bias* bias,
                    DTYPE_y* y, DTYPE_residual_out* residual_out, float* rstd, int rows, float eps) {
    extern __shared__ float4 shared[];
    __shared__ float slots[2][PARTIALS];
    __shared__ unsigned long long barriers[2];
    const int rank = evo_cluster_rank(), clusters = gridDim.x / CLUSTER;
    // The identity permutation, which the compiler cannot know: it must unpack a word anew and cannot keep the floats.
    const unsigned same = 0x3210u | (unsigned)rows >> 31;
    Exchange exchange = {evo_shared(slots), evo_shared(barriers), rank, 0, 0};

    long long row = blockIdx.x / CLUSTER;
    Raw raw;
    if constexpr (AHEAD) read(raw, x + row * DIM_N, residual + row * DIM_N, rank);
    Affine affine = {weight, bias, shared};
    if constexpr (HELD || SHARED) affine.keep(rank);
    if constexpr (PUSH) {
        if (threadIdx.x == 0) {
            evo_barrier_init(exchange.barriers, 1);
            evo_barrier_init(exchange.barriers + 8, 1);
            evo_barrier_fence();
        }
        __syncwarp();
        evo_cluster_arrive();  // no peer may store before these barriers exist
        evo_cluster_wait();
    }

    // All CTAs of a cluster go through the same rows.
    for (; row < rows; row += clusters, exchange.next()) {
        Row pieces;
        if constexpr (!AHEAD) read(raw, x + row * DIM_N, residual + row * DIM_N, rank);
        keep(pieces, raw);
        const long long next = row + clusters;
        if (AHEAD && next < rows) read(raw, x + next * DIM_N, residual + next * DIM_N, rank);
        const float root = evo_rsqrt<RSQRT_INDEX>(share(square(pieces), exchange) * (1.0f / DIM_N) + eps);
        if (HAS_rstd && rank == 0 && threadIdx.x == 0) rstd[row] = root;
        write(pieces, root, affine, y + row * DIM_N, residual_out + row * DIM_N, rank, same);
    }
    // PUSH: the last wait saw every store to this CTA arrive, and nobody reads it. Pull: peers may still be reading.
    if constexpr (!PUSH) {
        evo_cluster_arrive();
        evo_cluster_wait();
    }
}
