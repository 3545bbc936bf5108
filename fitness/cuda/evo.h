// evo.h: what a CUDA genome may include. Element types and thin PTX wrappers; no CUDA header, so that a build stays
// under a tenth of a second. The names of the scalar half are those of the CPU target's evo.h.
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

// --- a 16-byte access: four words that hold 16 / sizeof(T) elements

template <class T> struct evo_words {
    static constexpr int SIZE = 16 / sizeof(T);

    static EVO_DEVICE void unpack(const unsigned (&words)[4], float (&values)[SIZE]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = evo_unpack2<T>(words[i]);
            values[2 * i] = pair.x;
            values[2 * i + 1] = pair.y;
        }
    }
    static EVO_DEVICE void pack(const float (&values)[SIZE], unsigned (&words)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = evo_pack2<T>(values[2 * i], values[2 * i + 1]);
    }
};
template <> struct evo_words<float> {
    static constexpr int SIZE = 4;

    static EVO_DEVICE void unpack(const unsigned (&words)[4], float (&values)[SIZE]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = __uint_as_float(words[i]);
    }
    static EVO_DEVICE void pack(const float (&values)[SIZE], unsigned (&words)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(values[i]);
    }
};

// Vector accesses by instruction text, so that a string gene can choose the policy: `EVO_LOAD4(LOAD, words, pointer)`
// with LOAD "ld.global.nc.L1::no_allocate.v4.b32". `words` is an array of four unsigned; the text ends in `.v4.b32`.
#define EVO_LOAD4(TEXT, WORDS, POINTER)                                                    \
    asm volatile(TEXT " {%0, %1, %2, %3}, [%4];"                                           \
                 : "=r"((WORDS)[0]), "=r"((WORDS)[1]), "=r"((WORDS)[2]), "=r"((WORDS)[3])  \
                 : "l"(POINTER))
#define EVO_STORE4(TEXT, POINTER, WORDS)                                                   \
    asm volatile(TEXT " [%0], {%1, %2, %3, %4};" ::"l"(POINTER), "r"((WORDS)[0]),          \
                 "r"((WORDS)[1]), "r"((WORDS)[2]), "r"((WORDS)[3])                         \
                 : "memory")

// --- any number of such accesses: SIZE elements of T in SIZE * sizeof(T) / 4 words

template <class T, int SIZE>
EVO_DEVICE void evo_unpack(const unsigned (&words)[SIZE * sizeof(T) / 4], float (&values)[SIZE]) {
    constexpr int STEP = evo_words<T>::SIZE;
#pragma unroll
    for (int i = 0; i < SIZE; i += STEP) {
        unsigned four[4];
        float some[STEP];
#pragma unroll
        for (int j = 0; j < 4; ++j) four[j] = words[i / STEP * 4 + j];
        evo_words<T>::unpack(four, some);
#pragma unroll
        for (int j = 0; j < STEP; ++j) values[i + j] = some[j];
    }
}

template <class T, int SIZE>
EVO_DEVICE void evo_pack(const float (&values)[SIZE], unsigned (&words)[SIZE * sizeof(T) / 4]) {
    constexpr int STEP = evo_words<T>::SIZE;
#pragma unroll
    for (int i = 0; i < SIZE; i += STEP) {
        unsigned four[4];
        float some[STEP];
#pragma unroll
        for (int j = 0; j < STEP; ++j) some[j] = values[i + j];
        evo_words<T>::pack(some, four);
#pragma unroll
        for (int j = 0; j < 4; ++j) words[i / STEP * 4 + j] = four[j];
    }
}

// All words of an array, 16 bytes at a time.
#define EVO_LOAD(TEXT, WORDS, POINTER)                                                     \
    _Pragma("unroll") for (int evo_i = 0; evo_i < (int)(sizeof(WORDS) / 16); ++evo_i)      \
        EVO_LOAD4(TEXT, (WORDS) + 4 * evo_i, (const char*)(POINTER) + 16 * evo_i)
