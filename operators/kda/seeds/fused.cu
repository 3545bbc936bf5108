/* evo
operator = "kda"
species  = "fused"
summary  = "a warpgroup a time segment, S^T in wgmma accumulators, 16-token chunks; a segment starts from zero some chunks early, and a second launch verifies that this was enough, or does the sequence again in one piece"
arch     = ["sm_90a"]
static   = ["K", "V"]

[genes]
SEGMENT = [47, 8, 12, 16, 24, 32, 64, 93, 128, 256, 512, 65536]  # chunks of a time segment
EARLY   = [2, 1, 3, 4, 8, 16]    # chunks that a segment starts before its own, from a state of zero
STAGES  = [2, 3]                 # chunks of raw rows in flight
RESIDENT = [2, 1]                # CTAs that share an SM, as the registers are divided
SIGMOID = [0, 1]                 # 0: 1 / (1 + 2^-x), 1: tanh.approx, which is off by 2^-11 where gates are weak
STORE   = ["st.global.v4.b32", "st.global.cs.v4.b32", "st.global.L1::no_allocate.v4.b32", "st.global.cg.v4.b32"]

[constraints]
all = ["K == 128", "V == 128"]

[let]
SEGMENTS = "B * T // (16 * SEGMENT) + N"
RAW      = "3 * 4096 + 4352"
FACTORS  = "5 * 4352 + 544 + 1024 + 768 + 512 + 8192 + 192"

[scratch]
marks = { dtype = "bf16", shape = ["SEGMENTS", "H", "2", "V", "K"] }  # of every segment's first and last state

[[launch]]
kernel = "kda_fused"
grid   = ["H", "SEGMENTS"]
block  = ["128"]
shared = "STAGES * RAW + FACTORS"
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?", "marks",
          "i32:H", "i32:T", "i32:N", "i32:0", "scale", "lower_bound"]

[[launch]]
kernel = "kda_fused"
when   = "16 * SEGMENT < T"
grid   = ["H", "N"]
block  = ["128"]
shared = "STAGES * RAW + FACTORS"
pdl    = true
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?", "marks",
          "i32:H", "i32:T", "i32:N", "i32:1", "scale", "lower_bound"]
*/
#include "evo.h"
#include "evo_mma.h"

// One chunk is 16 tokens. With G the running sum of log2 decays inside it and C its last row:
//   kd = kh 2^G    qd = scale qh 2^G    ki = kh 2^-G    kr = kh 2^(C - G)                        [16 tokens, 128]
//   L = strict_lower(b kd ki^T)    M = lower(qd ki^T)    W = (I + L)^-1 diag(b)                  [16, 16]
//   U^T = (W v)^T - S^T (W kd)^T    out^T = S^T qd^T + U^T M^T    S^T <- S^T 2^C + U^T kr
// Rows of S^T are value channels: warp w of the warpgroup holds rows 16 w + 64 m + (0..15), m = 0, 1.

constexpr int GROUP = 272;          // bytes from 8 channels of 16 tokens to the next: 2 core matrices and a pad
constexpr int FACTOR = 16 * GROUP;  // a [16, 128] operand of wgmma
constexpr int RAW = 3 * 4096 + FACTOR;
constexpr int Q_RAW = 0, K_RAW = 4096, G_RAW = 8192, V_RAW = 12288;  // v's rows are GROUP bytes apart
constexpr int KD = STAGES * RAW, QD = KD + FACTOR, KI = QD + FACTOR, KR = KI + FACTOR, OUT = KR + FACTOR;
constexpr int M_AT = OUT + FACTOR, L_AT = M_AT + 544, W_AT = L_AT + 1024, DECAY = W_AT + 768, SUMS = DECAY + 512;
constexpr int Q_NORM = SUMS + 8192, K_NORM = Q_NORM + 64, WEIGHT = K_NORM + 64;
constexpr int W_ROW = 48;  // bytes, so that a warp's reads of W meet no bank twice
constexpr float LOG2E = 1.4426950408889634f;

extern __shared__ __align__(128) unsigned char shared_memory[];

EVO_DEVICE float low(unsigned word) { return __uint_as_float(word << 16); }
EVO_DEVICE float high(unsigned word) { return __uint_as_float(word & 0xffff0000u); }
EVO_DEVICE unsigned pack(float a, float b) { return evo_pack2<evo_bf16>(a, b); }

