// evo's own kernels: contents, poison, guard bands, digests, and what the clock needs. They are correct for any
// alignment and any size, and fast for the aligned buffers that operators have.
#include "elements.h"

__device__ __forceinline__ u64 thread_index() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 thread_count() { return u64(gridDim.x) * blockDim.x; }

// ---------------------------------------------------------------------------------------------------- contents

enum Law { NORMAL, UNIFORM, CONSTANT };

struct Contents {  // `Fill`, with one seed for each thing that is drawn
    double a, b, low, high, rate, scale;
    u64 value_seed, row_seed, outlier_seed;
    u64 count, columns;
    int law;
    u32 kind_count, stride, shift;  // kinds of rows: `Fill.deal`; 0: all rows are alike
    u64 kinds;                      // four bits each, the first kind lowest
    double subnormal;               // makes numbers of the law subnormal in the element's type
};

enum Kind {  // in the order of evo.operator.ROW_KINDS
    PLAIN, ZEROS, CONSTANT_ROW, TINY, HUGE_ROW, HEAVY, OUTLIER, FIRST, LAST, ALTERNATING, SUBNORMAL, NAN_ROW, INF_ROW
};

// U(0, 1) of 32 bits, never 0 or 1.
template <class W>
__device__ __forceinline__ W unit(u32 x) {
    return (W(x) + W(0.5)) * W(1.0 / 4294967296.0);
}
template <>
__device__ __forceinline__ float unit<float>(u32 x) {  // 23 bits: 32 would round up to 1
    return (float(x >> 9) + 0.5f) * (1.0f / 8388608.0f);
}

__device__ __forceinline__ float normal(float u, float v) { return sqrtf(-2.0f * logf(u)) * cospif(2.0f * v); }
__device__ __forceinline__ double normal(double u, double v) { return sqrt(-2.0 * log(u)) * cospi(2.0 * v); }
__device__ __forceinline__ float power_of_two(float x) { return exp2f(x); }
__device__ __forceinline__ double power_of_two(double x) { return exp2(x); }

// What `value`, drawn by the law for element i, becomes in a row of its kind.
template <class W>
__device__ __noinline__ W dealt(const Contents& c, u64 i, W value) {
    const u64 row = i / c.columns, column = i % c.columns;
    const u64 h = mix(c.row_seed + row * golden), place = __umul64hi(h, c.columns);
    const u32 kind = c.kinds >> 4 * ((row % c.kind_count * c.stride + c.shift) % c.kind_count) & 15;
    switch (kind) {
        case ZEROS: return W(0);
        case CONSTANT_ROW: return W(c.a) + W(c.b) * normal(unit<W>(u32(h >> 32)), unit<W>(u32(h)));
        case TINY: return value * power_of_two(W(c.low));
        case HUGE_ROW: return value * power_of_two(W(c.high));
        case HEAVY: {  // a normal number over the root of an exponential one
            const W e = -log(unit<W>(u32(mix(c.outlier_seed + i * golden) >> 32)));
            return fmin(fmax(value / sqrt(e), W(-16384)), W(16384));
        }
        case FIRST: return column == 0 ? value : W(0);
        case LAST: return column == c.columns - 1 ? value : W(0);
        case ALTERNATING: return column & 1 ? W(-3) : W(3);
        case SUBNORMAL: return value * W(c.subnormal);
        case OUTLIER: return column == place ? W(c.scale) : value;
        case NAN_ROW: return column == place ? W(__longlong_as_double(0x7FF8000000000000ll)) : value;
        case INF_ROW: return column == place ? W(__longlong_as_double(0x7FF0000000000000ll)) : value;
    }
    return value;
}

