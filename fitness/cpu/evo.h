// What a CPU genome may include: element types and a small portable vector of 16 floats.
//
//   extern "C" void NAME(long first_item, long last_item, int worker, args...)
//
// is called for blocks [first_item, last_item) of the launch's work items, by any worker, in any order. Tensors are
// plain pointers to evo_bf16, evo_fp16, float, double, int ...; scalars are int, long, float or double.
// This header is light (a build takes about 60 ms); immintrin.h may be included as well and costs about 300 ms.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct evo_bf16 {
    uint16_t bits;
};

struct evo_fp16 {
    uint16_t bits;
};

#define EVO_INLINE inline __attribute__((always_inline))

typedef uint32_t evo_vector_u32 __attribute__((vector_size(64)));
typedef uint16_t evo_vector_u16 __attribute__((vector_size(32)));

namespace evo_detail {
#if defined(__AVX512F__)
constexpr int Register = 64;  // bytes of the widest one
#elif defined(__AVX__)
constexpr int Register = 32;
#else
constexpr int Register = 16;
#endif
constexpr int Parts = 64 / Register;
typedef float float_part __attribute__((vector_size(Register)));
}  // namespace evo_detail

#if defined(__AVX512F__)
typedef float evo_vector __attribute__((vector_size(64)));  // 16 floats
#else
// 16 floats in two ymm or four xmm registers: gcc keeps a vector that is wider than they are in memory.
struct evo_vector {
    evo_detail::float_part part[evo_detail::Parts];

    EVO_INLINE float& operator[](int lane) { return reinterpret_cast<float*>(part)[lane]; }
    EVO_INLINE float operator[](int lane) const { return reinterpret_cast<const float*>(part)[lane]; }
};

