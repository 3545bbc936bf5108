"""CUDA sources for the device tests, and how they become programs."""

from __future__ import annotations

from evo.fitness.cuda.machine import CudaMachine
from evo.plan import Argument, LaunchPlan
from evo.records import Build, Kernel, Status
from evo.target import Buffer, BufferSpec, Program

ONE = (1, 1, 1)


def given(name: str, dtype: str, *shape: int) -> BufferSpec:
    return BufferSpec(name, dtype, shape, "input")


def scratch(name: str, dtype: str, *shape: int) -> BufferSpec:
    return BufferSpec(name, dtype, shape, "scratch")


def output(name: str, dtype: str, *shape: int) -> BufferSpec:
    return BufferSpec(name, dtype, shape, "output")


def allocate(machine: CudaMachine, *specs: BufferSpec) -> dict[str, Buffer]:
    return {buffer.spec.name: buffer for buffer in machine.allocate(specs)}


def compile_source(source: str, arch: str) -> bytes:
    from cuda.core import Program as Source
    from cuda.core import ProgramOptions

    program = Source(source, "c++", ProgramOptions(arch=arch, std="c++17"))
    try:
        return bytes(program.compile("cubin").code)
    finally:
        program.close()


def load(machine: CudaMachine, source: str, plan: LaunchPlan) -> Program:
    """Compiles for the machine's architecture-specific variant and loads."""
    code = compile_source(source, f"{machine.facts.target}a")
    kernels = tuple(Kernel(name) for name in sorted({launch.kernel for launch in plan.launches}))
    return machine.load(Build("test", Status.OK, "nvrtc", 0.0, kernels=kernels), code, plan)


def tensors(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument("tensor", name) for name in names)


def i32(value: int) -> Argument:
    return Argument("scalar", "n", "i32", value)


SAXPY = r"""
extern "C" __global__ void saxpy(const float* x, const float* bias, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + (bias ? bias[i] : 0.0f);
}
"""

SCALE = r"""
extern "C" __global__ void scale(const float4* x, float4* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float4 v = x[i]; y[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w); }
}
"""

# Every block reads its successor's value through distributed shared memory.
CLUSTER = r"""
extern "C" __global__ void neighbours(int* out) {
    __shared__ int mine;
    unsigned rank, size, address, value;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    if (threadIdx.x == 0) mine = 1000 * int(size) + int(rank);
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
    unsigned local = unsigned(__cvta_generic_to_shared(&mine));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(local), "r"((rank + 1) % size));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x == 0) out[blockIdx.x] = int(value);
}
"""

# One box of a 2-D fp32 tensor, BOX_ROWS x BOX_COLUMNS from (row, column), written out densely.
TMA = r"""
constexpr int ROWS = 4, COLUMNS = 16;
struct alignas(64) Map { unsigned long long opaque[16]; };
extern "C" __global__ void load_box(const __grid_constant__ Map map, float* out, int row, int column) {
    __shared__ alignas(128) float tile[ROWS * COLUMNS];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned bar = unsigned(__cvta_generic_to_shared(&barrier)), to = unsigned(__cvta_generic_to_shared(tile));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(bar), "r"(unsigned(sizeof(tile))) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];"
                     :: "r"(to), "l"(&map), "r"(column), "r"(row), "r"(bar) : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar) : "memory");
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) out[i] = tile[i];
}
"""

# The first kernel lets the second start early; only `wait` in the second makes its reads safe.
PDL = r"""
extern "C" __global__ void produce(const float* x, float* middle, int n) {
    asm volatile("griddepcontrol.launch_dependents;");
    for (int k = 0; k < 20; ++k) __nanosleep(1000);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) middle[i] = x[i] + 1.0f;
}
extern "C" __global__ void consume(const float* middle, float* y, int n) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * middle[i];
}
"""

# Ends only when all blocks run at the same time; `arrived` must be zero at the start of every call.
COOPERATIVE = r"""
extern "C" __global__ void meet(unsigned* arrived, int* out) {
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1u);
        while (*(volatile unsigned*)arrived < gridDim.x) {}
        __threadfence();
        out[blockIdx.x] = int(*(volatile unsigned*)arrived);
    }
}
"""

# Each thread reads what another wrote, at the far end of all the shared memory that it is given.
SHARED = r"""
extern __shared__ int words[];
extern "C" __global__ void reverse(int* out, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) words[i] = 3 * i;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = words[n - 1 - i];
}
"""

# Adds to scratch that must start at zero.
ACCUMULATE = r"""
extern "C" __global__ void add(const int* x, int* total, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(total, x[i]);
}
extern "C" __global__ void report(const int* total, int* out) { *out = *total; }
"""

FAULTS = {
    "illegal_address": 'extern "C" __global__ void fault(float* y) { *(float*)(1ull << 60) = y[0]; }',
    "misaligned": 'extern "C" __global__ void fault(float* y) { *(float4*)((char*)y + 4) = make_float4(1, 2, 3, 4); }',
    "trap": 'extern "C" __global__ void fault(float* y) { asm volatile("trap;"); }',
    "endless": 'extern "C" __global__ void fault(float* y) { while (((volatile float*)y)[0] == 0.0f) {} }',
}
