/* evo
operator = "rmsnorm"
species  = "chunk-ring"
summary  = "long rows: a producer brings chunks by bulk copies into a ring; a cluster, or one CTA alone, keeps a row there"
arch     = ["sm_90a", "sm_100a"]
static   = ["N"]

[genes]
CLUSTER   = [4, 1, 2, 8, 16]               # CTAs that share a row
CONSUMERS = [512, 256, 128, 384, 768, 896] # threads; one warp more produces
DEPTH     = [1, 2, 4]                      # accesses of a thread in one chunk
RING      = [128, 32, 48, 64, 96, 112, 144, 160, 176, 192, 208, 220]  # KB
CTAS      = [1, 2, 3]                      # per SM
FILL      = [88, 75, 94, 100]              # percent of the SMs: clusters stay within a GPC, so some SMs find no place in
                                           # one, and a persistent cluster that has to wait costs a second wave
BEHIND    = [1, 0]                         # 1: a row is written after the next one was summed, so that no one waits
WEIGHT    = ["shared", "late"]             # kept in shared memory, or loaded for every row
RSQRT     = ["approx", "newton", "exact"]
STORE     = [
    "st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32",
    "st.global.L1::no_allocate.v4.b32",
]
WLOAD     = ["ld.global.nc.v4.b32", "ld.global.nc.L1::evict_last.v4.b32"]

[let]
VECTOR   = "16 // itemsize_x"
CHUNK    = "CONSUMERS * DEPTH * VECTOR"    # elements
CHUNKS   = "ceildiv(N, CLUSTER * CHUNK)"   # of a CTA's slice of a row
STAGES   = "RING * 1024 // (CHUNK * (itemsize_x + where(has_residual, itemsize_residual, 0)))"
FACTORS  = "where(WEIGHT == 'shared', CHUNKS * CHUNK * 4, 0)"
SHARED   = "RING * 1024 + FACTORS"
RESERVED = "2048 + 16 * STAGES + CLUSTER * CONSUMERS // 2"   # barriers, sums, and what the driver keeps
BUDGET   = "48 + DEPTH * where(has_residual, 4 + 4 * itemsize_residual // itemsize_x, 4) + 16 + 8 * has_bias"
CLUSTERS = "max(1, SMS * CTAS * FILL // (100 * CLUSTER))"

[constraints]
all = [
    "(CONSUMERS + 32) * CTAS <= 2048",
    "H == 1",
    "N >= 2048",
    "N % (CLUSTER * VECTOR) == 0",
    "BUDGET * ceildiv(CONSUMERS + 32, 128) * 128 * CTAS <= 65536",  # shared out by four warps
    "STAGES > CHUNKS * (1 + BEHIND)",      # a whole row is in the ring while its sum is awaited, and something is coming
    "STAGES <= 256",
    "SHARED + RESERVED <= SMEM_BLOCK",
    "(SHARED + RESERVED) * CTAS <= SMEM_SM",
    "FILL == 88 or CLUSTER > 1",
]

[[launch]]
kernel  = "rmsnorm_forward"
grid    = ["CLUSTER * min(M, where(CLUSTER > 1, CLUSTERS, SMS * CTAS))"]
block   = ["CONSUMERS + 32"]
cluster = ["CLUSTER"]
shared  = "SHARED"
args    = ["x", "weight", "residual?", "bias?", "y", "residual_out?", "rstd?", "i32:M", "eps"]
*/
#include "evo.h"

constexpr int SIZE = evo_words<DTYPE_x>::SIZE;                    // elements of an access: 16 bytes of x
template <class T> constexpr int WORDS = SIZE * sizeof(T) / 4;    // 32-bit words of as many elements of T
constexpr int WARPS = CONSUMERS / 32, PARTIALS = CLUSTER * WARPS; // sums that make up a row's
constexpr int SLICE = DIM_N / CLUSTER;                            // elements of a row that are this CTA's
constexpr int CHUNK = CONSUMERS * DEPTH * SIZE, CHUNKS = (SLICE + CHUNK - 1) / CHUNK;
constexpr int X_BYTES = CHUNK * sizeof(DTYPE_x), RESIDUAL_BYTES = HAS_residual ? CHUNK * sizeof(DTYPE_residual) : 0;
constexpr int STAGE_BYTES = X_BYTES + RESIDUAL_BYTES, STAGES = RING * 1024 / STAGE_BYTES;
constexpr int TURNS = 4;                                          // rows whose sums may be on their way, see Exchange
constexpr bool EVEN = SLICE % CHUNK == 0, SHARED = WEIGHT_INDEX == 0;

EVO_DEVICE int in_chunk(int depth) { return (depth * CONSUMERS + (int)threadIdx.x) * SIZE; }
EVO_DEVICE int in_slice(int chunk, int depth) { return chunk * CHUNK + in_chunk(depth); }
EVO_DEVICE bool inside(int chunk, int depth) { return EVEN || in_slice(chunk, depth) < SLICE; }

