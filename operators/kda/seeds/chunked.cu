/* evo
operator = "kda"
species  = "chunked"
summary  = "FlashKDA's bits: one launch makes every chunk's factors, laid out as the lanes of mma.sync want them, a second one runs the chain over chunks with S^T in registers as bf16"
static   = ["K", "V"]

[genes]
THREADS = [128, 64, 256]  # of a CTA that prepares one chunk of one head
STAGES  = [3, 2, 4]       # chunks of factors and v in flight
SPLIT   = [2, 1, 4]       # CTAs that share the value channels of a sequence and head
TILES   = [1, 2]          # blocks of 16 value channels in a warp's registers
FIRST   = ["longest", "given"]  # the order of ragged sequences
OVERLAP = [0, 1]          # the chain's CTAs fill an SM as soon as no factors are left to begin with
FACTORS = ["bulk", "st.global.v4.b32", "st.global.cg.v4.b32"]  # how they reach global memory
STORE   = ["st.global.v4.b32", "st.global.cs.v4.b32", "st.global.L1::no_allocate.v4.b32"]

[build]
fmad = false  # a product is rounded where the source says so
ftz  = true

[constraints]
all = ["K == 128", "V == 128", "dtype_out == 'bf16'"]

[let]
SLOTS = "where(has_cu_seqlens, T // 16 + N, B * ceildiv(T, 16))"
IMAGE = "8 * 1600 + 1024 + 32"
ROW   = "256 // SPLIT + 16"

[scratch]
factors = { dtype = "u8", shape = ["SLOTS", "H", "IMAGE"] }

[[launch]]
kernel = "kda_prepare"
grid   = ["SLOTS * H"]
block  = ["THREADS"]
args   = ["q", "k", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "factors", "i32:H", "i32:T", "i32:N", "scale", "lower_bound"]

[[launch]]
kernel = "kda_chain"
grid   = ["SPLIT * H", "N"]
block  = ["32 * (8 // (SPLIT * TILES) + 1)"]
shared = "STAGES * (IMAGE + 16 * ROW) + 16 * ROW + 16 * STAGES"
pdl    = "OVERLAP"
args   = ["factors", "v", "cu_seqlens?", "initial_state?", "out", "final_state?", "i32:H", "i32:T", "i32:N"]
*/
#include "evo.h"
#include "evo_mma.h"

// One chunk is 16 tokens. With G the running sum of log2 decays inside it and C its last row:
//   kd = kh 2^G    qd = scale qh 2^G    ki = kh 2^-G    kr = ki 2^C                              [16 tokens, 128]
//   L = strict_lower(b kd ki^T)    M = lower(qd ki^T)    INV = (I + L)^-1                        [16, 16]
//   W^T = b (v^T - S^T kd^T)    U^T = W^T INV^T    out^T = S^T qd^T + U^T M^T    S^T <- S^T 2^C + U^T kr
//
// The factors are stored as the lanes of a warp read them. Lane 4 g + t of a product by kd^T, qd^T, INV^T or M^T over 16
// channels (or tokens) has four words of two elements: rows g (words 0, 1) and 8 + g (2, 3), columns 2 t (0, 2) and
// 8 + 2 t (1, 3). For kr, whose pairs run along tokens: channels g and 8 + g, tokens 2 t and 8 + 2 t.
// An image is eight steps of 16 channels (kd, qd, kr, decay), INV, M and b.

constexpr int KD = 0, QD = 512, KR = 1024, DECAY = 1536, STEP = 1600;
constexpr int INVERSE = 8 * STEP, MASKED = INVERSE + 512, WEIGHTS = MASKED + 512, IMAGE = WEIGHTS + 32;
constexpr int WARPS = THREADS / 32, CHAIN_WARPS = 8 / (SPLIT * TILES);
constexpr int COLUMNS = 128 / SPLIT, ROW = 2 * COLUMNS + 16;  // bytes of a row of v or out, padded
constexpr int STAGE = IMAGE + 16 * ROW, OUT = STAGES * STAGE, FULL = OUT + 16 * ROW, EMPTY = FULL + 8 * STAGES;