// log2 of a token's decay in one channel, from rate * (g + bias) * log2(e).
EVO_DEVICE float gate_log2(float x, float bound_log2) {
    if (SIGMOID) {
        float t = 0.34657359f * x;  // half of x, natural
        asm("tanh.approx.f32 %0, %0;" : "+f"(t));
        return bound_log2 * fmaf(0.5f, t, 0.5f);
    }
    return bound_log2 * evo_reciprocal(1.0f + evo_exp2(-x));
}

struct Sequence {
    long long first;  // token
    int tokens, number, segment;
};

EVO_DEVICE int segments_of(int tokens) { return max(1, (tokens + 16 * SEGMENT - 1) / (16 * SEGMENT)); }

// Which segment of which sequence the CTA of this place has; `number` is -1 for a surplus CTA.
EVO_DEVICE Sequence find(const long long* cu_seqlens, int length, int sequences, int place) {
    for (int n = 0; n < sequences; ++n) {
        const long long first = cu_seqlens ? cu_seqlens[n] : (long long)n * length;
        const int tokens = cu_seqlens ? (int)(cu_seqlens[n + 1] - first) : length;
        const int segments = segments_of(tokens);
        if (place < segments) return {first, tokens, n, place};
        place -= segments;
    }
    return {0, 0, -1, 0};
}

// --- is a start from zero, EARLY chunks before a segment, as good as the state that the segment before it ended with?
// No step of the recurrence makes a difference of states larger, so it is enough to compare the two where they meet.
constexpr float TOLERANCE = 0.001953125f;  // of the state's norm, its rounding to bf16 included: a third of what the operator allows
constexpr int MARK = 128 * 128 * 2;        // bytes of a state in bf16, as the threads hold it

// A state's place; `which`: 0 what a segment started from, 1 what it ended with.
EVO_DEVICE unsigned char* mark_of(unsigned char* marks, int heads, int place, int head, int which) {
    return marks + (((long long)place * heads + head) * 2 + which) * MARK + threadIdx.x * 16;
}

// True where one of the sequence's segments must not be believed; `place` is its first segment's.
EVO_DEVICE bool mismatch(unsigned char* marks, int heads, int head, int place, int segments) {
    bool bad = false;
    for (int border = 1; border < segments; ++border) {
        const unsigned char* one = mark_of(marks, heads, place + border - 1, head, 1);
        const unsigned char* two = mark_of(marks, heads, place + border, head, 0);
        float gap = 0.0f, norm = 0.0f;
#pragma unroll 4
        for (int i = 0; i < 16; ++i) {
            unsigned a[4], b[4];
            EVO_LOAD4("ld.global.v4.b32", a, one + 2048 * i);
            EVO_LOAD4("ld.global.v4.b32", b, two + 2048 * i);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float x = low(a[j]) - low(b[j]), y = high(a[j]) - high(b[j]);
                gap = fmaf(x, x, fmaf(y, y, gap));
                norm = fmaf(low(a[j]), low(a[j]), fmaf(high(a[j]), high(a[j]), norm));
            }
        }
        gap = evo_sum<32>(gap);
        norm = evo_sum<32>(norm);
        bad |= !(gap <= TOLERANCE * TOLERANCE * norm);  // of each warp's part; a NaN is bad too
    }
    return __syncthreads_or(bad);
}

