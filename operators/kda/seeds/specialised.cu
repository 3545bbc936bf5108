/* evo
operator = "kda"
species  = "specialised"
summary  = "warpgroups with roles: two hold S^T, 64 value channels each, and run the chain; the others make the factors of later chunks, a chunk each in turn"
arch     = ["sm_90a"]
static   = ["K", "V"]

[genes]
SEGMENT = [128, 16, 24, 32, 47, 64, 86, 172, 187, 256, 512, 65536]  # chunks of a time segment
EARLY   = [2, 1, 3, 4, 8, 16]    # chunks that a segment starts before its own, from a state of zero
PREP    = [2, 3]                 # warpgroups that make factors
SIGMOID = [0, 1]                 # 0: 1 / (1 + 2^-x), 1: tanh.approx, which is off by 2^-11 where gates are weak
PACKED  = [0, 2, 1]              # factors: 0 rounded once, 2 as bf16 products of k and a rounded norm times 2^G, 1 norms rounded too
STORE   = ["st.global.v4.b32", "st.global.cs.v4.b32", "st.global.L1::no_allocate.v4.b32", "st.global.cg.v4.b32"]

[constraints]
all = ["K == 128", "V == 128"]

[let]
SEGMENTS = "B * T // (16 * SEGMENT) + N"
SLOT     = "8448 + 4352 + 544 + 544 + 512"
OWN      = "2 * SLOT + 3 * 4352 + 2 * 3 * 4352 + 4352 + 2240"

[scratch]
marks = { dtype = "bf16", shape = ["SEGMENTS", "H", "2", "V", "K"] }  # of every segment's first and last state

[[launch]]
kernel = "kda_specialised"
grid   = ["H", "SEGMENTS"]
block  = ["128 * (2 + PREP)"]
shared = "PREP * OWN + 6144 + 128"
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?", "marks",
          "i32:H", "i32:T", "i32:N", "i32:0", "scale", "lower_bound"]

[[launch]]
kernel = "kda_specialised"
when   = "16 * SEGMENT < T"
grid   = ["H", "N"]
block  = ["128 * (2 + PREP)"]
shared = "PREP * OWN + 6144 + 128"
pdl    = true
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?", "marks",
          "i32:H", "i32:T", "i32:N", "i32:1", "scale", "lower_bound"]
*/
#include "evo.h"

// One chunk is 16 tokens. With G the running sum of log2 decays inside it and C its last row:
//   kd = kh 2^G    qd = scale qh 2^G    ki = kh 2^-G    kr = kh 2^(C - G)                        [16 tokens, 128]
//   L = strict_lower(b kd ki^T)    M = lower(qd ki^T)    W = (I + L)^-1 diag(b)                  [16, 16]
//   R^T = v^T - S^T kd^T    U^T = R^T W^T    out^T = S^T qd^T + U^T M^T    S^T <- S^T 2^C + U^T kr
// The preparing warpgroups hand over -kd above qd (one operand of 32 rows), kr, M, W, 2^C and v in a slot of a ring.

constexpr int GROUP = 272;          // bytes from 8 channels of 16 tokens to the next: 2 core matrices and a pad
constexpr int PAIR = 528;           // the same of the 32 rows of -kd and qd
constexpr int FACTOR = 16 * GROUP;  // a [16, 128] operand of wgmma; also 16 raw rows, GROUP bytes apart
constexpr int KQ = 0, KR = KQ + 16 * PAIR, M_AT = KR + FACTOR, W_AT = M_AT + 544, DECAY = W_AT + 544, SLOT = DECAY + 512;
constexpr int V_RAW = 2 * SLOT, RAW = V_RAW + 3 * FACTOR, KI = RAW + 6 * FACTOR, SUMS = KI + FACTOR, Q_NORM = SUMS + 1024;
constexpr int K_NORM = Q_NORM + 64, WEIGHT = K_NORM + 64, L_AT = WEIGHT + 64, OWN = L_AT + 1024;  // of a warpgroup
constexpr int OUT = PREP * OWN, FULL = OUT + 8 * 768, EMPTY = FULL + 16 * PREP;  // barriers: two slots a warpgroup
constexpr int OUT_ROW = 48;  // bytes: 16 value channels of a token and a pad
constexpr int STATE_REGISTERS = PREP == 2 ? 152 : 144, PREP_REGISTERS = PREP == 2 ? 104 : 64;
constexpr float LOG2E = 1.4426950408889634f;

