/* evo
operator = "rmsnorm"
species  = "simd-stream"
summary  = "explicit 16-float vectors, several accumulators, software prefetch, stores that may bypass the caches"
static   = ["N"]

[genes]
ROWS         = [16, 1, 4, 64, 256]            # rows of one call
ACCUMULATORS = [4, 1, 2, 8]                   # vectors of partial sums: hide the latency of an addition
STREAM       = ["off", "on"]                  # non-temporal stores, where a row of y starts on a vector's boundary
PREFETCH     = [0, 512, 1024, 2048, 4096]     # bytes of x ahead of the summing loop; 0: left to the hardware

[[launch]]
kernel = "rmsnorm_forward"
grid   = ["M"]
block  = ["ROWS"]
args   = ["x", "weight", "residual?", "bias?", "y", "residual_out?", "rstd?", "i64:H", "eps"]
*/
#include "evo.h"

constexpr int WIDTH = 16, STEP = WIDTH * ACCUMULATORS;
constexpr int VECTORED = DIM_N / WIDTH * WIDTH, BLOCKED = DIM_N / STEP * STEP;

// What a row is made of and what becomes of it.
struct Row {
    const DTYPE_x* x;
    const DTYPE_residual* residual;
    const DTYPE_weight* weight;
    const DTYPE_bias* bias;
    DTYPE_y* y;
    DTYPE_residual_out* residual_out;

    EVO_INLINE evo_vector load(int i) const {
        return HAS_residual ? evo_load(x + i) + evo_load(residual + i) : evo_load(x + i);
    }
    EVO_INLINE float at(int i) const {
        return HAS_residual ? evo_float(x[i]) + evo_float(residual[i]) : evo_float(x[i]);
    }
};

static EVO_INLINE float sum_of_squares(const Row& row) {
    evo_vector sums[ACCUMULATORS] = {};
    for (int i = 0; i < BLOCKED; i += STEP) {
        for (int a = 0; a < ACCUMULATORS; ++a) {
            if (PREFETCH) __builtin_prefetch(reinterpret_cast<const char*>(row.x + i + a * WIDTH) + PREFETCH);
            const evo_vector value = row.load(i + a * WIDTH);
            sums[a] += value * value;
        }
    }
    for (int i = BLOCKED; i < VECTORED; i += WIDTH) {
        const evo_vector value = row.load(i);
        sums[0] += value * value;
    }
    for (int a = 1; a < ACCUMULATORS; ++a) sums[0] += sums[a];
    float sum = evo_sum(sums[0]);
    for (int i = VECTORED; i < DIM_N; ++i) sum += row.at(i) * row.at(i);
    return sum;
}

// AVX512-BF16's own rounding is not used: it flushes subnormal values to zero, which the gate refuses.
template <bool STREAMED, class T>
static EVO_INLINE void put(T* to, evo_vector value) {
    if (STREAMED) {
        evo_stream(to, value);
    } else {
        evo_store(to, value);
    }
}

template <bool STREAMED>
static EVO_INLINE void scale(const Row& row, float root) {
    for (int i = 0; i < VECTORED; i += WIDTH) {
        const evo_vector value = row.load(i);
        if (HAS_residual_out) put<STREAMED>(row.residual_out + i, value);
        const evo_vector scaled = value * root * evo_load(row.weight + i);
        put<STREAMED>(row.y + i, HAS_bias ? scaled + evo_load(row.bias + i) : scaled);
    }
    for (int i = VECTORED; i < DIM_N; ++i) {
        if (HAS_residual_out) row.residual_out[i] = evo_cast<DTYPE_residual_out>(row.at(i));
        const float scaled = row.at(i) * root * evo_float(row.weight[i]);
        row.y[i] = evo_cast<DTYPE_y>(HAS_bias ? scaled + evo_float(row.bias[i]) : scaled);
    }
}

// Whether vectors of this row start where non-temporal stores need them to.
template <class T>
static EVO_INLINE bool aligned(const T* row) {
    return reinterpret_cast<uintptr_t>(row) % (WIDTH * sizeof(T)) == 0;
}

extern "C" void rmsnorm_forward(long first_row, long last_row, int, const DTYPE_x* x, const DTYPE_weight* weight,
                                const DTYPE_residual* residual, const DTYPE_bias* bias, DTYPE_y* y,
                                DTYPE_residual_out* residual_out, float* rstd, long heads, float eps) {
    for (long number = first_row; number < last_row; ++number) {
        const long start = number * DIM_N, head = number % heads * DIM_N;
        const Row row = {x + start, residual + start, weight + head, bias + head, y + start, residual_out + start};
        const float root = 1.0f / __builtin_sqrtf(sum_of_squares(row) / DIM_N + eps);
        if (HAS_rstd) rstd[number] = root;
#if STREAM_INDEX == 1
        if (aligned(row.y) && (!HAS_residual_out || aligned(row.residual_out))) {
            scale<true>(row, root);
            continue;
        }
#endif
        scale<false>(row, root);
    }
#if STREAM_INDEX == 1
    evo_fence();
#endif
}
