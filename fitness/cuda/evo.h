// evo.h: what a CUDA genome includes. Element types and thin PTX wrappers; no CUDA header, so that a build stays under
// a tenth of a second. The names of the scalar half are those of the CPU target's evo.h. Its end includes evo_async.h;
// evo_mma.h is for who wants it.
#pragma once

#define EVO_DEVICE __device__ __forceinline__

// --- element types

struct evo_bf16 {
    unsigned short bits;
};
struct evo_fp16 {
    unsigned short bits;
};

// A tensor map travels as `const __grid_constant__ CUtensorMap`. The driver's layout is opaque: 128 bytes.
struct alignas(64) CUtensorMap {
    unsigned long long opaque[16];
};

EVO_DEVICE float evo_float(evo_bf16 value) { return __uint_as_float((unsigned)value.bits << 16); }
EVO_DEVICE float evo_float(evo_fp16 value) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
}
EVO_DEVICE float evo_float(float value) { return value; }
EVO_DEVICE float evo_float(double value) { return (float)value; }

// Rounds to nearest, ties to even; NaN stays NaN.
template <class T> EVO_DEVICE T evo_cast(float value);
template <> EVO_DEVICE evo_bf16 evo_cast<evo_bf16>(float value) {
    evo_bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
}
template <> EVO_DEVICE evo_fp16 evo_cast<evo_fp16>(float value) {
    evo_fp16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
}
template <> EVO_DEVICE float evo_cast<float>(float value) { return value; }
template <> EVO_DEVICE double evo_cast<double>(float value) { return value; }

// --- functions of one approximate instruction, subnormals flushed to zero