extern __shared__ __align__(128) unsigned char shared_memory[];

EVO_DEVICE float exp2_fast(float x) { asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }
EVO_DEVICE float reciprocal(float x) { asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }
EVO_DEVICE float root_inverse(float x) { asm("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }
EVO_DEVICE float low(unsigned word) { return __uint_as_float(word << 16); }
EVO_DEVICE float high(unsigned word) { return __uint_as_float(word & 0xffff0000u); }
EVO_DEVICE unsigned pack(float a, float b) { return evo_pack2<evo_bf16>(a, b); }

EVO_DEVICE unsigned times(unsigned a, unsigned b) {  // two bf16 products
    unsigned product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

EVO_DEVICE unsigned load_word(unsigned at) {
    unsigned word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
    return word;
}
EVO_DEVICE float2 load_pair(unsigned at) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(at) : "memory");
    return pair;
}
EVO_DEVICE void load_words(unsigned (&words)[4], unsigned at) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(at) : "memory");
}
EVO_DEVICE void store_word(unsigned at, unsigned word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(word) : "memory");
}
EVO_DEVICE void store_pair(unsigned at, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(a), "f"(b) : "memory");
}

// Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
EVO_DEVICE void load_matrices(unsigned (&m)[4], unsigned at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at) : "memory");
}
EVO_DEVICE void load_transposed(unsigned (&m)[4], unsigned at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at) : "memory");
}
EVO_DEVICE void store_transposed(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b),
                 "r"(c), "r"(d) : "memory");
}

