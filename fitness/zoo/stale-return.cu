/* evo
operator = "rmsnorm"
species  = "zoo"
summary  = "returns at once, in the hope that the right output stands there already"

[[launch]]
kernel = "row_norm"
grid   = ["M"]
block  = ["256"]
args   = ["x", "weight", "y", "i64:N", "eps"]
*/
#include "evo.h"

extern "C" __global__ void row_norm(const DTYPE_x* x, const float* weight, DTYPE_y* y, long long n, float eps) {
}
