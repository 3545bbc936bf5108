/* evo
operator = "kda"
species  = "recurrent"
summary  = "token by token in fp32; a work item is some of a head's value channels, their columns of the state side by side"

[genes]
CHANNELS = [32, 8, 16, 64, 128]  # value channels of a work item

[constraints]
all = ["K == 128", "V == 128"]

[let]
PARTS = "V // CHANNELS"

[scratch]
state = { dtype = "fp32", shape = ["SMS", "V", "K"] }

[[launch]]
kernel = "kda_recurrent"
grid   = ["N * H * PARTS"]
block  = ["1"]
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?",
          "state", "i64:T", "i64:H", "scale", "lower_bound"]
*/
#include "evo.h"
#include <math.h>

constexpr int WIDTH = 128, PARTS = WIDTH / CHANNELS;

// Both vectors of a token at length one; the square roots run over k's channels.
EVO_INLINE void normalise(const evo_bf16* in, float* values) {
    evo_vector sum = evo_splat(0.0f);
    for (int i = 0; i < WIDTH; i += 16) {
        const evo_vector part = evo_load(in + i);
        sum += part * part;
        evo_store(values + i, part);
    }
    const float root = 1.0f / __builtin_sqrtf(evo_sum(sum) + 1e-6f);
    for (int i = 0; i < WIDTH; ++i) values[i] *= root;
}

extern "C" void kda_recurrent(long from, long to, int worker, const evo_bf16* q, const evo_bf16* k, const evo_bf16* v,
                              const evo_bf16* g, const evo_bf16* beta, const float* a_log, const float* dt_bias,
                              const int64_t* cu_seqlens, const DTYPE_initial_state* initial, DTYPE_out* out,
                              DTYPE_final_state* final, float* states, long tokens, long heads, float scale,
                              float lower_bound) {
    float* state = states + (long)worker * WIDTH * WIDTH;
    for (long item = from; item < to; ++item) {
        const int channel = item % PARTS * CHANNELS;
        const long chain = item / PARTS, sequence = chain / heads, head = chain % heads;
        const long place = (chain * WIDTH + channel) * WIDTH;
        const long first = cu_seqlens ? cu_seqlens[sequence] : sequence * tokens;
        const long last = cu_seqlens ? cu_seqlens[sequence + 1] : first + tokens;
        for (int i = 0; i < CHANNELS * WIDTH; ++i) state[i] = initial ? evo_float(initial[place + i]) : 0.0f;
        const float rate = expf(a_log[head]);
        for (long t = first; t < last; ++t) {
            const long row = t * heads + head, at = row * WIDTH;
            float query[WIDTH], key[WIDTH], decay[WIDTH];
            normalise(q + at, query);
            normalise(k + at, key);
            for (int i = 0; i < WIDTH; ++i) {
                const float gate = rate * (evo_float(g[at + i]) + dt_bias[head * WIDTH + i]);
                decay[i] = expf(lower_bound / (1.0f + expf(-gate)));
            }
            const float weight = 1.0f / (1.0f + expf(-evo_float(beta[row])));
            for (int j = 0; j < CHANNELS; ++j) {
                float* column = state + j * WIDTH;
                evo_vector seen = evo_splat(0.0f), result = evo_splat(0.0f);
                for (int i = 0; i < WIDTH; i += 16) {
                    const evo_vector kept = evo_load(column + i) * evo_load(decay + i);
                    seen += kept * evo_load(key + i);
                    evo_store(column + i, kept);
                }
                const float missing = weight * (evo_float(v[at + channel + j]) - evo_sum(seen));
                for (int i = 0; i < WIDTH; i += 16) {
                    const evo_vector next = evo_load(column + i) + evo_splat(missing) * evo_load(key + i);
                    result += next * evo_load(query + i);
                    evo_store(column + i, next);
                }
                out[at + channel + j] = evo_cast<DTYPE_out>(scale * evo_sum(result));
            }
        }
        if (final)
            for (int i = 0; i < CHANNELS * WIDTH; ++i)
                final[place + i] = evo_cast<DTYPE_final_state>(state[i]);
    }
}