// d [16, 8] += a [16, 16] b [16, 8] by one warp.
EVO_DEVICE void product_warp(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same in fp16; and an 8x8 matrix of 16-bit elements transposed within a warp.
EVO_DEVICE void product_half(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
EVO_DEVICE unsigned turned(unsigned matrix) {
    unsigned result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(matrix));
    return result;
}

// d [64, N] <- a [64, 16] b (NEW), or more of it, by a warpgroup, in flight until waited for.
EVO_DEVICE void product16_new(float* d, const unsigned (&a)[4], unsigned long long b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, {%8, %9, %10, %11}, %12, 0, 1, 1, 0;"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
EVO_DEVICE void product32(float* d, const unsigned (&a)[4], unsigned long long b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
EVO_DEVICE void product128(float* d, const unsigned (&a)[4], unsigned long long b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
          "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
          "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
          "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
EVO_DEVICE void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
EVO_DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> EVO_DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
EVO_DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Tells the compiler that these registers may have changed: they are not moved across a wait.
template <int COUNT> EVO_DEVICE void touch(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// An operand without swizzle: byte offsets between core matrices along K and along the other axis.
EVO_DEVICE unsigned long long operand(unsigned at, int along_k, int across) {
    return (unsigned long long)(across >> 4) << 32 | ((at >> 4) + (along_k >> 4 << 16));
}

// log2 of a token's decay in one channel, from rate * (g + bias) * log2(e).
EVO_DEVICE float gate_log2(float x, float bound_log2) {
    if (SIGMOID) {
        float t = 0.34657359f * x;  // half of x, natural
        asm("tanh.approx.f32 %0, %0;" : "+f"(t));
        return bound_log2 * fmaf(0.5f, t, 0.5f);
    }
    return bound_log2 * reciprocal(1.0f + exp2_fast(-x));
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
    const unsigned base = shared + turn * OWN, full = shared + FULL + 16 * turn, empty = shared + EMPTY + 16 * turn;
    const int pair = thread % 64, half = thread / 64;  // two channels, eight tokens of a chunk
    const float2 bias = {rate * dt_bias[2 * pair], rate * dt_bias[2 * pair + 1]};
    const unsigned factor = base + pair / 4 * GROUP + half * 128 + pair % 4 * 4;
    const unsigned stacked = base + pair / 4 * PAIR + half * 128 + pair % 4 * 4;
    const unsigned words_at = half * 8 * GROUP + pair * 4, column = 2 * (lane % 4);

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
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                                     (which == 3 ? values : raw + which * FACTOR) + at),
                                 "l"(tensor + from), "r"(there ? 16 : 0)
                                 : "memory");
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
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
        const int role = (warp + turns) % 4;        // the warps of a warpgroup take turns at what one warp does
        if (turns >= 2) evo_barrier_wait(empty + turns % 2 * 8, (turns / 2 - 1) % 2);
        fetch(chunk + PREP, turns + 1);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        if (valid < 16) {  // a gate of minus infinity decays nothing
            const unsigned nothing[4] = {0xff80ff80u, 0xff80ff80u, 0xff80ff80u, 0xff80ff80u};
            for (int row = thread / 16; row < 16; row += 8)
                if (row >= valid) evo_shared_store<4>(raw + 2 * FACTOR + row * GROUP + thread % 16 * 16, nothing);
        }
        evo_sync(1 + turn, 128);
        if (thread < 16) {
            const float weight = reciprocal(1.0f + exp2_fast(-LOG2E * evo_float(logit)));
            evo_shared_store(base + WEIGHT + 4 * thread, thread < valid ? weight : 0.0f);
        }
        logit = fetch_beta(chunk + PREP);
        // --- norms: the diagonals of q q^T and k k^T; a warp each
        if (role >= 2) {
            float d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
            const unsigned rows = raw + (role - 2) * FACTOR + ((lane & 7) + (lane & 8)) * GROUP + (lane >> 4) * 16;
#pragma unroll
            for (int step = 0; step < 8; ++step) {
                unsigned a[4];
                load_matrices(a, rows + 32 * step);
                product_warp(d, a, a[0], a[2]);
                product_warp(e, a, a[1], a[3]);
            }
            const int token = lane / 4;
            if (lane % 4 == token / 2) {
                const float first = token % 2 ? d[1] : d[0], second = token % 2 ? e[3] : e[2];
                const float factor = role == 2 ? scale : 1.0f;
                const unsigned at = base + (role == 2 ? Q_NORM : K_NORM) + 4 * token;
                evo_shared_store(at, factor * root_inverse(first + 1e-6f));
                evo_shared_store(at + 32, factor * root_inverse(second + 1e-6f));
            }
        }
        // --- gates
        float2 running[8], total = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const unsigned word = load_word(raw + 2 * FACTOR + words_at + i * GROUP);
            total.x += gate_log2(fmaf(low(word), rate, bias.x), bound_log2);
            total.y += gate_log2(fmaf(high(word), rate, bias.y), bound_log2);
            running[i] = total;
        }
        store_pair(base + SUMS + half * 512 + pair * 8, total.x, total.y);
        evo_sync(1 + turn, 128);
        // --- factors
        {
            float2 before = load_pair(base + SUMS + pair * 8);
            const float2 after = load_pair(base + SUMS + 512 + pair * 8);
            const float2 fade = {exp2_fast(before.x + after.x), exp2_fast(before.y + after.y)};
            if (half == 0) {
                store_pair(base + slot + DECAY + pair * 8, fade.x, fade.y);
                before = {0.0f, 0.0f};
            }
            const unsigned whole = pack(fade.x, fade.y);
            unsigned norms[2][8];  // of the eight tokens' queries and keys
            evo_shared_load<8>(base + Q_NORM + 32 * half, norms[0]);
            evo_shared_load<8>(base + K_NORM + 32 * half, norms[1]);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float x = running[i].x + before.x, y = running[i].y + before.y;
                const float2 grown = {exp2_fast(-x), exp2_fast(-y)}, faded = {exp2_fast(x), exp2_fast(y)};
                const float query = __uint_as_float(norms[0][i]), key = __uint_as_float(norms[1][i]);
                const unsigned a = load_word(raw + words_at + i * GROUP), b = load_word(raw + FACTOR + words_at + i * GROUP);
                unsigned made[4];
                if (PACKED == 2) {
                    made[0] = times(b, pack(faded.x * -key, faded.y * -key));
                    made[1] = times(a, pack(faded.x * query, faded.y * query));
                    const float2 inverse = {grown.x * key, grown.y * key};
                    made[2] = times(b, pack(inverse.x, inverse.y));
                    made[3] = times(b, pack(inverse.x * fade.x, inverse.y * fade.y));
                } else if (PACKED) {
                    const unsigned kh = times(b, pack(key, key)), risen = pack(faded.x, faded.y);
                    made[0] = times(kh, risen) ^ 0x80008000u;
                    made[1] = times(times(a, pack(query, query)), risen);
                    made[2] = times(kh, pack(grown.x, grown.y));
                    made[3] = times(made[2], whole);
                } else {
                    const float2 qh = {low(a) * query, high(a) * query}, kh = {low(b) * key, high(b) * key};
                    const float2 inverse = {kh.x * grown.x, kh.y * grown.y};
                    made[0] = pack(kh.x * -faded.x, kh.y * -faded.y);
                    made[1] = pack(qh.x * faded.x, qh.y * faded.y);
                    made[2] = pack(inverse.x, inverse.y);
                    made[3] = pack(inverse.x * fade.x, inverse.y * fade.y);
                }
                store_word(stacked + slot + KQ + 16 * i, made[0]);
                store_word(stacked + slot + KQ + 256 + 16 * i, made[1]);
                store_word(factor + KI + 16 * i, made[2]);
                store_word(factor + slot + KR + 16 * i, made[3]);
            }
        }
        evo_sync(1 + turn, 128);
        // --- a warp makes -L and W = (I + L)^-1 diag(b), another one M
        if (role < 2) {
            float d[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            const unsigned inner = (lane >> 3 & 1) * 128 + (lane & 7) * 16;
            const unsigned left = base + slot + KQ + role * 256 + (lane >> 4) * PAIR + inner;
            const unsigned right = base + KI + (lane >> 3 & 1) * GROUP + (lane >> 4) * 128 + (lane & 7) * 16;
#pragma unroll
            for (int step = 0; step < 8; ++step) {
                unsigned x[4], b[4];
                load_matrices(x, left + 2 * PAIR * step);
                load_matrices(b, right + 2 * GROUP * step);
                product_warp(d, x, b[0], b[1]);
                product_warp(d + 4, x, b[2], b[3]);
            }
            const int i = lane / 4;
            if (role == 0) {
                const float weights[2] = {evo_shared_load(base + WEIGHT + 4 * i), evo_shared_load(base + WEIGHT + 4 * i + 32)};
                // W = (I - L)(I + L^2)(I + L^4)(I + L^8) diag(b), as L^16 = 0: fp16 operands, fp32 sums, all in registers
                float x[8], p[8];
#pragma unroll
                for (int part = 0; part < 8; ++part) {
                    const int r = i + (part & 2 ? 8 : 0), c = part / 4 * 8 + column + (part & 1);
                    x[part] = c == r ? 1.0f : c < r ? d[part] * weights[part / 2 % 2] : 0.0f;  // d is -L without b
                    p[part] = c < r ? -x[part] : 0.0f;
                }
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    unsigned power[4], b[4];
#pragma unroll
                    for (int part = 0; part < 4; ++part) {
                        power[part] = evo_pack2<evo_fp16>(p[2 * part], p[2 * part + 1]);
                        b[part] = turned(power[part]);
                        p[2 * part] = p[2 * part + 1] = 0.0f;
                    }
                    if (n > 0) {
                        unsigned a[4];
#pragma unroll
                        for (int part = 0; part < 4; ++part) a[part] = evo_pack2<evo_fp16>(x[2 * part], x[2 * part + 1]);
                        product_half(x, a, b[0], b[1]);
                        product_half(x + 4, a, b[2], b[3]);
                    }
                    if (n < 3) {
                        product_half(p, power, b[0], b[1]);
                        product_half(p + 4, power, b[2], b[3]);
                    }
                }
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    const float2 weight = load_pair(base + WEIGHT + 4 * (8 * part + column));
                    const unsigned at = base + slot + W_AT + part * GROUP + i * 16 + lane % 4 * 4;
                    store_word(at, pack(x[4 * part] * weight.x, x[4 * part + 1] * weight.y));
                    store_word(at + 128, pack(x[4 * part + 2] * weight.x, x[4 * part + 3] * weight.y));
                }
            } else {
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    const unsigned at = base + slot + M_AT + part * GROUP + i * 16 + lane % 4 * 4;
                    const int j = 8 * part + column;
                    store_word(at, pack(j <= i ? d[4 * part] : 0.0f, j + 1 <= i ? d[4 * part + 1] : 0.0f));
                    store_word(at + 128, pack(j <= i + 8 ? d[4 * part + 2] : 0.0f, j + 1 <= i + 8 ? d[4 * part + 3] : 0.0f));
                }
            }
        }
        proxy_fence();
        evo_barrier_arrive(full + turns % 2 * 8);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
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
        store_transposed(staged + turned_rows * OUT_ROW + 16 * eighth, pending[0], pending[1], pending[2], pending[3]);
        __syncwarp();
        unsigned words[4];
        load_words(words, staged + lane / 2 * OUT_ROW + lane % 2 * 16);
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
            load_transposed(words, own + V_RAW + turns % 3 * FACTOR + v_rows);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sums[2 * i] = low(words[i]);
                sums[2 * i + 1] = high(words[i]);
                sums[8 + 2 * i] = sums[9 + 2 * i] = 0.0f;
            }
        }
        touch(sums);
        products_fence();
