"""GPU architectures and chips that evo knows: names, nominal limits, peak rates. Plain tables, no imports of CUDA."""

from __future__ import annotations

from dataclasses import dataclass

from evo.errors import UnknownNameError

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Architecture:
    """Limits of one compute capability. Shared memory in bytes: of a block (opt-in) and of a multiprocessor."""

    target: str
    arch: str  # what is compiled for: the architecture-specific variant where there is one
    smem_block: int
    smem_sm: int
    cores_per_sm: int  # fp32 lanes
    chip: str  # whose figures `nominal` facts take


@dataclass(frozen=True, slots=True)
class Chip:
    """Vendor's figures of one product: peak memory bytes/s and dense bf16 flop/s
    with fp32 accumulation (0: not published)."""

    name: str
    target: str
    sms: int
    l2_bytes: int
    memory_bytes: int
    bytes_per_s: float
    flops: float


ARCHITECTURES = {
    architecture.target: architecture
    for architecture in (
        Architecture("sm_80", "sm_80", 163 * KIB, 164 * KIB, 64, "A100"),
        Architecture("sm_86", "sm_86", 99 * KIB, 100 * KIB, 128, "RTX A6000"),
        Architecture("sm_89", "sm_89", 99 * KIB, 100 * KIB, 128, "L40S"),
        Architecture("sm_90", "sm_90a", 227 * KIB, 228 * KIB, 128, "H200"),
        Architecture("sm_100", "sm_100a", 227 * KIB, 228 * KIB, 128, "B200"),
        Architecture("sm_103", "sm_103a", 227 * KIB, 228 * KIB, 128, "B300"),
        Architecture("sm_120", "sm_120a", 99 * KIB, 100 * KIB, 128, "RTX 5090"),
        Architecture("sm_121", "sm_121a", 99 * KIB, 100 * KIB, 128, "GB10"),
    )
}

# Longer names first: "H100 PCIe" must not be read as the SXM module's "H100".
CHIPS = (
    Chip("A100-SXM4-80GB", "sm_80", 108, 40 * MIB, 80 << 30, 2.039e12, 312e12),
    Chip("A100 80GB PCIe", "sm_80", 108, 40 * MIB, 80 << 30, 1.935e12, 312e12),
    Chip("A100", "sm_80", 108, 40 * MIB, 40 << 30, 1.555e12, 312e12),
    Chip("RTX A6000", "sm_86", 84, 6 * MIB, 48 << 30, 0.768e12, 155e12),
    Chip("RTX 4090", "sm_89", 128, 72 * MIB, 24 << 30, 1.008e12, 165e12),
    Chip("L40S", "sm_89", 142, 96 * MIB, 48 << 30, 0.864e12, 362e12),
    Chip("GH200 480GB", "sm_90", 132, 60 * MIB, 96 << 30, 4.02e12, 989e12),
    Chip("H200", "sm_90", 132, 60 * MIB, 141 << 30, 4.8e12, 989e12),
    Chip("H100 PCIe", "sm_90", 114, 50 * MIB, 80 << 30, 2.04e12, 756e12),
    Chip("H100 NVL", "sm_90", 132, 60 * MIB, 94 << 30, 3.94e12, 835e12),
    Chip("H100", "sm_90", 132, 50 * MIB, 80 << 30, 3.35e12, 989e12),
    Chip("B200", "sm_100", 148, 126 * MIB, 180 << 30, 8.0e12, 2250e12),
    Chip("B300", "sm_103", 148, 126 * MIB, 270 << 30, 8.0e12, 2500e12),
    Chip("RTX 5090", "sm_120", 170, 96 * MIB, 32 << 30, 1.792e12, 209e12),
    Chip("GB10", "sm_121", 48, 24 * MIB, 119 << 30, 0.273e12, 0.0),
)


def find_chip(name: str, target: str) -> Chip | None:
    """The chip that a device's marketing name ("NVIDIA H200") belongs to; the target must agree."""
    return next((chip for chip in CHIPS if chip.target == target and chip.name in name), None)


def canonical_target(name: str) -> str:
    """The target that a user means by "sm_90", "sm_90a", "H100", "h200", "B200".

    Raises `UnknownNameError` for anything else, other targets ("cpu") included.
    """
    wanted = name.strip().lower()
    for architecture in ARCHITECTURES.values():
        if wanted in (architecture.target, architecture.arch):
            return architecture.target
    products = {chip.name.lower(): chip.target for chip in CHIPS}
    if wanted in products:
        return products[wanted]
    known = [*ARCHITECTURES, *(chip.name for chip in CHIPS)]
    raise UnknownNameError("CUDA target", name, known, fix="`evo targets` lists all")