extern "C" __global__ void __launch_bounds__(128, RESIDENT)
    kda_fused(const unsigned char* q, const unsigned char* k, const unsigned char* v, const unsigned char* g,
              const evo_bf16* beta, const float* a_log, const float* dt_bias, const long long* cu_seqlens,
              const DTYPE_initial_state* initial, unsigned char* out, DTYPE_final_state* final, unsigned char* marks, int heads,
              int length, int sequences, int again, float scale, float lower_bound) {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, head = blockIdx.x;
    int place = blockIdx.y;  // of this CTA's segment
    if (again) {  // of the first segment of this CTA's sequence
        place = 0;
        for (int n = 0; n < (int)blockIdx.y; ++n) place += segments_of(cu_seqlens ? (int)(cu_seqlens[n + 1] - cu_seqlens[n]) : length);
    }
    const Sequence mine = find(cu_seqlens, length, sequences, place);
    if (again) {
        evo_pdl_wait();
        if (!mismatch(marks, heads, head, place, segments_of(mine.tokens))) return;
    } else {
        evo_pdl_launch();
    }
    if (mine.number < 0) return;
    const unsigned base = evo_shared(shared_memory);
    const int stride = heads * 256;  // bytes from token to token
    const long long origin = mine.first * stride + head * 256;
    const int chunks = (mine.tokens + 15) / 16;
    const int begin = mine.segment * SEGMENT, end = again ? chunks : min(chunks, begin + SEGMENT), start = max(0, begin - EARLY);
    const float rate = evo_exp2(a_log[head] * LOG2E) * LOG2E, bound_log2 = lower_bound * LOG2E;

    // --- raw rows of a chunk: 16 x 256 bytes of each tensor, zero past the end
    const auto fetch = [&](int chunk) {
        if (chunk < end) {
            const unsigned to = base + (chunk - start) % STAGES * RAW;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int row = i % 2 * 8 + thread / 16, piece = thread % 16, which = i / 2;
                const unsigned char* tensor = which == 0 ? q : which == 1 ? k : which == 2 ? g : v;
                const bool there = chunk * 16 + row < mine.tokens;
                const unsigned char* from = tensor + origin + (there ? (chunk * 16LL + row) * stride : 0) + piece * 16;
                const unsigned at = to + (which == 3 ? V_RAW + row * GROUP : which * 4096 + row * 256) + piece * 16;
                evo_async_load(at, from, there);
            }
        }
        evo_async_commit();
    };

    // --- the state: S^T rows 64 m + 16 warp + lane / 4 (+ 8), columns 8 j + 2 (lane % 4) (+ 1)
    float state[2][64];
    const int row = 16 * warp + lane / 4, column = 2 * (lane % 4);
    const long long states = ((long long)mine.number * heads + head) * 128 * 128;
#pragma unroll
    for (int i = 0; i < 128; ++i) {
        const int m = i / 64, j = i % 64 / 4, at = (64 * m + row + (i & 2 ? 8 : 0)) * 128 + 8 * j + column + (i & 1);
        state[m][i % 64] = initial && start == 0 ? evo_float(initial[states + at]) : 0.0f;
    }

    const int pair = thread % 64, half = thread / 64;  // two channels, eight tokens of a chunk
    const float2 bias = {rate * dt_bias[head * 128 + 2 * pair], rate * dt_bias[head * 128 + 2 * pair + 1]};
    const unsigned factor = base + pair / 4 * GROUP + half * 128 + pair % 4 * 4;
    const unsigned a_rows = (lane >> 4 & 1) * GROUP + (lane >> 3 & 1) * 128 + (lane & 7) * 16;
    const unsigned v_rows = ((lane & 7) + 8 * (lane >> 4 & 1)) * GROUP + 2 * (16 * warp + 8 * (lane >> 3 & 1));

    // beta of the next chunk waits in a register of the first 16 threads
    const auto fetch_beta = [&](int chunk) {
        const int token = chunk * 16 + thread;
        return thread < 16 && chunk < end && token < mine.tokens ? beta[(mine.first + token) * heads + head] : evo_bf16{};
    };
    evo_bf16 logit = fetch_beta(start);

    // --- what can be made of a chunk's raw rows while the state's products are in flight: weights, norms, gates
    const auto begin_chunk = [&](int chunk) {
        const unsigned raw = base + (chunk - start) % STAGES * RAW;
        const int valid = mine.tokens - chunk * 16;  // tokens of this chunk, if below 16
        evo_async_wait<STAGES - 1>();
        if (thread < 16) {
            const float weight = evo_reciprocal(1.0f + evo_exp2(-LOG2E * evo_float(logit)));
            evo_shared_store(base + WEIGHT + 4 * thread, thread < valid ? weight : 0.0f);
        }
        logit = fetch_beta(chunk + 1);
        __syncthreads();
        float queries = 0.0f, keys = 0.0f;  // eight lanes a token
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            unsigned a[4], b[4];
            evo_shared_load(raw + Q_RAW + thread / 8 * 256 + i * 128 + thread % 8 * 16, a);
            evo_shared_load(raw + K_RAW + thread / 8 * 256 + i * 128 + thread % 8 * 16, b);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                queries = fmaf(low(a[j]), low(a[j]), fmaf(high(a[j]), high(a[j]), queries));
                keys = fmaf(low(b[j]), low(b[j]), fmaf(high(b[j]), high(b[j]), keys));
            }
        }
        queries = evo_sum<8>(queries);
        keys = evo_sum<8>(keys);
        if (thread % 8 == 0) {
            evo_shared_store(base + Q_NORM + thread / 2, scale * evo_rsqrt(queries + 1e-6f));
            evo_shared_store(base + K_NORM + thread / 2, evo_rsqrt(keys + 1e-6f));
        }
        float2 total = {0.0f, 0.0f};
