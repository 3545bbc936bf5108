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
ROW      = "4 * ACCESSES * where(FORM == 'packed', 1, VECTOR // 4)"
BUDGET   = "44 + ROW + 4 * ACCESSES * AHEAD + where(WEIGHT == 'held', VECTOR * ACCESSES, 8)"
SLICE    = "where(WEIGHT == 'shared', ACCESSES * THREADS * VECTOR * 4, 0)"
CLUSTERS = "max(1, SMS * CTAS * FILL // (100 * CLUSTER))"

[constraints]
all = [
    "THREADS * CTAS <= 2048",
    "itemsize_x == itemsize_y",
    "N >= 8192",
    "N % VECTOR == 0",
    "BUDGET <= 216",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * THREADS * CTAS <= 65536",
    "SLICE + 6144 <= SMEM_BLOCK",          # 6 KB: slots and what the driver reserves
    "(SLICE + 6144) * CTAS <= SMEM_SM",
    "AHEAD == 0 or SCHEDULE == 'persistent'",
    "FILL == 88 or SCHEDULE == 'persistent'",
]

[default]
CLUSTER = 8
THREADS = 512
CTAS = 1
SCHEDULE = "persistent"
FILL = 88
AHEAD = 1
EXCHANGE = "push"
WEIGHT = "shared"
FORM = "packed"
RSQRT = "newton"
LOAD = "ld.global.nc.v4.b32"
STORE = "st.global.v4.b32"
WLOAD = "ld.global.nc.v4.b32"

[[launch]]
kernel  = "rmsnorm_forward"
grid    = ["CLUSTER * where(SCHEDULE == 'persistent', min(M, CLUSTERS), M)"]
block   = ["THREADS"]
cluster = ["CLUSTER"]
shared  = "SLICE"
args    = ["x", "weight", "y", "i32:M", "eps"]
*/
#include "evo.h"

using X = evo_words<DTYPE_x>;
using Y = evo_words<DTYPE_y>;
constexpr int WARPS = THREADS / 32;
constexpr int PARTIALS = CLUSTER * WARPS;                              // sums that make up a row's
constexpr int VECTORS = DIM_N / X::SIZE;                               // 16-byte accesses that cover a row
constexpr int STRIDE = THREADS * CLUSTER;
constexpr int ACCESSES = (VECTORS + STRIDE - 1) / STRIDE;              // of one thread; in the last some may idle
constexpr bool EVEN = VECTORS % STRIDE == 0;
constexpr bool PUSH = EXCHANGE_INDEX == 0, SHARED = WEIGHT_INDEX == 0, HELD = WEIGHT_INDEX == 1;
constexpr bool UNPACK_ANEW = FORM_INDEX == 0 && X::SIZE > 4;
using Row = unsigned[ACCESSES][4];

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

EVO_DEVICE int vector_of(int access, int rank) { return (access * CLUSTER + rank) * THREADS + (int)threadIdx.x; }
EVO_DEVICE bool inside(int access, int rank) { return EVEN || vector_of(access, rank) < VECTORS; }

EVO_DEVICE float4 load_weight(const float* weight, int access, int rank, int quarter) {
    unsigned words[4];
    EVO_LOAD4(WLOAD, words, weight + vector_of(access, rank) * X::SIZE + 4 * quarter);
    return {__uint_as_float(words[0]), __uint_as_float(words[1]), __uint_as_float(words[2]), __uint_as_float(words[3])};
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

EVO_DEVICE void read(Row& words, const DTYPE_x* row, int rank) {
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        words[a][0] = words[a][1] = words[a][2] = words[a][3] = 0;
        if (inside(a, rank)) EVO_LOAD4(LOAD, words[a], row + vector_of(a, rank) * X::SIZE);
    }
}

// This warp's part of the row's sum of squares, in all its lanes.
EVO_DEVICE float square(const Row& words) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        float values[X::SIZE];
        X::unpack(words[a], values);
#pragma unroll
        for (int i = 0; i < X::SIZE; ++i) sums[i % 4] = fmaf(values[i], values[i], sums[i % 4]);
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

EVO_DEVICE void write(Row& words, float root, const float4 (&factors)[ACCESSES][X::SIZE / 4], const float4* kept,
                      const float* weight, DTYPE_y* row, int rank, unsigned same) {
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        if (!inside(a, rank)) continue;
        if constexpr (UNPACK_ANEW) {
#pragma unroll
            for (int i = 0; i < 4; ++i) asm volatile("prmt.b32 %0, %0, 0, %1;" : "+r"(words[a][i]) : "r"(same));
        }
        float values[X::SIZE];
        unsigned out[4];
        X::unpack(words[a], values);
#pragma unroll
        for (int q = 0; q < X::SIZE / 4; ++q) {
            const float4 factor = HELD     ? factors[a][q]
                                  : SHARED ? kept[(a * (X::SIZE / 4) + q) * THREADS + threadIdx.x]
                                           : load_weight(weight, a, rank, q);
            values[4 * q] *= root * factor.x;
            values[4 * q + 1] *= root * factor.y;
            values[4 * q + 2] *= root * factor.z;
            values[4 * q + 3] *= root * factor.w;
        }
        Y::pack(values, out);
        EVO_STORE4(STORE, row + vector_of(a, rank) * Y::SIZE, out);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
    rmsnorm_forward(const DTYPE_x* x, const float* weight, DTYPE_y* y, int rows, float eps) {
    extern __shared__ float4 kept[];  // [ACCESSES][X::SIZE / 4][THREADS]: each thread reads back what it wrote
    __shared__ float slots[2][PARTIALS];
    __shared__ unsigned long long barriers[2];
    const int rank = evo_cluster_rank(), clusters = gridDim.x / CLUSTER;
    // The identity permutation, which the compiler cannot know: it must unpack a word anew and cannot keep the floats.
    const unsigned same = 0x3210u | (unsigned)rows >> 31;
    Exchange exchange = {evo_shared(slots), evo_shared(barriers), rank, 0, 0};

    long long row = blockIdx.x / CLUSTER;
    Row words, ahead;
    if constexpr (AHEAD) read(ahead, x + row * DIM_N, rank);
    float4 factors[ACCESSES][X::SIZE / 4];
    if constexpr (HELD || SHARED) {
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a)
#pragma unroll
            for (int q = 0; q < X::SIZE / 4; ++q) {
                if (!inside(a, rank)) continue;
                factors[a][q] = load_weight(weight, a, rank, q);
                if constexpr (SHARED) kept[(a * (X::SIZE / 4) + q) * THREADS + threadIdx.x] = factors[a][q];
            }
    }
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
        if constexpr (AHEAD) {
#pragma unroll
            for (int a = 0; a < ACCESSES; ++a)
#pragma unroll
                for (int i = 0; i < 4; ++i) words[a][i] = ahead[a][i];
            if (row + clusters < rows) read(ahead, x + (row + clusters) * DIM_N, rank);
        } else {
            read(words, x + row * DIM_N, rank);
        }
        const float sum = share(square(words), exchange);
        write(words, inverse_root(sum * (1.0f / DIM_N) + eps), factors, kept, weight, y + row * DIM_N, rank, same);
    }
    // PUSH: the last wait saw every store to this CTA arrive, and nobody reads it. Pull: peers may still be reading.
    if constexpr (!PUSH) {
        evo_cluster_arrive();
        evo_cluster_wait();
    }
}