template <class T> EVO_DEVICE void load_factors(float (&factors)[SIZE], const T* from) {
    unsigned words[WORDS<T>];
    EVO_LOAD(WLOAD, words, from);
    evo_unpack<T>(words, factors);
}

// A place in the ring of chunks: the barriers "full" and "empty" of each, and how often it came round.
struct Cursor {
    unsigned memory, barriers;
    int stage, parity;

    EVO_DEVICE unsigned full() const { return barriers + 8 * stage; }
    EVO_DEVICE unsigned empty() const { return barriers + 8 * (STAGES + stage); }
    EVO_DEVICE unsigned at() const { return memory + stage * STAGE_BYTES; }
    EVO_DEVICE void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// Where the warps' sums of a row meet. A warp is at most one row ahead of the row whose sum it awaits, so peers may be
// up to two rows beyond what this CTA still reads: with four places in turn nobody overwrites anything.
struct Exchange {
    unsigned slots, barriers;  // float[TURNS][PARTIALS], mbarrier[TURNS]
    int rank;

    EVO_DEVICE unsigned slot(unsigned count, int index) const { return slots + 4 * (count % TURNS * PARTIALS + index); }
    EVO_DEVICE unsigned barrier(unsigned count) const { return barriers + 8 * (count % TURNS); }

    EVO_DEVICE void send(unsigned count, float mine) const {
        const int lane = threadIdx.x % 32;
        const unsigned own = slot(count, rank * WARPS + threadIdx.x / 32);
        if constexpr (CLUSTER > 1) {
            // A store may arrive before its barrier is armed: the phase stays open until thread 0 has arrived.
            if (threadIdx.x == 0) evo_barrier_expect(barrier(count), 4 * PARTIALS);
            if (lane < CLUSTER) evo_peer_store(evo_peer(own, lane), mine, evo_peer(barrier(count), lane));
        } else if (lane == 0) {
            evo_shared_store(own, mine);
            evo_barrier_arrive(barrier(count));
        }
    }
    // The sum over all warps, in the same order and so the same bits in every thread.
    EVO_DEVICE float receive(unsigned count) const {
        evo_barrier_wait(barrier(count), count / TURNS % 2);
        float sum = 0.0f;
        for (int i = threadIdx.x % 32; i < PARTIALS; i += 32) sum += evo_shared_load(slot(count, i));
        __syncwarp();
        return evo_sum(sum);
    }
};

// x, or x + residual, of one access: its words in the ring, then its floats.
struct Piece {
    unsigned x[4], residual[WORDS<DTYPE_residual>];

    EVO_DEVICE void read(unsigned at, int depth) {
        evo_shared_load(at + in_chunk(depth) * (int)sizeof(DTYPE_x), x);
        if constexpr (HAS_residual)
            evo_shared_load(at + X_BYTES + in_chunk(depth) * (int)sizeof(DTYPE_residual), residual);
    }
    EVO_DEVICE void unpack(float (&values)[SIZE]) const {
        evo_unpack<DTYPE_x>(x, values);
        if constexpr (HAS_residual) {
            float more[SIZE];
            evo_unpack<DTYPE_residual>(residual, more);
#pragma unroll
            for (int i = 0; i < SIZE; ++i) values[i] += more[i];
        }
    }
};

EVO_DEVICE void produce(Cursor cursor, const DTYPE_x* x, const DTYPE_residual* residual, long long row, int step, int rows,
                        int rank) {
    for (; row < rows; row += step) {
        const long long start = row * DIM_N + rank * SLICE;
        for (int chunk = 0; chunk < CHUNKS; ++chunk, cursor.next()) {
            const int left = SLICE - chunk * CHUNK, count = left < CHUNK ? left : CHUNK;
            const int bytes = count * (int)sizeof(DTYPE_x), more = HAS_residual ? count * (int)sizeof(DTYPE_residual) : 0;
            evo_barrier_wait(cursor.empty(), cursor.parity ^ 1);  // at first they count as released
            evo_barrier_expect(cursor.full(), bytes + more);
            evo_bulk_load(cursor.at(), x + start + chunk * CHUNK, bytes, cursor.full());
            if constexpr (HAS_residual)
                evo_bulk_load(cursor.at() + X_BYTES, residual + start + chunk * CHUNK, more, cursor.full());
        }
    }
}

// The first pass: this warp's part of the row's sum of squares, in all its lanes. The chunks stay.
EVO_DEVICE float square(Cursor& cursor) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int chunk = 0; chunk < CHUNKS; ++chunk, cursor.next()) {
        evo_barrier_wait(cursor.full(), cursor.parity);
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (!inside(chunk, d)) continue;
            Piece piece;
            float values[SIZE];
            piece.read(cursor.at(), d);
            piece.unpack(values);
#pragma unroll
            for (int i = 0; i < SIZE; ++i) sums[i % 4] = fmaf(values[i], values[i], sums[i % 4]);
        }
    }
    __syncwarp();
    return evo_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// This CTA's slice of weight and bias; the weight may be kept as [CHUNKS * DEPTH][SIZE / 4][CONSUMERS] in shared memory.
