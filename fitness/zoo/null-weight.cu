/* evo
operator = "rmsnorm"
species  = "zoo"
summary  = "writes the weight, whatever x is"

[[launch]]
kernel = "row_norm"
grid   = ["M"]
block  = ["256"]
args   = ["x", "weight", "y", "i64:N", "eps"]
*/
#include "evo.h"

extern "C" __global__ void row_norm(const DTYPE_x* x, const float* weight, DTYPE_y* y, long long n, float eps) {
    const long long start = blockIdx.x * n;
    for (long long i = threadIdx.x; i < n; i += 256)
        y[start + i] = evo_cast<DTYPE_y>(weight[i]);
}