EVO_DEVICE float sigmoid(float x) { return fmaf(0.5f, evo_tanh(0.5f * x), 0.5f); }
EVO_DEVICE float low(unsigned word) { return __uint_as_float(word << 16); }
EVO_DEVICE float high(unsigned word) { return __uint_as_float(word & 0xffff0000u); }
EVO_DEVICE unsigned pack(float a, float b) { return evo_pack2<evo_bf16>(a, b); }
EVO_DEVICE unsigned pack_half(float a, float b) { return evo_pack2<evo_fp16>(a, b); }
// d [16, 16] = a [16, 16] b [16, 16] of fp16, rounded to fp16; all as the words of an operand a.
EVO_DEVICE void multiply_half(unsigned (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4]) {
#pragma unroll
    for (int n = 0; n < 4; n += 2)
        evo_mma_half(d + n, a, b[n], b[n + 1]);
}

// Lane's four words of rows 16 by 16 channels of a factor, as the first operand of a product.
EVO_DEVICE void load_rows(unsigned (&a)[4], unsigned at) {
    unsigned words[4];
    evo_shared_load(at, words);
    a[0] = words[0], a[1] = words[2], a[2] = words[1], a[3] = words[3];
}
EVO_DEVICE void store_rows(unsigned at, const unsigned (&a)[4]) {
    const unsigned words[4] = {a[0], a[2], a[1], a[3]};
    evo_shared_store(at, words);
}

struct Chunk {
    long long first;  // token
    int valid;        // tokens, if below 16; none in a surplus slot
};

// The slots of ragged sequence n begin at cu_seqlens[n] / 16 + n: no two sequences share one, a few are left over.
EVO_DEVICE Chunk find(const long long* cu_seqlens, int length, int sequences, int slot) {
    if (!cu_seqlens) {
        const int each = (length + 15) / 16, local = slot % each;
        return {(long long)(slot / each) * length + 16 * local, length - 16 * local};
    }
    int n = 0, end = sequences;
    while (n + 1 < end) {
        const int middle = (n + end) / 2;
        if (cu_seqlens[middle] / 16 + middle <= slot) n = middle;
        else end = middle;
    }
    const long long begin = cu_seqlens[n], first = begin + 16 * (slot - begin / 16 - n);
    return {first, (int)(cu_seqlens[n + 1] - first)};
}

// Where the normalised row of a token waits in the 512 bytes that 16 channels of a factor will take.
EVO_DEVICE int place(int token) { return ((token & 12) | (token + token / 4 & 3)) * 32; }

// q and k as rows of length 1, 16 lanes a token, rounded to bf16; zero where there is no token.
EVO_DEVICE void normalise(unsigned base, const unsigned char* q, const unsigned char* k, long long stride, int valid) {
    constexpr int PASSES = 256 / THREADS;
    const int piece = threadIdx.x % 16;
    unsigned raw[PASSES][2][4];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        const int token = (pass * THREADS + threadIdx.x) / 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) raw[pass][0][i] = raw[pass][1][i] = 0;
        if (token < valid) {
            EVO_LOAD4("ld.global.nc.v4.b32", raw[pass][0], q + token * stride + piece * 16);
            EVO_LOAD4("ld.global.nc.v4.b32", raw[pass][1], k + token * stride + piece * 16);
        }
    }
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        const int token = (pass * THREADS + threadIdx.x) / 16;
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            float values[8], sum = 0.0f;
            evo_words<evo_bf16>::unpack(raw[pass][which], values);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum = fmaf(values[i], values[i], sum);
            const float root = evo_rsqrt(evo_sum<16>(sum) + 1e-6f);
#pragma unroll
            for (int i = 0; i < 8; ++i) values[i] *= root;
            evo_words<evo_bf16>::pack(values, raw[pass][which]);
            evo_shared_store(base + piece / 2 * STEP + (which ? KD : QD) + place(token) + piece % 2 * 16, raw[pass][which]);
        }
    }
}

// A warp: kd, qd, ki, kr and the decay of 16 channels. Lane 8 p + r has tokens 4 p to 4 p + 3 of channels 2 r, 2 r + 1.
EVO_DEVICE void fade(unsigned at, unsigned inverted, const unsigned (&raw)[4], float2 bias, float rate, float bound, float scale,
                     int valid) {
    const int lane = threadIdx.x % 32, part = lane / 8, pair = lane % 8;
    unsigned query[4], key[4];
    float2 gate[4], sum[4], before = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int token = 4 * part + j;
        query[j] = evo_shared_load_word(at + QD + place(token) + 4 * pair);
        key[j] = evo_shared_load_word(at + KD + place(token) + 4 * pair);
        gate[j].x = token < valid ? bound * sigmoid(rate * (low(raw[j]) + bias.x)) : 0.0f;
        gate[j].y = token < valid ? bound * sigmoid(rate * (high(raw[j]) + bias.y)) : 0.0f;
    }
