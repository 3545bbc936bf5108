/* evo
operator = "scale"
species  = "plain"
summary  = "groups of elements that the compiler may vectorise, then the rest one by one"

[genes]
ITEMS = [16384, 4096, 65536]  # elements per call
GROUP = [8, 1, 4, 16, 32]

[[launch]]
kernel = "scale_forward"
grid   = ["N"]
block  = ["ITEMS"]
args   = ["x", "y", "a"]
*/

#include "evo.h"

extern "C" void scale_forward(long first_item, long last_item, int worker, const float* __restrict x,
                              float* __restrict y, float a) {
    (void)worker;
    long item = first_item;
    for (; item + GROUP <= last_item; item += GROUP) {
        for (int lane = 0; lane < GROUP; ++lane) {
            y[item + lane] = a * x[item + lane];
        }
    }
    for (; item < last_item; ++item) {
        y[item] = a * x[item];
    }
}