EVO_DEVICE float evo_exp2(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
EVO_DEVICE float evo_reciprocal(float x) {
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
// Off by up to 2^-11.
EVO_DEVICE float evo_tanh(float x) {
    asm("tanh.approx.f32 %0, %0;" : "+f"(x));
    return x;
}
// 1 / sqrt(x). How: 0 approximate, 1 with one step of Newton's, 2 a square root and a division, both rounded.
template <int How = 0> EVO_DEVICE float evo_rsqrt(float x) {
    float root;
    if constexpr (How == 2) {
        asm("sqrt.rn.f32 %0, %1;\n\trcp.rn.f32 %0, %0;" : "=f"(root) : "f"(x));
    } else {
        asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
        if constexpr (How == 1) root *= 1.5f - 0.5f * x * root * root;
    }
    return root;
}

// --- two 16-bit elements in a 32-bit word: x is the lower half, the one at the lower address

template <class T> EVO_DEVICE float2 evo_unpack2(unsigned word);
template <> EVO_DEVICE float2 evo_unpack2<evo_bf16>(unsigned word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}
template <> EVO_DEVICE float2 evo_unpack2<evo_fp16>(unsigned word) {
    return {evo_float(evo_fp16{(unsigned short)word}), evo_float(evo_fp16{(unsigned short)(word >> 16)})};
}

template <class T> EVO_DEVICE unsigned evo_pack2(float low, float high);
template <> EVO_DEVICE unsigned evo_pack2<evo_bf16>(float low, float high) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
template <> EVO_DEVICE unsigned evo_pack2<evo_fp16>(float low, float high) {
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// Both at once, rounded to T; T is evo_bf16 or evo_fp16.
template <class T> EVO_DEVICE unsigned evo_add2(unsigned a, unsigned b);
template <class T> EVO_DEVICE unsigned evo_sub2(unsigned a, unsigned b);
template <class T> EVO_DEVICE unsigned evo_mul2(unsigned a, unsigned b);
#define EVO_TWO(name, opcode, T, suffix)                              \
    template <> EVO_DEVICE unsigned name<T>(unsigned a, unsigned b) { \
        asm(opcode ".rn." suffix " %0, %0, %1;" : "+r"(a) : "r"(b));  \
        return a;                                                     \
    }
EVO_TWO(evo_add2, "add", evo_bf16, "bf16x2")
EVO_TWO(evo_sub2, "sub", evo_bf16, "bf16x2")
EVO_TWO(evo_mul2, "mul", evo_bf16, "bf16x2")
EVO_TWO(evo_add2, "add", evo_fp16, "f16x2")
EVO_TWO(evo_sub2, "sub", evo_fp16, "f16x2")
EVO_TWO(evo_mul2, "mul", evo_fp16, "f16x2")
#undef EVO_TWO

// --- a 16-byte access: four words that hold 16 / sizeof(T) elements

template <class T> struct evo_words {
    enum : int { size = 16 / sizeof(T) };  // no variable: one would be in the machine code of every genome
#ifndef SIZE  // the older name; a gene of that name takes its place
    static constexpr int SIZE = size;
#endif

    static EVO_DEVICE void unpack(const unsigned (&words)[4], float (&values)[size]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = evo_unpack2<T>(words[i]);
            values[2 * i] = pair.x;
            values[2 * i + 1] = pair.y;
        }
    }
    static EVO_DEVICE void pack(const float (&values)[size], unsigned (&words)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = evo_pack2<T>(values[2 * i], values[2 * i + 1]);
    }
};
template <> struct evo_words<float> {
    enum : int { size = 4 };
#ifndef SIZE
    static constexpr int SIZE = size;
#endif

    static EVO_DEVICE void unpack(const unsigned (&words)[4], float (&values)[size]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = __uint_as_float(words[i]);
    }
    static EVO_DEVICE void pack(const float (&values)[size], unsigned (&words)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(values[i]);
    }
};

// Vector accesses by instruction text, so that a string gene can choose the policy: `EVO_LOAD4(LOAD, words, pointer)`
// with LOAD "ld.global.nc.L1::no_allocate.v4.b32". `words` is an array of four unsigned; the text ends in `.v4.b32`.
#define EVO_LOAD4(text, words, pointer)                                                    \
    asm volatile(text " {%0, %1, %2, %3}, [%4];"                                           \
                 : "=r"((words)[0]), "=r"((words)[1]), "=r"((words)[2]), "=r"((words)[3])  \
                 : "l"(pointer))
#define EVO_STORE4(text, pointer, words)                                                   \
    asm volatile(text " [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"((words)[0]),          \
                 "r"((words)[1]), "r"((words)[2]), "r"((words)[3])                         \
                 : "memory")

// --- any number of such accesses: Size elements of T in Size * sizeof(T) / 4 words

template <class T, int Size>
EVO_DEVICE void evo_unpack(const unsigned (&words)[Size * sizeof(T) / 4], float (&values)[Size]) {
    constexpr int step = evo_words<T>::size;
#pragma unroll
    for (int i = 0; i < Size; i += step) {
        unsigned four[4];
        float some[step];
#pragma unroll
        for (int j = 0; j < 4; ++j) four[j] = words[i / step * 4 + j];
        evo_words<T>::unpack(four, some);
#pragma unroll
        for (int j = 0; j < step; ++j) values[i + j] = some[j];
    }
}

template <class T, int Size>
EVO_DEVICE void evo_pack(const float (&values)[Size], unsigned (&words)[Size * sizeof(T) / 4]) {
    constexpr int step = evo_words<T>::size;
#pragma unroll
    for (int i = 0; i < Size; i += step) {
        unsigned four[4];
        float some[step];
#pragma unroll
        for (int j = 0; j < step; ++j) some[j] = values[i + j];
        evo_words<T>::pack(some, four);
#pragma unroll
        for (int j = 0; j < 4; ++j) words[i / step * 4 + j] = four[j];
    }
}

// All words of an array, 16 bytes at a time.
#define EVO_LOAD(text, words, pointer)                                                     \
    _Pragma("unroll") for (int evo_i = 0; evo_i < (int)(sizeof(words) / 16); ++evo_i)      \
        EVO_LOAD4(text, (words) + 4 * evo_i, (const char*)(pointer) + 16 * evo_i)
#define EVO_STORE(text, pointer, words)                                                    \
    _Pragma("unroll") for (int evo_i = 0; evo_i < (int)(sizeof(words) / 16); ++evo_i)      \
        EVO_STORE4(text, (char*)(pointer) + 16 * evo_i, (words) + 4 * evo_i)

// --- warps: all 32 lanes must take part

// Sum over groups of Width neighbouring lanes (a power of two); every lane gets its group's sum.
template <int Width = 32> EVO_DEVICE float evo_sum(float value) {
#pragma unroll
    for (int step = Width / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

// --- shared memory and clusters (addresses are 32-bit, in the shared window)

EVO_DEVICE unsigned evo_shared(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

EVO_DEVICE float evo_shared_load(unsigned address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

EVO_DEVICE void evo_shared_store(unsigned address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// 16 bytes at a time into an array of words; the address is a multiple of 16.
template <int Count> EVO_DEVICE void evo_shared_load(unsigned address, unsigned (&words)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; i += 4)
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
                     : "r"(address + 4 * i)
                     : "memory");
}

template <int Count> EVO_DEVICE void evo_shared_store(unsigned address, const unsigned (&words)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; i += 4)
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address + 4 * i), "r"(words[i]),
                     "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3])
                     : "memory");
}

// One word, two neighbouring floats (8-byte aligned), one 16-bit element.
EVO_DEVICE unsigned evo_shared_load_word(unsigned address) {
    unsigned word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}
EVO_DEVICE void evo_shared_store_word(unsigned address, unsigned word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
EVO_DEVICE float2 evo_shared_load_pair(unsigned address) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
    return pair;
}
EVO_DEVICE void evo_shared_store_pair(unsigned address, float2 pair) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(pair.x), "f"(pair.y) : "memory");
}
template <class T> EVO_DEVICE void evo_shared_store_half(unsigned address, T value) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(value.bits) : "memory");
}

// Barrier 1 to 15 among `threads` threads (whole warps) of the CTA; 0 is __syncthreads'.
EVO_DEVICE void evo_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#include "evo_async.h"