template <class W>
__device__ __forceinline__ W element(const Contents& c, u64 i) {
    const u64 h = mix(c.value_seed + i * golden);
    W value = W(c.a);
    if (c.law == NORMAL) value += W(c.b) * normal(unit<W>(u32(h >> 32)), unit<W>(u32(h)));
    if (c.law == UNIFORM) value += W(c.b - c.a) * unit<W>(u32(h >> 32));
    if (c.kind_count) return dealt<W>(c, i, value);
    if (c.low != 0.0 || c.high != 0.0) {
        const u64 row = c.count >> 32 ? i / c.columns : u32(i) / u32(c.columns);
        const W u = unit<W>(u32(mix(c.row_seed + row * golden) >> 32));
        value *= power_of_two(W(c.low) + W(c.high - c.low) * u);
    }
    if (c.rate > 0.0 && unit<W>(u32(mix(c.outlier_seed + i * golden) >> 32)) < W(c.rate)) value *= W(c.scale);
    return value;
}

template <class T, class W>
__device__ __forceinline__ void fill(T* out, const Contents& c) {
    for (u64 i = thread_index(); i < c.count; i += thread_count()) narrow(out[i], element<W>(c, i));
}

#define FILL(name, type, wide) \
    extern "C" __global__ void __launch_bounds__(256) fill_##name(type* out, Contents c) { fill<type, wide>(out, c); }
FILL(bf16, bf16, float)
FILL(fp16, fp16, float)
FILL(fp32, float, float)
FILL(fp64, double, double)
FILL(u8, unsigned char, double)
FILL(i8, signed char, double)
FILL(i32, int, double)
FILL(u32, unsigned int, double)
FILL(i64, long long, double)
FILL(u64, unsigned long long, double)

// ------------------------------------------------------------------------------------------------------ poison

enum Mode { BITS, NANS, PLAUSIBLE, MIXED };  // of fitness/poison.py

struct Poison {
    u64 key, exponent_key;
    // Masks for all elements of a word: exponent bits, highest mantissa bits, the largest finite exponents.
    u64 exponent, quiet, huge;
    u32 width, mantissa, top;  // of an element: bits, mantissa bits, largest exponent field of plausible numbers
    u32 mode;
};

// Numbers of the elements' type with the sign and mantissa bits of h. Their exponent is `top`, or one less for every
// trailing zero of random bits: uniform numbers.
__device__ __forceinline__ u64 plausible(const Poison& p, u64 h) {
    const u64 draw = mix(p.exponent_key ^ h);
    u64 word = h & ~p.exponent;
    for (u32 at = 0; at < 64; at += p.width) {
        const u32 zeros = __ffs(u32(draw >> at) | 1u << 11) - 1;
        word |= u64(p.top > zeros ? p.top - zeros : 0) << (at + p.mantissa);
    }
    return word;
}

// Every 8-byte word gets keyed bits, which for floats become quiet NaNs of varying payload (one word in eight: huge
// numbers), plausible numbers, or either.
__device__ __forceinline__ u64 poison_word(const Poison& p, u64 k) {
    const u64 h = mix(p.key + k * golden), draw = h * golden;
    if (p.mode == BITS) return h;
    if (p.mode == PLAUSIBLE || (p.mode == MIXED && (draw >> 60 & 1))) return plausible(p, h);
    return draw >> 61 == 0 ? (h & ~p.exponent) | p.huge : h | p.exponent | p.quiet;
}

extern "C" __global__ void __launch_bounds__(256) poison(u8* out, u64 bytes, Poison p) {
    const bool aligned = (u64(out) & 7) == 0;
    for (u64 k = thread_index(); 8 * k < bytes; k += thread_count()) {
        const u64 word = poison_word(p, k);
        if (aligned && 8 * k + 8 <= bytes) {
            reinterpret_cast<u64*>(out)[k] = word;
        } else {
            for (u64 j = 8 * k; j < bytes && j < 8 * k + 8; ++j) out[j] = u8(word >> (8 * (j - 8 * k)));
        }
    }
}

// ------------------------------------------------------------------------------------------------- guard bands

struct Band {
    u64 start, bytes;
    u64 before;  // 1: lies before its buffer, so that distances count backwards from its end
};

// The pattern depends on the address, so that a band copied elsewhere does not pass.
__device__ __forceinline__ u8 band_byte(u64 address, u64 key) {
    return u8(mix(key + (address >> 3) * golden) >> (8 * (address & 7)));
}

