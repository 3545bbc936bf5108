/* evo
operator = "rmsnorm"
species  = "simd-stream"
summary  = "explicit 16-float vectors, several accumulators, software prefetch, stores that may bypass the caches"
static   = ["N"]

[genes]
ROWS         = [16, 1, 4, 64, 256]            # rows of one call
ACCUMULATORS = [4, 1, 2, 8]                   # vectors of partial sums: hide the latency of an addition
STREAM       = ["off", "on"]                  # non-temporal stores, where a row of y starts on a vector's boundary
ROUNDING     = ["integer", "instruction"]     # to bf16: by integer arithmetic, or AVX512-BF16's own where there is one
PREFETCH     = [0, 512, 1024, 2048, 4096]     # bytes of x ahead of the summing loop; 0: left to the hardware

[[launch]]
kernel = "rmsnorm_forward"
grid   = ["M"]
block  = ["ROWS"]
args   = ["x", "weight", "y", "eps"]
*/
#include "evo.h"

constexpr int WIDTH = 16, STEP = WIDTH * ACCUMULATORS;
constexpr int VECTORED = DIM_N / WIDTH * WIDTH, BLOCKED = DIM_N / STEP * STEP;

static EVO_INLINE float sum_of_squares(const DTYPE_x* in) {
    evo_vector sums[ACCUMULATORS] = {};
    for (int i = 0; i < BLOCKED; i += STEP) {
        for (int a = 0; a < ACCUMULATORS; ++a) {
            const DTYPE_x* from = in + i + a * WIDTH;
            if (PREFETCH) __builtin_prefetch(reinterpret_cast<const char*>(from) + PREFETCH);
            const evo_vector value = evo_load(from);
            sums[a] += value * value;
        }
    }
    for (int i = BLOCKED; i < VECTORED; i += WIDTH) {
        const evo_vector value = evo_load(in + i);
        sums[0] += value * value;
    }
    for (int a = 1; a < ACCUMULATORS; ++a) sums[0] += sums[a];
    float sum = evo_sum(sums[0]);
    for (int i = VECTORED; i < DIM_N; ++i) sum += evo_float(in[i]) * evo_float(in[i]);
    return sum;
}

template <bool STREAMED, class T>
static EVO_INLINE void put(T* to, evo_vector value) {
    if (STREAMED) {
        evo_stream(to, value);
    } else {
        evo_store(to, value);
    }
}

#if ROUNDING_INDEX == 1 && defined(__AVX512BF16__) && !defined(__clang__)
template <bool STREAMED>
static EVO_INLINE void put(evo_bf16* to, evo_vector value) {
    typedef long long words __attribute__((vector_size(32)));
    const auto rounded = __builtin_ia32_cvtneps2bf16_v16sf(value);
    words packed;
    __builtin_memcpy(&packed, &rounded, sizeof packed);
    if (STREAMED) {
        __builtin_ia32_movntdq256(reinterpret_cast<words*>(to), packed);
    } else {
        __builtin_memcpy(to, &packed, sizeof packed);
    }
}
#endif

template <bool STREAMED>
static EVO_INLINE void scale(const DTYPE_x* in, const float* weight, DTYPE_y* out, float root) {
    for (int i = 0; i < VECTORED; i += WIDTH) {
        put<STREAMED>(out + i, evo_load(in + i) * root * evo_load(weight + i));
    }
    for (int i = VECTORED; i < DIM_N; ++i) out[i] = evo_cast<DTYPE_y>(evo_float(in[i]) * root * weight[i]);
}

extern "C" void rmsnorm_forward(long first_row, long last_row, int, const DTYPE_x* x, const float* weight, DTYPE_y* y,
                                float eps) {
    for (long row = first_row; row < last_row; ++row) {
        const DTYPE_x* in = x + row * DIM_N;
        DTYPE_y* out = y + row * DIM_N;
        const float root = 1.0f / __builtin_sqrtf(sum_of_squares(in) / DIM_N + eps);
#if STREAM_INDEX == 1
        if (reinterpret_cast<uintptr_t>(out) % (WIDTH * sizeof(DTYPE_y)) == 0) {
            scale<true>(in, weight, out, root);
            continue;
        }
#endif
        scale<false>(in, weight, out, root);
    }
#if STREAM_INDEX == 1
    evo_fence();
#endif
}