#pragma unroll
    for (int round = 0; round < 4; ++round) {  // one token after the other: part p is right after round p
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            sum[j].x = (j ? sum[j - 1].x : before.x) + gate[j].x;
            sum[j].y = (j ? sum[j - 1].y : before.y) + gate[j].y;
        }
        const float x = __shfl_up_sync(~0u, sum[3].x, 8), y = __shfl_up_sync(~0u, sum[3].y, 8);
        if (part > 0) before = {x, y};
    }
    const float2 decay = {evo_exp2(__shfl_sync(~0u, sum[3].x, 24 + pair)), evo_exp2(__shfl_sync(~0u, sum[3].y, 24 + pair))};
    __syncwarp();  // the rows have been read
    if (part == 0) evo_shared_store_pair(at + DECAY + 8 * pair, decay);
    const unsigned left = pack(decay.x, decay.y), scales = pack(scale, scale);
    const unsigned word = (pair % 4) * 16 + (part / 2) * 8 + pair / 4 * 4 + part % 2 * 256;
    unsigned restored[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const unsigned faded = pack(evo_exp2(sum[j].x), evo_exp2(sum[j].y));
        const unsigned grown = evo_mul2<evo_bf16>(key[j], pack(evo_exp2(-sum[j].x), evo_exp2(-sum[j].y)));
        evo_shared_store_word(at + KD + word + 64 * j, evo_mul2<evo_bf16>(key[j], faded));
        evo_shared_store_word(at + QD + word + 64 * j, evo_mul2<evo_bf16>(evo_mul2<evo_bf16>(query[j], faded), scales));
        evo_shared_store_word(inverted + word + 64 * j, grown);
        restored[j] = evo_mul2<evo_bf16>(grown, left);
    }
    const unsigned turned = at + KR + (pair % 4) * 128 + part % 2 * 32 + pair / 4 * 8 + part / 2 * 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        evo_shared_store_word(turned + 16 * j, __byte_perm(restored[2 * j], restored[2 * j + 1], 0x5410));
        evo_shared_store_word(turned + 16 * j + 64, __byte_perm(restored[2 * j], restored[2 * j + 1], 0x7632));
    }
}

// A warp: kd ki^T or qd ki^T. d[n] holds rows g and 8 + g of columns 8 n + 2 t, 8 n + 2 t + 1; zero above the diagonal,
// and on it where `strict`.
EVO_DEVICE void multiply_rows(float (&d)[2][4], unsigned left, unsigned inverted, bool strict) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        unsigned a[4], b[4];
        load_rows(a, left + step * STEP + lane * 16);
        evo_shared_load(inverted + step * 512 + lane * 16, b);
        evo_mma<evo_bf16>(d[0], a, b[0], b[1]);
        evo_mma<evo_bf16>(d[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = lane / 4 + (i & 2 ? 8 : 0), column = i / 4 * 8 + lane % 4 * 2 + (i & 1);
        if (column > row || strict && column == row) d[i / 4][i % 4] = 0.0f;
    }
}