// One band a block along x; along y the blocks share it.
__device__ __forceinline__ u64 slice() { return u64(blockIdx.y) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 slices() { return u64(gridDim.y) * blockDim.x; }

extern "C" __global__ void __launch_bounds__(256) guard_write(const Band* bands, u64 key) {
    const Band band = bands[blockIdx.x];
    for (u64 i = slice(); i < band.bytes; i += slices())
        reinterpret_cast<u8*>(band.start)[i] = band_byte(band.start + i, key);
}

// *first becomes the least (band << 40 | distance from its buffer) of a changed byte; the caller sets it to ~0.
extern "C" __global__ void __launch_bounds__(256) guard_check(const Band* bands, u64 key, u64* first) {
    const Band band = bands[blockIdx.x];
    for (u64 i = slice(); i < band.bytes; i += slices()) {
        if (reinterpret_cast<const u8*>(band.start)[i] == band_byte(band.start + i, key)) continue;
        const u64 distance = band.before ? band.bytes - 1 - i : i;
        atomicMin(first, u64(blockIdx.x) << 40 | distance);
    }
}

// ------------------------------------------------------------------------------------------ contents as numbers

struct alignas(16) Pair {
    u64 low, high;
};

// The k-th 16 bytes of a buffer, zero beyond its end.
__device__ __forceinline__ Pair pair_at(const u8* data, u64 bytes, u64 k) {
    if ((u64(data) & 15) == 0 && 16 * k + 16 <= bytes) return reinterpret_cast<const Pair*>(data)[k];
    Pair pair{0, 0};
    for (u64 j = 0; j < 16 && 16 * k + j < bytes; ++j)
        (j < 8 ? pair.low : pair.high) |= u64(data[16 * k + j]) << (8 * (j & 7));
    return pair;
}

// *found, zero before, becomes nonzero when any byte is.
extern "C" __global__ void __launch_bounds__(256) find_nonzero(const u8* data, u64 bytes, u32* found) {
    u64 any = 0;
    for (u64 k = thread_index(); 16 * k < bytes; k += thread_count()) {
        const Pair pair = pair_at(data, bytes, k);
        any |= pair.low | pair.high;
    }
    if (__syncthreads_or(any != 0) && threadIdx.x == 0) atomicOr(found, 1u);
}

// Adds to *total the sum over all 16-byte pairs of a folded 128-bit product of the keyed pair: commutative, so that the
// order of the threads does not matter, and dependent on the position, so that the order of the contents does.
extern "C" __global__ void __launch_bounds__(256) digest(const u8* data, u64 bytes, u64 key, u64 key2, u64* total) {
    u64 sum = 0;
    for (u64 k = thread_index(); 16 * k < bytes; k += thread_count()) {
        const Pair pair = pair_at(data, bytes, k);
        const u64 x = pair.low ^ (key + k * golden), y = pair.high ^ (key2 + k * 0xD1342543DE82EF95ull);
        sum += (x * y) ^ __umul64hi(x, y);
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

// --------------------------------------------------------------------------------------------------- the clock

// A plain copy, 16 bytes a thread and step, at most four steps in flight: what the memory system gives at best.
extern "C" __global__ void __launch_bounds__(256)
    copy(const uint4* __restrict__ from, uint4* __restrict__ to, u64 count, u32 steps) {
    const u64 base = u64(blockIdx.x) * (256 * steps) + threadIdx.x;
    uint4 held[4];
#pragma unroll
    for (u32 s = 0; s < 4; ++s)
        if (s < steps && base + 256 * s < count) held[s] = __ldcs(from + base + 256 * s);
#pragma unroll
    for (u32 s = 0; s < 4; ++s)
        if (s < steps && base + 256 * s < count) __stcs(to + base + 256 * s, held[s]);
}

// Holds the stream until the host has put this ticket into its memory, so that what follows is queued before it starts;
// at most so many nanoseconds, for a host that is gone.
extern "C" __global__ void gate(const volatile u64* opened, u64 ticket, u64 nanoseconds) {
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*opened != ticket && now - start < nanoseconds);
}

extern "C" __global__ void null_kernel() {}
