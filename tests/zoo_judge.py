"""The zoo on a stand of its own, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from evo.app.stand import stand
from evo.app.trust.zoo import run_zoo
from evo.fitness.zoo import Finding, Member
from evo.plugins.manager import Plugins


def judged(operator: str, target: str, members: Sequence[Member], cases: Sequence[str]) -> list[Finding]:
    with stand(Plugins.load(entry_points=False), operator, target, cases) as here:
        return run_zoo(here, members, lambda message: None)
