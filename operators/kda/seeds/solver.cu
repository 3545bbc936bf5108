/* evo
operator = "kda"
species  = "solver"
summary  = "warpgroups with roles: two hold S^T, 64 value channels each, and run the chain; two make the factors of later chunks, a chunk each in turn; in the fifth a warp a chunk makes the 16x16 matrices"
arch     = ["sm_90a"]
static   = ["K", "V"]

[genes]
SEGMENT = [128, 16, 24, 32, 47, 64, 86, 172, 187, 256, 512, 65536]  # chunks of a time segment
EARLY   = [2, 1, 3, 4, 8, 16]    # chunks that a segment starts before its own, from a state of zero
SIGMOID = [0, 1]                 # 0: 1 / (1 + 2^-x), 1: tanh.approx, which is off by 2^-11 where gates are weak
PACKED  = [0, 2, 1]              # factors: 0 rounded once, 2 as bf16 products of k and a rounded norm times 2^G, 1 norms rounded too
STORE   = ["st.global.v4.b32", "st.global.cs.v4.b32", "st.global.L1::no_allocate.v4.b32", "st.global.cg.v4.b32"]

[constraints]
all = ["K == 128", "V == 128"]

[let]
SEGMENTS = "B * T // (16 * SEGMENT) + N"
SLOT     = "8448 + 4352 + 544 + 544 + 512 + 4352 + 64"
OWN      = "2 * SLOT + 3 * 4352 + 2 * 3 * 4352 + 1152"

[scratch]
marks = { dtype = "bf16", shape = ["SEGMENTS", "H", "2", "V", "K"] }  # of every segment's first and last state

[[launch]]
kernel = "kda_solver"
grid   = ["H", "SEGMENTS"]
block  = [640]
shared = "2 * OWN + 6144 + 96"
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?", "marks",
          "i32:H", "i32:T", "i32:N", "i32:0", "scale", "lower_bound"]

[[launch]]
kernel = "kda_solver"
when   = "16 * SEGMENT < T"
grid   = ["H", "N"]
block  = [640]
shared = "2 * OWN + 6144 + 96"
pdl    = true
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?", "marks",
          "i32:H", "i32:T", "i32:N", "i32:1", "scale", "lower_bound"]
*/
#include "evo.h"
#include "evo_mma.h"

// One chunk is 16 tokens. With G the running sum of log2 decays inside it and C its last row:
//   kd = kh 2^G    qd = scale qh 2^G    ki = kh 2^-G    kr = kh 2^(C - G)                        [16 tokens, 128]
//   L = strict_lower(b kd ki^T)    M = lower(qd ki^T)    W = (I + L)^-1 diag(b)                  [16, 16]
//   R^T = v^T - S^T kd^T    U^T = R^T W^T    out^T = S^T qd^T + U^T M^T    S^T <- S^T 2^C + U^T kr
// In a slot of a ring the preparing warpgroups hand over -kd above qd (one operand of 32 rows), ki, kr, 2^C, b and, beside
// the slot, v; READY opens. A warp of the solving warpgroup adds M and W; FULL opens. The chain reads all but ki and b
// and gives the slot back; EMPTY opens.

