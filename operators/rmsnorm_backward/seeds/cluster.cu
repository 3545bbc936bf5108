/* evo
operator = "rmsnorm_backward"
species  = "cluster-ring"
summary  = "long rows: a cluster shares a row, a producer brings rows ahead by bulk copies, dw in registers; a second launch adds"
arch     = ["sm_90a", "sm_100a"]
static   = ["N"]

[genes]
SLICE     = [16384, 8192, 4096, 2048, 32768]  # elements of a row that a CTA has, at most: N / SLICE of them share a row
CONSUMERS = [512, 256, 128, 384, 768]      # threads
PRODUCER  = ["thread", "warp"]             # rows are asked for by the first consumer, or by a warp of its own, which costs
                                           # the registers of four: they are shared out by four warps
STAGES    = [3, 2, 4, 5, 6, 8]             # rows in the ring
CTAS      = [1, 2, 3]                      # per SM
FILL      = [88, 75, 94, 100]              # percent of the SMs: clusters stay within a GPC, so some SMs find no place in
                                           # one, and a persistent cluster that has to wait costs a second wave
BEHIND    = [1, 0]                         # 1: a row is finished after the next one was summed, so that no one waits
WEIGHT    = ["held", "shared", "late"]     # kept in registers, in shared memory, or loaded for every row
STORE     = [
    "st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32",
    "st.global.L1::no_allocate.v4.b32",
]
WLOAD     = ["ld.global.nc.v4.b32", "ld.global.nc.L1::evict_last.v4.b32"]
COLUMNS   = [32, 64, 128, 16]               # that a CTA of the last step sums
PDL       = [1, 0]                          # the last step is launched while the first still runs, and waits inside

[let]
VECTOR   = "16 // itemsize_dx"
CLUSTER  = "ceildiv(N, SLICE)"
SHARE    = "N // CLUSTER"
ACCESSES = "ceildiv(SHARE, VECTOR * CONSUMERS)"
STAGE    = "SHARE * (itemsize_x + itemsize_dy + where(has_dresidual_out, itemsize_dresidual_out, 0))"
FACTORS  = "where(WEIGHT == 'shared', ACCESSES * CONSUMERS * VECTOR * 4, 0)"
SHARED   = "STAGES * STAGE + FACTORS"
RESERVED = "2048 + CLUSTER * CONSUMERS // 2"   # barriers, sums, and what the driver keeps
THREADS  = "CONSUMERS + where(PRODUCER == 'warp', 32, 0)"
BUDGET   = "52 + VECTOR * ACCESSES * (1 + has_db + (WEIGHT == 'held'))"
PARTS    = "min(M, where(CLUSTER > 1, max(1, SMS * CTAS * FILL // (100 * CLUSTER)), SMS * CTAS))"   # clusters

[constraints]
all = [
    "THREADS * CTAS <= 2048",
    "N >= 1024",
    "CLUSTER <= 16",
    "N % (CLUSTER * VECTOR) == 0",
    "BUDGET <= 208",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * ceildiv(THREADS, 128) * 128 * CTAS <= 65536",
    "STAGES >= 2 + BEHIND",
    "SHARED + RESERVED <= SMEM_BLOCK",
    "(SHARED + RESERVED) * CTAS <= SMEM_SM",
]

[[launch]]
kernel  = "backward_rows"
grid    = ["CLUSTER * PARTS"]
block   = ["THREADS"]
cluster = ["CLUSTER"]
shared  = "SHARED"
args    = ["x", "weight", "dy", "rstd", "dresidual_out?", "dx", "dresidual?", "partial", "i32:M"]

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
constexpr int CLUSTER = (DIM_N + SLICE - 1) / SLICE, SHARE = DIM_N / CLUSTER;  // CTAs of a row, elements of each
constexpr int WARPS = CONSUMERS / 32, PARTIALS = CLUSTER * WARPS;               // sums that make up a row's
constexpr int VECTORS = SHARE / SIZE, ACCESSES = (VECTORS + CONSUMERS - 1) / CONSUMERS;
constexpr bool EVEN = VECTORS % CONSUMERS == 0, HELD = WEIGHT_INDEX == 0, SHARED = WEIGHT_INDEX == 1;
constexpr int X_BYTES = SHARE * sizeof(DTYPE_x), DY_BYTES = SHARE * sizeof(DTYPE_dy);
constexpr int MORE_BYTES = HAS_dresidual_out ? SHARE * sizeof(DTYPE_dresidual_out) : 0;
constexpr int STAGE_BYTES = X_BYTES + DY_BYTES + MORE_BYTES;
constexpr int TURNS = 4;                                        // rows whose sums may be on their way, see Exchange
constexpr bool OWN_WARP = PRODUCER_INDEX == 1;

EVO_DEVICE int offset(int access) { return (access * CONSUMERS + (int)threadIdx.x) * SIZE; }
EVO_DEVICE bool inside(int access) { return EVEN || offset(access) < SHARE; }

template <class T> EVO_DEVICE void load_factors(float (&factors)[SIZE], const T* from) {
    unsigned words[WORDS<T>];
    EVO_LOAD(WLOAD, words, from);
    evo_unpack<T>(words, factors);
}

template <class T> EVO_DEVICE void read(float (&values)[SIZE], unsigned at) {
    unsigned words[WORDS<T>];
    evo_shared_load(at, words);
    evo_unpack<T>(words, values);
}

// A place in the ring of rows: the barriers "full" and "empty" of each, and how often it came round.
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

// The gradients' inputs of one access, from a stage of the ring.
EVO_DEVICE void read_pair(float (&x)[SIZE], float (&dy)[SIZE], unsigned stage, int access) {
    read<DTYPE_x>(x, stage + offset(access) * (int)sizeof(DTYPE_x));
    read<DTYPE_dy>(dy, stage + X_BYTES + offset(access) * (int)sizeof(DTYPE_dy));
}

// This CTA's share of the weight, kept as [ACCESSES][SIZE / 4][CONSUMERS] if in shared memory.
struct Weight {
    const DTYPE_weight* weight;
    float4* shared;
    float held[HELD ? ACCESSES : 1][SIZE];

    EVO_DEVICE float4& slot(int access, int quarter) const {
        return shared[(access * (SIZE / 4) + quarter) * CONSUMERS + threadIdx.x];
    }
    EVO_DEVICE void keep() {
        if constexpr (!HELD && !SHARED) return;
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            float factors[SIZE];
            load_factors(factors, weight + offset(a));
#pragma unroll
            for (int i = 0; i < SIZE; ++i) held[HELD ? a : 0][i] = factors[i];
            if constexpr (SHARED) {
#pragma unroll
                for (int q = 0; q < SIZE / 4; ++q)
                    slot(a, q) = {factors[4 * q], factors[4 * q + 1], factors[4 * q + 2], factors[4 * q + 3]};
            }
        }
    }
    EVO_DEVICE void factors(float (&out)[SIZE], int access) const {
        if constexpr (!HELD && !SHARED) load_factors(out, weight + offset(access));
#pragma unroll
        for (int q = 0; q < SIZE / 4; ++q) {
            if constexpr (SHARED) {
                const float4 four = slot(access, q);  // each thread reads back what it wrote
                out[4 * q] = four.x, out[4 * q + 1] = four.y, out[4 * q + 2] = four.z, out[4 * q + 3] = four.w;
            } else if constexpr (HELD) {
#pragma unroll
                for (int i = 4 * q; i < 4 * q + 4; ++i) out[i] = held[HELD ? access : 0][i];
            }
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

// Asks for one row after the other of those that are this cluster's, this CTA's share of each.
struct Producer {
    Cursor cursor;
    const DTYPE_x* x;
    const DTYPE_dy* dy;
    const DTYPE_dresidual_out* more;
    long long row;
    int step, rows, skip;

    EVO_DEVICE void next() {
        if (row >= rows) return;
        const long long start = row * DIM_N + skip;
        evo_barrier_wait(cursor.empty(), cursor.parity ^ 1);  // at first they count as released
        evo_barrier_expect(cursor.full(), STAGE_BYTES);
        evo_bulk_load(cursor.at(), x + start, X_BYTES, cursor.full());
        evo_bulk_load(cursor.at() + X_BYTES, dy + start, DY_BYTES, cursor.full());
        if constexpr (HAS_dresidual_out)
            evo_bulk_load(cursor.at() + X_BYTES + DY_BYTES, more + start, MORE_BYTES, cursor.full());
        cursor.next();
        row += step;
    }
};

// The first pass: this warp's part of the row's sum of x * weight * dy, in all its lanes. The row stays in the ring.
EVO_DEVICE float dot(Cursor& cursor, const Weight& weight) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    evo_barrier_wait(cursor.full(), cursor.parity);
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        if (!inside(a)) continue;
        float x[SIZE], dy[SIZE], factors[SIZE];
        read_pair(x, dy, cursor.at(), a);
        weight.factors(factors, a);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) sums[i % 4] = fmaf(x[i], dy[i] * factors[i], sums[i % 4]);
    }
    cursor.next();
    __syncwarp();
    return evo_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

EVO_DEVICE void store_sums(const float (&sums)[ACCESSES][SIZE], float* row) {
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a) {
        if (!inside(a)) continue;
        unsigned words[SIZE];
        evo_pack<float>(sums[a], words);
        EVO_STORE("st.global.v4.b32", row + offset(a), words);
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + (OWN_WARP ? 32 : 0), CTAS)
    backward_rows(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_dy* dy, const float* rstd,
                  const DTYPE_dresidual_out* dresidual_out, DTYPE_dx* dx, DTYPE_dresidual* dresidual, float* partial,
                  int rows) {
    extern __shared__ float4 memory[];  // the ring, then the weight
    __shared__ float slots[TURNS][PARTIALS];
    __shared__ unsigned long long barriers[2 * STAGES], sums[TURNS];
    const int rank = CLUSTER > 1 ? evo_cluster_rank() : 0, step = gridDim.x / CLUSTER;
    const Exchange exchange = {evo_shared(slots), evo_shared(sums), rank};
    Cursor summing = {evo_shared(memory), evo_shared(barriers), 0, 0}, finishing = summing;
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
    const long long part = blockIdx.x / CLUSTER;
    Producer producer = {summing, x, dy, dresidual_out, part, step, rows, rank * SHARE};
    if (OWN_WARP && threadIdx.x >= CONSUMERS) {
        while (threadIdx.x == CONSUMERS && producer.row < rows) producer.next();
        return;  // what it asked for is awaited by the consumers
    }
    if (!OWN_WARP && threadIdx.x == 0)
        for (int i = 0; i < STAGES; ++i) producer.next();
    __syncwarp();

    Weight own = {weight + rank * SHARE, memory + STAGES * (STAGE_BYTES / 16)};
    own.keep();
    float dw[ACCESSES][SIZE] = {}, db[ACCESSES][SIZE] = {};
    // All CTAs of a cluster go through the same rows. The last wait of each sees all stores to its memory arrive.
    unsigned count = 0;
    float root = rstd[part], next_root = root;
    exchange.send(0, dot(summing, own));
    for (long long row = part; row < rows; row += step, ++count, root = next_root) {
        const bool another = row + step < rows;
        if (another) next_root = rstd[row + step];
        if (BEHIND && another) exchange.send(count + 1, dot(summing, own));
        const float mean = exchange.receive(count) * root * (1.0f / DIM_N);
        const long long start = row * DIM_N + rank * SHARE;
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            if (!inside(a)) continue;
            float xs[SIZE], dys[SIZE], more[SIZE], factors[SIZE];
            read_pair(xs, dys, finishing.at(), a);
            if constexpr (HAS_dresidual_out)
                read<DTYPE_dresidual_out>(
                    more, finishing.at() + X_BYTES + DY_BYTES + offset(a) * (int)sizeof(DTYPE_dresidual_out));
            own.factors(factors, a);
            finish(xs, dys, factors, more, root, mean, dw[a], db[a], dx + start + offset(a),
                   dresidual + start + offset(a), true);
        }
        evo_release(finishing.empty());
        finishing.next();
        if (!OWN_WARP && threadIdx.x == 0) producer.next();  // waits for the slowest warp of this row
        __syncwarp();
        if (!BEHIND && another) exchange.send(count + 1, dot(summing, own));
    }
    evo_pdl_launch();
    store_sums(dw, partial + part * DIM_N + rank * SHARE);
    if constexpr (HAS_db) store_sums(db, partial + (step + part) * DIM_N + rank * SHARE);
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
#pragma unroll 4
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
