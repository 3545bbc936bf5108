"""The zoo: kernels that cheat, err or do harm, each with the status that it must get.

Two sorts: files written for one operator (listed in `zoo.toml`), and members made from any operator's own seed.
"""

from __future__ import annotations

from evo.fitness.zoo.generic import generic_members
from evo.fitness.zoo.manifest import HERE, file_members, honest, kinds
from evo.fitness.zoo.member import Finding, Member
from evo.operator import Operator

__all__ = ["HERE", "Finding", "Member", "file_members", "generic_members", "honest", "kinds", "members"]


def members(operator: Operator, target: str) -> tuple[Member, ...]:
    """Every member for this operator and target ("cpu", "sm_90", ...): the files written for it, then the made ones."""
    return (*file_members(operator.name, target), *generic_members(operator, target))