constexpr int PREP = 2;             // warpgroups that make factors; shared memory has no room for a third
constexpr int GROUP = 272;          // bytes from 8 channels of 16 tokens to the next: 2 core matrices and a pad
constexpr int PAIR = 528;           // the same of the 32 rows of -kd and qd
constexpr int FACTOR = 16 * GROUP;  // a [16, 128] operand of wgmma; also 16 raw rows, GROUP bytes apart
constexpr int KQ = 0, KR = KQ + 16 * PAIR, M_AT = KR + FACTOR, W_AT = M_AT + 544, DECAY = W_AT + 544;
constexpr int KI = DECAY + 512, WEIGHT = KI + FACTOR, SLOT = WEIGHT + 64;
constexpr int V_RAW = 2 * SLOT, RAW = V_RAW + 3 * FACTOR, SUMS = RAW + 6 * FACTOR, Q_NORM = SUMS + 1024;
constexpr int K_NORM = Q_NORM + 64, OWN = K_NORM + 64;  // of a preparing warpgroup
constexpr int OUT = PREP * OWN, FULL = OUT + 8 * 768, EMPTY = FULL + 16 * PREP;
constexpr int READY = EMPTY + 16 * PREP;  // barriers of two slots a preparing warpgroup
constexpr int OUT_ROW = 48;  // bytes: 16 value channels of a token and a pad
constexpr int STATE_REGISTERS = 144, PREP_REGISTERS = 72, SOLVE_REGISTERS = 48;  // of 96 a thread at the launch
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
constexpr int MARK = 128 * 128 * 2;        // bytes of a state in bf16, as the 256 threads of the chain hold it

// A state's place; `which`: 0 what a segment started from, 1 what it ended with.
EVO_DEVICE unsigned char* mark_of(unsigned char* marks, int heads, int place, int head, int which) {
    return marks + (((long long)place * heads + head) * 2 + which) * MARK + threadIdx.x * 16;
}

