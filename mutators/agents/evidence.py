"""What is known, as short texts for prompts: the contract, the device, and what was measured or went wrong.

Every function takes records and gives text; which cases may be named is the caller's to say (never hold-out ones).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from evo.mutators.base import Parent
from evo.operator import Case, Operator
from evo.records import Build, CaseResult, DeviceFacts, Diagnosis, Evaluation, Status, Values

OPCODES = 16  # of a kernel's histogram
EXCERPT = 1  # lines shown round one that a compiler names
PLACES = 8  # that an excerpt shows
_PLACE = re.compile(r"candidate\.\w+[(:](\d+)[):]")


def contract_text(operator: Operator) -> str:
    """Tensors, dimensions, scalars and flags: what a genome's launches may name."""
    lines = [f"operator {operator.name}: {operator.summary}", f"dimensions: {', '.join(operator.dims)}"]
    for tensor in operator.tensors:
        optional = ", optional" if tensor.optional else ""
        lines.append(
            f"tensor {tensor.name} ({tensor.role}): shape [{', '.join(tensor.shape)}], element type one of"
            f" {', '.join(tensor.dtypes)}, aligned to {tensor.align} bytes{optional}"
        )
    lines += [f"scalar {scalar.name}: {scalar.dtype}" for scalar in operator.scalars]
    lines += [f"flag {name}" for name in operator.flags]
    if operator.deterministic:
        lines.append("two calls on the same inputs must give the same bits")
    return "\n".join(lines)


def cases_text(operator: Operator, cases: Sequence[Case]) -> str:
    """The cases that count, with the compulsory work of one call."""
    lines = []
    for case in cases:
        cost, dims = operator.cost(case), ", ".join(f"{name}={size}" for name, size in case.dims.items())
        kinds = ", ".join(f"{name} {kind}" for name, kind in case.dtypes.items())
        flags = "".join(f", {name}" for name, on in case.flags.items() if on)
        lines.append(
            f"{case.name}: {dims}; {kinds}{flags}; reads {cost.bytes_read / 1e6:.4g} MB, writes"
            f" {cost.bytes_written / 1e6:.4g} MB, {cost.flops / 1e9:.4g} GFLOP"
        )
    return "\n".join(lines)


def device_text(facts: DeviceFacts) -> str:
    """What the device has. Peaks are the maker's figures."""
    lines = [f"{facts.name}, target {facts.target}", f"SMS = {facts.sms}, L2_BYTES = {facts.l2_bytes}"]
    if facts.smem_block:
        lines.append(f"SMEM_BLOCK = {facts.smem_block}, SMEM_SM = {facts.smem_sm}, 65536 registers an SM")
    if facts.peak_bytes_per_s:
        lines.append(f"peak {facts.peak_bytes_per_s / 1e12:.3g} TB/s, {facts.peak_flops / 1e12:.4g} TFLOP/s")
    return "\n".join(lines)


def values_text(values: Values) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in values.items()) or "no genes"


def times_text(evaluation: Evaluation, allowed: Collection[str]) -> str:
    """Per case time, speed-up with its interval, and the share of the speed of light."""
    return "\n".join(_time_line(case) for case in evaluation.cases if case.case in allowed)


def _time_line(case: CaseResult) -> str:
    timing = case.timing
    if timing is None:
        why = f": {case.diagnosis.message}" if case.diagnosis else ""
        return f"{case.case}: {case.status}{why}"
    light = f", {100 * timing.light_us / timing.time_us:.0f} % of the speed of light" if timing.light_us > 0 else ""
    return (
        f"{case.case}: {timing.time_us:.4g} us, {timing.ratio:.3f} x as fast as {timing.opponent}"
        f" ({timing.low:.3f} to {timing.high:.3f}){light}"
    )


def builds_text(builds: Sequence[Build]) -> str:
    """Registers, spills, stack, shared memory and the commonest opcodes; equal builds once."""
    lines: dict[str, None] = {}
    for build in builds:
        for kernel in build.kernels:
            total = sum(kernel.opcodes.values())
            common = ", ".join(f"{name} {count}" for name, count in Counter(kernel.opcodes).most_common(OPCODES))
            line = (
                f"{kernel.name}: {kernel.registers} registers, {kernel.spill_bytes} bytes spilled,"
                f" {kernel.stack_bytes} bytes of stack, {kernel.shared_bytes} bytes of static shared memory"
            )
            line += f"; {total} instructions: {common}" if total else ""
            line += "".join(f"; {flag}" for flag in kernel.flags)
            lines[line] = None
    return "\n".join(list(lines)[:6])


def failure_text(evaluation: Evaluation, source: str, allowed: Collection[str], hidden: Collection[str]) -> str:
    """What went wrong: the stage, the message, the log, and the source lines that it names; nothing of hidden cases."""
    reasons = [evaluation.diagnosis] if evaluation.diagnosis else []
    reasons += [
        case.diagnosis for case in evaluation.cases
        if case.diagnosis and case.status not in (Status.OK, Status.UNCOVERED) and case.diagnosis not in reasons
    ]  # fmt: skip
    told = [reason for reason in reasons if reason.case not in hidden]
    parts = [f"status: {evaluation.status}", *(_reason(reason, source) for reason in told[:3])]
    if any(case.timing for case in evaluation.cases):
        parts.append(times_text(evaluation, allowed))
    built = builds_text(evaluation.builds)
    return "\n".join([*parts, built] if built else parts)


def _reason(reason: Diagnosis, source: str) -> str:
    where = f" in {reason.case}" if reason.case else ""
    detail = reason.detail.strip()
    lines = [f"stage {reason.stage}{where}: {reason.message}", *([detail] if detail else [])]
    excerpt = source_excerpt(f"{reason.message}\n{detail}", source)
    return "\n".join([*lines, "the lines that it names:", excerpt] if excerpt else lines)


def source_excerpt(log: str, source: str) -> str:
    """The source lines that a compiler's log names, with their numbers and neighbours; "" where it names none."""
    lines = source.split("\n")
    named = list(dict.fromkeys(int(number) for number in _PLACE.findall(log) if len(number) < 8))[:PLACES]
    shown: dict[int, str] = {}
    for number in named:
        for at in range(max(1, number - EXCERPT), min(len(lines), number + EXCERPT) + 1):
            mark = ">" if at in named else " "
            shown[at] = f"{mark}{at:5d} | {lines[at - 1][:200]}"
    return "\n".join(shown[at] for at in sorted(shown))


def scores_text(scores: Mapping[str, float], allowed: Collection[str]) -> str:
    """Speed-ups by case, from logarithms of them."""
    found = [f"{case} {math.exp(score):.3f} x" for case, score in scores.items() if case in allowed]
    return ", ".join(found) or "not measured"


def elite_text(parent: Parent, allowed: Collection[str]) -> str:
    """One line on a candidate of another niche."""
    genome = parent.genome
    said = f" ({genome.summary})" if genome.summary else ""
    return f"species {genome.species}{said}: {scores_text(parent.scores, allowed)}; {values_text(parent.values)}"