#pragma unroll 4
        for (int i = 0; i < 8; ++i) {
            const unsigned word = evo_shared_load_word(raw + G_RAW + (half * 8 + i) * 256 + pair * 4);
            const bool there = half * 8 + i < valid;
            total.x += there ? gate_log2(fmaf(low(word), rate, bias.x), bound_log2) : 0.0f;
            total.y += there ? gate_log2(fmaf(high(word), rate, bias.y), bound_log2) : 0.0f;
            evo_shared_store_pair(base + SUMS + (half * 8 + i) * 512 + pair * 8, {total.x, total.y});
        }
    };

#pragma unroll
    for (int i = 0; i < STAGES; ++i) fetch(start + i);
    if (start < end) begin_chunk(start);
    __syncthreads();
#pragma unroll 1
    for (int chunk = start; chunk < end; ++chunk) {
        const unsigned raw = base + (chunk - start) % STAGES * RAW;
        const int valid = mine.tokens - chunk * 16;
        // --- factors
        {
            const float2 before = evo_shared_load_pair(base + SUMS + 7 * 512 + pair * 8), after = evo_shared_load_pair(base + SUMS + 15 * 512 + pair * 8);
            const float2 fade = {evo_exp2(before.x + after.x), evo_exp2(before.y + after.y)};
            if (half == 0) evo_shared_store_pair(base + DECAY + pair * 8, {fade.x, fade.y});
            unsigned norms[2][8];  // of the eight tokens' queries and keys
#pragma unroll
            for (int i = 0; i < 4; ++i)
                evo_shared_load(base + (i / 2 ? K_NORM : Q_NORM) + 32 * half + i % 2 * 16, *(unsigned(*)[4])(norms[i / 2] + i % 2 * 4));
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int token = half * 8 + i;
                const float2 sum = evo_shared_load_pair(base + SUMS + token * 512 + pair * 8);
                const float x = sum.x + (half ? before.x : 0.0f), y = sum.y + (half ? before.y : 0.0f);
                const float2 grown = {evo_exp2(-x), evo_exp2(-y)}, faded = {evo_exp2(x), evo_exp2(y)};
                const float query = __uint_as_float(norms[0][i]), key = __uint_as_float(norms[1][i]);
                const unsigned a = evo_shared_load_word(raw + Q_RAW + token * 256 + pair * 4);
                const unsigned b = evo_shared_load_word(raw + K_RAW + token * 256 + pair * 4);
                const float2 qh = {low(a) * query, high(a) * query}, kh = {low(b) * key, high(b) * key};
                const float2 inverse = {kh.x * grown.x, kh.y * grown.y};
                evo_shared_store_word(factor + KD + 16 * i, pack(kh.x * faded.x, kh.y * faded.y));
                evo_shared_store_word(factor + QD + 16 * i, pack(qh.x * faded.x, qh.y * faded.y));
                evo_shared_store_word(factor + KI + 16 * i, pack(inverse.x, inverse.y));
                evo_shared_store_word(factor + KR + 16 * i, pack(inverse.x * fade.x, inverse.y * fade.y));
            }
        }
        __syncthreads();
        // --- L and M: warps 0 and 1 make the halves of L, 2 and 3 those of M
        {
            float d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
            const unsigned left = base + (warp / 2 ? QD : KD) + a_rows;
            const unsigned right = base + KI + (lane >> 3) * GROUP + warp % 2 * 128 + (lane & 7) * 16;
#pragma unroll
            for (int step = 0; step < 8; step += 2) {
                unsigned x[4], y[4], b[4];
                evo_tiles_load(left + 2 * GROUP * step, x);
                evo_tiles_load(left + 2 * GROUP * step + 2 * GROUP, y);
                evo_tiles_load(right + 2 * GROUP * step, b);
                evo_mma<evo_bf16>(d, x, b[0], b[1]);
                evo_mma<evo_bf16>(e, y, b[2], b[3]);
            }
            const int i = lane / 4, j = 8 * (warp % 2) + column;
#pragma unroll
            for (int part = 0; part < 4; ++part) d[part] += e[part];
            if (warp < 2) {
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    const int r = i + (part & 2 ? 8 : 0), c = j + (part & 1);
                    const float weight = evo_shared_load(base + WEIGHT + 4 * r);
                    evo_shared_store(base + L_AT + 4 * (c * 16 + r), c < r ? d[part] * weight : 0.0f);
                }
            } else {
                const unsigned at = base + M_AT + warp % 2 * GROUP + i * 16 + lane % 4 * 4;
                evo_shared_store_word(at, pack(j <= i ? d[0] : 0.0f, j + 1 <= i ? d[1] : 0.0f));
                evo_shared_store_word(at + 128, pack(j <= i + 8 ? d[2] : 0.0f, j + 1 <= i + 8 ? d[3] : 0.0f));
            }
        }
        __syncthreads();
        // --- W = (I + L)^-1 diag(b), a lane a column, by forward substitution in fp32
        if (warp == 0) {
            float x[16];
#pragma unroll
            for (int i = 0; i < 16; ++i) x[i] = i == lane % 16 ? 1.0f : 0.0f;
#pragma unroll
            for (int m = 0; m < 15; ++m) {
#pragma unroll
                for (int group = (m + 1) / 4; group < 4; ++group) {
                    unsigned words[4];
                    evo_shared_load(base + L_AT + 64 * m + 16 * group, words);
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        if (4 * group + i > m) x[4 * group + i] = fmaf(-__uint_as_float(words[i]), x[m], x[4 * group + i]);
                }
            }
            const float weight = evo_shared_load(base + WEIGHT + lane % 16 * 4);
            if (lane < 16) {
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    evo_shared_store_half(base + W_AT + W_ROW * i + 2 * lane, evo_cast<evo_bf16>(x[i] * weight));
                }
            }
        }
        __syncthreads();
        // --- W kd over kd, and (W v)^T as the accumulators that S^T (W kd)^T is taken from
        float update[2][16];  // [0..7] U^T, [8..15] out^T: columns 8 j + 2 (lane % 4), rows as the state's
        {
            const unsigned w_at = base + W_AT + lane / 4 * W_ROW + lane % 4 * 4;
            const unsigned w[4] = {evo_shared_load_word(w_at), evo_shared_load_word(w_at + 8 * W_ROW), evo_shared_load_word(w_at + 16),
                                   evo_shared_load_word(w_at + 8 * W_ROW + 16)};
#pragma unroll
            for (int two = 0; two < 2; ++two) {
                const unsigned group = base + KD + (4 * warp + 2 * two) * GROUP;
                unsigned b[4];
                float d[8] = {0, 0, 0, 0, 0, 0, 0, 0};
                evo_tiles_load_transposed(group + (lane >> 3 & 1) * 128 + (lane >> 4) * GROUP + (lane & 7) * 16, b);
                evo_mma<evo_bf16>(d, w, b[0], b[1]);
                evo_mma<evo_bf16>(d + 4, w, b[2], b[3]);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const unsigned at = group + i * GROUP + lane / 4 * 16 + lane % 4 * 4;
                    evo_shared_store_word(at, pack(d[4 * i], d[4 * i + 1]));
                    evo_shared_store_word(at + 128, pack(d[4 * i + 2], d[4 * i + 3]));
                }
            }
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                unsigned a[4];
                evo_tiles_load_transposed(raw + V_RAW + v_rows + 128 * m, a);
