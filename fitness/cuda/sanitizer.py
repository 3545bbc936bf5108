"""NVIDIA's compute-sanitizer on a candidate: what it reads out of bounds, uninitialised, in a race or past a barrier.

The tool comes with the CUDA toolkit. It slows kernels down ten to a thousand times, so it sees small cases only. What
it calls a warning (racecheck: hazards inside a warp) is one here; all else is an error.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from evo import codec
from evo.dtypes import numpy_dtype
from evo.errors import UsageError
from evo.fitness.cache import BuildCache
from evo.fitness.cpu.contents import fill
from evo.fitness.cuda.sanitized import DONE, JOB, Contents, Item, SanitizeJob
from evo.fitness.layout import present
from evo.fitness.process import HERE, PASSED
from evo.fitness.tasks import Subject
from evo.genome import Genome, buffer_shapes, resolve_plan, uncovered
from evo.operator import Case, Fill, Operator
from evo.records import DeviceFacts
from evo.target import BufferSpec

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
INSTALL = "install NVIDIA's compute-sanitizer (part of the CUDA toolkit), or add its folder to PATH"
PADDING_BYTES = 4096  # between memcheck's allocations, so that the end of one is not the start of the next
PRINT_LIMIT = 200
MOST_CASES, MOST_BYTES = 4, 64 << 20  # of a case's tensors

_PREFIX = re.compile(r"^=========(?: (?P<text>.*))?$")
_IGNORED = re.compile(
    r"COMPUTE-SANITIZER|Program hit|Target application|(?:Error: )?process didn't|ERROR SUMMARY|RACECHECK SUMMARY"
    r"|LEAK SUMMARY|No attachable|Saved host|The application"
)
_PLACES = (
    re.compile(r"\bat (?P<kernel>\S.*?)(?:\(.*?\))?\+0x[0-9a-f]+"),
    re.compile(r"\bat 0x\w+ in (?:\S+:\d+:)?(?P<kernel>[^\s(]+)"),  # before 2024
)
_HAZARDS = re.compile(r"\[(\d+) hazards?\]")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: \d+")
_NUMBERS = re.compile(r" of size \d+(?: bytes)?| at .*$")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a tool said of one kernel, `count` times; `message` is the first of them, in the tool's words."""

    tool: str
    level: Literal["error", "warning"]
    kind: str  # "Invalid __global__ read"
    kernel: str
    count: int
    message: str


@dataclass(frozen=True, slots=True)
class SanitizerReport:
    """`tools` ran to their end on `cases`; `missing` says by tool why another one did not."""

    tools: tuple[str, ...]
    findings: tuple[Finding, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    cases: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def clean(self) -> bool:
        """Every tool that was asked for ran, and none found an error."""
        return not self.missing and not self.errors


def find_tool() -> str:
    """The path of compute-sanitizer, "" where there is none."""
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots.append(Path("/usr/local/cuda"))
    places = [root / folder / "compute-sanitizer" for root in roots for folder in ("bin", "compute-sanitizer")]
    return shutil.which("compute-sanitizer") or next((str(path) for path in places if path.is_file()), "")


def sanitize(
    subject: Subject,
    operator: Operator,
    facts: DeviceFacts,
    cases: Sequence[Case] | None = None,
    *,
    tools: Sequence[str] = TOOLS,
    limit_s: float = 120.0,
    seed: int = 0,
) -> SanitizerReport:
    """Runs a built candidate under each tool, for at most `limit_s` seconds each; on `cases` that it was built for, or
    on the smallest that its builds serve.

    Raises `UsageError` for an unknown tool and where no case can be run.
    """
    if unknown := [tool for tool in tools if tool not in TOOLS]:
        raise UsageError(f"compute-sanitizer has no tool {unknown[0]!r}", fix=f"there are: {', '.join(TOOLS)}")
    pairs = small_cases(subject, operator, facts) if cases is None else [(case, case.name) for case in cases]
    pairs = [(case, build) for case, build in pairs if build in subject.builds]
    if not pairs:
        raise UsageError("the candidate was built for none of these cases", fix="name a case that it covers")
    names = tuple(case.name for case, _ in pairs)
    program = find_tool()
    if not program:
        return SanitizerReport((), (), dict.fromkeys(tools, f"compute-sanitizer is not here: {INSTALL}"), names)
    ended, findings, missing = [], list[Finding](), {}
    with tempfile.TemporaryDirectory(prefix="evo-sanitizer-") as name:
        folder = Path(name)
        write_job(folder, subject, operator, facts, pairs, seed)
        for tool in tools:
            found, why = _run(program, tool, folder, limit_s, len(pairs))
            findings += found
            if why:
                missing[tool] = why
            else:
                ended.append(tool)
    return SanitizerReport(tuple(ended), tuple(findings), missing, names)


def small_cases(subject: Subject, operator: Operator, facts: DeviceFacts) -> list[tuple[Case, str]]:
    """The smallest cases that the subject's builds serve, each with the name of the case whose build that is."""
    genome = Genome.parse(subject.source, subject.suffix)
    known = [case for case in operator.cases(facts.target) if case.name in subject.builds]
    pairs = [(case, case.name) for case in known]
    for case in known:
        for near in operator.neighbours(case):
            fits = all(near.dims[name] == case.dims[name] for name in genome.static)
            if fits and not uncovered(genome, operator, near, subject.values, facts):
                pairs.append((near, case.name))
    sized = sorted((tensor_bytes(operator, case), number) for number, (case, _) in enumerate(pairs))
    return [pairs[number] for size, number in sized if size <= MOST_BYTES][:MOST_CASES]


def tensor_bytes(operator: Operator, case: Case) -> int:
    shapes = buffer_shapes(operator, case)
    return sum(
        int(np.prod(shapes[tensor.name], dtype=np.int64)) * numpy_dtype(case.dtypes[tensor.name]).itemsize
        for tensor in present(operator, case)
    )


def write_job(
    folder: Path, subject: Subject, operator: Operator, facts: DeviceFacts, pairs: Sequence[tuple[Case, str]], seed: int
) -> None:
    """Plans, code and contents as files, so that the process under the tool needs neither operator nor plugins."""
    genome, blobs, items = Genome.parse(subject.source, subject.suffix), BuildCache().blobs, []
    for number, (case, build_of) in enumerate(pairs):
        build = subject.code[subject.builds[build_of]]
        plan = resolve_plan(genome, operator, case, subject.values, facts)
        (folder / f"{number}.code").write_bytes(blobs.get(build.blob))
        shapes, inputs = buffer_shapes(operator, case), operator.inputs(case, np.random.default_rng(seed), "normal")
        buffers = []
        for tensor in present(operator, case):
            spec = BufferSpec(tensor.name, case.dtypes[tensor.name], shapes[tensor.name], "output")
            file = ""
            if tensor.name in inputs:
                file = f"{number}.{tensor.name}"
                (folder / file).write_bytes(_made(inputs[tensor.name], spec, seed).tobytes())
            buffers.append(Contents(spec, file))
        for item in plan.scratch:
            spec = BufferSpec(item.name, item.dtype, item.shape, "scratch", max(256, item.align))
            buffers.append(Contents(spec, "0" if item.zero else ""))
        items.append(Item(case.name, build, f"{number}.code", plan, tuple(buffers)))
    (folder / JOB).write_bytes(codec.dumps(SanitizeJob(facts, tuple(items))))


def _made(data: Fill | np.ndarray, spec: BufferSpec, seed: int) -> np.ndarray:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data)
    array = np.empty(spec.shape, numpy_dtype(spec.dtype))
    fill(array, data, seed)
    return array


