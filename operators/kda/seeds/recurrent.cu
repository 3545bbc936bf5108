/* evo
operator = "kda"
species  = "recurrent"
summary  = "token by token in fp32, any length and gate; lanes share a value channel's column of the state, the next token's vectors are made meanwhile"
static   = ["K", "V"]

[genes]
LANES   = [4, 2, 8]         # threads that share a column of 128
COLUMNS = [32, 16, 64, 128] # value channels of a CTA

[constraints]
all = ["K == 128", "V == 128", "LANES * COLUMNS >= 128", "LANES * COLUMNS <= 1024"]

[[launch]]
kernel = "kda_recurrent"
grid   = ["V // COLUMNS", "H", "N"]
block  = ["LANES * COLUMNS"]
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?",
          "i64:T", "scale", "lower_bound"]
*/
#include "evo.h"

constexpr int SHARE = DIM_K / LANES;  // of a column, in a thread's registers
constexpr int THREADS = LANES * COLUMNS;

struct Token {
    float query[DIM_K], key[DIM_K], decay[DIM_K];
};

// The first four warps make a token's vectors: a thread a channel.
EVO_DEVICE void make(Token& token, float (*partial)[2], const evo_bf16* q, const evo_bf16* k, const evo_bf16* g, float rate,
                     float bias, float lower_bound) {
    const int channel = threadIdx.x;
    if (channel < DIM_K) {
        const float a = evo_float(q[channel]), b = evo_float(k[channel]);
        token.query[channel] = a;
        token.key[channel] = b;
        token.decay[channel] = __expf(lower_bound / (1.0f + __expf(-rate * (evo_float(g[channel]) + bias))));
        const float queries = evo_sum(a * a), keys = evo_sum(b * b);
        if (channel % 32 == 0) {
            partial[channel / 32][0] = queries;
            partial[channel / 32][1] = keys;
        }
    }
}

EVO_DEVICE float root(const float (*partial)[2], int which) {
    return rsqrtf(partial[0][which] + partial[1][which] + partial[2][which] + partial[3][which] + 1e-6f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    kda_recurrent(const evo_bf16* q, const evo_bf16* k, const evo_bf16* v, const evo_bf16* g, const evo_bf16* beta,
                  const float* a_log, const float* dt_bias, const long long* cu_seqlens,
                  const DTYPE_initial_state* initial, DTYPE_out* out, DTYPE_final_state* final, long long tokens,
                  float scale, float lower_bound) {
    __shared__ Token made[2];
    __shared__ float partial[2][4][2];
    const int lane = threadIdx.x % LANES, column = blockIdx.x * COLUMNS + threadIdx.x / LANES;
    const long long head = blockIdx.y, heads = gridDim.y, sequence = blockIdx.z;
    const long long first = cu_seqlens ? cu_seqlens[sequence] : sequence * tokens;
    const long long last = cu_seqlens ? cu_seqlens[sequence + 1] : first + tokens;
    const long long place = ((sequence * heads + head) * DIM_V + column) * DIM_K;
    const float rate = __expf(a_log[head]);
    const float bias = threadIdx.x < DIM_K ? dt_bias[head * DIM_K + threadIdx.x] : 0.0f;
    float state[SHARE];  // channels lane, lane + LANES, ...: neighbouring lanes read neighbouring words
#pragma unroll
    for (int i = 0; i < SHARE; ++i) state[i] = initial ? evo_float(initial[place + i * LANES + lane]) : 0.0f;
    const long long stride = heads * DIM_K;
    long long at = (first * heads + head) * DIM_K;
    if (first < last) make(made[0], partial[0], q + at, k + at, g + at, rate, bias, lower_bound);
    for (long long t = first; t < last; ++t, at += stride) {
        const int turn = (t - first) % 2;
        const float value = evo_float(v[at + column]), logit = evo_float(beta[t * heads + head]);
        __syncthreads();  // this token's vectors are there, and nobody reads the other half any more
        if (t + 1 < last) {
            const long long next = at + stride;
            make(made[1 - turn], partial[1 - turn], q + next, k + next, g + next, rate, bias, lower_bound);
        }
        const Token& token = made[turn];
        const float keys = root(partial[turn], 1), queries = root(partial[turn], 0) * scale;
        const float weight = 1.0f / (1.0f + __expf(-logit));
        float seen = 0.0f, result = 0.0f;
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            state[i] *= token.decay[i * LANES + lane];
            seen += token.key[i * LANES + lane] * state[i];
        }
        const float missing = weight * (value - evo_sum<LANES>(seen) * keys) * keys;
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            state[i] += token.key[i * LANES + lane] * missing;
            result += token.query[i * LANES + lane] * state[i];
        }
        result = evo_sum<LANES>(result) * queries;
        if (lane == 0) out[at + column] = evo_cast<DTYPE_out>(result);
    }
    if (final) {
#pragma unroll
        for (int i = 0; i < SHARE; ++i) final[place + i * LANES + lane] = evo_cast<DTYPE_final_state>(state[i]);
    }
}
