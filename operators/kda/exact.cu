/* evo
operator = "kda"
species  = "exact"
summary  = "the roundings of FlashKDA, one by one: a CTA per sequence and head, chunks of 16 tokens, plain row-major arrays in shared memory"
static   = ["K", "V"]

[build]
fmad = false  # a product is rounded where the source says so
ftz  = true

[constraints]
all = ["K == 128", "V == 128", "dtype_out == 'bf16'"]

[[launch]]
kernel = "kda_exact"
grid   = ["H", "N"]
block  = ["256"]
shared = "3 * 16 * 128 * 2 + 128 * 128 * 2 + 2 * 16 * 128 * 2 + 16 * 128 * 2 + 5 * 16 * 16 * 2 + 128 * 4 + 16 * 4"
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?",
          "i64:T", "scale", "lower_bound"]
*/
#include "evo.h"
#include "evo_mma.h"

using Bits = unsigned short;  // of a bf16 or fp16

struct Shared {
    Bits kd[16][128], qd[16][128], ki[16][128], kr[16][128];  // first the normalised rows: k in kd, q in qd
    Bits state[128][128];                                     // [V, K]
    Bits change[16][128], update[16][128];
    Bits low[16][16], power[16][16], total[16][16], inverse[16][16], mqk[16][16];
    float decay[128], weight[16];
};

EVO_DEVICE float wide(Bits bits) { return evo_float(evo_bf16{bits}); }
EVO_DEVICE Bits bf16(float value) { return evo_cast<evo_bf16>(value).bits; }
EVO_DEVICE Bits fp16(float value) { return evo_cast<evo_fp16>(value).bits; }
EVO_DEVICE unsigned word(Bits low, Bits high) { return low | (unsigned)high << 16; }
EVO_DEVICE float sigmoid(float x) { return fmaf(0.5f, evo_tanh(0.5f * x), 0.5f); }
EVO_DEVICE Bits product(Bits a, Bits b) {
    asm("mul.rn.bf16 %0, %0, %1;" : "+h"(a) : "h"(b));
    return a;
}
EVO_DEVICE Bits sum(Bits a, Bits b) {
    asm("add.rn.bf16 %0, %0, %1;" : "+h"(a) : "h"(b));
    return a;
}
EVO_DEVICE Bits difference(Bits a, Bits b) {
    asm("sub.rn.bf16 %0, %0, %1;" : "+h"(a) : "h"(b));
    return a;
}
EVO_DEVICE Bits product_half(Bits a, Bits b) {
    asm("mul.rn.f16 %0, %0, %1;" : "+h"(a) : "h"(b));
    return a;
}
EVO_DEVICE Bits sum_half(Bits a, Bits b) {
    asm("add.rn.f16 %0, %0, %1;" : "+h"(a) : "h"(b));
    return a;
}

// One warp: d [16, 8] += A [16, 16] B [16, 8] of bf16; a(i, k) and b(k, j) give the elements. A lane's four results are
// (i, j), (i, j + 1), (i + 8, j), (i + 8, j + 1) with i = lane / 4, j = 2 (lane % 4).
template <class A, class B> EVO_DEVICE void multiply(float (&d)[4], A a, B b) {
    const int i = threadIdx.x % 32 / 4, j = 2 * (threadIdx.x % 4);
    const unsigned left[4] = {word(a(i, j), a(i, j + 1)), word(a(i + 8, j), a(i + 8, j + 1)),
                              word(a(i, j + 8), a(i, j + 9)), word(a(i + 8, j + 8), a(i + 8, j + 9))};
    evo_mma<evo_bf16>(d, left, word(b(j, i), b(j + 1, i)), word(b(j + 8, i), b(j + 9, i)));
}