struct Affine {
    const DTYPE_weight* weight;
    const DTYPE_bias* bias;
    float4* shared;

    EVO_DEVICE float4& slot(int chunk, int depth, int quarter) const {
        return shared[((chunk * DEPTH + depth) * (SIZE / 4) + quarter) * CONSUMERS + threadIdx.x];
    }
    EVO_DEVICE void keep() const {
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
            for (int d = 0; d < DEPTH; ++d) {
                if (!inside(chunk, d)) continue;
                float factors[SIZE];
                load_factors(factors, weight + in_slice(chunk, d));
#pragma unroll
                for (int q = 0; q < SIZE / 4; ++q)
                    slot(chunk, d, q) = {factors[4 * q], factors[4 * q + 1], factors[4 * q + 2], factors[4 * q + 3]};
            }
    }
    EVO_DEVICE void factors(float (&out)[SIZE], int chunk, int depth) const {
        if constexpr (!SHARED) load_factors(out, weight + in_slice(chunk, depth));
        if constexpr (SHARED) {
#pragma unroll
            for (int q = 0; q < SIZE / 4; ++q) {
                const float4 four = slot(chunk, depth, q);  // each thread reads back what it wrote
                out[4 * q] = four.x, out[4 * q + 1] = four.y, out[4 * q + 2] = four.z, out[4 * q + 3] = four.w;
            }
        }
    }
};

// The second pass; chunks go back to the producer as soon as they are in registers.
EVO_DEVICE void write(Cursor& cursor, float root, const Affine& affine, DTYPE_y* y, DTYPE_residual_out* residual_out) {
    for (int chunk = 0; chunk < CHUNKS; ++chunk, cursor.next()) {
        Piece pieces[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
            if (inside(chunk, d)) pieces[d].read(cursor.at(), d);
        evo_release(cursor.empty());
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (!inside(chunk, d)) continue;
            float values[SIZE], factors[SIZE], offsets[SIZE];
            unsigned words[4];
            pieces[d].unpack(values);
            if constexpr (HAS_residual_out) {
                unsigned sum[WORDS<DTYPE_residual_out>];
                evo_pack<DTYPE_residual_out>(values, sum);
                EVO_STORE(STORE, residual_out + in_slice(chunk, d), sum);
            }
            affine.factors(factors, chunk, d);
            if constexpr (HAS_bias) load_factors(offsets, affine.bias + in_slice(chunk, d));
#pragma unroll
            for (int i = 0; i < SIZE; ++i) values[i] = values[i] * root * factors[i] + (HAS_bias ? offsets[i] : 0.0f);
            evo_pack<DTYPE_y>(values, words);
            EVO_STORE(STORE, y + in_slice(chunk, d), words);
        }
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, CTAS)
    rmsnorm_forward(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_residual* residual, const DTYPE_bias* bias,
                    DTYPE_y* y, DTYPE_residual_out* residual_out, float* rstd, int rows, float eps) {
    extern __shared__ float4 memory[];  // the ring, then the weight
    __shared__ float slots[TURNS][PARTIALS];
    __shared__ unsigned long long barriers[2 * STAGES], sums[TURNS];
    const int rank = CLUSTER > 1 ? evo_cluster_rank() : 0, step = gridDim.x / CLUSTER;
    const Exchange exchange = {evo_shared(slots), evo_shared(sums), rank};
    Cursor summing = {evo_shared(memory), evo_shared(barriers), 0, 0}, writing = summing;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * STAGES; ++i) evo_barrier_init(summing.barriers + 8 * i, i < STAGES ? 1 : WARPS);
        for (int i = 0; i < TURNS; ++i) evo_barrier_init(exchange.barriers + 8 * i, CLUSTER > 1 ? 1 : WARPS);
        evo_barrier_fence();
    }
    __syncthreads();
    if constexpr (CLUSTER > 1) {  // no peer may store before these barriers exist
        evo_cluster_arrive();
        evo_cluster_wait();
    }
    long long row = blockIdx.x / CLUSTER;
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) produce(summing, x, residual, row, step, rows, rank);
        return;  // what it asked for is awaited by the consumers
    }

    const Affine affine = {weight + rank * SLICE, bias + rank * SLICE, memory + RING * 64};
    if constexpr (SHARED) affine.keep();
    // All CTAs of a cluster go through the same rows. The last wait of each sees all stores to its memory arrive.
    unsigned count = 0;
    exchange.send(0, square(summing));
    for (; row < rows; row += step, ++count) {
        const bool more = row + step < rows;
        if (BEHIND && more) exchange.send(count + 1, square(summing));
        const float root = evo_rsqrt<RSQRT_INDEX>(exchange.receive(count) * (1.0f / DIM_N) + eps);
        if (HAS_rstd && rank == 0 && threadIdx.x == 0) rstd[row] = root;
        const long long start = row * DIM_N + rank * SLICE;
        write(writing, root, affine, y + start, residual_out + start);
        if (!BEHIND && more) exchange.send(count + 1, square(summing));
    }
}