// A warp: (I + L)^-1 = (I - L)(I + L^2)(I + L^4)(I + L^8) in fp16, since L^16 = 0.
EVO_DEVICE void invert(unsigned (&total)[4], unsigned (&power)[4]) {
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    unsigned turned[4], next[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        total[i] = power[i] ^ 0x80008000u;
        if (i % 3 == 0 && row == column) total[i] = (total[i] & 0xffff0000u) | 0x3c00u;
        if (i % 3 == 0 && row == column + 1) total[i] = (total[i] & 0xffffu) | 0x3c000000u;
        turned[i] = evo_tile_transpose(power[i]);
    }
#pragma unroll
    for (int round = 0; round < 3; ++round) {
        multiply_half(next, power, turned);
#pragma unroll
        for (int i = 0; i < 4; ++i) turned[i] = evo_tile_transpose(power[i] = next[i]);
        multiply_half(next, total, turned);
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] = evo_add2<evo_fp16>(total[i], next[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    kda_prepare(const unsigned char* q, const unsigned char* k, const unsigned char* g, const evo_bf16* beta, const float* a_log,
                const float* dt_bias, const long long* cu_seqlens, unsigned char* factors, int heads, int length, int sequences,
                float scale, float lower_bound) {
    __shared__ __align__(128) unsigned char memory[IMAGE + 8 * 512 + 64];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, head = blockIdx.x % heads;
    const Chunk mine = find(cu_seqlens, length, sequences, blockIdx.x / heads);
    if (mine.valid <= 0) return;
    if (OVERLAP) evo_pdl_launch();
    const unsigned base = evo_shared(memory), inverted = base + IMAGE, weights = inverted + 8 * 512;
    const long long stride = heads * 256LL, origin = mine.first * stride + head * 256;
    unsigned char* image = factors + (long long)blockIdx.x * IMAGE;

    // --- the gates' raw words, on their way while q and k are normalised
    constexpr int TURNS = 8 / WARPS;
    unsigned raw[TURNS][4];
    float2 bias[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const int step = turn * WARPS + warp, channel = 16 * step + lane % 8 * 2;
        bias[turn] = *(const float2*)(dt_bias + head * 128 + channel);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int token = lane / 8 * 4 + j;
            raw[turn][j] = token < mine.valid ? *(const unsigned*)(g + origin + token * stride + 2 * channel) : 0;
        }
    }
    const float rate = evo_exp2(a_log[head] * 1.4426950408889634f);
    const float bound = (float)(lower_bound * 1.4426950408889634);  // in double
    if (thread < 16) {
        const float weight = thread < mine.valid ? sigmoid(evo_float(beta[(mine.first + thread) * heads + head])) : 0.0f;
        evo_shared_store(weights + 4 * thread, weight);
        evo_shared_store_half(base + WEIGHTS + 2 * thread, evo_cast<evo_bf16>(weight));
    }
    normalise(base, q + origin, k + origin, stride, mine.valid);
    __syncthreads();
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const int step = turn * WARPS + warp;
        fade(base + step * STEP, inverted + step * 512, raw[turn], bias[turn], rate, bound, scale, mine.valid);
    }
    if (FACTORS_INDEX == 0) evo_copy_fence();
    __syncthreads();
    if (FACTORS_INDEX == 0 && thread == 0) evo_bulk_store(image, base, INVERSE);
    if (warp < 2) {
        float d[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        unsigned words[4];
        multiply_rows(d, base + (warp ? QD : KD), inverted, warp == 0);
        if (warp == 0) {
            const float one = evo_shared_load(weights + lane / 4 * 4), other = evo_shared_load(weights + lane / 4 * 4 + 32);
            const unsigned rows[2] = {pack_half(one, one), pack_half(other, other)};
            unsigned power[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                power[i] = evo_mul2<evo_fp16>(pack_half(d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]), rows[i % 2]);
            invert(words, power);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 pair = evo_unpack2<evo_fp16>(words[i]);
                words[i] = pack(pair.x, pair.y);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) words[i] = pack(d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]);
        }
        store_rows(base + (warp ? MASKED : INVERSE) + lane * 16, words);
        if (FACTORS_INDEX == 0) evo_copy_fence();
    }
    __syncthreads();
    if (FACTORS_INDEX == 0) {
        if (thread == 0) {
            evo_bulk_store(image + INVERSE, base + INVERSE, IMAGE - INVERSE);
            evo_bulk_commit();
            evo_bulk_wait<0>();
        }
    } else {
        for (int at = thread * 16; at < IMAGE; at += THREADS * 16) {
            unsigned words[4];
            evo_shared_load(base + at, words);
#if FACTORS_INDEX > 0
            EVO_STORE4(FACTORS, image + at, words);
#endif
        }
    }
}

