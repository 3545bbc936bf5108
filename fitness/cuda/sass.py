"""What the machine code says in SASS: opcodes by kernel, and a hash of the text.

`nvdisasm` takes about 0.3 s of CPU however small the cubin is (it sets up its tables first). Builders run it for every
cubin, in parallel: one core is good for two candidates a second, while the device is good for about one.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from evo.errors import RunError, TargetError
from evo.fitness.cuda.toolchain import INSTALL
from evo.ids import digest

LIMIT_S = 60.0
_FUNCTION = re.compile(r"^\.text\.(\S+):$")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?P<text>(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][\w.]*)[^;]*?)\s*;")
_LABEL = re.compile(r"\.L_x_\d+")


@functools.cache
def find_tool(name: str) -> str:
    """The path of "nvdisasm" or "cuobjdump": of the wheels, else on PATH, else of a toolkit; "" where there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    candidates = [tool for folder in folders for tool in sorted(folder.glob(f"cu1*/bin/{name}"), reverse=True)]
    candidates.append(Path("/usr/local/cuda/bin") / name)
    on_path = shutil.which(name)
    if on_path:
        candidates.insert(len(candidates) - 1, Path(on_path))
    return next((str(tool) for tool in candidates if tool.is_file()), "")


@functools.lru_cache(maxsize=8)  # the same code comes again at once: a histogram after its build, an equal build
def disassemble(code: bytes) -> Mapping[str, Sequence[str]]:
    """The instructions of every function, in order, without addresses; padding NOPs are left out.

    Raises `TargetError` where `nvdisasm` is missing and `RunError` when it fails.
    """
    tool = find_tool("nvdisasm")
    if not tool:
        raise TargetError("nvdisasm, the disassembler, is not installed here", fix=INSTALL)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [tool, "--print-code", "--no-dataflow", file.name]  # its dataflow analysis takes another 0.1 s
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"nvdisasm took more than {LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        raise RunError(f"nvdisasm failed with {done.returncode}: {done.stderr.strip()[:500]}")
    return _parse(done.stdout)


def _parse(text: str) -> dict[str, list[str]]:
    functions: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if found := _FUNCTION.match(line):
            current = functions.setdefault(found[1], [])
        elif (found := _INSTRUCTION.match(line)) and found["opcode"] != "NOP":
            current.append(found["text"])
    return functions


def opcode(instruction: str) -> str:
    """ "LDG.E.128" of "@P0 LDG.E.128 R4, desc[UR4][R2.64]"."""
    words = instruction.split(maxsplit=2)
    return words[1] if words[0].startswith("@") else words[0]


def histogram(code: bytes) -> dict[str, dict[str, int]]:
    """How often each opcode, with its modifiers, stands in each function, most frequent first."""
    return {
        name: dict(Counter(map(opcode, instructions)).most_common()) for name, instructions in disassemble(code).items()
    }


def text_hash(code: bytes) -> str:
    """SHA-256 of the SASS text, functions by name; labels, which number the whole file, count as equal."""
    parts = []
    for name, instructions in sorted(disassemble(code).items()):
        parts += [name, *(_LABEL.sub(".L", instruction) for instruction in instructions)]
    return digest(parts)


def reads_global_addresses(functions: Mapping[str, Sequence[str]]) -> bool:
    """Whether any instruction reads constant bank 4, where the addresses of the module's variables lie."""
    return any("c[0x4]" in line for lines in functions.values() for line in lines)