// True where one of the sequence's segments must not be believed; `place` is its first segment's.
EVO_DEVICE bool mismatch(unsigned char* marks, int heads, int head, int place, int segments) {
    bool bad = false;
    if (threadIdx.x < 256)
        for (int border = 1; border < segments; ++border) {
            const unsigned char* one = mark_of(marks, heads, place + border - 1, head, 1);
            const unsigned char* two = mark_of(marks, heads, place + border, head, 0);
            float gap = 0.0f, norm = 0.0f;
#pragma unroll 4
            for (int i = 0; i < 8; ++i) {
                unsigned a[4], b[4];
                EVO_LOAD4("ld.global.v4.b32", a, one + 4096 * i);
                EVO_LOAD4("ld.global.v4.b32", b, two + 4096 * i);
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

struct Job {
    const unsigned char *q, *k, *v, *g;  // of the sequence's first token and the head
    const evo_bf16* beta;
    unsigned char *out, *marks;  // marks: of this CTA's segment, what it starts from; MARK bytes on, what it ends with
    int tokens, start, begin, end, stride, heads;
};

// --- a preparing warpgroup: chunks start + turn, start + turn + PREP, ...
EVO_DEVICE void prepare(const Job& job, unsigned shared, int turn, float rate, float bound_log2, float scale,
                        const float* dt_bias) {
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const unsigned base = shared + turn * OWN, ready = shared + READY + 16 * turn, empty = shared + EMPTY + 16 * turn;
    const int pair = thread % 64, half = thread / 64;  // two channels, eight tokens of a chunk
    const float2 bias = {rate * dt_bias[2 * pair], rate * dt_bias[2 * pair + 1]};
    const unsigned factor = base + pair / 4 * GROUP + half * 128 + pair % 4 * 4;
    const unsigned stacked = base + pair / 4 * PAIR + half * 128 + pair % 4 * 4;
    const unsigned words_at = half * 8 * GROUP + pair * 4;

    // Raw rows of a chunk: 16 x 256 bytes of each tensor, zero past the end.
    const auto fetch = [&](int chunk, int turns) {
        if (chunk < job.end) {
            const unsigned raw = base + RAW + turns % 2 * 3 * FACTOR, values = base + V_RAW + turns % 3 * FACTOR;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = i * 8 + thread / 16, piece = thread % 16 * 16;
                const bool there = chunk * 16 + row < job.tokens;
                const long long from = (there ? (chunk * 16LL + row) * job.stride : 0) + piece;
                const unsigned at = row * GROUP + piece;
#pragma unroll
                for (int which = 0; which < 4; ++which) {
                    const unsigned char* tensor = which == 0 ? job.q : which == 1 ? job.k : which == 2 ? job.g : job.v;
                    evo_async_load((which == 3 ? values : raw + which * FACTOR) + at, tensor + from, there);
                }
            }
        }
        evo_async_commit();
    };
    const auto fetch_beta = [&](int chunk) {
        const int token = chunk * 16 + thread;
        return thread < 16 && chunk < job.end && token < job.tokens ? job.beta[(long long)token * job.heads] : evo_bf16{};
    };

    fetch(job.start + turn, 0);
    evo_bf16 logit = fetch_beta(job.start + turn);
    int turns = 0;
#pragma unroll 1
    for (int chunk = job.start + turn; chunk < job.end; chunk += PREP, ++turns) {
        const unsigned slot = turns % 2 * SLOT, raw = base + RAW + turns % 2 * 3 * FACTOR;
        const int valid = job.tokens - chunk * 16;  // tokens of this chunk, if below 16
        const int role = (warp + turns) % 4;        // the warps of a warpgroup take turns at the norms
        if (turns >= 2) evo_barrier_wait(empty + turns % 2 * 8, (turns / 2 - 1) % 2);
        evo_async_wait<0>();
        if (valid < 16) {  // a gate of minus infinity decays nothing
            const unsigned nothing[4] = {0xff80ff80u, 0xff80ff80u, 0xff80ff80u, 0xff80ff80u};
            for (int row = thread / 16; row < 16; row += 8)
                if (row >= valid) evo_shared_store<4>(raw + 2 * FACTOR + row * GROUP + thread % 16 * 16, nothing);
        }
        evo_sync(1 + turn, 128);
        fetch(chunk + PREP, turns + 1);  // nobody reads the rows of the chunk before any more
        if (thread < 16) {
            const float weight = evo_reciprocal(1.0f + evo_exp2(-LOG2E * evo_float(logit)));
            evo_shared_store(base + slot + WEIGHT + 4 * thread, thread < valid ? weight : 0.0f);
        }
        logit = fetch_beta(chunk + PREP);
        // --- norms: the diagonals of q q^T and k k^T; a warp each
        if (role >= 2) {
            float d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
            const unsigned rows = raw + (role - 2) * FACTOR + lane % 16 * GROUP + (lane >> 4) * 16;
#pragma unroll
            for (int step = 0; step < 8; ++step) {
                unsigned a[4];
                evo_tiles_load(rows + 32 * step, a);
                evo_mma<evo_bf16>(d, a, a[0], a[2]);
                evo_mma<evo_bf16>(e, a, a[1], a[3]);
            }
            const int token = lane / 4;
            if (lane % 4 == token / 2) {
                const float first = token % 2 ? d[1] : d[0], second = token % 2 ? e[3] : e[2];
                const float factor = role == 2 ? scale : 1.0f;
                const unsigned at = base + (role == 2 ? Q_NORM : K_NORM) + 4 * token;
                evo_shared_store(at, factor * evo_rsqrt(first + 1e-6f));
                evo_shared_store(at + 32, factor * evo_rsqrt(second + 1e-6f));
            }
        }
        // --- gates
        float2 running[8], total = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const unsigned word = evo_shared_load_word(raw + 2 * FACTOR + words_at + i * GROUP);
            total.x += gate_log2(fmaf(low(word), rate, bias.x), bound_log2);
            total.y += gate_log2(fmaf(high(word), rate, bias.y), bound_log2);
            running[i] = total;
        }
        evo_shared_store_pair(base + SUMS + half * 512 + pair * 8, {total.x, total.y});
        evo_sync(1 + turn, 128);
        // --- factors
        {
            float2 before = evo_shared_load_pair(base + SUMS + pair * 8);
            const float2 after = evo_shared_load_pair(base + SUMS + 512 + pair * 8);
            const float2 fade = {evo_exp2(before.x + after.x), evo_exp2(before.y + after.y)};
            if (half == 0) {
                evo_shared_store_pair(base + slot + DECAY + pair * 8, {fade.x, fade.y});
                before = {0.0f, 0.0f};
            }
            unsigned norms[2][8];  // of the eight tokens' queries and keys
            evo_shared_load(base + Q_NORM + 32 * half, norms[0]);
            evo_shared_load(base + K_NORM + 32 * half, norms[1]);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float x = running[i].x + before.x, y = running[i].y + before.y;
                const float2 grown = {evo_exp2(-x), evo_exp2(-y)}, faded = {evo_exp2(x), evo_exp2(y)};
                const float query = __uint_as_float(norms[0][i]), key = __uint_as_float(norms[1][i]);
                const unsigned a = evo_shared_load_word(raw + words_at + i * GROUP), b = evo_shared_load_word(raw + FACTOR + words_at + i * GROUP);
                unsigned made[4];
                if (PACKED == 2) {
                    made[0] = evo_mul2<evo_bf16>(b, pack(faded.x * -key, faded.y * -key));
                    made[1] = evo_mul2<evo_bf16>(a, pack(faded.x * query, faded.y * query));
                    const float2 inverse = {grown.x * key, grown.y * key};
                    made[2] = evo_mul2<evo_bf16>(b, pack(inverse.x, inverse.y));
                    made[3] = evo_mul2<evo_bf16>(b, pack(inverse.x * fade.x, inverse.y * fade.y));
                } else if (PACKED) {
                    const unsigned kh = evo_mul2<evo_bf16>(b, pack(key, key)), risen = pack(faded.x, faded.y);
                    made[0] = evo_mul2<evo_bf16>(kh, risen) ^ 0x80008000u;
                    made[1] = evo_mul2<evo_bf16>(evo_mul2<evo_bf16>(a, pack(query, query)), risen);
                    made[2] = evo_mul2<evo_bf16>(kh, pack(grown.x, grown.y));
                    made[3] = evo_mul2<evo_bf16>(made[2], pack(fade.x, fade.y));
                } else {
                    const float2 qh = {low(a) * query, high(a) * query}, kh = {low(b) * key, high(b) * key};
                    const float2 inverse = {kh.x * grown.x, kh.y * grown.y};
                    made[0] = pack(kh.x * -faded.x, kh.y * -faded.y);
                    made[1] = pack(qh.x * faded.x, qh.y * faded.y);
                    made[2] = pack(inverse.x, inverse.y);
                    made[3] = pack(inverse.x * fade.x, inverse.y * fade.y);
                }
                evo_shared_store_word(stacked + slot + KQ + 16 * i, made[0]);
                evo_shared_store_word(stacked + slot + KQ + 256 + 16 * i, made[1]);
                evo_shared_store_word(factor + slot + KI + 16 * i, made[2]);
                evo_shared_store_word(factor + slot + KR + 16 * i, made[3]);
            }
        }
        evo_copy_fence();
        evo_barrier_arrive(ready + turns % 2 * 8);
    }
    evo_async_wait<0>();
}