#define EVO_STORE(TEXT, POINTER, WORDS)                                                    \
    _Pragma("unroll") for (int evo_i = 0; evo_i < (int)(sizeof(WORDS) / 16); ++evo_i)      \
        EVO_STORE4(TEXT, (char*)(POINTER) + 16 * evo_i, (WORDS) + 4 * evo_i)

// --- warps: all 32 lanes must take part

// Sum over groups of WIDTH neighbouring lanes (a power of two); every lane gets its group's sum.
template <int WIDTH = 32> EVO_DEVICE float evo_sum(float value) {
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
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
template <int COUNT> EVO_DEVICE void evo_shared_load(unsigned address, unsigned (&words)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
                     : "r"(address + 4 * i)
                     : "memory");
}

template <int COUNT> EVO_DEVICE void evo_shared_store(unsigned address, const unsigned (&words)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address + 4 * i), "r"(words[i]),
                     "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3])
                     : "memory");
}

// Barrier 1 to 15 among `threads` threads (whole warps) of the CTA; 0 is __syncthreads'.
EVO_DEVICE void evo_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

EVO_DEVICE unsigned evo_cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The same variable in the shared memory of the cluster's CTA number `rank`.
EVO_DEVICE unsigned evo_peer(unsigned address, unsigned rank) {
    unsigned remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

EVO_DEVICE float evo_peer_load(unsigned remote) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
    return value;
}

// Asynchronous store to a peer; when it lands, `barrier` (in the same peer) counts its 4 bytes.
EVO_DEVICE void evo_peer_store(unsigned remote, float value, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote),
                 "r"(__float_as_uint(value)), "r"(barrier)
                 : "memory");
}

// All threads of all CTAs of the cluster; what was written before `arrive` is visible after `wait`.
EVO_DEVICE void evo_cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
EVO_DEVICE void evo_cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// --- mbarriers

EVO_DEVICE void evo_barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the cluster and to the copy engine; a CTA or cluster barrier must follow.
EVO_DEVICE void evo_barrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

EVO_DEVICE void evo_barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

EVO_DEVICE void evo_barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

EVO_DEVICE void evo_barrier_wait(unsigned barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n\t.reg .pred done;\n\t"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, done;\n\t}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
}

// --- bulk copies, global to shared, that complete on an mbarrier of this CTA

// `bytes`, both addresses: multiples of 16.
EVO_DEVICE void evo_bulk_load(unsigned shared, const void* global, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier)
                 : "memory");
}

// Makes this thread's shared-memory accesses happen before later ones of the copy engine.
EVO_DEVICE void evo_copy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A whole warp has read a part of shared memory and gives it back to the thread that fills it by bulk copies; counts as
// one arrival. Without the fence the next copy was seen to land before the last one had been read.
EVO_DEVICE void evo_release(unsigned barrier) {
    evo_copy_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) evo_barrier_arrive(barrier);
}

// Shared to global, `bytes` and both addresses multiples of 16; a thread waits for the bulk stores that it committed.
EVO_DEVICE void evo_bulk_store(void* global, unsigned shared, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
                 : "memory");
}
EVO_DEVICE void evo_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most PENDING groups have not been read from shared memory yet.
template <int PENDING> EVO_DEVICE void evo_bulk_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// --- asynchronous 16-byte copies, global to shared; a thread waits for the groups that it committed

EVO_DEVICE void evo_async_load(unsigned shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
EVO_DEVICE void evo_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most PENDING groups are on their way.
template <int PENDING> EVO_DEVICE void evo_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// A box of a two-dimensional tensor map; `column` is the innermost coordinate. `shared` is 128-byte aligned.
EVO_DEVICE void evo_tensor_load(unsigned shared, const CUtensorMap* map, int column, int row, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared),
        "l"(map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

// --- programmatic dependent launch (`pdl` in the launch plan)

EVO_DEVICE void evo_pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
EVO_DEVICE void evo_pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