// One warp: calls use(i, j, element) for the elements of A B, all [16, 16] of fp16, rounded to fp16.
template <class Use> EVO_DEVICE void multiply_half(const Bits (*a)[16], const Bits (*b)[16], Use use) {
    const int i = threadIdx.x % 32 / 4, j = 2 * (threadIdx.x % 4);
    const unsigned left[4] = {word(a[i][j], a[i][j + 1]), word(a[i + 8][j], a[i + 8][j + 1]),
                              word(a[i][j + 8], a[i][j + 9]), word(a[i + 8][j + 8], a[i + 8][j + 9])};
    unsigned d[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
        evo_mma_half(d[n], left, word(b[j][8 * n + i], b[j + 1][8 * n + i]), word(b[j + 8][8 * n + i], b[j + 9][8 * n + i]));
    __syncwarp();  // a and b have been read
#pragma unroll
    for (int part = 0; part < 8; ++part)
        use(i + part / 2 % 2 * 8, 8 * (part / 4) + j + part % 2, (Bits)(d[part / 4][part / 2 % 2] >> part % 2 * 16));
    __syncwarp();
}

// A warp: strictly lower L = kd ki^T diag(beta by row) in fp16, and (I + L)^-1 = (I - L)(I + L^2)(I + L^4)(I + L^8).
EVO_DEVICE void invert(Shared& at) {
    const int i = threadIdx.x % 32 / 4, j = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        float d[4] = {0, 0, 0, 0};
        for (int step = 0; step < 128; step += 16)
            multiply(d, [&](int i, int k) { return at.kd[i][step + k]; }, [&](int k, int j) { return at.ki[8 * n + j][step + k]; });
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int row = i + part / 2 * 8, column = 8 * n + j + part % 2;
            const Bits entry = column < row ? product_half(fp16(d[part]), fp16(at.weight[row])) : (Bits)0;
            at.low[row][column] = at.power[row][column] = entry;
            at.total[row][column] = row == column ? fp16(1.0f) : (Bits)(entry ^ 0x8000);
        }
    }
    __syncwarp();
    for (int round = 0; round < 3; ++round) {
        multiply_half(at.power, at.power, [&](int i, int j, Bits entry) { at.power[i][j] = entry; });
        multiply_half(at.total, at.power, [&](int i, int j, Bits entry) { at.total[i][j] = sum_half(at.total[i][j], entry); });
    }
    for (int part = threadIdx.x % 32; part < 256; part += 32)
        at.inverse[part / 16][part % 16] = bf16(evo_float(evo_fp16{at.total[part / 16][part % 16]}));
}

// A warp: lower qd ki^T with its diagonal, in bf16.
EVO_DEVICE void attend(Shared& at) {
    const int i = threadIdx.x % 32 / 4, j = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        float d[4] = {0, 0, 0, 0};
        for (int step = 0; step < 128; step += 16)
            multiply(d, [&](int i, int k) { return at.qd[i][step + k]; }, [&](int k, int j) { return at.ki[8 * n + j][step + k]; });
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int row = i + part / 2 * 8, column = 8 * n + j + part % 2;
            at.mqk[row][column] = column <= row ? bf16(d[part]) : (Bits)0;
        }
    }
}

// 16 lanes a token, 8 channels a lane: q and k as rows of length 1, rounded to bf16. Zero where there is no token.
EVO_DEVICE void normalise(Bits (&row)[128], const evo_bf16* from, bool there) {
    const int first = threadIdx.x % 16 * 8;
    float values[8], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        values[i] = there ? evo_float(from[first + i]) : 0.0f;
        sum = fmaf(values[i], values[i], sum);
    }
    const float root = evo_rsqrt(evo_sum<16>(sum) + 1e-6f);
#pragma unroll
    for (int i = 0; i < 8; ++i) row[first + i] = bf16(values[i] * root);
}

// A thread a channel: the running sum of log2 decays, and what it makes of q and k.
EVO_DEVICE void fade(Shared& at, const evo_bf16* g, long long stride, int valid, float rate, float bias, float bound, float scale) {
    const int channel = threadIdx.x;
    float sums[16], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const float gate = i < valid ? bound * sigmoid(rate * (evo_float(g[i * stride]) + bias)) : 0.0f;
        sums[i] = sum = sum + gate;
    }
    at.decay[channel] = evo_exp2(sum);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const Bits faded = bf16(evo_exp2(sums[i])), grown = bf16(evo_exp2(-sums[i]));
        const Bits query = at.qd[i][channel], key = at.kd[i][channel];
        at.kd[i][channel] = product(key, faded);
        at.qd[i][channel] = product(product(query, faded), bf16(scale));
        at.ki[i][channel] = product(key, grown);
        at.kr[i][channel] = product(product(key, grown), bf16(at.decay[channel]));
    }
}

