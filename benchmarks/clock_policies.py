"""What flushes and cache policies do to a time: the device experiments of `clock_selftest.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from evo.fitness.cuda.clockwork import Clockwork
from evo.fitness.cuda.launch import DeviceCall
from evo.fitness.cuda.machine import CudaMachine
from evo.fitness.cuda.protocols.brackets import Brackets
from evo.operator import Fill
from evo.plan import Argument, Launch, LaunchPlan
from evo.records import Build, Kernel, Status
from evo.target import BufferSpec, Call

REPEATS = 15
STEPS = 512  # of a chase: few lines, so that looking does not bring back what it looks for
MIB = 1 << 20
# As the seeds' LOAD and STORE genes have them, and policies that they do not have.
LOADS = (
    "ld.global.v4.b32", "ld.global.nc.v4.b32", "ld.global.nc.L1::no_allocate.v4.b32",
    "ld.global.nc.L1::no_allocate.L2::256B.v4.b32", "ld.global.cs.v4.b32", "ld.global.cg.v4.b32", "ld.global.lu.v4.b32",
)  # fmt: skip
STORES = ("st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32")
HINTED = ("evict_first", "evict_last")  # by createpolicy, for all of the accesses
PROTOCOLS = ("rotation", "isolated-cold", "triton", "warm")

SOURCE = r"""
__device__ __forceinline__ unsigned long long policy_of() {
    unsigned long long policy = 0;
#ifdef HINT
    asm volatile("createpolicy.fractional.L2::" HINT ".b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}
__device__ __forceinline__ uint4 load(const uint4* from, unsigned long long policy) {
    uint4 v;
#ifdef LOAD_HINTED
    asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "l"(policy));
#else
    asm volatile(LOAD " {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
#endif
    return v;
}
__device__ __forceinline__ void store(uint4* to, uint4 v, unsigned long long policy) {
#ifdef STORE_HINTED
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;"
                 :: "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy) : "memory");
#else
    asm volatile(STORE " [%0], {%1, %2, %3, %4};" :: "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
}
extern "C" __global__ void __launch_bounds__(256) read_all(const uint4* x, uint4* y, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const uint4 v = load(x + i, policy_of());
    if ((v.x | v.y | v.z | v.w) == 0x5EED5EEDu) *y = v;
}
// One thread, one line after another at places all over the buffer: the time of a load tells the L2 from memory.
extern "C" __global__ void chase(const uint4* x, uint4* y, int n) {
    unsigned place = 0;
    for (int step = 0; step < STEPS; ++step) {
        unsigned word;
        asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(word) : "l"(x + place / 8 * 8));
        place = (place * 1664525u + 1013904223u + (word == 0x5EED5EEDu)) % (unsigned)n;
    }
    y->x = place;
}
extern "C" __global__ void __launch_bounds__(256) copy_all(const uint4* x, uint4* y, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) {
        const unsigned long long policy = policy_of();
        store(y + i, load(x + i, policy), policy);
    }
}
"""


def compile_policy(arch: str, load: str = LOADS[0], store: str = STORES[0], hint: str = "", hinted: str = "") -> bytes:
    """`hinted`: "load", "store" or "": which accesses get the policy `hint`. Needs no driver."""
    from cuda.core import Program, ProgramOptions

    defines = [("LOAD", f'"{load}"'), ("STORE", f'"{store}"'), ("STEPS", str(STEPS))]
    if hint:
        defines += [("HINT", f'"{hint}"'), (f"{hinted.upper()}_HINTED", "1")]
    program = Program(SOURCE, "c++", ProgramOptions(arch=arch, std="c++17", define_macro=defines))
    try:
        return bytes(program.compile("cubin").code)
    finally:
        program.close()


class Slots:
    """Pairs of buffers of one size, and kernels of `SOURCE` bound to them."""

    def __init__(self, machine: CudaMachine, nbytes: int, count: int) -> None:
        self.machine, self.nbytes = machine, nbytes
        words = (nbytes // 4,)
        specs = [BufferSpec("x", "u32", words, "input"), BufferSpec("y", "u32", words, "output")] * count
        buffers = machine.allocate(specs)
        self.slots = [{"x": buffers[2 * i], "y": buffers[2 * i + 1]} for i in range(count)]
        for number, slot in enumerate(self.slots):
            machine.fill(slot["x"], Fill("uniform", 0.0, 1e9), number)

    def calls(self, kernel: str, code: bytes) -> list[Call]:
        n = self.nbytes // 16
        arguments = (Argument("tensor", "x"), Argument("tensor", "y"), Argument("scalar", "n", "i32", n))
        grid, block = ((1, 1, 1), (1, 1, 1)) if kernel == "chase" else ((-(-n // 256), 1, 1), (256, 1, 1))
        plan = LaunchPlan((Launch(kernel, grid, block, arguments),))
        program = self.machine.load(Build("policy", Status.OK, "nvrtc", 0.0, kernels=(Kernel(kernel),)), code, plan)
        return [self.machine.bind(program, slot) for slot in self.slots]


def flush_effects(machine: CudaMachine, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """A copy of `size` bytes each way between events: after a read flush, after a write flush, after its like."""
    code, rows = compile_policy(f"{machine.facts.target}a"), []
    for size in sizes:
        slots = Slots(machine, size, 3)
        call = device_call(slots.calls("copy_all", code)[0])
        work = machine.clockwork
        found = {name: bracketed(machine, call, before) for name, before in flushes(work).items()}
        medians = {f"{name}_us": statistics.median(times) for name, times in found.items()}
        rows.append({"mib": size / MIB, **medians, "samples_us": found})
    return rows


def survival(machine: CudaMachine) -> list[dict[str, Any]]:
    """What share of a buffer is still in the L2 after a flush, by how it was read before: 1 as right after a plain
    read, 0 as after a write flush of ordinary lines. By the latency of single loads: a whole read's time hardly tells.
    """
    arch, rows = f"{machine.facts.target}a", list[dict[str, Any]]()
    work = machine.clockwork
    for mib in (8, 16, 32):
        slots = Slots(machine, mib * MIB, 1)
        plain, chase = (device_call(slots.calls(name, compile_policy(arch))[0]) for name in ("read_all", "chase"))
        hot = statistics.median(bracketed(machine, chase, plain.enqueue))

        def cold_before() -> None:
            work.forget_persisting()
            work.write_flush()

        cold = statistics.median(bracketed(machine, chase, cold_before))
        for policy in ("plain", *HINTED):
            hint = {} if policy == "plain" else {"hint": policy, "hinted": "load"}
            seat = device_call(slots.calls("read_all", compile_policy(arch, **hint))[0])
            for name, flush in flushes(work).items():

                def before(seat: DeviceCall = seat, flush: Callable[[], None] = flush) -> None:
                    seat.enqueue()
                    seat.enqueue()
                    flush()

                times = bracketed(machine, chase, before)
                share = (cold - statistics.median(times)) / (cold - hot) if cold > 1.05 * hot else None  # no contrast
                rows.append(
                    {"mib": mib, "policy": policy, "flush": name, "hot_us": hot, "cold_us": cold, "share": share,
                     "samples_us": times}
                )  # fmt: skip
        work.forget_persisting()
    return rows


def gene_effects(machine: CudaMachine, *, quick: bool) -> list[dict[str, Any]]:
    """By access instruction and protocol: the plain copy's time over its time."""
    arch, rows = f"{machine.facts.target}a", list[dict[str, Any]]()
    variants: dict[str, dict[str, str]] = {"plain": {}, "plain again": {}}
    variants |= {load: {"load": load} for load in LOADS[1:]} | {store: {"store": store} for store in STORES[1:]}
    variants |= {f"{kind} {hint}": {"hint": hint, "hinted": kind} for hint in HINTED for kind in ("load", "store")}
    for mib in (16, 64):
        slots = Slots(machine, mib * MIB, max(3, 96 // mib))
        calls = {name: slots.calls("copy_all", compile_policy(arch, **words)) for name, words in variants.items()}
        found: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
        for protocol in PROTOCOLS:
            rounds = 2 if quick or protocol == "triton" else 7
            chosen = {name: each[:1] if protocol == "warm" else each for name, each in calls.items()}
            for _ in range(rounds):
                for name, each in chosen.items():
                    found[name].setdefault(protocol, []).append(sampled(machine, each, mib, protocol))
        plain = {protocol: statistics.median(found["plain"][protocol]) for protocol in PROTOCOLS}
        for name, times in found.items():
            gain = {protocol: plain[protocol] / statistics.median(times[protocol]) for protocol in PROTOCOLS}
            rows.append({"mib": mib, "policy": name, "gain": gain, "samples_us": times})
        machine.clockwork.forget_persisting()
    return rows


def flushes(work: Clockwork) -> dict[str, Callable[[], None]]:
    def reset_and_read() -> None:
        work.forget_persisting()
        work.read_flush()

    def reset_and_write() -> None:
        work.forget_persisting()
        work.write_flush()

    return {
        "none": lambda: None, "read": work.read_flush, "write": work.write_flush, "reset+read": reset_and_read,
        "reset+write": reset_and_write,
    }  # fmt: skip


def bracketed(machine: CudaMachine, call: DeviceCall, before: Callable[[], None]) -> list[float]:
    """Microseconds of the call between two events, each time after `before` and a short gate."""
    brackets, times = Brackets(machine.clockwork, 100.0), []
    try:
        for _ in range(REPEATS):
            before()
            machine.clockwork.hold()
            brackets.call(call)
            machine.clockwork.release()
            times += brackets.times()
    finally:
        brackets.close()
    return [round(each, 3) for each in times]


def sampled(machine: CudaMachine, calls: Sequence[Call], mib: int, protocol: str) -> float:
    watch = machine.stopwatch(calls, 2 * mib * MIB / 4e6, protocol)
    try:
        return round(watch.sample(), 3)
    finally:
        watch.close()


def device_call(call: Call) -> DeviceCall:
    assert isinstance(call, DeviceCall)
    return call
