// Element types, mixing and loads that evo's own device kernels share. No other header is needed.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

struct bf16 {
    u16 bits;
};
struct fp16 {
    u16 bits;
};

__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
__device__ __forceinline__ float widen(fp16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ float widen(float x) { return x; }
template <class T>
__device__ __forceinline__ double widen(T x) {  // fp64 and every integer
    return double(x);
}

__device__ __forceinline__ void narrow(bf16& y, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
__device__ __forceinline__ void narrow(fp16& y, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
__device__ __forceinline__ void narrow(float& y, float x) { y = x; }
__device__ __forceinline__ void narrow(double& y, double x) { y = x; }
template <class T>
__device__ __forceinline__ void narrow(T& y, double x) {  // to nearest, saturating
    constexpr bool is_signed = T(-1) < T(0);
    constexpr int bits = 8 * sizeof(T) - (is_signed ? 1 : 0);
    const double top = exp2(double(bits)), bottom = is_signed ? -top : 0.0;
    x = rint(x);
    y = x >= top ? T(is_signed ? (u64(1) << bits) - 1 : ~u64(0)) : x <= bottom ? T(bottom) : T(x);
}

// The finaliser of splitmix64: a bijection of 64 bits in which every input bit reaches every output bit.
constexpr u64 golden = 0x9E3779B97F4A7C15ull;
__device__ __forceinline__ u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