// A warp, 8 value channels from `first` on: the chunk's outputs, and the state after it.
EVO_DEVICE void advance(Shared& at, int first, const evo_bf16* v, evo_bf16* out, long long stride, int valid) {
    const int i = threadIdx.x % 32 / 4, j = first + 2 * (threadIdx.x % 4);
    float seen[4] = {0, 0, 0, 0}, read[4] = {0, 0, 0, 0}, update[4] = {0, 0, 0, 0}, within[4] = {0, 0, 0, 0};
    for (int step = 0; step < 128; step += 16) {
        const auto state = [&](int k, int j) { return at.state[first + j][step + k]; };
        multiply(seen, [&](int i, int k) { return at.kd[i][step + k]; }, state);
        multiply(read, [&](int i, int k) { return at.qd[i][step + k]; }, state);
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int token = i + part / 2 * 8, column = j + part % 2;
        const Bits value = token < valid ? v[token * stride + column].bits : (Bits)0;
        at.change[token][column] = product(difference(value, bf16(seen[part])), bf16(at.weight[token]));
    }
    __syncwarp();
    multiply(update, [&](int i, int k) { return at.inverse[i][k]; }, [&](int k, int j) { return at.change[k][first + j]; });
#pragma unroll
    for (int part = 0; part < 4; ++part) at.update[i + part / 2 * 8][j + part % 2] = bf16(update[part]);
    __syncwarp();
    const auto updates = [&](int k, int j) { return at.update[k][first + j]; };
    multiply(within, [&](int i, int k) { return at.mqk[i][k]; }, updates);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int token = i + part / 2 * 8;
        if (token < valid) out[token * stride + j + part % 2] = {sum(bf16(read[part]), bf16(within[part]))};
    }
    for (int block = 0; block < 128; block += 16) {
        float gained[4] = {0, 0, 0, 0};
        multiply(gained, [&](int i, int k) { return at.kr[k][block + i]; }, updates);
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int channel = block + i + part / 2 * 8;
            Bits& entry = at.state[j + part % 2][channel];
            entry = bf16(fmaf(wide(entry), at.decay[channel], gained[part]));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 2)
    kda_exact(const evo_bf16* q, const evo_bf16* k, const evo_bf16* v, const evo_bf16* g, const evo_bf16* beta,
              const float* a_log, const float* dt_bias, const long long* cu_seqlens, const DTYPE_initial_state* initial,
              evo_bf16* out, DTYPE_final_state* final, long long tokens, float scale, float lower_bound) {
    extern __shared__ __align__(16) unsigned char memory[];
    Shared& at = *(Shared*)memory;
    const int thread = threadIdx.x, token = thread / 16;
    const long long head = blockIdx.x, heads = gridDim.x, sequence = blockIdx.y, stride = heads * DIM_K;
    const long long first = cu_seqlens ? cu_seqlens[sequence] : sequence * tokens;
    const long long last = cu_seqlens ? cu_seqlens[sequence + 1] : first + tokens;
    const long long place = (sequence * heads + head) * DIM_V * DIM_K;
    const float rate = evo_exp2(a_log[head] * 1.4426950408889634f);
    const float bound = (float)(lower_bound * 1.4426950408889634);  // in double
    const float bias = dt_bias[head * DIM_K + thread % DIM_K];
    for (int i = thread; i < DIM_V * DIM_K; i += 256)
        at.state[i / DIM_K][i % DIM_K] = initial ? bf16(evo_float(initial[place + i])) : (Bits)0;
    for (long long start = first; start < last; start += 16) {
        const int valid = (int)min(16LL, last - start);
        const long long row = start * stride + head * DIM_K;
        const bool there = token < valid;
        normalise(at.qd[token], q + row + (there ? token * stride : 0), there);
        normalise(at.kd[token], k + row + (there ? token * stride : 0), there);
        if (thread < 16) at.weight[thread] = thread < valid ? sigmoid(evo_float(beta[(start + thread) * heads + head])) : 0.0f;
        __syncthreads();
        if (thread < DIM_K) fade(at, g + row + thread, stride, valid, rate, bias, bound, scale);
        __syncthreads();
        if (thread / 32 == 0) invert(at);
        if (thread / 32 == 1) attend(at);
        __syncthreads();
        for (int block = thread / 32 * 8; block < DIM_V; block += 64) advance(at, block, v + row, out + row, stride, valid);
        __syncthreads();
    }
    if (final) {
        __syncthreads();  // a sequence may have no token
        for (int i = thread; i < DIM_V * DIM_K; i += 256)
            final[place + i] = evo_cast<DTYPE_final_state>(wide(at.state[i / DIM_K][i % DIM_K]));
    }
}
