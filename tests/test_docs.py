"""The documents are true: the genomes of docs/genome.md build and fit, its tables are complete, links lead to files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evo import app
from evo.dtypes import ITEMSIZE
from evo.fitness.cpu import elf, vet
from evo.fitness.cuda import policy
from evo.genome import Genome
from evo.genome.closures import FUNCTIONS
from evo.genome.genes import RESERVED
from evo.genome.genome import HEADER_KEYS
from evo.genome.launches import LAUNCH_KEYS, MAP_KEYS, SCRATCH_KEYS
from evo.operators.rmsnorm import RmsNorm
from evo.records import Status

ROOT = Path(__file__).parent.parent
REFERENCE = (ROOT / "docs" / "genome.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def genome_in(fence: str) -> str:
    """The one fenced block of that language that is a whole genome."""
    (text,) = re.findall(rf"^```{re.escape(fence)}\n(/\* evo\n.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL)
    return str(text)


def test_cuda_genome_builds(tmp_path: Path) -> None:
    file = tmp_path / "documented.cu"
    file.write_text(genome_in("cuda"))
    found = app.check(file, target="sm_90", genes={}, cases=("bf16-32768x1024", "fp32-32768x256"), build_only=True)
    assert found.status is Status.OK, found.diagnosis
    assert {case.status for case in found.cases} == {Status.OK}, "it covers every case"


def test_cpu_genome_fits_its_operator() -> None:
    genome = Genome.parse(genome_in("c++"), ".cpp")
    genome.contract(RmsNorm())
    assert genome.static == ("N",)
    assert genome.defaults() == {"ROWS": 8}


def public_names(folder: Path) -> set[str]:
    """What evo's headers offer: functions, types and macros, without namespace evo_detail."""
    text = "".join(header.read_text() for header in sorted(folder.glob("evo*.h")))
    text = re.sub(r"namespace evo_detail \{.*?\}  // namespace evo_detail", "", text, flags=re.DOTALL)
    functions = re.findall(r"^(?:template .*)?EVO_(?:DEVICE|INLINE) [\w ]+? (evo_\w+)\(", text, re.MULTILINE)
    types = re.findall(r"^(?:struct|typedef) (?:alignas\(\d+\) |\w+ (?=evo))?(\w+)", text, re.MULTILINE)
    types += re.findall(r"^template <class T> struct (\w+)", text, re.MULTILINE)
    defined, removed = (re.findall(rf"^#{word} (EVO_\w+)", text, re.MULTILINE) for word in ("define", "undef"))
    return {*functions, *types, *defined} - set(removed)


@pytest.mark.parametrize(("target", "known"), [("cuda", "evo_tensor_load"), ("cpu", "evo_stream")])
def test_every_name_of_evo_h_is_explained(target: str, known: str) -> None:
    names = public_names(ROOT / "fitness" / target)
    assert known in names
    title = "## evo.h for CUDA\n" if target == "cuda" else "## evo.h for the CPU\n"
    chapter = REFERENCE.partition(title)[2].partition("\n## ")[0]
    assert names == set(re.findall(r"\b(?:EVO|evo)_\w+\b(?!\.h)|\bCUtensorMap\b", chapter))


def test_every_key_name_and_status_is_explained() -> None:
    words = set(re.findall(r"\w[\w./]*", REFERENCE))
    for names in (
        HEADER_KEYS, LAUNCH_KEYS, SCRATCH_KEYS, MAP_KEYS, FUNCTIONS, RESERVED, ITEMSIZE, Status, elf.SUPPLIED,
        vet.HEADERS, vet.DIRECTIVES, policy.HEADERS, ("fmad", "ftz", "maxrregcount", "std"),
    ):  # fmt: skip
        assert set(names) - words == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    places = {target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)} - {""}
    assert [place for place in sorted(places) if not (document.parent / place).exists()] == []