#define EVO_LANE_BY_LANE(op)                                                                      \
    EVO_INLINE evo_vector& operator op##=(evo_vector& a, const evo_vector& b) {                   \
        for (int i = 0; i < evo_detail::Parts; ++i) a.part[i] op##= b.part[i];                    \
        return a;                                                                                 \
    }                                                                                             \
    EVO_INLINE evo_vector& operator op##=(evo_vector& a, float b) {                               \
        for (int i = 0; i < evo_detail::Parts; ++i) a.part[i] op##= b;                            \
        return a;                                                                                 \
    }                                                                                             \
    EVO_INLINE evo_vector operator op(evo_vector a, const evo_vector& b) { return a op##= b; }    \
    EVO_INLINE evo_vector operator op(evo_vector a, float b) { return a op##= b; }                \
    EVO_INLINE evo_vector operator op(float a, const evo_vector& b) {                             \
        evo_vector result;                                                                        \
        for (int i = 0; i < evo_detail::Parts; ++i) result.part[i] = a op b.part[i];              \
        return result;                                                                            \
    }
EVO_LANE_BY_LANE(+)
EVO_LANE_BY_LANE(-)
EVO_LANE_BY_LANE(*)
EVO_LANE_BY_LANE(/)
#undef EVO_LANE_BY_LANE
EVO_INLINE evo_vector operator-(const evo_vector& a) { return -0.0f - a; }
#endif

// ---- scalars: evo_float(x) widens, evo_cast<T>(x) rounds to nearest even ----

namespace evo_detail {

template <class To, class From>
EVO_INLINE To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "evo_detail::bits keeps the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// fp16 without F16C: one multiplication moves the exponent (subnormals included), infinities and NaN apart.
EVO_INLINE float widen_fp16(uint16_t half) {
#if defined(__F16C__) && defined(__FLT16_MANT_DIG__)
    return static_cast<float>(bits<_Float16>(half));
#else
    uint32_t magnitude = half & 0x7fffu, sign = (half & 0x8000u) << 16;
    float value = bits<float>(magnitude << 13) * 0x1p112f;
    uint32_t wide = magnitude >= 0x7c00u ? (magnitude << 13) | 0x7f800000u : bits<uint32_t>(value);
    return bits<float>(wide | sign);
#endif
}

EVO_INLINE uint16_t narrow_fp16(float value) {
#if defined(__F16C__) && defined(__FLT16_MANT_DIG__)
    return bits<uint16_t>(static_cast<_Float16>(value));
#else
    uint32_t wide = bits<uint32_t>(value), sign = (wide >> 16) & 0x8000u, magnitude = wide & 0x7fffffffu, half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
        half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 makes the hardware round at bit 2^-24
        half = bits<uint32_t>(bits<float>(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return static_cast<uint16_t>(half | sign);
#endif
}

EVO_INLINE uint16_t narrow_bf16(float value) {
    uint32_t wide = bits<uint32_t>(value);
    uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>((wide & 0x7fffffffu) > 0x7f800000u ? (wide >> 16) | 0x40u : rounded);
}

template <class T>
struct element {  // float, double and the integers: what the language does
    static EVO_INLINE float widen(T value) { return static_cast<float>(value); }
    static EVO_INLINE T narrow(float value) { return static_cast<T>(value); }
};

template <>
struct element<evo_bf16> {
    static EVO_INLINE float widen(evo_bf16 value) { return bits<float>(static_cast<uint32_t>(value.bits) << 16); }
    static EVO_INLINE evo_bf16 narrow(float value) { return evo_bf16{narrow_bf16(value)}; }
};

template <>
struct element<evo_fp16> {
    static EVO_INLINE float widen(evo_fp16 value) { return widen_fp16(value.bits); }
    static EVO_INLINE evo_fp16 narrow(float value) { return evo_fp16{narrow_fp16(value)}; }
};

}  // namespace evo_detail

template <class T>
EVO_INLINE float evo_float(T value) {
    return evo_detail::element<T>::widen(value);
}

template <class T>
EVO_INLINE T evo_cast(float value) {
    return evo_detail::element<T>::narrow(value);
}

// ---- vectors: 16 elements of any type in memory, floats in registers ----

namespace evo_detail {

template <class T>
struct lanes {  // any element type, one lane at a time
    struct packed {
        T lane[16];
    };
    static EVO_INLINE evo_vector widen(packed from) {
        evo_vector to;
        for (int i = 0; i < 16; ++i) to[i] = evo_float(from.lane[i]);
        return to;
    }
    static EVO_INLINE packed narrow(evo_vector from) {
        packed to;
        for (int i = 0; i < 16; ++i) to.lane[i] = evo_cast<T>(from[i]);
        return to;
    }
};

// Vectors of a register's size, each copied by itself: gcc copies a larger struct through memory.
template <class Part>
struct parts {
    Part part[Parts];
};

template <class Packed>
EVO_INLINE void fetch(Packed& to, const void* from) {
    __builtin_memcpy(&to, from, sizeof to);
}
template <class Part>
EVO_INLINE void fetch(parts<Part>& to, const void* from) {
    const char* at = static_cast<const char*>(from);
    for (Part& part : to.part) __builtin_memcpy(&part, at, sizeof part), at += sizeof part;
}

template <class Packed>
EVO_INLINE void put(void* to, const Packed& from) {
    __builtin_memcpy(to, &from, sizeof from);
}
template <class Part>
EVO_INLINE void put(void* to, const parts<Part>& from) {
    char* at = static_cast<char*>(to);
    for (const Part& part : from.part) __builtin_memcpy(at, &part, sizeof part), at += sizeof part;
}

template <>
struct lanes<float> {
    typedef float part __attribute__((vector_size(Register)));
    typedef parts<part> packed;
    static EVO_INLINE evo_vector widen(packed from) { return bits<evo_vector>(from); }
    static EVO_INLINE packed narrow(evo_vector from) { return bits<packed>(from); }
};

template <>
struct lanes<evo_bf16> {
    typedef uint32_t wide_part __attribute__((vector_size(Register)));
    typedef int32_t int_part __attribute__((vector_size(Register)));  // compares without a bias
    typedef uint16_t part __attribute__((vector_size(Register / 2)));
    typedef parts<part> packed;
    static EVO_INLINE evo_vector widen(packed from) {
        parts<wide_part> to;
        for (int i = 0; i < Parts; ++i) to.part[i] = __builtin_convertvector(from.part[i], wide_part) << 16;
        return bits<evo_vector>(to);
    }
    static EVO_INLINE packed narrow(evo_vector from) {
        const parts<wide_part> wide = bits<parts<wide_part>>(from);
        packed to;
        for (int i = 0; i < Parts; ++i) {
            wide_part rounded = (wide.part[i] + 0x7fffu + ((wide.part[i] >> 16) & 1u)) >> 16;
            wide_part nan = bits<wide_part>(bits<int_part>(wide.part[i] & 0x7fffffffu) > 0x7f800000);  // all ones or zero
            to.part[i] = __builtin_convertvector((nan & ((wide.part[i] >> 16) | 0x40u)) | (~nan & rounded), part);
        }
        return to;
    }
};

#if defined(__AVX512F__)
template <>
struct lanes<evo_fp16> {
    typedef short packed __attribute__((vector_size(32)));
    static EVO_INLINE evo_vector widen(packed from) {
        return __builtin_ia32_vcvtph2ps512_mask(from, evo_vector{}, 0xffff, 4);
    }
    static EVO_INLINE packed narrow(evo_vector from) {
        return __builtin_ia32_vcvtps2ph512_mask(from, 0, packed{}, 0xffff);
    }
};
#elif defined(__F16C__) && defined(__AVX__)
template <>
struct lanes<evo_fp16> {
    typedef short part __attribute__((vector_size(16)));
    typedef parts<part> packed;
    static EVO_INLINE evo_vector widen(packed from) {
        return evo_vector{{__builtin_ia32_vcvtph2ps256(from.part[0]), __builtin_ia32_vcvtph2ps256(from.part[1])}};
    }
    static EVO_INLINE packed narrow(evo_vector from) {
        return packed{{__builtin_ia32_vcvtps2ph256(from.part[0], 0), __builtin_ia32_vcvtps2ph256(from.part[1], 0)}};
    }
};
#endif

template <class T, class Packed>
EVO_INLINE void stream(T* to, Packed packed) {
#if defined(__SSE2__)
    typedef long long word2 __attribute__((vector_size(16)));
    word2 words[sizeof packed / 16];
    __builtin_memcpy(words, &packed, sizeof packed);
    for (size_t i = 0; i < sizeof packed / 16; ++i) {
#if defined(__clang__)
        __builtin_nontemporal_store(words[i], reinterpret_cast<word2*>(to) + i);
#else
        __builtin_ia32_movntdq(reinterpret_cast<word2*>(to) + i, words[i]);
#endif
    }
#else
    __builtin_memcpy(to, &packed, sizeof packed);
#endif
}

}  // namespace evo_detail

// 16 elements from any address.
template <class T>
EVO_INLINE evo_vector evo_load(const T* from) {
    typename evo_detail::lanes<T>::packed packed;
    evo_detail::fetch(packed, from);
    return evo_detail::lanes<T>::widen(packed);
}

// 16 elements, rounded to nearest even, to any address.
template <class T>
EVO_INLINE void evo_store(T* to, evo_vector value) {
    evo_detail::put(to, evo_detail::lanes<T>::narrow(value));
}

// As evo_store, past the caches; `to` must be aligned to 16 elements. End the block with evo_fence().
template <class T>
EVO_INLINE void evo_stream(T* to, evo_vector value) {
    evo_detail::stream(to, evo_detail::lanes<T>::narrow(value));
}

EVO_INLINE void evo_fence() {
#if defined(__SSE__)
    __builtin_ia32_sfence();
#endif
}

EVO_INLINE evo_vector evo_splat(float value) {
    return evo_vector{} + value;
}

// The sum of the 16 lanes, by halves.
EVO_INLINE float evo_sum(evo_vector value) {
    typedef float eight __attribute__((vector_size(32)));
    typedef float four __attribute__((vector_size(16)));
    eight e[2];
    __builtin_memcpy(e, &value, sizeof e);
    e[0] += e[1];
    four f[2];
    __builtin_memcpy(f, &e[0], sizeof f);
    f[0] += f[1];
    return (f[0][0] + f[0][2]) + (f[0][1] + f[0][3]);
}
