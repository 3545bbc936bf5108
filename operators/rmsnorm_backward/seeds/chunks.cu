/* evo
operator = "rmsnorm_backward"
species  = "chunk-ring"
summary  = "long rows: chunks of one access a thread come into a ring and go back one by one; a cluster shares a row; dw in registers"
arch     = ["sm_90a", "sm_100a"]
static   = ["N"]

[genes]
SLICE     = [16384, 8192, 4096, 32768]     # elements that an SM works on at a time: SLICE / N CTAs of a row each, or its
                                           # share of a row that N / SLICE CTAs have
RING      = [208, 192, 160, 128, 216]      # KB of chunks that an SM keeps
PER       = [32, 64, 16]                   # elements of a thread
FILL      = [88, 75, 94, 100]              # percent of the SMs: clusters stay within a GPC, so some SMs find no place in
                                           # one of four or more, and a persistent cluster that waits costs a second wave
BEHIND    = [1, 0]                         # 1: a row is finished after the next one was summed, so that no one waits
WEIGHT    = ["held", "shared", "late"]     # kept in registers, in shared memory, or loaded for every row
STORE     = [
    "st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32",
    "st.global.L1::no_allocate.v4.b32",
]
WLOAD     = ["ld.global.nc.v4.b32", "ld.global.nc.L1::evict_last.v4.b32"]
COLUMNS   = [16, 32, 64]                   # that a CTA of the last step sums; eight times as many of a cluster's row
PDL       = [1, 0]                         # the last step is launched while the first still runs, and waits inside

[let]
VECTOR    = "16 // itemsize_dx"
ELEMENT   = "itemsize_x + itemsize_dy + where(has_dresidual_out, itemsize_dresidual_out, 0)"   # bytes
NEED      = "ceildiv(N, SLICE)"
CLUSTER   = "where(NEED > 8, 16, where(NEED > 4, 8, where(NEED > 2, 4, NEED)))"
SHARE     = "N // CLUSTER"
THREADS   = "min(1024, 32 * ceildiv(SHARE, 32 * PER))"
ACCESSES  = "ceildiv(SHARE, VECTOR * THREADS)"
BUDGET    = "52 + VECTOR * ACCESSES * (1 + has_db + (WEIGHT == 'held'))"
CTAS      = "max(1, min(16, SLICE // SHARE, 65536 // (BUDGET * THREADS)))"   # per SM
STAGE     = "THREADS * VECTOR * (ELEMENT)"     # a chunk
STAGES    = "RING * 1024 // (CTAS * STAGE)"
FACTORS   = "where(WEIGHT == 'shared', ACCESSES * THREADS * VECTOR * 4, 0)"
SHARED    = "STAGES * STAGE + FACTORS"
RESERVED  = "2048 + CLUSTER * THREADS // 2 + 12 * STAGES"   # barriers, sums, and what the driver keeps
PARTS     = "min(M, where(CLUSTER > 2, max(1, SMS * FILL // (100 * CLUSTER)), SMS * CTAS // CLUSTER))"   # or clusters

[constraints]
all = [
    "N >= 1024",
    "NEED <= 16",
    "N % (CLUSTER * VECTOR) == 0",
    "BUDGET <= 208",                       # registers of a thread, estimated: nothing may spill
    "BUDGET * THREADS * CTAS <= 65536",
    "STAGES > ACCESSES * (1 + BEHIND)",      # a whole row is there while its sum is awaited, and something is coming
    "SHARED + RESERVED <= SMEM_BLOCK",
    "(SHARED + RESERVED) * CTAS <= SMEM_SM",
    "FILL == 88 or CLUSTER > 2",
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
grid   = ["ceildiv(N, where(CLUSTER > 1, 8, 1) * COLUMNS)", "1 + has_db"]
block  = [256]
pdl    = "PDL"
args   = ["partial", "dw", "db?", "i32:PARTS"]

[scratch]
partial = { dtype = "fp32", shape = ["1 + has_db", "PARTS", "N"] }
*/
#include "evo.h"