// Which sequence is the `rank`-th longest; of equal ones the first given comes first.
EVO_DEVICE int choose(const long long* cu_seqlens, int sequences, int rank) {
    __shared__ int chosen;
    for (int n = threadIdx.x; n < sequences; n += blockDim.x) {
        const long long length = cu_seqlens[n + 1] - cu_seqlens[n];
        int before = 0;
        for (int other = 0; other < sequences; ++other) {
            const long long its = cu_seqlens[other + 1] - cu_seqlens[other];
            before += its > length || its == length && other < n;
        }
        if (before == rank) chosen = n;
    }
    __syncthreads();
    return chosen;
}

EVO_DEVICE unsigned load_state(const float* at) {
    const float2 pair = *(const float2*)at;
    return pack(pair.x, pair.y);
}
EVO_DEVICE unsigned load_state(const evo_bf16* at) { return *(const unsigned*)at; }
EVO_DEVICE void store_state(float* at, unsigned word) { *(float2*)at = {low(word), high(word)}; }
EVO_DEVICE void store_state(evo_bf16* at, unsigned word) { *(unsigned*)at = word; }

extern __shared__ __align__(128) unsigned char shared_memory[];

extern "C" __global__ void __launch_bounds__(32 * (CHAIN_WARPS + 1))
    kda_chain(const unsigned char* factors, const unsigned char* v, const long long* cu_seqlens,
              const DTYPE_initial_state* initial, unsigned char* out, DTYPE_final_state* final, int heads, int length,
              int sequences) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x / SPLIT, column = blockIdx.x % SPLIT * COLUMNS;
    const int sequence = FIRST_INDEX == 0 && cu_seqlens ? choose(cu_seqlens, sequences, blockIdx.y) : blockIdx.y;
    const long long first = cu_seqlens ? cu_seqlens[sequence] : (long long)sequence * length;
    const int tokens = cu_seqlens ? (int)(cu_seqlens[sequence + 1] - first) : length, chunks = (tokens + 15) / 16;
    const long long slot = cu_seqlens ? first / 16 + sequence : (long long)sequence * chunks;
    const long long stride = heads * 256LL, origin = first * stride + head * 256 + 2 * column;
    const unsigned base = evo_shared(shared_memory);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            evo_barrier_init(base + FULL + 8 * stage, 1);
            evo_barrier_init(base + EMPTY + 8 * stage, CHAIN_WARPS);
        }
        evo_barrier_fence();
    }
    __syncthreads();

    if (warp == CHAIN_WARPS) {  // brings factors and rows of v
        if (OVERLAP) evo_pdl_wait();
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const int stage = chunk % STAGES, rows = min(16, tokens - 16 * chunk);
            const unsigned at = base + stage * STAGE, full = base + FULL + 8 * stage;
            if (chunk >= STAGES) evo_barrier_wait(base + EMPTY + 8 * stage, chunk / STAGES - 1 & 1);
            if (lane == 0) {
                evo_barrier_expect(full, IMAGE + rows * 2 * COLUMNS);
                evo_bulk_load(at, factors + ((slot + chunk) * heads + head) * IMAGE, IMAGE, full);
            }
            __syncwarp();
            if (lane < rows) evo_bulk_load(at + IMAGE + lane * ROW, v + origin + (16 * chunk + lane) * stride, 2 * COLUMNS, full);
        }
        return;
    }

    // --- S^T as bf16: rows 16 m + lane / 4 (+ 8 in words 1, 3), channels 16 step + 2 (lane % 4) (+ 8 in words 2, 3)
    const int own = warp * TILES * 16;  // first of this warp's columns in the CTA
    const long long corner = (((long long)sequence * heads + head) * 128 + column + own + lane / 4) * 128 + lane % 4 * 2;
    unsigned state[TILES][8][4];
#pragma unroll
    for (int i = 0; i < TILES * 32; ++i) {
        const int m = i / 32, step = i % 32 / 4, part = i % 4;
        const long long at = corner + (16 * m + part % 2 * 8) * 128 + 16 * step + part / 2 * 8;
        state[m][step][part] = initial ? load_state(initial + at) : 0;
    }
    // Row of v or out and half of 16 columns that this lane addresses for a transposed 8x8 matrix.
    const unsigned crossed = ((lane >> 4) * 8 + (lane & 7)) * ROW + 2 * (own + (lane >> 3 & 1) * 8);

#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const int stage = chunk % STAGES, valid = tokens - 16 * chunk;
        const unsigned at = base + stage * STAGE, words = at + lane * 16;
        evo_barrier_wait(base + FULL + 8 * stage, chunk / STAGES & 1);
        float seen[TILES][2][4], read[TILES][2][4];
