// evo_mma.h: matrix products by tensor cores and the shared-memory moves that feed them.
//
// A *tile* is an 8 x 8 matrix of 16-bit elements, one word a lane: lane 4 r + c has columns 2 c and 2 c + 1 of row r, the
// first in the lower half. Larger operands are made of tiles, a word each:
//   a [16, 16]: words 0 to 3 are its quarters top left, bottom left, top right, bottom right
//   b [16, 8]:  words 0 and 1 are the transposes of its upper and lower half, so a lane's pairs run along K
//   d [16, n] in fp32: registers 4 j and 4 j + 1 of lane 4 r + c are row r, columns 8 j + 2 c and 8 j + 2 c + 1, registers
//     4 j + 2 and 4 j + 3 the same of row r + 8. Packed two by two (evo_pack2), 16 columns of d are an operand a.
// Of a warpgroup (128 threads) each warp has 16 of the 64 rows of a and d.
#pragma once
#include "evo.h"

// --- tiles between registers and shared memory; lane l gives the address of row l % 8, 16 bytes, of tile l / 8

EVO_DEVICE void evo_tiles_load(unsigned row, unsigned (&tiles)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(row)
                 : "memory");
}
EVO_DEVICE void evo_tiles_load_transposed(unsigned row, unsigned (&tiles)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(row)
                 : "memory");
}
EVO_DEVICE void evo_tiles_store_transposed(unsigned row, const unsigned (&tiles)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(tiles[0]),
                 "r"(tiles[1]), "r"(tiles[2]), "r"(tiles[3])
                 : "memory");
}
// A tile transposed within the warp.
EVO_DEVICE unsigned evo_tile_transpose(unsigned tile) {
    unsigned result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(tile));
    return result;
}

// --- products by one warp

// d [16, 8] += a [16, 16] b [16, 8]; T, evo_bf16 or evo_fp16, is the type of a and b, sums are fp32.
template <class T> EVO_DEVICE void evo_mma(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1);
template <> EVO_DEVICE void evo_mma<evo_bf16>(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> EVO_DEVICE void evo_mma<evo_fp16>(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d [16, 8] = a b of fp16, rounded to fp16: d[0] and d[1] are tiles, rows 0 to 7 and 8 to 15.
EVO_DEVICE void evo_mma_half(unsigned* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %8};"
                 : "=r"(d[0]), "=r"(d[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// --- products by a warpgroup, sm_90a only, asynchronous: fence, products, commit, wait, touch. Between the first product
// and the wait nobody reads or writes d or a. What shared memory holds was written before an evo_copy_fence and a barrier.

EVO_DEVICE void evo_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
EVO_DEVICE void evo_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most Pending groups are in flight.
template <int Pending> EVO_DEVICE void evo_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Tells the compiler that these registers may have changed: they are not moved across a wait or a fence.
template <int Count> EVO_DEVICE void evo_touch(float (&d)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Descriptor of an operand b [16, N] in shared memory without swizzle, made of core matrices: 8 rows of 16 bytes, one
// after the other. `along_k`, `across`: bytes from one core matrix to the next along K and along N, multiples of 16.
EVO_DEVICE unsigned long long evo_wgmma_operand(unsigned address, int along_k, int across) {
    return (unsigned long long)(across >> 4) << 32 | ((address >> 4) + (along_k >> 4 << 16));
}

#define EVO_F4(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define EVO_F8(I) EVO_F4(I), EVO_F4(I + 4)
#define EVO_F16(I) EVO_F8(I), EVO_F8(I + 8)
#define EVO_F32(I) EVO_F16(I), EVO_F16(I + 16)
#define EVO_F64(I) EVO_F32(I), EVO_F32(I + 32)
#define EVO_D8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define EVO_D16 EVO_D8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define EVO_D32 EVO_D16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define EVO_D64                                                                                                  \
    EVO_D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
            "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define EVO_WGMMA(n_, d_, a_, b_, keep_, sign_, turn_, ...)                                                    \
    asm volatile("{ .reg .pred keep; setp.ne.b32 keep, " keep_ ", 0;\n\t"                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #n_ "k16.f32.bf16.bf16 {" d_ "}, {" a_ "}, " b_ ", keep, " \
                 sign_ ", 1, " turn_ "; }"                                                                      \
                 : __VA_ARGS__                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(sign), "n"(turned))

// d [64, N] <- (keep ? d : 0) + Sign a [64, 16] b [16, N] of bf16, sums in fp32. N is 16, 32, 64 or 128, Sign 1 or -1.
// Across: what is contiguous in a core matrix of b is N, not K.
template <int N, int Sign = 1, bool Across = false>
EVO_DEVICE void evo_wgmma(float* d, const unsigned (&a)[4], unsigned long long b, int keep = 1) {
    static_assert(N == 16 || N == 32 || N == 64 || N == 128, "evo_wgmma has N = 16, 32, 64 and 128");
    constexpr int sign = Sign, turned = Across;
    if constexpr (N == 16) EVO_WGMMA(16, EVO_D8, "%8, %9, %10, %11", "%12", "%13", "%14", "%15", EVO_F8(0));
    if constexpr (N == 32) EVO_WGMMA(32, EVO_D16, "%16, %17, %18, %19", "%20", "%21", "%22", "%23", EVO_F16(0));
    if constexpr (N == 64) EVO_WGMMA(64, EVO_D32, "%32, %33, %34, %35", "%36", "%37", "%38", "%39", EVO_F32(0));
    if constexpr (N == 128) EVO_WGMMA(128, EVO_D64, "%64, %65, %66, %67", "%68", "%69", "%70", "%71", EVO_F64(0));
}
#undef EVO_F4
#undef EVO_F8
#undef EVO_F16
#undef EVO_F32
#undef EVO_F64
#undef EVO_D8
#undef EVO_D16
#undef EVO_D32
#undef EVO_D64
#undef EVO_WGMMA
