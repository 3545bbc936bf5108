/* evo
operator = "scale"
species  = "oracle"
summary  = "computed in double precision, no genes"

[[launch]]
kernel = "scale_oracle"
grid   = ["N"]
block  = ["4096"]
args   = ["x", "y", "a"]
*/

#include "evo.h"

extern "C" void scale_oracle(long first_item, long last_item, int worker, const float* x, float* y, float a) {
    (void)worker;
    for (long item = first_item; item < last_item; ++item) {
        y[item] = static_cast<float>(static_cast<double>(a) * static_cast<double>(x[item]));
    }
}