def _run(program: str, tool: str, folder: Path, limit_s: float, calls: int) -> tuple[list[Finding], str]:
    """Findings, and "" or why the tool did not run to its end."""
    log, done = folder / f"{tool}.log", folder / DONE
    done.unlink(missing_ok=True)
    command = [program, "--tool", tool, "--print-limit", str(PRINT_LIMIT), "--show-backtrace", "no"]
    command += ["--report-api-errors", "no", "--log-file", str(log)]
    command += ["--padding", str(PADDING_BYTES)] if tool == "memcheck" else []
    late, said = run_under(command, folder, limit_s)
    text = log.read_text(errors="replace") if log.exists() else ""
    findings = parse(text, tool)
    if late or findings and _SUMMARY.search(text):  # a candidate that a finding has stopped has had its verdict
        return findings, late
    return findings, _failure(text, done.read_text() if done.exists() else "", said, calls)


def run_under(tool: Sequence[str], folder: Path, limit_s: float) -> tuple[str, str]:
    """Runs the job in `folder` under a tool: "" or that it took too long, and what was printed."""
    environment = {name: os.environ[name] for name in PASSED if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), environment.get("PYTHONPATH")]))
    command = [*tool, sys.executable, "-m", "evo.fitness.cuda.sanitized", str(folder)]
    with (folder / "out").open("wb+") as out:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            process.wait(limit_s)
            late = ""
        except subprocess.TimeoutExpired:
            late = f"it took more than {limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return late, (folder / "out").read_text(errors="replace").strip()


def _failure(log: str, done: str, said: str, calls: int) -> str:
    """Why a run that found nothing is no verdict, or ""."""
    if not _SUMMARY.search(log):
        return f"it ended without a summary: {(said or log).strip()[-500:] or 'it said nothing'}"
    ran, _, fault = done.strip().partition(" ")
    if ran != str(calls):
        return f"{ran or 'none'} of {calls} calls ran: {fault or said[-500:] or 'the process ended early'}"
    return ""


def parse(text: str, tool: str) -> list[Finding]:
    """What a tool's log says, alike findings of one kernel as one.

    A finding is a line after the bars followed by indented ones, of which one names a kernel. Races name it on the
    first line.
    """
    found: dict[tuple[str, str, str], Finding] = {}
    for head, details in _records(text):
        lines = [head, *details]
        place = next((match for line in lines for pattern in _PLACES if (match := pattern.search(line))), None)
        if _IGNORED.match(head) or place is None:
            continue
        level: Literal["error", "warning"] = "warning" if head.lower().startswith("warn") else "error"
        kind = _NUMBERS.sub("", re.sub(r"^(?:error|warning|warn): ", "", head, flags=re.IGNORECASE)).rstrip(".")
        hazards = [int(number[1]) for line in lines if (number := _HAZARDS.search(line))]
        first = Finding(tool, level, kind, place["kernel"], 0, " ".join(line.strip() for line in lines[:4]))
        known = found.setdefault((level, kind, place["kernel"]), first)
        found[level, kind, place["kernel"]] = replace(known, count=known.count + (sum(hazards) or 1))
    return list(found.values())


def _records(text: str) -> list[tuple[str, list[str]]]:
    """(first line, indented lines that follow) of each message; "and ..." goes on with a race."""
    records: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        match = _PREFIX.match(line.rstrip())
        said = (match["text"] or "") if match else ""
        if not said.strip():
            continue
        if said.startswith(" ") and records:
            records[-1][1].append(said)
        else:
            records.append((said.strip(), []))
    return records