#pragma unroll
        for (int step = 0; step < 8; ++step) product32(sums, a[step], operand(slot + KQ + 2 * PAIR * step, PAIR, 128));
        products_commit();
        products_wait<1>();  // waits for nothing; tells ptxas that the state is not in flight
        touch(state);
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const float2 fade = load_pair(slot + DECAY + 4 * (8 * j + column));
            state[4 * j] *= fade.x;
            state[4 * j + 1] *= fade.y;
            state[4 * j + 2] *= fade.x;
            state[4 * j + 3] *= fade.y;
        }
        if (chunk > job.start) store(chunk - 1);
        products_wait<0>();
        touch(sums);
        unsigned r[4], u[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) r[i] = pack(sums[2 * i], sums[2 * i + 1]);
        float pseudo[8], inner[8];
        products_fence();
        product16_new(pseudo, r, operand(slot + W_AT, GROUP, 128));
        products_commit();
        products_wait<0>();
        touch(pseudo);
#pragma unroll
        for (int i = 0; i < 4; ++i) u[i] = pack(pseudo[2 * i], pseudo[2 * i + 1]);
        touch(state);
        products_fence();
        product128(state, u, operand(slot + KR, 128, GROUP));
        product16_new(inner, u, operand(slot + M_AT, GROUP, 128));
        products_commit();
        products_wait<0>();
        touch(state);
        touch(inner);
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

extern "C" __global__ void __launch_bounds__(128 * (2 + PREP), 1)
    kda_specialised(const unsigned char* q, const unsigned char* k, const unsigned char* v, const unsigned char* g,
                    const evo_bf16* beta, const float* a_log, const float* dt_bias, const long long* cu_seqlens,
                    const DTYPE_initial_state* initial, unsigned char* out, DTYPE_final_state* final,
                    unsigned char* marks, int heads, int length, int sequences, int again, float scale, float lower_bound) {
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
    const float rate = exp2_fast(a_log[head] * LOG2E) * LOG2E, bound_log2 = lower_bound * LOG2E;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * PREP; ++i) {
            evo_barrier_init(base + FULL + 8 * i, 128);
            evo_barrier_init(base + EMPTY + 8 * i, 8);
        }
        evo_barrier_fence();
    }
    __syncthreads();
    const Job job = {q + origin, k + origin, v + origin, g + origin, beta + mine.first * heads + head, out + origin,
                     mark_of(marks, heads, blockIdx.y, head, 0), mine.tokens, start, begin, end, stride, heads};
    if (group >= 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PREP_REGISTERS));
        prepare(job, base, group - 2, rate, bound_log2, scale, dt_bias + head * 128);
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