// --- the solving warpgroup: a warp a chunk makes M, -L and W = (I + L)^-1 diag(b)
EVO_DEVICE void solve(const Job& job, unsigned shared) {
    const int lane = threadIdx.x % 32, i = lane / 4, column = 2 * (lane % 4);
#pragma unroll 1
    for (int n = threadIdx.x / 32 % 4; n < job.end - job.start; n += 4) {
        const int turn = n % PREP, turns = n / PREP;
        const unsigned at_slot = shared + turn * OWN + turns % 2 * SLOT, bar = 16 * turn + turns % 2 * 8;
        evo_barrier_wait(shared + READY + bar, turns / 2 % 2);
        float d[8] = {0, 0, 0, 0, 0, 0, 0, 0}, e[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const unsigned left = at_slot + KQ + (lane >> 4) * PAIR + (lane >> 3 & 1) * 128 + (lane & 7) * 16;
        const unsigned right = at_slot + KI + (lane >> 3 & 1) * GROUP + (lane >> 4) * 128 + (lane & 7) * 16;
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            unsigned x[4], y[4], b[4];
            evo_tiles_load(left + 2 * PAIR * step, x);
            evo_tiles_load(left + 2 * PAIR * step + 256, y);
            evo_tiles_load(right + 2 * GROUP * step, b);
            evo_mma<evo_bf16>(d, x, b[0], b[1]);
            evo_mma<evo_bf16>(d + 4, x, b[2], b[3]);
            evo_mma<evo_bf16>(e, y, b[0], b[1]);
            evo_mma<evo_bf16>(e + 4, y, b[2], b[3]);
        }
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const unsigned at = at_slot + M_AT + part * GROUP + i * 16 + lane % 4 * 4;
            const int j = 8 * part + column;
            evo_shared_store_word(at, pack(j <= i ? e[4 * part] : 0.0f, j + 1 <= i ? e[4 * part + 1] : 0.0f));
            evo_shared_store_word(at + 128, pack(j <= i + 8 ? e[4 * part + 2] : 0.0f, j + 1 <= i + 8 ? e[4 * part + 3] : 0.0f));
        }
        const float weights[2] = {evo_shared_load(at_slot + WEIGHT + 4 * i), evo_shared_load(at_slot + WEIGHT + 4 * i + 32)};
        // W = (I - L)(I + L^2)(I + L^4)(I + L^8) diag(b), as L^16 = 0: fp16 operands, fp32 sums, all in registers
        float x[8], p[8];
#pragma unroll
        for (int part = 0; part < 8; ++part) {
            const int r = i + (part & 2 ? 8 : 0), c = part / 4 * 8 + column + (part & 1);
            x[part] = c == r ? 1.0f : c < r ? d[part] * weights[part / 2 % 2] : 0.0f;  // d is -L without b
            p[part] = c < r ? -x[part] : 0.0f;
        }
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            unsigned power[4], b[4];
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                power[part] = evo_pack2<evo_fp16>(p[2 * part], p[2 * part + 1]);
                b[part] = evo_tile_transpose(power[part]);
                p[2 * part] = p[2 * part + 1] = 0.0f;
            }
            if (step > 0) {
                unsigned a[4];
#pragma unroll
                for (int part = 0; part < 4; ++part) a[part] = evo_pack2<evo_fp16>(x[2 * part], x[2 * part + 1]);
                evo_mma<evo_fp16>(x, a, b[0], b[1]);
                evo_mma<evo_fp16>(x + 4, a, b[2], b[3]);
            }
            if (step < 3) {
                evo_mma<evo_fp16>(p, power, b[0], b[1]);
                evo_mma<evo_fp16>(p + 4, power, b[2], b[3]);
            }
        }
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const float2 weight = evo_shared_load_pair(at_slot + WEIGHT + 4 * (8 * part + column));
            const unsigned at = at_slot + W_AT + part * GROUP + i * 16 + lane % 4 * 4;
            evo_shared_store_word(at, pack(x[4 * part] * weight.x, x[4 * part + 1] * weight.y));
            evo_shared_store_word(at + 128, pack(x[4 * part + 2] * weight.x, x[4 * part + 3] * weight.y));
        }
        evo_copy_fence();
        evo_barrier_arrive(shared + FULL + bar);
    }
}