#pragma unroll
        for (int i = 0; i < TILES * 8; ++i) seen[i / 8][i % 8 / 4][i % 4] = read[i / 8][i % 8 / 4][i % 4] = 0.0f;
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            unsigned kd[4], qd[4];
            evo_shared_load(words + step * STEP + KD, kd);
            evo_shared_load(words + step * STEP + QD, qd);
#pragma unroll
            for (int i = 0; i < TILES * 2; ++i) {
                evo_mma<evo_bf16>(seen[i / 2][i % 2], state[i / 2][step], kd[i % 2 * 2], kd[i % 2 * 2 + 1]);
                evo_mma<evo_bf16>(read[i / 2][i % 2], state[i / 2][step], qd[i % 2 * 2], qd[i % 2 * 2 + 1]);
            }
        }
        unsigned inverse[4], masked[4], update[TILES][4];
        evo_shared_load(words + INVERSE, inverse);
        evo_shared_load(words + MASKED, masked);
        const unsigned weight[2] = {evo_shared_load_word(at + WEIGHTS + lane % 4 * 4), evo_shared_load_word(at + WEIGHTS + 16 + lane % 4 * 4)};
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            unsigned change[4];
            float d[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
            evo_tiles_load_transposed(at + IMAGE + crossed + 32 * m, change);
            if (valid < 16) {  // rows that were not brought
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int token = i / 2 * 8 + lane % 4 * 2;
                    change[i] &= (token < valid ? 0xffffu : 0) | (token + 1 < valid ? 0xffff0000u : 0);
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* some = seen[m][i / 2] + i % 2 * 2;
                change[i] = evo_mul2<evo_bf16>(evo_sub2<evo_bf16>(change[i], pack(some[0], some[1])), weight[i / 2]);
            }
            evo_mma<evo_bf16>(d[0], change, inverse[0], inverse[1]);
            evo_mma<evo_bf16>(d[1], change, inverse[2], inverse[3]);
#pragma unroll
            for (int i = 0; i < 4; ++i) update[m][i] = pack(d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]);
        }
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            float d[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
            unsigned result[4];
            evo_mma<evo_bf16>(d[0], update[m], masked[0], masked[1]);
            evo_mma<evo_bf16>(d[1], update[m], masked[2], masked[3]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* some = read[m][i / 2] + i % 2 * 2;
                result[i] = evo_add2<evo_bf16>(pack(some[0], some[1]), pack(d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]));
            }
            evo_tiles_store_transposed(base + OUT + crossed + 32 * m, result);
        }
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            unsigned kr[4];
            evo_shared_load(words + step * STEP + KR, kr);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float2 decay = evo_shared_load_pair(at + step * STEP + DECAY + half * 32 + lane % 4 * 8);
#pragma unroll
                for (int m = 0; m < TILES; ++m) {
                    float d[4] = {0, 0, 0, 0};
                    evo_mma<evo_bf16>(d, update[m], kr[2 * half], kr[2 * half + 1]);
#pragma unroll
                    for (int row = 0; row < 2; ++row) {
                        unsigned& word = state[m][step][2 * half + row];
                        word = pack(fmaf(low(word), decay.x, d[2 * row]), fmaf(high(word), decay.y, d[2 * row + 1]));
                    }
                }
            }
        }
        evo_release(base + EMPTY + 8 * stage);

        // --- out: this warp's columns, 16 bytes a lane
        constexpr int PIECES = 2 * TILES;  // of 16 bytes in a token's row
        __syncwarp();
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            const int token = (32 * i + lane) / PIECES, piece = lane % PIECES * 16 + 2 * own;
            unsigned four[4];
            evo_shared_load(base + OUT + token * ROW + piece, four);
            if (token < valid) EVO_STORE4(STORE, out + origin + (16LL * chunk + token) * stride + piece, four);
        }
        __syncwarp();
    }
    if (final) {
#pragma unroll
        for (int i = 0; i < TILES * 32; ++i) {
            const int m = i / 32, step = i % 32 / 4, part = i % 4;
            store_state(final + corner + (16 * m + part % 2 * 8) * 128 + 16 * step + part / 2 * 8, state[m][step][part]);
        }
    }
}