constexpr int SIZE = evo_words<DTYPE_dx>::SIZE;                 // elements of an access: 16 bytes of dy and dx
template <class T> constexpr int WORDS = SIZE * sizeof(T) / 4;  // 32-bit words of as many elements of T
constexpr int ELEMENT = sizeof(DTYPE_x) + sizeof(DTYPE_dy) + (HAS_dresidual_out ? sizeof(DTYPE_dresidual_out) : 0);
constexpr int NEED = (DIM_N + SLICE - 1) / SLICE;
constexpr int CLUSTER = NEED > 8 ? 16 : NEED > 4 ? 8 : NEED > 2 ? 4 : NEED;     // CTAs of a row
constexpr int SHARE = DIM_N / CLUSTER;                                          // elements of each
EVO_DEVICE constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int THREADS = least(1024, (SHARE + 32 * PER - 1) / (32 * PER) * 32);
constexpr int WARPS = THREADS / 32, PARTIALS = CLUSTER * WARPS;                  // sums that make up a row's
constexpr int VECTORS = SHARE / SIZE, ACCESSES = (VECTORS + THREADS - 1) / THREADS;
constexpr bool EVEN = VECTORS % THREADS == 0, HELD = WEIGHT_INDEX == 0, SHARED = WEIGHT_INDEX == 1;
constexpr int BUDGET = 52 + SIZE * ACCESSES * (1 + HAS_db + HELD);               // registers, as the header has it
constexpr int ROOM = least(16, least(SLICE / SHARE, 65536 / (BUDGET * THREADS))), CTAS = ROOM < 1 ? 1 : ROOM;
constexpr int BOUND = (THREADS + 127) / 128 * 128;              // the compiler shares registers out by four warps
constexpr int CHUNK = THREADS * SIZE;                            // elements: one access a thread
constexpr int X_BYTES = CHUNK * sizeof(DTYPE_x), DY_BYTES = CHUNK * sizeof(DTYPE_dy);
constexpr int STAGE_BYTES = CHUNK * ELEMENT, STAGES = RING * 1024 / (CTAS * STAGE_BYTES);
constexpr int TURNS = 4;                                        // rows whose sums may be on their way, see Exchange
constexpr int WIDTH = CLUSTER > 1 ? 8 * COLUMNS : COLUMNS;      // columns that a CTA of the last step sums

EVO_DEVICE int offset(int access) { return (access * THREADS + (int)threadIdx.x) * SIZE; }
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

// A place in the ring of chunks, and how often it came round.
struct Cursor {
    unsigned memory, barriers;
    int stage, parity;

    EVO_DEVICE unsigned full() const { return barriers + 8 * stage; }
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
EVO_DEVICE void read_pair(float (&x)[SIZE], float (&dy)[SIZE], unsigned stage) {
    read<DTYPE_x>(x, stage + threadIdx.x * SIZE * (int)sizeof(DTYPE_x));
    read<DTYPE_dy>(dy, stage + X_BYTES + threadIdx.x * SIZE * (int)sizeof(DTYPE_dy));
}

// This CTA's share of the weight, kept as [ACCESSES][SIZE / 4][THREADS] if in shared memory.
struct Weight {
    const DTYPE_weight* weight;
    float4* shared;
    float held[HELD ? ACCESSES : 1][SIZE];

    EVO_DEVICE float4& slot(int access, int quarter) const {
        return shared[(access * (SIZE / 4) + quarter) * THREADS + threadIdx.x];
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
                       DTYPE_dx* dx, DTYPE_dresidual* dresidual) {
    float values[SIZE];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        const float normed = x[i] * root;
        values[i] = (dy[i] * weight[i] - normed * mean) * root + (HAS_dresidual_out ? more[i] : 0.0f);
        dw[i] = fmaf(dy[i], normed, dw[i]);
        if constexpr (HAS_db) db[i] += dy[i];
    }
    unsigned words[WORDS<DTYPE_dx>];
    evo_pack<DTYPE_dx>(values, words);
    EVO_STORE(STORE, dx, words);
    if constexpr (HAS_dresidual) {
        unsigned wide[WORDS<DTYPE_dresidual>];
        evo_pack<DTYPE_dresidual>(values, wide);
        EVO_STORE(STORE, dresidual, wide);
    }
}

// Brings chunks of this CTA's share of rows; by one thread.
struct Source {
    const DTYPE_x* x;
    const DTYPE_dy* dy;
    const DTYPE_dresidual_out* more;
    int rows, skip;

