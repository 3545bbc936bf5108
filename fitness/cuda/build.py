"""From source to inspected machine code: NVRTC for CUDA C++, nvJitLink for PTX, both through cuda.core.

Needs no driver and no GPU, and never starts one: a builder process may build for any architecture.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import time
from pathlib import Path
from typing import Any

from evo import codec
from evo.fitness.cuda import audit, claims, policy, ptxas, sass, toolchain
from evo.fitness.cuda.architectures import ARCHITECTURES
from evo.fitness.cuda.cubin import Cubin, read_cubin
from evo.fitness.cuda.operands import WINDOW_PROBE, window_slots
from evo.fitness.cuda.toolchain import EVO_HEADERS
from evo.ids import digest
from evo.records import Build, BuildOptions, CompileRequest, Diagnosis, Kernel, Stage, Status
from evo.target import BlobStore, Rejected

SCHEMA = "cuda-build-2"  # raise when the options below or the contents of a Build change


class _Refused(Rejected):
    """A rejection that knows its stage and carries the compiler's log."""

    def __init__(self, status: Status, stage: Stage, message: str, *, detail: str = "") -> None:
        super().__init__(status, message, detail=detail)
        self.stage = stage


def build_key(request: CompileRequest, toolchain: str) -> str:
    """The name of a build in every cache: all that it depends on, evo's own headers included."""
    return digest((SCHEMA, codec.dumps(request), toolchain, headers_digest(EVO_HEADERS)))


@functools.cache
def headers_digest(folder: Path) -> str:
    """Of what evo's own headers there say."""
    headers = sorted(folder.glob("evo*.h"))
    return hashlib.sha256(b"".join(header.read_bytes() for header in headers)).hexdigest()


def build(request: CompileRequest, blobs: BlobStore) -> Build:
    """Compiles, inspects and stores the cubin; a candidate's fault is the returned status, never an exception.

    Every cubin is disassembled (about 0.3 s): nothing runs whose instructions were not looked at.
    Raises `TargetError` where the compiler or `nvdisasm` is missing.
    """
    started = time.perf_counter()
    versions = toolchain.toolchain()
    outcome = Build(build_key(request, versions), Status.OK, versions, 0.0)
    try:
        if problem := policy.source_violation(request.source, request.defines):
            raise _Refused(Status.FORBIDDEN, Stage.BUILD, problem)
        code, log = _assemble(request) if request.suffix == ".ptx" else _compile(request)
        cubin = read_cubin(code)
        functions = sass.disassemble(code)
        _refuse(cubin, functions, request)
        kernels = _described(cubin, functions, request, log)
        outcome = dataclasses.replace(
            outcome, blob=blobs.put(code), code_hash=cubin.code_hash, kernels=kernels, log=ptxas.notices(log)
        )
    except _Refused as refused:
        diagnosis = Diagnosis(refused.stage, refused.message, detail=refused.detail)
        outcome = dataclasses.replace(outcome, status=refused.status, diagnosis=diagnosis)
    return dataclasses.replace(outcome, seconds=time.perf_counter() - started)


def inspect_code(build: Build, blobs: BlobStore) -> Build:
    """The build with SASS opcode counts on its kernels, for finalists: of every build they would fill an archive.

    Raises `TargetError` where `nvdisasm` is missing.
    """
    if not build.blob:
        return build
    counts = sass.histogram(blobs.get(build.blob))
    kernels = (dataclasses.replace(kernel, opcodes=counts.get(kernel.name, {})) for kernel in build.kernels)
    return dataclasses.replace(build, kernels=tuple(kernels))


def _described(cubin: Cubin, functions: audit.Functions, request: CompileRequest, log: str) -> tuple[Kernel, ...]:
    """The kernels with what only ptxas' report and the instructions tell. Raises `_Refused` for what is forbidden."""
    found = audit.findings(functions, _launch_words(request.arch))
    if problem := audit.violation(found):
        raise _Refused(Status.FORBIDDEN, Stage.INSPECT, problem)
    usage, remarks = ptxas.parse_report(log), ptxas.remarks(log)
    flags = audit.flags(found, [kernel.name for kernel in cubin.kernels])
    doubts = claims.doubts(_claims(request), {sass.opcode(line) for lines in functions.values() for line in lines})
    return tuple(
        dataclasses.replace(
            kernel,
            spill_bytes=usage.get(kernel.name, ptxas.Usage()).spill_bytes,  # the ELF file does not tell
            flags=(*flags[kernel.name], *remarks.get(kernel.name, ()), *doubts),
        )
        for kernel in cubin.kernels
    )


def _claims(request: CompileRequest) -> list[tuple[str, str]]:
    """The text genes of a CUDA C++ source with the values that they have here."""
    return [(name, value[1:-1]) for name, value in request.defines if value[:1] == '"' == value[-1:]]


def _supported(options: type[Any], wanted: dict[str, Any]) -> Any:
    """An options object of cuda.core with those fields that its version has."""
    known = {field.name for field in dataclasses.fields(options)}
    return options(**{name: value for name, value in wanted.items() if name in known})


def nvrtc_options(request: CompileRequest) -> Any:
    """How NVRTC is called for CUDA C++, as cuda.core's `ProgramOptions`."""
    from cuda.core import ProgramOptions

    return _supported(
        ProgramOptions,
        {
            "name": f"{ptxas.SOURCE_FOLDER}candidate.cu",
            "arch": request.arch,
            "std": request.options.std,
            "fma": request.options.fmad,
            "ftz": request.options.ftz,
            "max_register_count": request.options.maxrregcount or None,
            "define_macro": list(request.defines) or None,
            "include_path": list(toolchain.include_paths()),
            "minimal": True,  # no launches from the device, no textures; 10 % faster
            "ptxas_options": "-v",
        },
    )


