/* evo
operator = "kda"
species  = "oracle"
summary  = "token by token, the state in double precision"

[constraints]
all = ["K == 128", "V == 128"]

[scratch]
state = { dtype = "fp64", shape = ["SMS", "V", "K"] }

[[launch]]
kernel = "kda_oracle"
grid   = ["N * H"]
block  = ["1"]
args   = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens?", "initial_state?", "out", "final_state?",
          "state", "i64:T", "i64:H", "scale", "lower_bound"]
*/
#include "evo.h"
#include <math.h>

constexpr int WIDTH = 128;

extern "C" void kda_oracle(long from, long to, int worker, const evo_bf16* q, const evo_bf16* k, const evo_bf16* v,
                           const evo_bf16* g, const evo_bf16* beta, const float* a_log, const float* dt_bias,
                           const int64_t* cu_seqlens, const DTYPE_initial_state* initial, DTYPE_out* out,
                           DTYPE_final_state* final, double* states, long tokens, long heads, float scale,
                           float lower_bound) {
    double* state = states + (long)worker * WIDTH * WIDTH;
    for (long item = from; item < to; ++item) {
        const long sequence = item / heads, head = item % heads, place = item * WIDTH * WIDTH;
        const long first = cu_seqlens ? cu_seqlens[sequence] : sequence * tokens;
        const long last = cu_seqlens ? cu_seqlens[sequence + 1] : first + tokens;
        for (int i = 0; i < WIDTH * WIDTH; ++i) state[i] = initial ? evo_float(initial[place + i]) : 0.0;
        const double rate = expf(a_log[head]);
        for (long t = first; t < last; ++t) {
            const long row = t * heads + head, at = row * WIDTH;
            double queries = 1e-6, keys = 1e-6, key[WIDTH], query[WIDTH], decay[WIDTH];
            for (int i = 0; i < WIDTH; ++i) {
                query[i] = evo_float(q[at + i]);
                key[i] = evo_float(k[at + i]);
                queries += query[i] * query[i];
                keys += key[i] * key[i];
                const double gate = rate * (evo_float(g[at + i]) + (double)dt_bias[head * WIDTH + i]);
                decay[i] = expf(lower_bound / (1.0f + expf(-gate)));
            }
            const double weight = 1.0 / (1.0 + expf(-evo_float(beta[row])));
            for (int i = 0; i < WIDTH; ++i) {
                query[i] /= __builtin_sqrt(queries);
                key[i] /= __builtin_sqrt(keys);
            }
            for (int j = 0; j < WIDTH; ++j) {
                double* column = state + j * WIDTH;
                double seen = 0.0, result = 0.0;
                for (int i = 0; i < WIDTH; ++i) {
                    column[i] *= decay[i];
                    seen += key[i] * column[i];
                }
                const double missing = weight * (evo_float(v[at + j]) - seen);
                for (int i = 0; i < WIDTH; ++i) {
                    column[i] += key[i] * missing;
                    result += query[i] * column[i];
                }
                out[at + j] = evo_cast<DTYPE_out>((float)(scale * result));
            }
        }
        if (final)
            for (int i = 0; i < WIDTH * WIDTH; ++i) final[place + i] = evo_cast<DTYPE_final_state>((float)state[i]);
    }
}
