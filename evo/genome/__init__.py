"""Genome files: one source with a header that says what the launcher needs.

`Genome.parse` reads one; `objection` and `uncovered` say which gene values and cases it claims; `resolve_plan` and
`compile_request` turn it, gene values and a case into what the launcher and the compiler get.
"""

from evo.genome.coverage import objection, uncovered
from evo.genome.defaults import with_defaults
from evo.genome.genes import Gene
from evo.genome.genome import Genome
from evo.genome.identity import candidate_id, machine_id, machine_set, make_candidate
from evo.genome.macros import compile_request
from evo.genome.places import Uncovered
from evo.genome.resolve import buffer_shapes, resolve_plan

__all__ = [
    "Gene",
    "Genome",
    "Uncovered",
    "buffer_shapes",
    "candidate_id",
    "compile_request",
    "machine_id",
    "machine_set",
    "make_candidate",
    "objection",
    "resolve_plan",
    "uncovered",
    "with_defaults",
]
