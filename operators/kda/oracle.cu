/* evo
operator = "kda"
species  = "oracle"
summary  = "a CTA per sequence and head, two threads per value channel with its column of the state in registers; fp32, token by token"
static   = ["K", "V"]

[constraints]
all = ["K == 128", "V == 128"]

[[launch]]
kernel = "kda_oracle"
grid   = ["H", "N"]
block  = ["2 * V"]
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?",
          "i64:T", "scale", "lower_bound"]
*/
#include "evo.h"

// Of the first 128 threads' values; every thread gets it.
EVO_DEVICE float block_sum(float value, float* partial) {
    value = evo_sum(value);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = partial[0] + partial[1] + partial[2] + partial[3];
    __syncthreads();
    return value;
}

extern "C" __global__ void __launch_bounds__(2 * DIM_V)
    kda_oracle(const evo_bf16* q, const evo_bf16* k, const evo_bf16* v, const evo_bf16* g, const evo_bf16* beta,
               const float* a_log, const float* dt_bias, const long long* cu_seqlens, const DTYPE_initial_state* initial,
               DTYPE_out* out, DTYPE_final_state* final, long long tokens, float scale, float lower_bound) {
    constexpr int SHARE = DIM_K / 2;
    __shared__ float query[DIM_K], key[DIM_K], decay[DIM_K], partial[8];
    const int lane = threadIdx.x % 2, column = threadIdx.x / 2;
    const int channel = threadIdx.x % DIM_K;  // of k; the first 128 threads make a token's vectors
    const long long head = blockIdx.x, heads = gridDim.x, sequence = blockIdx.y;
    const long long first = cu_seqlens ? cu_seqlens[sequence] : sequence * tokens;
    const long long last = cu_seqlens ? cu_seqlens[sequence + 1] : first + tokens;
    const long long place = ((sequence * heads + head) * DIM_V + column) * DIM_K + lane;
    const float rate = expf(a_log[head]), bias = dt_bias[head * DIM_K + channel];
    float state[SHARE];  // channels lane, lane + 2, ...
#pragma unroll
    for (int i = 0; i < SHARE; ++i) state[i] = initial ? evo_float(initial[place + 2 * i]) : 0.0f;
    for (long long t = first; t < last; ++t) {
        const long long row = t * heads + head, at = row * DIM_K;
        const float a = evo_float(q[at + channel]), b = evo_float(k[at + channel]);
        const float queries = block_sum(a * a, partial), keys = block_sum(b * b, partial);
        if (threadIdx.x < DIM_K) {
            query[channel] = a / sqrtf(queries + 1e-6f);
            key[channel] = b / sqrtf(keys + 1e-6f);
            decay[channel] = expf(lower_bound / (1.0f + expf(-rate * (evo_float(g[at + channel]) + bias))));
        }
        const float weight = 1.0f / (1.0f + expf(-evo_float(beta[row])));
        __syncthreads();
        float seen = 0.0f, result = 0.0f;
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            state[i] *= decay[2 * i + lane];
            seen += key[2 * i + lane] * state[i];
        }
        const float missing = weight * (evo_float(v[at + column]) - evo_sum<2>(seen));
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            state[i] += key[2 * i + lane] * missing;
            result += query[2 * i + lane] * state[i];
        }
        result = evo_sum<2>(result);
        if (lane == 0) out[at + column] = evo_cast<DTYPE_out>(scale * result);
        __syncthreads();
    }
    if (final) {
#pragma unroll
        for (int i = 0; i < SHARE; ++i) final[place + 2 * i] = evo_cast<DTYPE_final_state>(state[i]);
    }
}
