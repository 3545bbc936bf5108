// What the clock needs of its own: the processor's tempo, a clean cache, and outputs that no call may take for done.
#include "elements.h"

__device__ __forceinline__ u64 global_time() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

__device__ __forceinline__ u64 cycles() {
    u64 now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
}

// out[0]: cycles of this multiprocessor, out[1]: nanoseconds of the global timer, over at least `nanoseconds`. Both ends
// lie on a tick of the timer, which may be as coarse as a microsecond. One thread.
extern "C" __global__ void tempo(u64 nanoseconds, u64* out) {
    const u64 before = global_time();
    u64 start = before, now;
    while (start == before) start = global_time();
    const u64 first = cycles();
    do now = global_time();
    while (now - start < nanoseconds);
    out[0] = cycles() - first;
    out[1] = now - start;
}

// Reads all of it, so that the cache holds this and nothing dirty. `sink` gets what never comes up. Not with
// L1::no_allocate, .cs or .lu: the L2 then takes these lines for the first to go, and they drive out each other alone.
extern "C" __global__ void __launch_bounds__(256) flush_read(const uint4* data, u64 count, u32* sink) {
    u32 seen = 0;
    const u64 stride = u64(gridDim.x) * blockDim.x;
#pragma unroll 4
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        uint4 v;
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(data + i));
        seen |= v.x | v.y | v.z | v.w;
    }
    if (seen == 0x5EED5EEDu) *sink = seen;
}

// Changes words at secret places: one a thread, always to another value.
extern "C" __global__ void __launch_bounds__(256) spoil(u32* data, u64 words, u64 key) {
    const u64 h = mix(key + (u64(blockIdx.x) * blockDim.x + threadIdx.x) * golden);
    const u64 place = __umul64hi(h, words);
    data[place] ^= u32(h) | 1u;
}