// --- a warpgroup of the chain: value channels 64 m + 16 warp + lane / 4 (+ 8), columns of S^T 8 j + 2 (lane % 4) (+ 1)
EVO_DEVICE void run_chain(const Job& job, unsigned shared, int m, float (&state)[64]) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, column = 2 * (lane % 4);
    const unsigned turned_rows = (lane & 7) + (lane >> 1 & 8), eighth = lane >> 3 & 1;
    const unsigned v_rows = turned_rows * GROUP + 2 * (64 * m + 16 * warp + 8 * eighth);
    const unsigned staged = shared + OUT + (4 * m + warp) * 768;
    unsigned char* const out = job.out + 128 * m + 32 * warp + lane % 2 * 16;
    unsigned pending[4] = {0, 0, 0, 0};  // out^T of the chunk before
    const auto store = [&](int chunk) {
        if (chunk < job.begin) return;
        const int token = chunk * 16 + lane / 2;
        evo_tiles_store_transposed(staged + turned_rows * OUT_ROW + 16 * eighth, pending);
        __syncwarp();
        unsigned words[4];
        evo_shared_load(staged + lane / 2 * OUT_ROW + lane % 2 * 16, words);
        if (token < job.tokens) EVO_STORE4(STORE, out + (long long)token * job.stride, words);
        __syncwarp();
    };
    int turn = 0, turns = 0;