#pragma unroll
                for (int i = 0; i < 16; ++i) update[m][i] = 0.0f;
                evo_mma<evo_bf16>(update[m], a, w[0], w[2]);
                evo_mma<evo_bf16>(update[m] + 4, a, w[1], w[3]);
            }
        }
        evo_copy_fence();
        __syncthreads();
        fetch(chunk + STAGES);  // nobody reads this chunk's raw rows any more

        // --- the chain
        unsigned a[2][8][4];
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            const int m = i / 32, step = i % 32 / 4, part = i % 4;
            a[m][step][part] = pack(state[m][8 * step + 2 * part], state[m][8 * step + 2 * part + 1]);
        }
        if (chunk == begin && begin > 0) {
            unsigned char* to = mark_of(marks, heads, blockIdx.y, blockIdx.x, 0);
#pragma unroll
            for (int i = 0; i < 16; ++i) EVO_STORE4("st.global.v4.b32", to + 2048 * i, a[i / 8][i % 8]);
        }
        evo_touch(update[0]);
        evo_touch(update[1]);
        evo_wgmma_fence();
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            evo_wgmma<16, -1>(update[0], a[0][step], evo_wgmma_operand(base + KD + 2 * GROUP * step, GROUP, 128));
            evo_wgmma<16, -1>(update[1], a[1][step], evo_wgmma_operand(base + KD + 2 * GROUP * step, GROUP, 128));
        }
        evo_wgmma_commit();
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            evo_wgmma<16>(update[0] + 8, a[0][step], evo_wgmma_operand(base + QD + 2 * GROUP * step, GROUP, 128), step > 0);
            evo_wgmma<16>(update[1] + 8, a[1][step], evo_wgmma_operand(base + QD + 2 * GROUP * step, GROUP, 128), step > 0);
        }
        evo_wgmma_commit();
        evo_wgmma_wait<2>();  // waits for nothing; tells ptxas that the state is not in flight
        evo_touch(state[0]);
        evo_touch(state[1]);
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const float2 fade = evo_shared_load_pair(base + DECAY + 4 * (8 * j + column));
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                state[m][4 * j] *= fade.x;
                state[m][4 * j + 1] *= fade.y;
                state[m][4 * j + 2] *= fade.x;
                state[m][4 * j + 3] *= fade.y;
            }
        }
        evo_wgmma_wait<1>();
        unsigned u[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int i = 0; i < 8; ++i) asm volatile("" : "+f"(update[m][i])::"memory");