    EVO_DEVICE void fetch(long long row, int chunk, const Cursor& to) const {
        if (row >= rows) return;
        const long long start = row * DIM_N + skip + chunk * CHUNK;
        const int count = least(CHUNK, SHARE - chunk * CHUNK);
        evo_barrier_expect(to.full(), count * ELEMENT);
        evo_bulk_load(to.at(), x + start, count * (int)sizeof(DTYPE_x), to.full());
        evo_bulk_load(to.at() + X_BYTES, dy + start, count * (int)sizeof(DTYPE_dy), to.full());
        if constexpr (HAS_dresidual_out)
            evo_bulk_load(to.at() + X_BYTES + DY_BYTES, more + start, count * (int)sizeof(DTYPE_dresidual_out), to.full());
    }
    // A whole warp has a chunk in registers; the warp that is the last one brings what comes in its place.
    EVO_DEVICE void release(unsigned* done, long long row, int chunk, const Cursor& place) const {
        evo_copy_fence();
        __syncwarp();
        if (threadIdx.x % 32 != 0) return;
        __threadfence_block();
        if (atomicAdd(done + place.stage, 1u) != WARPS - 1) return;
        __threadfence_block();
        done[place.stage] = 0;
        evo_copy_fence();
        fetch(row, chunk, place);
    }
};

// The first pass: this warp's part of the row's sum of x * weight * dy, in all its lanes. The chunks stay.
EVO_DEVICE float dot(Cursor& cursor, const Weight& weight) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int a = 0; a < ACCESSES; ++a, cursor.next()) {
        evo_barrier_wait(cursor.full(), cursor.parity);
        if (!inside(a)) continue;
        float x[SIZE], dy[SIZE], factors[SIZE];
        read_pair(x, dy, cursor.at());
        weight.factors(factors, a);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) sums[i % 4] = fmaf(x[i], dy[i] * factors[i], sums[i % 4]);
    }
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

extern "C" __global__ void __launch_bounds__(BOUND, CTAS * THREADS / BOUND < 1 ? 1 : CTAS * THREADS / BOUND)
    backward_rows(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_dy* dy, const float* rstd,
                  const DTYPE_dresidual_out* dresidual_out, DTYPE_dx* dx, DTYPE_dresidual* dresidual, float* partial,
                  int rows) {
    extern __shared__ float4 memory[];  // the ring, then the weight
    __shared__ float slots[TURNS][PARTIALS];
    __shared__ unsigned long long barriers[STAGES], sums[TURNS];
    __shared__ unsigned done[STAGES];   // warps that have the chunk there in registers
    const int rank = CLUSTER > 1 ? evo_cluster_rank() : 0, step = gridDim.x / CLUSTER;
    const long long part = blockIdx.x / CLUSTER;
    const Source source = {x, dy, dresidual_out, rows, rank * SHARE};
    const Exchange exchange = {evo_shared(slots), evo_shared(sums), rank};
    Cursor summing = {evo_shared(memory), evo_shared(barriers), 0, 0}, finishing = summing;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) evo_barrier_init(summing.barriers + 8 * i, 1), done[i] = 0;
        for (int i = 0; i < TURNS; ++i) evo_barrier_init(exchange.barriers + 8 * i, CLUSTER > 1 ? 1 : WARPS);
        evo_barrier_fence();
        evo_copy_fence();
        for (int i = 0; i < STAGES; ++i)
            source.fetch(part + (long long)(i / ACCESSES) * step, i % ACCESSES, {summing.memory, summing.barriers, i, 0});
    }
    Weight own = {weight + rank * SHARE, memory + STAGES * (STAGE_BYTES / 16)};
    own.keep();
    __syncthreads();
    if constexpr (CLUSTER > 1) {  // no peer may store before these barriers exist
        evo_cluster_arrive();
        evo_cluster_wait();
    }

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
        for (int a = 0; a < ACCESSES; ++a, finishing.next()) {
            float xs[SIZE], dys[SIZE], more[SIZE], factors[SIZE];
            if (inside(a)) {
                read_pair(xs, dys, finishing.at());
                if constexpr (HAS_dresidual_out)
                    read<DTYPE_dresidual_out>(
                        more, finishing.at() + X_BYTES + DY_BYTES + threadIdx.x * SIZE * (int)sizeof(DTYPE_dresidual_out));
            }
            source.release(done, row + (long long)((a + STAGES) / ACCESSES) * step, (a + STAGES) % ACCESSES, finishing);
            if (!inside(a)) continue;
            own.factors(factors, a);
            finish(xs, dys, factors, more, root, mean, dw[a], db[a], dx + start + offset(a),
                   dresidual + start + offset(a));
        }
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
    constexpr int QUADS = WIDTH / 4, SPLIT = 256 / QUADS;
    __shared__ float4 sums[SPLIT][QUADS];
    const int quad = threadIdx.x % QUADS, split = threadIdx.x / QUADS, column = blockIdx.x * WIDTH + 4 * quad;
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