#pragma unroll 1
    for (int chunk = job.start; chunk < job.end; ++chunk) {
        const unsigned own = shared + turn * OWN, slot = own + turns % 2 * SLOT;
        unsigned a[8][4];
#pragma unroll
        for (int i = 0; i < 32; ++i) a[i / 4][i % 4] = pack(state[2 * i], state[2 * i + 1]);
        if (chunk == job.begin && chunk > 0) {
#pragma unroll
            for (int i = 0; i < 8; ++i) EVO_STORE4("st.global.v4.b32", job.marks + 4096 * i, a[i]);
        }
        evo_barrier_wait(shared + FULL + 16 * turn + turns % 2 * 8, turns / 2 % 2);
        float sums[16];  // [0..7] R^T, [8..15] S^T qd^T: columns 8 j + 2 (lane % 4)
        {
            unsigned words[4];
            evo_tiles_load_transposed(own + V_RAW + turns % 3 * FACTOR + v_rows, words);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sums[2 * i] = low(words[i]);
                sums[2 * i + 1] = high(words[i]);
                sums[8 + 2 * i] = sums[9 + 2 * i] = 0.0f;
            }
        }
        evo_touch(sums);
        evo_wgmma_fence();
#pragma unroll
        for (int step = 0; step < 8; ++step) evo_wgmma<32>(sums, a[step], evo_wgmma_operand(slot + KQ + 2 * PAIR * step, PAIR, 128));
        evo_wgmma_commit();
        evo_wgmma_wait<1>();  // waits for nothing; tells ptxas that the state is not in flight
        evo_touch(state);
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const float2 fade = evo_shared_load_pair(slot + DECAY + 4 * (8 * j + column));
            state[4 * j] *= fade.x;
            state[4 * j + 1] *= fade.y;
            state[4 * j + 2] *= fade.x;
            state[4 * j + 3] *= fade.y;
        }
        if (chunk > job.start) store(chunk - 1);
        evo_wgmma_wait<0>();
        evo_touch(sums);
        unsigned r[4], u[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) r[i] = pack(sums[2 * i], sums[2 * i + 1]);
        float pseudo[8], inner[8];
        evo_wgmma_fence();
        evo_wgmma<16>(pseudo, r, evo_wgmma_operand(slot + W_AT, GROUP, 128), 0);
        evo_wgmma_commit();
        evo_wgmma_wait<0>();
        evo_touch(pseudo);
#pragma unroll
        for (int i = 0; i < 4; ++i) u[i] = pack(pseudo[2 * i], pseudo[2 * i + 1]);
        evo_touch(state);
        evo_wgmma_fence();
        evo_wgmma<128, 1, true>(state, u, evo_wgmma_operand(slot + KR, 128, GROUP));
        evo_wgmma<16>(inner, u, evo_wgmma_operand(slot + M_AT, GROUP, 128), 0);
        evo_wgmma_commit();
        evo_wgmma_wait<0>();
        evo_touch(state);
        evo_touch(inner);
        __syncwarp();
        if (lane == 0) evo_barrier_arrive(shared + EMPTY + 16 * turn + turns % 2 * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) pending[i] = pack(sums[8 + 2 * i] + inner[2 * i], sums[9 + 2 * i] + inner[2 * i + 1]);
        if (++turn == PREP) {
            turn = 0;
            ++turns;
        }
    }
    if (job.start < job.end) store(job.end - 1);
}