#pragma unroll
            for (int i = 0; i < 4; ++i) u[m][i] = pack(update[m][2 * i], update[m][2 * i + 1]);
        }
        evo_touch(state[0]);
        evo_touch(state[1]);
        evo_wgmma_fence();
        evo_wgmma<16>(update[0] + 8, u[0], evo_wgmma_operand(base + M_AT, GROUP, 128));
        evo_wgmma<16>(update[1] + 8, u[1], evo_wgmma_operand(base + M_AT, GROUP, 128));
        evo_wgmma<128, 1, true>(state[0], u[0], evo_wgmma_operand(base + KR, 128, GROUP));
        evo_wgmma<128, 1, true>(state[1], u[1], evo_wgmma_operand(base + KR, 128, GROUP));
        evo_wgmma_commit();
        if (chunk + 1 < end) begin_chunk(chunk + 1);
        evo_wgmma_wait<0>();
        evo_touch(state[0]);
        evo_touch(state[1]);
        evo_touch(update[0]);
        evo_touch(update[1]);

        // --- out: transposed through shared memory, 16 bytes a thread
        if (chunk >= begin) {
#pragma unroll
            for (int m = 0; m < 2; ++m)
                evo_tiles_store_transposed(base + OUT + v_rows + 128 * m, {pack(update[m][8], update[m][9]), pack(update[m][10], update[m][11]), pack(update[m][12], update[m][13]), pack(update[m][14], update[m][15])});
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int token = i * 8 + thread / 16;
                unsigned words[4];
                evo_shared_load(base + OUT + token * GROUP + thread % 16 * 16, words);
                if (token < valid) EVO_STORE4(STORE, out + origin + (chunk * 16LL + token) * stride + thread % 16 * 16, words);
            }
        } else {
            __syncthreads();  // the raw rows and factors may be overwritten
        }
    }
    if (!again && end < chunks) {
        unsigned char* to = mark_of(marks, heads, blockIdx.y, blockIdx.x, 1);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const float* four = state[i / 8] + i % 8 * 8;
            const unsigned words[4] = {pack(four[0], four[1]), pack(four[2], four[3]), pack(four[4], four[5]), pack(four[6], four[7])};
            EVO_STORE4("st.global.v4.b32", to + 2048 * i, words);
        }
    }
    if (final && end == chunks) {
#pragma unroll
        for (int i = 0; i < 128; ++i) {
            const int m = i / 64, j = i % 64 / 4, at = (64 * m + row + (i & 2 ? 8 : 0)) * 128 + 8 * j + column + (i & 1);
            final[states + at] = evo_cast<DTYPE_final_state>(state[m][i % 64]);
        }
    }
}
