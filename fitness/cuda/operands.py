"""Constant-bank operands, read from instruction words: a filter that costs microseconds where nvdisasm takes 0.3 s.

An instruction takes 16 bytes (sm_70 and later). Bits 9 to 11 say the form of its operands; in forms 3 and 5 a constant
operand may stand in bits 38 to 58: the bank in the upper five, below it the offset (64-bit operands of sm_100 scale it
differently, which gives them slots of their own). Seen on sm_80 to sm_121 and held by tests; no vendor document.
"""

from __future__ import annotations

from collections.abc import Mapping

ADDRESS_BANK = 4  # addresses of the module's variables
DRIVER_BANK = 0  # what the driver tells every kernel, then the kernel's parameters

# `plain` shows what any kernel reads; the others also read where the window onto the constant banks lies.
WINDOW_PROBE = """
__constant__ int table[4];
static __device__ __noinline__ int get(const int* from, int i) { return from[i]; }
extern "C" __global__ void plain(int* p) { p[0] = get(p, p[1]) + p[blockIdx.x * blockDim.x + threadIdx.x]; }
extern "C" __global__ void store(int* p) {
    asm volatile("{.reg .u64 a; mov.u64 a, table; cvta.const.u64 a, a; st.u32 [a], %0;}" ::"r"(p[1]));
}
extern "C" __global__ void pass(int* p) { p[0] = get(table, p[1]) + get(p, 2); }
extern "C" __global__ void choose(int* p) { const int* from = p[5] ? table : p; p[0] = from[p[3]] + table[p[2]]; }
"""


def operand_slots(text: bytes, bank: int) -> frozenset[int]:
    """The offsets, as encoded, at which the code of a `.text` section may read a constant bank."""
    import numpy as np

    words = np.frombuffer(text, dtype="<u8")[::2]
    form = (words >> 9) & 7
    reads = ((form == 3) | (form == 5)) & ((words >> 54) & 31 == bank)
    return frozenset(int(slot) for slot in np.unique((words[reads] >> 38) & 0xFFFF))


def window_slots(slots: Mapping[str, frozenset[int]], parameters_at: int) -> frozenset[int]:
    """The slots in the driver's bank that give a generic address of constants, from those of the built probe's kernels.

    `parameters_at`: the offset of kernel parameters, of which no encoding lies below half that number.
    """
    probing = frozenset().union(*(found for kernel, found in slots.items() if kernel != "plain"))
    return frozenset(slot for slot in probing - slots["plain"] if slot < parameters_at // 2)