extern "C" __global__ void __launch_bounds__(128 * (3 + PREP), 1)
    kda_solver(const unsigned char* q, const unsigned char* k, const unsigned char* v, const unsigned char* g,
               const evo_bf16* beta, const float* a_log, const float* dt_bias, const long long* cu_seqlens,
               const DTYPE_initial_state* initial, unsigned char* out, DTYPE_final_state* final, unsigned char* marks,
               int heads, int length, int sequences, int again, float scale, float lower_bound) {
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32, head = blockIdx.x;
    int place = blockIdx.y;  // of this CTA's segment
    if (again) {  // of the first segment of this CTA's sequence
        place = 0;
        for (int n = 0; n < (int)blockIdx.y; ++n) place += segments_of(cu_seqlens ? (int)(cu_seqlens[n + 1] - cu_seqlens[n]) : length);
    }
    const Sequence mine = find(cu_seqlens, length, sequences, place);
    if (mine.number < 0) return;
    if (again) {
        evo_pdl_wait();
        if (!mismatch(marks, heads, head, place, segments_of(mine.tokens))) return;
    } else {
        evo_pdl_launch();
    }
    const unsigned base = evo_shared(shared_memory);
    const int stride = heads * 256;  // bytes from token to token
    const long long origin = mine.first * stride + head * 256;
    const int chunks = (mine.tokens + 15) / 16;
    const int begin = mine.segment * SEGMENT, end = again ? chunks : min(chunks, begin + SEGMENT), start = max(0, begin - EARLY);
    const float rate = evo_exp2(a_log[head] * LOG2E) * LOG2E, bound_log2 = lower_bound * LOG2E;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * PREP; ++i) {
            evo_barrier_init(base + READY + 8 * i, 128);
            evo_barrier_init(base + FULL + 8 * i, 32);
            evo_barrier_init(base + EMPTY + 8 * i, 8);
        }
        evo_barrier_fence();
    }
    __syncthreads();
    const Job job = {q + origin, k + origin, v + origin, g + origin, beta + mine.first * heads + head, out + origin,
                     mark_of(marks, heads, blockIdx.y, head, 0), mine.tokens, start, begin, end, stride, heads};
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SOLVE_REGISTERS));
        solve(job, base);
    } else if (group > 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PREP_REGISTERS));
        prepare(job, base, group - 3, rate, bound_log2, scale, dt_bias + head * 128);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(STATE_REGISTERS));
        float state[64];
        const long long states = ((long long)mine.number * heads + head) * 128 * 128;
        const int first = (64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4) * 128 + 2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            const int at = first + (i & 2 ? 8 * 128 : 0) + i / 4 * 8 + (i & 1);
            state[i] = initial && start == 0 ? evo_float(initial[states + at]) : 0.0f;
        }
        run_chain(job, base, group, state);
        if (!again && end < chunks) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float* four = state + 8 * i;
                const unsigned words[4] = {pack(four[0], four[1]), pack(four[2], four[3]), pack(four[4], four[5]), pack(four[6], four[7])};
                EVO_STORE4("st.global.v4.b32", job.marks + MARK + 4096 * i, words);
            }
        }
        if (final && end == chunks) {
#pragma unroll
            for (int i = 0; i < 64; ++i) {
                const int at = first + (i & 2 ? 8 * 128 : 0) + i / 4 * 8 + (i & 1);
                final[states + at] = evo_cast<DTYPE_final_state>(state[i]);
            }
        }
    }
}