def _compile(request: CompileRequest) -> tuple[bytes, str]:
    """(cubin, log) of CUDA C++."""
    from cuda.core import Program

    options, log = nvrtc_options(request), io.StringIO()
    try:
        program = Program(request.source, "c++", options)
        try:
            return bytes(program.compile("cubin", logs=log).code), log.getvalue()
        finally:
            program.close()
    except Exception as error:  # cuda.core's error classes are private, and differ between its versions
        raise _judge(error, "NVRTC_ERROR_COMPILATION", request) from error


def _assemble(request: CompileRequest) -> tuple[bytes, str]:
    """(cubin, log) of PTX. By cuda.core's `Linker`, since its `Program` drops ptxas' report."""
    if fix := toolchain.missing_assembler():
        message = f"nvJitLink, which assembles PTX, is not installed here: {fix}"
        raise _Refused(Status.EVALUATOR_ERROR, Stage.BUILD, message)
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = _supported(
        LinkerOptions,
        {
            "name": "candidate.ptx",
            "arch": request.arch,
            "max_register_count": request.options.maxrregcount or None,
            "ptxas_options": ["-v"],
        },
    )
    try:
        linker = Linker(ObjectCode.from_ptx(request.source.encode(), name="candidate.ptx"), options=options)
        try:
            return bytes(linker.link("cubin").code), linker.get_info_log()
        finally:
            linker.close()
    except Exception as error:  # see _compile
        if "ERROR_INCORRECT_INPUT_TYPE" in str(error):
            message = "this is no PTX: no .version directive stands before its first instruction"
            raise _Refused(Status.BUILD_ERROR, Stage.BUILD, message, detail=str(error)) from error
        raise _judge(error, "ERROR_PTX_COMPILE", request) from error


def _judge(error: Exception, mark: str, request: CompileRequest) -> _Refused:
    """The rejection that a compiler's exception stands for; without `mark` it is not the source's fault."""
    text = str(error)
    if mark not in text:
        return _Refused(Status.EVALUATOR_ERROR, Stage.BUILD, f"{type(error).__name__}: {text[:500]}", detail=text)
    log = ptxas.error_log(text)
    message = ptxas.first_error(log)
    status = Status.RESOURCE_LIMIT if "uses too much shared data" in log else Status.BUILD_ERROR
    hint = ptxas.explain(log, request.arch)
    return _Refused(status, Stage.BUILD, f"{message}; {hint}" if hint else message, detail=log)


@functools.cache
def _window_slots(arch: str) -> frozenset[int]:
    """Where code for this architecture finds the address of its constants; learned once a process, from a probe."""
    probe = CompileRequest(arch.rstrip("a"), arch, ".cu", WINDOW_PROBE, (), BuildOptions(), ())
    cubin = read_cubin(_compile(probe)[0])
    return window_slots(cubin.driver_slots, cubin.parameters_at)


@functools.cache
def _launch_words(arch: str) -> frozenset[int]:
    """Where code for this architecture reads what tells one launch from another; learned once a process."""
    probe = CompileRequest(arch.rstrip("a"), arch, ".cu", audit.LAUNCH_PROBE, (), BuildOptions(), ())
    return audit.launch_words(sass.disassemble(_compile(probe)[0]))


def _refuse(cubin: Cubin, functions: audit.Functions, request: CompileRequest) -> None:
    """Raises `_Refused` for machine code that keeps state, calls the driver, lacks a kernel or can never launch."""
    if problem := policy.symbol_violation(cubin.undefined):
        raise _Refused(Status.FORBIDDEN, Stage.INSPECT, problem)
    kept = cubin.exposed
    # Headers such as cooperative_groups.h leave constants of theirs in device memory that no code reads.
    if not kept and cubin.addressed and sass.reads_global_addresses(functions):
        kept = cubin.addressed
    if kept:
        message = f"variables in device memory ({', '.join(kept[:4])}) could keep state between calls: make tables "
        message += "`__constant__`, working memory [scratch]"
        raise _Refused(Status.FORBIDDEN, Stage.INSPECT, message)
    # Constants can be written through a generic address and keep what was written between launches (seen on an H200).
    if any(slots & _window_slots(request.arch) for slots in cubin.driver_slots.values()):
        message = "the address of a `__constant__` variable is taken, through which it could keep state between calls: "
        raise _Refused(Status.FORBIDDEN, Stage.INSPECT, message + "index the variable by its name")
    names = {kernel.name for kernel in cubin.kernels}
    if absent := [name for name in request.kernels if name not in names]:
        message = f"kernel {absent[0]!r} is not in the machine code, which has: {', '.join(sorted(names)) or 'none'} "
        message += '(declare it `extern "C" __global__`)'
        raise _Refused(Status.INVALID_GENOME, Stage.INSPECT, message)
    limit = ARCHITECTURES[request.target].smem_block
    for kernel in cubin.kernels:
        if kernel.shared_bytes > limit:
            message = (
                f"kernel {kernel.name} has {kernel.shared_bytes} bytes of static shared memory; {limit} is the most"
            )
            raise _Refused(Status.RESOURCE_LIMIT, Stage.INSPECT, message)
